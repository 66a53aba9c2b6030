"""What to do about a node that is not good: steps in their order, with the commands that one types."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from temper.compliance.model import LAST, Verdict
from temper.compliance.model import State as Control
from validation.model.contract import MachineAction, State
from validation.model.printable import first_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from temper.compliance.model import NodeStatement
    from validation.model.contract import Finding
    from validation.verdict.verdicts import NodeVerdict

#: What no job on the node survives.
ENDS_JOBS = (MachineAction.RESET_GPU, MachineAction.REBOOT, MachineAction.REPLACE)
#: Controls whose repair ends jobs, or needs GPUs that nobody uses.
NEEDS_DRAIN = (*LAST, "nvidia_stack/")
MOST_REASONS = 3


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
    name: str, verdict: NodeVerdict | None, statement: NodeStatement | None, options: str = ""
) -> list[Step]:
    """Return what to do about a node, nothing where it is good. `options` name the inventory in commands."""
    node = shlex.quote(name)

    def playbook(stage: str) -> str:
        return f"ansible-playbook{options} playbooks/{stage}.yml --limit {node}"

    failed = verdict is not None and verdict.state is not State.PASS
    unread = statement is not None and statement.verdict is Verdict.NOT_CHECKED and not statement.controls
    unknown = unread or (failed and verdict is not None and not verdict.tests)
    repairs = list(_repairs(statement)) if statement else []
    found: list[Step] = []
    if _needs_drain(verdict, statement):
        found.append(
            Step(
                "Drain it, so that no job runs on it",
                {
                    "Slurm": f"scontrol update NodeName={node} State=DRAIN Reason=repair",
                    "Kubernetes": f"kubectl drain {node} --ignore-daemonsets",
                },
            )
        )
    if unknown:
        words = "Do what the reason says, until preflight accepts the node"
        found.append(Step.typed(words, playbook("preflight")))
    actions = dict.fromkeys(one.action for one in findings(verdict) if one.action) if failed else {}
    found += [Step(action[0].upper() + action[1:]) for action in actions]
    if failed and verdict is not None and not actions and not unknown:
        found.append(Step("Provide what the reason names"))
    found += repairs
    if failed:
        words = "Validate it again, and return it to service when it passes"
        found.append(Step.typed(words, playbook("validate")))
    if statement and statement.verdict is not Verdict.COMPLIANT:
        found.append(Step.typed("Check it again", playbook("compliance")))
    # The repair of a validation that is too old is a validation.
    later = [one.commands for one in found]
    return [
        one for place, one in enumerate(found) if not one.commands or one.commands not in later[place + 1 :]
    ]


def _repairs(statement: NodeStatement) -> Iterator[Step]:
    """Yield the repairs of a node in their order, with the controls that they repair."""
    failing = [one for one in statement.shown if one.state is Control.FAIL]
    for command in statement.repairs:
        names = [one.id for one in failing if one.remedy == command]
        yield Step.typed(f"Repair {first_of(names, MOST_REASONS)}", command)
    if names := [one.id for one in failing if not one.remedy]:
        yield Step(f"Repair by hand, because no command of Temper does it: {first_of(names, MOST_REASONS)}")


def _needs_drain(verdict: NodeVerdict | None, statement: NodeStatement | None) -> bool:
    """Whether jobs would suffer from the node as it is, or from what is to be done about it."""
    if verdict and verdict.tests:
        if verdict.state is State.FAIL:
            return True
        if any(one.machine_action in ENDS_JOBS for one in findings(verdict)):
            return True
    failing = [one.id for one in statement.shown if one.state is Control.FAIL] if statement else []
    return any(control.startswith(NEEDS_DRAIN) for control in failing)
