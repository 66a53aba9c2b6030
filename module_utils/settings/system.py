"""Settings of the running system: kernel parameters, options of mount points, units."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils import units
from ansible.module_utils.process import complete, run, succeeds
from ansible.module_utils.settings.base import Difference, Fault, Setting
from ansible.module_utils.settings.sysfs import KernelValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ansible.module_utils.settings.base import State

PROC_SYS = Path("/proc/sys")
MOUNTINFO = Path("/proc/self/mountinfo")
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
MOUNT_OPPOSITES = {"nodev": "dev", "nosuid": "suid", "noexec": "exec"}


# Values that the kernel does not let go of before the next boot (admin-guide/sysctl/kernel, LSM/Yama). Both
# are at least as strict as any that we want.
LOCKED = {"kernel.unprivileged_bpf_disabled": "1", "kernel.yama.ptrace_scope": "3"}


class Sysctl(KernelValue):
    """The live value of one kernel parameter. One that this kernel lacks, or has locked, is settled."""

    def __init__(self, name: str, value: str) -> None:
        self.key = f"sysctl:{name}"
        self.spec = {"name": name, "value": value}
        # A dot in an interface's name (a VLAN) is a slash in sysctl's notation.
        self.path = PROC_SYS / name.translate(str.maketrans("./", "/."))
        self.name = name
        self.value = " ".join(value.split())
        self.subject = f"its parameter {name}"

    def read(self) -> State:
        """The live value with single blanks."""
        try:
            return " ".join(self.path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return None

    def settled(self) -> bool:
        """Whether it has the value."""
        return self.locked() or self.read() in (None, self.value)

    def locked(self) -> bool:
        """Whether it has a value that nobody can change before the next boot."""
        return self.name in LOCKED and self.read() == LOCKED[self.name]

    def restore(self, state: State) -> None:
        """Write the former value, where the parameter is still there."""
        if state is not None and self.path.exists() and self.read() != state and not self.locked():
            self._write(state)


def sysctls(name: str, value: str) -> Iterator[Sysctl]:
    """The settings for all parameters that match (`net.ipv4.conf.*.send_redirects`: all interfaces)."""
    if "*" not in name:
        yield Sysctl(name, value)
        return
    for path in sorted(PROC_SYS.glob(name.replace(".", "/"))):
        yield Sysctl(str(path.relative_to(PROC_SYS)).translate(str.maketrans("./", "/.")), value)


def overruling(own_file: str) -> dict[str, str]:
    """Parameter (or pattern) -> file, for all that files which sort after ours set at boot: they win."""
    found: dict[str, str] = {}
    by_name: dict[str, Path] = {}
    for directory in reversed(SYSCTL_DIRECTORIES):
        by_name |= {path.name: path for path in Path(directory).glob("*.conf")}
    for name, path in sorted(by_name.items()):
        if name <= own_file:
            continue
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # a link that leads nowhere
            continue
        for line in lines:
            left, equals, _ = line.strip().partition("=")
            if equals and left.strip() and left[0] not in "#;":
                found[left.strip().lstrip("-").replace("/", ".")] = str(path)
    return found


def overruled_by(name: str, files: dict[str, str]) -> str | None:
    """The file that sets this parameter after ours, or None."""
    if name in files:
        return files[name]
    return next((path for pattern, path in files.items() if fnmatch.fnmatchcase(name, pattern)), None)


def of_temper(path: str) -> bool:
    """Whether another role's file sets what it sets knowingly."""
    return Path(path).read_text(encoding="utf-8", errors="replace").startswith("# Managed by Temper")


class MountOptions(Setting):
    """Options of a mount point, in force now. A plain directory is bound to itself for them."""

    def __init__(self, path: str, options: Sequence[str], bind: bool = False) -> None:
        self.key = f"mount:{path}"
        self.spec = {"path": path, "options": list(options)}
        self.path = path
        self.options = list(options)
        self.bind = bind

    def read(self) -> State:
        """The options in force that matter here, None where it is no mount point."""
        # proc(5): the fifth field is the mount point, the sixth its own options. The last mount is on top.
        options = [fields[5].split(",") for fields in mounts() if fields[4] == self.path]
        return sorted(set(options[-1]) & set(MOUNT_OPPOSITES)) if options else None

    def settled(self) -> bool:
        """Whether all are in force; a directory that is no mount point needs none unless it may be bound."""
        state = self.read()
        if state is None:
            return not (self.bind and Path(self.path).is_dir())
        return set(self.options) <= set(state)

    def apply(self) -> None:
        """Set them, without touching what is open."""
        state = self.read()
        if state is None:
            # With all that is mounted below it, which would be hidden else.
            run(["mount", "--rbind", self.path, self.path])
            state = []
        self._remount(sorted({*state, *self.options}))

    def restore(self, state: State) -> None:
        """Take away what was not there."""
        now = self.read()
        if now is None or now == state:
            return
        if state is None and not any(fields[4].startswith(f"{self.path}/") for fields in mounts()):
            # Lazily: what is open below it stays open, and everything is still there under the same name.
            run(["umount", "--lazy", self.path])
            return
        # Also where something is mounted below it, which would go as well: then it stays, without options.
        former = state or []
        self._remount([*former, *(MOUNT_OPPOSITES[option] for option in now if option not in former)])

    def change(self) -> list[Difference]:
        """The options."""
        state = self.read() or []
        return [Difference(self.key, ",".join(state), ",".join(sorted({*state, *self.options})))]

    def _remount(self, options: list[str]) -> None:
        # `bind` changes the mount point alone: neither its file system nor its size.
        run(["mount", "--options", ",".join(["remount", "bind", *options]), self.path])


def mounts() -> list[list[str]]:
    """The fields of all mounts, see proc(5).

    A user may mount (FUSE) on a folder with any name. The kernel escapes blanks and line feeds in it, and
    nothing else: no carriage return, and no bytes that are no UTF-8.
    """
    text = MOUNTINFO.read_bytes().decode(errors="surrogateescape")
    return [line.split(" ") for line in text.split("\n") if line]


# Units that systemd starts at boot, or that others start.
STARTS_AT_BOOT = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")


class Unit(Setting):
    """A unit that is enabled and runs, or (`on` false) is neither.

    One that is not installed is settled where it is `optional`, unless its file is another setting
    (`made_here`); nor is one missed while another that does the same runs (`unless`: names or patterns). It
    is restarted where one of the files `restart_on` has changed.
    """

    def __init__(
        self,
        name: str,
        on: bool,
        made_here: bool = False,
        unless: Sequence[str] = (),
        restart_on: Sequence[str] = (),
        optional: bool = True,
    ) -> None:
        self.name = name if "." in name else f"{name}.service"
        self.key = f"unit:{self.name}"
        self.spec = {"name": self.name, "on": on}
        self.on = on
        self.required = made_here or not optional
        self.optional = optional
        self.unless = unless
        self.restart_on = restart_on
        self.restart = False
        self._known: dict[str, str] | None = None

    def _show(self) -> dict[str, str]:
        if self._known is None:
            self._known = units.unit_states([self.name])[self.name]
        return self._known

    def know(self, properties: dict[str, str]) -> None:
        """Take what `units.unit_states` has found for many units at once."""
        self._known = properties

    def read(self) -> State:
        """Whether it is enabled and whether it runs."""
        show = self._show()
        if show["LoadState"] == "not-found":
            return None
        return {"enabled": show["UnitFileState"], "active": show["ActiveState"] in ("active", "reloading")}

    def settled(self) -> bool:
        """Whether it is as wanted. A unit whose own condition keeps it from running is let be."""
        show, state = self._show(), self.read()
        if self.restart:
            return False
        if state is None:
            return not self.required
        enabled = state["enabled"] in STARTS_AT_BOOT
        if not self.on:
            running = self.live and state["active"]
            return not running and state["enabled"] not in ("enabled", "enabled-runtime")
        if not self.live and enabled:
            return True
        # Its condition has been asked, in this boot, and the answer was no.
        kept = show["ConditionResult"] == "no" and show["ConditionTimestampMonotonic"] not in ("", "0")
        if enabled and (state["active"] or kept):
            return True
        # Of several patterns it is enough that one has a unit that runs.
        return bool(self.unless) and succeeds(["systemctl", "is-active", "--quiet", "--", *self.unless])

    def obstacle(self) -> str | None:
        """Whether somebody has masked what is to run."""
        if self.on and self._show()["LoadState"] == "masked":
            return f"{self.name} is masked: `systemctl unmask {self.name}`"
        return None

    def fault(self) -> Fault | None:
        """A unit that is enabled in /run alone: the next boot forgets that.

        systemd remembers its own answer until it reads all units anew; `is-enabled` reads the files.
        """
        if not self.on or self._show()["UnitFileState"] != "enabled-runtime":
            return None
        if complete(["systemctl", "is-enabled", self.name]).stdout.strip() != "enabled-runtime":
            return None
        reason = f"{self.name} is enabled until the next boot only, which does not start it"
        return Fault(reason, [["enable", self.name]])

    def unmask(self) -> list[list[str]]:
        """The repair that takes a mask away, where one keeps the unit from running."""
        if not self.obstacle():
            return []
        # A mask in /run is another one than that in /etc.
        runtime = self._show()["UnitFileState"] == "masked-runtime"
        return [["unmask-runtime" if runtime else "unmask", self.name]]

    def apply(self) -> None:
        """Enable and start (or restart), or disable and stop."""
        for verb in self._steps():
            run(["systemctl", verb, *self._options(verb), self.name], units.TIMEOUT_S)
        self.restart = False
        self._known = None

    def _steps(self) -> list[str]:
        """The verbs of systemctl that are due."""
        if not self.on:
            return ["disable", *(["stop"] if self.live else [])]
        state = self.read() or {"enabled": "", "active": False}
        enable = [] if state["enabled"] in STARTS_AT_BOOT else ["enable"]
        if not self.live:
            return enable
        if self.restart:
            return [*enable, "restart"]
        return [*enable, *([] if state["active"] else ["start"])]

    def _options(self, verb: str) -> list[str]:
        if verb not in ("enable", "disable"):
            return []
        # To read all units anew can cost containers their GPUs. Where a unit's own condition may keep it from
        # running it is needed: systemd remembers the answer only for units that it knows to be enabled.
        return ["--quiet"] if self.optional or not self.live else ["--quiet", "--no-reload"]

    def restore(self, state: State) -> None:
        """Return to the former state; a unit that has come since is switched off."""
        self._known = None
        if self.read() is None:
            return
        enabled = state is not None and state["enabled"] in ("enabled", "enabled-runtime")
        active = state is not None and state["active"]
        run(["systemctl", "enable" if enabled else "disable", "--quiet", self.name])
        if self.live:
            run(["systemctl", "start" if active else "stop", self.name], units.TIMEOUT_S)
        self._known = None

    def change(self) -> list[Difference]:
        """The states."""
        state = self.read() or {"enabled": "", "active": False}
        before = f"{state['enabled'] or 'absent'}, {'running' if state['active'] else 'not running'}"
        wanted = "enabled, running" if self.on else "disabled, not running"
        if not self.live:
            before, wanted = state["enabled"] or "absent", "enabled" if self.on else "disabled"
        return [Difference(self.key, before, "restarted" if self.restart else wanted)]
