"""What a node answered: what is passed on of it, and the one reader that lets it in.

An answer is a node's own word. It may say that all is well, and no more: it speaks only of what its plan asks
for, what it leaves out is not checked, and an answer of any other form or size is this node's problem alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from temper.base import DATA
from temper.compliance.model import Observation, State
from temper.compliance.statement import DEMANDED, NODE, OUTSIDE, OUTSIDE_TITLES, TITLES
from temper.plan.convert import plain
from temper.plan.node_plan import NodePlan, RolePlan
from temper.plan.os_controls import OPERATOR, demanded, load_controls
from temper.plan.wanted import FileWanted, Kind, Wanted
from validation.model.bounds import Bounds
from validation.model.contract import ContractError, decode, parse
from validation.model.printable import printable

#: A node with all roles answers in 110 kB and 250 observations; one that differs everywhere, in 2 MB.
MOST_BYTES = 8 << 20
MOST_OBSERVATIONS = 3000
MOST_CHANGES = 500
#: Of a role. It has ten patterns of one or two signs.
MOST_PATTERNS, MOST_SIGNS = 300, 8
#: Characters of a text; what is longer is cut. The node itself cuts what it compares to 40 lines of 300.
MOST_CHARACTERS = 2000
MOST_OF_A_DIFF = 16_000
MOST_OF_A_LABEL = 100
SILENT = "the node's answer does not speak of it"
#: The key under which a node compares all settings of a kind, or of kinds, together.
TOGETHER: dict[str, str] = {
    Kind.REPOSITORY: "repository:sources",
    **dict.fromkeys(
        (Kind.PACKAGE, Kind.PACKAGE_CHOICE, Kind.PIN, Kind.MODULE_STREAM, Kind.HOLD_VERSION), "package:set"
    ),
    Kind.DRIVER: "driver:nvidia",
    Kind.CONTAINER_ENGINE: "container_engines",
    Kind.ACCOUNT: "account",
    Kind.FIREWALL: "firewall",
    **dict.fromkeys((Kind.SSHD, Kind.SSHD_ALGORITHM, Kind.SSHD_PARAMETER), "sshd"),
    Kind.GPU: "gpu:settings",
}
#: Kinds whose key may be a pattern: of what it matches a node has any number, also none.
PATTERNS = (Kind.SYSCTL, Kind.ACCESS, Kind.SYSFS)
#: Where a role has nothing to set, or sets nothing any more, and is compared all the same.
TAKEN_BACK = {
    "admin_accounts": "account",
    "container_engines": "container_engines",
    "firewall": "firewall",
    "ssh_hardening": "sshd",
}
AUDIT_RULES, AUDIT_KEY = "/etc/audit/rules.d/", "audit:rules"


@dataclass(frozen=True)
class Answer:
    """Of a node: its plan, what it observed by role, and the version of the driver that is loaded.

    `versions` are those that are installed, by the components of data/nvidia_security.yml.
    """

    plan: NodePlan
    observations: Mapping[str, tuple[Observation, ...]]
    driver: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Written:
    """An answer as it is passed on; each role's observations are a text."""

    plan: dict[str, Any]
    observations: dict[str, Annotated[str, Bounds(MOST_BYTES)]]
    driver: str | None
    outside: tuple[Observation, ...] = ()
    versions: dict[str, Annotated[str, Bounds(MOST_CHARACTERS)]] = field(default_factory=dict)


def answer(
    plan: Mapping[str, Any],
    observations: Mapping[str, Any],
    driver: str | None,
    outside: Iterable[Observation] = (),
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return what is passed on of a node that was compared, as `read` takes it: JSON.

    `outside` is what this machine has seen of it, for which the node does not speak. `versions` are those of
    the stack that are installed.

    Of the plan (its fact) only what a statement needs. What settings are to be is most of it, with the whole
    fleet's addresses and programs in it, and that of all nodes would not fit into the controller's memory.
    """
    same = ("schema_version", "problems", "refusals", "system", "architecture", "gpus", "waived")
    needed = {name: plan[name] for name in same}
    roles = {name: json.loads(text) for name, text in plan["roles"].items()}
    short = {
        name: json.dumps(role | {"settings": [shortened(one) for one in role["settings"]], "reactions": []})
        for name, role in roles.items()
    }
    by_role = isinstance(observations, dict)  # what is not, `read` refuses
    found = {role: json.dumps(one) for role, one in observations.items()} if by_role else observations
    seen = plain(tuple(outside))
    return json.dumps(
        {
            "plan": needed | {"roles": short},
            "observations": found,
            "driver": driver,
            "outside": seen,
            "versions": dict(versions or {}),
        }
    )


def shortened(setting: dict[str, Any]) -> dict[str, Any]:
    """Return a setting without what is wanted but for whether a node answers for it."""
    wanted = setting["wanted"]
    if setting["kind"] != Kind.FILE or not wanted:
        return setting | {"wanted": None}
    return setting | {"wanted": {name: wanted[name] for name in ("machine", "secret") if wanted.get(name)}}


def packed(asked: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `checked_nodes` takes, as a document with each answer once.

    Those of alike nodes are the same.
    """
    places: dict[str, int] = {}
    nodes = []
    for one in asked:
        said = one["answer"]
        if "answer" in said:
            said = {**said, "answer": places.setdefault(said["answer"], len(places))}
        nodes.append({**one, "answer": said})
    return {"answers": list(places), "nodes": nodes}


def unpacked(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was packed. A node whose answer is not in the document has a problem instead.

    Raises KeyError, TypeError for what was not packed.
    """
    answers, nodes = document["answers"], []
    for one in document["nodes"]:
        said = one["answer"]
        if "answer" in said:
            place = said["answer"]
            there = type(place) is int and 0 <= place < len(answers)
            said = (
                {**said, "answer": answers[place]} if there else {"problem": "its answer was not handed over"}
            )
        nodes.append({**one, "answer": said})
    return nodes


def read(said: object) -> Answer:
    """Return an answer; the same objects for all nodes that said the same. Raises ContractError."""
    if not isinstance(said, str):
        raise ContractError(f"expected text, found {type(said).__name__}")
    # A character takes one byte or more.
    if len(said) > MOST_BYTES:
        raise ContractError(f"expected at most {MOST_BYTES} bytes, found {len(said)}")
    return _read(said)


@lru_cache(maxsize=256)
def _read(said: str) -> Answer:
    written = decode(Written, parse(said))
    plan = NodePlan.from_fact(written.plan)
    asked = {role.role: role for role in plan.roles}
    if strange := sorted(written.observations.keys() - asked.keys() - {NODE, DEMANDED}):
        raise ContractError(f"observations: expected those of the plan's roles, found {strange[0]!r}")
    relaxed = json.dumps([[one.id for one in plan.waived if one.by != OPERATOR], plan.system])
    observations = {
        name: _of_role(written.observations.get(name, "[]"), name, text, plan.architecture or "")
        for name, text in [*written.plan["roles"].items(), (NODE, ""), (DEMANDED, relaxed)]
    }
    if (count := sum(map(len, observations.values()))) > MOST_OBSERVATIONS:
        raise ContractError(f"observations: expected at most {MOST_OBSERVATIONS}, found {count}")
    if written.outside:
        observations[OUTSIDE] = tuple(_observation(json.dumps(plain(one))) for one in written.outside)
        if [one.key for one in written.outside] != list(OUTSIDE_TITLES):
            raise ContractError(f"{OUTSIDE}: expected {', '.join(OUTSIDE_TITLES)}, or nothing")
    driver = None if written.driver is None else label(written.driver)
    versions = {name: label(text) for name, text in written.versions.items()}
    return Answer(replace(plan, system=plan.system and label(plan.system)), observations, driver, versions)


@lru_cache(maxsize=1 << 12)
def _of_role(said: str, name: str, asked: str, machine: str) -> tuple[Observation, ...]:
    """Return the observations of a role: where a node differs in one role only, it shares the others."""
    entries = parse(said)
    if not isinstance(entries, list) or len(entries) > MOST_OBSERVATIONS:
        raise ContractError(f"observations.{name}: expected at most {MOST_OBSERVATIONS} in a list")
    own = _asked(name, asked, machine)
    found = tuple(_observation(json.dumps(one)) for one in entries)
    for one in found:
        own.refuse_foreign(one)
    return (*found, *own.unanswered(found))


@lru_cache(maxsize=1 << 14)
def _observation(said: str) -> Observation:
    """Return an observation whose texts people can look at. Raises ContractError."""
    one = decode(Observation, parse(said))
    changes = tuple(
        replace(
            change,
            name=brief(change.name),
            before=brief(change.before),
            after=brief(change.after),
            diff=brief(change.diff, MOST_OF_A_DIFF),
        )
        for change in one.changes[:MOST_CHANGES]
    )
    if len(one.key) > MOST_CHARACTERS or not one.key.isprintable():
        raise ContractError(f"expected the key of a setting, found {one.key[:60]!r}")
    return replace(one, reason=brief(one.reason), changes=changes)


def brief(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a node's words as a person can look at them: printable, and not endless."""
    return printable(
        text if len(text) <= most else f"{text[:most]}... and {len(text) - most} characters more"
    )


def label(text: str) -> str:
    """Return a node's words as a short line."""
    return brief(" ".join(text.split()), MOST_OF_A_LABEL)


class Item(NamedTuple):
    """What a node is asked about: a setting of a role, or what a benchmark asks for."""

    kind: str
    key: str
    controls: Collection[str]
    wanted: Wanted = None


class Asked:
    """What a node may speak of in a role, and has to: keys of observations with their controls."""

    def __init__(self, role: str, items: Iterable[Item], machine: str) -> None:
        self.role = role
        self.own: dict[str, set[str]] = defaultdict(set)
        self.required: dict[str, set[str]] = defaultdict(set)
        self.patterns: list[tuple[str, set[str]]] = []
        #: The key that stands for a setting of a kind whose settings are compared together.
        self.together: dict[str, str] = {}
        for item in items:
            self._add(item, set(item.controls), machine)

    def _add(self, item: Item, controls: set[str], machine: str) -> None:
        key = f"{item.kind}:{item.key}"
        # A pattern costs the square of its length.
        if len(key) > MOST_CHARACTERS:
            raise ContractError(f"roles.{self.role}: expected the key of a setting, found {key[:60]!r}...")
        if item.kind == Kind.UNIT and "." not in item.key:
            key += ".service"
        self.own[key] |= controls
        if item.kind in TOGETHER:
            self.together[key] = TOGETHER[item.kind]
            self.require(TOGETHER[item.kind], controls)
        elif item.kind == Kind.SYSFS or (item.kind in PATTERNS and any(sign in item.key for sign in "*?[")):
            # Each is compared with all that a node observes, and costs as often its length as it has signs.
            if len(self.patterns) >= MOST_PATTERNS or sum(map(key.count, "*?[")) > MOST_SIGNS:
                raise ContractError(
                    f"roles.{self.role}: expected at most {MOST_PATTERNS} patterns of {MOST_SIGNS} signs each"
                )
            self.patterns.append((key, controls))
        elif item.kind == Kind.FILE:
            wanted = item.wanted if isinstance(item.wanted, FileWanted) else FileWanted()
            # One that travels by itself is not compared; that there is none, is.
            here = not (wanted.secret and wanted.source) and wanted.machine in (None, machine)
            if here:
                self.require(key, controls)
            if item.key.startswith(AUDIT_RULES) and self.role != DEMANDED:
                self.own[AUDIT_KEY] |= controls
                if here and item.wanted is not None:
                    self.require(AUDIT_KEY, controls)
        else:
            self.require(key, controls)

    def require(self, key: str, controls: Collection[str] = ()) -> None:
        """Expect an observation of this key."""
        self.own[key] |= set(controls)
        self.required[key] |= set(controls)

    def refuse_foreign(self, one: Observation) -> None:
        """Raise ContractError where a node speaks of what its plan does not ask for.

        What an earlier run has left behind is in no plan: it fails, and says nothing about any control.
        """
        if self.own.get(one.key, set()).issuperset(one.controls) and one.key in self.own:
            return
        matching = [controls for pattern, controls in self.patterns if fnmatchcase(one.key, pattern)]
        if one.key in self.own or matching:
            allowed = self.own.get(one.key, set()).union(*matching)
            if strange := sorted(set(one.controls) - allowed):
                raise ContractError(f"{self.role}: {one.key} is not of the control {strange[0][:60]!r}")
        elif one.state is not State.FAIL or one.controls or self.role in (NODE, DEMANDED):
            raise ContractError(f"{self.role}: expected what the plan asks for, found {one.key}")

    def unanswered(self, found: Iterable[Observation]) -> Iterator[Observation]:
        """Return what the node has to speak of and does not, as not checked."""
        answered: dict[str, set[str]] = {}
        for one in found:
            answered.setdefault(self.together.get(one.key, one.key), set()).update(one.controls)
        for key, controls in self.required.items():
            missing = tuple(sorted(controls - answered.get(key, set())))
            if missing or key not in answered:
                yield Observation(key, missing, State.NOT_CHECKED, SILENT)


@lru_cache(maxsize=1 << 10)
def _asked(name: str, said: str, machine: str) -> Asked:
    """Return what a role's part of the plan asks for; of `DEMANDED`, what the profile relaxes."""
    if name == NODE:
        made = Asked(name, (), machine)
        for key in TITLES:
            made.require(key)
        return made
    if name == DEMANDED:
        known, (relaxed, system) = load_controls(DATA / "os_controls"), parse(said)
        items = demanded(known, [one for one in relaxed if one in known], system)
        return Asked(name, (Item(one["kind"], one["key"], one["controls"]) for one in items), machine)
    role = decode(RolePlan, parse(said), f"roles.{name}")
    settings = role.settings
    made = Asked(name, (Item(one.kind, one.key, one.controls, one.wanted) for one in settings), machine)
    # The node takes these back by its own knowledge, and says whether anything is left.
    if name in TAKEN_BACK and (name == "admin_accounts" or role.options.absent):
        made.require(TAKEN_BACK[name])
    return made
