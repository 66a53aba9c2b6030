"""What NVIDIA's own nvidia-smi says over NVIDIA's mock NVML is read without loss.

mock_nvml/ was recorded by tests/nightly/test_mock_nvml.py on 2026-11-27, with NVIDIA/k8s-test-infra v0.2.1:
the first GPU of three of its models, by Debian's nvidia-smi 550.163.01-2 (`current`) and
nvidia-tesla-535-smi 535.274.02-1.
"""

from pathlib import Path

from tests.unit.each import each
from tests.unit.validation.smi_agreement import COLUMNS, OF_THE_MOCK, differences, ours_alone
from validation.probes import nvidia_smi

RECORDED = sorted((Path(__file__).parent / "mock_nvml").glob("*.xml"))
SAID = {path.stem: (path.read_text(), path.with_suffix(".csv").read_text()) for path in RECORDED}


def test_reports_and_columns_of_one_nvidia_smi_are_read_alike() -> None:
    assert len(SAID) == 6
    for name, (report, columns) in SAID.items():
        assert ours_alone(differences(report, columns)) == [], name


@each("NVIDIA <H100> 80GB", "<", "</product_name><x>", "a<b & c")
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
