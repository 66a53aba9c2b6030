"""What a test is.

Each knows whether this node can run it, runs it, and says what is wrong, by codes and facts. To add one:
write a module with a class like the others, and add it to registry.py; docs/validation.md lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from validation.checks.node import Node
    from validation.model.contract import TestResult


class Check(Protocol):
    """A test.

    `headline` names the measurements that stand for it in a table, the best first; `method` is its
    version.
    """

    id: str
    title: str
    needs: str
    method: int
    headline: tuple[str, ...]

    def run(self, node: Node) -> TestResult:
        """Run it here, whatever happens, and say how it came out."""
        ...
