"""From the controls in data/os_controls to the settings of one node, and to the list of what is waived."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# From the least to the most strict.
PROFILES = ("gpu", "cis-level1", "cis-level2")
# The level of the benchmark that a profile is measured by: the default must account for all of it.
MEASURED_BY = {"gpu": 2, "cis-level1": 1, "cis-level2": 2}

SYSCTL_FILE = "/etc/sysctl.d/90-temper-hardening.conf"
MODPROBE_FILE = "/etc/modprobe.d/temper-hardening.conf"
MOUNT_UNIT = "temper-mount-options.service"
WAIVER_FILE = "/etc/temper/os_hardening_waivers.txt"

# Files that are not for everybody to read, by the beginning of their path.
MODES = {"/etc/sudoers.d/": "0440", "/etc/audit/": "0640"}
VALIDATORS = {"/etc/sudoers.d/": ["visudo", "-cf", "%s"]}

KERNELS = ("linux-image-", "linux-headers-", "linux-modules-", "linux-kbuild-", "linux-compiler-")
# What cis-level1 and 2 show where the operator gives no text.
BANNER = "Authorized use only. What is done here may be recorded."

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

[Install]
WantedBy=sysinit.target
"""


def expand(numbers: Iterable[str]) -> list[str]:
    """The numbers of a benchmark, written out: 1.1.1.1-3 is 1.1.1.1, 1.1.1.2 and 1.1.1.3."""
    result = []
    for entry in numbers:
        first, dash, last = entry.partition("-")
        stem, _, low = first.rpartition(".")
        result += [f"{stem}.{number}" for number in range(int(low), int(last if dash else low) + 1)]
    return result


def settings_of(control: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """What a control sets in a profile: its own entry, or that of the nearest profile before it."""
    found: dict[str, Any] = {}
    for name in PROFILES[: PROFILES.index(profile) + 1]:
        found = control.get("profiles", {}).get(name, found)
    return found


def waiver_of(control: Mapping[str, Any], profile: str) -> str | None:
    """Why a profile does less than it should, or None."""
    waivers: dict[str, str] = control.get("waivers", {})
    return waivers.get(profile, waivers.get("every"))


def references(control: Mapping[str, Any]) -> str:
    """The benchmarks' numbers of a control, in one line."""
    parts = [
        f"{name} {', '.join(control[key])}"
        for key, name in (
            ("cis_debian12", "CIS Debian 12"),
            ("cis_debian13", "CIS Debian 13"),
            ("anssi", "ANSSI"),
        )
        if key in control
    ]
    return "; ".join(parts) or "no benchmark"


def waiver_problems(controls: Mapping[str, Any], waivers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sentences about waivers of the operator that name no control or give no reason."""
    problems = []
    for number, waiver in enumerate(waivers, 1):
        name, reason = waiver.get("id"), waiver.get("reason")
        if name not in controls:
            close = difflib.get_close_matches(str(name), controls, n=1)
            hint = f"did you mean {close[0]}?" if close else "docs/os_hardening.md lists them"
            problems.append(f"os_hardening_waivers, entry {number}: there is no control {name!r}; {hint}")
        elif not isinstance(reason, str) or not reason.strip():
            problems.append(f"os_hardening_waivers, entry {number} ({name}): expected a reason, found none")
    return problems


class Composer:
    """Puts the settings of all controls together; some share a file or a mount point."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.entries: list[dict[str, Any]] = []
        self.packages: list[Any] = []
        self.sysctl_lines: list[str] = []
        self.modprobe_lines: list[str] = []
        self.lines: dict[str, list[str]] = {}
        self.mounts: dict[str, set[str]] = {}

    def add(self, name: str, control: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Add the settings of one control."""
        for package in settings.get("packages", []):
            if package not in self.packages:
                self.packages.append(package)
        title = f"# {name}: {control['title']}"
        if sysctls := settings.get("sysctls"):
            self.sysctl_lines.append(title)
            for key, value in sysctls.items():
                self._sysctl(name, key, str(value))
        if modules := settings.get("modules"):
            self.modprobe_lines.append(title)
            for module in modules:
                self.modprobe_lines += [f"install {module} /bin/false", f"blacklist {module}"]
        for path, lines in settings.get("lines", {}).items():
            self.lines.setdefault(path, []).extend([title, *lines])
        for path, options in settings.get("mounts", {}).items():
            self.mounts.setdefault(path, set()).update(options)
        for path, content in settings.get("files", {}).items():
            self._file(name, path, self._fill(content))
        for path, content in settings.get("files_x86_64", {}).items():
            self._file(name, path, content)
            self.entries[-1]["machine"] = "x86_64"
        for path, keywords in settings.get("keywords", {}).items():
            for keyword, value in keywords.items():
                self._entry(name, "keyword", path=path, keyword=keyword, value=value)
        for path, access in settings.get("access", {}).items():
            mode, *groups = access.split()
            self._entry(name, "access", path=path, mode=mode, groups=groups or ["root"])
        for profile, (stack, *words) in settings.get("pam", {}).items():
            self._entry(name, "pam", name=profile, stack=stack, words=words)
        for unit, wanted in settings.get("units", {}).items():
            state, *others = wanted.replace(" unless ", " ").split()
            self._entry(name, "unit", name=unit, on=state == "running", unless=others)

    def finish(self) -> None:
        """Add the files that several controls share."""
        if self.sysctl_lines:
            self._file("kernel parameters", SYSCTL_FILE, text(self.sysctl_lines))
        if self.modprobe_lines:
            self._file("kernel modules", MODPROBE_FILE, text(self.modprobe_lines))
        for path, lines in self.lines.items():
            self._file("shared files", path, text(lines))
        for path, options in self.mounts.items():
            wanted = sorted(options - {"bind"})
            self._entry("mount options", "mount", path=path, options=wanted, bind="bind" in options)
        if self.mounts:
            commands = "\n".join(mount_command(path, options) for path, options in self.mounts.items())
            content = MOUNT_UNIT_TEXT.format(commands=commands)
            self._file("mount options", f"/etc/systemd/system/{MOUNT_UNIT}", content)
            self._entry("mount options", "unit", name=MOUNT_UNIT, on=True, made_here=True)

    def _entry(self, control: str, kind: str, **spec: Any) -> None:
        self.entries.append({"control": control, "kind": kind, "spec": spec})

    def _file(self, control: str, path: str, content: str) -> None:
        mode = next((mode for prefix, mode in MODES.items() if path.startswith(prefix)), "0644")
        validate = next((command for prefix, command in VALIDATORS.items() if path.startswith(prefix)), [])
        self._entry(control, "file", path=path, content=content, mode=mode, validate=validate)

    def _sysctl(self, control: str, key: str, value: str) -> None:
        # `all` and `default` beside the pattern, for auditors that look for these names.
        names = [key.replace("*", word) for word in ("all", "default")] if "*" in key else []
        self.sysctl_lines += [f"{name} = {value}" for name in [*names, key]]
        self._entry(control, "sysctl", name=key, value=value)

    def _fill(self, content: str) -> str:
        return re.sub(r"@(\w+)@", lambda match: self.values[match[1]], content)


def text(lines: Iterable[str]) -> str:
    """A file of Temper's from its lines."""
    return "".join(f"{line}\n" for line in ["# Managed by Temper.", *lines])


def mount_command(path: str, options: set[str]) -> str:
    """The line of the unit that sets the options of a mount point at boot."""
    flags = ",".join(["remount", "bind", *sorted(options - {"bind"})])
    otherwise = f"mount --rbind {path} {path}" if "bind" in options else "exit 0"
    return f"ExecStart=/bin/sh -c 'mountpoint -q {path} || {otherwise}; exec mount -o {flags} {path}'"


def waived_controls(
    controls: Mapping[str, Any],
    profile: str,
    waivers: Iterable[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> list[dict[str, str]]:
    """What this profile, or the operator, relaxes: id, title, references, reason, and whose waiver it is."""
    own = {waiver["id"]: waiver["reason"] for waiver in waivers}
    found = []
    for name, control in controls.items():
        reason, by = own.get(name), "the operator"
        if reason is None:
            reason, by = waiver_of(control, profile), f"the profile {profile}"
            if "option" in control and options.get(control["option"]):
                reason = None
        if reason is not None:
            entry = {"id": name, "title": control["title"], "references": references(control)}
            found.append(entry | {"reason": reason.strip(), "by": by})
    return found


def waiver_text(profile: str, waived: Iterable[Mapping[str, str]]) -> str:
    """The list of waivers as it lies on the node."""
    lines = [f"Controls that the hardening of this node relaxes (profile {profile}).", ""]
    for waiver in waived:
        lines += [
            f"{waiver['id']}: {waiver['title']} ({waiver['references']})",
            f"    waived by {waiver['by']}: {waiver['reason']}",
        ]
    return text([f"# {line}".rstrip() for line in lines])


def os_hardening(
    files: Iterable[Mapping[str, Any]],
    profile: str,
    waivers: list[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What one node gets.

    `files` are those of data/os_controls, `options` the role's os_hardening_banner and
    os_hardening_upgrade_kernels. Returns `settings` and `packages` for the module os_hardening, `waived` and
    `problems`.
    """
    controls: dict[str, Any] = {}
    for file in files:
        controls |= file["content"]["os_controls"]
    problems = waiver_problems(controls, waivers)
    if profile not in PROFILES:
        problems.append(f"os_hardening_profile: expected one of {', '.join(PROFILES)}, found {profile!r}")
    if problems:
        return {"settings": [], "packages": [], "waived": [], "problems": problems}
    waived = waived_controls(controls, profile, waivers, options)
    by_operator = {waiver["id"] for waiver in waivers}
    kernels = [] if options.get("os_hardening_upgrade_kernels") else KERNELS
    values = {
        "banner": options.get("os_hardening_banner") or BANNER,
        "kernels": "\n".join(f'  "{name}";' for name in kernels),
    }
    composer = Composer(values)
    for name, control in controls.items():
        if name in by_operator:
            continue
        chosen = "option" in control and options.get(control["option"])
        composer.add(name, control, settings_of(control, PROFILES[-1] if chosen else profile))
    composer.finish()
    settings = [
        *composer.entries,
        {
            "control": "waivers",
            "kind": "file",
            "spec": {"path": WAIVER_FILE, "content": waiver_text(profile, waived)},
        },
    ]
    return {"settings": settings, "packages": composer.packages, "waived": waived, "problems": []}
