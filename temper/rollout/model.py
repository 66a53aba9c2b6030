"""What a roll-out is made of: states and steps of a node, and the table of what leads where.

A node is in a state, and on a course: forward to the new stack, back to the former one, released as it was
found, or kept out of service. `TRANSITIONS` is the whole machine; `machine.py` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from temper.rollout.policy import Policy
from validation.model.contract import StringEnum


class NodeState(StringEnum):
    """How far a node is. Each state has been reached: what leads to the next one is a step."""

    PENDING = "pending"
    LEASED = "leased"
    STAGED = "staged"
    DRAINED = "drained"
    BASELINE = "baseline"
    INSTALLED = "installed"
    REBOOTED = "rebooted"
    LOADED = "loaded"
    SETTLED = "settled"
    PROVEN = "proven"
    RETURNED = "returned"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"
    FAILED = "failed"
    LEFT_OUT = "left-out"


#: Where a node's part of the roll-out is over, until somebody asks for another try.
ENDED = frozenset({NodeState.RETURNED, NodeState.ROLLED_BACK, NodeState.FAILED, NodeState.LEFT_OUT})
#: Nothing was changed on the node yet but its lease, its downloads and its place in the scheduler.
UNCHANGED = frozenset(
    {NodeState.PENDING, NodeState.LEASED, NodeState.STAGED, NodeState.DRAINED, NodeState.BASELINE}
)


class Course(StringEnum):
    """Where a node is going."""

    FORWARD = "forward"
    BACK = "back"
    RELEASE = "release"
    KEEP_OUT = "keep-out"


class Step(StringEnum):
    """What is carried out on a node."""

    LEASE = "lease"
    STAGE = "stage"
    DRAIN = "drain"
    BASELINE = "baseline"
    INSTALL = "install"
    REBOOT = "reboot"
    LOAD = "load"
    SETTLE = "settle"
    PROVE = "prove"
    RETURN = "return"
    UNDO = "undo"
    RELEASE = "release"
    KEEP_OUT = "keep-out"
    WATCH = "watch"


class Outcome(StringEnum):
    """How a step ended.

    `again`: nothing was decided (noise, an error that may pass); it is worth another try. `refused`: the step
    must not or could not begin, and the node is as it was before it. `failed`: the node may have changed, or
    does not answer.
    """

    DONE = "done"
    AGAIN = "again"
    REFUSED = "refused"
    FAILED = "failed"


class Try(StringEnum):
    """What somebody asks for on a node that failed, was rolled back or left out."""

    RETRY = "retry"
    MEASURE_AGAIN = "measure-again"
    ACCEPT = "accept"


@dataclass(frozen=True)
class Transition:
    """A step of the machine: from where, to where, and what to do when it is found unfinished.

    On the way back, `before` and `after` are stages within `rolling-back`; it begins with `returned` where
    the node was in service again. The node is `out_of_service` from this step on. `attempts` are tries while
    the outcome is `again`, with `pause_minutes` between them; `limit_minutes` is how long one try may take,
    None where the policy says.
    """

    step: Step
    course: Course
    before: NodeState
    after: NodeState
    what: str
    unfinished: str
    out_of_service: bool = False
    changes_node: bool = False
    attempts: int = 1
    pause_minutes: int = 0
    limit_minutes: int | None = 10


_F, _B = Course.FORWARD, Course.BACK
_S = NodeState
FORWARD: tuple[Transition, ...] = (
    Transition(
        Step.LEASE,
        _F,
        _S.PENDING,
        _S.LEASED,
        "takes the node's lease, on the node",
        "takes it again with the new fencing number",
    ),
    Transition(
        Step.STAGE,
        _F,
        _S.LEASED,
        _S.STAGED,
        "downloads and verifies the packages of both stacks",
        "downloads what is missing and verifies all",
        attempts=3,
        pause_minutes=5,
        limit_minutes=60,
    ),
    Transition(
        Step.DRAIN,
        _F,
        _S.STAGED,
        _S.DRAINED,
        "takes the node out of service and waits until nothing uses its GPUs",
        "finds its own drain by owner and reason, and goes on waiting",
        out_of_service=True,
        limit_minutes=None,
    ),
    Transition(
        Step.BASELINE,
        _F,
        _S.DRAINED,
        _S.BASELINE,
        "measures the GPUs on the former driver and reads their settings",
        "discards what was measured and measures anew",
        out_of_service=True,
        attempts=3,
        limit_minutes=None,
    ),
    Transition(
        Step.INSTALL,
        _F,
        _S.BASELINE,
        _S.INSTALLED,
        "takes the snapshot, if one is asked for, and installs the new stack in one transaction",
        "lets the package manager finish, and installs what is missing",
        out_of_service=True,
        changes_node=True,
        attempts=3,
        pause_minutes=5,
        limit_minutes=60,
    ),
    Transition(
        Step.REBOOT,
        _F,
        _S.INSTALLED,
        _S.REBOOTED,
        "reboots the node and waits for another boot id",
        "compares the boot id with the recorded one, and reboots only where it is the same",
        out_of_service=True,
        changes_node=True,
        attempts=3,
        pause_minutes=5,
        limit_minutes=30,
    ),
    Transition(
        Step.LOAD,
        _F,
        _S.REBOOTED,
        _S.LOADED,
        "compares module, libraries, fabric manager and number of GPUs with the plan",
        "reads them again",
        out_of_service=True,
        attempts=3,
        pause_minutes=1,
    ),
    Transition(
        Step.SETTLE,
        _F,
        _S.LOADED,
        _S.SETTLED,
        "applies and reads back MIG, clocks, power limits and ECC",
        "applies and reads them back again",
        out_of_service=True,
        changes_node=True,
        attempts=3,
        pause_minutes=1,
    ),
    Transition(
        Step.PROVE,
        _F,
        _S.SETTLED,
        _S.PROVEN,
        "measures again and compares with the baseline",
        "discards what was measured and measures anew",
        out_of_service=True,
        attempts=3,
        limit_minutes=None,
    ),
    Transition(
        Step.RETURN,
        _F,
        _S.PROVEN,
        _S.RETURNED,
        "returns the node to service where Temper drained it, and gives the lease back",
        "looks whether it is in service, and returns it where not",
        out_of_service=True,
        attempts=5,
        pause_minutes=5,
    ),
)
BACK: tuple[Transition, ...] = (
    Transition(
        Step.DRAIN, _B, _S.RETURNED, _S.PENDING,
        "takes the node out of service again and waits until nothing uses its GPUs",
        "finds its own drain by owner and reason, and goes on waiting",
        out_of_service=True, limit_minutes=None,
    ),
    Transition(
        Step.UNDO, _B, _S.PENDING, _S.INSTALLED,
        "installs the former stack in one transaction",
        "lets the package manager finish, and installs what is missing",
        out_of_service=True, changes_node=True, attempts=2, pause_minutes=2, limit_minutes=60,
    ),
    *(
        replace(row, course=_B, after=_S.ROLLED_BACK if row.step is Step.RETURN else row.after)
        for row in FORWARD
        if row.step in (Step.REBOOT, Step.LOAD, Step.SETTLE, Step.PROVE, Step.RETURN)
    ),
)  # fmt: skip
#: From every state in which nothing was changed; where it leads is in the node's record.
RELEASE = Transition(
    Step.RELEASE, Course.RELEASE, _S.LEASED, _S.LEFT_OUT,
    "puts the node back as it was found: undoes Temper's own drain, gives the lease back",
    "looks what is still Temper's, and gives that back",
    attempts=5, pause_minutes=5,
)  # fmt: skip
KEEP_OUT = Transition(
    Step.KEEP_OUT, Course.KEEP_OUT, _S.ROLLING_BACK, _S.FAILED,
    "writes the reason into the drain, and leaves the node out of service",
    "writes the reason again",
    out_of_service=True, attempts=5, pause_minutes=5,
)  # fmt: skip
#: Looks at a node that has returned, after its soak; it moves the node only where it finds an error.
WATCH = Transition(
    Step.WATCH, Course.FORWARD, _S.RETURNED, _S.RETURNED,
    "looks for errors of the GPUs since the node returned",
    "looks again",
    attempts=3, pause_minutes=2,
)  # fmt: skip
TRANSITIONS = (*FORWARD, *BACK, RELEASE, KEEP_OUT, WATCH)

#: Every state that may follow a state. What is not here is refused by the store.
ALLOWED: Mapping[NodeState, frozenset[NodeState]] = {
    _S.PENDING: frozenset({_S.LEASED, _S.LEFT_OUT}),
    _S.LEASED: frozenset({_S.STAGED, _S.PENDING, _S.LEFT_OUT}),
    _S.STAGED: frozenset({_S.DRAINED, _S.PENDING, _S.LEFT_OUT, _S.FAILED}),
    _S.DRAINED: frozenset({_S.BASELINE, _S.PENDING, _S.LEFT_OUT, _S.FAILED}),
    _S.BASELINE: frozenset({_S.INSTALLED, _S.PENDING, _S.LEFT_OUT, _S.ROLLING_BACK, _S.FAILED}),
    _S.INSTALLED: frozenset({_S.REBOOTED, _S.ROLLING_BACK}),
    _S.REBOOTED: frozenset({_S.LOADED, _S.ROLLING_BACK}),
    _S.LOADED: frozenset({_S.SETTLED, _S.ROLLING_BACK}),
    _S.SETTLED: frozenset({_S.PROVEN, _S.ROLLING_BACK}),
    _S.PROVEN: frozenset({_S.RETURNED, _S.FAILED}),
    # An error in its soak.
    _S.RETURNED: frozenset({_S.ROLLING_BACK}),
    _S.ROLLING_BACK: frozenset({_S.ROLLED_BACK, _S.FAILED}),
    # By hand only. A node that failed is measured again on its way, unless somebody accepts it by name.
    _S.ROLLED_BACK: frozenset({_S.PENDING}),
    _S.LEFT_OUT: frozenset({_S.PENDING}),
    _S.FAILED: frozenset({_S.ROLLING_BACK, _S.SETTLED, _S.PROVEN, _S.DRAINED}),
}


#: The fact of a node that waits for its turn: since when somebody else has kept it out of service.
OUT_SINCE = "out_of_service_since"

#: The fact of a node that somebody has accepted by name: who, and why. Neither its numbers nor its weaknesses
#: decide any more.
OVERRULED = "overruled"

#: The fact of a failed node whose baseline is taken anew: who asked for that, and why.
NEW_BASELINE = "new_baseline"

#: The fact of a node that failed on its way back: the stage that it had reached.
BACK_AT = "back_at"

#: The fact of a node whose way has ended: why it is out of service all the same, as others have taken it out.
WITHHELD = "withheld"


@dataclass(frozen=True)
class RolloutNode:
    """A node of the roll-out. `cohort` is what it has in common with nodes like it: GPUs, system, driver.

    `place` is its turn in the whole roll-out.
    """

    name: str
    cohort: str
    groups: tuple[str, ...] = ()
    place: int = 0


@dataclass(frozen=True)
class Record:
    """What is known of a node's way; the store writes each one before it is acted on.

    Of `wave` 0 are the canaries. `stage` is how far the way back is, and for a failed node the state in which
    it failed. `step` is under way since `step_since`; without one, the next try waits until `not_before`.
    `attempt` counts the tries of a step. `out` says that the node is not in service because of us, or did not
    answer. `cut_off`: a step that changes the node was broken off, so nobody can call it unchanged. `then`
    is where a release leads. `facts` are what steps leave for later ones (boot id, what the scheduler said
    before). `watched`: None not yet, else whether the look after the soak was good. `failures` counts how
    often the new stack did not prove itself here, in all tries; `accepted`: somebody has seen the last
    failure, or that the node was left out, and went on.
    """

    state: NodeState
    since: datetime
    wave: int = 0
    course: Course = Course.FORWARD
    stage: NodeState = NodeState.PENDING
    step: Step | None = None
    step_since: datetime | None = None
    attempt: int = 0
    not_before: datetime | None = None
    out: bool = False
    cut_off: bool = False
    then: NodeState = NodeState.LEFT_OUT
    reason: str = ""
    started_at: datetime | None = None
    watched: bool | None = None
    accepted: bool = False
    failures: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the node's part is over."""
        return self.state in ENDED

    @property
    def unchanged(self) -> bool:
        """Whether the node may still be put back as it was found."""
        return self.state in UNCHANGED and not self.cut_off

    @property
    def out_since(self) -> datetime | None:
        """Since when every look at a node that waits for its turn has found it out of service by others."""
        since = self.facts.get(OUT_SINCE)
        return datetime.fromisoformat(since) if since else None

    @property
    def refused(self) -> bool:
        """Whether the node was left out in its turn: after it was begun, or because others kept it out.

        What the plan has left out never had one.
        """
        return self.state is NodeState.LEFT_OUT and bool(self.started_at or self.out_since)

    @property
    def overruled(self) -> str:
        """Who has accepted the node by name, and why, or empty."""
        return self.facts.get(OVERRULED, "")

    @property
    def withheld(self) -> str:
        """Why a node that was given back is out of service all the same, by somebody else, or empty."""
        given_back = self.state in (NodeState.RETURNED, NodeState.ROLLED_BACK)
        return self.facts.get(WITHHELD, "") if given_back else ""

    @property
    def under_way(self) -> bool:
        """Whether the node has begun and not ended."""
        begun = self.state is not NodeState.PENDING or self.step is not None
        return begun and not self.ended

    @property
    def on_its_way(self) -> bool:
        """Whether the node is under way, or looked at after its soak."""
        return self.under_way or self.step is not None


@dataclass(frozen=True)
class StepResult:
    """How a step ended; `reason` is a clause, `facts` are kept for later steps, `numbers` for the report."""

    outcome: Outcome
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


class Mode(StringEnum):
    """What the roll-out as a whole does.

    `held`: no node starts; those under way end. `stopped`: nodes that were not changed yet are released, too.
    """

    RUNNING = "running"
    HELD = "held"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True)
class Rollout:
    """A roll-out as recorded: everything that the planner decides on."""

    stack: str
    policy: Policy
    nodes: Mapping[str, RolloutNode]
    records: Mapping[str, Record]
    mode: Mode = Mode.RUNNING
    reason: str = ""
    number: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether it is over, and every node that took part is back in service, one at least.

        A node that the plan has left out took no part.
        """
        states = [
            record.state is NodeState.RETURNED and record.watched is not False and not record.withheld
            for record in self.records.values()
            if record.state is not NodeState.LEFT_OUT or record.refused or record.failures
        ]
        return self.mode is Mode.DONE and bool(states) and all(states)


@dataclass(frozen=True)
class Observation:
    """What others do with the nodes: who is drained or down and not by us, with the reason.

    With a `problem`, nobody could find that out, and no node may start.
    """

    unavailable: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
