"""What holds for the plans of all roles."""

import json
from typing import Any

import jsonschema

from temper.plan.node_plan import NodePlan, Stage
from temper.plan.roles import ROLES, nvidia_stack
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_roles.plans import (
    CONTROLS,
    bookworm,
    enterprise,
    trixie,
    whole_plan,
)
from tools.schemas import PLAN

WAYS_IN = {Kind.ACCOUNT, Kind.FIREWALL, Kind.SSHD, Kind.SSHD_ALGORITHM, Kind.SSHD_PARAMETER}
each_node = each(bookworm, trixie, enterprise)


def test_roles_are_in_the_order_of_their_stages() -> None:
    plan = whole_plan()
    assert [role.role for role in plan.roles] == [role.__name__.rpartition(".")[2] for role in ROLES]
    stages = list(Stage)
    assert [role.stage for role in plan.roles] == sorted((r.stage for r in plan.roles), key=stages.index)


@each_node
def test_a_plan_with_all_roles_is_json_of_the_schema(facts: dict[str, Any]) -> None:
    plan = whole_plan(facts, profiling_tools_install=True)
    document = json.loads(json.dumps(plan.as_dict()))
    jsonschema.validate(document, json.loads(PLAN.read_text()))
    assert NodePlan.from_dict(document).as_dict() == document


@each_node
def test_every_setting_has_a_reason_and_is_there_once(facts: dict[str, Any]) -> None:
    for role in whole_plan(facts, profiling_tools_install=True).roles:
        keys = [(setting.kind, setting.key) for setting in role.settings]
        assert len(set(keys)) == len(keys)
        assert all(setting.why for setting in role.settings)
        assert {control for setting in role.settings for control in setting.controls} <= CONTROLS.keys()


def test_ways_in_are_marked() -> None:
    users = [{"name": "ada", "keys": [], "state": "absent"}]
    for role in whole_plan(admin_accounts_users=users, ssh_hardening_forwarding_groups=["data"]).roles:
        assert all(setting.way_in == (setting.kind in WAYS_IN) for setting in role.settings)


#: Roles that nobody has asked for yet: what they once made is taken back.
OFF = ("profiling_tools", "monitoring", "pull")


@each(
    ("admin_accounts", set()),
    ("compute_environment", set()),
    # Which engines are given back is the operator's to say.
    ("container_engines", {"engines", "exclude"}),
    ("firewall", set()),
    ("gpu_settings", set()),
    ("os_hardening", set()),
    ("os_tuning", set()),
    ("ssh_hardening", set()),
)
def test_a_role_whose_state_is_absent_sets_nothing(role: str, kept: set[str]) -> None:
    state: dict[str, Any] = {f"{role}_state": "absent"}
    plan = whole_plan(**state)
    found = plan.role(role)
    assert ({setting.key for setting in found.settings}, found.options.absent) == (kept, True)
    assert {other.role for other in plan.roles if other.options.absent} == {role, *OFF}


def test_without_the_stack_there_is_nothing_for_it_to_serve() -> None:
    plan = whole_plan(nvidia_stack_state="absent")
    assert {role.role for role in plan.roles if role.options.absent} == {"nvidia_stack", "gpu_settings", *OFF}
    # A secret leaves no record, so that its absence is asked for.
    assert [setting.key for setting in plan.role("nvidia_stack").settings] == [nvidia_stack.MOK_KEY]
    assert (plan.driver, plan.packages, plan.refusals) == (None, {}, ())


def test_what_is_waived_is_in_the_plan_while_the_system_is_hardened() -> None:
    assert "sshd-max-startups" in [waived.id for waived in whole_plan().waived]
    assert whole_plan(os_hardening_state="absent").waived == ()


def test_what_is_expected_is_a_part_of_the_plan() -> None:
    plan = whole_plan()
    assert plan.driver
    assert plan.expectation
    assert (plan.expectation.gpu_count, plan.expectation.driver_version) == (8, plan.driver.version)
