"""What cannot be made of one node's result costs that alone: it is named, and the rest is complete."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from validation.model.contract import ContractError
from validation.model.printable import one_line

T = TypeVar("T")
#: How many are said, and how much of what an error says.
MOST_SAID, MOST_CHARACTERS = 10, 500


class Unshown:
    """What could not be made of nodes' results: a sentence each."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def attempt(self, node: str, what: str, make: Callable[[], T], instead: Callable[[str], T]) -> T:
        """Return what `make` makes of a node's result, or what `instead` makes of the reason why not."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - what a node may have brought about costs no other node
            why = why_not(error)
            self.said.append(f"{node}: {what} could not be made: {why}")
            return instead(why)

    def text(self) -> str:
        """Return the sentences, empty where there are none."""
        more = len(self.said) - MOST_SAID
        lines = [*self.said[:MOST_SAID], *([f"and {more} more"] if more > 0 else [])]
        return "".join(f"{one_line(line)}\n" for line in lines)


def why_not(error: Exception) -> str:
    """Return what an error says; of any but a ContractError with its class and place, to be found by."""
    said = one_line(str(error))[:MOST_CHARACTERS]
    if isinstance(error, ContractError):
        return said
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {said}"
