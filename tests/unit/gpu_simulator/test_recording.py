"""A recording of nvidia-smi tells nothing of the machine that it was made on, and all else of its GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.unit.validation.samples import gpu_xml, smi_xml
from tools.record_gpu import sanitised
from validation.probes import nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.gpu_simulator.conftest import SimulatedNode

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
