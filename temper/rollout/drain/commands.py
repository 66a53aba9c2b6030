"""Commands of the operator in place of a scheduler, and no scheduler at all."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from temper.rollout.drain.base import POLL_S, DrainError, Standing, checked, one_line
from temper.rollout.drain.programs import TIMEOUT_S, ask, output_of

#: Commands that look at nodes at the same time: all nodes have to be seen within the engine's limit.
AT_ONCE = 64
#: All but characters that mean nothing to a shell.
SHELL = re.compile(r"[^\w .,:/+=@%-]")


@dataclass(frozen=True)
class Commands:
    """Lists of words, run without a shell; `{node}` and `{reason}` in a word are replaced.

    `look` ends with 0 where the node is in service, with 1 where it is not, and then prints why. `empty` ends
    with 0 where nothing runs there, with 1 where something does, and then prints a line for each. `drain` and
    `give_back` end with 0, also where there is nothing to do. Any other status is an error, whose words the
    operator reads.

    The reason may have words of a node, and a command of the operator's may be ssh, or a shell: what a shell
    acts on is left out of it.
    """

    look_command: tuple[str, ...]
    drain_command: tuple[str, ...]
    empty_command: tuple[str, ...]
    give_back_command: tuple[str, ...]
    timeout_s: float = TIMEOUT_S

    def look(self, node: str) -> Standing:
        """Return how the node stands now; whose drain it is, commands do not say."""
        answer = ask(self._filled(self.look_command, node), self.timeout_s)
        if answer.status not in (0, 1):
            raise DrainError(f"The command that looks at {node} failed: {answer.complaint}")
        if answer.status == 0:
            return Standing(node, in_service=True, state="in service")
        return Standing(node, in_service=False, reason=one_line(answer.output), state="out of service")

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """Return how each stands now; where the command fails for one of them, that is its obstacle.

        Raises:
            DrainError: it fails for all of them.
        """
        errors: list[DrainError] = []

        def look(node: str) -> Standing:
            try:
                return self.look(node)
            except DrainError as error:
                errors.append(error)
                return Standing(node, in_service=False, obstacle=str(error))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(look, nodes))
        if errors and len(errors) == len(found):
            raise errors[0]
        return found

    def drain(self, node: str, before: Standing, reason: str) -> None:
        """Take it out of service if it was in service."""
        if before.in_service:
            output_of(self._filled(self.drain_command, node, reason), self.timeout_s)

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        """Return what is left after so long."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = ask(self._filled(self.empty_command, node), self.timeout_s)
            if answer.status not in (0, 1):
                raise DrainError(f"The command that looks for work on {node} failed: {answer.complaint}")
            left_s = deadline - time.monotonic()
            if answer.status == 0:
                return ()
            if left_s <= 0:
                lines = [line.strip() for line in answer.output.splitlines() if line.strip()]
                return tuple(lines or ["something, of which the command says nothing"])
            time.sleep(min(POLL_S, left_s))

    def give_back(self, node: str, before: Standing) -> str:
        """Return it if it was in service before."""
        if not before.in_service:
            return f"{node} stays out of service, as it was before: {before.reason or 'no reason was given'}."
        output_of(self._filled(self.give_back_command, node), self.timeout_s)
        if not (now := self.look(node)).in_service:
            raise DrainError(f"The command returned {node}, and it is still out of service: {now.reason}")
        return f"{node} is back in service."

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Say the new reason, by the command that drains."""
        self.drain(node, before, reason)

    def _filled(self, command: tuple[str, ...], node: str, reason: str = "") -> list[str]:
        # Not str.format: other braces in a command are the operator's.
        return [
            word.replace("{node}", checked(node)).replace("{reason}", one_line(SHELL.sub(" ", reason)))
            for word in command
        ]


@dataclass(frozen=True)
class Idle:
    """No scheduler: the nodes are idle, as their operator says. What holds GPUs is looked for on nodes."""

    def look(self, node: str) -> Standing:
        """In service, as far as anybody knows."""
        return Standing(checked(node), in_service=True, state="no scheduler")

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """In service, as far as anybody knows."""
        return [self.look(node) for node in nodes]

    def drain(self, node: str, before: Standing, reason: str) -> None:
        """There is nothing to do."""

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        """Nobody knows of any work."""
        return ()

    def give_back(self, node: str, before: Standing) -> str:  # noqa: ARG002 - the protocol's
        """There is nothing to do."""
        return f"{node} has no scheduler to return it to."

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Nobody is told but the report."""
