"""What Temper has beside its settings goes at the end, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

import pytest
from ansible.module_utils.temper import lease
from ansible.module_utils.temper.access import accounts, administrators
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.settings.leavings import Leavings

if TYPE_CHECKING:
    from pathlib import Path

OURS = (
    "usr/local/lib/temper-validation.pyz",
    "opt/temper/venv/pyvenv.cfg",
    "opt/temper/venv/bin/python3",
    "var/lib/temper/validation-rounds.json",
    "var/lib/temper/maintenance",
    "var/lib/temper/unproven-packages",
    "var/lib/temper/pull/result.json",
    "var/lib/temper/held-packages",
    "var/lib/temper/lease.json.lock",
    "var/cache/temper/former-packages/a.deb",
    "etc/systemd/system/temper-rollback.service",
    "etc/systemd/system/sysinit.target.wants/temper-rollback.service",
)


@pytest.fixture
def left(tmp_path: Path) -> Leavings:
    for name in (*OURS, "etc/hosts", "usr/local/lib/others.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("etc/temper/container", "usr/local/lib/temper", "var/lib/temper/rollback"):
        (tmp_path / name).mkdir(parents=True)
    return Leavings(tmp_path)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_what_is_left_goes_with_its_folders_and_the_second_time_there_is_nothing(left: Leavings) -> None:
    assert left.stays() == []
    left.remove()
    assert files(left.root) == ["etc/hosts", "usr/local/lib/others.py"]
    assert not [
        name for name in ("etc/temper", "opt/temper", "var/lib/temper") if (left.root / name).exists()
    ]
    assert (left.going(), left.empty(), left.stays()) == ([], [], [])


def test_what_a_role_needs_that_stays_is_kept_and_said(left: Leavings) -> None:
    for role in ("monitoring", "pull", "nvidia_stack"):
        left.settings.mkdir(exist_ok=True)
        (left.settings / f"{role}.json").write_text("{}")
    left.remove()
    kept = {"usr/local/lib/temper-validation.pyz", "var/lib/temper/pull/result.json"}
    kept |= {f"var/lib/temper/{name}" for name in ("maintenance", "unproven-packages")}
    kept |= {f"var/lib/temper/settings/{role}.json" for role in ("monitoring", "pull", "nvidia_stack")}
    assert set(files(left.root)) == {*kept, "etc/hosts", "usr/local/lib/others.py"}
    (said,) = left.stays()
    assert "monitoring, nvidia_stack, pull" in said


def test_a_run_of_one_role_removes_nothing_elses(left: Leavings) -> None:
    before = files(left.root)
    run = Leavings(left.root, only=["pull", "harden"])
    run.remove()
    assert set(before) - set(files(left.root)) == {"var/lib/temper/pull/result.json"}
    assert (run.going(), run.empty(), run.stays()) == ([], [], [])


def test_the_leases_number_outlives_roles_that_stay_and_holders_that_may_come_back(left: Leavings) -> None:
    path = left.state / "lease.json"
    held = lease.acquire("controller-7", 0.01, path=path)
    time.sleep(0.05)
    left.check()
    left.remove()
    assert path.exists()
    assert any("lease.json" in one for one in left.stays())
    lease.release("controller-7", held.fencing, path=path)
    (left.state / "held-packages").write_text("libcuda1\n")
    left.remove()
    assert path.exists()
    (left.state / "held-packages").unlink()
    left.remove()
    assert not left.state.exists()


def test_what_nobody_knows_and_what_says_how_it_was_stays(left: Leavings) -> None:
    for name in ("autotune-journal.json", "notes.txt"):
        (left.state / name).write_text("x")
    (left.state / "held-packages").write_text("libcuda1\n")
    left.remove()
    assert {"autotune-journal.json", "notes.txt", "held-packages"} == {
        path.name for path in left.state.iterdir()
    }
    said = " ".join(left.stays())
    assert all(name in said for name in ("autotune-journal.json", "notes.txt", "held-packages"))


def test_what_a_rollout_has_left_is_said(left: Leavings) -> None:
    for name in ("etc/default/grub.d/zz-temper-kernel.cfg", ".temper-snapshots/temper-7"):
        (left.root / name).parent.mkdir(parents=True)
        (left.root / name).touch()
    left.remove()
    kernel, snapshot = left.stays()
    assert "zz-temper-kernel.cfg" in kernel
    assert "update-grub" in kernel
    assert "temper-7" in snapshot
    assert Leavings(left.root, ["pull"]).stays() == []


def test_a_python_of_the_operator_stays(left: Leavings) -> None:
    (left.root / "opt/temper/venv/pyvenv.cfg").unlink()
    (left.root / "opt/temper/venv/bin/pip").touch()
    left.remove()
    assert "opt/temper/venv/bin/python3" in files(left.root)
    assert left.stays() == [f"stays: {left.root / 'opt/temper/venv'}, which no role knows."]


def test_nothing_goes_while_a_change_or_somebodys_work_is_under_way(left: Leavings) -> None:
    left.check()
    (left.state / "rollback/ssh").mkdir()
    with pytest.raises(RefusedError, match="ssh"):
        left.check()
    (left.state / "rollback/ssh").rename(left.state / "rollback/.ssh")
    left.check()
    lease.acquire("controller-7", 3600, path=left.state / "lease.json")
    with pytest.raises(RefusedError, match="controller-7"):
        left.check()


def account_of(name: str) -> administrators.Account:
    return administrators.Account(name, f"/home/{name}", "/bin/bash", 1000, 1000, (None, None), frozenset())


def test_a_run_does_not_begin_that_would_be_refused_at_its_end(
    left: Leavings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accounts come last, and the lease is looked at again."""
    record = {"alice": {"created": True, "present": True, "sudo": True}}
    (left.state / "admin_accounts.json").write_text(json.dumps({"version": 2, "accounts": record}))
    monkeypatch.setattr(accounts, "RECORD", left.state / "admin_accounts.json")
    monkeypatch.setattr(accounts, "read_account", lambda name, **_: account_of(name))
    logins = {name: Login(name, "192.0.2.9", 1, "192.0.2.7", 22) for name in ("alice", "ops")}
    for account, only, keeps, refused in (
        ("ops", [], [], False),
        ("alice", [], [], True),
        ("alice", ["harden"], [], True),
        ("alice", ["admin_accounts"], ["firewall"], True),
        ("alice", ["pull"], [], False),
        ("alice", [], ["admin_accounts"], False),
        ("alice", [], ["harden"], False),
    ):
        monkeypatch.setattr(accounts, "ssh_login", lambda account=account: logins[account])
        run = Leavings(left.root, only)
        with pytest.raises(RefusedError, match="alice") if refused else contextlib.nullcontext():
            run.check_before(keeps)
    monkeypatch.setattr(accounts, "ssh_login", lambda: None)
    left.check_before()
    lease.acquire("controller-7", 3600, path=left.state / "lease.json")
    with pytest.raises(RefusedError, match="controller-7"):
        left.check_before()


def test_a_driver_that_is_loaded_without_its_files_asks_for_a_reboot(left: Leavings) -> None:
    (left.root / "sys/module/nvidia").mkdir(parents=True)
    (left.root / "sys/module/nvidia/version").write_text("580.95.05\n")
    assert any("reboot required" in said and "580.95.05" in said for said in left.stays())
