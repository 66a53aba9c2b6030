"""Settings of the running system: kernel parameters, options of mount points, units."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ansible.module_utils.temper import units
from ansible.module_utils.temper.mounts import mounts
from ansible.module_utils.temper.process import complete, run, succeeds
from ansible.module_utils.temper.settings.base import Difference, Fault, Setting, State, kept_value
from ansible.module_utils.temper.settings.strictness import EXACTLY, as_strict, chosen, stricter, strictest
from ansible.module_utils.temper.settings.sysfs import KernelValue

PROC_SYS = Path("/proc/sys")
MOUNTINFO = Path("/proc/self/mountinfo")
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
#: Where ufw has the name of a file like those, which it reads whenever it starts, and whether it starts.
UFW, UFW_STARTS = Path("/etc/default/ufw"), Path("/etc/ufw/ufw.conf")
OURS = "# Managed by Temper"
# A longer line names no parameter, and comparing it as a pattern could take minutes.
LONGEST_NAME = 255
MOUNT_OPPOSITES = {"nodev": "dev", "nosuid": "suid", "noexec": "exec"}
MOUNT_STAYS = ("ro", "nosymfollow")


# Values that the kernel does not let go of before the next boot (admin-guide/sysctl/kernel, LSM/Yama). Both
# are at least as strict as any that we want.
LOCKED = {"kernel.unprivileged_bpf_disabled": "1", "kernel.yama.ptrace_scope": "3"}
# Stands before a line of our file whose value comes from no file: only ours keeps it over the next boot.
IN_FORCE = "# Found in force and in no file; what Temper asks for would be weaker."
DISTRIBUTION = "/usr/lib/"
SWAPPED = str.maketrans("./", "/.")


@dataclass(frozen=True)
class BootLine:
    """One line of the files that set kernel parameters at boot; the name may be a pattern."""

    file: str
    ours: bool
    name: str
    value: str
    #: Whether the value was found in force, and in no file.
    kept: bool
    #: Whether a program sets it after all files of sysctl.d.
    late: bool = False


def dotted(name: str) -> str:
    """Return a parameter's name with dots between its parts; a dot within one is a slash (sysctl.d(5))."""
    return name.translate(SWAPPED) if "/" in name.partition(".")[0] else name


def ufw_file() -> Path | None:
    """Return the file of parameters that ufw sets at boot, after sysctl.d; None where ufw does not start."""

    def last(path: Path, name: str) -> str:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        found: list[str] = re.findall(rf"^{name}=[\"']?([^\"'\s]*)", text, re.MULTILINE)
        return found[-1] if found else ""

    file = last(UFW, "IPT_SYSCTL")
    return Path(file) if file and last(UFW_STARTS, "ENABLED") in ("yes", "YES") else None


class AtBoot:
    """What the files of sysctl.d say, in the order in which the next boot reads them; read once."""

    @cached_property
    def lines(self) -> list[BootLine]:
        """All lines."""
        found: list[BootLine] = []
        by_name: dict[str, Path] = {}
        for directory in reversed(SYSCTL_DIRECTORIES):
            by_name |= {path.name: path for path in Path(directory).glob("*.conf")}
        of_ufw = ufw_file()
        for path in [*(path for _, path in sorted(by_name.items())), *filter(None, [of_ufw])]:
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            except OSError:  # a link that leads nowhere
                continue
            ours = lines[0].startswith(OURS)
            for number, line in enumerate(lines):
                left, equals, right = line.strip().partition("=")
                name = dotted(left.strip().lstrip("-").strip())
                if equals and 0 < len(name) <= LONGEST_NAME and left[0] not in "#;":
                    value = " ".join(right.split())
                    found.append(
                        BootLine(str(path), ours, name, value, lines[number - 1] == IN_FORCE, path == of_ufw)
                    )
        return found

    @cached_property
    def by_name(self) -> dict[str, list[BootLine]]:
        """The lines that name one parameter."""
        found: dict[str, list[BootLine]] = {}
        for line in self.lines:
            found.setdefault(line.name, []).append(line)
        return found

    @cached_property
    def patterns(self) -> list[BootLine]:
        """The lines that stand for several parameters."""
        return [line for line in self.lines if any(sign in line.name for sign in "*?[")]

    def last(self, name: str, which: Callable[[BootLine], bool]) -> BootLine | None:
        """Return the line that counts for a parameter among some.

        A name comes before a pattern, else the last.
        """
        named = [line for line in self.by_name.get(name, []) if which(line)]
        if named:
            return named[-1]
        matching = (line for line in reversed(self.patterns) if fnmatch.fnmatchcase(name, line.name))
        return next((line for line in matching if which(line)), None)

    def of_site(self, name: str) -> BootLine | None:
        """Return the line of a file that neither Temper nor the distribution has written."""
        return self.last(name, lambda line: not line.ours and not line.file.startswith(DISTRIBUTION))


class Sysctl(KernelValue):
    """The live value of one kernel parameter. One that this kernel lacks, or has locked, is settled."""

    why_absent = "this kernel has no such parameter"
    otherwise = "os_tuning_sysctls"

    def __init__(self, name: str, value: str) -> None:
        self.at_boot = AtBoot()
        self.key = f"sysctl:{name}"
        self.spec = {"name": name, "value": value}
        # A dot in an interface's name (a VLAN) is a slash in sysctl's notation.
        self.path = PROC_SYS / name.translate(SWAPPED)
        self.name = name
        self.wanted = " ".join(value.split())
        self.subject = f"its parameter {name}"

    @cached_property
    def value(self) -> str:
        """The wanted value, or one that is as strict as the site's, too."""
        return strictest(self.order, self.found or self.wanted, self.at_least)

    @cached_property
    def at_least(self) -> str:
        """The same by the files alone."""
        line = self.at_boot.of_site(self.name) if self.order != EXACTLY else None
        return strictest(self.order, line.value, self.wanted) if line else self.wanted

    @cached_property
    def found(self) -> str | None:
        """The value in force, or the former where that is Temper's; None for the distribution's own."""
        value = self.read() if self.live and self.order != EXACTLY else None
        if value is not None and not self.of_site(value):
            value = self.original["state"] if self.original else None
        return value if value is not None and chosen(self.order, value, self.wanted) else None

    def values_made(self) -> set[str]:
        """Return what the record has, and our file, on a machine from an image."""
        line = self.at_boot.last(self.name, lambda line: line.ours)
        return super().values_made() | ({line.value} if line and not line.kept else set())

    @property
    def own(self) -> bool:
        """Whether Temper's file has set what is in force, and no record says what was before."""
        return self.order != EXACTLY and not self.original and self.read() in self.values_made()

    def kept(self) -> list[str]:
        """Return the value and where it comes from."""
        absent = self.live and self.read() is None
        if absent or not stricter(self.order, self.value, self.wanted):
            return []
        line = self.at_boot.of_site(self.name)
        place = line.file if line and self.value == self.at_least else "in force"
        return [kept_value(self.name, f"{self.value} ({place})", self.wanted)]

    def read(self) -> State:
        """Return the live value with single blanks."""
        try:
            return " ".join(self.path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return None

    def settled(self) -> bool:
        """Return whether it has the value."""
        return self.locked() or self.read() in (None, self.value)

    def locked(self) -> bool:
        """Return whether it has a value that nobody can change before the next boot."""
        return self.name in LOCKED and self.read() == LOCKED[self.name]

    def overruled(self, later: Mapping[str, str]) -> str | None:
        """Return the file that sets it after ours, unless what that says is as strict as what is wanted."""
        if (file := overruled_by(self.name, later)) is None:
            return None
        line = self.at_boot.last(self.name, lambda line: line.file == file and not line.ours)
        return None if line and as_strict(self.order, line.value, self.wanted) else file

    def restore(self, state: State) -> None:
        """Write the former value, where the parameter is still there."""
        if state is not None and self.path.exists() and self.read() != state and not self.locked():
            self._write(state)

    def left_alone(self) -> str:
        """Likewise, or the kernel keeps the value."""
        if self.locked():
            return f"{self.name} (the kernel keeps {self.read()} until the next boot)"
        return super().left_alone()


REVERSE_PATH = "net.ipv4.conf.all.rp_filter"


class ReversePath(Sysctl):
    """The filter of impossible senders for all interfaces: 1 strict, 2 loose.

    An interface has the larger of its own value and this one (networking/ip-sysctl): the loose one for all
    would loosen those that the site has made strict.
    """

    @cached_property
    def value(self) -> str:
        """The wanted value, unless that would loosen an interface: then what is there stays."""
        usual = super().value
        return (self.found or "0") if usual == "2" and self.made_strict else usual

    @cached_property
    def made_strict(self) -> list[str]:
        """The interfaces that are strict because a file of the site says so."""
        return [
            name
            for name, value in self.of_interfaces().items()
            if value == "1" and (line := self.line_of(name) or self.line_of("default")) and line.value == "1"
        ]

    def of_interfaces(self) -> dict[str, str]:
        """Return each interface's own value."""
        paths = (PROC_SYS / "net/ipv4/conf").glob("*/rp_filter") if self.live else []
        found = {}
        for path in sorted(paths):
            with contextlib.suppress(OSError):  # containers' interfaces come and go
                found[path.parent.name] = path.read_text(encoding="utf-8").strip()
        return {name: value for name, value in found.items() if name not in ("all", "default", "lo")}

    def line_of(self, interface: str) -> BootLine | None:
        """Return the line of the site for an interface; a dot in its name is a slash in sysctl's notation."""
        return self.at_boot.of_site(f"net.ipv4.conf.{interface.replace('.', '/')}.rp_filter")

    def kept(self) -> list[str]:
        """Return which interfaces keep the others from the loose filter."""
        if self.value == self.wanted or not self.made_strict:
            return super().kept()
        return [f"{self.name} {self.value}, as {self.wanted} would loosen {', '.join(self.made_strict)}"]

    def fault(self) -> Fault | None:
        """Interfaces without a filter, where none is set for all."""
        open_ones = [name for name, value in self.of_interfaces().items() if value == self.value == "0"]
        if self.wanted == "0" or not open_ones:
            return None
        return Fault(
            f"{self.name} {self.value} leaves {', '.join(open_ones)} without a filter: set 2 for each"
        )


def sysctls(name: str, value: str) -> Iterator[Sysctl]:
    """Yield the settings for all parameters that match (`net.ipv4.conf.*.send_redirects`: all interfaces)."""
    if "*" not in name:
        yield (ReversePath if name == REVERSE_PATH else Sysctl)(name, value)
        return
    for path in sorted(PROC_SYS.glob(name.replace(".", "/"))):
        yield Sysctl(str(path.relative_to(PROC_SYS)).translate(SWAPPED), value)


def overruling(own_file: str, keys: Collection[str]) -> dict[str, str]:
    """Parameter (or pattern) -> file, for all that files which sort after ours set at boot: they win.

    `keys` are those of the role's settings: a file of its own that has the name of the distribution's takes
    the place of that (sysctl.d(5)), and a keyword rewrites its line.
    """
    files = (Path(key.removeprefix("file:")) for key in keys if key.startswith("file:"))
    own = {path.name for path in files if str(path.parent) in SYSCTL_DIRECTORIES[:1]}
    words = (key.removeprefix("keyword:").rpartition(":") for key in keys if key.startswith("keyword:"))
    written = {(path, dotted(word)) for path, _, word in words}
    return {
        line.name: line.file
        for line in AtBoot().lines
        if line.late or (Path(line.file).name > own_file and Path(line.file).name not in own)
        if (line.file, line.name) not in written
    }


def overruled_by(name: str, files: Mapping[str, str]) -> str | None:
    """Return the file that sets this parameter after ours, or None."""
    if name in files:
        return files[name]
    return next((path for pattern, path in files.items() if fnmatch.fnmatchcase(name, pattern)), None)


def of_temper(path: str) -> bool:
    """Return whether another role's file sets what it sets knowingly."""
    return Path(path).read_text(encoding="utf-8", errors="replace").startswith(OURS)


class MountOptions(Setting):
    """Options of a mount point, in force now. A plain directory is bound to itself for them."""

    of_others = True
    why_absent = "it is no file system of its own"

    def __init__(self, path: str, options: Sequence[str], bind: bool = False) -> None:
        self.key = f"mount:{path}"
        self.spec = {"path": path, "options": list(options)}
        self.path = path
        self.options = list(options)
        self.bind = bind

    @cached_property
    def value(self) -> list[str]:
        """The wanted options and those of the site; what Temper once asked for and no longer does, goes."""
        return sorted({*self.options, *self.of_site(self.read())})

    def values_made(self) -> set[str]:
        """Return the options that earlier runs have asked for. The site may have set those of this one."""
        return set[str]().union(*self.recorded("options"))

    def read(self) -> State:
        """Return the options in force that matter here, None where it is no mount point."""
        options = self._in_force()
        return sorted(set(options) & set(MOUNT_OPPOSITES)) if options else None

    def settled(self) -> bool:
        """Return whether all are in force.

        A directory that is no mount point needs none unless it may be bound.
        """
        state = self.read()
        if state is None:
            return not (self.bind and Path(self.path).is_dir())
        return bool(state == self.value)

    def kept(self) -> list[str]:
        """Options beyond those that are wanted."""
        more = set(self.value) - set(self.options) if self.read() else set()
        return [f"{option} of {self.path}" for option in sorted(more)]

    def apply(self) -> None:
        """Set them, without touching what is open."""
        if self.read() is None:
            # With all that is mounted below it, which would be hidden else.
            run(["mount", "--rbind", self.path, self.path])
        self._remount(self.value)

    def restore(self, state: State) -> None:
        """Take away what was not there, but for what the site has added since."""
        now = self.read()
        if now is None or now == state or (state is None and not self._bound()):
            return
        if state is None and not any(mount.point.startswith(f"{self.path}/") for mount in mounts(MOUNTINFO)):
            # Lazily: what is open below it stays open, and everything is still there under the same name.
            run(["umount", "--lazy", self.path])
            return
        # Also where something is mounted below it, which would go as well: then it stays, without options.
        self._remount([*(state or []), *(set(now) - {*self.options} - self.values_made())])

    def left_alone(self) -> str:
        """Return that it is gone, or another's. What the site has added stays beside what is restored."""
        if self.read() is None:
            return super().left_alone()
        others = self.original and self.original["state"] is None and not self._bound()
        return f"{self.path} (a file system was mounted there since)" if others else ""

    def change(self) -> list[Difference]:
        """Return the options."""
        return [Difference(self.key, ",".join(self.read() or []), ",".join(self.value))]

    def _bound(self) -> bool:
        """Return whether it is the directory itself that is mounted there, as `apply` does it."""
        found = mounts(MOUNTINFO)
        here = [mount for mount in found if mount.point == self.path]
        return bool(here) and here[-1].is_bound_to_itself(found)

    def _in_force(self) -> list[str]:
        # The last mount is on top.
        options = [mount.options.split(",") for mount in mounts(MOUNTINFO) if mount.point == self.path]
        return options[-1] if options else []

    def _remount(self, options: list[str]) -> None:
        # `bind` changes the mount point alone: neither its file system nor its size. With source and target
        # named, mount takes nothing from /etc/fstab, and what is not named would go.
        others = [option for option in self._in_force() if option in MOUNT_STAYS]
        ours = [name if name in options else opposite for name, opposite in MOUNT_OPPOSITES.items()]
        flags = ",".join(["remount", "bind", *others, *ours])
        run(["mount", "--options", flags, "none", self.path])


class Unit(Setting):
    """A unit that is enabled and runs, or (`on` false) is neither.

    One that is not installed is settled where it is `optional`, unless its file is another setting
    (`made_here`); nor is one missed while another that does the same runs (`unless`: names or patterns). It
    is restarted where one of the files `restart_on` has changed.
    """

    of_others = True
    why_absent = "the unit is not installed"

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
        """Return whether it is enabled and whether it runs."""
        show = self._show()
        if show["LoadState"] == "not-found":
            return None
        return {"enabled": show["UnitFileState"], "active": show["ActiveState"] in ("active", "reloading")}

    def settled(self) -> bool:
        """Return whether it is as wanted. A unit whose own condition keeps it from running is let be."""
        show, state = self._show(), self.read()
        if self.restart:
            return False
        if state is None:
            return not self.required
        enabled = state["enabled"] in units.STARTS_AT_BOOT
        if self.stays():
            return True
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

    def stays(self) -> bool:
        """Return whether the site has switched off what may run, and it counts as the stricter state."""
        state = self.read()
        if not self.on or state is None or state["active"] or state["enabled"] in units.STARTS_AT_BOOT:
            return False
        return stricter(self.order, "disabled", "running")

    def kept(self) -> list[str]:
        """Return the state of one that stays switched off."""
        return [f"{self.name} switched off"] if self.stays() else []

    def obstacle(self) -> str | None:
        """Return whether somebody has masked what is to run."""
        if self.on and not self.stays() and self._show()["LoadState"] == "masked":
            return f"{self.name} is masked: `systemctl unmask {self.name}`"
        return None

    def fault(self) -> Fault | None:
        """Return the fault of a timer whose service is masked, or of a unit that is enabled in /run alone.

        systemd remembers its own answer until it reads all units anew; `is-enabled` reads the files.
        """
        if self.on and not self.stays() and (fault := self.masked_service()):
            return fault
        if not self.on or self._show()["UnitFileState"] != "enabled-runtime":
            return None
        if complete(["systemctl", "is-enabled", self.name]).stdout.strip() != "enabled-runtime":
            return None
        reason = f"{self.name} is enabled until the next boot only, which does not start it"
        return Fault(reason, [["enable", self.name]])

    def masked_service(self) -> Fault | None:
        """Return what keeps a timer from doing anything though it runs."""
        stem, dot, kind = self.name.rpartition(".")
        service = f"{stem}{dot}service"
        if kind != "timer" or not self.live or units.unit_states([service])[service]["LoadState"] != "masked":
            return None
        return Fault(f"{service}, which {self.name} starts, is masked", [["unmask", service]])

    def warnings(self) -> list[str]:
        """Likewise, of a unit that is as wanted."""
        fault = self.masked_service() if self.on and self.read() else None
        return [f"{fault.reason}: `systemctl {' '.join(fault.repair[0])}`."] if fault else []

    def unmask(self) -> list[list[str]]:
        """Return the repair that takes a mask away, where one keeps the unit from running."""
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
        """Return the verbs of systemctl that are due."""
        if not self.on:
            return ["disable", *(["stop"] if self.live else [])]
        state = self.read() or {"enabled": "", "active": False}
        enable = [] if state["enabled"] in units.STARTS_AT_BOOT else ["enable"]
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

    def left_alone(self) -> str:
        """Likewise, or somebody has masked it, which Temper never does: then nothing enables it."""
        masked = self._show()["LoadState"] == "masked"
        return f"{self.key} (it was masked since)" if masked else super().left_alone()

    def change(self) -> list[Difference]:
        """Return the states."""
        state = self.read() or {"enabled": "", "active": False}
        before = f"{state['enabled'] or 'absent'}, {'running' if state['active'] else 'not running'}"
        wanted = "enabled, running" if self.on else "disabled, not running"
        if not self.live:
            before, wanted = state["enabled"] or "absent", "enabled" if self.on else "disabled"
        return [Difference(self.key, before, "restarted" if self.restart else wanted)]
