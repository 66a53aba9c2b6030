"""Settings of a node that can be taken back: each knows its present state, and how to return to one.

`Record` keeps on the node, before anything is changed, what each setting was. So the empty list of wanted
settings restores the node, and a setting that is no longer wanted returns to what it was.
"""

from __future__ import annotations

import base64
import fnmatch
import grp
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.files import make_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What a state is on disk: JSON. None means "was not there".
State = Any

PROC_SYS = Path("/proc/sys")
PAM_STACKS = Path("/etc/pam.d")
MOUNTINFO = Path("/proc/self/mountinfo")
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
MOUNT_OPPOSITES = {"nodev": "dev", "nosuid": "suid", "noexec": "exec"}


class SettingError(Exception):
    """A setting could not be made; the message is a sentence for the operator."""


def run(command: Sequence[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program; raise SettingError with its own words where `check` is set and it fails."""
    environment = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin",
    }
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError as error:
        raise SettingError(f"`{command[0]}` is not installed on this node.") from error
    if check and completed.returncode:
        output = " ".join((completed.stderr + completed.stdout).split())
        raise SettingError(f"`{' '.join(command)}` failed with status {completed.returncode}: {output}")
    return completed


class Setting:
    """One setting. `key` names it in the record and in what the operator reads."""

    key: str
    # What `rebuild` needs to make this object again, only to restore it.
    spec: dict[str, Any]

    def read(self) -> State:
        """The present state, enough to restore it."""
        raise NotImplementedError

    def settled(self) -> bool:
        """Whether nothing is left to do."""
        raise NotImplementedError

    def apply(self) -> None:
        """Make the setting."""
        raise NotImplementedError

    def restore(self, state: State) -> None:
        """Return to a state that `read` has returned."""
        raise NotImplementedError

    def change(self) -> tuple[str, str]:
        """Before and after, for people: what `apply` would change."""
        raise NotImplementedError


def replace_file(path: Path, content: bytes, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Replace a file in one step, so that no reader and no crash ever sees half of it."""
    make_directories(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chown(temporary, uid, gid)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


class WholeFile(Setting):
    """A file that is Temper's own. `validate` is a command that must accept it, with %s for its path."""

    def __init__(self, path: str, content: str, mode: str = "0644", validate: Sequence[str] = ()) -> None:
        self.key = f"file:{path}"
        self.spec = {"path": path, "content": ""}
        self.path = Path(path)
        self.content = content.encode()
        self.mode = int(mode, 8)
        self.validate = validate

    def read(self) -> State:
        """Content and owner, None where there is no file."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise SettingError(f"{self.path}: expected a file, found something else; move it away.")
        return {
            "content": base64.b64encode(self.path.read_bytes()).decode(),
            "mode": stat.S_IMODE(status.st_mode),
            "uid": status.st_uid,
            "gid": status.st_gid,
        }

    def settled(self) -> bool:
        """Same bytes, mode and owner."""
        state = self.read()
        wanted = {"content": base64.b64encode(self.content).decode(), "mode": self.mode, "uid": 0, "gid": 0}
        return bool(state == wanted)

    def apply(self) -> None:
        """Write it, if its own program accepts it."""
        if self.validate:
            with tempfile.NamedTemporaryFile(prefix="temper-", mode="wb") as candidate:
                candidate.write(self.content)
                candidate.flush()
                run([word.replace("%s", candidate.name) for word in self.validate])
        replace_file(self.path, self.content, self.mode)

    def restore(self, state: State) -> None:
        """Bring the former file back, or take ours away."""
        if state is None:
            self.path.unlink(missing_ok=True)
        else:
            content = base64.b64decode(state["content"])
            replace_file(self.path, content, state["mode"], state["uid"], state["gid"])

    def change(self) -> tuple[str, str]:
        """The whole file."""
        before = self.path.read_text(errors="replace") if self.path.is_file() else ""
        return before, self.content.decode()


class Keyword(Setting):
    """One keyword of a configuration file that belongs to the distribution; the rest stays as it is."""

    def __init__(self, path: str, keyword: str, value: str) -> None:
        self.key = f"keyword:{path}:{keyword}"
        self.spec = {"path": path, "keyword": keyword, "value": ""}
        self.path = Path(path)
        self.keyword = keyword
        self.value = value
        # login.defs has blanks between keyword and value, the others an equals sign.
        self.line = f"{keyword} {value}" if self.path.name == "login.defs" else f"{keyword} = {value}"
        self.pattern = re.compile(rf"^\s*{re.escape(keyword)}(\s*=\s*|\s+)(.*?)\s*$")

    def read(self) -> State:
        """The lines that set the keyword now, None where there is no file."""
        if not self.path.is_file():
            return None
        return [line for line in self._lines() if self.pattern.match(line)]

    def settled(self) -> bool:
        """Whether exactly one line sets it, to the wanted value. A file that is not there needs none."""
        lines = self.read()
        if lines is None:
            return True
        values = [match[2] for line in lines if (match := self.pattern.match(line))]
        return values == [self.value]

    def apply(self) -> None:
        """Put one line where the first one was, else at the end."""
        self._replace([self.line])

    def restore(self, state: State) -> None:
        """Put the former lines back."""
        if state is not None and self.path.is_file():
            self._replace(state)

    def change(self) -> tuple[str, str]:
        """The lines."""
        return "\n".join(self.read() or []), self.line

    def _lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()

    def _replace(self, new: list[str]) -> None:
        lines: list[str] = []
        placed = False
        for line in self._lines():
            if not self.pattern.match(line):
                lines.append(line)
            elif not placed:
                lines += new
                placed = True
        if not placed:
            lines += new
        status = self.path.stat()
        content = "".join(f"{line}\n" for line in lines).encode()
        replace_file(self.path, content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


class Access(Setting):
    """Owner root, and no permission beyond `mode`; what is stricter already stays so."""

    def __init__(self, path: str, mode: str, groups: Sequence[str] = ("root",)) -> None:
        self.key = f"access:{path}"
        self.spec = {"path": path, "mode": mode}
        self.path = Path(path)
        self.mode = int(mode, 8)
        self.groups = groups

    def read(self) -> State:
        """Mode and owner, None where there is nothing (or a link, whose target is another's business)."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return None
        return {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}

    def settled(self) -> bool:
        """Whether nobody has more than they should."""
        state = self.read()
        if state is None:
            return True
        return bool(not state["mode"] & ~self.mode and state["uid"] == 0 and state["gid"] in self._gids())

    def apply(self) -> None:
        """Take away what is too much."""
        state = self.read()
        gids = self._gids()
        gid = state["gid"] if state["gid"] in gids else gids[0]
        os.chown(self.path, 0, gid, follow_symlinks=False)
        self.path.chmod(state["mode"] & self.mode)

    def restore(self, state: State) -> None:
        """Give it back."""
        if state is not None and self.read() is not None:
            os.chown(self.path, state["uid"], state["gid"], follow_symlinks=False)
            self.path.chmod(state["mode"])

    def change(self) -> tuple[str, str]:
        """The modes."""
        state = self.read()
        return f"{state['mode']:04o} {state['uid']}:{state['gid']}", f"{state['mode'] & self.mode:04o} root"

    def _gids(self) -> list[int]:
        known = []
        for group in self.groups:
            try:
                known.append(grp.getgrnam(group).gr_gid)
            except KeyError:
                continue
        return known or [0]


def accesses(path: str, mode: str, groups: Sequence[str] = ("root",)) -> Iterator[Access]:
    """The settings for all paths that match a shell pattern."""
    if not any(sign in path for sign in "*?["):
        yield Access(path, mode, groups)
        return
    for found in sorted(Path("/").glob(path.lstrip("/"))):
        yield Access(str(found), mode, groups)


class Sysctl(Setting):
    """The live value of one kernel parameter. One that this kernel does not have is settled."""

    def __init__(self, name: str, value: str) -> None:
        self.key = f"sysctl:{name}"
        self.spec = {"name": name, "value": value}
        # A dot in an interface's name (a VLAN) is a slash in sysctl's notation.
        self.path = PROC_SYS / name.translate(str.maketrans("./", "/."))
        self.name = name
        self.value = " ".join(value.split())

    def read(self) -> State:
        """The live value with single blanks."""
        try:
            return " ".join(self.path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return None

    def settled(self) -> bool:
        """Whether it has the value."""
        return self.read() in (None, self.value)

    def apply(self) -> None:
        """Write it."""
        self._write(self.value)

    def restore(self, state: State) -> None:
        """Write the former value, where the parameter is still there."""
        if state is not None and self.path.exists() and self.read() != state:
            self._write(state)

    def change(self) -> tuple[str, str]:
        """The values."""
        return str(self.read()), self.value

    def _write(self, value: str) -> None:
        try:
            self.path.write_text(value, encoding="utf-8")
        except OSError as error:
            raise SettingError(
                f"The kernel does not take {value!r} for its parameter {self.name}: {error.strerror}."
            ) from error


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
            if equals and left[0] not in "#;":
                found[left.strip().lstrip("-").replace("/", ".")] = str(path)
    return found


def overruled_by(name: str, files: dict[str, str]) -> str | None:
    """The file that sets this parameter after ours, or None."""
    if name in files:
        return files[name]
    return next((path for pattern, path in files.items() if fnmatch.fnmatchcase(name, pattern)), None)


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
        mounts = [line.split() for line in MOUNTINFO.read_text(encoding="utf-8").splitlines()]
        options = [fields[5].split(",") for fields in mounts if fields[4] == self.path]
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
            run(["mount", "--bind", self.path, self.path])
            state = []
        self._remount(sorted({*state, *self.options}))

    def restore(self, state: State) -> None:
        """Take away what was not there."""
        now = self.read()
        if now is None or now == state:
            return
        if state is None:
            # Lazily: what is open below it stays open, and everything is still there under the same name.
            run(["umount", "--lazy", self.path])
            return
        self._remount([*state, *(MOUNT_OPPOSITES[option] for option in now if option not in state)])

    def change(self) -> tuple[str, str]:
        """The options."""
        state = self.read()
        return ",".join(state or []), ",".join(sorted({*(state or []), *self.options}))

    def _remount(self, options: list[str]) -> None:
        # `bind` changes the mount point alone: neither its file system nor its size.
        run(["mount", "--options", ",".join(["remount", "bind", *options]), self.path])


# Units that systemd starts at boot, or that others start.
STARTS_AT_BOOT = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")


class Unit(Setting):
    """A unit that is enabled and runs, or (`on` false) is neither.

    One that is not installed is settled, unless its file is another setting (`made_here`).
    """

    def __init__(self, name: str, on: bool, made_here: bool = False) -> None:
        self.key = f"unit:{name}"
        self.spec = {"name": name, "on": on}
        self.name = name
        self.on = on
        self.made_here = made_here
        self._known: dict[str, str] | None = None

    def _show(self) -> dict[str, str]:
        if self._known is None:
            self._known = unit_states([self.name])[self.name]
        return self._known

    def know(self, properties: dict[str, str]) -> None:
        """Take what `unit_states` has found for many units at once."""
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
        if state is None:
            return not self.made_here
        enabled = state["enabled"] in STARTS_AT_BOOT
        if not self.on:
            return not state["active"] and state["enabled"] not in ("enabled", "enabled-runtime")
        # Its condition has been asked, in this boot, and the answer was no.
        kept = show["ConditionResult"] == "no" and show["ConditionTimestampMonotonic"] not in ("", "0")
        return enabled and (state["active"] or kept)

    def apply(self) -> None:
        """Enable and start, or disable and stop."""
        if self.on:
            # Reloads systemd, too: it remembers a condition's answer only for units known to be enabled.
            run(["systemctl", "enable", "--quiet", self.name])
            run(["systemctl", "start", self.name])
        else:
            run(["systemctl", "disable", "--quiet", self.name])
            run(["systemctl", "stop", self.name])
        self._known = None

    def restore(self, state: State) -> None:
        """Return to the former state; a unit that has come since is switched off."""
        self._known = None
        if self.read() is None:
            return
        enabled = state is not None and state["enabled"] in ("enabled", "enabled-runtime")
        active = state is not None and state["active"]
        run(["systemctl", "enable" if enabled else "disable", "--quiet", self.name])
        run(["systemctl", "start" if active else "stop", self.name])
        self._known = None

    def change(self) -> tuple[str, str]:
        """The states."""
        state = self.read() or {"enabled": "", "active": False}
        before = f"{state['enabled'] or 'absent'}, {'running' if state['active'] else 'not running'}"
        return before, "enabled, running" if self.on else "disabled, not running"


UNIT_PROPERTIES = "LoadState,UnitFileState,ActiveState,ConditionResult,ConditionTimestampMonotonic"


def unit_states(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Properties of units, asked in one call."""
    if not names:
        return {}
    output = run(["systemctl", "show", f"--property={UNIT_PROPERTIES}", "--", *names]).stdout
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines()) for block in output.strip().split("\n\n")
    ]
    return dict(zip(names, blocks, strict=True))


class PamProfile(Setting):
    """A profile of pam-auth-update (its file is another setting), switched on.

    It is on when one line of the stack has all the words.
    """

    def __init__(self, name: str, stack: str, words: Sequence[str]) -> None:
        self.key = f"pam:{name}"
        self.spec = {"name": name, "stack": stack, "words": list(words)}
        self.name = name
        self.stack = PAM_STACKS / stack
        self.words = set(words)

    def read(self) -> State:
        """Whether its module is in the stack."""
        lines = self.stack.read_text(encoding="utf-8").splitlines() if self.stack.is_file() else []
        return any(self.words <= set(line.split()) for line in lines if not line.startswith("#"))

    def settled(self) -> bool:
        """Whether it is there."""
        return bool(self.read())

    def apply(self) -> None:
        """Let Debian's own program put it in."""
        run(["pam-auth-update", "--package", "--enable", self.name])
        if not self.read():
            raise SettingError(
                f"{self.stack} was changed by hand, so pam-auth-update does not put {self.name} into it. "
                "Run `pam-auth-update --force` on the node, or waive the control that asks for it."
            )

    def restore(self, state: State) -> None:
        """Let it take it out."""
        if not state and self.read():
            run(["pam-auth-update", "--package", "--remove", self.name])

    def change(self) -> tuple[str, str]:
        """Which module."""
        return "", f"{self.name} in {self.stack}"


# In the order in which they are made; they are taken back in the opposite one.
KINDS: dict[str, Any] = {
    "file": WholeFile,
    "keyword": Keyword,
    "pam": PamProfile,
    "access": Access,
    "sysctl": Sysctl,
    "mount": MountOptions,
    "unit": Unit,
}
PATTERNS: dict[str, Any] = {"access": accesses, "sysctl": sysctls}


def build(kind: str, spec: dict[str, Any]) -> list[Setting]:
    """The settings that one entry of the wanted list stands for; a pattern stands for several.

    Raises:
        SettingError: there is no such kind.
    """
    if kind not in KINDS:
        raise SettingError(f"Expected a setting of the kinds {', '.join(KINDS)}, found {kind!r}.")
    return list(PATTERNS[kind](**spec)) if kind in PATTERNS else [KINDS[kind](**spec)]


def rebuild(key: str, spec: dict[str, Any]) -> Setting:
    """The one setting of a record's entry, to restore it."""
    setting: Setting = KINDS[key.partition(":")[0]](**spec)
    return setting


class Record:
    """What settings were before Temper made them, and what a run that was cut off has still to do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        # Key -> {"spec", "state"}: enough to restore a setting that nobody asks for any more.
        self.originals: dict[str, dict[str, Any]] = data.get("originals", {})
        self.pending: list[str] = data.get("pending", [])

    def save(self) -> None:
        """Write it, or remove it where it is empty."""
        if not self.originals and not self.pending:
            self.path.unlink(missing_ok=True)
            return
        data = {"originals": self.originals, "pending": self.pending}
        replace_file(self.path, json.dumps(data, indent=1).encode(), 0o600)


def available(program: str) -> bool:
    """Whether a program is installed, an administrator's one too."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
