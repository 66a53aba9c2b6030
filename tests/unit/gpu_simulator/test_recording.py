"""A recording of nvidia-smi tells nothing of the machine that it was made on, and all else of its GPUs."""

import dataclasses
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.executables import executable
from tests.unit.gpu_simulator.conftest import PACKAGES, SimulatedNode
from tests.unit.rollout.results import run_of
from tests.unit.validation.samples import gpu_xml, is_running, smi_xml
from tests.waiting import wait_until
from tools import record_gpu
from tools.record_gpu import sanitised
from validation.model.contract import Digest, Finding, NodeResult, State, dumps, loads
from validation.probes import nvidia_smi

pytestmark = pytest.mark.component

FIRST = "GPU-1b2c3d4e-aaaa-bbbb-cccc-0123456789ab"
SECOND = "GPU-1B2C3D4E-aaaa-bbbb-cccc-0123456789AC"


def test_nothing_of_the_machine_stays(booted: Callable[..., SimulatedNode]) -> None:
    node = booted("hgx-h100-8")
    printed = node.smi("-q", "-x").stdout
    recording = sanitised(printed)
    own = [
        text
        for element in node.xml().iter()
        if element.tag in {"uuid", "serial", "pdi", "timestamp"} and (text := element.text or "") != "N/A"
    ]
    assert len(own) >= 25, "three of each GPU, and the time"
    assert [text for text in own if text in recording] == []


def test_all_else_stays_as_it_was_printed(booted: Callable[..., SimulatedNode]) -> None:
    printed = booted("hgx-h100-8").smi("-q", "-x").stdout
    own = re.compile(
        r"<(uuid|serial|pdi|timestamp|cluster_?uuid)>[^<]*</|<(\w*processes)>.*?</\2>", re.I | re.S
    )
    assert own.sub("", sanitised(printed)) == own.sub("", printed)
    before, after = nvidia_smi.parse(printed), nvidia_smi.parse(sanitised(printed))
    assert [gpu.name for gpu in after.gpus] == [gpu.name for gpu in before.gpus]


def test_gpus_stay_apart_and_their_numbers_the_same() -> None:
    printed = smi_xml(gpu_xml(uuid=FIRST), gpu_xml(uuid=SECOND)) + f"<!-- {FIRST} -->"
    recording = sanitised(printed)
    assert [gpu.uuid for gpu in nvidia_smi.parse(recording.partition("<!-- GPU")[0]).gpus] == [
        "GPU-00000000-0000-0000-0000-000000000000",
        "GPU-00000000-0000-0000-0000-000000000001",
    ]
    assert recording.endswith("<!-- GPU-00000000-0000-0000-0000-000000000000 -->")


def test_names_of_processes_are_left_out() -> None:
    process = "<process_info><pid>12</pid><process_name>/home/ann/train.py</process_name></process_info>"
    printed = (
        f"<gpu><processes>\n{process}\n</processes><accounted_processes>{process}</accounted_processes></gpu>"
    )
    assert (
        sanitised(printed) == "<gpu><processes></processes><accounted_processes></accounted_processes></gpu>"
    )


def test_serial_numbers_of_board_and_chassis_are_left_out() -> None:
    own = {"serial": "165", "chassis_serial_number": "1821", "clusterUUID": "a-b"}
    printed = "".join(f"<{tag}>{text}</{tag}>" for tag, text in own.items())
    assert not re.search(r"165|1821|a-b", sanitised(printed))
    assert "<serial>N/A</serial>" in sanitised(printed)


# Stands for a Python with torch: leaves the result that it is given, and fails in the plan that it is told.
PAYLOAD = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
if "tests.bench.payload" in arguments:
    print("bench on {host}")
elif "{fails}" in arguments:
    print("SystemExit: no torch in {host}")
else:
    pathlib.Path(arguments[arguments.index("--output") + 1]).write_text(pathlib.Path("{result}").read_text())
"""
SMI = '#!/bin/sh\nexport GPU_SIMULATOR_ROOT={root} GPU_SIMULATOR_UID=0\nexec {python} -IS {program} "$@"\n'


class Recorded:
    """A machine whose GPUs are simulated and whose payload leaves a result, and what is recorded of it."""

    def __init__(self, node: SimulatedNode, folder: Path) -> None:
        self.node, self.folder = node, folder / "recording"
        self.python, self.result = folder / "python", folder / "result.json"
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        program = PACKAGES / "nvidia_smi.py"
        executable(smi, SMI.format(root=node.root, python=sys.executable, program=program))

    def record(self, result: NodeResult, *, fails: str = "nothing", minutes: float = 10) -> int:
        """Record it; the exit status."""
        self.result.write_text(dumps(result))
        payload = PAYLOAD.format(
            python=sys.executable, host=socket.gethostname(), fails=fails, result=self.result
        )
        executable(self.python, payload)
        return record_gpu.main([str(self.folder), "--python", str(self.python), "--minutes", str(minutes)])

    def read(self, name: str) -> str:
        """A file of the recording."""
        return (self.folder / name).read_text()


@pytest.fixture
def recorded(
    booted: Callable[..., SimulatedNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Recorded:
    made = Recorded(booted("hgx-h100-8"), tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


def test_one_command_leaves_what_tests_and_a_page_are_made_of(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    bits = Digest("product", "ab12", device=0, conditions={"m": 8192})
    found = run_of(findings=[Finding("slow", State.DEGRADED, f"{socket.gethostname()}: GPU-0 is slow")])
    test = dataclasses.replace(found.tests[0], digests=(bits,))
    assert recorded.record(dataclasses.replace(found, tests=(test, *found.tests[1:]))) == 0
    everything = {path.name: path.read_text() for path in recorded.folder.iterdir()}
    results = {"quick.json", "quick-again.json", "standard.json"}
    assert everything.keys() == results | {"nvidia-smi.xml", "nvidia-smi.txt", "bench.txt", "page.md"}
    for text in everything.values():
        assert socket.gethostname() not in text
    for gpu in recorded.node.xml().iter("uuid"):
        assert gpu.text
        assert [name for name, text in everything.items() if gpu.text in text] == []
    for name in results:
        assert loads(NodeResult, everything[name]).tests[0].digests == (bits,)
    assert everything["page.md"] in capsys.readouterr().out
    assert (
        "| `gpu_matmul` | bf16_tflops (k 8192, m 8192, n 8192) | 0 | 730 | 730 | 1.000 |"
        in (everything["page.md"])
    )
    assert "1 of 1 checksums are the same in both runs" in everything["page.md"]
    assert "Missing" not in everything["page.md"]


def test_a_plan_that_does_not_end_is_ended_with_all_that_it_started_and_said(tmp_path: Path) -> None:
    recording = record_gpu.Recording(tmp_path, until=0.0)
    program = "import subprocess as s; p = s.Popen(['sleep', '3600']); print(p.pid, flush=True); p.wait()"
    done = recording.run("standard", [sys.executable, "-c", program], 3.0)
    assert recording.missing == ["standard: not done after 3 s"]
    assert done.returncode != 0
    wait_until(lambda: not is_running(int(done.stdout.split()[0])), "the plan's own child ends")


def test_what_no_time_is_left_for_is_said(recorded: Recorded) -> None:
    assert recorded.record(run_of(), minutes=0) == 1
    for name in ("quick", "quick-again", "bench", "standard"):
        assert f"- {name}: no time was left" in recorded.read("page.md")
    assert "<gpu " in recorded.read("nvidia-smi.xml")


def test_a_payload_that_leaves_no_result_is_said_with_its_last_words(recorded: Recorded) -> None:
    assert recorded.record(run_of(), fails="standard") == 1
    assert "it said last: SystemExit: no torch in gpu-node" in recorded.read("page.md")


def test_a_recording_is_not_overwritten(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded.folder.mkdir()
    assert recorded.record(run_of()) == 2
    assert "is there already: name a new folder" in capsys.readouterr().err
    assert list(recorded.folder.iterdir()) == []


def test_without_a_driver_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_gpu.main([str(tmp_path / "recording")]) == 2
    assert "`nvidia-smi -q -x` gave nothing to record" in capsys.readouterr().err
    assert not (tmp_path / "recording").exists()
