"""Counters that grow while a GPU works: read from what nvidia-smi prints, and judged."""

from pathlib import Path

import pytest

from tests.unit.each import each
from tests.unit.executables import executable
from validation.model.contract import State
from validation.probes import counters

HOPPER = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-abc)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 0

\t Link 17: Replay Errors: 142
\t Link 17: Recovery Errors: 3
\t Link 17: CRC Errors: 891
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-abd)
\t Link 0: Replay Errors: 0
"""
BLACKWELL = """\
GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-abc)
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 7
\t Link 0: Link recovery successful events: 2
\t Link 0: Total link recovery events: 2
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 12
\t FEC Errors - 0: 52104325032
"""


def test_the_counters_of_hopper_are_read_by_link() -> None:
    found = counters.parse(HOPPER)
    assert found[0]["nvlink 17 Replay Errors"] == 142
    assert found[0]["nvlink 17 Recovery Errors"] == 3
    assert found[0]["nvlink 0 CRC Errors"] == 0
    assert found[1] == {"nvlink 0 Replay Errors": 0}


def test_of_blackwell_what_the_link_corrects_by_itself_is_not_counted() -> None:
    assert counters.parse(BLACKWELL) == {
        0: {
            "nvlink 0 Malformed packet Errors": 0,
            "nvlink 0 Buffer overrun Errors": 0,
            "nvlink 0 Rx Errors": 7,
            "nvlink 0 Total link recovery events": 2,
            "nvlink 0 Effective Errors": 0,
        }
    }


@each("", "Unable to determine\n", "GPU 0: x\n Link 0: <inactive>\n")
def test_what_has_no_counters_gives_none(text: str) -> None:
    assert counters.parse(text) == {}


@each(
    ({0: {"a": 1}}, {0: {"a": 1}}, {}),
    ({0: {"a": 1}}, {0: {"a": 3}}, {0: {"a": 2}}),
    ({0: {"a": 3}}, {0: {"a": 1}}, {}),  # the driver was loaded again
    ({}, {0: {"a": 3}}, {}),  # nobody knows since when
    ({0: {"a": 3}}, {}, {}),
)
def test_only_what_was_read_twice_and_grew_counts(
    before: counters.Counts, after: counters.Counts, grown: counters.Counts
) -> None:
    assert counters.growth(before, after) == grown


@each(
    ("nvlink 3 Recovery Errors", "nvlink-lost-under-load", State.FAIL),
    ("nvlink 3 Total link recovery events", "nvlink-lost-under-load", State.FAIL),
    ("nvlink 3 CRC Errors", "nvlink-errors-under-load", State.DEGRADED),
    ("pcie_replays", "pcie-replay-under-load", State.DEGRADED),
    ("ecc_corrected", "ecc-corrected-under-load", State.DEGRADED),
)
def test_what_grew_is_a_finding_of_its_gpu(counter: str, code: str, state: State) -> None:
    (finding,) = counters.findings({5: {counter: 2}})
    assert (finding.code, finding.state, finding.device) == (code, state, 5)
    assert "2" in finding.text


def test_the_link_is_named() -> None:
    (finding,) = counters.findings({5: {"nvlink 3 CRC Errors": 2, "nvlink 4 CRC Errors": 1}})
    assert finding.text == (
        "GPU 5: NVLink 3 counted 2 CRC Errors, NVLink 4 counted 1 CRC Errors while it was tested"
    )


@pytest.mark.component
def test_a_driver_without_nvlink_still_has_the_other_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.validation.samples import gpu_xml, smi_xml

    xml = smi_xml(gpu_xml()).replace("<pci>", "<pci><replay_counter>4</replay_counter>")
    (tmp_path / "report").write_text(xml)
    executable(tmp_path / "nvidia-smi", f'[ "$1" = -q ] || exit 3\nexec /bin/cat {tmp_path}/report')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.read() == {0: {"pcie_replays": 4, "ecc_corrected": 7}}


@pytest.mark.component
def test_without_nvidia_smi_there_are_no_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.read() == {}
