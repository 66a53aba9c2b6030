"""Looking at the node in a process of its own: facts come home whole, and a look that hangs is a verdict."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.executables import executable
from tests.unit.validation.samples import expectation, gpu_xml, is_running, node, smi_xml
from tests.waiting import wait_until
from validation.checks import measured
from validation.checks.aftermath import HealthAfter
from validation.checks.container import GpuContainer
from validation.checks.health import Health
from validation.checks.matmul import GpuMatmul
from validation.checks.platform import Platform
from validation.checks.registry import CHECKS
from validation.model.contract import ContractError, State, decode, encode
from validation.model.plans import PLANS
from validation.probes import machine
from validation.probes.kernel_log import Event, KernelLog
from validation.probes.machine import PciGpu
from validation.probes.node_probe import Facts, NodeProbe
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.probes.nvlink import Links
from validation.probes.topology import PciePort
from validation.processes.pool import ROOT
from validation.run import runner
from validation.verdict.judge import judge_node

pytestmark = pytest.mark.component

CHILDREN = "tests.unit.validation.children"
SHORT_S = 1.5
GPU = "0000:1b:00.0"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one GPU, its driver and nothing else, on the PATH too."""
    for name, content in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        path = tmp_path / "sys/bus/pci/devices" / GPU / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.178.04\n")
    monkeypatch.setenv("TREE", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    executable(tmp_path / "bin" / "journalctl", 'case "$*" in *--grep=*) exit 1;; *) echo booted;; esac')
    (tmp_path / "report").write_text(smi_xml(gpu_xml()))
    executable(tmp_path / "bin" / "nvidia-smi", f'[ "$1" = -q ] || exit 3; exec /bin/cat {tmp_path}/report')
    return tmp_path


@pytest.mark.parametrize("driver", ["vfio-pci", "nvidia"])
def test_the_driver_that_has_a_gpu_is_read(tmp_path: Path, driver: str) -> None:
    for address, kind in (("0000:1b:00.0", "0x030200"), ("0000:07:00.0", "0x068000")):
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        for name, content in (("vendor", "0x10de"), ("device", "0x2330"), ("class", kind)):
            (device / name).write_text(f"{content}\n")
        (device / "driver").symlink_to(f"../../drivers/{driver}")
    (gpu,) = machine.pci_gpus(tmp_path)
    own = driver == "nvidia"
    assert (gpu.driver, gpu.given_away, machine.has_nvswitch(tmp_path)) == (driver, not own, own)


@pytest.fixture
def probes() -> Iterator[Any]:
    """Makes probes that run one of the functions for tests, and ends them."""
    made: list[NodeProbe] = []

    def make(function: str, budget_s: float = 60.0) -> NodeProbe:
        made.append(NodeProbe(f"{CHILDREN}:{function}", budget_s))
        return made[-1]

    yield make
    for probe in made:
        probe.close()


def in_place_of(path: Path) -> None:
    """A FIFO that nobody writes to: to read it takes for ever, as a register of a GPU that is gone can."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def blocked(tree: Path, path: str, probes: Any) -> NodeProbe:
    """A probe whose process has looked once, and finds a read without an end there when it looks again.

    A busy machine needs longer to start a process than a test waits for what hangs.
    """
    probe: NodeProbe = probes("probe_a_tree")
    assert isinstance(probe.facts(False), Facts)
    in_place_of(tree / path)
    probe._budget_s = SHORT_S
    return probe


def test_facts_are_the_same_after_their_way_home() -> None:
    facts = Facts(
        pci_gpus=(PciGpu(GPU, "2330"),),
        pcie_ports={GPU: PciePort(16, 5)},
        nvswitch=True,
        driver_libraries={"libcuda.so.1": "580"},
        smi=node(smi_xml(gpu_xml(hw_slowdown="Active", dram_uncorrectable="Unknown Error"))).smi,
        nvlinks={3: Links(17, (4,))},
        kernel_log=KernelLog((Event("0000:1b:00", 79, "gone"),)),
    )
    assert decode(Facts, json.loads(json.dumps(encode(facts)))) == facts


def test_an_error_of_nvidia_smi_comes_home_as_what_it_is() -> None:
    facts = Facts(smi=NvidiaSmiError("lost", "GPU is lost"), nvlinks=NvidiaSmiError("timeout", "no answer"))
    home = decode(Facts, json.loads(json.dumps(encode(facts))))
    assert isinstance(home.smi, NvidiaSmiError)
    assert isinstance(home.nvlinks, NvidiaSmiError)
    assert (home.smi.kind, str(home.smi), home.nvlinks.kind) == ("lost", "GPU is lost", "timeout")


def test_a_gpu_whose_number_is_none_is_no_fact() -> None:
    with pytest.raises(ContractError, match="nvlinks: expected a whole number as key, found 'first'"):
        decode(Facts, {"nvlinks": {"first": {"up": 1, "down": []}}})


def test_a_machine_is_looked_at_in_another_process(tree: Path, probes: Any) -> None:
    probe = probes("probe_a_tree")
    facts = probe.facts(False)
    assert (facts.pci_gpus, facts.loaded_driver) == ((PciGpu(GPU, "2330"),), "580.178.04")
    assert facts.smi.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert probe.topology((GPU,)).gpu_numa_node == {GPU: None}


def test_what_changes_between_two_looks_is_seen(tree: Path, probes: Any) -> None:
    probe = probes("probe_a_tree")
    assert probe.facts(False).smi.gpus
    executable(tree / "bin" / "nvidia-smi", "echo 'GPU is lost'; exit 15")
    assert probe.facts(False).smi.kind == "lost"


@pytest.mark.parametrize(
    ("blocks", "stage"),
    [
        (f"sys/bus/pci/devices/{GPU}/vendor", "listing the GPUs on the PCI bus"),
        ("sys/module/nvidia/version", "looking for the driver and its libraries"),
    ],
)
def test_a_read_that_never_comes_back_fails_health_and_says_where(
    blocks: str, stage: str, tree: Path, probes: Any
) -> None:
    result = Health().run(node(probe=blocked(tree, blocks, probes)))
    (finding,) = result.findings
    assert (result.state, finding.code, finding.device) == (State.FAIL, "process-hung", None)
    # Where the process can tell it, the line follows.
    assert finding.text.startswith(
        f"the process that looks at the node gave no result within 2 s; it hung in stage: {stage}"
    )


def test_no_gpu_is_measured_on_a_node_that_cannot_be_looked_at(tree: Path, probes: Any) -> None:
    probe_failure = node(probe=blocked(tree, "sys/module/nvidia/version", probes))
    for check in (Platform(), GpuContainer(), GpuMatmul(), HealthAfter()):
        result = check.run(probe_failure)
        assert result.state is State.NOT_RUN
        assert "hung in stage: looking for the driver and its libraries" in result.reason


def test_a_topology_that_cannot_be_read_fails_the_platform_alone(tree: Path, probes: Any) -> None:
    in_place_of(tree / "sys/bus/pci/devices" / GPU / "numa_node")
    seen = node(probe=probes("probe_a_tree", 8.0), expectation=expectation(1, nvswitch=False))
    assert Health().run(seen).state is State.PASS
    (finding,) = Platform().run(seen).findings
    assert (finding.code, finding.state) == ("process-hung", State.FAIL)
    assert "hung in stage: reading the topology" in finding.text


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("die", "process-died", "ended with exit status 1 and without a result in stage: dividing"),
        ("kill_itself", "process-died", "was killed by SIGKILL"),
        ("answer", "result-unreadable", "answered something that is no result: name: no such field in Facts"),
        ("nonsense", "result-unreadable", "answered something that is no result: measurements: expected"),
    ],
)
def test_a_look_that_ends_badly_fails_health(function: str, code: str, words: str, probes: Any) -> None:
    result = Health().run(node(probe=probes(function)))
    (finding,) = result.findings
    assert (result.state, finding.code) == (State.FAIL, code)
    assert words in finding.text


def test_a_look_without_memory_is_not_run(probes: Any) -> None:
    result = Health().run(node(probe=probes("host_memory_taken")))
    assert result.state is State.NOT_RUN
    assert result.reason.startswith("memory ran out")


def test_a_gpu_that_takes_the_driver_along_under_load_is_found_afterwards(tree: Path, probes: Any) -> None:
    tested = node(probe=probes("probe_a_tree", 8.0), expectation=expectation(1, nvswitch=False))
    tested.probe_now()
    in_place_of(tree / "sys/module/nvidia/version")
    (finding,) = HealthAfter().run(tested).findings
    assert (finding.code, finding.state) == ("process-hung", State.FAIL)


def test_telemetry_of_a_node_that_cannot_be_looked_at_has_a_reason(probes: Any) -> None:
    probe = probes("hang", SHORT_S)
    with pytest.raises(NvidiaSmiError, match=r"gave no result within 2 s; it hung in stage: waiting"):
        probe.sample()
    assert probe.counts() == {}


def test_a_node_that_cannot_be_looked_at_fails_with_all_that_is_required(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of(tree / "sys/module/nvidia/version")
    monkeypatch.setattr(NodeProbe.__init__, "__defaults__", (f"{CHILDREN}:probe_a_tree", SHORT_S))
    required = expectation(required_tests=("health", "gpu_matmul"))
    result = runner.run_plan(PLANS["quick"], required, "gpu01", required.required_tests, lambda *_: None)
    assert [test.state for test in result.tests] == [State.FAIL, State.NOT_RUN]
    verdict = judge_node("gpu01", result, required, {})
    assert (verdict.state, verdict.exit_status) == (State.FAIL, 1)


def test_ctrl_c_ends_a_run_at_once_whatever_nvidia_smi_does(tree: Path) -> None:
    note = tree / "pid"
    deaf = (
        f"trap '' TERM INT; echo $$ > {note}.new; /bin/mv {note}.new {note}; while :; do /bin/sleep 1; done"
    )
    executable(tree / "bin" / "nvidia-smi", deaf)
    command = [sys.executable, "-m", "validation", "run", "--test=health"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        wait_until(note.exists, "nvidia-smi was asked")
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=30)  # of the 60 s that nvidia-smi may take
    assert run.returncode == 130
    assert b"interrupted" in errors
    wait_until(lambda: not is_running(int(note.read_text())), "nvidia-smi ends with the run")


AUDITED = """
import sys

seen = []

def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        path = str(arguments[0])
        if path.startswith(("/sys", "/dev/", "/proc/driver")) and path != "/dev/null":
            seen.append(path)
    elif event == "subprocess.Popen" and arguments[0] != sys.executable:
        seen.append(arguments[0])

sys.addaudithook(note)
from validation.cli import main
from validation.probes.node_probe import NodeProbe

NodeProbe.__init__.__defaults__ = ("tests.unit.validation.children:probe_a_tree", 60.0)
main.main(["run", "--output=-"])
print(seen, file=sys.stderr)
"""


def test_the_payload_itself_reads_no_hardware_and_starts_nothing_but_its_own_processes(tree: Path) -> None:
    executable(tree / "bin" / "docker", "exit 1")
    done = subprocess.run(
        [sys.executable, "-c", AUDITED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    states = {test["id"]: test["state"] for test in json.loads(done.stdout)["tests"]}
    assert (states["health"], states["platform"], states["health_after"]) == ("pass", "pass", "pass")
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_remote_transfer_on_a_node_whose_topology_nobody_knows_is_not_run(tree: Path, probes: Any) -> None:
    in_place_of(tree / "sys/bus/pci/devices" / GPU / "numa_node")
    seen = node(probe=probes("probe_a_tree", 8.0))
    result = CHECKS["gpu_transfer_remote"].run(seen)
    assert (result.state, "hung in stage: reading the topology" in result.reason) == (State.NOT_RUN, True)


def test_what_measures_a_gpu_stays_on_the_cpus_next_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    mine = min(os.sched_getaffinity(0))
    monkeypatch.setattr(machine, "cpus_near", {GPU: [mine, 4000]}.get)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    (first, _) = measured.each_gpu(node(), "", {})
    measured.stay_near(first)
    assert bound == [{mine}]
