"""From the items of a plan to the settings of a node: which class makes which kind."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ansible.module_utils.temper.settings.base import Setting, SettingError
from ansible.module_utils.temper.settings.files import Access, Keyword, PamProfile, WholeFile, accesses
from ansible.module_utils.temper.settings.strictness import EXACTLY
from ansible.module_utils.temper.settings.sysctl_file import SysctlFile
from ansible.module_utils.temper.settings.sysfs import GIVEN, SysfsValue, sysfs_values
from ansible.module_utils.temper.settings.system import AtBoot, MountOptions, Sysctl, Unit, sysctls
from ansible.module_utils.temper.settings.tmpfs import TmpfsSize

Wanted = Any
Options = Any  # of a role: a mapping from the plan


def file(path: str, wanted: Wanted, _options: Options) -> list[Setting]:
    """Return a whole file; None: there must be none."""
    details = dict(wanted or {"content": None})
    if details.pop("machine", None) not in (None, platform.machine()):
        return []
    orders = details.get("orders")
    if not orders:
        return [WholeFile(path, **details)]
    if "/sysctl.d/" in path:
        return [SysctlFile(path, **details)]
    # Imported on demand: a node compiles whatever an execution imports.
    if "/modprobe.d/" in path:
        from ansible.module_utils.temper.settings.modprobe import ModprobeFile

        return [ModprobeFile(path, **details)]
    from ansible.module_utils.temper.settings.shared_files import WHOLE, SharedFile, SiteFile

    return [(SiteFile if WHOLE in orders else SharedFile)(path, **details)]


def keyword(key: str, wanted: Wanted, _options: Options) -> list[Setting]:
    """Return one keyword of a file: `path:keyword`."""
    path, _, word = key.rpartition(":")
    return [Keyword(path, word, wanted)]


def authselect(feature: str, _wanted: Wanted = None, _options: Options = None) -> list[Setting]:
    """Return a feature of authselect's profile."""
    from ansible.module_utils.temper.settings.enterprise_linux import Authselect

    return [Authselect(feature)]


def unit(name: str, wanted: Wanted, options: Options) -> list[Setting]:
    """Return a unit of systemd. Controls of the hardening let one be that is not installed."""
    return [Unit(name, **{"optional": options["atomic"], **wanted})]


#: Kinds of which each item is a setting; a pattern stands for several.
SIMPLE: Mapping[str, Callable[[str, Wanted, Any], Iterable[Setting]]] = {
    "file": file,
    "keyword": keyword,
    "pam": lambda name, wanted, _options: [PamProfile(name, **wanted)],
    "authselect": authselect,
    "access": lambda path, wanted, _options: accesses(path, **wanted),
    "sysctl": lambda name, wanted, _options: sysctls(name, str(wanted)),
    "sysfs": lambda pattern, wanted, _options: sysfs_values(pattern, wanted),
    "mount": lambda path, wanted, _options: [MountOptions(path, **wanted)],
    "tmpfs": lambda path, wanted, _options: [TmpfsSize(path, wanted)],
    "unit": unit,
}
#: Kinds whose items are one setting, with what else is made together with them.
FOLDED: Mapping[str, Sequence[str]] = {
    "repository": ("repository",),
    "package": ("package", "package_choice", "pin", "module_stream", "hold_version"),
    "driver": ("driver",),
    "container_engine": ("container_engine",),
    "account": ("account",),
    "firewall": ("firewall",),
    "sshd": ("sshd", "sshd_algorithm", "sshd_parameter"),
    "gpu": ("gpu",),
}
MEMBER_OF = {member: kind for kind, members in FOLDED.items() for member in members}
#: What takes back what it has made by its own knowledge: nothing else in the plan says so.
TAKEN_BACK = {
    "admin_accounts": "account",
    "container_engines": "container_engine",
    "firewall": "firewall",
    "ssh_hardening": "sshd",
}
#: The order in which settings are made. The late ones work at once with what the early ones say. Parameters
#: of the kernel come before files: with a limit of files above fs.nr_open, which the kernel refuses, no login
#: works, and a run may end between the two. What is taken back goes in the opposite order.
EARLY = (
    *("repository", "sysctl", "file", "keyword", "pam", "authselect", "access", "sysfs", "mount", "tmpfs"),
)
LATE = ("package", "driver", "unit", "container_engine", "account", "firewall", "sshd", "gpu")
ORDER = (*EARLY, *LATE)


def folded_class(kind: str) -> Any:
    """Return the class of a folded kind, imported on demand.

    A node compiles whatever an execution imports.
    """
    if kind == "repository":
        from ansible.module_utils.temper.packaging.repository_settings import Repositories

        return Repositories
    if kind == "package":
        from ansible.module_utils.temper.packaging.package_settings import PackageSet

        return PackageSet
    if kind == "driver":
        from ansible.module_utils.temper.driver.loaded import LoadedDriver

        return LoadedDriver
    if kind == "container_engine":
        from ansible.module_utils.temper.engines.engine_settings import ContainerEngines

        return ContainerEngines
    if kind == "account":
        from ansible.module_utils.temper.access.accounts import Accounts

        return Accounts
    if kind == "firewall":
        from ansible.module_utils.temper.access.firewall import Firewall

        return Firewall
    if kind == "sshd":
        from ansible.module_utils.temper.access.sshd_settings import SshdSettings

        return SshdSettings
    from ansible.module_utils.temper.driver.gpus import GpuSettings

    return GpuSettings


def build(
    role: str,
    items: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    originals: Mapping[str, Mapping[str, Any]],
) -> list[tuple[Setting, list[str]]]:
    """Return the settings of a role in the order of their making, each with the controls that ask for it.

    `originals` is what the role's record has of them.

    Raises:
        SettingError: there is no such kind.
    """
    found: list[tuple[int, Setting, list[str]]] = []
    folded: dict[str, list[Mapping[str, Any]]] = {}
    # Nobody may be listed any more, and accounts of earlier runs still be let in: that is said.
    if role == "admin_accounts" or (options["absent"] and role in TAKEN_BACK):
        folded[TAKEN_BACK[role]] = []
    for item in items:
        kind = item["kind"]
        if kind in MEMBER_OF:
            folded.setdefault(MEMBER_OF[kind], []).append(item)
        elif kind in SIMPLE:
            for setting in SIMPLE[kind](item["key"], item["wanted"], options):
                setting.order = item.get("order", EXACTLY)
                found.append((ORDER.index(kind), setting, item["controls"]))
        else:
            raise SettingError(f"{role}: expected a setting of a known kind, found {kind!r}.")
    for kind, members in folded.items():
        several = len(FOLDED[kind]) > 1
        wanted = {
            f"{item['kind']}:{item['key']}" if several else item["key"]: item["wanted"] for item in members
        }
        made = folded_class(kind).from_items(wanted, options)
        controls = sorted({control for item in members for control in item["controls"]})
        found.append((-1 if made.first else ORDER.index(kind), made, controls))
    at_boot = AtBoot()
    for _, setting, _ in found:
        setting.live = options.get("live", True)
        setting.recall(originals)
        if isinstance(setting, (Sysctl, SysctlFile)):
            setting.at_boot = at_boot
    return [(setting, controls) for _, setting, controls in sorted(found, key=lambda entry: entry[0])]


def recorded(kind: str, **spec: Any) -> Setting:
    """Return a setting of a folded kind with a record; of packages, what transactions have brought."""
    if kind != "package":
        setting: Setting = folded_class(kind)(**spec)
        return setting
    from ansible.module_utils.temper.settings.brought import BroughtPackages

    return BroughtPackages(**spec)


#: What is taken back with its role alone, and at its end.
BROUGHT = ("package", "repository")
RECORDED: Mapping[str, Callable[..., Setting]] = {
    "file": WholeFile,
    "keyword": Keyword,
    "pam": PamProfile,
    "authselect": lambda feature: authselect(feature)[0],
    "access": Access,
    "sysctl": Sysctl,
    "sysfs": SysfsValue,
    "mount": MountOptions,
    "tmpfs": TmpfsSize,
    "unit": Unit,
    **{kind: partial(recorded, kind) for kind in ("repository", "package", "gpu")},
}

#: The fields that a spec in a record may have. No kind has all of them.
SPEC = {
    **dict.fromkeys(
        ("path", "content", "keyword", "value", "name", "stack", "feature", "mode", "size"), (str, ...)
    ),
    **dict.fromkeys(("directories", "words", "groups", "options", "only_removed", "earlier"), ([str], ...)),
    **dict.fromkeys(("on", "engines", "holds"), (bool, ...)),
    "wanted": ({"locked_clocks": {"graphics": object}}, ...),
}
ORIGINAL = {"spec": SPEC, "former": ([SPEC], ...), "state": object, GIVEN: (bool, ...)}
OWNED = {"mode": int, "uid": int, "gid": int}
#: The form that the state of each kind has in a record.
STATES = {
    "file": (None, {"link": str}, {**OWNED, "content": str}),
    "keyword": (None, [str]),
    "pam": bool,
    "authselect": bool,
    "access": (None, OWNED),
    "sysctl": (None, str),
    "sysfs": (None, str),
    "mount": (None, [str]),
    "tmpfs": (None, int),
    "unit": (None, {"enabled": str, "active": bool}),
    "repository": {str: (None, {"content": str, "mode": str})},
    "package": {str: (None, str)},
    "gpu": {str: {"graphics_mhz": (None, int), "memory_mhz": (None, int), "power_w": (None, int, float)}},
}


def kind_of(setting: Setting) -> str:
    """Return the kind of a setting, as its key says."""
    return setting.key.partition(":")[0]


def rebuild(key: str, spec: Mapping[str, Any], *, live: bool = True) -> Setting:
    """Return the one setting of a record's entry, to restore it."""
    setting: Setting = RECORDED[key.partition(":")[0]](**spec)
    setting.live = live
    return setting
