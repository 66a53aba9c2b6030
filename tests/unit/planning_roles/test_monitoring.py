"""What monitoring sets: a timer, a service that the payload understands, a firewall open to scrapers."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from temper.plan.node_plan import RolePlan
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_nodes import assert_says, problem, system
from tests.unit.planning_roles.plans import bookworm, contents, planned, wanted, whole_plan
from validation.checks.registry import TESTS
from validation.cli.arguments import parser
from validation.model.expectations import parse_expectation

ON: dict[str, Any] = {"monitoring_enabled": True}
UNITS = "/etc/systemd/system/"
SERVICE, TIMER = f"{UNITS}temper-metrics.service", f"{UNITS}temper-metrics.timer"
METRICS = "/var/lib/prometheus/node-exporter/temper.prom"


def command(found: RolePlan) -> list[str]:
    """What the service runs."""
    (line,) = (one for one in (contents(found)[SERVICE] or "").splitlines() if one.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def test_by_default_nothing_is_installed_and_no_old_values_are_served() -> None:
    found = planned("monitoring")
    assert contents(found) == {METRICS: None}
    assert len(found.settings) == 1


def test_exporter_and_timer_are_enabled() -> None:
    found = planned("monitoring", **ON)
    assert wanted(found, Kind.PACKAGE) == {"prometheus-node-exporter": {"version": "", "held": False}}
    units = wanted(found, Kind.UNIT)
    assert units.keys() == {"prometheus-node-exporter.service", "temper-metrics.timer"}
    assert units["temper-metrics.timer"]["restart_on"] == [SERVICE, TIMER]


def test_the_service_runs_what_the_payload_understands() -> None:
    found = planned("monitoring", **ON, monitoring_interval_s=120)
    python, flag, payload, *arguments = command(found)
    assert (python, flag, payload) == ("/usr/bin/python3", "-IB", "/usr/local/lib/temper-validation.pyz")
    options = parser().parse_args(arguments)
    assert (options.interval, str(options.output)) == (120, METRICS)
    assert str(options.maintenance) == "/var/lib/temper/maintenance"
    assert "OnUnitActiveSec=120\n" in (contents(found)[TIMER] or "")


def test_the_node_knows_what_is_expected_of_it() -> None:
    plan = whole_plan(**ON)
    (path,) = (one for one in command(plan.role("monitoring")) if one.startswith("--expect="))
    text = contents(plan.role("monitoring"))[path.removeprefix("--expect=")]
    assert parse_expectation(text or "", TESTS) == plan.expectation
    assert json.loads(text or "")["gpus"][0]["count"] == 8


@each(
    ({"monitoring_enabled": False}, {}),
    ({"monitoring_scrapers": []}, {}),
    ({}, {"node_exporter": ["192.0.2.9/32"]}),
    (
        {"firewall_services": {"node_exporter": ["198.51.100.0/24"], "slurmd": ["192.0.2.1"]}},
        {"node_exporter": ["198.51.100.0/24", "192.0.2.9/32"], "slurmd": ["192.0.2.1"]},
    ),
    (
        {"nvidia_stack_dcgm_exporter": True},
        {"node_exporter": ["192.0.2.9/32"], "dcgm_exporter": ["192.0.2.9/32"]},
    ),
)
def test_the_firewall_is_open_to_the_scrapers_of_what_is_there(
    values: dict[str, Any], services: dict[str, list[str]]
) -> None:
    found = planned("firewall", **{**ON, "monitoring_scrapers": ["192.0.2.9/32"], **values})
    assert wanted(found, Kind.FIREWALL)["services"] == services


def test_a_firewall_that_is_taken_away_is_opened_for_nobody() -> None:
    found = planned("firewall", **ON, monitoring_scrapers=["192.0.2.9"], firewall_state="absent")
    assert found.settings == ()


def test_a_node_that_has_no_such_package_is_refused() -> None:
    assert_says(problem(system("rocky", "9.6"), **ON), "monitoring_enabled", "rhel-9")


def test_a_period_that_is_shorter_than_a_look_may_take_is_refused() -> None:
    assert_says(problem(bookworm, **ON, monitoring_interval_s=30), "monitoring_interval_s is 30", "60")


def test_the_sandbox_leaves_the_service_the_devices_of_the_gpus() -> None:
    """Each of these keeps a service from devices that it does not name (systemd.exec(5))."""
    options = {
        line.partition("=")[0] for line in (contents(planned("monitoring", **ON))[SERVICE] or "").splitlines()
    }
    assert not options & {
        "PrivateDevices",
        "ProtectClock",
        "DeviceAllow",
        "DevicePolicy",
        "ProtectKernelLogs",
    }


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_accepts_the_units_and_finds_them_well_locked_up(tmp_path: Path) -> None:
    files = contents(planned("monitoring", **ON))
    service, timer = (tmp_path / path.rpartition("/")[2] for path in (SERVICE, TIMER))
    service.write_text((files[SERVICE] or "").replace("/usr/bin/python3", "/bin/true"))
    timer.write_text(files[TIMER] or "")
    verify = ["systemd-analyze", "verify", "--recursive-errors=no", str(service), str(timer)]
    verified = subprocess.run(verify, capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=yes", "--threshold=40", str(service)]
    judged = subprocess.run(security, capture_output=True, text=True)
    # 4.0 of 10 at most: systemd calls that OK.
    assert judged.returncode == 0, judged.stdout + judged.stderr
