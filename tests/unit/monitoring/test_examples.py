"""The examples for Prometheus and Alertmanager, as those programs read them."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.monitoring import programs
from tools.documents import ROOT

pytestmark = pytest.mark.component

ALERTMANAGER = ROOT / "monitoring/alertmanager.yml"


def test_promtool_accepts_the_example_and_its_rules() -> None:
    checked = programs.run("promtool", "check", "config", ROOT / "monitoring/prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "5 rule files found" in checked.stdout


def test_amtool_accepts_the_example() -> None:
    checked = programs.run("amtool", "check-config", ALERTMANAGER)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@each(("page", "pager"), ("ticket", "tickets"), ("none", "nobody"))
def test_an_alert_goes_to_whom_its_severity_says(severity: str, receiver: str) -> None:
    options = [f"--config.file={ALERTMANAGER}", f"--verify.receivers={receiver}", f"severity={severity}"]
    checked = programs.run("amtool", "config", "routes", "test", *options)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_maintenance_inhibits_the_alerts_of_its_node_and_of_no_other(tmp_path: Path) -> None:
    options = [f"--config.file={ALERTMANAGER}", f"--storage.path={tmp_path}", "--cluster.listen-address="]
    with programs.server("prometheus-alertmanager", options, "/-/ready") as url:
        alerts: list[dict[str, Any]] = [
            {"labels": {"alertname": name, "node": node, "severity": "page"}}
            for name, node in (
                ("TemperMaintenance", "gpu01"),
                ("TemperMaintenanceLong", "gpu01"),
                ("TemperXid79", "gpu01"),
                ("TemperXid79", "gpu02"),
                ("SomebodyElses", "gpu01"),
            )
        ]
        request = urllib.request.Request(  # noqa: S310 - on loopback
            f"{url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - on loopback
            assert answer.status == 200
        # What inhibits others hears of an alert after it has been taken.
        inhibited: set[tuple[str, str]] = set()
        deadline = time.monotonic() + 60
        while not inhibited and time.monotonic() < deadline:
            found = json.loads(programs.get(f"{url}/api/v2/alerts"))
            inhibited = {
                (one["labels"]["alertname"], one["labels"]["node"])
                for one in found
                if one["status"]["inhibitedBy"]
            }
    assert inhibited == {("TemperXid79", "gpu01")}
    assert len(found) == len(alerts)
