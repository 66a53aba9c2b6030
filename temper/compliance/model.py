"""What a statement of compliance is made of, and its form as JSON (schemas/statement.schema.json)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from validation.model.contract import StringEnum

#: Of the statement's JSON.
#: Since 3 each node has all of its controls: in 2 it could be `like` another. Since 4 it has counts, and
#: controls of the hardening are called `os_hardening/NAME`, as all others `ROLE/NAME`.
SCHEMA_VERSION = 4
HARDENING = "os_hardening"
#: How many places a reason names.
MOST_PLACES = 3


def canonical(control: str) -> str:
    """Return the id of a control; those of the hardening had no role in front of them before."""
    return control if "/" in control else f"{HARDENING}/{control}"


def former(control: str) -> str:
    """Return the id that a control had before: what is made of it stays the same from run to run."""
    return control.removeprefix(f"{HARDENING}/")


class State(StringEnum):
    """How a control came out on a node. What was not checked is never counted as passed."""

    PASS = "pass"  # noqa: S105 - a state
    FAIL = "fail"
    WAIVED = "waived"
    NOT_APPLICABLE = "not-applicable"
    NOT_CHECKED = "not-checked"


#: What somebody has to look at, in the order in which it is shown.
SHOWN = (State.FAIL, State.NOT_CHECKED, State.WAIVED)


class WaivedBy(StringEnum):
    """Who accepts that a control is not fulfilled.

    The reasons of a profile, or of data/nvidia_security.yml, have neither owner nor end.
    """

    PROFILE = "profile"
    OPERATOR = "operator"


class Verdict(StringEnum):
    """How a node or a fleet came out; the exit status is 0, 1 or 2."""

    COMPLIANT = "compliant"
    NOT_COMPLIANT = "not-compliant"
    NOT_CHECKED = "not-checked"

    @property
    def exit_status(self) -> int:
        """0 compliant, 1 not, 2 where what was required could not be checked."""
        return {Verdict.COMPLIANT: 0, Verdict.NOT_COMPLIANT: 1, Verdict.NOT_CHECKED: 2}[self]

    @property
    def outcome(self) -> str:
        """Return the state of a node with this verdict, as temper.base.outcome names it."""
        return {
            Verdict.COMPLIANT: "ok",
            Verdict.NOT_COMPLIANT: "failed",
            Verdict.NOT_CHECKED: "not checked",
        }[self]


@dataclass(frozen=True)
class Change:
    """What differs in one place: found, wanted, and of longer texts the lines."""

    name: str
    before: str
    after: str
    diff: str = ""

    @property
    def text(self) -> str:
        """The change in one line."""
        return f"{self.name}: found {self.before or 'nothing'}, wanted {self.after or 'nothing'}"


@dataclass(frozen=True)
class Observation:
    """One setting of a node, as module node_compliance compared it. `controls` are those that ask for it.

    `repair` names what must come before Temper can repair it, because it changes what somebody else has made:
    words that temper/compliance/repairs.py makes a command of.
    """

    key: str
    controls: tuple[str, ...]
    state: State
    reason: str
    changes: tuple[Change, ...] = ()
    repair: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class ControlResult:
    """A control on a node.

    `reason` says in words why it is not `pass`, `changes` what was found and wanted. `measured` is what it
    would be without its waiver, `waived_by` whose that is, `waived_until` when it ends (ISO 8601, UTC; empty
    for never). Of a profile's, it is measured against what the benchmark asks; what Temper cannot measure is
    `not-checked` there, with its reason. `since` is when this state began (ISO 8601, UTC), empty where nobody
    knows. `remedy` is the command that repairs it; where it is `disruptive`, it may reboot the node or end
    jobs, and is for one node at a time.
    """

    id: str
    title: str
    state: State
    reason: str = ""
    measured: State | None = None
    waiver: str = ""
    waived_until: str = ""
    references: str = ""
    changes: tuple[Change, ...] = ()
    remedy: str = ""
    since: str = ""
    waived_by: WaivedBy | None = None
    disruptive: bool = False

    @property
    def why(self) -> str:
        """What is wrong, in one line. The title says the goal."""
        more = len(self.changes) - MOST_PLACES
        said = [self.reason, *(change.text for change in self.changes[:MOST_PLACES])]
        said += [f"and {more} more"] if more > 0 else []
        return "; ".join(part.rstrip(".") for part in said if part)


#: Controls that are repaired after all others, in this order.
LAST = ("node/reboot", "validation/last")


@dataclass(frozen=True)
class NodeStatement:
    """A node, control by control. One that could not be read has no controls, and says why."""

    node: str
    verdict: Verdict
    reason: str = ""
    system: str = ""
    gpus: str = ""
    driver: str = ""
    controls: tuple[ControlResult, ...] = ()

    @cached_property
    def _counts(self) -> Counter[State]:
        return Counter(control.state for control in self.controls)

    @cached_property
    def shown(self) -> tuple[ControlResult, ...]:
        """The controls that fail, that could not be checked, and that somebody waives."""
        return tuple(control for control in self.controls if control.state in SHOWN)

    def count(self, state: State) -> int:
        """Return how many controls came out so."""
        return self._counts[state]

    @cached_property
    def repairs(self) -> tuple[str, ...]:
        """The commands that repair the node, in their order: a reboot and a validation come last."""
        failing = [one for one in self.shown if one.state is State.FAIL and one.remedy]
        failing.sort(key=lambda one: LAST.index(one.id) if one.id in LAST else -1)
        return tuple(dict.fromkeys(one.remedy for one in failing))

    def waived(self, by: WaivedBy, measured: State | None = None) -> int:
        """Return how many controls the profile or the operator waives, with `measured` only of this state."""
        return sum(control.waived_by is by and measured in (None, control.measured) for control in self.shown)


class WaiverFault(StringEnum):
    """What is wrong with a waiver, or soon will be."""

    EXPIRED = "waiver-expired"
    ENDING = "waiver-ending"
    NOT_YET_VALID = "waiver-not-yet-valid"
    UNMATCHED = "waiver-unmatched"
    UNNEEDED = "waiver-unneeded"

    @property
    def is_finding(self) -> bool:
        """Whether it makes the fleet not compliant; the others are said."""
        return self in (WaiverFault.EXPIRED, WaiverFault.UNMATCHED)


@dataclass(frozen=True)
class WaiverFinding:
    """A waiver that somebody has to look at."""

    code: WaiverFault
    control: str
    ticket: str
    text: str


@dataclass(frozen=True)
class Changed:
    """A control whose state is another one than in the check before."""

    node: str
    control: str
    before: State
    now: State


@dataclass(frozen=True)
class Counts:
    """How many nodes came out with each verdict, and how many of their controls in each state."""

    nodes: dict[str, int] = field(default_factory=dict)
    controls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """All nodes of a run. `made_at` is an instant in UTC, `inventory_sha256` the digest of its variables."""

    schema_version: int
    made_at: str
    verdict: Verdict
    sentence: str
    nodes: tuple[NodeStatement, ...]
    waivers: tuple[WaiverFinding, ...] = ()
    changed: tuple[Changed, ...] = ()
    tool: str = ""
    inventory_sha256: str = ""
    counts: Counts = field(default_factory=Counts)
