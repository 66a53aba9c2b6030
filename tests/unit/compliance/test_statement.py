"""A fleet's statement: what is a failure, what nobody knows, what is waived, and what repairs it."""

import json
import os
import subprocess
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from ansible.module_utils.temper.settings.kinds import SIMPLE
from ansible.module_utils.temper.settings.observe import ASKED

from temper.base import DATA
from temper.compliance.answers import answer
from temper.compliance.history import Known
from temper.compliance.model import (
    Change,
    ControlResult,
    NodeStatement,
    Observation,
    State,
    Statement,
    Verdict,
    WaivedBy,
    WaiverFault,
)
from temper.compliance.statement import CheckedNode, statement
from temper.plan.node_plan import NodePlan, Stage
from temper.plan.os_controls import demand_of, demanded
from temper.plan.preflight import preflight_plan
from temper.plan.refusals import refusal
from temper.report.compliance import checked_node
from temper.report.fleet import page_of
from temper.report.inputs import Report
from temper.report.statement import junit, sarif, text, together
from tests.unit.compliance.fleets import (
    DRIVER,
    KNOWN,
    MEASURED,
    NOW,
    RULES,
    VARIABLES,
    checked,
    observation,
    observations,
    plan,
    waiver,
)
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.planning_nodes import node
from validation.model.contract import State as Measured
from validation.model.contract import dumps, loads

SSHD = "sshd:PasswordAuthentication"
CONTROL = f"ssh_hardening/{SSHD}"
BROKEN = observation(SSHD, State.FAIL, reason="found yes, wanted no")


def states(node: CheckedNode) -> dict[str, State]:
    return {control.id: control.state for control in statement([node], RULES, {}).nodes[0].controls}


UNREACHABLE = CheckedNode("gpu02", problem="unreachable: no route to host")


@each(
    ([checked()], Verdict.COMPLIANT, 0),
    ([checked("gpu01", observation(SSHD, State.NOT_CHECKED, reason="sshd hangs"))], Verdict.NOT_CHECKED, 2),
    ([checked(), UNREACHABLE], Verdict.NOT_CHECKED, 2),
    ([checked("gpu01", BROKEN), UNREACHABLE], Verdict.NOT_COMPLIANT, 1),
    ([], Verdict.NOT_CHECKED, 2),
)
def test_a_known_fault_comes_before_what_nobody_knows_which_is_no_pass(
    nodes: list[CheckedNode], verdict: Verdict, status: int
) -> None:
    made = statement(nodes, RULES, {})
    assert (made.verdict, made.verdict.exit_status) == (verdict, status)
    assert verdict is not Verdict.COMPLIANT or not any(one.remedy for one in made.nodes[0].controls)
    assert (UNREACHABLE in nodes) <= ("gpu02" in made.sentence)


def test_every_observation_is_some_controls() -> None:
    """Nothing that the node said is lost between its answer and the statement."""
    made = plan()
    for role in made.roles:
        for setting in role.settings:
            key = f"{setting.kind}:{setting.key}"
            failing = observation(key, State.FAIL, *setting.controls, reason="it differs")
            told = statement([checked("gpu01", failing)], RULES, {})
            assert told.verdict is Verdict.NOT_COMPLIANT, (role.role, key)


def test_a_failure_names_the_command_that_repairs_it() -> None:
    made = statement([checked("gpu01", BROKEN)], RULES, {})
    (control,) = [control for control in made.nodes[0].controls if control.state is State.FAIL]
    assert (made.verdict.exit_status, control.id) == (1, CONTROL)
    expected = "ansible-playbook -i inventory/mine playbooks/harden.yml --limit gpu01 --tags ssh_hardening"
    assert control.remedy == expected


def test_what_somebody_else_has_made_is_repaired_first() -> None:
    masked = replace(
        observation("unit:nvidia-persistenced.service", State.FAIL),
        repair=(("unmask", "nvidia-persistenced.service"),),
    )
    made = statement([checked("gpu01", masked)], RULES, {})
    remedies = {control.remedy for control in made.nodes[0].controls if control.state is State.FAIL}
    assert all(
        remedy.startswith(
            "ansible -i inventory/mine gpu01 --become --module-name shell --args 'systemctl unmask"
        )
        and " && ansible-playbook " in remedy
        for remedy in remedies
    )


def test_a_control_that_the_profile_relaxes_is_waived_with_its_reason() -> None:
    (control,) = [
        c for c in statement([checked()], RULES, {}).nodes[0].controls if c.id == "os_hardening/tmp-noexec"
    ]
    assert control.state is State.WAIVED
    assert "profile gpu" in control.waiver


def relaxed(name: str, *measured: Observation) -> ControlResult:
    node = checked()
    assert node.observations is not None
    asked = replace(node, observations={**node.observations, "demanded": measured})
    (control,) = [
        c for c in statement([asked], RULES, {}).nodes[0].controls if c.id == f"os_hardening/{name}"
    ]
    return control


@each(State.PASS, State.FAIL, State.NOT_CHECKED, State.NOT_APPLICABLE)
def test_a_control_that_the_profile_relaxes_says_what_the_benchmark_would(state: State) -> None:
    control = relaxed("ip-forwarding", observation("sysctl:net.ipv4.ip_forward", state, "ip-forwarding"))
    assert (control.state, control.measured, control.waived_by) == (State.WAIVED, state, WaivedBy.PROFILE)


def test_what_nobody_can_measure_is_said_to_be_not_checked_and_never_not_applicable() -> None:
    control = relaxed("bootloader")
    assert (control.state, control.measured) == (State.WAIVED, State.NOT_CHECKED)
    assert "no way to measure" in control.reason


def test_a_profiles_own_setting_that_drifts_fails_although_the_control_is_relaxed() -> None:
    own = observation("sysctl:kernel.yama.ptrace_scope", State.FAIL, "ptrace-scope", reason="0")
    assert states(checked("gpu01", own))["os_hardening/ptrace-scope"] is State.FAIL


def test_what_the_profile_and_what_the_operator_accept_are_counted_apart() -> None:
    told = statement([checked("gpu01", BROKEN, waivers=(waiver(CONTROL),))], RULES, {})
    (node,) = told.nodes
    assert node.waived(WaivedBy.OPERATOR, State.FAIL) == node.waived(WaivedBy.OPERATOR) == 1
    assert node.waived(WaivedBy.PROFILE) == node.count(State.WAIVED) - 1
    assert text(told).count(f"Waived, and would fail:\n  {CONTROL}: ") == 1


def test_every_demand_of_the_benchmark_can_be_asked_of_a_node() -> None:
    names = [waived.id for waived in plan().waived]
    items = demanded(RULES.os_controls, names)
    assert {item["kind"] for item in items} <= {*SIMPLE, *ASKED}
    assert json.loads(json.dumps(items)) == items
    measured = {name for item in items for name in item["controls"]}
    # The rest has neither a demand nor settings in any profile, but for packages, which nothing is asked of.
    assert all(demand_of(RULES.os_controls[name]).keys() <= {"packages"} for name in set(names) - measured)
    assert {"partitions", "tmp-noexec", "ip-forwarding", "udf", "sudo-log", "squashfs"} <= measured


def test_a_control_that_the_operator_leaves_out_needs_a_waiver_with_an_end() -> None:
    made = plan()
    relaxed = replace(
        made, waived=(replace(made.waived[0], id="aslr", by="the operator", reason="jobs need it"),)
    )
    node = checked(plan=relaxed)
    assert states(node)["os_hardening/aslr"] is State.FAIL
    assert states(replace(node, waivers=(waiver("os_hardening/aslr"),)))["os_hardening/aslr"] is State.WAIVED


@each(
    (None, "no report"),
    (replace(MEASURED, state=Measured.FAIL), "fail"),
    (replace(MEASURED, state=Measured.NOT_RUN), "not-run"),
    (replace(MEASURED, made_at=NOW - timedelta(days=31)), "31 days"),
    (replace(MEASURED, driver="570.1"), DRIVER),
)
def test_a_validation_that_proves_nothing_now_is_a_failure(validation: object, word: str) -> None:
    made = statement([checked(validation=validation)], RULES, {})
    (control,) = [control for control in made.nodes[0].controls if control.state is State.FAIL]
    assert control.id == "validation/last"
    assert word in control.reason
    assert control.remedy.endswith("playbooks/validate.yml --limit gpu01")


def test_a_degraded_node_has_been_validated() -> None:
    degraded = checked(validation=replace(MEASURED, state=Measured.DEGRADED))
    assert statement([degraded], RULES, {}).verdict is Verdict.COMPLIANT


def test_a_plan_with_problems_is_a_failure_and_the_rest_is_still_compared() -> None:
    refused = replace(
        plan(), refusals=(refusal("variable-value", reason="os_tuning_nofiles: no role has such a variable"),)
    )
    made = statement([checked("gpu01", BROKEN, plan=refused)], RULES, {})
    failing = {
        control.id: control.reason for control in made.nodes[0].controls if control.state is State.FAIL
    }
    assert failing.keys() == {"node/plan", CONTROL}
    assert "os_tuning_nofiles" in failing["node/plan"]


def test_hardening_that_is_taken_back_has_no_controls() -> None:
    made = plan()
    roles = tuple(
        replace(role, settings=(), options=replace(role.options, absent=True))
        if role.role == "os_hardening"
        else role
        for role in made.roles
    )
    absent = replace(made, roles=roles, waived=())
    assert "aslr" not in states(checked(plan=absent, observations=observations(absent)))


# --------------------------------------------------------------------- waivers


def test_a_waived_control_is_still_measured() -> None:
    made = statement([checked("gpu01", BROKEN, waivers=(waiver(CONTROL),))], RULES, {})
    (control,) = [control for control in made.nodes[0].controls if control.id == CONTROL]
    assert (made.verdict, control.state, control.measured) == (Verdict.COMPLIANT, State.WAIVED, State.FAIL)
    assert "OPS-7" in control.waiver


def test_a_waiver_is_for_its_nodes_and_groups_only() -> None:
    for scope, verdict in (("gpu01", Verdict.COMPLIANT), ("gpu_nodes", Verdict.COMPLIANT)):
        node = checked("gpu01", BROKEN, waivers=(waiver(CONTROL, nodes=(scope,)),))
        assert statement([node], RULES, {}).verdict is verdict
    other = checked("gpu01", BROKEN, waivers=(waiver(CONTROL, nodes=("gpu02",)),))
    assert statement([other], RULES, {}).verdict is Verdict.NOT_COMPLIANT


@each(
    ({"expires": NOW}, WaiverFault.EXPIRED, Verdict.NOT_COMPLIANT),
    ({"expires": NOW + timedelta(seconds=1)}, WaiverFault.ENDING, Verdict.COMPLIANT),
    ({"expires": NOW + timedelta(days=30)}, WaiverFault.ENDING, Verdict.COMPLIANT),
    ({"valid_from": NOW + timedelta(days=1)}, WaiverFault.NOT_YET_VALID, Verdict.NOT_COMPLIANT),
    ({"control": "ssh_hardening/typo"}, WaiverFault.UNMATCHED, Verdict.NOT_COMPLIANT),
)
def test_a_waiver_that_somebody_has_to_look_at_is_named(
    changes: dict[str, Any], code: WaiverFault, verdict: Verdict
) -> None:
    made = statement(
        [checked("gpu01", BROKEN, waivers=(waiver(**{"control": CONTROL} | changes),))], RULES, {}
    )
    assert [finding.code for finding in made.waivers] == [code]
    assert made.verdict is verdict


def test_an_expired_waiver_is_a_finding_even_where_nothing_fails() -> None:
    made = statement([checked(waivers=(waiver(CONTROL, expires=NOW),))], RULES, {})
    assert made.verdict is Verdict.NOT_COMPLIANT


def test_a_waiver_that_is_no_longer_needed_is_said_and_no_failure() -> None:
    made = statement([checked(waivers=(waiver(CONTROL),))], RULES, {})
    assert [finding.code for finding in made.waivers] == [WaiverFault.UNNEEDED]
    assert made.verdict is Verdict.COMPLIANT


def test_a_waiver_whose_nodes_were_not_checked_is_not_judged() -> None:
    one = waiver(CONTROL)
    silent = CheckedNode("gpu02", problem="unreachable", waivers=(one,))
    assert not statement([silent], RULES, {}).waivers
    assert not statement([checked(waivers=(one,)), silent], RULES, {}).waivers
    elsewhere = waiver("nothing/here", nodes=("gpu09",))
    assert not statement([checked(waivers=(elsewhere,))], RULES, {}).waivers


@pytest.mark.parametrize("control", [CONTROL, "container_engines/file:/etc/docker/daemon.json"])
@pytest.mark.parametrize("nodes", [(), ("leaf2",), ("gpu01", "gpu02")])
def test_a_run_of_some_nodes_does_not_judge_a_waiver_of_others(control: str, nodes: tuple[str, ...]) -> None:
    """`--limit gpu01`: who removes the waiver then takes it from gpu02, which may need it."""
    one = checked("gpu01", waivers=(waiver(control, nodes=nodes),))
    made = statement([one], RULES, {}, {"gpu02": ["gpu_nodes", "leaf2"]})
    assert (made.waivers, made.verdict) == ((), Verdict.COMPLIANT)


def test_a_run_of_some_nodes_judges_a_waiver_of_theirs_alone() -> None:
    one = checked("gpu01", waivers=(waiver("no/such", nodes=("gpu01",)), waiver(CONTROL, expires=NOW)))
    made = statement([one], RULES, {}, {"gpu02": ["gpu_nodes"]})
    assert [finding.code for finding in made.waivers] == [WaiverFault.UNMATCHED, WaiverFault.EXPIRED]


# ------------------------------------------------------------ what has changed


def test_only_a_state_that_was_known_can_have_changed() -> None:
    made = statement(
        [checked("gpu01", BROKEN)], RULES, {"gpu01": {CONTROL: Known(State.PASS, "2026-11-01T00:00:00Z")}}
    )
    assert [(one.control, one.before, one.now) for one in made.changed] == [(CONTROL, State.PASS, State.FAIL)]
    assert not statement([checked("gpu01", BROKEN)], RULES, {}).changed


@each(*[role.role for role in plan().roles])
def test_the_tag_in_a_repair_is_the_roles_in_its_playbook(role: str) -> None:
    """A tag that a playbook does not know carries nothing out, and ends with 0."""
    stage = plan().role(role).stage
    (play, *_) = [
        play
        for play in yaml.safe_load((DATA.parent / f"playbooks/{stage}.yml").read_text())
        if stage in play.get("tags", [])
    ]
    tasks = play["tasks"]
    if imported := tasks[0].get("ansible.builtin.import_tasks"):
        tasks = yaml.safe_load((DATA.parent / "playbooks" / imported).read_text())
    tags = {task["ansible.builtin.import_role"]["name"]: task.get("tags") for task in tasks}
    assert tags[role] == [role]


@pytest.mark.component
def test_a_reboot_that_is_due_has_a_command_that_asks_first(tmp_path: Path) -> None:
    """As a shell runs it, with an `ansible` that only notes that it was called."""
    due = observation("reboot", State.FAIL, reason="a newer kernel is installed")
    made = statement([checked("gpu01", due)], RULES, {})
    remedy = next(one.remedy for one in made.nodes[0].controls if one.id == "node/reboot")
    executable(tmp_path / "ansible", f'echo "$@" >> {tmp_path}/called')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for typed in ("", "\n", "yes\n", "gpu02\n"):
        done = subprocess.run(["sh", "-c", remedy], input=typed, env=environment, text=True)
        assert done.returncode
    assert not (tmp_path / "called").exists()
    asked = subprocess.run(
        ["sh", "-c", remedy], input="gpu01\n", env=environment, text=True, capture_output=True
    )
    assert (asked.returncode, "gpu01" in asked.stdout) == (0, True)
    assert (tmp_path / "called").read_text().split() == [
        *("-i", "inventory/mine", "gpu01", "--become", "--module-name", "reboot")
    ]


def test_what_is_passed_on_of_a_node_gives_the_same_statement_as_its_whole_plan() -> None:
    peers = {"addresses": [f"192.0.2.{number}" for number in range(200)], "unknown": []}
    fact = preflight_plan({"ansible_facts": {"temper": node()}}, VARIABLES, KNOWN | {"fleet": peers})
    whole = replace(checked(), plan=NodePlan.from_fact(fact))
    found = {role: [asdict(one) for one in ones] for role, ones in (whole.observations or {}).items()}
    said = answer(fact, found, whole.driver)
    assert "192.0.2.199" not in said
    passed_on = checked_node(whole.name, whole.groups, {"answer": said}, ())
    assert passed_on.problem == ""
    passed_on = replace(passed_on, validation=whole.validation)
    assert statement([passed_on], RULES, {}) == statement([whole], RULES, {})


@each(
    ("", (Change("vm.x", "1", "0"),), "vm.x: found 1, wanted 0"),
    ("", (Change("packages", "", "a=1"),), "packages: found nothing, wanted a=1"),
    ("it is off.", (), "it is off"),
    ("it is off", (Change("vm.x", "1", "0"),), "it is off; vm.x: found 1, wanted 0"),
    (
        "",
        tuple(Change(f"k{number}", "1", "0") for number in range(5)),
        "k0: found 1, wanted 0; k1: found 1, wanted 0; k2: found 1, wanted 0; and 2 more",
    ),
)
def test_a_failure_is_told_by_what_was_found_and_wanted_in_every_form(
    reason: str, changes: tuple[Change, ...], why: str
) -> None:
    failing = ControlResult("os_hardening/x", "The goal", State.FAIL, reason, changes=changes)
    assert failing.why == why
    node = NodeStatement("gpu01", Verdict.NOT_COMPLIANT, controls=(failing,))
    made = replace(statement([], RULES, {}), nodes=(node,))
    case = ElementTree.fromstring("".join(junit(made)))[0][0][0]  # noqa: S314 - our own text
    assert case.get("message") == why
    assert "The goal" in (case.text or "")
    (run,) = json.loads("".join(sarif(made)))["runs"]
    assert changes == () or changes[0].text in run["results"][0]["message"]["text"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "The goal"
    lines = text(made).splitlines()
    assert lines[0] == "FAIL os_hardening/x on gpu01"
    assert lines[1] == "  " + (reason or changes[0].text)
    assert "  goal: The goal" in lines


def test_all_repairs_of_a_node_are_listed_in_their_order() -> None:
    def failing(name: str, remedy: str) -> ControlResult:
        return ControlResult(name, name, State.FAIL, remedy=remedy)

    node = NodeStatement(
        "gpu01",
        Verdict.NOT_COMPLIANT,
        controls=(
            failing("node/reboot", "reboot it"),
            failing("os_hardening/umask", "harden"),
            failing("validation/last", "validate"),
            failing("os_hardening/aslr", "harden"),
            failing("node/security-updates", "update"),
        ),
    )
    assert node.repairs == ("harden", "update", "reboot it", "validate")
    made = replace(statement([], RULES, {}), nodes=(node,))
    assert "To repair gpu01, in this order:\n  1. harden\n  2. update\n  3. reboot it\n  4. validate" in text(
        made
    )


def test_nodes_that_the_same_playbooks_repair_are_named_in_one_command() -> None:
    run = "ansible-playbook -i inv playbooks/{}.yml --limit {}"
    own = {
        name: (run.format("tune", name) + " --tags os_tuning", run.format("validate", name))
        for name in ("gpu01", "gpu02")
    }
    assert together(own) == [
        (
            ["gpu01", "gpu02"],
            [run.format("tune", "gpu01,gpu02") + " --tags os_tuning", run.format("validate", "gpu01,gpu02")],
        )
    ]
    many = {f"n{place}": (run.format("tune", f"n{place}"),) for place in range(9)}
    assert [len(nodes) for nodes, _ in together(many)] == [8, 1]
    # What else a command says of a node stays that of this node.
    other = {name: (f"ansible {name} --args 'x {name}' && {run.format('tune', name)}",) for name in own}
    assert together(other) == [([name], list(command)) for name, command in other.items()]


def test_commands_that_may_reboot_are_never_for_several_nodes() -> None:
    failing = [
        observation(f"{setting.kind}:{setting.key}", State.FAIL, *setting.controls)
        for role in plan().roles
        for setting in role.settings[:1]
    ]
    names = ("gpu01", "gpu02")
    made = statement([checked(name, *failing) for name in names], RULES, {})
    disruptive = {one.remedy.split()[3]: one.disruptive for one in made.nodes[0].controls if one.remedy}
    assert disruptive == {f"playbooks/{stage}.yml": stage == "provision" for stage in Stage}
    commands = [line for line in text(made).splitlines() if "ansible-playbook" in line]
    shared = [command for command in commands if ",".join(names) in command]
    assert shared
    assert not any("playbooks/provision.yml" in command for command in shared)
    for name in names:
        assert any(f"playbooks/provision.yml --limit {name} " in command for command in commands)


def test_a_statement_counts_nodes_and_controls() -> None:
    made = statement([checked(), checked("gpu02", BROKEN), CheckedNode("gpu03", problem="silent")], RULES, {})
    assert made.counts.nodes == {"compliant": 1, "not-compliant": 1, "not-checked": 1}
    assert made.counts.controls["fail"] == 1
    assert sum(made.counts.controls.values()) == sum(len(node.controls) for node in made.nodes)
    assert loads(Statement, dumps(replace(made, nodes=()))).counts == made.counts


def test_every_control_has_its_role_in_front() -> None:
    (node,) = statement([checked()], RULES, {}).nodes
    assert all("/" in control.id for control in node.controls)
    assert len({control.id for control in node.controls}) == len(node.controls)


def test_a_failing_control_is_told_by_what_was_found_beside_its_goal_and_all_repairs_are_there() -> None:
    def failing(node: str, found: str) -> NodeStatement:
        change = Change("net.x", found, "0")
        controls = (
            ControlResult("os_hardening/x", "It is off", State.FAIL, changes=(change,), remedy="harden it"),
            ControlResult("validation/last", "Validated", State.FAIL, "too old", remedy="validate it"),
        )
        return NodeStatement(node, Verdict.NOT_COMPLIANT, controls=controls)

    nodes = (failing("gpu01", "1"), failing("gpu02", "2"))
    made = page_of(Report(compliance=replace(statement([], RULES, {}), nodes=nodes)), {}, [], "")
    (first, last) = sorted(made.controls, key=lambda one: one.name)
    assert first.title == "net.x: found 1, wanted 0 (and 1 other values). Goal: It is off"
    assert last.title == "too old. Goal: Validated"
    node = made.attention[0]
    assert (node.kind, node.name) == ("fail", "gpu01")
    commands = [command for step in node.steps for command in step.commands.values()]
    assert [one for one in commands if " it" in one] == ["harden it", "validate it"]
    assert "os_hardening/x: net.x: found 1, wanted 0" in node.reasons
