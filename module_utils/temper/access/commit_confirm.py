"""Changes to the ways into a node (sshd, firewall), undone unless a new connection confirms them.

A setting saves the files it is about to change together with a shell script that puts them back
(`Change.armed`), starts a transient systemd timer that runs the script, and applies its change. Module
commit_confirm, called through a connection opened under the new rules, disarms it (`Change.confirm`).

The saved state's directory is the truth, the timer only a trigger: the script does nothing once the directory
is gone, and a unit runs it early at the next boot when the node went down before the confirmation. Where it
cannot restore, on a full disk say, it is run again and again. Saving, applying, confirming and undoing
exclude each other by a lock. The script needs neither Ansible nor Python nor a network, nor a file system
that programs may be run from: a shell reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ansible.module_utils.temper.files import replace_file, sync
from ansible.module_utils.temper.process import CommandError, run, succeeds
from ansible.module_utils.temper.settings.base import NodeModule, RefusedError, Setting

if TYPE_CHECKING:
    from ansible.module_utils.temper.access.ssh_login import Login

DEFAULT_ROLLBACK_AFTER_S = 120
# Below, a loaded node could undo what it is about to confirm; above, nobody waits for it.
ROLLBACK_AFTER_S = (5, 3600)
RETRY_AFTER_S = 10

STATE = Path("/var/lib/temper/rollback")
UNITS = Path("/etc/systemd/system")
BOOT_UNIT = "temper-rollback.service"

BOOT_UNIT_TEXT = """\
# Managed by Temper. Undoes changes that nobody had confirmed when the node went down.
[Unit]
Description=Undo unconfirmed changes to sshd and firewall
DefaultDependencies=no
After=local-fs.target
RequiresMountsFor={state}
Before=sysinit.target temper-firewall.service shutdown.target
Conflicts=shutdown.target
ConditionPathExistsGlob={state}/*/undo

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for undo in {state}/*/undo; do \\
    /bin/sh "$undo" "the node went down before a new connection confirmed it" || failed=1; done; \\
    exit $${{failed:-0}}'
# It brings the way in back, with whatever that takes: nothing else is limited.
OOMScoreAdjust=-500
TasksMax=1024
MemoryMax=4G

[Install]
WantedBy=sysinit.target
"""

UNDO_SCRIPT = """\
#!/bin/sh
# Undoes an unconfirmed change of {subject}.
# Run by {unit}.timer, or at the next boot; by hand: sh {directory}/undo
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
umask 077

# What is still as it was needs nothing, also where nobody may replace it (chattr +i).
same() {{
    [ "$(stat -c '%f %u %g' "$1")" = "$(stat -c '%f %u %g' "$2")" ] &&
        sum=$(sha256sum <"$1") && [ "$sum" = "$(sha256sum <"$2")" ]
}} 2>/dev/null

undo() {{
    exec 9<{root} && flock 9 || return 1
    [ -d {directory} ] || return 0  # confirmed, or undone by another, while this one waited
    failed=0
{steps}
    if [ "$failed" -ne 0 ]; then
        echo "{unit}: {subject} could not be restored; what it was is in {directory}" >&2
        return 1
    fi
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ): the change of {subject} was undone because $1" >{report}
    rm -rf {directory}
}}

undo "${{1:-somebody asked for it}}"
"""


Outlook = TypeVar("Outlook")


class NotConfirmedError(Exception):
    """A change cannot be confirmed; the message says why."""


def _is_there(path: Path) -> bool:
    """Return whether there is such a file or link; one that nobody can look at is an error, not a no."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class Change:
    """One named change ("ssh", "firewall") and its way back. `subject` is what it changes, in words."""

    def __init__(self, name: str, subject: str, state: Path = STATE, units: Path = UNITS) -> None:
        self.subject = subject
        self.unit = f"temper-rollback-{name}"
        self.state = state
        self.units = units
        self.directory = state / name
        self.report = state / f"{name}.undone"
        # The boot unit's pattern skips hidden names: a save that was cut off half way never runs.
        self.staging = state / f".{name}"

    @property
    def pending(self) -> bool:
        """Whether a change is applied and waits for its confirmation."""
        return self.directory.is_dir()

    def past_rollback(self, keep: bool = False) -> str | None:
        """Return the sentence that the last undo left behind, if any, and forget it unless `keep`."""
        try:
            sentence = self.report.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None
        if not keep:
            self.report.unlink()
        return sentence

    def settle_the_past(self, node: NodeModule, rollback_after_s: int) -> None:
        """Undo what earlier runs left unconfirmed, and tell of it, before anything looks at the node.

        All changes, not only this one: rules that fit a port which sshd is about to leave would lock
        everybody out. Raises RefusedError where the time until the undo makes no sense.
        """
        shortest, longest = ROLLBACK_AFTER_S
        if not shortest <= rollback_after_s <= longest:
            raise RefusedError(
                f"rollback_after_s: expected {shortest} to {longest} seconds, found {rollback_after_s}; "
                "nothing was changed."
            )
        for script in sorted(self.state.glob("*/undo")):
            if script.parent.name.startswith("."):  # a save that was cut off half way
                continue
            if node.check_mode:
                node.warn("An earlier change still waits for its confirmation; a run would undo it first.")
            else:
                earlier = Change(script.parent.name, self.subject, self.state, self.units)
                earlier.undo("another run began before it was confirmed")
        if past := self.past_rollback(keep=node.check_mode):
            node.warn(past)

    @contextlib.contextmanager
    def armed(
        self, files: Sequence[Path], live: Sequence[str], timeout_s: int, login: Login | None
    ) -> Iterator[None]:
        """Save `files`, start the timer, run the body, which applies the change; undo at once if it fails.

        Args:
            files: Files that the change writes, creates or removes.
            live: Shell commands that make restored files effective; they also run at boot, before sshd does.
            timeout_s: Seconds from now to the undo.
            login: The connection that makes the change; `confirm` refuses the same one.
        """
        saved = False
        try:
            with self._lock():
                if self.pending:
                    raise CommandError(
                        f"Another run is changing {self.subject} right now: run again after it."
                    )
                try:
                    self._save(files, live, login)
                except OSError as error:
                    raise CommandError(
                        f"What is there now cannot be saved, so nothing is changed about {self.subject}: "
                        f"{error}"
                    ) from error
                saved = True
                self._start_timer(timeout_s)
                yield
        except BaseException as error:  # a module's own failure is a SystemExit
            if saved:
                self._undo_failed(error)
            raise

    def confirm(self, login: Login | None, end_proof: Sequence[str] = ()) -> None:
        """Make the change permanent; raise NotConfirmedError where that proves nothing or comes too late.

        The command `end_proof` takes away what was there only for the proof; raises CommandError where it
        fails.
        """
        with self._lock():
            if not self.pending:
                past = self.past_rollback(keep=True) or "there is no trace of it"
                raise NotConfirmedError(f"Nothing is left to confirm ({past}). Run again.")
            if login and repr(login).encode() == (self.directory / "login").read_bytes():
                raise NotConfirmedError(
                    f"The confirmation of {self.subject} came through the connection that made the change, "
                    "which proves nothing. Take ControlPath out of Ansible's SSH arguments and run again."
                )
            if end_proof:
                run(end_proof)
            self.directory.rename(self.staging)
            # What is confirmed stays so where the power fails now: else the next boot would undo it.
            sync(self.state)
            shutil.rmtree(self.staging)
            # Not later: the next timer of this name belongs to another run.
            self._stop_timer()

    def undo(self, reason: str) -> None:
        """Restore now, without waiting for the timer; raise CommandError where that fails."""
        before = self._identity()
        try:
            run(["/bin/sh", str(self.directory / "undo"), reason])
        except CommandError:
            if self.pending:  # else another one did it meanwhile
                raise
        with self._lock():
            # The timer would find nothing left to do; one that another run has started is not this one.
            if not self.pending:
                self._stop_timer()
            elif before == self._identity():
                # A script that is empty or damaged, as after a power cut, succeeds and does nothing.
                raise CommandError(
                    f"{self.directory}/undo is damaged: it ran, and the saved state is still there. Put back "
                    f"what is in {self.directory} by hand, and remove that folder"
                )

    def _identity(self) -> tuple[int, int] | None:
        """Return what tells the saved state from that of another run; None where there is none."""
        try:
            found = self.directory.stat()
        except OSError:
            return None
        # A file system gives the number of a folder that is gone to the next one.
        return found.st_ino, found.st_ctime_ns

    def _undo_failed(self, error: BaseException) -> None:
        why = f"it failed: {error}" if isinstance(error, Exception) else "it was broken off"
        try:
            self.undo(why)
        except CommandError as failure:
            raise CommandError(f"{error}. What was there before is not back yet ({failure})") from error

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _save(self, files: Sequence[Path], live: Sequence[str], login: Login | None) -> None:
        if self.staging.exists():
            shutil.rmtree(self.staging)
        self.staging.mkdir(mode=0o700)
        steps = []
        for index, file in enumerate(files):
            target = shlex.quote(str(file))
            if not _is_there(file):
                steps.append(f"rm -f {target}")
                continue
            copy = self.staging / str(index)
            run(["cp", "--archive", "--", str(file), str(copy)])
            saved = shlex.quote(str(self.directory / str(index)))
            wait = unless = ""
            # A link's copy is a link, which may lead nowhere from there and has no content to wait for.
            if not copy.is_symlink():
                sync(copy)
                wait, unless = f"sync {target}.undo && ", f"same {saved} {target} || "
            # The temporary name ends differently, so that no *.conf pattern takes it in.
            restore = f"cp --archive {saved} {target}.undo && {wait}mv -f {target}.undo {target}"
            steps.append(f"{unless}{{ {restore}; }}")
        script = UNDO_SCRIPT.format(
            subject=self.subject,
            unit=self.unit,
            directory=shlex.quote(str(self.directory)),
            root=shlex.quote(str(self.state)),
            report=shlex.quote(str(self.report)),
            steps="\n".join(f"    {{ {step}; }} || failed=1" for step in (*steps, *live)),
        )
        replace_file(self.staging / "undo", script.encode(), 0o700)
        replace_file(self.staging / "login", repr(login).encode(), 0o600)
        self._enable_at_boot()
        sync(self.staging)
        self.staging.rename(self.directory)
        sync(self.state)

    def _enable_at_boot(self) -> None:
        """Install the boot unit. No daemon-reload: it can cost containers their GPUs; the boot needs none."""
        text = BOOT_UNIT_TEXT.format(state=self.state)
        unit, link = self.units / BOOT_UNIT, self.units / "sysinit.target.wants" / BOOT_UNIT
        if not unit.exists() or unit.read_text(encoding="utf-8") != text:
            replace_file(unit, text.encode(), 0o644)
        if not link.is_symlink():
            link.parent.mkdir(mode=0o755, exist_ok=True)
            link.symlink_to(unit)
            sync(link.parent)

    def _start_timer(self, timeout_s: int) -> None:
        self._stop_timer()
        script = shlex.quote(str(self.directory / "undo"))
        reason = shlex.quote(f"no new connection confirmed it within {timeout_s} s")
        run(
            [
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={self.unit}",
                f"--description=Undo an unconfirmed change of {self.subject}",
                f"--on-active={timeout_s}",
                "--timer-property=AccuracySec=1s",
                "--property=Restart=on-failure",
                f"--property=RestartSec={RETRY_AFTER_S}",
                "/bin/sh",
                "-c",
                f"[ ! -e {script} ] || exec /bin/sh {script} {reason}",
            ]
        )

    def _stop_timer(self) -> None:
        # Fails where there is none, which is what this asks for. The service may wait for its next try.
        for kind in ("timer", "service"):
            succeeds(["systemctl", "--quiet", "stop", f"{self.unit}.{kind}"])


class ConfirmedSetting(Setting, Generic[Outlook]):
    """A setting whose change may lock the operator out, so that a new connection has to confirm it.

    It looks at the node once, at the first question, and again after it has changed something. `login` is the
    one that Ansible comes by.
    """

    #: Which Change it is: its name and, in words, what it changes.
    change_name: str
    subject: str

    def __init__(self, rollback_after_s: int, login: Login | None) -> None:
        self.rollback_after_s = rollback_after_s
        self.login = login
        self.spec = {}

    @property
    def pending(self) -> Change:
        """The change, to settle its past and to arm."""
        return Change(self.change_name, self.subject)

    def look(self) -> Outlook:
        """Compare the node with what is wanted. Raises RefusedError, CommandError, OSError."""
        raise NotImplementedError

    @cached_property
    def outlook(self) -> Outlook:
        """The last look."""
        return self.look()

    def forget(self) -> None:
        """Look anew when next asked."""
        self.__dict__.pop("outlook", None)

    def obstacle(self) -> str | None:
        """Return why `look` refuses."""
        try:
            self.outlook  # noqa: B018 - to look is enough
        except RefusedError as error:
            return str(error)
        return None

    def begin(self, node: NodeModule) -> None:
        """Undo what nobody has confirmed."""
        self.pending.settle_the_past(node, self.rollback_after_s)

    def prepare(self) -> None:
        """Do what must come before the timer starts."""

    def prove(self) -> None:
        """Keep the confirmation from resting on what was there before the change, until it has come."""

    def make(self) -> dict[str, Any]:
        """Apply it under the timer, where it is a way in."""
        # Before its first boot, an image has no operator whom a change could lock out.
        way_in = self.way_in() if self.live else None
        self.prepare()
        if not way_in:
            return super().make()
        with self.pending.armed(way_in.files, way_in.live, self.rollback_after_s, self.login):
            self.prove()
            self.apply()
        return {"confirm": self.change_name}
