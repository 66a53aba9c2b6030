"""What a scheduler can do with a node, and how it stood there before we touched it.

The order is: `look`, write down what it said, then `drain`. So whoever goes on after a crash knows whether
the node was in service. Where the scheduler can keep it, our mark is there as well, and counts more: what
does not carry it any more is somebody else's, and is not returned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from validation.model.printable import first_of

#: One node, and no expression for several of them, no option.
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: How often to look whether a node is idle.
POLL_S = 5.0
#: Characters of a reason; part of it may be a node's words.
MOST_REASON = 1000


class DrainError(Exception):
    """The scheduler does not answer, or refuses; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Standing:
    """How a node stands with its scheduler.

    `ours`: it is out of service by our own mark. `reason` is why it is out of service, as the scheduler says
    it, `state` the scheduler's word for it. `obstacle` is a sentence where the node is in no state to begin
    with.
    """

    node: str
    in_service: bool
    ours: bool = False
    reason: str = ""
    state: str = ""
    obstacle: str = ""


class Drainer(Protocol):
    """A scheduler. Every method may be repeated, is bounded in time, and raises DrainError."""

    def look(self, node: str) -> Standing:
        """Return how the node stands now."""

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """Return how all of them stand now, asked as a whole. A node that is not known has an obstacle."""

    def drain(self, node: str, before: Standing, reason: str) -> None:
        """Give the node no new work. What somebody else has drained stays as it is.

        Raises:
            DrainError: somebody else has drained it since `before`.
        """

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        """Wait for so long until its work has ended; returns what is still there, and why."""

    def give_back(self, node: str, before: Standing) -> str:
        """Return the node as it stood `before`; returns a sentence that says how it stands now."""

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Leave it out of service, with another reason."""


def checked(node: str) -> str:
    """Return a node's name. Raises DrainError where a scheduler would take it for several, or an option."""
    if not NODE.fullmatch(node):
        raise DrainError(f"Expected the name of one node, found {node!r}.")
    return node


def unknown(node: str, scheduler: str) -> Standing:
    """Return how a node stands of which its scheduler says nothing."""
    return Standing(node, in_service=False, obstacle=f"{node} is not known to {scheduler}.")


def one_line(text: str) -> str:
    """Return a reason as schedulers keep it: one line that no command takes for an option."""
    return " ".join(text.split()).lstrip("-")[:MOST_REASON]


def wait_until_idle(
    drainer: Drainer,
    node: str,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until a drained node has no work, or until `stopped`, which is asked once a minute.

    Raises:
        DrainError: it still has some after `timeout_s`; the message names it.
    """
    deadline = clock() + timeout_s
    while busy := drainer.empty(node, max(0.0, min(deadline - clock(), 60.0))):
        if stopped():
            return
        if clock() >= deadline:
            raise DrainError(
                f"{node} still has work after {timeout_s / 60:.0f} min: {named(busy)}. "
                "End it or wait, and try again."
            )


def named(work: Sequence[str]) -> str:
    """Return some of what keeps a node busy, and how much more there is."""
    return first_of(work, 5, "; ")
