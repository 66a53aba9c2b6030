"""The snapshot that a node has before it is changed: taken on the node, or by the operator's own commands.

The order is: note the name on the controller, take it, note what it is, and then change the node. So whoever
goes on after a crash knows whether it is older than the change, and what has to be removed in the end. It is
never restored here: the way back is the transaction to the former stack, which is proven.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.rollout.drain.base import DrainError, checked, one_line
from temper.rollout.drain.programs import ask, output_of
from temper.rollout.model import Outcome, StepResult
from temper.rollout.node_step import NodeStep
from temper.rollout.playbooks import Played
from temper.rollout.policy import Policy, Snapshot
from validation.processes.files import write_atomically

if TYPE_CHECKING:
    from temper.rollout.engine import Ticket

#: A platform may copy a disk for its snapshot. What removes it may take half of the node's return.
TAKE_TIMEOUT_S, REMOVE_TIMEOUT_S = 1800.0, 300.0
#: What the clocks of the platform and of this machine may differ by.
CLOCKS_S = 300.0


@dataclass(frozen=True)
class Commands:
    """The operator's commands: lists of words, run without a shell; `{node}` and `{name}` are replaced.

    `check` ends with 0 where there is a snapshot, and prints when it was taken (ISO 8601 with a zone, or Unix
    time); with 1 where there is none. `take` and `remove` end with 0, also where there is nothing to do.
    Without `take`, the platform takes snapshots by itself, and they are only checked.
    """

    policy: Policy
    node: str
    name: str

    def present(self, max_age_s: float) -> str:
        """Take it where it is missing or too old; returns what it is. Raises DrainError."""
        if "take" in self.policy.snapshot_commands:
            try:
                return self.checked(max_age_s)
            except _UnfitError:
                output_of(self._filled("take"), TAKE_TIMEOUT_S)
        return self.checked(max_age_s)

    def checked(self, max_age_s: float) -> str:
        """Return what it is. Raises DrainError if it is missing, or older than so much, if that is not 0."""
        answer, whose = ask(self._filled("check")), f"the snapshot of {self.node}"
        if answer.status == 1:
            raise _UnfitError(f"the command that checks {whose} finds none")
        if answer.status:
            raise DrainError(f"the command that checks {whose} failed: {answer.complaint}")
        said = one_line(answer.output)
        if max_age_s:
            try:
                taken = float(said) if said.isdecimal() else _instant(said)
            except ValueError:
                raise DrainError(
                    f"the command that checks {whose} has to print when it was taken (ISO 8601 with a zone, "
                    f"or Unix time), found {said[:80]!r}"
                ) from None
            # One of a time to come was taken by a clock that is wrong, nobody knows when.
            if not -CLOCKS_S <= time.time() - taken <= max_age_s:
                raise _UnfitError(f"{whose} was taken {said}, and may be {max_age_s / 60:g} min old")
        return f"the platform's snapshot{f' of {said}' if said else ''}"

    def remove(self) -> None:
        """Remove it, where we took it. Raises DrainError."""
        if "remove" in self.policy.snapshot_commands:
            output_of(self._filled("remove"), REMOVE_TIMEOUT_S)

    def _filled(self, command: str) -> list[str]:
        words = self.policy.snapshot_commands[command]
        return [word.replace("{node}", checked(self.node)).replace("{name}", self.name) for word in words]


class _UnfitError(DrainError):
    """There is no snapshot that may be used, and one may be taken."""


def _instant(text: str) -> float:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("it has no zone")
    return found.timestamp()


class Snapshots:
    """Snapshots of a roll-out's nodes. `step` has Ansible carry out a part of a step."""

    def __init__(self, folder: Path, step: Callable[..., Awaitable[Played]]) -> None:
        self.folder, self.step = folder, step

    async def before_change(self, ticket: Ticket) -> StepResult:
        """Have the snapshot that the policy asks for; `refused` where there is none to rely on."""
        policy = ticket.policy
        if policy.snapshot is Snapshot.NONE:
            return StepResult(Outcome.DONE)
        name, noted = name_of(ticket), self._noted(ticket)
        # It was there before the change began, perhaps, and a later one would show a half-changed node.
        relied = noted.get("name") == name and bool(noted.get("said"))
        if not relied:
            self._write(ticket, name, "")
        age_s = 0.0 if relied else policy.snapshot_max_age_minutes * 60.0
        ok, said = await self._act(ticket, "checked" if relied else "present", name, age_s)
        if not ok:
            return StepResult(Outcome.REFUSED, f"no snapshot: {said}")
        self._write(ticket, name, said)
        return StepResult(Outcome.DONE, facts={"snapshot": said})

    async def drop(self, ticket: Ticket) -> StepResult:
        """Remove it. One that stays is said, and is no reason to keep a node out of service."""
        name = self._noted(ticket).get("name")
        if not name:
            return StepResult(Outcome.DONE)
        ok, said = await self._act(ticket, "absent", name, 0.0)
        if not ok:
            return StepResult(Outcome.DONE, f"its snapshot {name} was not removed: {said}")
        self._note(ticket).unlink()
        return StepResult(Outcome.DONE, facts={"snapshot": ""})

    async def kept(self, ticket: Ticket) -> StepResult:
        """Return what a person has, who looks at a node that stays out of service."""
        noted = self._noted(ticket)
        if not noted.get("said"):
            return StepResult(Outcome.DONE)
        ok, said = await self._act(ticket, "checked", noted["name"], 0.0)
        found = noted["said"] if ok else f"{noted['said']}; checked since: {said}"
        return StepResult(Outcome.DONE, facts={"snapshot": found})

    async def _act(self, ticket: Ticket, state: str, name: str, age_s: float) -> tuple[bool, str]:
        """Return whether it could be done, and what the snapshot is, or why not."""
        policy = ticket.policy
        if policy.snapshot is Snapshot.COMMANDS:
            commands = Commands(policy, ticket.node.name, name)
            try:
                if state == "absent":
                    await asyncio.to_thread(commands.remove)
                    return True, ""
                act = commands.present if state == "present" else commands.checked
                return True, await asyncio.to_thread(act, age_s)
            except DrainError as error:
                return False, str(error)
        wanted: dict[str, Any] = {"kind": str(policy.snapshot), "state": state, "name": name}
        wanted |= {"room_gib": policy.snapshot_gib, **({"max_age_s": age_s} if age_s else {})}
        played = await self.step(ticket, NodeStep.SNAPSHOT, upgrade_snapshot=wanted)
        return played.ok, played.reported.snapshot if played.ok else played.said

    def _note(self, ticket: Ticket) -> Path:
        return self.folder / ticket.node.name / "snapshot.json"

    def _noted(self, ticket: Ticket) -> dict[str, str]:
        file = self._note(ticket)
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return found

    def _write(self, ticket: Ticket, name: str, said: str) -> None:
        write_atomically(self._note(ticket), json.dumps({"name": name, "said": said}))


def name_of(ticket: Ticket) -> str:
    """Return the snapshot's name.

    The roll-out, and when this try of the node began, which no crash changes.
    """
    begun = ticket.record.started_at or ticket.record.since
    return f"temper-{ticket.rollout}-{begun:%Y%m%dT%H%M%SZ}"


def sentence(policy: Policy) -> str:
    """Return what a plan says of it; empty where there is none."""
    if policy.snapshot is Snapshot.NONE:
        return ""
    age = policy.snapshot_max_age_minutes
    fresh = f", at most {age} min old" if age else ""
    if policy.snapshot is Snapshot.COMMANDS:
        act = "taken" if "take" in policy.snapshot_commands else "only looked for"
        how = f"the platform's{fresh}, {act} by your own commands"
    else:
        how = f"{policy.snapshot}, of /, with {policy.snapshot_gib} GiB for what changes"
    return f"Snapshot before each node is changed: {how}. Without one, the node is left out."
