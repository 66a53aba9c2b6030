"""Make the Grafana dashboards of monitoring/dashboards/: the fleet, a node, a GPU.

    python3 -m tools.dashboards    write them and say what changed

Grafana's data source is a variable of each, so that they can be provisioned anywhere. uids are fixed, because
links lead to them; ids are Grafana's to give.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.documents import ROOT, write

FOLDER = ROOT / "monitoring" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, WIDTH = 3, 8
NODE = 'instance="$node"'
GPU = 'instance="$node",gpu="$gpu"'
STATES = {"pass": "green", "degraded": "orange", "fail": "red", "not-run": "blue"}


@dataclass(frozen=True)
class Panel:
    """One panel: its queries by their legend; `unit` is Grafana's name of it."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    height: int = 8

    def as_json(self, index: int, top: int) -> dict[str, Any]:
        """As Grafana reads it."""
        table = self.kind == "table"
        panel: dict[str, Any] = {
            "title": self.title,
            "type": self.kind,
            "datasource": SOURCE,
            "gridPos": {"x": index * WIDTH, "y": top, "w": WIDTH, "h": self.height},
            "targets": [
                {
                    "refId": chr(ord("A") + number),
                    "datasource": SOURCE,
                    "expr": expr,
                    "legendFormat": legend,
                    **({"instant": True} if self.kind != "timeseries" else {}),
                    **({"format": "table"} if table else {}),
                }
                for number, (legend, expr) in enumerate(self.queries.items())
            ],
            "fieldConfig": {
                "defaults": {"unit": self.unit},
                "overrides": [
                    {
                        "matcher": {"id": "byName", "options": state},
                        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
                    }
                    for state, colour in STATES.items()
                    if "{{state}}" in self.queries
                ],
            },
        }
        if table:
            hidden = dict.fromkeys(("Time", "Value", "__name__", "job", "alertstate"), True)
            panel["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        return panel


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a choice out of the values of a label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 3,
    }


OF_NODE = variable("node", "Node", "label_values(temper_metrics_success, instance)")
OF_GPU = variable("gpu", "GPU", 'label_values(temper_gpu_info{instance="$node"}, gpu)')
FLEET = [
    Panel("Nodes that report", {"nodes": "count(temper_metrics_success == 1)"}, kind="stat"),
    Panel(
        "GPUs",
        {"seen": "sum(temper_gpus)", "expected": "sum(temper_gpus_expected)"},
        kind="stat",
    ),
    Panel("GPUs by state", {"{{state}}": "sum by (state) (temper_gpu_health)"}),
    Panel("Alerts", {"": 'ALERTS{alertname=~"Temper.*",alertstate="firing"}'}, kind="table"),
    Panel("Findings", {"": "temper_finding == 1"}, kind="table"),
    Panel("In maintenance", {"": "temper_maintenance == 1"}, kind="table"),
    Panel(
        "Time since each node was looked at",
        {"{{instance}}": "topk(10, time() - temper_metrics_last_success_timestamp_seconds)"},
        "s",
    ),
    Panel(
        "Time since the validation",
        {"{{node}}": "topk(10, time() - temper_validation_timestamp_seconds)"},
        "s",
    ),
    Panel("Verdicts of the validation", {"{{state}}": "sum by (state) (temper_validation_state)"}),
    Panel(
        "Utilisation",
        {"mean": "avg(temper_gpu_utilization_ratio)"},
        "percentunit",
    ),
    Panel("Power", {"all GPUs": "sum(temper_gpu_power_watts)"}, "watt"),
    Panel(
        "Temperature",
        {
            "highest": 'max(temper_gpu_temperature_celsius{sensor="gpu"})',
            "median": 'quantile(0.5, temper_gpu_temperature_celsius{sensor="gpu"})',
        },
        "celsius",
    ),
    Panel("Xid errors in a day", {"Xid {{xid}}": "sum by (xid) (increase(temper_xid_errors_total[1d]))"}),
    Panel("Drivers", {"{{module}}": "count by (module) (temper_driver_info)"}),
    Panel("GPUs by model", {"{{name}}": "count by (name) (temper_gpu_info)"}),
]
ONE_NODE = [
    Panel("State", {"{{state}}": f"temper_health{{{NODE}}} == 1"}, kind="stat"),
    Panel("GPUs by state", {"{{state}}": f"sum by (state) (temper_gpu_health{{{NODE}}})"}),
    Panel("Findings", {"": f"temper_finding{{{NODE}}} == 1"}, kind="table"),
    Panel("Driver", {"": f"temper_driver_info{{{NODE}}}"}, kind="table"),
    Panel("GPUs", {"": f"temper_gpu_info{{{NODE}}}"}, kind="table"),
    Panel("Xid errors since the driver was loaded", {"": f"temper_xid_errors_total{{{NODE}}}"}, kind="table"),
    Panel("Utilisation", {"GPU {{gpu}}": f"temper_gpu_utilization_ratio{{{NODE}}}"}, "percentunit"),
    Panel("Temperature", {"GPU {{gpu}} {{sensor}}": f"temper_gpu_temperature_celsius{{{NODE}}}"}, "celsius"),
    Panel("Power", {"GPU {{gpu}}": f"temper_gpu_power_watts{{{NODE}}}"}, "watt"),
    Panel("SM clock", {"GPU {{gpu}}": f'temper_gpu_clock_hertz{{{NODE},clock="sm"}}'}, "hertz"),
    Panel("Memory in use", {"GPU {{gpu}}": f"temper_gpu_memory_used_bytes{{{NODE}}}"}, "bytes"),
    Panel(
        "Slowed down, part of the time",
        {"GPU {{gpu}} {{reason}}": f"rate(temper_gpu_slowdown_seconds_total{{{NODE}}}[1h])"},
        "percentunit",
    ),
    Panel("Time to look at the node", {"": f"temper_metrics_duration_seconds{{{NODE}}}"}, "s"),
]
ONE_GPU = [
    Panel("State", {"{{state}}": f"temper_gpu_health{{{GPU}}} == 1"}, kind="stat"),
    Panel("Model", {"": f"temper_gpu_info{{{GPU}}}"}, kind="table"),
    Panel("Findings", {"": f"temper_finding{{{GPU}}} == 1"}, kind="table"),
    Panel("Temperature", {"{{sensor}}": f"temper_gpu_temperature_celsius{{{GPU}}}"}, "celsius"),
    Panel(
        "Power",
        {"draw": f"temper_gpu_power_watts{{{GPU}}}", "limit": f"temper_gpu_power_limit_watts{{{GPU}}}"},
        "watt",
    ),
    Panel("Utilisation", {"": f"temper_gpu_utilization_ratio{{{GPU}}}"}, "percentunit"),
    Panel(
        "Clocks",
        {
            "{{clock}}": f"temper_gpu_clock_hertz{{{GPU}}}",
            "{{clock}} at most": f"temper_gpu_clock_max_hertz{{{GPU}}}",
        },
        "hertz",
    ),
    Panel(
        "Slowed down, part of the time",
        {"{{reason}}": f"rate(temper_gpu_slowdown_seconds_total{{{GPU}}}[1h])"},
        "percentunit",
    ),
    Panel(
        "Memory",
        {
            "in use": f"temper_gpu_memory_used_bytes{{{GPU}}}",
            "all": f"temper_gpu_memory_total_bytes{{{GPU}}}",
        },
        "bytes",
    ),
    Panel("Memory errors", {"{{kind}}, {{period}}": f"temper_gpu_ecc_errors_total{{{GPU}}}"}),
    Panel("Remapped rows", {"{{kind}}": f"temper_gpu_remapped_rows{{{GPU}}}"}),
    Panel("Xid errors since the driver was loaded", {"Xid {{xid}}": f"temper_xid_errors_total{{{GPU}}}"}),
    Panel(
        "PCIe link",
        {
            "generation": f"temper_gpu_pcie_link_generation{{{GPU}}}",
            "generation at most": f"temper_gpu_pcie_link_generation_max{{{GPU}}}",
            "lanes": f"temper_gpu_pcie_link_width_lanes{{{GPU}}}",
        },
    ),
    Panel(
        "PCIe packets sent again in an hour", {"": f"increase(temper_gpu_pcie_replays_total{{{GPU}}}[1h])"}
    ),
    Panel(
        "NVLinks",
        {"{{state}}": f"temper_gpu_nvlinks{{{GPU}}}"},
    ),
    Panel(
        "Errors of NVLinks in an hour",
        {"link {{link}} {{kind}}": f"increase(temper_gpu_nvlink_errors_total{{{GPU}}}[1h])"},
    ),
]
DASHBOARDS = {
    "fleet": ("Temper: fleet", FLEET, []),
    "node": ("Temper: node", ONE_NODE, [OF_NODE]),
    "gpu": ("Temper: GPU", ONE_GPU, [OF_NODE, OF_GPU]),
}


def dashboard(name: str) -> dict[str, Any]:
    """Return one of them as Grafana reads it."""
    title, panels, variables = DASHBOARDS[name]
    return {
        "uid": f"temper-{name}",
        "title": title,
        "tags": ["temper"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                *variables,
            ]
        },
        "links": [
            {
                "type": "dashboards",
                "title": "Temper",
                "tags": ["temper"],
                "asDropdown": True,
                "includeVars": True,
            }
        ],
        "panels": [
            panel.as_json(index % COLUMNS, index // COLUMNS * panel.height)
            for index, panel in enumerate(panels)
        ],
    }


def documents() -> dict[Path, str]:
    """Return the content of each file."""
    return {FOLDER / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS}


if __name__ == "__main__":
    sys.exit(write(documents()))
