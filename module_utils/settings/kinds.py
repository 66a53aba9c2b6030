"""From the items of a plan to the settings of a node: which class makes which kind."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from ansible.module_utils.access.accounts import Accounts
from ansible.module_utils.access.firewall import Firewall
from ansible.module_utils.access.sshd_settings import SshdSettings
from ansible.module_utils.driver.gpus import GpuSettings
from ansible.module_utils.driver.loaded import LoadedDriver
from ansible.module_utils.engines.engine_settings import ContainerEngines
from ansible.module_utils.packaging.package_settings import PackageSet
from ansible.module_utils.packaging.repository_settings import Repositories
from ansible.module_utils.settings.base import SettingError
from ansible.module_utils.settings.files import Access, Keyword, PamProfile, WholeFile, accesses
from ansible.module_utils.settings.system import MountOptions, Sysctl, Unit, sysctls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ansible.module_utils.settings.base import Setting

Wanted = Any
Options = Any  # of a role: a mapping from the plan


def file(path: str, wanted: Wanted, _options: Options) -> list[Setting]:
    """A whole file; None: there must be none."""
    details = dict(wanted or {"content": None})
    if details.pop("machine", None) not in (None, platform.machine()):
        return []
    return [WholeFile(path, **details)]


def keyword(key: str, wanted: Wanted, _options: Options) -> list[Setting]:
    """One keyword of a file: `path:keyword`."""
    path, _, word = key.rpartition(":")
    return [Keyword(path, word, wanted)]


def unit(name: str, wanted: Wanted, options: Options) -> list[Setting]:
    """A unit of systemd. Controls of the hardening let one be that is not installed."""
    return [Unit(name, **{"optional": options["atomic"], **wanted})]


#: Kinds of which each item is a setting; a pattern stands for several. In the order in which they are made.
SIMPLE: Mapping[str, Callable[[str, Wanted, Any], Iterable[Setting]]] = {
    "file": file,
    "keyword": keyword,
    "pam": lambda name, wanted, _options: [PamProfile(name, **wanted)],
    "access": lambda path, wanted, _options: accesses(path, **wanted),
    "sysctl": lambda name, wanted, _options: sysctls(name, str(wanted)),
    "mount": lambda path, wanted, _options: [MountOptions(path, **wanted)],
    "unit": unit,
}
#: Kinds that are made together, by the class that makes them.
FOLDED: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "repository": (Repositories, ("repository",)),
    "package": (PackageSet, ("package", "package_choice", "pin", "module_stream", "hold_version")),
    "driver": (LoadedDriver, ("driver",)),
    "container_engine": (ContainerEngines, ("container_engine",)),
    "account": (Accounts, ("account",)),
    "firewall": (Firewall, ("firewall",)),
    "sshd": (SshdSettings, ("sshd", "sshd_algorithm", "sshd_parameter")),
    "gpu": (GpuSettings, ("gpu",)),
}
#: What takes back what it has made by its own knowledge: nothing else in the plan says so.
TAKEN_BACK = {
    "admin_accounts": "account",
    "container_engines": "container_engine",
    "firewall": "firewall",
    "ssh_hardening": "sshd",
}
#: A package at any version, and not held.
ANY = {"version": "", "held": False}
ORDER = (
    "repository",
    *("file", "keyword", "pam", "access", "sysctl", "mount"),
    *("package", "driver", "unit", "container_engine", "account", "firewall", "sshd", "gpu"),
)
MEMBER_OF = {member: kind for kind, (_, members) in FOLDED.items() for member in members}


NOBODY: Mapping[str, Any] = {"why": "", "controls": []}


def is_tools(packages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether packages are what the other settings work with, and not what those prepare."""
    return all(item["kind"] == "package_choice" or item["wanted"] == ANY for item in packages)


def build(
    role: str, items: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[tuple[Setting, Mapping[str, Any]]]:
    """The settings of a role in the order in which they are made, each with (one of) its items.

    Raises:
        SettingError: there is no such kind.
    """
    found: list[tuple[int, Setting, Mapping[str, Any]]] = []
    folded: dict[str, list[Mapping[str, Any]]] = {}
    if options["absent"] and role in TAKEN_BACK:
        folded[TAKEN_BACK[role]] = []
    for item in items:
        kind = item["kind"]
        if kind in MEMBER_OF:
            folded.setdefault(MEMBER_OF[kind], []).append(item)
        elif kind in SIMPLE:
            for setting in SIMPLE[kind](item["key"], item["wanted"], options):
                found.append((ORDER.index(kind), setting, item))
        else:
            raise SettingError(f"{role}: expected a setting of a known kind, found {kind!r}.")
    for kind, members in folded.items():
        made_by, kinds = FOLDED[kind]
        prefixes = {member: f"{member}:" if len(kinds) > 1 else "" for member in kinds}
        wanted = {prefixes[item["kind"]] + item["key"]: item["wanted"] for item in members}
        rank = -1 if kind == "package" and is_tools(members) else ORDER.index(kind)
        found.append((rank, made_by.from_items(wanted, options), members[0] if members else NOBODY))
    return [(setting, item) for _, setting, item in sorted(found, key=lambda entry: entry[0])]


RECORDED: Mapping[str, Callable[..., Setting]] = {
    "file": WholeFile,
    "keyword": Keyword,
    "pam": PamProfile,
    "access": Access,
    "sysctl": Sysctl,
    "mount": MountOptions,
    "unit": Unit,
}


def rebuild(key: str, spec: Mapping[str, Any]) -> Setting:
    """The one setting of a record's entry, to restore it."""
    kind = key.partition(":")[0]
    setting: Setting = RECORDED[kind](**spec)
    return setting
