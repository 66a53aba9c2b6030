"""How a node moves: from its record and the outcome of a step to its next record. Pure."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import datetime, timedelta

from temper.rollout.model import (
    BACK,
    BACK_AT,
    FORWARD,
    KEEP_OUT,
    NEW_BASELINE,
    OUT_SINCE,
    OVERRULED,
    RELEASE,
    UNCHANGED,
    WATCH,
    Course,
    NodeState,
    Outcome,
    Record,
    Step,
    StepResult,
    Transition,
    Try,
)

#: What begins the reason why a way back has failed, behind that of the failure.
WAY_BACK = "on the way back: "
#: Of a node that failed, where its scheduler could not be told.
NOT_TAKEN_OUT = "nobody has confirmed that it is out of service"

#: Stages of a way back at which the former driver is loaded and was compared with what was there.
RETURNABLE = frozenset({NodeState.LOADED, NodeState.SETTLED, NodeState.PROVEN})

_FORWARD = {row.before: row for row in FORWARD}
_BACK = {row.before: row for row in BACK}


def upcoming(record: Record) -> Transition | None:
    """Return the step that comes next, or that is under way; None where the node's part is over."""
    if record.step is Step.WATCH:
        return WATCH
    if record.ended:
        return None
    if record.course is Course.RELEASE:
        return RELEASE
    if record.course is Course.KEEP_OUT:
        return KEEP_OUT
    return _BACK[record.stage] if record.course is Course.BACK else _FORWARD[record.state]


def begun(record: Record, transition: Transition, now: datetime) -> Record:
    """Return the node while the step is under way."""
    return replace(
        record,
        step=transition.step,
        step_since=now,
        attempt=record.attempt + 1,
        not_before=None,
        out=record.out or transition.out_of_service,
        started_at=record.started_at or now,
    )


def interrupted(record: Record) -> Record:
    """Return the node after whoever carried out its step has gone: the step is due again, as its row says."""
    transition = upcoming(record)
    return replace(
        record,
        step=None,
        step_since=None,
        not_before=None,
        attempt=max(record.attempt - 1, 0),
        cut_off=record.cut_off or (transition is not None and transition.changes_node),
    )


def after(record: Record, result: StepResult, now: datetime) -> Record:
    """Return the node after the step under way had this outcome. Raises ValueError where there is none."""
    transition = upcoming(record)
    if record.step is None or transition is None or transition.step is not record.step:
        raise ValueError(f"no step is under way in state {record.state}, and {result.outcome} came in")
    tried = record.attempt
    record = replace(
        record,
        step=None,
        step_since=None,
        facts={**record.facts, **result.facts} if result.facts else record.facts,
    )
    if result.outcome is Outcome.AGAIN and tried < transition.attempts:
        pause = now + timedelta(minutes=transition.pause_minutes)
        # Why the node is on its course stays its reason.
        reason = record.reason if record.course is not Course.FORWARD else result.reason
        cut_off = record.cut_off or transition.changes_node
        return replace(record, not_before=pause, reason=reason, cut_off=cut_off)
    record = replace(record, attempt=0, not_before=None)
    if transition is KEEP_OUT:
        if result.outcome is not Outcome.DONE:
            record = replace(record, reason=_joined(record.reason, f"{NOT_TAKEN_OUT}: {result.reason}"))
        return replace(record, state=NodeState.FAILED, stage=record.state, since=now)
    if result.outcome is Outcome.DONE:
        return _done(record, transition, now)
    reason = result.reason or f"step {transition.step} gave no reason"
    if result.outcome is Outcome.AGAIN and transition.attempts > 1:
        reason = f"{reason} ({tried} attempts)"
    return _gave_up(record, transition, replace(result, reason=reason), now)


def _done(record: Record, transition: Transition, now: datetime) -> Record:
    if transition is WATCH:
        return replace(record, watched=True)
    if transition is RELEASE:
        return _released(record, now)
    if record.course is Course.BACK and transition.after is not NodeState.ROLLED_BACK:
        return replace(record, stage=transition.after)
    out = record.out and transition.step is not Step.RETURN
    reason = record.reason if record.course is Course.BACK else ""
    return replace(record, state=transition.after, since=now, out=out, reason=reason)


def _released(record: Record, now: datetime) -> Record:
    """Return a node that is as it was found."""
    if record.then is NodeState.PENDING:
        return replace(fresh(record, now), reason=record.reason)
    return replace(record, state=NodeState.LEFT_OUT, since=now, out=False)


def _gave_up(record: Record, transition: Transition, result: StepResult, now: datetime) -> Record:
    if transition is WATCH:
        record = replace(record, watched=False)
        if result.outcome is Outcome.FAILED:
            return _back(record, NodeState.RETURNED, f"in the soak: {result.reason}", now)
        # Nobody knows: no reason to take it away from whoever works there.
        return failed(replace(record, reason=f"nobody could look at it after its soak: {result.reason}"))
    if record.course is Course.BACK:
        # It has failed already; whoever has accepted that has not accepted this.
        record = replace(record, accepted=False)
        record = replace(record, facts={**record.facts, BACK_AT: record.stage.value})
        first = record.reason.partition(f"; {WAY_BACK}")[0]  # an earlier try on the way back is told no more
        return keep_out(record, _joined(first, f"{WAY_BACK}{result.reason}"))
    if transition is RELEASE:
        reason = _joined(record.reason, f"not released: {result.reason}")
        if record.out:
            return failed(keep_out(record, reason))
        # It was in service all the time, or does not answer; its lease on the node ends by itself.
        silent = result.outcome is Outcome.FAILED
        return replace(record, state=NodeState.LEFT_OUT, since=now, out=silent, reason=reason)
    if transition.step is Step.LEASE:
        silent = result.outcome is Outcome.FAILED
        return replace(record, state=NodeState.LEFT_OUT, since=now, out=silent, reason=result.reason)
    if transition.step is Step.RETURN:
        return failed(keep_out(record, f"it is proven, and could not be returned: {result.reason}"))
    unchanged = not transition.changes_node or result.outcome is Outcome.REFUSED
    if record.unchanged and unchanged:
        return release(record, NodeState.LEFT_OUT, result.reason)
    return _back(record, NodeState.PENDING, f"{transition.step}: {result.reason}", now)


def _joined(first: str, second: str) -> str:
    """Return two reasons as one."""
    return f"{first.rstrip('.')}; {second}" if first else second


def _back(record: Record, stage: NodeState, reason: str, now: datetime) -> Record:
    """Return the node at the beginning of its way back, with one more failure."""
    return failed(
        replace(
            record, state=NodeState.ROLLING_BACK, stage=stage, course=Course.BACK, since=now, reason=reason
        )
    )


def release(record: Record, then: NodeState, reason: str) -> Record:
    """Return the node on its way back to how it was found; nothing was changed on it."""
    return replace(record, course=Course.RELEASE, then=then, reason=reason, attempt=0, not_before=None)


def keep_out(record: Record, reason: str) -> Record:
    """Return the node on its way to `failed`: it stays out of service."""
    return replace(record, course=Course.KEEP_OUT, reason=reason, attempt=0, not_before=None)


def failed(record: Record) -> Record:
    """Return the node with one more failure, which nobody has accepted yet."""
    return replace(record, failures=record.failures + 1, accepted=False)


def fresh(record: Record, now: datetime) -> Record:
    """Return the node at its beginning.

    What has failed on it stays counted, and what a person said of it stays.
    """
    facts = {OVERRULED: record.overruled} if record.overruled else {}
    return Record(
        NodeState.PENDING,
        now,
        wave=record.wave,
        failures=record.failures,
        accepted=record.accepted,
        facts=facts,
    )


def seen_out(record: Record, reason: str, now: datetime) -> Record:
    """Return a pending node that somebody else keeps out of service, from now on."""
    return replace(
        record,
        reason=f"out of service by somebody else: {reason}",
        accepted=record.accepted and record.failures > 0,  # nobody has seen this yet
        facts={**record.facts, OUT_SINCE: now.isoformat()},
    )


def seen_back(record: Record) -> Record:
    """Return the same node, in service again."""
    facts = {name: value for name, value in record.facts.items() if name != OUT_SINCE}
    return replace(record, reason="", accepted=record.accepted and record.failures > 0, facts=facts)


def leave_out(record: Record, reason: str, now: datetime) -> Record:
    """Return a pending node that takes no part."""
    return replace(record, state=NodeState.LEFT_OUT, since=now, reason=reason)


def retried(record: Record, now: datetime) -> Record:
    """Return the node for another try, as somebody has asked for.

    Raises ValueError where there is nothing to try.

    A node that failed is not simply returned: one whose new driver was proven is measured again, one that was
    changed goes back to the former stack, and one that was not is released. What a person has said was of the
    try before.
    """
    said = (OVERRULED, NEW_BASELINE)
    record = replace(record, facts={name: text for name, text in record.facts.items() if name not in said})
    if record.state in (NodeState.LEFT_OUT, NodeState.ROLLED_BACK):
        return replace(fresh(record, now), accepted=True)
    if record.state is not NodeState.FAILED:
        raise ValueError(f"expected a node that is left-out, rolled-back or failed, found {record.state}")
    again = replace(record, since=now, attempt=0, not_before=None, accepted=True, out=True)
    if record.stage is NodeState.PROVEN:
        return replace(again, state=NodeState.SETTLED, course=Course.FORWARD, stage=NodeState.PENDING)
    if record.stage in UNCHANGED:
        return replace(again, state=NodeState.DRAINED, course=Course.RELEASE, stage=NodeState.PENDING)
    # After an error in its soak it was in service: whatever ran there may not have ended.
    stage = NodeState.RETURNED if record.watched is False else NodeState.PENDING
    return replace(again, state=NodeState.ROLLING_BACK, course=Course.BACK, stage=stage)


def tried_again(record: Record, verb: Try, why: str, now: datetime) -> Record:
    """Return the node for another try; `why` says who asked for it, and the reason. Raises ValueError."""
    again = retried(record, now)
    if verb is Try.RETRY:
        return again
    # A person with a name and a reason has looked: what failed is no failure of the new stack.
    again = replace(again, failures=0)
    return (_measured_again if verb is Try.MEASURE_AGAIN else _overruled)(record, again, why)


def choices(record: Record, now: datetime) -> list[Try]:
    """Return what somebody can ask for on a node."""
    found = []
    for verb in Try:
        with contextlib.suppress(ValueError):
            tried_again(record, verb, "", now)
            found.append(verb)
    return found


def _measured_again(record: Record, again: Record, why: str) -> Record:
    """Judge a failed node without its former baseline."""
    if record.state is not NodeState.FAILED:
        raise ValueError(
            f"expected a node that failed, found {record.state}: `temper rollout retry` gives others a new "
            "baseline anyway"
        )
    if again.course is not Course.BACK:
        raise ValueError("expected a node that failed on its way back: else its baseline is not the cause")
    return replace(again, facts={**again.facts, NEW_BASELINE: why})


def _overruled(record: Record, again: Record, why: str) -> Record:
    """Accept a node as a person has asked.

    A node that failed returns to service as it is, where its driver was loaded and compared. One that was
    left out or rolled back has another try in which neither numbers nor weaknesses decide.
    """
    again = replace(again, facts={**again.facts, OVERRULED: why})
    if record.state is not NodeState.FAILED or record.stage in UNCHANGED:
        return again
    if record.stage is NodeState.PROVEN:
        return replace(again, state=NodeState.PROVEN)
    if record.facts.get(BACK_AT) not in RETURNABLE:
        raise ValueError(
            "expected a node that has loaded its former driver again, and its way back ended before that: "
            "`temper rollout retry` goes on with it"
        )
    return replace(again, stage=NodeState.PROVEN)
