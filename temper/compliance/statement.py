"""From plans and observations to the statement of a fleet. Pure: reads no file, no clock and no node."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from temper.base.nodes import utc
from temper.base.selection import limit_to
from temper.compliance.alike import Once
from temper.compliance.model import (
    HARDENING,
    SCHEMA_VERSION,
    Change,
    Changed,
    ControlResult,
    Counts,
    NodeStatement,
    Observation,
    State,
    Statement,
    Verdict,
    WaivedBy,
    canonical,
)
from temper.compliance.repairs import command_of
from temper.compliance.waivers import Use, Waiver, faults
from temper.plan.node_plan import NodePlan, RolePlan, Stage, WaivedControl
from temper.plan.os_controls import OPERATOR, concerns, demanded, references
from temper.plan.security import enough, gaps
from temper.plan.tables import SecurityComponent
from validation.model.contract import State as Measured
from validation.model.grouping import by_key
from validation.model.printable import first_of

if TYPE_CHECKING:
    from temper.compliance.history import Known

DEMANDED = "demanded"
STACK = "nvidia_stack"
NODE = "node"
REBOOT = "reboot"
OUTSIDE = "outside"
VALIDATION = "validation"
#: The worst of a control's settings is what the control is; one that nothing applies to is not applicable.
WORST_FIRST = (State.FAIL, State.NOT_CHECKED, State.PASS, State.NOT_APPLICABLE)
TITLES = {
    REBOOT: "The node runs what is installed",
    "security-updates": "No update of security waits",
    "administrators": "Only listed accounts can become root",
    "ssh-servers": "All SSH servers have the hardened settings",
}
#: What this machine sees of a node, and the role that repairs it.
OUTSIDE_TITLES = {
    "ssh-methods": ("sshd offers a stranger the planned methods of a login alone", "ssh_hardening"),
    "ssh-root": ("sshd offers them alone for root, too", "ssh_hardening"),
    "ssh-algorithms": ("sshd offers the planned algorithms alone", "ssh_hardening"),
    "ssh-host-keys": ("sshd has the host keys that are known", ""),
    "ports": ("Ports answer where the plan opens them, and nowhere else", "firewall"),
}
WHOLE = {
    "account": "Administrators, their keys and sudo",
    "container_engine": "Container engines have their GPU settings",
    "driver": "The driver is loaded, in every kernel, and proven",
    "firewall": "The firewall is in force, and at every boot",
    "gpu": "Clocks, power limit and persistence of the GPUs",
    "interrupted": "No run was cut off",
    "package": "Packages are installed at their versions, and held",
    "repository": "Repositories and their keys",
    "sshd": "sshd has its settings in force",
}
#: By how much this machine's clock may have been set back since a validation.
CLOCKS = timedelta(minutes=5)
#: What a node has observed, by role; the versions that are installed, by component.
Seen: TypeAlias = Mapping[str, Sequence[Observation]]
Versions: TypeAlias = Mapping[str, str]
Controls: TypeAlias = tuple[ControlResult, ...]
NOT_MEASURED = "no profile sets it, and Temper has no way to measure what the benchmark asks"


@dataclass(frozen=True)
class LastValidation:
    """A node's newest validation, made at an instant by this machine's clock.

    `driver` is what it was measured with.
    """

    made_at: datetime
    state: Measured
    driver: str | None
    report: str


@dataclass(frozen=True)
class CheckedNode:
    """What is known of a node.

    Of one that did not answer there is neither plan nor observations, but a `problem`. `observations` are by
    role, those of no role under "node". `driver` is the version that is loaded, `versions` are those that are
    installed, by the components of data/nvidia_security.yml.
    """

    name: str
    groups: tuple[str, ...] = ()
    plan: NodePlan | None = None
    observations: Seen | None = None
    problem: str = ""
    driver: str | None = None
    validation: LastValidation | None = None
    waivers: tuple[Waiver, ...] = ()
    versions: Versions = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rules:
    """What the controller knows: its clock, how old a validation may be, all OS controls, all bulletins.

    Rules are those of one statement: two are never the same.

    `inventory` are the options that name the inventory, as one types them: " -i inventory/mine".
    """

    now: datetime
    validation_max_age: timedelta
    os_controls: Mapping[str, Any]
    inventory: str = ""
    security: Mapping[str, SecurityComponent] = field(default_factory=dict)

    @cached_property
    def shared(self) -> Once[NodePlan, Once[Seen, Once[Versions, Shared]]]:
        """What nodes share whose plan, observations and versions are the same objects."""
        return Once(
            lambda plan: Once(
                lambda seen: Once(lambda versions: shared_controls(plan, seen, versions, self)),
            )
        )

    @cached_property
    def measurable(self) -> frozenset[str]:
        """The OS controls of which Temper can measure what the benchmark asks."""
        return frozenset(
            name for name, control in self.os_controls.items() if demanded({name: control}, [name])
        )


def statement(
    nodes: Iterable[CheckedNode],
    rules: Rules,
    before: Mapping[str, Mapping[str, Known]],
    elsewhere: Mapping[str, Collection[str]] | None = None,
) -> Statement:
    """Return the statement of all nodes. `before` is what the history knows of each node's controls.

    `elsewhere` are the nodes of the inventory that are not among them, each with its groups.
    """
    checked = list(nodes)
    timeline = Timeline(before, utc(rules.now))
    found: list[NodeStatement] = []
    changed: list[Changed] = []
    for node in checked:
        stated, changes = timeline.of(node_statement(node, rules))
        found.append(stated)
        changed += changes
    controls = {control.id for controls in distinct(found) for control in controls}
    findings = tuple(faults(used_waivers(checked, found, elsewhere or {}), rules.now, controls))
    verdict = max_verdict([node.verdict for node in found])
    if verdict is not Verdict.NOT_COMPLIANT and any(finding.code.is_finding for finding in findings):
        verdict = Verdict.NOT_COMPLIANT
    return Statement(
        schema_version=SCHEMA_VERSION,
        made_at=utc(rules.now),
        verdict=verdict,
        sentence=sentence(verdict, found, sum(finding.code.is_finding for finding in findings)),
        nodes=tuple(found),
        waivers=findings,
        changed=tuple(changed),
        counts=counts(found),
    )


def counts(nodes: Sequence[NodeStatement]) -> Counts:
    """Count nodes by verdict and controls by state, with zeros."""
    verdicts = Counter(node.verdict for node in nodes)
    return Counts(
        {str(verdict): verdicts[verdict] for verdict in Verdict},
        {str(state): sum(node.count(state) for node in nodes) for state in State},
    )


def distinct(nodes: Iterable[NodeStatement]) -> Iterable[tuple[ControlResult, ...]]:
    """Return the controls of all nodes, those that several nodes share once."""
    return {id(node.controls): node.controls for node in nodes}.values()


def max_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several: a known fault before what nobody knows; nothing at all was not checked."""
    found = set(verdicts)
    order = (Verdict.NOT_COMPLIANT, Verdict.NOT_CHECKED, Verdict.COMPLIANT)
    return next((verdict for verdict in order if verdict in found), Verdict.NOT_CHECKED)


def sentence(verdict: Verdict, nodes: Sequence[NodeStatement], findings: int) -> str:
    """Return the verdict in a sentence."""
    verdicts = Counter(node.verdict for node in nodes)
    parts = [f"{verdicts[Verdict.COMPLIANT]} of {len(nodes)} nodes are compliant"]
    if bad := verdicts[Verdict.NOT_COMPLIANT]:
        failed = sum(node.count(State.FAIL) for node in nodes)
        fails = "1 control fails" if failed == 1 else f"{failed} controls fail"
        parts.append(f"{bad} {'is' if bad == 1 else 'are'} not ({fails})")
    if unchecked := [node.node for node in nodes if node.verdict is Verdict.NOT_CHECKED]:
        parts.append(f"not checked: {first_of(unchecked)}")
    if findings:
        waivers = "1 waiver has" if findings == 1 else f"{findings} waivers have"
        parts.append(f"{waivers} to be renewed, corrected or removed")
    return f"Verdict: {verdict}. {'; '.join(parts)}."


@dataclass(frozen=True, eq=False)
class Shared:
    """The controls of all nodes with the same plan of which the same was observed, in their order.

    They are without the last validation and without remedies, which are each node's own: `remedies` says for
    which controls, by their places, and what names the remedy: a role, an observation, or None for the plan.
    """

    controls: tuple[ControlResult, ...]
    remedies: tuple[tuple[int, RolePlan | Observation | None], ...]

    @cached_property
    def fails(self) -> bool:
        """Whether a waiver may be of one of them."""
        return any(control.state is State.FAIL for control in self.controls)

    @cached_property
    def whole(self) -> Once[ControlResult, tuple[ControlResult, ...]]:
        """With the last validation, where that passed: one object for all nodes."""
        return Once(lambda last: (*self.controls, last))


def node_statement(node: CheckedNode, rules: Rules) -> NodeStatement:
    """Return one node, control by control."""
    if node.plan is None or node.observations is None:
        return NodeStatement(node.name, Verdict.NOT_CHECKED, node.problem)
    shared = rules.shared(node.plan)(node.observations)(node.versions)
    controls = node_controls(node, shared, rules)
    states = {control.state for control in controls}
    verdict = Verdict.COMPLIANT
    if State.FAIL in states:
        verdict = Verdict.NOT_COMPLIANT
    elif State.NOT_CHECKED in states:
        verdict = Verdict.NOT_CHECKED
    return NodeStatement(
        node=node.name,
        verdict=verdict,
        system=node.plan.system or "",
        gpus=", ".join(f"{gpu.count}x {gpu.name}" for gpu in node.plan.gpus),
        driver=node.driver or "",
        controls=controls,
    )


def node_controls(node: CheckedNode, shared: Shared, rules: Rules) -> tuple[ControlResult, ...]:
    """Return all controls of a node.

    One object for all nodes that are alike and have nothing of their own.
    """
    last = validation_control(node, rules)
    if last.state is State.PASS and not shared.remedies and not (shared.fails and node.waivers):
        return shared.whole(last)
    controls = [*shared.controls, last]
    command = Once[RolePlan | Observation | None, str](lambda by: remedy_of(by, rules, node))
    for place, by in shared.remedies:
        controls[place] = replace(controls[place], remedy=command(by), disruptive=is_disruptive(by))
    if node.waivers:
        controls = [with_waiver(control, node, rules.now) for control in controls]
    return tuple(controls)


def shared_controls(plan: NodePlan, seen: Seen, versions: Versions, rules: Rules) -> Shared:
    """Return what a node shares with all that are like it."""
    found = [
        plan_control(plan),
        *role_controls(plan, seen),
        *os_controls(plan, seen, rules),
        *security_controls(plan, versions, rules),
        *condition_controls(seen),
        *outside_controls(plan, seen),
    ]
    return Shared(
        tuple(control for control, _ in found),
        tuple((place, by) for place, (_, by) in enumerate(found) if not isinstance(by, str)),
    )


#: What names the remedy of a control; a text where it has none.
By: TypeAlias = "RolePlan | Observation | str | None"
NOTHING = ""


def remedy_of(by: RolePlan | Observation | None, rules: Rules, node: CheckedNode) -> str:
    """Return the command that repairs a control on this node."""
    if by is None:
        return playbook("preflight", rules, node)
    if isinstance(by, Observation):
        return reboot(rules, node) if by.key == REBOOT else " && ".join(on_node(by.repair, rules, node))
    return repair(rules, node, by)


def is_disruptive(by: RolePlan | Observation | None) -> bool:
    """Return whether what repairs a control may reboot the node or end jobs, as all of provisioning may."""
    return by.key == REBOOT if isinstance(by, Observation) else by is not None and by.stage is Stage.PROVISION


def plan_control(plan: NodePlan) -> tuple[ControlResult, By]:
    """Return whether the inventory's wishes can be carried out on this node at all."""
    control = ControlResult(
        id=f"{NODE}/plan",
        title="The inventory asks for what this node can have",
        state=State.FAIL if plan.problems else State.PASS,
        reason="; ".join(plan.problems),
    )
    return control, None if plan.problems else NOTHING


def role_controls(plan: NodePlan, seen: Seen) -> Iterable[tuple[ControlResult, By]]:
    """Yield each setting of each role; those of the hardening are its controls' where they have one."""
    for role in plan.roles:
        reasons = tuple((f"{setting.kind}:{setting.key}", setting.why) for setting in role.settings)
        for control in of_role(role.role, reasons, tuple(seen.get(role.role, ()))):
            yield control, role if control.state is State.FAIL else NOTHING


@lru_cache(maxsize=1024)
def of_role(
    role: str, reasons: tuple[tuple[str, str], ...], observations: tuple[Observation, ...]
) -> tuple[ControlResult, ...]:
    """Return the settings of a role without their repair, once for all nodes with the same observations.

    `reasons` are why each is set, by its kind and key.
    """
    known = dict(reasons)
    return tuple(
        ControlResult(
            id=f"{role}/{one.key}",
            title=WHOLE.get(one.key.partition(":")[0]) or known.get(one.key) or one.key,
            state=one.state,
            reason=one.reason,
            changes=one.changes,
        )
        for one in observations
        if not (role == HARDENING and one.controls)
    )


def os_controls(plan: NodePlan, seen: Seen, rules: Rules) -> Iterable[tuple[ControlResult, By]]:
    """Yield every control of data/os_controls: what it sets here, or why it is relaxed."""
    role = next((role for role in plan.roles if role.role == HARDENING), None)
    if role is None or role.options.absent:
        return
    observed, by_benchmark = (tuple(seen.get(name, ())) for name in (HARDENING, DEMANDED))
    for asked, control in hardening_controls(observed, by_benchmark, plan.waived, rules, plan.system):
        yield control, role if asked and control.state is State.FAIL else NOTHING


@lru_cache(maxsize=1024)
def hardening_controls(
    observed: tuple[Observation, ...],
    demands: tuple[Observation, ...],
    all_waived: tuple[WaivedControl, ...],
    rules: Rules,
    system: str | None,
) -> tuple[tuple[bool, ControlResult], ...]:
    """Return each OS control without its repair, and whether a setting asks for it.

    Once for all nodes alike.
    """
    relaxed = {waived.id: waived for waived in all_waived}
    asked, by_benchmark = by_control(observed), by_control(demands)
    found = []
    for name, control in rules.os_controls.items():
        if not concerns(control, system):
            continue
        result = worst_of(asked.get(name, []))
        waived = relaxed.get(name)
        if waived and waived.by == OPERATOR:
            # Not set is one thing, accepted another: that takes a waiver with an owner and an end.
            result = ControlResult("", "", State.FAIL, f"os_hardening_waivers leaves it out: {waived.reason}")
        elif waived and result.state in (State.PASS, State.NOT_APPLICABLE):
            result = relaxed_by_profile(waived, by_benchmark.get(name, []), rules)
        title, known = control["title"], references(name, control, system)
        named = replace(result, id=canonical(name), title=title, references=known)
        found.append((name in asked, named))
    return tuple(found)


def by_control(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """Return the observations of each control that asks for them."""
    return by_key((name, one) for one in observations for name in one.controls)


def relaxed_by_profile(
    waived: WaivedControl, observations: Sequence[Observation], rules: Rules
) -> ControlResult:
    """Return a control that the profile relaxes: waived, with its state by the benchmark."""
    result = worst_of(observations)
    if waived.id not in rules.measurable:
        result = ControlResult("", "", State.NOT_CHECKED, NOT_MEASURED)
    return replace(
        result,
        state=State.WAIVED,
        measured=result.state,
        waiver=f"{waived.reason} (by {waived.by})",
        waived_by=WaivedBy.PROFILE,
    )


def worst_of(observations: Sequence[Observation]) -> ControlResult:
    """Return what a control is by its settings."""
    if not observations:
        return ControlResult("", "", State.NOT_APPLICABLE, "this system has nothing to set for it")
    state = next(state for state in WORST_FIRST if state in {one.state for one in observations})
    deciding = [one for one in observations if one.state is state]
    reasons = dict.fromkeys(one.reason for one in deciding if one.reason)
    changes: dict[Change, None] = dict.fromkeys(change for one in deciding for change in one.changes)
    return ControlResult("", "", state, "; ".join(reasons), changes=tuple(changes))


def security_controls(plan: NodePlan, versions: Versions, rules: Rules) -> Iterable[tuple[ControlResult, By]]:
    """Yield whether a version of the stack that is installed has vulnerabilities of NVIDIA's bulletins."""
    role = next((role for role in plan.roles if role.role == STACK), None)
    for name, component in rules.security.items():
        control = security_control(f"{STACK}/security:{name}", component, versions.get(name, ""))
        # No role installs firmware.
        repairs = control.state is State.FAIL and not component.firmware
        yield control, role or NOTHING if repairs else NOTHING


NEWER = "if the inventory has no newer version either, plan a newer stack first"
INSTALL = "Temper installs no firmware: do it with mlxup or mstflint, with the adapter's vendor's image"


def security_control(name: str, component: SecurityComponent, found: str) -> ControlResult:
    """Return the control of a component, of which this version is installed; none is empty."""
    control = ControlResult(name, f"No known vulnerability in the {component.title}", State.PASS)
    if not found:
        none = "no adapter has virtual functions" if component.firmware else "not installed"
        return replace(control, state=State.NOT_APPLICABLE, reason=none)
    try:
        missing = gaps(component, found)
    except ValueError as error:
        return replace(control, state=State.NOT_CHECKED, reason=str(error))
    if not missing:
        return control
    worst = missing[0]
    failed = replace(
        control,
        state=State.FAIL,
        reason=f"{worst.text}; {INSTALL if component.firmware else NEWER}",
        changes=(Change("version", found, enough(component, worst.wanted)),),
    )
    if not worst.waiver:
        return failed
    return replace(
        failed,
        state=State.WAIVED,
        measured=State.FAIL,
        waiver=f"{worst.waiver} (by Temper)",
        waived_by=WaivedBy.PROFILE,
    )


def condition_controls(seen: Seen) -> Iterable[tuple[ControlResult, By]]:
    """Yield what is no setting."""
    for one in seen.get(NODE, ()):
        control = ControlResult(
            id=f"{NODE}/{one.key}",
            title=TITLES.get(one.key, one.key),
            state=one.state,
            reason=one.reason,
        )
        reboots = one.key == REBOOT and one.state is State.FAIL
        yield control, one if one.repair or reboots else NOTHING


def outside_controls(plan: NodePlan, seen: Seen) -> Iterable[tuple[ControlResult, By]]:
    """Yield what this machine has seen of the node, where it looked."""
    roles = {role.role: role for role in plan.roles}
    for one in seen.get(OUTSIDE, ()):
        title, role = OUTSIDE_TITLES[one.key]
        control = ControlResult(f"{OUTSIDE}/{one.key}", title, one.state, one.reason, changes=one.changes)
        yield control, roles.get(role, NOTHING) if one.state is State.FAIL else NOTHING


def validation_control(node: CheckedNode, rules: Rules) -> ControlResult:
    """Return whether the node was measured, lately, with this driver, and was good."""
    reason = validation_fault(node, rules)
    control = validated(rules.validation_max_age.days, reason)
    return replace(control, remedy=playbook("validate", rules, node)) if reason else control


@lru_cache(maxsize=1024)
def validated(days: int, reason: str) -> ControlResult:
    """Return it without its remedy: one object for all nodes that share it."""
    return ControlResult(
        id=f"{VALIDATION}/last",
        title=f"Validated within {days} days, with the driver that is loaded",
        state=State.FAIL if reason else State.PASS,
        reason=reason,
    )


def validation_fault(node: CheckedNode, rules: Rules) -> str:
    """Return what is wrong with the last validation; empty where nothing is."""
    last = node.validation
    if last is None:
        return "no report on this machine has a validation of it"
    if last.state in ("fail", "not-run"):
        return f"its validation of {utc(last.made_at)} ended in {last.state} ({last.report})"
    if last.made_at - rules.now > CLOCKS:
        return (
            f"its last validation is of {utc(last.made_at)}, which is yet to come, because this machine's "
            f"clock was ahead ({last.report}): validate it again"
        )
    if rules.now - last.made_at > rules.validation_max_age:
        return f"its last validation is of {utc(last.made_at)}, {(rules.now - last.made_at).days} days ago"
    if last.driver != node.driver:
        return (
            f"it was validated with driver {last.driver or 'none'}, and {node.driver or 'none'} is loaded now"
        )
    return ""


def repair(rules: Rules, node: CheckedNode, role: RolePlan) -> str:
    """Return the command that repairs a role where a control fails.

    Before it stands what takes back the changes of others that keep the role, which is carried out as a
    whole, from being carried out.
    """
    observations = (node.observations or {}).get(role.role, ())
    repairs = dict.fromkeys(words for one in observations for words in one.repair)
    run = f"{playbook(role.stage, rules, node)} --tags {shlex.quote(role.role)}"
    return " && ".join([*on_node(repairs, rules, node), run])


def reboot(rules: Rules, node: CheckedNode) -> str:
    """Return the command that reboots a node, as one types it on the controller: it asks first.

    Whether jobs run there is the operator's to know. Where nobody can answer, nothing happens.
    """
    question = shlex.quote(f"{node.name} will reboot. Is it drained? Type its name: ")
    name = shlex.quote(node.name)
    command = f"ansible{rules.inventory} {pattern(node)} --become --module-name reboot"
    return f'printf %s {question} && read -r answer && test "$answer" = {name} && {command}'


def pattern(node: CheckedNode) -> str:
    """Return the pattern of Ansible's for this node, as one types it."""
    return shlex.quote(limit_to([node.name]))


def playbook(name: str, rules: Rules, node: CheckedNode) -> str:
    """Return a playbook for one node, as one types it on the controller."""
    return f"ansible-playbook{rules.inventory} playbooks/{name}.yml --limit {pattern(node)}"


def on_node(repairs: Iterable[Sequence[str]], rules: Rules, node: CheckedNode) -> list[str]:
    """Return the commands of those repairs that Temper knows, as one types them on the controller."""
    shell = f"ansible{rules.inventory} {pattern(node)} --become --module-name shell --args"
    known = filter(None, map(command_of, repairs))
    return [f"{shell} {shlex.quote(command)}" for command in known]


def with_waiver(control: ControlResult, node: CheckedNode, now: datetime) -> ControlResult:
    """Return the control as a valid waiver of the operator makes it. What it would be stays visible."""
    if control.state is not State.FAIL:
        return control
    valid = [w for w in node.waivers if w.control == control.id and w.covers(node.name, node.groups)]
    waiver = next((w for w in valid if w.holds(now)), None)
    if waiver is None:
        return control
    return replace(
        control,
        state=State.WAIVED,
        measured=control.state,
        waiver=waiver.text,
        waived_until=utc(waiver.expires),
        waived_by=WaivedBy.OPERATOR,
    )


def used_waivers(
    nodes: Sequence[CheckedNode],
    statements: Sequence[NodeStatement],
    elsewhere: Mapping[str, Collection[str]],
) -> dict[Waiver, Use]:
    """Return what the nodes of this run say of each waiver; one for none of them is left out.

    That no node needs it says nothing while it is for nodes `elsewhere`, too.
    """
    found: dict[Waiver, Use] = {}
    severity = (Use.UNMATCHED, Use.UNNEEDED, Use.UNKNOWN, Use.NEEDED)
    for node, told in zip(nodes, statements, strict=True):
        if not node.waivers:
            continue
        by_id = {control.id: control for control in told.controls}
        for waiver in node.waivers:
            if not waiver.covers(node.name, node.groups):
                continue
            control = by_id.get(waiver.control)
            use = Use.UNMATCHED if by_id else Use.UNKNOWN
            if control:
                failing = State.FAIL in (control.state, control.measured)
                use = Use.NEEDED if failing else Use.UNNEEDED
                if control.state is State.NOT_CHECKED:
                    use = Use.UNKNOWN
            found[waiver] = max(found.get(waiver, Use.UNMATCHED), use, key=severity.index)
    for waiver, use in found.items():
        if use is not Use.NEEDED and any(waiver.covers(name, groups) for name, groups in elsewhere.items()):
            found[waiver] = Use.UNKNOWN
    return found


class Timeline:
    """What earlier checks knew, and the instant of this one, in ISO 8601."""

    def __init__(self, before: Mapping[str, Mapping[str, Known]], now: str) -> None:
        self._before, self._now = before, now
        # One object for all nodes on which it is the same object.
        self._since = cache(lambda moment: Once[ControlResult, ControlResult](partial(replace, since=moment)))
        self._told = Once[Controls, Once[Mapping[str, "Known"], tuple[Controls, list[Turn]]]](
            lambda controls: Once(lambda known: self._compared(controls, known))
        )

    def of(self, node: NodeStatement) -> tuple[NodeStatement, Iterable[Changed]]:
        """Return the node with the instant at which each control's state began: now, unless it was so before.

        And the controls whose state is another one than before. What nobody knew is new, not changed. Nodes
        that share their controls and of which the same was known share what comes of it.
        """
        controls, turns = self._told(node.controls)(self._before.get(node.node, NOTHING_KNOWN))
        return replace(node, controls=controls), (Changed(node.node, *turn) for turn in turns)

    def _compared(self, controls: Controls, known: Mapping[str, Known]) -> tuple[Controls, list[Turn]]:
        began, turns = [], []
        for control in controls:
            before = known.get(control.id)
            same = before and before.state is control.state
            if before and not same:
                turns.append(Turn(control.id, before.state, control.state))
            began.append(self._since(before.since if before and same else self._now)(control))
        return tuple(began), turns


class Turn(NamedTuple):
    """A control that changed, whatever the node."""

    control: str
    before: State
    now: State


NOTHING_KNOWN: Mapping[str, Known] = {}
