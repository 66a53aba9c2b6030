"""What to do about a node, and where a report comes from: decisions without a page."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from temper.base import ROOT
from temper.compliance.model import ControlResult, NodeStatement, Verdict
from temper.compliance.model import State as Control
from temper.report import origin, to_do
from temper.report.fleet import headline
from temper.report.origin import Origin
from tests.unit.each import each
from validation.model.contract import Finding, MachineAction, State
from validation.verdict.verdicts import NodeVerdict, TestVerdict

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = " -i inventory/mine"
UNREAD = NodeStatement("gpu01", Verdict.NOT_CHECKED, "unreachable: no route")


def measured(state: State, *found: Finding, not_run: str = "") -> NodeVerdict:
    tests = [TestVerdict("health", State.PASS, True, "", "", found, ())]
    tests += [TestVerdict("egl", State.NOT_RUN, True, "", not_run, (), ())] if not_run else []
    return NodeVerdict("gpu01", state, 0, "", tuple(tests), ("a sentence",))


def fault(action: MachineAction, gpu: int = 0, state: State = State.FAIL) -> Finding:
    return Finding("broken", state, f"GPU {gpu} is broken", "look at it", gpu, action)


def stated(*failing: tuple[str, str]) -> NodeStatement:
    controls = tuple(ControlResult(name, "Goal", Control.FAIL, "why", remedy=one) for name, one in failing)
    return NodeStatement("gpu01", Verdict.NOT_COMPLIANT, controls=controls)


def commands(verdict: NodeVerdict | None, statement: NodeStatement | None) -> list[str]:
    """The first words of each command that is to be typed, or of words where there is none."""
    found = to_do.steps("gpu01", verdict, statement, OPTIONS)
    assert all(
        command.count("gpu01") == 1 for one in found for command in one.commands.values() if "/" in command
    )
    named = [" ".join(one.commands.values()) or one.words for one in found]
    return [one.replace("ansible-playbook -i inventory/mine playbooks/", "").split()[0] for one in named]


NOT_MEASURED = NodeVerdict("gpu01", State.NOT_RUN, 2, "", (), ("refused: the disk is full",))
RERUN = fault(MachineAction.RERUN, state=State.DEGRADED)
HARDEN = "ansible-playbook -i inventory/mine playbooks/harden.yml --limit gpu01"
VALIDATE = "ansible-playbook -i inventory/mine playbooks/validate.yml --limit gpu01"
RESUME = "scontrol"
REBOOT = "reboot it: gpu01"


@each(
    (measured(State.PASS), NodeStatement("gpu01", Verdict.COMPLIANT), []),
    # Refused, unreachable: until preflight accepts it.
    (NOT_MEASURED, None, ["preflight.yml", "validate.yml"]),
    (None, UNREAD, ["preflight.yml", "compliance.yml"]),
    (NOT_MEASURED, UNREAD, ["preflight.yml", "validate.yml", "compliance.yml"]),
    # A node that failed gets no jobs, whatever the remedy; one that is degraded may, until its maintenance.
    (measured(State.FAIL, fault(MachineAction.RERUN)), None, ["scontrol", "Look", "validate.yml", RESUME]),
    (measured(State.DEGRADED, RERUN), None, ["Look", "validate.yml"]),
    (
        measured(State.DEGRADED, fault(MachineAction.RESET_GPU, state=State.DEGRADED)),
        None,
        ["scontrol", "Look", "validate.yml", RESUME],
    ),
    (measured(State.FAIL, not_run="no EGL"), None, ["scontrol", "Install", "validate.yml", RESUME]),
    # All repairs, in their order; what ends jobs is drained before.
    (None, stated(("os_hardening/x", HARDEN)), ["harden.yml", "compliance.yml"]),
    (None, stated(("os_hardening/x", "")), ["Repair", "compliance.yml"]),
    (
        None,
        stated(("node/reboot", REBOOT), ("os_hardening/x", HARDEN)),
        ["scontrol", "harden.yml", "reboot", "compliance.yml", RESUME],
    ),
    # A validation that is too old is repaired by a validation: once.
    (
        measured(State.FAIL, RERUN),
        stated(("validation/last", VALIDATE)),
        ["scontrol", "Look", "validate.yml", "compliance.yml", RESUME],
    ),
)
def test_each_node_that_is_not_good_has_steps(
    verdict: NodeVerdict | None, statement: NodeStatement | None, expected: list[str]
) -> None:
    assert commands(verdict, statement) == expected


def test_a_node_is_validated_again_by_the_plan_that_it_failed() -> None:
    replaced = measured(State.FAIL, fault(MachineAction.REPLACE))
    options = {
        "quick": "",
        "standard": " -e gpu_validation_plan=standard",
        "corruption": " -e gpu_validation_plan=corruption",
        "burn-in": " -e gpu_validation_plan=burn-in -e gpu_validation_timeout_s=18000",
        "one of another version": "",
    }
    old = stated(("validation/last", VALIDATE))
    found = {}
    for plan in options:
        steps = to_do.steps("gpu01", replaced, old, OPTIONS, plan)
        ((words, command),) = [
            (one.words, one.commands[""]) for one in steps if "validate.yml" in one.commands.get("", "")
        ]
        found[plan] = command.removeprefix(VALIDATE)
        assert "after the GPU was replaced" in words
    assert found == options


def test_what_is_drained_is_returned_to_service_last() -> None:
    for verdict in (measured(State.FAIL, RERUN), measured(State.DEGRADED, RERUN)):
        steps = to_do.steps("gpu01", verdict, None)
        assert not any("replaced" in one.words for one in steps)
        typed = [command for one in steps for command in one.commands.values()]
        drained = [one for one in typed if "DRAIN" in one or "drain" in one]
        undone = ["scontrol update NodeName=gpu01 State=RESUME", "kubectl uncordon gpu01"]
        assert typed[-2:] == undone if drained else not {*undone} & {*typed}
        assert bool(drained) == (verdict.state is State.FAIL)
    assert "--delete-emptydir-data" in to_do.steps("gpu01", measured(State.FAIL), None)[0].words


def test_names_are_words_of_a_shell() -> None:
    evil = "gpu01; rm -rf $HOME"
    found = to_do.steps(evil, measured(State.FAIL), UNREAD, OPTIONS)
    typed = [command for one in found for command in one.commands.values()]
    assert len(typed) == 7
    assert all(f"'{evil}'" in command for command in typed)


def test_reasons_are_the_verdicts_without_remedies_and_those_of_controls() -> None:
    remedy = f". What to do: {RERUN.action}"
    verdict = dataclasses.replace(
        measured(State.FAIL, RERUN),
        reasons=("7 GPUs were found. What to do: count", f"health: GPU 0 is broken{remedy}", "c", "d", "e"),
    )
    assert to_do.reasons(verdict, stated(("a/b", ""))) == [
        "7 GPUs were found. What to do: count",
        "health: GPU 0 is broken",
        "c",
        "and 2 more",
        "a/b: why",
    ]
    assert to_do.reasons(measured(State.PASS), UNREAD) == ["unreachable: no route"]


@each(
    ({}, "There is no node in this report"),
    ({"good": 1}, "The node is good"),
    ({"unknown": 1}, "The node is unknown"),
    ({"good": 24}, "All 24 nodes are good"),
    (
        {"fail": 3, "unknown": 2, "degraded": 1, "good": 18},
        "3 of 24 nodes fail, 2 are unknown, 1 is degraded",
    ),
    ({"degraded": 1, "good": 1}, "1 of 2 nodes is degraded"),
)
def test_the_headline_says_what_is_wrong_first(counts: dict[str, int], said: str) -> None:
    assert headline({"fail": 0, "unknown": 0, "degraded": 0, "good": 0} | counts) == said


def test_a_fleet_is_called_like_its_inventories() -> None:
    names = {
        ("inventory/mine",): "mine",
        ("/etc/fleets/prod/hosts.yml",): "prod",
        ("examples/inventories/slurm_cluster.yml", "inventory/b"): "slurm_cluster + b",
        ("gpu01,gpu02,",): "gpu01,gpu02",
        (): "",
    }
    assert {given: Origin(inventories=given).fleet for given in names} == names
    assert Origin(inventories=("my inventory",)).options == " -i 'my inventory'"


def test_groups_that_tell_nodes_apart_are_kept_with_the_report(tmp_path: Path) -> None:
    groups = {"gpu01": ["all", "gpu_nodes", "rack1"], "gpu02": ["all", "gpu_nodes", "rack2", "h100"]}
    made = origin.origin([str(ROOT / "inventory/mine")], "2026-11-22T10:00:00Z", groups)
    assert made.inventories == ("inventory/mine",)
    assert made.controller
    assert (made.racks("gpu02"), made.other_groups("gpu02")) == (["rack2"], ["h100"])
    assert origin.read(tmp_path) == Origin()
    origin.write(tmp_path, made)
    assert origin.read(tmp_path) == made
    later = Origin("elsewhere", ("b",), "2026-11-23T10:00:00Z", {"gpu03": ("rack3",)})
    both = origin.merged([later, made])
    assert (both.controller, both.racks("gpu01"), both.racks("gpu03")) == ("elsewhere", ["rack1"], ["rack3"])
