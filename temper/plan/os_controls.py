"""From the controls in data/os_controls to the settings of one node, and to the list of what is waived."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from temper.plan.convert import plain
from temper.plan.node_plan import PlannedSetting, WaivedControl
from temper.plan.os_systems import STIG, systems
from temper.plan.strictness import ALONE, ASKED, EXACTLY, TELLS_NOTHING, WHOLE, order_of, orders_of_files
from temper.plan.tables import read_yaml
from temper.plan.variables import OsHardening
from temper.plan.wanted import (
    AccessWanted,
    ChoiceWanted,
    FileWanted,
    Kind,
    MountWanted,
    PamWanted,
    UnitWanted,
    Wanted,
)

# Each profile, and the one that it goes on from: it has all of that one's settings, or stricter ones.
BEFORE = {
    "gpu": None,
    "cis-level1": "gpu",
    "cis-level2": "cis-level1",
    "anssi-intermediary": "cis-level2",
    "anssi-enhanced": "anssi-intermediary",
    "anssi-high": "anssi-enhanced",
    STIG: "cis-level2",
}
PROFILES = tuple(BEFORE)
DEFAULT = PROFILES[0]
STRICTEST = "anssi-high"

# The system whose values stand where none is asked.
USUAL = "debian-13"

# Who waives a control, where it is not a profile.
OPERATOR = "the operator"

SYSCTL_FILE = "/etc/sysctl.d/90-temper-hardening.conf"
MODPROBE_FILE = "/etc/modprobe.d/temper-hardening.conf"
MOUNT_UNIT = "temper-mount-options.service"
UNITS = "/etc/systemd/system"
MOUNT_UNIT_FILE = f"{UNITS}/{MOUNT_UNIT}"
WAIVER_FILE = "/etc/temper/os_hardening_waivers.txt"

# Files that are not for everybody to read, by the beginning of their path.
MODES = {
    "/etc/sudoers.d/": "0440",
    "/etc/audit/": "0600",
    "/etc/cron.allow": "0640",
    "/etc/at.allow": "0640",
}
VALIDATORS = {"/etc/sudoers.d/": ["visudo", "-cf", "%s"]}

# What a control can set by itself: its lines and modules stand in files that it shares with others.
OF_ITS_OWN = (
    "sysctls",
    "keywords",
    "mounts",
    "files",
    "files_x86_64",
    "access",
    "pam",
    "units",
    "authselect",
)

KERNELS = ("linux-image-", "linux-headers-", "linux-modules-", "linux-kbuild-", "linux-compiler-")
# What the console shows where the operator gives no text.
BANNER = (
    "Authorized access only. Use of this system is monitored and recorded; "
    "any other use is prohibited and may be a criminal offence."
)

MOUNT_UNIT_TEXT = """\
# Managed by Temper.
[Unit]
Description=Options of mount points that everybody may write to
DefaultDependencies=no
Conflicts=shutdown.target
After=local-fs.target
Before=systemd-tmpfiles-setup.service sysinit.target shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
{commands}
MemoryMax=256M
TasksMax=32
OOMScoreAdjust=0
# No file systems of its own: the mounts that it changes are the node's.
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=sysinit.target
"""


def settings_of(control: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Return what a control sets in a profile: its own entry, or that of the nearest profile before it."""
    sets: dict[str, dict[str, Any]] = control.get("profiles", {})
    name: str | None = profile
    while name and name not in sets:
        name = BEFORE[name]
    return sets[name] if name else {}


#: Entries of a control that say why a node keeps what the default profile sets, and the options that decide.
CONDITIONS = {"router": "forwards", "asymmetric": "answers_elsewhere", "usb": "usb_disk"}


def condition_of(control: Mapping[str, Any], options: Mapping[str, object]) -> str | None:
    """Return why a node keeps what the default profile sets, or None."""
    texts = (control[key] for key, option in CONDITIONS.items() if key in control and options.get(option))
    return next(texts, None)


def profile_of(control: Mapping[str, Any], wish: OsHardening, options: Mapping[str, object]) -> str:
    """Return the profile that a control is set by: others' packets outlive the wish for a stricter one."""
    return DEFAULT if condition_of(control, options) else wish.profile


def concerns(control: Mapping[str, Any], system: object) -> bool:
    """Return whether a control is about a system, such as debian-13; about one that is not known all are."""
    return (
        not system or "of" not in control or not {system, distribution_of(system)}.isdisjoint(control["of"])
    )


def waiver_of(control: Mapping[str, Any], profile: str) -> str | None:
    """Return why a profile does less than it should, or None."""
    waivers: dict[str, str] = control.get("waivers", {})
    return waivers.get(profile, waivers.get("every"))


def demand_of(control: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the benchmark asks for: its own words, else what the strictest profile sets, else {}."""
    found: dict[str, Any] = control.get("demand") or settings_of(control, STRICTEST)
    return found


def demanded(
    controls: Mapping[str, Any], names: Iterable[str], system: str | None = None
) -> list[dict[str, Any]]:
    """Return what the benchmark asks for in these controls on a system, an item a thing to ask a node about.

    Only to be measured: items have `kind`, `key`, `wanted` and `controls` as in a role's plan, and kinds that
    no role has. Packages are left out: what a control asks of them, its other settings show.
    """
    items = []
    for name in names:
        demand = on_system(demand_of(controls[name]), system)
        for setting in alone(Asker(name, controls[name]["title"], None), demand, system):
            asked = {"wanted": plain(setting.wanted), "order": setting.order, "controls": [name]}
            items.append({"kind": setting.kind.value, "key": setting.key, **asked})
        rest = [("module", module, None) for module in demand.get("modules", [])]
        rest += [("lines", path, lines) for path, lines in demand.get("lines", {}).items()]
        rest += [("separate", path, None) for path in demand.get("separate", [])]
        items += [{"kind": k, "key": key, "wanted": wanted, "controls": [name]} for k, key, wanted in rest]
    return items


def values_of(system: object) -> dict[str, str]:
    """Return the texts that files of a system have; those of `USUAL` where it has none of its own."""
    own = systems().get(str(system))
    return systems()[USUAL].values | (own.values if own else {})


def names_of(system: object) -> Mapping[str, str]:
    """Return what a system calls packages, units and files."""
    own = systems().get(str(system))
    return own.names if own else {}


def alone(asker: Asker, settings: Mapping[str, Any], system: str | None = None) -> list[PlannedSetting]:
    """Return the settings of one control without the files that several controls share, and without packages.

    `settings` are as `on_system` returns them.
    """
    usual = {"banner": BANNER, "kernels": ""}
    composer = Composer({**values_of(system), **usual}, names_of(system))
    composer.add(asker, {key: value for key, value in settings.items() if key in OF_ITS_OWN})
    composer.lines = {}
    return [
        setting
        for setting in composer.settings()
        if setting.key not in (MOUNT_UNIT_FILE, MOUNT_UNIT) and setting.kind is not Kind.PACKAGE_CHOICE
    ]


def references(name: str, control: Mapping[str, Any], system: object = None) -> str:
    """Return the benchmarks' numbers of a control, in one line.

    Those of one system, or of all that Temper knows.
    """
    rows = [known] if (known := systems().get(str(system))) else [*systems().values()]
    found = {row.benchmark: numbers for row in rows if (numbers := row.numbers_of(name, control))}
    found |= {"ANSSI": tuple(control["anssi"])} if "anssi" in control else {}
    return "; ".join(f"{name} {', '.join(numbers)}" for name, numbers in found.items()) or "no benchmark"


def on_system(settings: Mapping[str, Any], system: object) -> dict[str, Any]:
    """Return the settings of a control with what `systems` says of a distribution and of one system.

    null takes an entry out.
    """

    def merged(general: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
        found = {**general, **special}
        for key in general.keys() & special.keys():
            if isinstance(general[key], dict) and isinstance(special[key], dict):
                found[key] = merged(general[key], special[key])
        return {key: value for key, value in found.items() if value is not None}

    rest = {key: value for key, value in settings.items() if key != "systems"}
    special = settings.get("systems", {})
    return merged(merged(rest, special.get(distribution_of(system), {})), special.get(system, {}))


def distribution_of(system: object) -> str:
    """Return rhel for rhel-9."""
    return str(system).partition("-")[0]


def lacking(control: Mapping[str, Any], system: object) -> str | None:
    """Return why a system has nothing of a control, or None."""
    reasons: dict[object, str] = control.get("lacking", {})
    return reasons.get(system, reasons.get(distribution_of(system)))


def waiver_problems(controls: Mapping[str, Any], waivers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return sentences about waivers of the operator that name no control or give no reason."""
    problems = []
    for number, waiver in enumerate(waivers, 1):
        name, reason = waiver.get("id"), waiver.get("reason")
        if name not in controls:
            close = difflib.get_close_matches(str(name), controls, n=1)
            hint = f"did you mean {close[0]}?" if close else "docs/reference/os_hardening.md lists them"
            problems.append(f"os_hardening_waivers, entry {number}: there is no control {name!r}; {hint}")
        elif not isinstance(reason, str) or not reason.strip():
            problems.append(f"os_hardening_waivers, entry {number} ({name}): expected a reason, found none")
    return problems


@dataclass(frozen=True)
class Asker:
    """A control, as far as each of its settings has to name it."""

    name: str
    title: str
    waiver: str | None


@dataclass(frozen=True)
class Hardening:
    """What one node gets, and the controls that it does not fulfil."""

    settings: tuple[PlannedSetting, ...]
    waived: tuple[WaivedControl, ...]


class Composer:
    """Puts the settings of all controls together; some share a file or a mount point."""

    def __init__(self, values: Mapping[str, str], names: Mapping[str, str]) -> None:
        self.values = values
        self.names = names
        self.wanted: dict[tuple[Kind, str], Wanted] = {}
        self.askers: dict[tuple[Kind, str], list[Asker]] = {}
        self.lines: dict[str, list[str]] = {}
        self.mounts: dict[str, set[str]] = {}

    def add(self, asker: Asker, settings: Mapping[str, Any]) -> None:
        """Add the settings of one control."""
        for package in settings.get("packages", []):
            names = [self.name(one) for one in ([package] if isinstance(package, str) else package)]
            self._set(asker, Kind.PACKAGE_CHOICE, names[0], ChoiceWanted(tuple(names)))
        sysctls = {key: str(value) for key, value in settings.get("sysctls", {}).items()}
        for key, value in sysctls.items():
            self._set(asker, Kind.SYSCTL, key, value)
        self._lines(asker, SYSCTL_FILE, [line for item in sysctls.items() for line in sysctl_lines(*item)])
        modules = settings.get("modules", [])
        self._lines(
            asker,
            MODPROBE_FILE,
            [line for name in modules for line in (f"install {name} /bin/false", f"blacklist {name}")],
        )
        for path, lines in settings.get("lines", {}).items():
            self._lines(asker, path, lines)
        for path, options in settings.get("mounts", {}).items():
            self.mounts.setdefault(path, set()).update(options)
            for key in (Kind.MOUNT, path), (Kind.FILE, MOUNT_UNIT_FILE), (Kind.UNIT, MOUNT_UNIT):
                self.askers.setdefault(key, []).append(asker)
        for path, content in settings.get("files", {}).items():
            self._set(asker, Kind.FILE, path, file(path, self._fill(content)))
        for path, content in settings.get("files_x86_64", {}).items():
            self._set(asker, Kind.FILE, path, replace(file(path, content), machine="x86_64"))
        for path, keywords in settings.get("keywords", {}).items():
            for keyword, value in keywords.items():
                self._set(asker, Kind.KEYWORD, f"{path}:{keyword}", self._fill(str(value)))
        for path, access in settings.get("access", {}).items():
            mode, *groups = access.split()
            self._set(asker, Kind.ACCESS, self.name(path), AccessWanted(mode, tuple(groups or ["root"])))
        for profile, (stack, *words) in settings.get("pam", {}).items():
            self._set(asker, Kind.PAM, profile, PamWanted(stack, tuple(words)))
        for name in settings.get("authselect", []):
            self._set(asker, Kind.AUTHSELECT, name, wanted=True)
        for unit, wanted in settings.get("units", {}).items():
            state, *others = (self.name(word) for word in wanted.replace(" unless ", " ").split())
            made_here = f"{UNITS}/{unit}" in settings.get("files", {})
            unit_wanted = UnitWanted(state == "running", made_here, unless=tuple(others))
            self._set(asker, Kind.UNIT, self.name(unit), unit_wanted)

    def name(self, usual: str) -> str:
        """Return what the system calls a package, a unit or a file."""
        return self.names.get(usual, usual)

    def settings(self) -> list[PlannedSetting]:
        """Return all settings, those that several controls share last."""
        for path, lines in self.lines.items():
            self.wanted[Kind.FILE, path] = file(path, text(lines))
        names = [key for kind, key in self.wanted if kind is Kind.SYSCTL]
        orders = {name: order for name in names if (order := order_of(Kind.SYSCTL, name))}
        for (kind, path), wanted in self.wanted.items():
            if isinstance(wanted, FileWanted) and PurePath(path).parent == PurePath(SYSCTL_FILE).parent:
                self.wanted[kind, path] = replace(wanted, orders=orders)
        for path, options in self.mounts.items():
            names = sorted(options - {"bind"})
            self.wanted[Kind.MOUNT, path] = MountWanted(tuple(names), "bind" in options)
        if self.mounts:
            commands = "\n".join(mount_command(path, options) for path, options in self.mounts.items())
            content = MOUNT_UNIT_TEXT.format(commands=commands)
            self.wanted[Kind.FILE, MOUNT_UNIT_FILE] = file(MOUNT_UNIT_FILE, content)
            self.wanted[Kind.UNIT, MOUNT_UNIT] = UnitWanted(on=True, made_here=True)
        return [
            planned(kind, key, wanted, self.askers[kind, key]) for (kind, key), wanted in self.wanted.items()
        ]

    def _set(self, asker: Asker, kind: Kind, key: str, wanted: Wanted) -> None:
        if self.wanted.setdefault((kind, key), wanted) != wanted:
            raise ValueError(f"data/os_controls: {asker.name} and another control differ on {kind} {key}")
        self.askers.setdefault((kind, key), []).append(asker)

    def _lines(self, asker: Asker, path: str, lines: list[str]) -> None:
        if lines:
            self.lines.setdefault(path, []).extend([f"# {asker.name}: {asker.title}", *lines])
            self.askers.setdefault((Kind.FILE, path), []).append(asker)

    def _fill(self, content: str) -> str:
        return re.sub(r"@(\w+)@", lambda match: self.values[match[1]], content)


def planned(kind: Kind, key: str, wanted: Wanted, askers: list[Asker]) -> PlannedSetting:
    """Return a setting with all controls that ask for it.

    Reasons of several waivers stand in the list of them.
    """
    first, *others = {asker.name: asker for asker in askers}.values()
    order = order_of(kind, key) or EXACTLY
    if not others:
        own = (first.name,)
        return PlannedSetting(kind, key, first.title, own, first.waiver, order=order, wanted=wanted)
    names = (first.name, *(asker.name for asker in others))
    return PlannedSetting(kind, key, f"{len(names)} controls share it", names, order=order, wanted=wanted)


def file(path: str, content: str) -> FileWanted:
    """Return what is wanted of a file."""
    mode = next((mode for prefix, mode in MODES.items() if path.startswith(prefix)), "0644")
    validate = next((command for prefix, command in VALIDATORS.items() if path.startswith(prefix)), [])
    wanted = FileWanted(content, mode, tuple(validate))
    orders = orders_of_files().get(path)
    if orders == TELLS_NOTHING and content.strip() != BANNER:
        return wanted  # the operator's own text is to be there, and no other
    if isinstance(orders, str):
        orders = None if orders in (ALONE, ASKED) else {WHOLE: orders}
    return replace(wanted, orders=dict(orders)) if orders else wanted


def sysctl_lines(key: str, value: str) -> list[str]:
    """Return the lines of a kernel parameter in our file.

    `all` and `default` stand beside a pattern, for auditors that look for these names.
    """
    names = [key.replace("*", word) for word in ("all", "default")] if "*" in key else []
    return [f"{name} = {value}" for name in [*names, key]]


def text(lines: Iterable[str]) -> str:
    """Return a file of Temper's from its lines."""
    return "".join(f"{line}\n" for line in ["# Managed by Temper.", *lines])


def mount_command(path: str, options: set[str]) -> str:
    """Return the line of the unit that adds options to those of a mount point at boot."""
    otherwise = f"mount --rbind {path} {path}" if "bind" in options else "exit 0"
    # With a source named, mount takes nothing from /etc/fstab, where another may have fewer.
    present = f"$$(findmnt --noheadings --output VFS-OPTIONS --mountpoint {path} | tail --lines=1)"
    flags = ",".join(["remount", "bind", present, *sorted(options - {"bind"})])
    return f"ExecStart=/bin/sh -c 'mountpoint -q {path} || {otherwise}; exec mount -o {flags} none {path}'"


def waived_controls(
    controls: Mapping[str, Any], wish: OsHardening, options: Mapping[str, object]
) -> tuple[WaivedControl, ...]:
    """Return what the profile, or the operator, relaxes."""
    own = {waiver.id: waiver.reason for waiver in wish.waivers}
    system = options.get("system")
    found = []
    for name, control in controls.items():
        if not concerns(control, system):
            continue
        reason, by = own.get(name), OPERATOR
        if reason is None:
            reason, by = lacking(control, system), str(system)
        if reason is None and profile_of(control, wish, options) != wish.profile:
            reason, by = condition_of(control, options), "what the node does"
        if reason is None and not options.get(control.get("option", "")):
            reason, by = waiver_of(control, wish.profile), f"the profile {wish.profile}"
        if reason is not None:
            found.append(
                WaivedControl(name, control["title"], references(name, control, system), reason.strip(), by)
            )
    return tuple(found)


def waiver_text(profile: str, waived: Iterable[WaivedControl]) -> str:
    """Return the list of waivers as it lies on the node."""
    lines = [f"Controls that the hardening of this node relaxes (profile {profile}).", ""]
    for waiver in waived:
        lines += [
            f"{waiver.id}: {waiver.title} ({waiver.references})",
            f"    waived by {waiver.by}: {waiver.reason}",
        ]
    return text([f"# {line}".rstrip() for line in lines])


def hardening(
    controls: Mapping[str, Any], wish: OsHardening, options: Mapping[str, object] | None = None
) -> Hardening:
    """Return what one node gets.

    `controls` are those of data/os_controls by their id, `options` the values of other roles' variables that
    a control may name as its `option`, those of CONDITIONS are facts of the node, and `system` is
    what it runs, such as debian-13.
    """
    options = options or {}
    waived = waived_controls(controls, wish, options)
    reasons = {waiver.id: waiver.reason for waiver in waived}
    by_operator = {waiver.id for waiver in wish.waivers}
    kernels = [] if wish.upgrade_kernels else KERNELS
    system = options.get("system")
    composer = Composer(
        {
            **values_of(system),
            "banner": wish.banner or BANNER,
            "kernels": "\n".join(f'  "{name}";' for name in kernels),
        },
        names_of(system),
    )
    for name, control in controls.items():
        if name not in by_operator and concerns(control, system) and not lacking(control, system):
            strictest = bool(options.get(control.get("option", "")))
            asker = Asker(name, control["title"], reasons.get(name))
            profile = STRICTEST if strictest else profile_of(control, wish, options)
            composer.add(asker, on_system(settings_of(control, profile), system))
    waivers = PlannedSetting(
        Kind.FILE,
        WAIVER_FILE,
        "It lists what is waived",
        wanted=file(WAIVER_FILE, waiver_text(wish.profile, waived)),
    )
    return Hardening((*composer.settings(), waivers), waived)


@cache
def load_controls(folder: Path) -> dict[str, Any]:
    """Return all controls of a folder by their ids."""
    controls: dict[str, Any] = {}
    for path in sorted(folder.glob("*.yml")):
        controls |= read_yaml(path)["os_controls"]
    return controls
