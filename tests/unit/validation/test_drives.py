"""The health of NVMe drives: what nvme-cli and smartctl print is read, and what of it is bad is found."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.validation.samples import node
from validation.checks import drives as check
from validation.checks.registry import CHECKS
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.probes import drives
from validation.probes.drives import Drive, Drives
from validation.processes.child import Request

Program = Callable[[str, str], None]

# The fields of nvme-cli's `smart-log --output-format=json`, of a healthy drive.
LOG: dict[str, Any] = {
    "critical_warning": 0,
    "temperature": 311,
    "avail_spare": 100,
    "spare_thresh": 10,
    "percent_used": 3,
    "media_errors": 0,
}
HEALTHY = Drive("nvme0", "SAMSUNG MZQL23T8", 0, 3, 100, 0)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell script into the place of all programs that this machine has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, script: str) -> None:
        executable(folder / name, script)

    return add


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One drive of this machine, and one that is reached over a network."""
    for name, transport in (("nvme0", "pcie"), ("nvme1", "rdma")):
        folder = tmp_path / "sys/class/nvme" / name
        folder.mkdir(parents=True)
        (folder / "transport").write_text(f"{transport}\n")
        (folder / "model").write_text("SAMSUNG MZQL23T8                        \n")
    return tmp_path


def printing(log: object, status: int = 0) -> str:
    return f"echo '{json.dumps(log)}'; exit {status}"


@pytest.mark.component
def test_nvme_cli_is_asked_about_the_drives_of_this_machine(root: Path, program: Program) -> None:
    program("nvme", f'[ "$*" = "smart-log /dev/nvme0 --output-format=json" ] || exit 9; {printing(LOG)}')
    assert drives.read(root) == Drives((HEALTHY,))


@pytest.mark.component
def test_newer_forms_of_its_numbers_are_read(root: Path, program: Program) -> None:
    log = {
        **LOG,
        "critical_warning": {"value": 4, "available_spare": 0},
        "media_errors": "18446744073709551616",
    }
    program("nvme", printing(log))
    (drive,) = drives.read(root).read
    assert (drive.critical_warning, drive.media_errors) == (4, 1 << 64)


@pytest.mark.component
def test_smartctl_serves_where_there_is_no_nvme_cli_and_its_status_does_not_count(
    root: Path, program: Program
) -> None:
    log = {"critical_warning": 1, "available_spare": 5, "percentage_used": 101, "media_errors": 2}
    program("smartctl", printing({"nvme_smart_health_information_log": log}, status=8))
    assert drives.read(root).read == (Drive("nvme0", HEALTHY.model, 1, 101, 5, 2),)


@pytest.mark.component
@pytest.mark.parametrize(
    ("name", "script", "reason"),
    [
        ("nvme", "echo 'Permission denied' >&2; exit 1", "nvme: Permission denied"),
        ("nvme", printing({"percent_used": 1}), "critical_warning"),
        ("nvme", printing([1]), "no log"),
        ("smartctl", printing({"smartctl": {}}), "does not tell the health of /dev/nvme0"),
        ("other", "exit 0", "neither nvme-cli nor smartmontools is installed"),
    ],
)
def test_a_drive_that_does_not_say_is_named_with_the_reason(
    root: Path, program: Program, name: str, script: str, reason: str
) -> None:
    program(name, script)
    found = drives.read(root)
    assert (found.read, list(found.unread)) == ((), ["nvme0"])
    assert reason in found.unread["nvme0"]


@each(
    (0, 99, [], None),
    (0x01, 3, ["drive-warning"], State.DEGRADED),
    (0x02, 3, ["drive-warning"], State.DEGRADED),
    (0x04, 3, ["drive-warning"], State.FAIL),
    (0x09, 3, ["drive-warning"], State.FAIL),
    (0x40, 3, ["drive-warning"], State.DEGRADED),
    (0, 100, ["drive-worn"], State.DEGRADED),
    (0x10, 120, ["drive-warning", "drive-worn"], State.FAIL),
)
def test_warnings_and_wear_are_findings(
    warning: int, used: int, codes: list[str], state: State | None
) -> None:
    found = list(check.examine(Drives((Drive("nvme0", "X", warning, used, 100, 0),))))
    assert [one.code for one in found] == codes
    assert not codes or found[0].state is state


def test_all_that_a_drive_warns_of_is_said() -> None:
    (found,) = check.examine(Drives((Drive("nvme3", "X", 0x05, 0, 1, 0),)))
    assert "nvme3" in found.text
    assert "spare capacity" in found.text
    assert "reliability" in found.text


@pytest.mark.component
@pytest.mark.parametrize("tool", ["nvme", "other"])
def test_a_drive_that_the_kernel_has_given_up_fails_the_node_whatever_is_installed(
    root: Path, program: Program, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """Else a node with one healthy drive passes, and nobody learns of the dead one."""
    program(tool, printing(LOG))
    folder = root / "sys/class/nvme/nvme2"
    folder.mkdir()
    for name, text in (("transport", "pcie"), ("model", "X"), ("state", "dead")):
        (folder / name).write_text(f"{text}\n")
    found = drives.read(root)
    assert found.dead == {"nvme2": "X"}
    monkeypatch.setattr(drives, "read", lambda: found)
    (finding,) = check.measure(Request("x", "y", "none"), lambda _: None).findings
    assert (finding.code, finding.state) == ("drive-dead", State.FAIL)
    assert "nvme2 (X)" in finding.text


@each((0, None), (0x04, ["drive-warning"]))
def test_a_drive_that_does_not_say_passes_no_node_and_hides_no_warning(
    warning: int, codes: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Drives((Drive("nvme0", "X", warning, 3, 100, 0),), {"nvme1": "nvme: no answer"})
    monkeypatch.setattr(drives, "read", lambda: found)
    if codes is None:
        with pytest.raises(NotRunError, match="nvme1: nvme: no answer"):
            check.measure(Request("x", "y", "none"), lambda _: None)
    else:
        assert [
            one.code for one in check.measure(Request("x", "y", "none"), lambda _: None).findings
        ] == codes


def test_a_node_without_such_drives_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drives, "read", drives.Drives)
    with pytest.raises(NotRunError, match="no NVMe drive"):
        check.measure(Request("x", "y", "none"), lambda _: None)


@pytest.mark.component
@pytest.mark.skipif(os.path.exists("/sys/class/nvme"), reason="this machine has NVMe")  # noqa: PTH110
def test_the_check_itself_asks_in_a_process_of_its_own() -> None:
    found = CHECKS["drive_health"].run(node())
    assert (found.state, found.reason) == (State.NOT_RUN, "this node has no NVMe drive")
