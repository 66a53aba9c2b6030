"""What to do next in a roll-out: a pure function of what is recorded, the time, and what others do.

It starts nothing and waits for nothing: it says which steps to start, until when there is nothing to do, or
why the roll-out holds or stops. Whatever keeps nodes from starting is said: no fleet stalls in silence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache

from temper.base.nodes import counted, duration
from temper.rollout.machine import leave_out, release, seen_back, seen_out, upcoming
from temper.rollout.model import (
    ENDED,
    WATCH,
    Course,
    Mode,
    NodeState,
    Observation,
    Record,
    Rollout,
    RolloutNode,
    Step,
    Transition,
)
from temper.rollout.policy import Policy
from validation.model.printable import first_of

#: How soon to look again where only somebody else can change what the roll-out waits for.
LOOK_AGAIN = timedelta(minutes=5)
#: A node is left out only after others have kept it out of service for so long, at every look: a scheduler
#: that restarts calls a whole fleet silent for minutes.
PATIENCE = timedelta(hours=1)
#: Nodes named in a sentence; the report has all of them.
NAMED = 6


@dataclass(frozen=True)
class Start:
    """A step to start on a node."""

    node: str
    transition: Transition


@dataclass(frozen=True)
class Decision:
    """What to do now.

    `moves` are new records of nodes that change without a step; they are written first. `mode` is what the
    roll-out is from now on, and `reason` why, where it does not run. `sentence` says what happens, with the
    `counts` of nodes, or is those alone. There is nothing new to do before `until`, unless a step ends;
    without it, only the end of a step or a person changes anything. `busy` says whether a step is under way
    or starts, `closed` that a window is awaited.
    """

    starts: tuple[Start, ...] = ()
    moves: Mapping[str, Record] = field(default_factory=dict)
    mode: Mode = Mode.RUNNING
    reason: str = ""
    sentence: str = ""
    counts: str = ""
    until: datetime | None = None
    busy: bool = False
    closed: bool = False


def waves(
    nodes: Iterable[RolloutNode], policy: Policy, jump_levels: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the wave of each node.

    0 for the first nodes of each cohort, the canaries, then the policy's waves.

    Nodes that others are reached through have waves of their own behind those, by their levels: no other node
    is on its way while one of them reboots.
    """
    seen: Counter[str] = Counter()
    found: dict[str, int] = {}
    others = []
    levels = jump_levels or {}
    for node in sorted(nodes, key=lambda node: node.place):
        if level := levels.get(node.name, 0):
            found[node.name] = len(policy.waves) + level
        elif seen[node.cohort] < policy.canaries:
            seen[node.cohort] += 1
            found[node.name] = 0
        else:
            others.append(node.name)
    begun = 0
    for number, share in enumerate(policy.waves, 1):
        end = len(others) if number == len(policy.waves) else min(share.of(len(others), 1), len(others))
        found |= dict.fromkeys(others[begun:end], number)
        begun = max(begun, end)
    return found


@lru_cache(maxsize=65536)
def limits_of(groups: tuple[str, ...], limits: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the node's groups that have a limit, with the lowest that matches."""
    found: dict[str, int] = {}
    for pattern, number in limits:
        for group in groups:
            if fnmatchcase(group, pattern):
                found[group] = min(number, found.get(group, number))
    return tuple(found.items())


def some(names: Iterable[str]) -> str:
    """Nodes by name, the first few of many."""
    ordered = sorted(names)
    if len(ordered) <= NAMED:
        return counted(ordered)
    return f"{len(ordered)} nodes: {first_of(ordered, NAMED)}"


def wave_name(wave: int) -> str:
    """Return a wave, for people."""
    return f"wave {wave}" if wave else "canaries"


def moment(value: datetime) -> str:
    """Return an instant in sentences."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def decide(rollout: Rollout, now: datetime, observation: Observation) -> Decision:
    """Return the next steps of a roll-out, or why there are none."""
    return _Planner(rollout, now, observation).decision()


def needed_minutes(policy: Policy) -> dict[NodeState, int]:
    """Return what must remain of a window for a node in each state to go on; later it goes on anyway."""
    change = policy.work_minutes + policy.way_back_minutes
    return {
        NodeState.PENDING: policy.stage_minutes + policy.drain_minutes + change,
        NodeState.STAGED: policy.drain_minutes + change,
        NodeState.DRAINED: change,
        NodeState.BASELINE: change - policy.measure_minutes,
    }


class _Planner:
    """One decision in the making."""

    def __init__(self, rollout: Rollout, now: datetime, observation: Observation) -> None:
        self.rollout, self.policy, self.now = rollout, rollout.policy, now
        self.needed_minutes = needed_minutes(self.policy)
        self.records = rollout.records
        self.foreign = {name: why for name, why in observation.unavailable.items() if name in rollout.nodes}
        self.problem = observation.problem
        self.starts: list[Start] = []
        self.moves: dict[str, Record] = {}
        self.until: datetime | None = None
        self.closed = False
        self.sentences: list[str] = []
        self.steps_under_way = 0
        self.mode, self.reason = rollout.mode, rollout.reason
        self.pending: dict[int, list[str]] = defaultdict(list)
        self.active: list[str] = []
        self.out: set[str] = set()
        self.failed: list[str] = []
        self.refused: list[str] = []
        self.watching = 0
        self.canaries: list[str] = []
        self.ended: Counter[NodeState] = Counter()
        self.failures: dict[str, int] = {}
        for name, record in self.records.items():
            state = record.state
            if record.failures:
                self.failures[name] = record.failures
            if record.wave == 0:
                self.canaries.append(name)
            if state is NodeState.PENDING and record.step is None:
                self.pending[record.wave].append(name)
                if record.failures and not record.accepted:
                    self.failed.append(name)
                continue
            if state not in ENDED:
                self.active.append(name)
            else:
                self.ended[state] += 1
                self.watching += record.step is not None
            if record.out:
                self.out.add(name)
            if record.failures and not record.accepted:
                self.failed.append(name)
            elif record.refused and not record.accepted:
                self.refused.append(name)
        # Somebody else may have drained a node while it waited; ours are drained by us.
        self.foreign = {
            name: why
            for name, why in self.foreign.items()
            if not self.records[name].under_way and not self.records[name].out
        }

    def decision(self) -> Decision:
        """Return all of it."""
        self._stop_or_hold()
        self._continue()
        if self.mode is Mode.RUNNING and self.problem and any(self.pending.values()):
            self.sentences.append(
                f"no node starts, because nobody knows which are in service: {self.problem}"
            )
            self._soonest(self.now + LOOK_AGAIN)
        elif self.mode is Mode.RUNNING:
            self._open()
        if not self._busy and self.until is None and self.mode is Mode.RUNNING:
            self._end()
        counts = self._counts()
        return Decision(
            tuple(self.starts),
            self.moves,
            self.mode,
            self.reason if self.mode is not Mode.RUNNING else "",
            self._sentence(counts),
            counts,
            self.until,
            self._busy,
            self.closed,
        )

    @property
    def _busy(self) -> bool:
        return bool(self.starts or self.steps_under_way or self.watching)

    @property
    def _total(self) -> int:
        return len(self.rollout.nodes)

    def _soonest(self, instant: datetime) -> None:
        self.until = instant if self.until is None else min(self.until, instant)

    def _stop_or_hold(self) -> None:
        """Stop or hold the roll-out: for a failure that must be seen, or too many of anything."""
        if self.mode in (Mode.STOPPED, Mode.DONE):
            return
        if reason := self._stop_reason():
            self.mode, self.reason = Mode.STOPPED, reason
        elif self.mode is Mode.RUNNING and len(self.refused) > self.policy.refusal_budget.of(self._total):
            self.mode = Mode.HELD
            self.reason = (
                f"{some(self.refused)} left out, and refusal_budget is {self.policy.refusal_budget}: "
                "`resume` goes on without them"
            )

    def _stop_reason(self) -> str:
        for name in self.failed:
            record = self.records[name]
            if record.state is NodeState.FAILED or record.course is Course.KEEP_OUT:
                return f"{name} stays out of service: {record.reason}"
            if record.watched is False:
                return f"{name} did not pass its soak: {record.reason}"
            if record.wave == 0:
                return f"canary {name} is rolled back: {record.reason}"
        if sum(self.failures.values()) > (budget := self.policy.failure_budget.of(self._total)):
            return (
                f"{some(self.failures)} failed or rolled back, and failure_budget is "
                f"{self.policy.failure_budget} ({budget} of {self._total}): if more may fail, `run` begins "
                "another roll-out with a policy that has a larger failure_budget"
            )
        return ""

    def _continue(self) -> None:
        """Begin the next step of every node that is under way. Those that are changed go on in any mode."""
        for name in self.active:
            record = self.records[name]
            if record.step:
                self.steps_under_way += 1
                continue
            if record.course is Course.FORWARD and record.unchanged:
                why = ""
                if self.mode is Mode.STOPPED:
                    why = f"the roll-out stopped before it was changed: {self.reason}"
                elif not self._fits(name, record.state):
                    why = "its window would have closed before it could end"
                if why:
                    record = release(record, NodeState.PENDING, why)
                    self.moves[name] = record
            if record.not_before and self.now < record.not_before:
                self._soonest(record.not_before)
                continue
            if transition := upcoming(record):
                self.starts.append(Start(name, transition))

    def _fits(self, name: str, state: NodeState) -> bool:
        """Return whether a node in this state can end inside its window."""
        needed = self.needed_minutes.get(state)
        calendar = self.policy.calendar
        if needed is None or calendar.always:
            return True
        groups = self.rollout.nodes[name].groups
        return calendar.remaining(self.now, groups) >= timedelta(minutes=needed)

    def _open(self) -> None:
        """Start nodes of the first wave that has not ended, as many as there is room for."""
        numbers = [wave for wave, names in self.pending.items() if names]
        self._note_who_is_out(min(numbers, default=0))
        if not self._promote_canaries():
            return
        if not numbers:
            if not self.active:
                self._looked_at()
            return
        wave = min([*numbers, *(self.records[name].wave for name in self.active)])
        names = self.pending.get(wave, [])
        if not names or not self._looked_at(wave):
            return
        candidates = [name for name in names if name not in self.foreign]
        started = self._fill(wave, candidates)
        if not candidates and not any(self.records[name].wave == wave for name in self.active):
            # All others of the wave had their turn.
            self._wait_for_others(wave, names)
        elif started:
            self.sentences.append(f"{wave_name(wave)}: start {some(started)}")

    def _note_who_is_out(self, wave: int) -> None:
        """Note since when others keep nodes of the wave out of service, and forget it once they are back."""
        for number, names in self.pending.items():
            for name in names:
                record = self.records[name]
                if name not in self.foreign and record.out_since:
                    self.moves[name] = seen_back(record)
                elif name in self.foreign and number == wave and not record.out_since:
                    self.moves[name] = seen_out(record, self.foreign[name], self.now)

    def _wait_for_others(self, wave: int, names: list[str]) -> None:
        """Others keep all that is left of a wave out of service: look again, and in the end leave it out.

        Where they keep so many that no node of a later wave could start either, their return is waited for.
        """
        waiting = [name for others in self.pending.values() for name in others]
        most = self.policy.max_unavailable.of(self._total, 1)
        if len(waiting) > len(names) and len({*self.out, *self.foreign}) >= most:
            self._no_room(most, waiting)
            return
        ends = {name: (self.records[name].out_since or self.now) + PATIENCE for name in names}
        due = [name for name in names if ends[name] <= self.now]
        unseen = [name for name in due if not self.records[name].accepted]
        budget = self.policy.refusal_budget
        if not due:
            end = min(ends.values())
            self.sentences.append(
                f"{wave_name(wave)}: {some(names)} out of service by somebody else; left out where "
                f"that lasts until {moment(end)}"
            )
            self._soonest(min(self.now + LOOK_AGAIN, end))
        elif unseen and len(self.refused) + len(unseen) > budget.of(self._total):
            self.mode = Mode.HELD
            self.reason = (
                f"{some(due)} out of service by somebody else for {duration(PATIENCE.total_seconds())} or "
                f"more, and refusal_budget is {budget}: have them returned, then `resume`; without that, it "
                "leaves them out"
            )
        else:
            for name in due:
                self.moves[name] = leave_out(self.records[name], self.records[name].reason, self.now)
            self.sentences.append(f"{some(due)} left out: out of service by somebody else")
            self._soonest(self.now)

    def _promote_canaries(self) -> bool:
        """Return whether every cohort that waits has its canaries returned.

        Where one has not, its next nodes become canaries: a canary that was left out, or that somebody has
        accepted, has shown nothing.
        """
        wanted = self.policy.canaries
        if not wanted or self.pending.get(0):
            return True
        if any(self.records[name].wave == 0 for name in self.active):
            return False
        returned: Counter[str] = Counter()
        for name in self.canaries:
            record = self.records[name]
            if record.state is NodeState.RETURNED and not record.overruled:
                returned[self.rollout.nodes[name].cohort] += 1
        promoted = []
        nodes = self.rollout.nodes
        waiting = [nodes[name] for names in self.pending.values() for name in names]
        last = len(self.policy.waves)
        missing = [
            node
            for node in waiting
            if returned[node.cohort] < wanted and self.records[node.name].wave <= last
        ]
        for node in sorted(missing, key=lambda node: node.place):
            name, cohort = node.name, node.cohort
            if returned[cohort] < wanted:
                returned[cohort] += 1
                promoted.append(name)
                self.moves[name] = replace(self.records[name], wave=0)
        if promoted:
            self.sentences.append(f"{some(promoted)} become canaries in place of those that showed nothing")
            self._soonest(self.now)
        return not promoted

    def _looked_at(self, before: int | None = None) -> bool:
        """Return whether all waves, or those before one, were in service long enough, and looked at then."""
        unwatched: dict[int, dict[str, Record]] = defaultdict(dict)
        for name, record in self.records.items():
            if record.state is not NodeState.RETURNED or record.watched is not None:
                continue
            if (before is None or record.wave < before) and self._soak_minutes(record.wave):
                unwatched[record.wave][name] = record
        for wave, returned in sorted(unwatched.items()):
            end = max(record.since for record in returned.values())
            end += timedelta(minutes=self._soak_minutes(wave))
            if self.now < end:
                self.sentences.append(f"{wave_name(wave)}: soak until {moment(end)}")
                self._soonest(end)
                continue
            self.sentences.append(f"{wave_name(wave)}: look at them after the soak")
            for name, record in returned.items():
                if record.not_before and self.now < record.not_before:
                    self._soonest(record.not_before)
                elif not record.step:
                    self.starts.append(Start(name, WATCH))
        return not unwatched

    def _soak_minutes(self, wave: int) -> int:
        return self.policy.wave_soak_minutes if wave else self.policy.soak_minutes

    def _fill(self, wave: int, candidates: list[str]) -> list[str]:
        """Start candidates while there is room, and say what keeps the others."""
        taken = {*self.active, *self.out, *self.foreign}
        most = self.policy.max_unavailable.of(self._total, 1)
        limits = tuple(self.policy.group_limits.items())
        in_group: Counter[str] = Counter()
        if limits:
            for name in taken:
                in_group.update(group for group, _ in limits_of(self.rollout.nodes[name].groups, limits))
        started: list[str] = []
        full: set[str] = set()
        opens: datetime | None = None
        never: list[str] = []
        fitting: dict[tuple[str, ...], bool] = {}
        transition = upcoming(Record(NodeState.PENDING, self.now))
        assert transition and transition.step is Step.LEASE
        for name in sorted(candidates, key=lambda name: self.rollout.nodes[name].place):
            groups = self.rollout.nodes[name].groups
            if groups not in fitting:
                fitting[groups] = self._fits(name, NodeState.PENDING)
            if not fitting[groups]:
                start = self._next_start(groups)
                if start is None:
                    never.append(name)
                else:
                    opens = start if opens is None else min(opens, start)
                continue
            if len(taken) >= most:
                self._no_room(most, candidates)
                break
            limited = limits_of(groups, limits)
            if over := [group for group, limit in limited if in_group[group] >= limit]:
                full.update(over)
                continue
            taken.add(name)
            in_group.update(group for group, _ in limited)
            started.append(name)
            self.starts.append(Start(name, transition))
        if started:
            return started
        if opens:
            self.sentences.append(f"{wave_name(wave)}: the next window is at {moment(opens)}")
            self._soonest(opens)
            self.closed = True
        for name in never:
            self.moves[name] = leave_out(
                self.records[name], "no window is long enough for it within a year", self.now
            )
            self._soonest(self.now)
        if full:
            self._groups_full(full, limits)
        return started

    def _next_start(self, groups: tuple[str, ...]) -> datetime | None:
        needed = timedelta(minutes=self.needed_minutes[NodeState.PENDING])
        return self.policy.calendar.next_start(self.now, needed, groups)

    def _no_room(self, most: int, waiting: list[str]) -> None:
        """As many nodes are out of service as may be: why, and who can change that."""
        if self.active or self.starts:
            return
        said = f"{len(waiting)} nodes wait: max_unavailable is {self.policy.max_unavailable} ({most})"
        self._blocked(self.out, self.foreign, len(self.out) >= most, said)

    def _groups_full(self, full: set[str], limits: tuple[tuple[str, int], ...]) -> None:
        if self.active or self.starts:
            return

        def within(names: Iterable[str]) -> dict[str, str]:
            """Return those of the full groups."""
            nodes = self.rollout.nodes
            return {
                name: self.foreign.get(name, "")
                for name in names
                if full & {group for group, _ in limits_of(nodes[name].groups, limits)}
            }

        others = within(self.foreign)
        self._blocked(
            within(self.out),
            others,
            not others,
            f"groups {', '.join(sorted(full))} have reached group_limits",
        )

    def _blocked(self, out: Iterable[str], foreign: Mapping[str, str], by_us: bool, said: str) -> None:
        """Hold where only a repair can help; look again where others may return their nodes."""
        parts = [f"failed or silent: {some(out)}"] if (out := list(out)) else []
        parts += [f"out of service by others: {some(foreign)}"] if foreign else []
        sentence = f"{said}, and {'; '.join(parts)}"
        if by_us:
            self.mode = Mode.HELD
            self.reason = f"{sentence}: repair them and `retry` each, then `resume`"
        else:
            self.sentences.append(sentence)
            self._soonest(self.now + LOOK_AGAIN)

    def _end(self) -> None:
        """Nothing is under way and nothing can start: it is over, or it must be said why not."""
        waiting = sum(map(len, self.pending.values()))
        if waiting:  # what keeps them is a hold; without one this is a fault of the planner
            self.mode = Mode.HELD
            self.reason = self.reason or f"{waiting} nodes wait and nothing says why: report this as a bug"
        elif not self.active:
            self.mode, self.reason = Mode.DONE, ""

    def _ended(self) -> str:
        """Return how many nodes have ended in each state."""
        return ", ".join(f"{count} {state}" for state, count in sorted(self.ended.items()))

    def _counts(self) -> str:
        """Return how many nodes have ended, are under way, and wait."""
        waiting = sum(map(len, self.pending.values()))
        begun = sum(self.records[start.node].state is NodeState.PENDING for start in self.starts)
        parts = (self._ended(), f"{len(self.active) + begun} under way", f"{waiting - begun} pending")
        return ", ".join(filter(None, parts))

    def _sentence(self, counts: str) -> str:
        """Return what happens now, in one line."""
        if self.mode is Mode.DONE:
            return f"done: {self._ended()}"
        if self.mode is not Mode.RUNNING:
            return f"{self.mode}: {self.reason.rstrip('.')} ({counts})"
        return "; ".join([*(one.rstrip(".") for one in self.sentences), counts])
