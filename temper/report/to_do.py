"""What to do about a node that is not good: steps in their order, with the commands that one types."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from temper.base.selection import limit_to
from temper.compliance.model import LAST, NodeStatement, Verdict
from temper.compliance.model import State as Control
from validation.model.contract import Finding, MachineAction, State
from validation.model.plans import PLANS
from validation.model.printable import first_of, number_of
from validation.verdict.verdicts import NodeVerdict

#: What no job on the node survives.
ENDS_JOBS = (MachineAction.RESET_GPU, MachineAction.REBOOT, MachineAction.REPLACE)
#: Controls whose repair ends jobs, or needs GPUs that nobody uses.
NEEDS_DRAIN = (*LAST, "nvidia_stack/")
MOST_REASONS = 3
QUICK = "quick"
#: What a validation may take beside the load that its plan names.
BESIDE_LOAD_S = 3600


class Step(NamedTuple):
    """One thing to do, and its command; of several, each for one scheduler, which is its key."""

    words: str
    commands: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def typed(cls, words: str, command: str) -> Step:
        """Return a step with one command."""
        return cls(words, {"": command})


def findings(verdict: NodeVerdict | None) -> list[Finding]:
    """Return the findings of a node, the worst first."""
    found = [one for test in verdict.tests for one in test.findings] if verdict else []
    return sorted(found, key=lambda one: -one.state.severity)


def reasons(verdict: NodeVerdict | None, statement: NodeStatement | None) -> list[str]:
    """Return why a node is not good, in a few sentences."""
    said: list[str] = []
    if verdict and verdict.state is not State.PASS:
        # Remedies are steps here.
        remedies = {f". What to do: {one.action}" for one in findings(verdict) if one.action}
        said += [_without(reason, remedies) for reason in verdict.reasons[:MOST_REASONS]]
        if (more := len(verdict.reasons) - MOST_REASONS) > 0:
            said.append(f"and {more} more")
    if statement and statement.reason:
        said.append(statement.reason)
    for state in (Control.FAIL, Control.NOT_CHECKED):
        controls = [one for one in statement.shown if one.state is state] if statement else []
        said += [f"{one.id}: {one.why or one.title}" for one in controls[:MOST_REASONS]]
        if (more := len(controls) - MOST_REASONS) > 0:
            said.append(f"and {number_of(more, 'more control')}: {state}")
    return list(dict.fromkeys(said))


def _without(reason: str, endings: Iterable[str]) -> str:
    return next((reason.removesuffix(one) for one in endings if reason.endswith(one)), reason)


def steps(
    name: str,
    verdict: NodeVerdict | None,
    statement: NodeStatement | None,
    options: str = "",
    plan: str = QUICK,
) -> list[Step]:
    """Return what to do about a node, nothing where it is good.

    `options` name the inventory in commands, `plan` is that of the validation: another one has other tests.
    """
    node = shlex.quote(name)

    def playbook(stage: str) -> str:
        return f"ansible-playbook{options} playbooks/{stage}.yml --limit {shlex.quote(limit_to([name]))}"

    failed = verdict is not None and verdict.state is not State.PASS
    unread = statement is not None and statement.verdict is Verdict.NOT_CHECKED and not statement.controls
    unknown = unread or (failed and verdict is not None and not verdict.tests)
    repairs = list(_repairs(statement)) if statement else []
    found: list[Step] = []
    drained = _needs_drain(verdict, statement)
    if drained:
        found.append(
            Step(
                "Drain it, so that no job runs on it. Kubernetes refuses if a pod has an emptyDir volume: "
                "ask its owner, because its data will be lost, then add --delete-emptydir-data",
                {
                    "Slurm": f"scontrol update NodeName={node} State=DRAIN Reason=repair",
                    "Kubernetes": f"kubectl drain {node} --ignore-daemonsets",
                },
            )
        )
    if unknown:
        words = "Correct what the reason says, then run preflight until it accepts the node"
        found.append(Step.typed(words, playbook("preflight")))
    actions = dict.fromkeys(one.action for one in findings(verdict) if one.action) if failed else {}
    found += [Step(action[0].upper() + action[1:]) for action in actions]
    if failed and verdict is not None and not actions and not unknown:
        found.append(Step("Install or configure what is missing; the reason says what that is"))
    found += repairs
    if failed:
        replaced = any(one.machine_action is MachineAction.REPLACE for one in findings(verdict))
        words = f"Validate it again{' after the GPU was replaced' if replaced else ''}"
        found.append(Step.typed(words, playbook("validate") + _plan_options(plan)))
    if statement and statement.verdict is not Verdict.COMPLIANT:
        found.append(Step.typed("Check it again", playbook("compliance")))
    if drained:
        found.append(
            Step(
                "Return it to service when it is good",
                {
                    "Slurm": f"scontrol update NodeName={node} State=RESUME",
                    "Kubernetes": f"kubectl uncordon {node}",
                },
            )
        )
    return [one for place, one in enumerate(found) if not _comes_again(one, found[place + 1 :])]


def _plan_options(plan: str) -> str:
    """Return the words that choose a plan on a command line, and give it the time that it needs."""
    known = PLANS.get(plan)
    if known is None or plan == QUICK:
        return ""
    time = f" -e gpu_validation_timeout_s={known.duration_s + BESIDE_LOAD_S:.0f}" if known.duration_s else ""
    return f" -e gpu_validation_plan={plan}{time}"


def _comes_again(step: Step, later: Iterable[Step]) -> bool:
    """Return whether a later step has the command: the repair of an outdated validation is a validation."""
    command = step.commands.get("", "")
    return bool(command) and any(f"{one.commands.get('', '')} ".startswith(f"{command} ") for one in later)


def _repairs(statement: NodeStatement) -> Iterator[Step]:
    """Yield the repairs of a node in their order, with the controls that they repair."""
    failing = [one for one in statement.shown if one.state is Control.FAIL]
    for command in statement.repairs:
        names = [one.id for one in failing if one.remedy == command]
        yield Step.typed(f"Repair {first_of(names, MOST_REASONS)}", command)
    if names := [one.id for one in failing if not one.remedy]:
        yield Step(f"Repair by hand, because no command of Temper does it: {first_of(names, MOST_REASONS)}")


def _needs_drain(verdict: NodeVerdict | None, statement: NodeStatement | None) -> bool:
    """Return whether jobs would suffer from the node as it is, or from what is to be done about it."""
    if verdict and verdict.tests:
        if verdict.state is State.FAIL:
            return True
        if any(one.machine_action in ENDS_JOBS for one in findings(verdict)):
            return True
    failing = [one.id for one in statement.shown if one.state is Control.FAIL] if statement else []
    return any(control.startswith(NEEDS_DRAIN) for control in failing)
