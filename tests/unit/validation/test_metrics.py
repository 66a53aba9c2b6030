"""A node's metrics: what was read and nothing else, in a form that Prometheus' own programs read."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from temper.cli import main as temper
from tests.unit.each import each
from tests.unit.monitoring import programs
from tests.unit.validation.samples import (
    DRIVER,
    expectation,
    gpu_xml,
    measurement,
    node,
    node_result,
    one_test,
    smi_xml,
)
from validation.checks.node import Node
from validation.cli import main
from validation.metrics.exposition import Exposition, Kind, Metric
from validation.metrics.node_metrics import METRICS, OF_AN_IDLE_NODE, collect
from validation.model.contract import EXPECTATIONS_VERSION, Measured, State, dumps
from validation.model.expectations import Expectation, FleetExpectations
from validation.probes.kernel_log import KernelLog, events
from validation.probes.node_probe import NodeProbe
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

SECOND = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")
GPU_0 = 'gpu="0",uuid="GPU-1"'
HUNG = ProcessOutcome(Request("the probe", "x:y", "none"), Ending.HUNG, Measured(), "it hung", "asking", 0.0)


class Hangs(NodeProbe):
    """Cannot look at the node."""

    def facts(self, on_switches: bool) -> ProcessOutcome:
        return HUNG


def said(tested: Node, *, maintenance: bool = False) -> dict[str, str]:
    """The value of each series, as text."""
    return values(collect(tested, maintenance=maintenance).text())


def values(text: str) -> dict[str, str]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({series for series, _, _ in lines}) == len(lines), "a series is there twice"
    return {series: value for series, _, value in lines}


def of(found: dict[str, str], name: str) -> dict[str, str]:
    """The series of one metric, by their labels."""
    return {
        series.partition("{")[2].removesuffix("}"): value
        for series, value in found.items()
        if series.partition("{")[0] == f"temper_{name}"
    }


def test_a_healthy_node_is_one_without_findings() -> None:
    found = said(node())
    assert of(found, "health") == {
        'state="pass"': "1",
        'state="degraded"': "0",
        'state="fail"': "0",
        'state="not-run"': "0",
    }
    assert of(found, "finding") == {}
    assert (found["temper_gpus"], found["temper_gpus_expected"]) == ("2", "2")
    assert found[f'temper_gpu_health{{{GPU_0},state="pass"}}'] == "1"
    assert found[f'temper_gpu_answers{{{GPU_0},pci_address="0000:1b:00.0"}}'] == "1"
    assert found["temper_driver_versions_match"] == "1"
    assert found["temper_maintenance"] == "0"
    assert said(node(), maintenance=True)["temper_maintenance"] == "1"


def test_a_value_is_in_the_base_unit_of_its_name() -> None:
    more = (
        "<temperature><gpu_temp>41 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>"
        "<clocks><sm_clock>1980 MHz</sm_clock></clocks><utilization><gpu_util>37 %</gpu_util></utilization>"
        "<clocks_event_reasons_counters><clocks_event_reasons_counters_hw_therm_slowdown>2500000 us"
        "</clocks_event_reasons_counters_hw_therm_slowdown></clocks_event_reasons_counters>"
        "<retired_pages><double_bit_retirement><retired_count>3</retired_count></double_bit_retirement>"
        "</retired_pages><processes>"
    )
    found = said(node(smi_xml(gpu_xml().replace("<processes>", more), SECOND)))
    assert of(found, "gpu_temperature_celsius") == {f'{GPU_0},sensor="gpu"': "41"}
    assert of(found, "gpu_clock_hertz") == {f'{GPU_0},clock="sm"': "1980000000"}
    assert of(found, "gpu_utilization_ratio") == {GPU_0: "0.37"}
    assert of(found, "gpu_slowdown_seconds_total") == {f'{GPU_0},reason="hw_thermal_slowdown"': "2.5"}
    assert of(found, "gpu_retired_pages") == {f'{GPU_0},kind="uncorrected"': "3"}
    assert found[f"temper_gpu_memory_used_bytes{{{GPU_0}}}"] == str(4 << 20)
    assert found[f"temper_gpu_power_limit_watts{{{GPU_0}}}"] == "700"


@each("N/A", "[Unknown Error]", "GPU is lost", "Insufficient Permissions")
def test_what_was_not_read_has_no_value(word: str) -> None:
    changes = dict.fromkeys(
        ("persistence_mode", "current_mig", "current_ecc", "remapped_row_failure", "remapped_row_pending"),
        word,
    ) | {"current_link_gen": word, "state": word, "dram_uncorrectable": word, "current_power_limit": word}
    xml = gpu_xml(**changes).replace("<sram_uncorrectable_parity>0</sram_uncorrectable_parity>", "")
    found = said(node(smi_xml(xml, SECOND)))
    for name in (
        *("gpu_persistence_enabled", "gpu_mig_enabled", "gpu_ecc_enabled", "gpu_row_remap_failure"),
        *("gpu_row_remap_pending", "gpu_pcie_link_generation", "gpu_fabric_completed"),
        *("gpu_power_limit_watts",),
    ):
        assert [labels for labels in of(found, name) if labels.startswith(GPU_0)] == [], name
    errors = of(found, "gpu_ecc_errors_total")
    assert [labels for labels in errors if labels.startswith(GPU_0)] == [
        f'{GPU_0},period="volatile",kind="corrected"'
    ]
    assert of(found, "gpu_temperature_celsius") == {}


def test_a_gpu_that_is_lost_costs_the_other_no_value() -> None:
    found = said(node(smi_xml(gpu_xml(current_ecc="GPU is lost"), SECOND)))
    assert of(found, "gpu_answers") == {
        f'{GPU_0},pci_address="0000:1b:00.0"': "0",
        'gpu="1",uuid="GPU-2",pci_address="0000:43:00.0"': "1",
    }
    assert found[f'temper_gpu_health{{{GPU_0},state="fail"}}'] == "1"
    assert found['temper_gpu_health{gpu="1",uuid="GPU-2",state="pass"}'] == "1"
    assert found[f'temper_finding{{code="gpu-unanswered",severity="fail",{GPU_0}}}'] == "1"


def test_a_gpu_that_nvidia_smi_leaves_out_does_not_answer() -> None:
    found = said(node(smi_xml(SECOND)))
    assert of(found, "gpu_answers") == {
        'gpu="0",uuid="GPU-2",pci_address="0000:43:00.0"': "1",
        'gpu="",uuid="",pci_address="0000:1b:00.0"': "0",
    }


def test_where_nvidia_smi_fails_the_bus_is_known_and_nothing_is_0_that_was_not_read() -> None:
    found = said(node(NvidiaSmiError("lost", "nvidia-smi: GPU is lost")))
    assert found["temper_gpus"] == "2"
    assert set(of(found, "gpu_answers").values()) == {"0"}
    assert of(found, "finding") == {'code="driver-lost",severity="fail",gpu="",uuid=""': "1"}
    assert found['temper_gpu_health{gpu="0",uuid="",state="not-run"}'] == "1", "not seen is not broken"
    assert of(found, "gpu_ecc_errors_total") == {}


def test_a_node_that_cannot_be_looked_at_says_so() -> None:
    found = said(node(probe=Hangs()))
    assert found["temper_metrics_success"] == "0"
    assert of(found, "finding") == {'code="process-hung",severity="fail",gpu="",uuid=""': "1"}
    assert "temper_gpus" not in found
    assert found["temper_gpus_expected"] == "2"


def test_jobs_are_no_fault_of_a_node() -> None:
    process = "<process_info><pid>1</pid></process_info>"
    busy = {"processes": process, "used": "70000 MiB", "hw_slowdown": "Active"}
    found = said(node(smi_xml(gpu_xml(**busy), SECOND)))
    assert of(found, "finding") == {}
    assert found['temper_health{state="pass"}'] == "1"
    assert found[f'temper_gpu_slowdown_active{{{GPU_0},reason="hw_slowdown"}}'] == "1"
    assert {"gpu-busy", "gpu-memory-taken", "hw-slowdown"} < OF_AN_IDLE_NODE


def test_a_code_is_there_once_for_each_gpu_and_as_bad_as_its_worst() -> None:
    libraries = {"libcuda.so.1": "570.1", "libnvidia-ml.so.1": "570.1"}
    found = said(node(driver_libraries=libraries))
    assert of(found, "finding") == {'code="library-version",severity="fail",gpu="",uuid=""': "1"}
    assert found["temper_driver_versions_match"] == "0"
    assert of(found, "driver_info") == {
        f'module="{DRIVER}",libcuda="570.1",libnvidia_ml="570.1",fabric_manager="{DRIVER}"': "1"
    }


def test_errors_of_the_kernel_log_are_counted_by_gpu_and_number() -> None:
    log = KernelLog(
        events(
            [
                "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, MMU Fault",
                "NVRM: Xid (PCI:0000:1b:00): 31, pid=2, MMU Fault",
                "NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.",
                "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            ]
        )
    )
    found = said(node(kernel_log=lambda: log))
    assert of(found, "xid_errors_total") == {
        f'{GPU_0},pci_address="0000:1b:00",xid="31"': "2",
        'gpu="",uuid="",pci_address="0000:99:00",xid="79"': "1",
    }
    assert of(found, "nvswitch_errors_total") == {'pci_address="0000:c1:00.0",sxid="20034",fatal="true"': "1"}
    assert found["temper_kernel_log_readable"] == "1"
    assert said(node(kernel_log=lambda: KernelLog(unreadable="no")))["temper_kernel_log_readable"] == "0"


def test_errors_of_a_link_are_added_by_what_they_mean() -> None:
    tested = node()
    counts = {"pcie_replays": 5, "nvlink 3 Replay Errors": 2, "nvlink 3 CRC Errors": 3}
    tested.probe.counts = lambda: {0: counts | {"nvlink 3 Recovery Errors": 1}}  # type: ignore[method-assign]
    assert of(said(tested), "gpu_nvlink_errors_total") == {
        f'{GPU_0},link="3",kind="resent"': "5",
        f'{GPU_0},link="3",kind="lost"': "1",
    }


def test_a_machine_without_gpus_is_not_ill() -> None:
    missing = NvidiaSmiError("missing", "nvidia-smi is not installed")
    nothing: dict[str, Any] = {"pci_gpus": (), "expectation": Expectation(), "nvswitch": False}
    found = said(node(missing, loaded_driver=None, **nothing))
    assert found['temper_health{state="not-run"}'] == "1"
    assert (found["temper_gpus"], of(found, "finding")) == ("0", {})
    assert not {"temper_gpus_expected", "temper_kernel_log_readable"} & found.keys()


METRIC = Metric("temper_x", Kind.GAUGE, "Back\\slash\nand line.", ("name",))


@pytest.mark.component
def test_prometheus_reads_any_text_in_a_label() -> None:
    exposition = Exposition([METRIC])
    exposition.set("temper_x", 0.5, name='NVIDIA "X"\\1\n\ud800ä')
    assert 'name="NVIDIA \\"X\\"\\\\1\\n?ä"' in exposition.text()
    checked = programs.run("promtool", "check", "metrics", given=exposition.text())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@each(
    ("temper_x", 1, {}),
    ("temper_x", 1, {"name": "a", "more": "b"}),
    ("temper_x", math.nan, {"name": "a"}),
    ("temper_x", 1, {"name": "twice"}),
)
def test_what_prometheus_would_refuse_is_not_written(name: str, value: float, labels: dict[str, str]) -> None:
    exposition = Exposition([METRIC])
    exposition.set("temper_x", 1, name="twice")
    with pytest.raises(ValueError, match="temper_x"):
        exposition.set(name, value, **labels)


@each(("temper_x", Kind.COUNTER), ("temper_x_total", Kind.GAUGE), ("temper-x", Kind.GAUGE))
def test_a_name_follows_prometheus_rules(name: str, kind: Kind) -> None:
    with pytest.raises(ValueError, match=name):
        Metric(name, kind, "")


@pytest.mark.component
def test_promtool_finds_nothing_to_say_of_any_metric() -> None:
    exposition = Exposition(METRICS)
    for metric in METRICS:
        exposition.set(metric.name, 1, **dict.fromkeys(metric.labels, "a"))
    checked = programs.run("promtool", "check", "metrics", given=exposition.text())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.component
def test_the_command_writes_a_file_that_node_exporter_serves(tmp_path: Path) -> None:
    path, payload = tmp_path / "textfile/temper.prom", tmp_path / "payload.pyz"
    assert main.main(["build", "--output", str(payload)]) == 0
    command = [sys.executable, str(payload), "metrics", "--interval=300", f"--output={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [left.name for left in path.parent.iterdir()] == ["temper.prom"]
    written = values(path.read_text())
    assert written["temper_metrics_interval_seconds"] == "300"
    options = ["--collector.disable-defaults", "--collector.textfile"]
    options += [f"--collector.textfile.directory={path.parent}"]
    with programs.server("prometheus-node-exporter", options, "/metrics") as url:
        served = values(programs.get(f"{url}/metrics"))
    assert served["node_textfile_scrape_error"] == "0"
    assert {series: float(served[series]) for series in written} == {
        series: float(value) for series, value in written.items()
    }


def test_a_look_that_failed_keeps_when_the_last_one_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "temper.prom"
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: HUNG)
    command = ["metrics", f"--output={path}"]
    assert main.main(command) == 0
    name = "temper_metrics_last_success_timestamp_seconds"
    assert name not in values(path.read_text())
    path.write_text(f"# HELP {name} x\n{name} 1795361574.485\n")
    assert main.main(command) == 0
    assert values(path.read_text())[name] == "1795361574.485"


@each(b"\xff", b"temper_metrics_last_success_timestamp_seconds 1.2.3\n")
def test_a_damaged_file_of_an_earlier_look_hides_none_that_fails(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "temper.prom"
    path.write_bytes(damage)
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: HUNG)
    assert main.main(["metrics", f"--output={path}"]) == 0
    assert values(path.read_text())["temper_metrics_success"] == "0"


def test_an_expectation_that_cannot_be_read_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "temper.prom"
    path.write_text("before")
    (tmp_path / "expect.json").write_text("{")
    assert main.main(["metrics", f"--expect={tmp_path / 'expect.json'}", f"--output={path}"]) == 2
    assert path.read_text() == "before"


@pytest.mark.component
def test_a_node_is_in_maintenance_while_its_flag_is_there(tmp_path: Path) -> None:
    path, flag = tmp_path / "temper.prom", tmp_path / "maintenance"
    for there in ("0", "1"):
        assert main.main(["metrics", f"--maintenance={flag}", f"--output={path}"]) == 0
        assert values(path.read_text())["temper_maintenance"] == there
        flag.touch()


def test_the_state_of_a_gpu_is_its_own() -> None:
    changed = dataclasses.replace(expectation(), power_limit_w=None)
    found = said(node(smi_xml(gpu_xml(persistence_mode="Disabled"), SECOND), expectation=changed))
    assert found[f'temper_gpu_health{{{GPU_0},state="degraded"}}'] == "1"
    assert found['temper_gpu_health{gpu="1",uuid="GPU-2",state="pass"}'] == "1"
    assert found[f'temper_health{{state="{State.DEGRADED}"}}'] == "1"


@pytest.mark.component
def test_a_report_writes_the_verdict_on_each_node_into_a_file_of_its_own(tmp_path: Path) -> None:
    slow = one_test("gpu_matmul", State.PASS, measurement(value=100.0))
    results, folder = tmp_path / "results", tmp_path / "textfile"
    results.mkdir()
    for name in ("gpu01", "gpu02"):
        (results / f"{name}.json").write_text(dumps(node_result(slow, name=name, gpus=2)))
    # gpu03 was never measured.
    expected = {name: expectation() for name in ("gpu01", "gpu02", "gpu03")}
    (tmp_path / "expectations").write_text(dumps(FleetExpectations(EXPECTATIONS_VERSION, expected)))
    command = ["report", f"--results={results}", f"--expectations={tmp_path / 'expectations'}"]
    command += [f"--output={tmp_path / 'report'}", f"--metrics={folder}"]
    assert temper.main(command) == 1
    first = values((folder / "temper-validation-gpu01.prom").read_text())
    assert of(first, "validation_state")['node="gpu01",state="fail"'] == "1"
    assert of(first, "validation_timestamp_seconds") == {'node="gpu01"': "1795176000"}, "when it was measured"
    assert 'node="gpu01",code="below-floor",severity="fail",gpu="0"' in of(first, "validation_finding")
    never = values((folder / "temper-validation-gpu03.prom").read_text())
    assert of(never, "validation_timestamp_seconds") == {}
    assert of(never, "validation_state")['node="gpu03",state="not-run"'] == "1"
    files = sorted(path.name for path in folder.iterdir())
    assert files == [f"temper-validation-{name}.prom" for name in ("gpu01", "gpu02", "gpu03")]
    options = [
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={folder}",
    ]
    with programs.server("prometheus-node-exporter", options, "/metrics") as url:
        served = values(programs.get(f"{url}/metrics"))
    assert served["node_textfile_scrape_error"] == "0", "one metric in several files"
