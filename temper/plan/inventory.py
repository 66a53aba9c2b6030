"""The operator's inventory, as Ansible reads it, and the part of it that a slice gets.

It is read once: a plug-in that asks a cloud, or a file for each of ten thousand nodes, would cost every slice
the same again. Templates are passed on as they are, and mean the same in a slice: where they name other hosts
or groups, it gets those too; what a slice cannot know is refused.
"""

from __future__ import annotations

import json
import locale
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.base import ROOT, typed
from temper.base.nodes import RACK_VARIABLES, counted, with_rack
from temper.base.options import told
from temper.base.selection import NOTHING_DONE, no_nodes
from validation.model.printable import printable

#: The group whose nodes Temper's playbooks are for.
NODES = "gpu_nodes"
#: Variables that every host has and that say nothing.
NOISE = ("ansible_local",)
#: Templates with these need the whole inventory.
OTHERS = re.compile(r"\b(?:hostvars|groups|inventory_hostnames)\b")
#: Arguments of ssh that name other nodes need it, too: the slice of a jump host must not close it to them.
SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
#: A name or an address in them; one of IPv6 has colons, and may have a zone.
HOSTS = (re.compile(r"[\w.-]+"), re.compile(r"[\w.:%-]+"))
#: What means something else in each slice, and why.
OF_A_SLICE = (
    (
        re.compile(r"\b(?:inventory_dir|inventory_file)\b"),
        "which is a folder of the slice: write the path out",
    ),
    (
        re.compile(r"\b(?:ansible_play_hosts(?:_all)?|ansible_play_batch|play_hosts|ansible_limit)\b"),
        "which is the slice's nodes alone: name a group",
    ),
    (
        re.compile(r"\bhostvars\b.*\bansible_facts\b|\bansible_facts\b.*\bhostvars\b", re.DOTALL),
        "facts of other nodes, of which a slice has read none: write the value out",
    ),
)
OF_A_HELPER = (
    (
        re.compile(r"\b(?:lookup|query|q)\(\s*['\"](?:ansible\.builtin\.)?(?:env|password)['\"]"),
        "which each helper answers by itself: write the value out, or run without --helpers",
    ),
)
#: Folders of files of variables beside an inventory.
VARIABLES = ("group_vars", "host_vars")
#: How the names of files of YAML end.
YAML_ENDINGS = ("", ".yml", ".yaml", ".json")
#: Groups of Ansible's own, which say nothing of a node.
BUILT_IN = ("all", "ungrouped")
#: Whatever the operator has set: a listing is one document, with the groups' variables at each host.
PLAIN = {
    "ANSIBLE_VERBOSITY": "0",
    "ANSIBLE_DEBUG": "0",
    "ANSIBLE_INVENTORY_EXPORT": "0",
    "ANSIBLE_NOCOLOR": "1",
    "LC_ALL": "C.UTF-8",
}
LAST_LINES = 6
#: What stands for a variable that Ansible has no value of.
UNRESOLVED: dict[str, str] = {}
#: How JSON of Ansible's marks a text that is no template, and one that nobody can read here.
MARKED = ({"__ansible_unsafe"}, {"__ansible_vault"})


class InventoryError(Exception):
    """The inventory, or what preflight makes of it, cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class Inventory:
    """Hosts and groups, and each host's variables with those of its groups."""

    groups: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, Mapping[str, Any]]

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of the inventory."""
        return list(self._below(NODES))

    @property
    def names(self) -> set[str]:
        """Every host and every group, also those that have no entry of their own in a listing."""
        inner = (
            name for of in self.groups.values() for kind in ("hosts", "children") for name in of.get(kind, ())
        )
        return {*self.groups, *self.variables, *inner}

    @property
    def members(self) -> dict[str, list[str]]:
        """The hosts of each group, with those of the groups in it."""
        return {name: list(self._below(name)) for name in self.groups}

    def addresses(self) -> list[tuple[str, Any]]:
        """Return each node with its `ansible_host` as it stands in the inventory, or an empty text."""
        return [(node, self.variables.get(node, {}).get("ansible_host", "")) for node in self.nodes]

    def spans(self, nodes: Collection[str], variables: Mapping[str, Any]) -> bool:
        """Return whether what these nodes, or these variables for all, say names other hosts or groups."""
        own = [self.variables.get(node, {}) for node in nodes]
        found = [text for one in (variables, *own) for _, text in templates("", one)]
        return self._have_jump_hosts(variables) or any(map(OTHERS.search, found))

    def _have_jump_hosts(self, variables: Mapping[str, Any]) -> bool:
        """Return whether arguments of ssh, or its files, may name nodes other than the one they are for."""
        from temper.plan.ssh_client import files_jump

        hosts = dict(self.addresses())
        known = {*hosts, *map(str, hosts.values())} - {""}
        given = set()
        environment = {name: os.environ.get(name.upper(), "") for name in SSH_ARGUMENTS}
        for node, host in [("", ""), *hosts.items()]:
            own = {**environment, **self.variables.get(node, {}), **variables}
            arguments = " ".join(str(own[name]) for name in SSH_ARGUMENTS)
            if known & {name for one in HOSTS for name in one.findall(arguments)} - {node, str(host)}:
                return True
            given.add(arguments)
        return files_jump(given)

    def require_same(self, nodes: Collection[str], variables: Mapping[str, Any], *, helpers: bool) -> None:
        """Refuse what would be another value in a slice than in one process. Raises InventoryError."""
        rules = OF_A_SLICE + (OF_A_HELPER if helpers else ())
        sources = [("-e", variables), *((node, self.variables.get(node, {})) for node in nodes)]
        for source, own in sources:
            for name, text in templates("", own):
                for rule, why in rules:
                    if found := rule.search(text):
                        raise InventoryError(
                            f"{source}: {name} is a template of {' '.join(found[0].split())}, {why}."
                        )
        if not self.spans(nodes, variables):
            return
        for node in nodes:
            # To Ansible's --limit, by which a slice of the whole inventory has its nodes, it is the group.
            if node in self.groups and list(self._below(node)) != [node]:
                raise InventoryError(
                    f"{node}: it is a host and a group of others, and where templates name other hosts or "
                    "groups, a slice could not have the one without the others: rename one."
                )

    def slice(self, nodes: Collection[str]) -> dict[str, Any]:
        """Return an inventory of these nodes alone, in Ansible's form, with their groups and variables."""
        wanted = dict.fromkeys(nodes)
        kept: dict[str, Any] = {}
        for name in self.groups:
            hosts = {host: None for host in self.groups[name].get("hosts", ()) if host in wanted}
            children = {
                child: None
                for child in self.groups[name].get("children", ())
                if any(node in wanted for node in self._below(child))
            }
            if name not in BUILT_IN and (hosts or children):
                kept[name] = {"hosts": hosts, "children": children}
        return {
            "all": {
                "hosts": {node: dict(self.variables.get(node, {})) for node in wanted},
                "children": kept,
            }
        }

    def whole(self) -> dict[str, Any]:
        """Return the inventory of all hosts and groups, likewise."""
        kept = {
            name: {
                "hosts": dict.fromkeys(group.get("hosts", ())),
                "children": dict.fromkeys(group.get("children", ())),
            }
            for name, group in self.groups.items()
            if name not in BUILT_IN
        }
        hosts = {host: dict(self.variables.get(host, {})) for host in (*self._below("all"), *self.variables)}
        return {"all": {"hosts": hosts, "children": kept}}

    def _below(self, group: str) -> dict[str, None]:
        """Return the hosts of a group and of the groups in it, in order, each once."""
        own = self.groups.get(group, {})
        found = dict.fromkeys(own.get("hosts", ()))
        for child in own.get("children", ()):
            found |= self._below(child)
        return found


def templates(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the templates in a value, at any depth, each with the name of the variable that it is in."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield name, value
    elif isinstance(value, dict) and set(value) not in MARKED:
        for key, inner in value.items():
            yield from templates(name or str(key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates(name, inner)


def from_listing(listing: Mapping[str, Any]) -> Inventory:
    """Return what `ansible-inventory --list` says."""
    hostvars = listing.get("_meta", {}).get("hostvars", {})
    variables = {
        host: {key: value for key, value in own.items() if key not in NOISE or value}
        for host, own in hostvars.items()
    }
    return Inventory({name: group for name, group in listing.items() if name != "_meta"}, variables)


def read(sources: Sequence[str], limit: str = "") -> Inventory:
    """Read the nodes of inventories; of the configured one without `sources`. Raises InventoryError."""
    found = listed(sources, limit)
    if not found.nodes:
        # Of a limit, the listing has only the nodes that it chooses.
        whole = listed(sources) if limit else found
        reason = no_nodes([NODES], limit, whole.members, [_named(sources)])
        if NODES not in whole.groups and (said := taken_for_names(sources)):
            reason = f"{said}."
        raise InventoryError(f"{reason} {NOTHING_DONE}")
    return found


def listed(sources: Sequence[str], limit: str = "") -> Inventory:
    """Read inventories as Ansible does, also those without a node of ours. Raises InventoryError."""
    require_present(sources)
    done = ansible("ansible-inventory", sources, "--list", *(["--limit", limit] if limit else []))
    try:
        return from_listing(json.loads("" if done.returncode else done.stdout))
    except ValueError:
        if limit:
            listed(sources)  # raises, where it is not the limit
            raise InventoryError(f"--limit {limit}: {last_words(done).rstrip('.')}. {NOTHING_DONE}") from None
        why = _broken(done, sources)
        raise InventoryError(f"{_named(sources)}: expected an inventory of Ansible: {why}") from None


def _broken(done: subprocess.CompletedProcess[str], sources: Sequence[str]) -> str:
    """Return why Ansible cannot read inventories.

    The first file that is no YAML, with its line; else Ansible's last words.
    """
    from temper.plan.origin import with_vault_remedy

    vaults: list[str] = []
    for source in sources or chosen(()):
        root = ROOT / source
        own = sorted(root.glob("*")) if root.is_dir() else [root]
        for path in (*(path for path in own if path.suffix), *files_of_variables(root)):
            if said := unreadable(path, vaults, may_be_empty=path not in own):
                return said
    return with_vault_remedy(last_words(done), *vaults)


def taken_for_names(sources: Sequence[str]) -> str:
    """Return why a file of YAML is none; Ansible may have taken a line of it for the name of a host."""
    for source in sources:
        root = ROOT / source
        for path in sorted(root.glob("*")) if root.is_dir() else [root]:
            is_data = path.suffix in YAML_ENDINGS[1:] and not os.access(path, os.X_OK)
            if is_data and (said := unreadable(path)):
                return said
    return ""


def files_of_variables(source: Path) -> Iterator[Path]:
    """Yield what is in the folders of variables beside an inventory."""
    folder = source if source.is_dir() else source.parent
    for name in VARIABLES:
        yield from sorted((folder / name).rglob("*"))


def unreadable_variables(sources: Sequence[str]) -> str:
    """Return the first file of variables beside inventories that Ansible cannot read, in brackets."""
    found = (path for source in sources if "," not in source for path in files_of_variables(Path(source)))
    return next((f" ({typed(path)})" for path in found if unreadable(path, may_be_empty=True)), "")


def unreadable(path: Path, vaults: list[str] | None = None, *, may_be_empty: bool = False) -> str:
    """Return why Ansible cannot read a file of YAML; nothing for a good one, and for all else.

    A vault, whose password is not asked for here, joins `vaults`.
    """
    from ansible.errors import AnsibleError, AnsibleParserError
    from ansible.parsing.dataloader import DataLoader

    from temper.plan.origin import place_of_error

    if path.suffix not in YAML_ENDINGS or not path.is_file():
        return ""
    try:
        found = DataLoader().load_from_file(str(path))
        if not (found or may_be_empty):
            return f"{path} is empty"
        if may_be_empty:  # a file of variables
            return ""
        if not isinstance(found, dict):
            return f"{typed(path)}: expected groups with their hosts, found none"
        return _misshapen(found)
    except AnsibleParserError as error:
        where = place_of_error(error) or f" ({typed(path)})"
        return printable(f"expected YAML, found none: {_yaml_problem(error)}{where}")
    except RecursionError:
        return f"{typed(path)}: expected fewer levels of nesting"
    except AnsibleError:
        (vaults if vaults is not None else []).append(str(path))
    return ""


def _misshapen(groups: Any, around: tuple[str, ...] = ()) -> str:
    """Return what of groups is not as Ansible's YAML plugin wants it; nothing for all else.

    `around` are the names of the groups that these are in.
    """
    from temper.plan.origin import place

    if not isinstance(groups, dict) or "plugin" in groups:
        return ""
    for name, group in groups.items():
        if name in around:
            return f"{name}: expected no group that is in itself, found this one in {around[-1]}{place(name)}"
        for key in ("children", "hosts", "vars") if isinstance(group, dict) else ():
            part = group.get(key)
            if isinstance(part, list):
                return f"{name}, {key}: expected names with a colon each (NAME:), found a list{place(part)}"
            for one in (name, *(part if isinstance(part, dict) else ())):
                if not isinstance(one, str):
                    return f"{name}: expected names as text, found {one}: put it in quotes{place(part)}"
            if key == "children" and (said := _misshapen(part, (*around, name))):
                return said
    return ""


def _yaml_problem(error: Exception) -> str:
    """Return what YAML itself says, where Ansible's message is a guess at the cause."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return str(cause.strerror)
    if not (problem := getattr(cause, "problem", "")):
        return str(getattr(error, "message", error)).rstrip(".")
    begins = getattr(cause, "context_mark", None)
    where = f"{getattr(cause, 'context', '')} that begins in line {begins.line + 1}: " if begins else ""
    return f"{where}{problem}"


def groups_of(sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the groups of each host, also those that its groups are in, with its rack.

    Raises InventoryError, also where a rack cannot be resolved: a roll-out's limit would not hold for it.
    """
    known = listed(sources)
    found: dict[str, tuple[str, ...]] = dict.fromkeys(known.members.get("all", ()), ())
    for name, hosts in sorted(known.members.items()):
        if name not in BUILT_IN:
            found |= {host: (*found.get(host, ()), name) for host in hosts}
    racks = {name: _racks(known, sources, name) for name in RACK_VARIABLES}
    for host, groups in found.items():
        found[host] = tuple(with_rack(groups, {name: racks[name].get(host) for name in RACK_VARIABLES}))
    return found


def _racks(known: Inventory, sources: Sequence[str], name: str) -> dict[str, Any]:
    """Return a variable of each node that names its rack. Raises InventoryError where one has no value."""
    try:
        found = _of_nodes(known, sources, {}, name)
    except InventoryError as error:
        raise InventoryError(f"{_named(sources)}: variable {name} of the nodes: {error}") from None
    if nodes := [node for node, value in found.items() if value == UNRESOLVED]:
        raise InventoryError(
            f"{_named(sources)}: expected variable {name} of {counted(nodes)} to be a rack, found a template "
            "that Ansible cannot resolve on this machine: write the rack out"
        )
    return found


def _named(sources: Sequence[str]) -> str:
    return ", ".join(sources) or "the default inventory"


def expanded(name: str) -> Path:
    """Return a path with a home and variables put in, as Ansible reads it."""
    return Path(os.path.expandvars(name)).expanduser()


def require_present(sources: Sequence[str]) -> None:
    """Raise InventoryError for an inventory that is not there; a list of hosts has a comma."""
    if missing := [one for one in sources if "," not in one and not (ROOT / expanded(one)).exists()]:
        raise InventoryError(f"expected an inventory, found no file or folder {missing[0]}")


def chosen(given: Sequence[str]) -> list[str]:
    """Return the inventories of a command line, else those of ANSIBLE_INVENTORY, by their whole paths."""
    named = given or [one for one in os.environ.get("ANSIBLE_INVENTORY", "").split(",") if one]
    return [one if "," in one else str(expanded(one).absolute()) for one in named]


def environment() -> dict[str, str]:
    """Return the environment of an ansible-playbook in the caller's folder.

    It has the checkout's settings, and a locale in UTF-8, which Ansible insists on.
    """
    settings = os.environ.get("ANSIBLE_CONFIG") or str(ROOT / "ansible.cfg")
    return {**os.environ, "ANSIBLE_CONFIG": settings, **({} if utf8() else {"LC_ALL": PLAIN["LC_ALL"]})}


def utf8() -> bool:
    """Return whether the operator's locale is one in UTF-8."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        return (locale.getlocale()[1] or "").replace("-", "").lower() == "utf8"
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)


def ansible(
    command: str, sources: Sequence[str], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of Ansible, of this environment, in the checkout, whose settings it takes.

    `more` are variables of its environment.

    It takes as long as its inventory and nodes do. Raises InventoryError where it is not installed.
    """
    beside = Path(sys.executable).with_name(command)
    words = [word for source in sources for word in ("-i", source)]
    try:
        return subprocess.run(  # noqa: S603 - the operator's inventories
            [str(beside) if beside.is_file() else command, *words, *arguments], cwd=ROOT, check=False,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **PLAIN, **more},
        )  # fmt: skip
    except OSError as error:
        raise InventoryError(f"{command} cannot be run: {told(error)}; make setup installs it") from error


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a command had to say, in one line."""
    # What stands before a traceback says as much of its cause as that.
    errors = done.stderr.partition("\nTraceback ")[0].strip()
    text = (errors or done.stdout.strip()).splitlines()
    said = printable(" ".join(line.strip() for line in text[-LAST_LINES:])).removeprefix("[ERROR]: ")
    said = said.removeprefix("Unexpected Exception, this is probably a bug: ")
    return said or f"it ended with status {done.returncode}"


def addresses(
    known: Inventory, sources: Sequence[str], variables: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return each node with its `ansible_host` as Ansible resolves it, or an empty text.

    Raises InventoryError.
    """
    found = _of_nodes(known, sources, variables, "ansible_host")
    return [(node, str(host or "")) for node, host in found.items()]


def _of_nodes(
    known: Inventory, sources: Sequence[str], variables: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return a variable of each node as Ansible resolves it, or an empty text. Raises InventoryError.

    UNRESOLVED where a template is of something that is nowhere defined.
    """
    given = {node: known.variables.get(node, {}).get(name, "") for node in known.nodes}
    if all(map(_plain, given.values())):
        return given
    own = f"groups.{NODES} | map('extract', hostvars) | map(attribute='{name}', default={UNRESOLVED})"
    found = dict(_resolved(sources, variables, f"{{{{ groups.{NODES} | zip({own}) | list | to_json }}}}"))
    return {node: value if given.get(node) else "" for node, value in found.items()}


def values(
    known: Inventory, sources: Sequence[str], variables: Mapping[str, Any], node: str, names: Collection[str]
) -> dict[str, Any]:
    """Variables of a node by name, as Ansible resolves them; one that is nowhere set is left out.

    Raises InventoryError.
    """
    given = {**known.variables.get(node, {}), **variables}
    found = {name: given[name] for name in names if name in given}
    if all(_plain(value) for value in found.values()):
        return found
    own = f"hostvars[{json.dumps(node)}]"
    asked = f"{json.dumps(list(found))} | zip({json.dumps(list(found))} | map('extract', {own}))"
    return dict(_resolved(sources, variables, f"{{{{ {asked} | list | to_json }}}}"))


def _plain(value: Any) -> bool:
    """Return whether a value is itself. What is vaulted, or marked as no template, is none here."""
    if isinstance(value, list):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | None) and not list(templates("", value))


def _resolved(sources: Sequence[str], variables: Mapping[str, Any], template: str) -> Any:
    """Return what Ansible makes of a template of ours, which gives JSON. Raises InventoryError."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "variables.json"), Path(folder, "found.json")
        here = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "__fleet_wanted": template,
            "__fleet_found": str(found),
        }
        given.write_text(json.dumps({**variables, **here}), encoding="utf-8")
        done = ansible("ansible-playbook", sources, "temper/plan/resolve.yml", "--extra-vars", f"@{given}")
        if done.returncode:
            said = " ".join(f"{done.stdout}{done.stderr}".split())[-500:]
            raise InventoryError(f"expected variables that Ansible can resolve on this machine: {said}")
        return json.loads(found.read_text(encoding="utf-8"))
