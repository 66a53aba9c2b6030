"""Checked nodes for the tests of compliance: real plans of bare nodes, and observations made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from temper.base import DATA
from temper.compliance.model import Observation, State
from temper.compliance.statement import TITLES, CheckedNode, LastValidation, Rules
from temper.compliance.waivers import Waiver
from temper.plan.node_plan import NodePlan
from temper.plan.os_controls import OPERATOR, demanded, load_controls
from temper.plan.preflight import preflight_plan
from tests.unit.planning_nodes import node
from validation.model.contract import State as Measured

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RULES = Rules(NOW, timedelta(days=30), load_controls(DATA / "os_controls"), " -i inventory/mine")
KNOWN = {"address": "192.0.2.7", "user": "root", "today": "2026-11-22", "fleet": {}}
VARIABLES = {"firewall_ssh_ports": [22], "ssh_hardening_penalty_exempt_networks": []}
DRIVER = "580.95.05"
MEASURED = LastValidation(NOW - timedelta(days=3), Measured.PASS, DRIVER, "2026-11-19T12-00-00Z")


@cache
def plan(**variables: Any) -> NodePlan:
    """The plan of a bare node with one L4."""
    fact = preflight_plan({"ansible_facts": {"temper": node()}}, VARIABLES | variables, KNOWN)
    return NodePlan.from_fact(fact)


def observation(key: str, state: State = State.PASS, *controls: str, reason: str = "") -> Observation:
    return Observation(key, controls, state, reason)


def observations(made: NodePlan, *differing: Observation) -> dict[str, list[Observation]]:
    """Every setting of the plan as it should be, but for these."""
    other = {one.key: one for one in differing}
    found = {
        role.role: [
            other.pop(key, Observation(key, setting.controls, State.PASS, ""))
            for setting in role.settings
            for key in [f"{setting.kind}:{setting.key}"]
        ]
        for role in made.roles
    }
    found["admin_accounts"].append(observation("account"))
    found["os_hardening"].append(observation("audit:rules", State.PASS, "audit"))
    asked = demanded(RULES.os_controls, [one.id for one in made.waived if one.by != OPERATOR], made.system)
    found["demanded"] = [
        observation(f"{one['kind']}:{one['key']}", State.PASS, *one["controls"]) for one in asked
    ]
    conditions = [observation(key) for key in TITLES if key not in other]
    return found | {"node": [*conditions, *other.values()]}


def checked(name: str = "gpu01", *differing: Observation, **changes: Any) -> CheckedNode:
    """A node that is as it should be, but for these."""
    made = plan()
    good = CheckedNode(
        name,
        ("gpu_nodes",),
        made,
        observations(made, *differing),
        driver=DRIVER,
        validation=MEASURED,
    )
    return replace(good, **changes)


def waiver(control: str = "os_tuning/sysctl:vm.swappiness", **changes: Any) -> Waiver:
    given: dict[str, Any] = {
        "control": control,
        "reason": "jobs need it",
        "owner": "ada",
        "approver": "grace",
        "ticket": "OPS-7",
        "expires": NOW + timedelta(days=90),
    }
    return Waiver(**given | changes)
