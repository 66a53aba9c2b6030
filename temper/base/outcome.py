"""States of nodes at the end of a run, and the one way to count them, which all outputs use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The better first; of several the worst counts. `not checked`: nothing is known of it that could be judged.
STATES = ("ok", "changed", "not checked", "refused", "failed", "unreachable")
GOOD, BAD = STATES[:2], STATES[2:]


def worst(states: Iterable[str]) -> str:
    """Return the worst of at least one state."""
    return max(states, key=STATES.index)


def tally(states: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the nodes by their state, without the states that no node has, the better state first."""
    return {
        state: nodes
        for state in STATES
        if (nodes := [node for node, found in states.items() if found == state])
    }


def wording(state: str, check: bool = False) -> str:
    """Return a state in words; check mode changes nothing."""
    return "would change" if state == "changed" and check else state


def numbers(states: Mapping[str, str], check: bool = False) -> str:
    """Return how many nodes have each state: `2 ok, 1 failed`."""
    return ", ".join(f"{len(nodes)} {wording(state, check)}" for state, nodes in tally(states).items())


@dataclass(frozen=True)
class FinalVerdict:
    """How a judge ended a run: a sentence, each node's state, and where the report is, if there is one."""

    sentence: str
    good: bool
    states: Mapping[str, str] = field(default_factory=dict)
    report: str = ""

    @classmethod
    def from_result(cls, result: Mapping[str, Any], nodes: Collection[str]) -> FinalVerdict | None:
        """Read the result of the action `verdict`, states of `nodes` only; None where it has no verdict."""
        found = result.get("verdict")
        if not isinstance(found, dict):
            return None
        states = found.get("states")
        return cls(
            str(found.get("sentence", "")),
            found.get("good") is True,
            {str(node): state for node, state in states.items() if node in nodes and state in STATES}
            if isinstance(states, dict)
            else {},
            str(found.get("report", "")),
        )
