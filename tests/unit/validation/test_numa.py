"""NUMA: near and far nodes from sysfs, and binding for real."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import node
from tests.unit.validation.scripted import ScriptedBackend
from validation.checks import copy
from validation.checks.registry import CHECKS
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.probes import numa
from validation.probes.topology import Topology
from validation.processes.child import Request
from validation.processes.pool import ROOT

GPU = "0000:1b:00.0"


def machine(root: Path, *distances: str, memory: str = "0-7", cpus: str = "0", gpu: str = "0") -> Path:
    """A machine with so many NUMA nodes and a GPU at one of them."""
    nodes = root / "sys/devices/system/node"
    for number, row in enumerate(distances):
        place = nodes / f"node{number}"
        place.mkdir(parents=True)
        (place / "distance").write_text(row + "\n")
        (place / "cpulist").write_text(cpus + "\n")
    (nodes / "has_memory").write_text(memory + "\n")
    device = root / "sys/bus/pci/devices" / GPU
    device.mkdir(parents=True)
    (device / "numa_node").write_text(gpu + "\n")
    return root


def test_the_farthest_node_is_that_of_the_largest_distance(tmp_path: Path) -> None:
    rows = ("10 12 32 30", "12 10 30 32", "32 30 10 12", "30 32 12 10")
    assert numa.farthest(GPU, machine(tmp_path, *rows)) == 2


@each(
    (("10",), {}),
    (("10 20", "20 10"), {"gpu": "-1"}),
    (("10 20", "20 10"), {"gpu": "\u00b2"}),
    (("10 20", "20 10"), {"gpu": "9" * 5000}),
    (("10 far", "far 10"), {}),
    (("10 20", "20 10"), {"memory": "0"}),
    (("10 20", "20 10"), {"cpus": ""}),
)
def test_without_another_whole_node_there_is_no_farthest(
    rows: tuple[str, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    assert numa.farthest(GPU, machine(tmp_path, *rows, **changes)) is None


def bound(number: int, root: Path) -> str:
    """What a process says that binds itself."""
    program = (
        "from pathlib import Path; from validation.probes import numa; "
        f"print(numa.bind({number}, Path({str(root)!r}))); "
        "print(open('/proc/self/numa_maps').readline().split()[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout or done.stderr


@pytest.mark.component
def test_a_process_binds_its_memory_for_real(tmp_path: Path) -> None:
    mine = str(min(os.sched_getaffinity(0)))
    said = bound(0, machine(tmp_path, "10", cpus=mine))
    assert said.startswith("None\n"), said
    if os.path.exists("/proc/self/numa_maps"):  # noqa: PTH110 - of a kernel with NUMA
        assert "bind:0" in said


@pytest.mark.component
def test_a_node_that_is_not_there_is_said(tmp_path: Path) -> None:
    mine = str(min(os.sched_getaffinity(0)))
    said = bound(700, machine(tmp_path, *(["10"] * 701), cpus=mine))
    assert said.startswith("memory cannot be bound to NUMA node 700: ")


def test_a_process_that_may_not_run_there_is_said(tmp_path: Path) -> None:
    assert numa.bind(0, machine(tmp_path, "10", cpus="4000")) == "this process may not run on NUMA node 0"


def test_a_machine_with_one_numa_node_does_not_run_the_remote_test() -> None:
    found = CHECKS["gpu_transfer_remote"].run(node(topology=lambda _: Topology()))
    assert found.state is State.NOT_RUN
    assert found.reason.startswith("GPU 0 has no remote NUMA node")


def test_a_process_that_cannot_be_bound_does_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "bind", lambda _: "it may not")
    asked = Request("GPU 0", "", "cuda", parameters={"numa_node": 1})
    with pytest.raises(NotRunError, match="it may not"):
        copy.measure(asked, lambda _: None)


def test_a_remote_transfer_has_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "bind", lambda _: None)
    monkeypatch.setattr(copy, "make", lambda *_: ScriptedBackend())
    timing = {"warm_up_s": 1.0, "measure_s": 5.0}
    parameters = {"numa_node": 1, "how": "remote", "size_bytes": 1 << 20, "timing": timing}
    asked = Request("GPU 0", "", "cuda", parameters=parameters | {"directions": ["h2d", "d2h"]})
    measured = copy.measure(asked, lambda _: None)
    assert [one.name for one in measured.measurements] == ["h2d_remote_gb_s", "d2h_remote_gb_s"]
