"""A change undoes itself, once, unless a new connection confirms it."""

import pwd
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process as processes
from ansible.module_utils.temper.access import commit_confirm
from ansible.module_utils.temper.access.commit_confirm import Change, NotConfirmedError
from ansible.module_utils.temper.access.ssh_login import Login, ssh_login
from ansible.module_utils.temper.access.sshd_settings import Outlook, Parameters, SshdPlan, SshdSettings
from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.settings.base import RefusedError

pytestmark = pytest.mark.component

LOGIN = Login("ops", "192.0.2.1", 40000, "192.0.2.9", 22)


class Node:
    """A folder that plays the node: files to change, saved state, units; timers are only noted."""

    def __init__(self, root: Path) -> None:
        self.file = root / "drop-in.conf"
        self.created = root / "created.conf"
        self.reloads = root / "reloads"
        self.units = root / "units"
        self.units.mkdir()
        self.change = Change("ssh", "the settings", state=root / "state", units=self.units)

    def apply(self, text: str) -> None:
        with self.change.armed([self.file, self.created], [f"echo reload >>{self.reloads}"], 60, LOGIN):
            self.file.write_text(text)
            self.created.write_text(text)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands for systemd, which the host's must not see."""
    commands: list[str] = []
    real = processes.complete

    def complete(command: list[str], *options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] not in ("systemd-run", "systemctl"):
            return real(command, *options)
        commands.append(shlex.join(command))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(processes, "complete", complete)
    return commands


@pytest.fixture
def node(tmp_path: Path, timers: list[str]) -> Node:
    node = Node(tmp_path)
    node.file.write_text("before")
    node.file.chmod(0o640)
    return node


def test_undo_restores_content_mode_and_absence_and_makes_it_effective(node: Node) -> None:
    node.apply("after")
    node.change.undo("the timer ran out")
    assert node.file.read_text() == "before"
    assert node.file.stat().st_mode & 0o777 == 0o640
    assert not node.created.exists()
    assert node.reloads.read_text() == "reload\n"
    assert not node.change.pending


def test_undo_ends_its_timer_and_not_that_of_a_change_that_came_after_it(
    node: Node, timers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = "systemctl --quiet stop temper-rollback-ssh.timer"
    node.apply("after")
    timers.clear()
    real = processes.run

    def run(command: list[str]) -> object:
        monkeypatch.setattr(commit_confirm, "run", real)
        done = real(command)
        node.apply("of another run")
        timers.clear()
        return done

    monkeypatch.setattr(commit_confirm, "run", run)
    node.change.undo("another run began")
    assert node.change.pending
    assert timers == []
    node.change.undo("the timer ran out")
    assert stop in timers


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("undo", b"", "/undo is damaged"),
        ("undo", b"\n" * 300, "/undo is damaged"),
        ("0", None, "could not be restored"),
    ],
)
def test_undo_that_cannot_restore_keeps_what_it_saved(
    node: Node, file: str, content: bytes | None, said: str
) -> None:
    node.apply("after")
    path = node.change.directory / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CommandError, match=said):
        node.change.undo("the timer ran out")
    assert node.change.pending


def test_undo_is_told_once_with_its_reason(node: Node) -> None:
    node.apply("after")
    node.change.undo("the timer ran out")
    told = node.change.past_rollback(keep=True)
    assert told and told.endswith("the change of the settings was undone because the timer ran out")
    assert node.change.past_rollback() == told
    assert node.change.past_rollback() is None


def test_confirmed_change_stays_whatever_the_timer_does_later(node: Node) -> None:
    node.apply("after")
    script = (node.change.directory / "undo").read_text()
    node.change.confirm(replace(LOGIN, client_port=40001))
    subprocess.run(["sh", "-c", script], check=True)
    assert node.file.read_text() == "after"
    assert node.change.past_rollback() is None


def test_confirmation_is_on_the_disk_before_it_counts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose power fails then boots with what was confirmed: the undo's new name is written first."""
    node.apply("after")
    done: list[tuple[str, bool]] = []
    monkeypatch.setattr(commit_confirm, "sync", lambda path: done.append((path.name, node.change.pending)))
    monkeypatch.setattr(Change, "_stop_timer", lambda _: done.append(("timer", node.change.staging.exists())))
    node.change.confirm(None)
    assert done == [("state", False), ("timer", False)]


def test_what_was_there_for_the_proof_goes_before_the_change_is_confirmed(node: Node) -> None:
    node.apply("after")
    with pytest.raises(CommandError):
        node.change.confirm(None, ["false"])
    assert node.change.pending
    node.change.confirm(None, ["true"])
    assert not node.change.pending


def test_connection_that_made_the_change_cannot_confirm_it(node: Node) -> None:
    node.apply("after")
    with pytest.raises(NotConfirmedError, match="proves nothing"):
        node.change.confirm(LOGIN)
    assert node.change.pending


def test_confirmation_after_the_undo_says_what_happened(node: Node) -> None:
    node.apply("after")
    node.change.undo("the timer ran out")
    with pytest.raises(NotConfirmedError, match="because the timer ran out"):
        node.change.confirm(None)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (CommandError("sshd does not come back"), "because it failed: sshd does not come back"),
        # As fail_json does, which file helpers call on a full disk.
        (SystemExit(1), "because it was broken off"),
    ],
)
def test_failing_change_is_undone_at_once(node: Node, error: BaseException, why: str) -> None:
    def fail() -> None:
        with node.change.armed([node.file], [], 60, LOGIN):
            node.file.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert node.file.read_text() == "before"
    assert not node.change.pending
    assert why in (node.change.past_rollback() or "")


def test_file_that_nobody_may_replace_leaves_no_change_open(node: Node) -> None:
    if subprocess.run(["chattr", "+i", str(node.file)], check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with (
            pytest.raises(PermissionError, match="lsattr"),
            node.change.armed([node.file, node.created], [], 60, LOGIN),
        ):
            replace_file(node.file, b"after", 0o644)
    finally:
        subprocess.run(["chattr", "-i", str(node.file)], check=True)
    assert not node.change.pending
    assert [path.name for path in node.file.parent.glob("drop-in*")] == ["drop-in.conf"]


def test_nothing_is_changed_where_no_timer_starts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_timeout_s: int) -> None:
        raise CommandError("systemd-run failed")

    monkeypatch.setattr(node.change, "_start_timer", refuse)
    with pytest.raises(CommandError, match="systemd-run failed"):
        node.apply("after")
    assert node.file.read_text() == "before"
    assert not node.change.pending


def test_nothing_is_changed_where_the_old_state_cannot_be_saved(node: Node) -> None:
    node.units.rmdir()
    node.units.touch()
    with pytest.raises(CommandError, match=r"so nothing is changed about the settings: .*units"):
        node.apply("after")
    assert node.file.read_text() == "before"
    assert not node.change.pending


@pytest.mark.parametrize("target", ["real.conf", "missing.conf"])
def test_undo_restores_a_relative_link(node: Node, target: str) -> None:
    """Its copy leads nowhere, or to another file."""
    (node.file.parent / "real.conf").write_text("real")
    node.file.unlink()
    node.file.symlink_to(target)

    with node.change.armed([node.file], [], 60, LOGIN):
        node.file.unlink()
        node.file.write_text("after")
    node.change.undo("the timer ran out")
    assert node.file.readlink() == Path(target)


def test_file_that_cannot_be_looked_at_is_not_taken_for_missing(node: Node) -> None:
    """As root's in a home on NFS: the undo would remove it."""
    loop = node.file.parent / "loop"
    loop.symlink_to(loop)
    with (
        pytest.raises(CommandError, match=r"so nothing is changed about the settings: .*loop/keys"),
        node.change.armed([loop / "keys"], [], 60, LOGIN),
    ):
        pass


def test_second_run_leaves_the_change_of_a_first_one_alone(node: Node) -> None:
    node.apply("after")
    with pytest.raises(CommandError, match="Another run"):
        node.apply("other")
    assert node.file.read_text() == "after"
    assert node.change.pending


def by_timer(timers: list[str]) -> None:
    """Run what the last timer would."""
    start = next(command for command in reversed(timers) if command.startswith("systemd-run"))
    subprocess.run(shlex.split(start)[-3:], check=True)


def by_boot_unit(node: Node) -> None:
    unit = (node.units / commit_confirm.BOOT_UNIT).read_text().replace("\\\n", "")
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    subprocess.run(["sh", "-c", command.split("'")[1].replace("$$", "$")], check=True)


def test_timer_runs_the_undo_after_the_given_time(node: Node, timers: list[str]) -> None:
    node.apply("after")
    start = next(command for command in timers if command.startswith("systemd-run"))
    assert "--on-active=60" in start
    assert "--timer-property=AccuracySec=1s" in start
    by_timer(timers)
    assert node.file.read_text() == "before"
    assert "no new connection confirmed it within 60 s" in (node.change.past_rollback() or "")


def test_timer_tries_again_until_it_can_restore(node: Node, timers: list[str]) -> None:
    """A full disk, say: once there is room, the way in comes back."""
    node.apply("after")
    assert any("--property=Restart=on-failure" in command for command in timers)
    saved = node.change.directory / "0"
    saved.rename(saved.with_name("away"))
    with pytest.raises(subprocess.CalledProcessError):
        by_timer(timers)
    saved.with_name("away").rename(saved)
    by_timer(timers)
    assert node.file.read_text() == "before"
    by_timer(timers)  # and ends well where nothing is left to do


@pytest.mark.parametrize("trigger", ["timer", "boot", "module"])
def test_undo_needs_no_file_system_that_programs_run_from(
    node: Node, timers: list[str], trigger: str
) -> None:
    """/var may be mounted with noexec, and SELinux lets systemd execute nothing there."""
    node.apply("after")
    (node.change.directory / "undo").chmod(0o600)
    if trigger == "timer":
        by_timer(timers)
    elif trigger == "boot":
        assert (node.units / "sysinit.target.wants" / commit_confirm.BOOT_UNIT).is_symlink()
        by_boot_unit(node)
    else:
        node.change.undo("somebody asked for it")
    assert node.file.read_text() == "before"


@dataclass
class Module:
    """What `settle_the_past` needs of an AnsibleModule."""

    check_mode: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_change_of_another_name_is_undone_first_too(node: Node, timers: list[str]) -> None:
    """A firewall that fits a port which sshd is about to leave again would lock everybody out."""
    node.apply("after")
    firewall = Change("firewall", "the firewall", state=node.change.state, units=node.units)
    timers.clear()
    firewall.settle_the_past(Module(), 120)
    assert node.file.read_text() == "before"
    assert timers[0] == "systemctl --quiet stop temper-rollback-ssh.timer"
    module = Module()
    node.change.settle_the_past(module, 120)
    assert len(module.warnings) == 1
    assert module.warnings[0].endswith("was undone because another run began before it was confirmed")


def test_save_that_was_cut_off_is_not_undone(node: Node) -> None:
    node.change.staging.mkdir(parents=True)
    (node.change.staging / "undo").write_text(f"touch {node.created}")
    module = Module()
    node.change.settle_the_past(module, 120)
    assert not node.created.exists()


def test_check_mode_tells_of_a_pending_change_and_leaves_it(node: Node) -> None:
    node.apply("after")
    module = Module(check_mode=True)
    node.change.settle_the_past(module, 120)
    assert node.file.read_text() == "after"
    assert "still waits for its confirmation" in module.warnings[0]


@pytest.mark.parametrize("seconds", [-1, 0, 4, 86400])
def test_time_that_protects_nobody_is_refused(node: Node, seconds: int) -> None:
    with pytest.raises(RefusedError, match=f"expected 5 to 3600 seconds, found {seconds}"):
        node.change.settle_the_past(Module(), seconds)


def test_save_that_was_cut_off_is_neither_pending_nor_in_the_way(node: Node) -> None:
    node.change.staging.mkdir(parents=True)
    (node.change.staging / "undo").write_text("exit 1")
    assert not node.change.pending
    node.apply("after")
    assert node.change.pending


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., None]:
    def add(pid: int, name: str, parent: int, uid: int = 0, environment: bytes = b"") -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "environ").write_bytes(environment)

    return add


CONNECTION = b"HOME=/\0SSH_CONNECTION=fe80::1%eth0 40000 fe80::2%eth0 2222\0"


def test_login_is_found_behind_sudo(tmp_path: Path, process: Callable[..., None]) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    process(9, "sshd", 1)
    process(10, "sh", 9, uid, CONNECTION)
    process(11, "sudo", 10)
    process(12, "python3", 11)
    assert ssh_login(12, tmp_path) == Login("nobody", "fe80::1", 40000, "fe80::2", 2222)


def test_login_behind_su_that_keeps_the_environment_is_the_account_of_sshd(
    tmp_path: Path, process: Callable[..., None]
) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    process(9, "sshd-session", 1, uid, CONNECTION)
    process(10, "sh", 9, uid, CONNECTION)
    process(11, "python3", 10, 0, CONNECTION)
    login = ssh_login(11, tmp_path)
    assert login and login.account == "nobody"


def test_login_by_another_server_than_sshd_is_told_apart(
    tmp_path: Path, process: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    process(9, "tailscaled", 1)
    process(10, "sh", 9, 0, b"SSH_CONNECTION=192.0.2.1 40000 192.0.2.2 22\0")
    login = ssh_login(10, tmp_path)
    assert login == Login("root", "192.0.2.1", 40000, "192.0.2.2", 22, by_sshd=False)
    monkeypatch.setattr(SshdSettings, "outlook", Outlook(SshdPlan({}, {}), [], []))
    (said,) = SshdSettings(Parameters("absent"), 60, login).warnings()
    assert "proves nothing about sshd" in said


def test_ipv4_address_in_ipv6_form_is_ipv4(tmp_path: Path, process: Callable[..., None]) -> None:
    process(9, "sshd", 1)
    process(10, "sh", 9, 0, b"SSH_CONNECTION=::ffff:192.0.2.1 40000 ::ffff:192.0.2.2 22\0")
    login = ssh_login(10, tmp_path)
    assert login and login.client == "192.0.2.1"


def test_process_that_no_sshd_started_has_no_login(tmp_path: Path, process: Callable[..., None]) -> None:
    process(10, "bash", 1)
    process(11, "python3", 10)
    assert ssh_login(11, tmp_path) is None
