"""The simulated daemons: they run as processes, and fail where the real ones would."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.lab.gpu_simulator import contents
from tests.unit.gpu_simulator.conftest import SimulatedNode
from tests.waiting import wait_until

MakeNode = Callable[..., SimulatedNode]

pytestmark = pytest.mark.component

PID_FILES = {
    "nvidia_persistenced.py": "run/nvidia-persistenced/nvidia-persistenced.pid",
    "nv_fabricmanager.py": "run/nvidia-fabricmanager/nv-fabricmanager.pid",
}


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Daemons:
    """Starts the daemons of some version on a node, and ends what they leave behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[int] = []

    def start(self, node: SimulatedNode, name: str, version: str, *options: str) -> CompletedProcess[str]:
        """Run a daemon's program until it has gone to the background."""
        program = self.directory / name
        program.write_text(contents.text(name, VERSION=version))
        result = node.run(program, *options)
        if result.returncode == 0:
            self.running.append(int(node.read(PID_FILES[name])))
        return result

    def stop_all(self) -> None:
        """End the processes and wait until they are dead; this process need not be the one to reap them."""
        while self.running:
            pid = self.running.pop()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not is_alive(pid), f"process {pid} ends")  # type: ignore[misc]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    """Start daemons; they end with the test."""
    started = Daemons(tmp_path)
    yield started
    started.stop_all()


def test_persistence_mode_lasts_as_long_as_its_daemon(booted: MakeNode, daemons: Daemons) -> None:
    node = booted("l4-1", "580.126.09")
    assert daemons.start(node, "nvidia_persistenced.py", "580.126.09", "--user", "nvpd").returncode == 0
    assert node.query("persistence_mode") == [["Enabled"]]
    node.smi("-pl", "60")
    assert node.query("power.limit") == [["60.00"]]
    daemons.stop_all()
    assert node.query("persistence_mode,power.limit") == [["Disabled", "72.00"]]


def test_a_new_daemon_does_not_bring_old_settings_back(booted: MakeNode, daemons: Daemons) -> None:
    node = booted("l4-1", "580.126.09")
    daemons.start(node, "nvidia_persistenced.py", "580.126.09")
    node.smi("-lgc", "1500")
    daemons.stop_all()
    daemons.start(node, "nvidia_persistenced.py", "580.126.09")
    assert node.query("persistence_mode,clocks.sm") == [["Enabled", "210"]]


def test_one_gpu_can_leave_the_daemon(booted: MakeNode, daemons: Daemons) -> None:
    node = booted("hgx-h100-8", "580.126.09")
    daemons.start(node, "nvidia_persistenced.py", "580.126.09")
    assert node.smi("-pm", "0", "-i", "0").stdout.startswith(
        "Disabled persistence mode for GPU 00000000:1B:00.0."
    )
    assert [row[0] for row in node.query("persistence_mode")] == ["Disabled", *["Enabled"] * 7]
    assert node.smi("-pm", "1", "-i", "0").stdout.startswith(
        "Enabled persistence mode for GPU 00000000:1B:00.0."
    )
    assert node.query("persistence_mode") == [["Enabled"]] * 8


def test_a_daemon_may_be_told_to_leave_persistence_mode_off(booted: MakeNode, daemons: Daemons) -> None:
    node = booted("l4-1", "580.126.09")
    daemons.start(node, "nvidia_persistenced.py", "580.126.09", "--no-persistence-mode")
    assert node.query("persistence_mode") == [["Disabled"]]


def test_persistenced_fails_without_a_driver(bare: MakeNode, daemons: Daemons) -> None:
    result = daemons.start(bare(), "nvidia_persistenced.py", "580.126.09")
    assert result.returncode == 1
    assert "Failed to query NVIDIA devices." in result.stderr


@pytest.mark.parametrize("name", PID_FILES)
def test_a_daemon_of_another_version_than_the_module_fails(
    booted: MakeNode, daemons: Daemons, name: str
) -> None:
    result = daemons.start(booted("hgx-h100-8", "580.126.09"), name, "580.178.04")
    assert result.returncode == 1
    assert "version" in result.stderr


def test_the_fabric_is_complete_once_its_manager_has_started(booted: MakeNode, daemons: Daemons) -> None:
    node = booted("hgx-h100-8", "580.126.09")
    assert node.query("fabric.state,fabric.status") == [["In Progress", "[N/A]"]] * 8
    assert daemons.start(node, "nv_fabricmanager.py", "580.126.09").returncode == 0
    assert node.query("fabric.state,fabric.status") == [["Completed", "Success"]] * 8


def test_the_fabric_manager_names_both_versions(booted: MakeNode, daemons: Daemons) -> None:
    result = daemons.start(booted("hgx-h100-8", "580.126.09"), "nv_fabricmanager.py", "580.178.04")
    assert "version 580.178.04 don't match with driver version 580.126.09." in result.stderr


def test_the_fabric_manager_fails_without_nvswitches(booted: MakeNode, daemons: Daemons) -> None:
    result = daemons.start(booted("l4-1", "580.126.09"), "nv_fabricmanager.py", "580.126.09")
    assert (result.returncode, "NV_WARN_NOTHING_TO_DO" in result.stderr) == (1, True)
