"""A change undoes itself, once, unless a new connection confirms it."""

import pwd
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils import commit_confirm
from ansible.module_utils.commit_confirm import Change, CommandError, NotConfirmedError
from ansible.module_utils.ssh_login import Login, ssh_login

LOGIN = Login("ops", "192.0.2.1", 40000, 22)


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
    real = commit_confirm._complete

    def complete(command: list[str]) -> subprocess.CompletedProcess[str]:
        if command[0] not in ("systemd-run", "systemctl"):
            return real(command)
        commands.append(" ".join(command))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(commit_confirm, "_complete", complete)
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


def test_failing_change_is_undone_at_once(node: Node) -> None:
    def fail() -> None:
        with node.change.armed([node.file], [], 60, LOGIN):
            node.file.write_text("half")
            raise CommandError("sshd does not come back")

    with pytest.raises(CommandError):
        fail()
    assert node.file.read_text() == "before"
    assert "because it failed: sshd does not come back" in (node.change.past_rollback() or "")


def test_second_run_leaves_the_change_of_a_first_one_alone(node: Node) -> None:
    node.apply("after")
    with pytest.raises(CommandError, match="Another run"):
        node.apply("other")
    assert node.file.read_text() == "after"
    assert node.change.pending


def test_timer_runs_the_undo_after_the_given_time(node: Node, timers: list[str]) -> None:
    node.apply("after")
    start = next(command for command in timers if command.startswith("systemd-run"))
    assert "--on-active=60" in start
    assert "--timer-property=AccuracySec=1s" in start
    assert str(node.change.directory / "undo") in start


def test_boot_unit_undoes_what_is_pending(node: Node) -> None:
    node.apply("after")
    unit = (node.units / commit_confirm.BOOT_UNIT).read_text().replace("\\\n", "")
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    script = command.split("'")[1].replace("$$", "$")
    subprocess.run(["sh", "-c", script], check=True)
    assert node.file.read_text() == "before"
    assert (node.units / "sysinit.target.wants" / commit_confirm.BOOT_UNIT).is_symlink()


def test_save_that_was_cut_off_is_neither_pending_nor_in_the_way(node: Node) -> None:
    node.change.staging.mkdir(parents=True)
    (node.change.staging / "undo").write_text("exit 1")
    assert not node.change.pending
    node.apply("after")
    assert node.change.pending


def test_undo_that_cannot_restore_keeps_what_it_saved(node: Node) -> None:
    node.apply("after")
    (node.change.directory / "0").unlink()
    with pytest.raises(CommandError, match="could not be restored"):
        node.change.undo("the timer ran out")
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
    assert ssh_login(12, tmp_path) == Login("nobody", "fe80::1", 40000, 2222)


def test_login_behind_su_that_keeps_the_environment_is_the_account_of_sshd(
    tmp_path: Path, process: Callable[..., None]
) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    process(9, "sshd-session", 1, uid, CONNECTION)
    process(10, "sh", 9, uid, CONNECTION)
    process(11, "python3", 10, 0, CONNECTION)
    login = ssh_login(11, tmp_path)
    assert login and login.account == "nobody"


def test_ipv4_address_in_ipv6_form_is_ipv4(tmp_path: Path, process: Callable[..., None]) -> None:
    process(9, "sshd", 1)
    process(10, "sh", 9, 0, b"SSH_CONNECTION=::ffff:192.0.2.1 40000 ::ffff:192.0.2.2 22\0")
    login = ssh_login(10, tmp_path)
    assert login and login.client == "192.0.2.1"


def test_process_that_no_sshd_started_has_no_login(tmp_path: Path, process: Callable[..., None]) -> None:
    process(10, "bash", 1)
    process(11, "python3", 10)
    assert ssh_login(11, tmp_path) is None
