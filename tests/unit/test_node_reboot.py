"""A node is rebooted only by the run whose it is, and by nobody in the middle of a change."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import node_reboot
import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.temper import lease, process
from ansible.module_utils.temper.driver import holders

from plugins.action import reboot_node
from tests.unit.each import each

Run = Callable[..., dict[str, Any]]

ROOT = Path(__file__).resolve().parents[2]
RUN = "fleet run 1"


@pytest.fixture
def reboots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that reboot; none is run."""
    found: list[list[str]] = []
    monkeypatch.setattr(lease, "PATH", tmp_path / "lease.json")
    monkeypatch.setattr(process, "run", found.append)
    monkeypatch.setattr(holders, "PROC", tmp_path / "proc")
    return found


@pytest.fixture
def reboot(run_module: Run) -> Run:
    def run(**given: Any) -> dict[str, Any]:
        return run_module(node_reboot.main, message="a new driver", **given)

    return run


def test_whose_the_node_is_reboots_it(reboots: list[list[str]], reboot: Run) -> None:
    taken = lease.acquire(RUN, 60, attempt=1, path=lease.PATH)
    assert reboot(lease={"owner": RUN, "fencing": taken.fencing})["changed"]
    assert reboots == [["shutdown", "-r", "now", "a new driver"]]


def test_an_attempt_that_was_given_up_does_not_reboot_under_a_later_one(
    reboots: list[list[str]], reboot: Run
) -> None:
    first = lease.acquire(RUN, 60, attempt=1, path=lease.PATH)
    lease.acquire(RUN, 60, attempt=2, path=lease.PATH)
    said = reboot(lease={"owner": RUN, "fencing": first.fencing})
    assert said["refused"]
    assert "out of date" in said["msg"]
    assert reboots == []


def test_nobody_reboots_in_the_middle_of_a_change(
    reboots: list[list[str]], reboot: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SETTINGS_TIMEOUT_S", 0.05)
    with lease.working():
        assert "locked" in reboot()["msg"]
    assert reboots == []
    assert reboot()["changed"]  # one process on its own takes no lease


def test_who_has_begun_to_use_a_gpu_since_is_not_rebooted_under(
    reboots: list[list[str]], reboot: Run
) -> None:
    descriptors = holders.PROC / "7/fd"
    descriptors.mkdir(parents=True)
    (descriptors / "3").symlink_to("/dev/nvidia-uvm")
    (holders.PROC / "7/comm").write_text("python3\n")
    (holders.PROC / "7/cgroup").write_text("0::/user.slice/session-1.scope\n")
    said = reboot()
    assert said["refused"]
    assert "python3 (process 7) holds /dev/nvidia-uvm" in said["msg"]
    assert reboots == []
    assert reboot(busy_ok=True)["changed"]
    assert len(reboots) == 1


def test_check_mode_reboots_nothing(reboots: list[list[str]], reboot: Run) -> None:
    assert reboot(check_mode=True)["changed"]
    assert reboots == []


def begun(execute: Run, **facts: Any) -> dict[str, Any]:
    """What the action makes of the module's answer."""
    action = object.__new__(reboot_node.ActionModule)
    action._task = SimpleNamespace(args={"msg": "a new driver", "reboot_timeout": 600})
    action._execute_module = execute
    result: dict[str, Any] = action.perform_reboot({"ansible_facts": facts}, {})
    return result


def test_the_action_passes_on_the_lease_that_the_run_took() -> None:
    asked: list[Any] = []

    def execute(*words: Any, **_: Any) -> dict[str, Any]:
        asked.append(words)
        return {"changed": True}

    held = {"owner": RUN, "fencing": 3}
    assert not begun(execute, temper_lease=held)["failed"]
    assert not begun(execute)["failed"]
    assert [arguments for _, arguments in asked] == [
        {"message": "a new driver", "busy_ok": False, "lease": held},
        {"message": "a new driver", "busy_ok": False},
    ]


def test_a_refusal_is_shown_as_one() -> None:
    result = begun(lambda *_, **__: {"failed": True, "refused": True, "msg": "out of date"})
    assert (result["failed"], result["refused"], result["msg"]) == (True, True, "out of date")


@each((1, True), (143, False), (0, False))
def test_a_module_that_the_reboot_has_ended_has_begun_it(rc: int, failed: bool) -> None:
    result = begun(lambda *_, **__: {"failed": True, "msg": "no JSON", "module_stdout": "", "rc": rc})
    assert result["failed"] is failed


def test_a_connection_that_ends_with_the_node_is_no_failure() -> None:
    def execute(*_: Any, **__: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure("closed")

    assert not begun(execute)["failed"]
