"""The health of the GPUs as metrics for Prometheus, written by a timer for the distribution's exporter."""

from __future__ import annotations

import json

from temper.plan.convert import plain
from temper.plan.expectation import expectation
from temper.plan.node_plan import RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, no_file, package, render, unit

ROLE = "monitoring"
EXPECTATION = "/etc/temper/expectation.json"
PAYLOAD = "/usr/local/lib/temper-validation.pyz"
#: While it exists, the node is in maintenance: `touch` begins it, `rm` ends it.
MAINTENANCE = "/var/lib/temper/maintenance"
#: Where Debian's exporter looks for files.
TEXTFILES = "/var/lib/prometheus/node-exporter"
METRICS = f"{TEXTFILES}/temper.prom"
SERVICE = "/etc/systemd/system/temper-metrics.service"
TIMER = "/etc/systemd/system/temper-metrics.timer"


def role_plan(context: Context) -> RolePlan:
    """Return exporter, timer and what is expected of the node, where it is monitored."""
    wish = context.variables.monitoring
    options = RoleOptions(busy_ok=wish.busy_ok, absent=not wish.enabled)
    if not wish.enabled:
        stale = no_file(METRICS, "What nobody renews any more is not served")
        return RolePlan(ROLE, Stage.TUNE, (stale,), options=options)
    looked_at = "What the GPUs say is on record, and a fault is told"
    service = render(
        ROLE,
        "temper-metrics.service",
        python=context.python,
        payload=PAYLOAD,
        interval_s=wish.interval_s,
        expectation=EXPECTATION,
        maintenance=MAINTENANCE,
        folder=TEXTFILES,
        output=METRICS,
    )
    expected = plain(expectation(context.plan, context.variables, context.models)) or {}
    return RolePlan(
        ROLE,
        Stage.TUNE,
        (
            package("prometheus-node-exporter", looked_at),
            file(EXPECTATION, json.dumps(expected, sort_keys=True) + "\n", "A GPU that is gone is missed"),
            file(SERVICE, service, looked_at),
            file(TIMER, render(ROLE, "temper-metrics.timer", interval_s=wish.interval_s), looked_at),
            unit("prometheus-node-exporter", looked_at),
            unit("temper-metrics.timer", looked_at, restart_on=[SERVICE, TIMER]),
        ),
        options=options,
    )


def scraped(context: Context) -> dict[str, tuple[str, ...]]:
    """Return the services that the firewall opens for the scrapers, and their sources."""
    wish = context.variables.monitoring
    if not (wish.enabled and wish.scrapers):
        return {}
    exporters = ["node_exporter"]
    if "nvidia-dcgm-exporter" in context.plan.services:
        exporters.append("dcgm_exporter")
    return dict.fromkeys(exporters, wish.scrapers)
