"""Slurm, by scontrol and squeue: drained with a reason that carries our mark, resumed only with that mark.

`scontrol show node --oneliner` is read because every release has it, from Debian 12's 22.05 on; its JSON came
with 23.02, and its form changes with the release. States are a base state and flags, joined by `+`
(slurm/src/common/ slurm_protocol_defs.c, node_state_string_complete); marks such as `*` for a node that does
not respond are appended in older releases and in sinfo (sinfo(1), NODE STATE CODES).

What Slurm does itself: a reboot makes a node DOWN, "Node unexpectedly rebooted", unless ReturnToService
allows it; RESUME ends that, too (scontrol(1)). A reason that is there is not replaced (node_mgr.c,
set_node_down_ptr).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import dataclass

from temper.rollout.drain.base import POLL_S, DrainError, Standing, checked, one_line, unknown
from temper.rollout.drain.programs import ask, output_of

#: What sinfo(1) appends to a state: no answer, power saving, reboot, maintenance, planned.
MARKS = "*~#!%$@^-"
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
#: Nobody's work runs there, and ours should not begin: a sentence says why.
OBSTACLES = {
    "DOWN": "is DOWN",
    "ERROR": "is in ERROR",
    "FAIL": "is marked FAIL",
    "FAILING": "is marked FAIL",
    "UNKNOWN": "has not registered with slurmctld yet",
    "INVAL": "registered with another configuration than slurm.conf's (INVAL)",
    "INVALID_REG": "registered with another configuration than slurm.conf's (INVALID_REG)",
    "FUTURE": "is a FUTURE node",
    "NOT_RESPONDING": "does not answer slurmctld",
    "POWERED_DOWN": "is powered down by Slurm",
    "POWERING_DOWN": "is being powered down by Slurm",
    "POWER_DOWN": "is about to be powered down by Slurm",
    "POWERING_UP": "is being powered up by Slurm",
    "REBOOT_ISSUED": "is being rebooted by Slurm",
    "REBOOT_REQUESTED": "is to be rebooted by Slurm",
    "MAINT": "is in a maintenance reservation",
    "MAINTENANCE": "is in a maintenance reservation",
}
WORKING = frozenset({"ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "COMP"})
# "Reason=why [root@2026-11-22T19:42:55]", the last of a line; a comment may come between.
REASON = re.compile(r" Reason=(?P<reason>.*?)(?: \[(?P<by>[^\[\]@ ]+)@(?P<since>[^\[\] ]+)\])?\s*$")
NAME = re.compile(r"NodeName=(\S+)")
STATE = re.compile(r"(?:^| )State=(\S+)")


@dataclass(frozen=True)
class SlurmNode:
    """What scontrol says of a node."""

    flags: frozenset[str]
    state: str
    reason: str
    by: str
    since: str

    @property
    def drained(self) -> bool:
        """Whether it takes no new jobs because somebody said so."""
        return bool(self.flags & DRAINED)

    @property
    def obstacle(self) -> str:
        """What it is that we should not begin with, as the rest of a sentence."""
        found = (words for flag, words in OBSTACLES.items() if flag in self.flags)
        return "; ".join(dict.fromkeys(found))

    @property
    def whose(self) -> str:
        """`by root since 2026-11-22T19:42:55: disk`."""
        by = f" by {self.by} since {self.since}" if self.by else ""
        return f"{by}: {self.reason}" if self.reason else by


def parse(line: str) -> SlurmNode:
    """Return a node from a line of `scontrol show node --oneliner`. Raises DrainError."""
    state = STATE.search(line)
    if not state:
        raise DrainError(f"Expected a node from `scontrol show node`, found {one_line(line)[:80]!r}.")
    flags = frozenset(word.rstrip(MARKS) for word in state[1].upper().split("+"))
    if any(word.endswith("*") for word in state[1].split("+")):
        flags |= {"NOT_RESPONDING"}
    reason = REASON.search(line)
    if not reason:
        return SlurmNode(flags, state[1], "", "", "")
    return SlurmNode(flags, state[1], reason["reason"], reason["by"] or "", reason["since"] or "")


class Slurm:
    """A cluster under Slurm. `owner` is the roll-out, as it stands in the reasons of nodes."""

    def __init__(self, owner: str, *, scontrol: str = "scontrol", squeue: str = "squeue") -> None:
        """Look for the programs on PATH, or take them from a folder."""
        self.mark = f"[temper {one_line(owner)}]"
        self._scontrol, self._squeue = scontrol, squeue

    def look(self, node: str) -> Standing:
        """Return how the node stands now."""
        return self._standing(node, self._node(node))

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """Return how all of them stand now, by one question."""
        lines = output_of([self._scontrol, "show", "node", "--oneliner"]).splitlines()
        found = {name[1]: line for line in lines if (name := NAME.match(line))}
        return [
            self._standing(node, parse(found[node])) if node in found else unknown(node, "Slurm")
            for node in nodes
        ]

    def drain(self, node: str, before: Standing, reason: str) -> None:
        """Drain it, unless it is drained already."""
        now = self._node(node)
        if not before.in_service and not before.ours:
            return
        if now.drained:
            if self._is_ours(now):
                return
            raise DrainError(f"{node} was drained by somebody else meanwhile{now.whose}. It is left alone.")
        self._update(node, "DRAIN", f"{self.mark} {one_line(reason)}")
        if not self._node(node).drained:
            raise DrainError(
                f"Slurm took the order to drain {node}, and the node is not drained: look at slurmctld."
            )

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        """Return the jobs that are left after so long."""
        deadline = time.monotonic() + timeout_s
        while busy := self._jobs(node):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return busy
            time.sleep(min(POLL_S, left_s))
        return ()

    def give_back(self, node: str, before: Standing) -> str:
        """Resume what we drained; give back its reason to what somebody else did."""
        now = self._node(node)
        if not before.in_service and not before.ours:
            return self._leave(node, before, now)
        if not now.drained and not now.flags & {"DOWN", "FAIL"}:
            return f"{node} is {_in_service(now)} ({now.state})."
        if not self._is_ours(now):
            return f"{node} stays out of service, as somebody else has taken it out{now.whose} ({now.state})."
        self._update(node, "RESUME")
        after = self._node(node)
        if after.drained or after.flags & {"DOWN", "FAIL"}:
            raise DrainError(
                f"Slurm took the order to resume {node}, and it is {after.state}{after.whose}: look at "
                f"slurmd there."
            )
        return f"{node} is back {_in_service(after)} ({after.state})."

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Replace our own reason; drain it where it is in service."""
        now = self._node(node)
        if now.drained and not self._is_ours(now):
            return
        if before.in_service or before.ours:
            self._update(node, "DRAIN", f"{self.mark} {one_line(reason)}")

    def _leave(self, node: str, before: Standing, now: SlurmNode) -> str:
        if not now.drained:
            return f"{node} was drained by somebody else before, and is {now.state} now."
        if now.reason != before.reason and before.reason:
            self._update(node, "DRAIN", before.reason)
        return f"{node} stays drained, as it was before: {before.reason}."

    def _standing(self, node: str, now: SlurmNode) -> Standing:
        ours = self._is_ours(now)
        out = now.drained or bool(now.flags & {"DOWN", "FAIL", "ERROR"})
        obstacle = f"{node} {now.obstacle}{now.whose if out else ''}." if now.obstacle else ""
        return Standing(node, not out, ours, now.reason if out else "", now.state, obstacle)

    def _is_ours(self, now: SlurmNode) -> bool:
        return now.reason.startswith(self.mark)

    def _node(self, node: str) -> SlurmNode:
        return parse(output_of([self._scontrol, "show", "node", checked(node), "--oneliner"]))

    def _update(self, node: str, state: str, reason: str = "") -> None:
        why = [f"Reason={reason}"] if reason else []
        output_of([self._scontrol, "update", f"NodeName={checked(node)}", f"State={state}", *why])

    def _jobs(self, node: str) -> tuple[str, ...]:
        """Jobs on the node; a word where Slurm still cleans up behind the last one."""
        # The name comes last, because it may hold anything.
        answer = ask([self._squeue, "--noheader", f"--nodelist={checked(node)}", "--format=%i|%u|%T|%j"])
        if answer.status:
            raise DrainError(f"squeue cannot say which jobs run on {node}: {answer.complaint}")
        rows = [line.split("|", 3) for line in answer.output.splitlines() if line.count("|") >= 3]
        jobs = tuple(
            f"job {job} ({name}) of {user} is {state}"
            for job, user, state, name in rows
            if state != "PENDING"
        )
        working = self._node(node).flags & WORKING
        return jobs or ((f"Slurm says {'+'.join(sorted(working))}",) if working else ())


def _in_service(node: SlurmNode) -> str:
    """Return the state; a node that was down and is resumed gets no jobs before its slurmd has answered."""
    silent = "NOT_RESPONDING" in node.flags
    return "among those that may get jobs, and does not answer slurmctld yet" if silent else "in service"
