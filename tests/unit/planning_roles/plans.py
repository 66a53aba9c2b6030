"""Plans of nodes with all roles, and what they have of each kind."""

from dataclasses import replace
from typing import Any

from temper.plan.convert import plain
from temper.plan.facts import NodeFacts
from temper.plan.model import Target
from temper.plan.node_plan import NodePlan, PlannedSetting, RolePlan
from temper.plan.plan import node_plan
from temper.plan.role_variables import role_variables, typed_variables
from temper.plan.roles import complete
from temper.plan.roles.context import Context, Fleet
from temper.plan.tables import load_tables
from temper.plan.wanted import Kind
from tests.unit.planning_nodes import H100, NVSWITCH, SWITCH, TABLES, gpus, node, system
from tests.unit.tables import ROOT, specs
from tools import control_docs
from tools.bare_node import pci

CONTROLS = {name: control for area in control_docs.controls().values() for name, control in area.items()}
PROGRAMS = {
    f"{name}.py": f"#!/usr/bin/python3 -IS\nprint({name!r})\n"
    for name in (
        "gpu_settings",
        "holders",
        "mig",
        "smi",
        "process",
        "cdi_nccl",
        "rank",
        "files",
        "lease",
        "pull/agent",
    )
}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n"
TRIXIE = {"id": "debian", "version_id": "13", "codename": "trixie", "pretty_name": "Debian 13"}
HGX = gpus(*[H100] * 8) + pci((SWITCH, NVSWITCH))

bookworm = node(pci=HGX)
trixie = node(pci=HGX, os=TRIXIE)
enterprise = system("rhel", "9.6", pci=HGX)


def whole_plan(
    facts: dict[str, Any] = bookworm, *, mok: bool = False, fleet: Fleet | None = None, **given: Any
) -> NodePlan:
    """The plan of a node of which the inventory sets these variables."""
    checked = role_variables(given, specs())
    assert checked["problems"] == []
    variables, read = typed_variables(checked["values"]), NodeFacts.from_dict(facts)
    bare = node_plan(read, load_tables(ROOT / "data"), variables, Target(address="192.0.2.7"))
    return complete(
        Context(
            replace(bare, mok=mok),
            variables,
            read,
            controls=CONTROLS,
            models=TABLES,
            fleet=fleet or Fleet(("192.0.2.7", "192.0.2.8"), ("gpu9",)),
            mok_certificate=CERTIFICATE,
            programs=PROGRAMS,
        )
    )


def planned(role: str, facts: dict[str, Any] = bookworm, **given: Any) -> RolePlan:
    """The part of one role."""
    return whole_plan(facts, **given).role(role)


def wanted(plan: RolePlan, kind: Kind) -> dict[str, Any]:
    """Key -> what is wanted, of one kind."""
    return {setting.key: plain(setting.wanted) for setting in plan.settings if setting.kind == kind}


def contents(plan: RolePlan) -> dict[str, str | None]:
    """Path -> content, None for a file that must not exist."""
    return {path: file and file["content"] for path, file in wanted(plan, Kind.FILE).items()}


def setting(plan: RolePlan, key: str) -> PlannedSetting:
    """The setting of this key."""
    return next(found for found in plan.settings if found.key == key)
