"""What NVIDIA's own nvidia-smi says over NVIDIA's mock NVML is read without loss.

mock_nvml/ was recorded by tests/nightly/test_mock_nvml.py on 2026-11-27, with NVIDIA/k8s-test-infra v0.2.1
(commit 3b2b865d, Apache License 2.0, whose configs/ the values are from):
the first GPU of three of its models, by Debian's nvidia-smi 550.163.01-2 (`current`) and
nvidia-tesla-535-smi 535.274.02-1.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from tests.unit.each import each
from tests.unit.validation.smi_agreement import COLUMNS, OF_THE_MOCK, differences, ours_alone
from validation.probes import nvidia_smi

RECORDED = sorted((Path(__file__).parent / "mock_nvml").glob("*.xml"))
SAID = {path.stem: (path.read_text(), path.with_suffix(".csv").read_text()) for path in RECORDED}


def test_reports_and_columns_of_one_nvidia_smi_are_read_alike() -> None:
    assert len(SAID) == 6
    for name, (report, columns) in SAID.items():
        assert ours_alone(differences(report, columns)) == [], name


def values(report: str) -> dict[str, Any]:
    """Return all that is read of the only GPU, by field, without what it did not answer."""
    fields = dataclasses.asdict(nvidia_smi.parse(report).gpus[0])
    del fields["unanswered"]
    return fields | {f"readings.{name}": value for name, value in fields.pop("readings").items()}


def test_a_value_of_no_driver_costs_its_own_field_alone() -> None:
    report = SAID["current-gb300"][0]
    of_gpu = report.index("<gpu id="), report.index("<processes>")
    leaves = list(re.compile(r"<(\w+)>([^<\n]*)</\1>").finditer(report, *of_gpu))
    assert len(leaves) > 150
    good = values(report)
    for leaf in leaves:
        for text in ("unknown return value: 7", "a<b & ]]>", "9" * 400):
            found = values(report[: leaf.start(2)] + text + report[leaf.end(2) :])
            assert sum(found[name] != good[name] for name in good) <= 1, (leaf[1], text)


@each("NVIDIA <H100> 80GB", "<", "</product_name><x>", "a<b & c", "]]>")
def test_a_text_that_looks_like_an_element_costs_no_other_value(name: str) -> None:
    report, columns = SAID["current-h100"]
    changed = report.replace("NVIDIA H100 80GB HBM3", name)
    assert [one[1] for one in ours_alone(differences(changed, columns))] == ["name"]
    assert nvidia_smi.parse(changed).gpus[0].name == name


@each(*(name for name in COLUMNS if name != "index"))
def test_another_value_in_a_column_is_a_difference(column: str) -> None:
    report, columns = SAID["current-h100"]
    cells = columns.rstrip("\n").split(", ")
    cells[list(COLUMNS).index(column)] = "17.5"
    assert column in {one[1] for one in differences(report, ", ".join(cells))}
    assert column in OF_THE_MOCK or column not in {one[1] for one in differences(report, columns)}
