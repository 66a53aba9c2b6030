"""Make Prometheus' alert rules, and their table for people, of data/alerts.yml and the catalogue of findings.

    python3 -m tools.alert_rules    write the rules and docs/reference/alerts.md, name what changed

tests/unit/monitoring/test_rules.py fails when they are not what this would write.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from temper.compliance import metrics
from temper.judge import fleet_metrics
from temper.plan.tables import read_yaml
from tools.documents import ROOT, write
from validation.findings.catalogue import catalogue
from validation.metrics import node_metrics

DATA = ROOT / "data" / "alerts.yml"
RULES = ROOT / "monitoring" / "rules"
PAGE = ROOT / "docs/reference/alerts.md"
INTRODUCTION = """\
# Alerts and metrics

*For operators on call: find an alert's meaning and remedy, and what each metric is.*

<!-- Made by `make docs` from data/alerts.yml, data/findings/ and validation/metrics: change those. -->

[monitoring.md](../operate/monitoring.md) says how to set monitoring up. Each alert has its remedy in the
annotation `remedy`. One with a code is a finding: [findings.md](findings.md) and `temper explain CODE` say
what it means and what to do.

"""
HEADER = "# Made by `make docs` from data/alerts.yml and data/findings/: change those.\n---\n"
#: Which GPU of which node, in front of what happened; an alert of the node has no label gpu.
WHERE = "{{ $labels.instance }}{{ if $labels.gpu }} GPU {{ $labels.gpu }}{{ end }}: "
WHERE_MEASURED = "{{ $labels.node }}{{ if $labels.gpu }} GPU {{ $labels.gpu }}{{ end }}: "
#: What the controller exports for a node has the node's name as a label already.
OF_CONTROLLER = re.compile("temper_validation_|temper_compliance_(verdict|timestamp)")
#: The node's name, without the exporter's port: what maintenance and verdicts have in common with its alerts.
NODE = '{{ reReplaceAll ":[0-9]+$" "" $labels.instance }}'


@dataclass(frozen=True)
class Alert:
    """One rule. `code` is that of the finding whose words it has, empty where it has its own."""

    name: str
    file: str
    expr: str
    severity: str
    hold: str
    why: str
    code: str
    summary: str
    meaning: str
    remedy: tuple[str, ...]
    source: str

    def as_rule(self) -> dict[str, Any]:
        """Return the rule as Prometheus reads it."""
        measured = bool(OF_CONTROLLER.search(self.expr))
        labels = {"severity": self.severity} | ({"code": self.code} if self.code else {})
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.hold} if self.hold != "0m" else {}),
            "labels": labels | ({} if measured else {"node": NODE}),
            "annotations": {
                "summary": (WHERE_MEASURED if measured else WHERE) + self.summary,
                "meaning": self.meaning,
                "remedy": "; ".join(self.remedy),
                **({"source": self.source} if self.source else {}),
            },
        }


def of_findings(groups: list[dict[str, Any]]) -> list[Alert]:
    """Return one alert for each code; two of one name where it pages or not by how bad it is."""
    by_state = {"fail": "page", "degraded": "ticket"}
    return [
        _alert(
            "Temper" + "".join(part.capitalize() for part in code.split("-")),
            {
                "file": "hardware",
                "severity": severity,
                "for": group["for"],
                "why": group["why"],
                "code": code,
                "expr": f"temper_finding{{{selector}}} == 1",
            },
        )
        for group in groups
        for code in group["codes"]
        for severity, selector in (
            [(level, f'code="{code}",severity="{state}"') for state, level in by_state.items()]
            if group["severity"] == "by-state"
            else [(group["severity"], f'code="{code}"')]
        )
    ]


def _alert(name: str, entry: dict[str, Any]) -> Alert:
    """Return an alert with the catalogue's words where it has none of its own. Raises KeyError."""
    code = entry.get("code", "")
    known = catalogue()[code] if code else None
    title = known.title if known else ""
    if xid := re.fullmatch(r"xid-(\d+)", code):
        title = f"Xid {xid[1]}, {title}"
    return Alert(
        name=name,
        file=entry["file"],
        expr=entry["expr"],
        severity=entry["severity"],
        hold=entry["for"],
        why=entry["why"],
        code=code,
        summary=entry.get("summary") or title,
        meaning=entry.get("meaning") or (known.meaning if known else ""),
        remedy=tuple(entry.get("remedy") or (known.remedy if known else ())),
        source=entry.get("source") or (known.source if known else ""),
    )


def load() -> tuple[dict[str, str], list[Alert]]:
    """Return the recording rules by name, and all alerts."""
    data = read_yaml(DATA)
    own = [_alert(name, entry) for name, entry in data["alerts"].items()]
    return data["records"], [*of_findings(data["findings"]), *own]


def rules() -> dict[Path, str]:
    """Return the files of rules."""
    records, alerts = load()
    groups: dict[str, list[dict[str, Any]]] = {
        "records": [{"record": name, "expr": expr} for name, expr in records.items()]
    }
    for alert in alerts:
        groups.setdefault(alert.file, []).append(alert.as_rule())
    return {
        RULES / f"{name}.yml": HEADER
        + yaml.safe_dump(
            {"groups": [{"name": f"temper-{name}", "rules": found}]},
            sort_keys=False,
            width=110,
            allow_unicode=True,
        )
        for name, found in groups.items()
    }


def alert_table() -> str:
    """Return all alerts for people, in the order in which they are most urgent."""
    lines = ["| Alert | Told as | After | What it means | What to do |", "|---|---|---|---|---|"]
    order = ["page", "ticket", "none"]
    for alert in sorted(load()[1], key=lambda alert: order.index(alert.severity)):
        what = f"{alert.summary} (`{alert.code}`)" if alert.code else f"{alert.summary}. {alert.meaning}"
        held = "at once" if alert.hold == "0m" else alert.hold
        remedy = "" if alert.code else "; ".join(alert.remedy)
        lines.append(f"| `{alert.name}` | {alert.severity} | {held} | {what} | {remedy} |")
    return "\n".join(lines) + "\n"


def metric_table() -> str:
    """Return all metrics for people."""
    lines = ["| Metric | Kind | Labels | Says |", "|---|---|---|---|"]
    lines += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |"
        for metric in (*node_metrics.METRICS, *fleet_metrics.METRICS, *metrics.ALL)
    ]
    return "\n".join(lines) + "\n"


def documents() -> dict[Path, str]:
    """Return the content of each file that is made from the data."""
    return rules() | {PAGE: f"{INTRODUCTION}## Alerts\n\n{alert_table()}\n## Metrics\n\n{metric_table()}"}


if __name__ == "__main__":
    sys.exit(write(documents()))
