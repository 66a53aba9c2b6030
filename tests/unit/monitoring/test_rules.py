"""Every alert fires on its fault and on nothing else, as Prometheus' own promtool evaluates the rules."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from temper.compliance.metrics import METRICS as OF_COMPLIANCE
from temper.compliance.metrics import OF_WAIVERS
from temper.judge.fleet_metrics import METRICS as OF_THE_FLEET
from tests.unit.each import each
from tests.unit.monitoring import programs
from tests.unit.monitoring.samples import FAULTS, INSTANCE, instance, over_time, scraped, xid
from tests.unit.validation.samples import node
from tests.unit.validation.test_catalogue import EMISSIONS
from tools import alert_rules
from validation.checks.measured import _CODES
from validation.findings.catalogue import catalogue
from validation.metrics.node_metrics import METRICS, OF_AN_IDLE_NODE

RECORDS, ALERTS = alert_rules.load()
#: What the check health can find while it looks at a node.
CODES = {
    code
    for where, codes, *_ in EMISSIONS
    for code in codes
    if where.startswith(("checks/health", "checks/driver_health", "checks/pcie_link"))
}
CODES = (CODES | set(_CODES.values())) - OF_AN_IDLE_NODE
GPU = f'{INSTANCE},gpu="0",uuid="GPU-1"'
HOUR, DAY = 60, 24 * 60


def faults() -> dict[tuple[str, str], Any]:
    """A node for each code and severity."""
    of_xids = {code: int(match[1]) for code in CODES if (match := re.fullmatch(r"xid-(\d+)", code))}
    return FAULTS | {
        (code, severity): xid(number)
        for code, number in of_xids.items()
        for severity in catalogue()[code].cases[""].severity
    }


def up(name: str) -> dict[str, float]:
    """What a node shows besides what the payload writes."""
    labels = instance(name)
    return {f"up{{{labels}}}": 1.0, f"node_textfile_scrape_error{{{labels}}}": 0.0}


def firing(expected: list[str], at_minutes: int) -> dict[str, Any]:
    """What must be firing then, each with its severity and node: these and no others."""
    return {
        "expr": 'count by (alertname, severity, node) (ALERTS{alertstate="firing"})',
        "eval_time": f"{at_minutes}m",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in sorted(expected)],
    }


def alert(name: str, node_name: str = "gpu01") -> str:
    """The labels of a firing alert that has one severity."""
    (severity,) = {one.severity for one in ALERTS if one.name == name}
    return f'alertname="{name}", node="{node_name}", severity="{severity}"'


def evaluate(tests: list[dict[str, Any]], folder: Path, every_minutes: int = 5) -> None:
    """Have promtool evaluate all rules on these series."""
    file = folder / "tests.yml"
    paths = list(alert_rules.rules())
    content = {
        "rule_files": [str(path) for path in paths],
        # Who evaluates every minute finds what was recorded a minute ago; here it would be gone.
        "group_eval_order": [f"temper-{path.stem}" for path in paths],
        "evaluation_interval": f"{every_minutes}m",
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(content, width=10_000))
    done = programs.run("promtool", "test", "rules", file)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.component
def test_promtool_accepts_all_rules() -> None:
    checked = programs.run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *alert_rules.rules())
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_finding_of_a_node_has_an_alert_and_no_other_has() -> None:
    assert {one.code for one in ALERTS if one.expr.startswith("temper_finding")} == CODES
    assert {code for code, _ in faults()} == CODES


def test_every_severity_of_the_catalogue_is_tried() -> None:
    """But those that another case of the same code shows in the same way."""
    for code in CODES:
        paged = {one.severity for one in ALERTS if one.code == code and one.expr.startswith("temper_finding")}
        states = {state for case in catalogue()[code].cases.values() for state in case.severity}
        tried = {severity for found, severity in faults() if found == code}
        assert tried <= {str(state) for state in states}
        assert len(paged) == 1 or tried == {"fail", "degraded"}, code


@each(*ALERTS)
def test_an_alert_says_what_to_do(one: alert_rules.Alert) -> None:
    assert one.severity in {"page", "ticket", "none"}
    assert one.summary
    assert one.meaning
    assert one.remedy
    assert one.why
    assert re.fullmatch(r"\d+[mhd]", one.hold)


def test_expressions_use_metrics_that_there_are() -> None:
    known = {
        metric.name for metric in (*METRICS, *OF_THE_FLEET, *OF_COMPLIANCE, *OF_WAIVERS)
    } | RECORDS.keys()
    for expr in (*RECORDS.values(), *(one.expr for one in ALERTS)):
        used = set(re.findall(r"\btemper[_:][a-z0-9_:]+", expr))
        assert used <= known, expr


@pytest.mark.component
def test_a_fault_of_a_node_fires_its_own_alert_and_no_other(tmp_path: Path) -> None:
    """A node for each fault, all at once: healthy for a while, then with the fault, then healthy again."""
    series: list[dict[str, str]] = []
    expected: set[str] = set()
    for (code, severity), fault in faults().items():
        name = f"{code}-{severity}"
        healthy, broken = (scraped(tested, name) | up(name) for tested in (node(), fault()))
        found = {
            (labels["code"], labels["severity"])
            for labels in map(_labels, broken)
            if labels["__name__"] == "temper_finding"
        }
        assert (code, severity) in found
        for of_code, of_severity in found:
            selected = {f'code="{of_code}"', f'code="{of_code}",severity="{of_severity}"'}
            (of_finding,) = (
                one for one in ALERTS if one.expr in {f"temper_finding{{{s}}} == 1" for s in selected}
            )
            expected.add(f'alertname="{of_finding.name}", node="{name}", severity="{of_finding.severity}"')
        if code == "gpu-count":
            expected.add(alert("TemperGpuDisappeared", name))
        series += over_time((healthy, 3), (broken, 9), (healthy, 3))
    test = {
        "interval": "5m",
        "input_series": series,
        "promql_expr_test": [firing([], 10), firing(sorted(expected), 55), firing([], 70)],
    }
    evaluate([test], tmp_path)


def _labels(series: str) -> dict[str, str]:
    name, _, labels = series.partition("{")
    return {"__name__": name} | dict(re.findall(r'(\w+)="([^"]*)"', labels))


def s(name: str, values: str, labels: str = INSTANCE) -> dict[str, str]:
    """A series as promtool takes it."""
    return {"series": f"{name}{{{labels}}}", "values": values}


def of_fleet(name: str, values: list[str], labels: str = "") -> list[dict[str, str]]:
    """A series of the first GPU of as many nodes."""
    return [
        s(name, value, f'instance="gpu{index:02}:9100",job="node",gpu="0",uuid="GPU-{index}"{labels}')
        for index, value in enumerate(values, start=1)
    ]


def at_work(clocks_mhz: list[str], temperatures_c: list[str]) -> list[dict[str, str]]:
    """Busy GPUs of one model, with these clocks and temperatures, for nine days of half hours."""
    count = len(clocks_mhz)
    return [
        *of_fleet("temper_gpu_utilization_ratio", ["0.99x432"] * count),
        *of_fleet("temper_gpu_info", ["1x432"] * count, ',pci_address="0",pci_id="2330",name="H100"'),
        *of_fleet("temper_gpu_clock_hertz", clocks_mhz, ',clock="sm"'),
        *of_fleet("temper_gpu_temperature_celsius", temperatures_c, ',sensor="gpu"'),
    ]


def slowed(reason: str) -> list[dict[str, str]]:
    """A GPU that works for 54 minutes an hour and is slowed down for 3 of them, later for 12."""
    return [
        s("temper_gpu_slowdown_seconds_total", "0+15x24 360+60x12", f'{GPU},reason="{reason}"'),
        s("temper_gpu_utilization_ratio", "0.9x40", GPU),
    ]


def verdict(name: str, labels: str) -> list[dict[str, str]]:
    """What the controller says of a node, from minute 45 on."""
    return [s(name, "_x9 1x9", f"{CONTROLLER},{labels}")]


CONTROLLER = 'instance="controller:9100",job="node",node="gpu07"'
OF_CODE = 'instance="controller:9100",job="node",code="{}"'
#: Of each alert with an expression of its own: what is scraped every five minutes, a minute at which nothing
#: fires, and one at which it does.
Case = tuple[list[dict[str, str]], int, int]
CASES: dict[str, Case] = {
    "TemperGpuDisappeared": ([s("temper_gpus", "8x11 7x11")], 55, 75),
    "TemperEccUncorrectedRising": (
        [s("temper_gpu_ecc_errors_total", "3x11 4x11", f'{GPU},period="aggregate",kind="uncorrected"')],
        55,
        65,
    ),
    # Those of one hour are chance.
    "TemperPcieReplaysRising": ([s("temper_gpu_pcie_replays_total", "0x23 9x36 9+1x60", GPU)], 290, 510),
    "TemperNvlinkErrorsRising": (
        [s("temper_gpu_nvlink_errors_total", "0x23 9x36 9+1x60", f'{GPU},link="3",kind="resent"')],
        290,
        510,
    ),
    "TemperNvlinkLost": (
        [s("temper_gpu_nvlink_errors_total", "1x11 2x11", f'{GPU},link="3",kind="lost"')],
        55,
        65,
    ),
    "TemperHwThermalSlowdown": (slowed("hw_thermal_slowdown"), 115, 175),
    "TemperHwPowerBrakeSlowdown": (slowed("hw_power_brake_slowdown"), 115, 175),
    "TemperSwThermalSlowdown": (slowed("sw_thermal_slowdown"), 115, 175),
    "TemperHwSlowdown": (
        [s("temper_gpu_slowdown_active", "0x5 1x3 0x3 1x12", f'{GPU},reason="hw_slowdown"')],
        60,
        100,
    ),
    "TemperNodeUnreachable": ([s("up", "1x11 0x11"), s("temper_metrics_success", "1x11")], 65, 80),
    "TemperMetricsStale": (
        [
            s("temper_metrics_last_success_timestamp_seconds", "0+300x12 3600x12"),
            s("temper_metrics_interval_seconds", "300x24"),
        ],
        75,
        80,
    ),
    "TemperMetricsMissing": ([s("up", "1x24"), s("temper_metrics_success", "1x11 stale _x11")], 85, 95),
    "TemperTextfileUnreadable": (
        [s("node_textfile_scrape_error", "0x11 1x9"), s("temper_metrics_success", "1x20")],
        70,
        80,
    ),
    "TemperMaintenance": ([s("temper_maintenance", "0x11 1x9")], 55, 60),
    "TemperDrift": (verdict("temper_compliance_verdict", 'verdict="not-compliant"'), 40, 45),
    "TemperComplianceNotChecked": (verdict("temper_compliance_verdict", 'verdict="not-checked"'), 40, 45),
    "TemperComplianceOld": ([s("temper_compliance_timestamp_seconds", "-690000x9", CONTROLLER)], 15, 25),
    "TemperWaiverEnding": (
        [s("temper_compliance_waivers", "0x8 1x9", OF_CODE.format("waiver-ending"))],
        40,
        45,
    ),
    "TemperWaiverFault": (
        [s("temper_compliance_waivers", "0x8 1x9", OF_CODE.format("waiver-expired"))],
        40,
        45,
    ),
    "TemperValidationFailed": (verdict("temper_validation_state", 'state="fail"'), 40, 45),
    "TemperValidationNotRun": (verdict("temper_validation_state", 'state="not-run"'), 40, 45),
    "TemperValidationOld": ([s("temper_validation_timestamp_seconds", "-3023000x9", CONTROLLER)], 15, 20),
    **{
        "Temper" + "".join(map(str.capitalize, code.split("-"))): (
            verdict("temper_validation_finding", f'code="{code}",severity="fail",gpu="1"'),
            40,
            45,
        )
        for code in (
            *("wrong-result", "not-repeatable", "differs-from-own-past", "differs-from-fleet"),
            *("below-floor", "below-fleet", "below-own-past"),
        )
    },
}
#: The same, scraped every half hour for days.
LONG: dict[str, Case] = {
    "TemperRowsRemapped": (
        [s("temper_gpu_remapped_rows", "1x60 2x9", f'{GPU},kind="uncorrected"')],
        30 * HOUR,
        31 * HOUR,
    ),
    "TemperPagesRetired": (
        [s("temper_gpu_retired_pages", "1x60 2x9", f'{GPU},kind="corrected"')],
        30 * HOUR,
        31 * HOUR,
    ),
    "TemperMaintenanceLong": ([s("temper_maintenance", "0x1 1x60")], 30, 26 * HOUR),
    "TemperEccCorrectedRising": (
        [s("temper_gpu_ecc_errors_total", "0x24 5x95 5+1x192", f'{GPU},period="aggregate",kind="corrected"')],
        2 * DAY,
        6 * DAY,
    ),
    "TemperClockBelowFleet": (
        at_work(["1980x431", "1965x431", "1980x431", "1950x431", "1980x95 1700x335"], ["60x431"] * 5),
        2 * DAY,
        2 * DAY + 4 * HOUR,
    ),
    "TemperClockBelowOwnPast": (at_work(["1980x383 1700x47"], ["60x431"]), 8 * DAY, 8 * DAY + 4 * HOUR),
    "TemperHotterThanFleet": (
        at_work(["1980x431"] * 8, [f"{60 + index}x431" for index in range(7)] + ["66x95 90x335"]),
        2 * DAY,
        2 * DAY + 4 * HOUR,
    ),
    "TemperHotterThanOwnPast": (at_work(["1980x431"], ["60x383 75x47"]), 8 * DAY, 8 * DAY + 4 * HOUR),
}
#: Of which node an alert is, where that is not gpu01.
OF_NODE = (
    {"TemperClockBelowFleet": "gpu05", "TemperHotterThanFleet": "gpu08"}
    | {one.name: "gpu07" for one in ALERTS if alert_rules.OF_CONTROLLER.search(one.expr)}
    | dict.fromkeys(["TemperWaiverEnding", "TemperWaiverFault"], "controller")
)
#: Alerts that are right to fire with another.
BESIDE = {"TemperMaintenanceLong": ["TemperMaintenance"]}


def test_every_alert_with_an_expression_of_its_own_is_tried() -> None:
    own = {one.name for one in ALERTS if not one.expr.startswith("temper_finding")}
    assert CASES.keys() | LONG.keys() == own


@pytest.mark.component
@pytest.mark.parametrize(
    ("cases", "every_minutes"),
    [(CASES, 5), pytest.param(LONG, 30, marks=pytest.mark.nightly)],
    ids=["short", "long"],
)
def test_an_alert_is_silent_before_its_fault_and_fires_on_it_alone(
    cases: dict[str, Case], every_minutes: int, tmp_path: Path
) -> None:
    tests = []
    for name, (series, silent_at, fires_at) in cases.items():
        together = [alert(one, OF_NODE.get(name, "gpu01")) for one in (name, *BESIDE.get(name, []))]
        tests.append(
            {
                "name": name,
                "interval": f"{every_minutes}m",
                "input_series": series,
                "promql_expr_test": [firing([], silent_at), firing(together, fires_at)],
            }
        )
    evaluate(tests, tmp_path, every_minutes)


@pytest.mark.component
def test_a_fleet_at_work_is_silent_for_days(tmp_path: Path) -> None:
    """Clocks and temperatures swing, jobs come and go, single errors happen, programs crash with Xid 31."""
    steps = 480
    series = []
    for index in range(1, 9):
        instance = f'instance="gpu{index:02}:9100",job="node"'
        gpu = f'{instance},gpu="0",uuid="GPU-{index}"'
        of_controller = CONTROLLER.replace("07", f"{index:02}")
        swing = " ".join(["1980x15 1890x15"] * (steps // 32))
        heat = " ".join([f"{60 + index}x15 {64 + index}x15"] * (steps // 32))
        jobs = " ".join(["0.98x20 0x4"] * (steps // 26))
        series += [
            s("temper_gpu_clock_hertz", swing, f'{gpu},clock="sm"'),
            s("temper_gpu_temperature_celsius", heat, f'{gpu},sensor="gpu"'),
            s("temper_gpu_utilization_ratio", jobs, gpu),
            s("temper_gpu_info", f"1x{steps}", f'{gpu},pci_address="0",pci_id="2330",name="H100"'),
            s("temper_gpu_slowdown_seconds_total", f"0+60x{steps}", f'{gpu},reason="sw_thermal_slowdown"'),
            s("temper_gpu_ecc_errors_total", "0x99 1x380", f'{gpu},period="aggregate",kind="corrected"'),
            s("temper_gpu_ecc_errors_total", f"2x{steps}", f'{gpu},period="aggregate",kind="uncorrected"'),
            s("temper_gpu_pcie_replays_total", "0x200 4x279", gpu),
            s("temper_xid_errors_total", f"0x9 1+1x{steps}", f'{gpu},pci_address="0",xid="31"'),
            s("temper_gpu_remapped_rows", f"1x{steps}", f'{gpu},kind="uncorrected"'),
            s("up", f"1x{steps}", instance),
            s("temper_gpus", f"8x{steps}", instance),
            s("temper_maintenance", f"0x{steps}", instance),
            s("temper_metrics_success", f"1x{steps}", instance),
            s("temper_metrics_interval_seconds", f"1800x{steps}", instance),
            s("temper_metrics_last_success_timestamp_seconds", f"0+1800x{steps}", instance),
            s("temper_validation_state", f"1x{steps}", f'{of_controller},state="pass"'),
            s("temper_validation_timestamp_seconds", f"0x{steps}", of_controller),
        ]
    silent = [
        {"expr": 'ALERTS{alertstate="firing"}', "exp_samples": [], "eval_time": f"{minutes}m"}
        for minutes in range(30, steps * 30, 6 * HOUR)
    ]
    test = {"interval": "30m", "input_series": series, "promql_expr_test": silent}
    evaluate([test], tmp_path, 30)


@pytest.mark.component
def test_a_node_in_maintenance_is_named_as_its_other_alerts_name_it(tmp_path: Path) -> None:
    """What Alertmanager compares: an alert of a GPU and that of the maintenance have one label node."""
    lost = s("temper_finding", "1x20", f'{GPU},code="xid-79",severity="fail"')
    both = firing([alert("TemperMaintenance"), alert("TemperXid79")], 60)
    series = [s("temper_maintenance", "1x20"), lost]
    evaluate([{"interval": "5m", "input_series": series, "promql_expr_test": [both]}], tmp_path)
