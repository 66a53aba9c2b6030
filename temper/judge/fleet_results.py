"""What was measured on the nodes of a fleet, and what is expected of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

from validation.checks.registry import TESTS
from validation.findings.catalogue import advised
from validation.model.contract import (
    ContractError,
    NodeResult,
    UsageError,
    decode,
    node_result,
    parse,
    refuse_future,
)
from validation.model.expectations import Expectation, fleet_from
from validation.model.printable import one_line

#: Characters of the reason why a node was not measured.
MOST_REASON = 2000


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of each node, as a document has them beside its results."""

    groups: dict[str, tuple[str, ...]]


class FleetResults:
    """The results, expectations and groups of a fleet's nodes, by name. Each node has an expectation."""

    def __init__(self) -> None:
        self.expectations: dict[str, Expectation] = {}
        self.results: dict[str, NodeResult] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self._known: dict[bytes, Expectation] = {}
        self._now = datetime.now(UTC)

    def add(
        self,
        expectations: Mapping[str, Expectation],
        results: Mapping[str, NodeResult],
        unreadable: Mapping[str, str],
    ) -> None:
        """Add nodes; they replace earlier ones of the same name. Raises UsageError.

        A node whose result is `unreadable`, which says why, or of the future, was not measured: one bad
        result costs the others no verdict.
        """
        if unknown := sorted((results.keys() | unreadable.keys()) - expectations.keys()):
            why = f": {unreadable[unknown[0]]}" if unknown[0] in unreadable else ""
            raise UsageError(
                f"there is a result of {unknown[0]}, but nothing is expected of a node of this name{why}"
            )
        for name in expectations.keys() & self.expectations.keys():
            del self.expectations[name]
            self.results.pop(name, None)
        self.expectations |= expectations
        refused = dict(unreadable)
        for name, result in results.items():
            try:
                refuse_future(result, self._now)
            except ContractError as error:
                refused[name] = str(error)
            else:
                self.results[name] = result
        for name, why in refused.items():
            self.lose(name, f"its result cannot be read: {why}")

    def lose(self, name: str, reason: str) -> Expectation:
        """Treat a node as not measured; return its new expectation."""
        self.results.pop(name, None)
        expected = dataclasses.replace(self.expectations[name], not_run=one_line(reason)[:MOST_REASON])
        self.expectations[name] = expected
        return expected

    def add_document(self, document: dict[str, Any]) -> None:
        """Add the nodes of a document. Raises UsageError, ContractError."""
        expectations = fleet_from(document["expectations"], TESTS, self._known).nodes
        results, unreadable = {}, {}
        for name, value in document["results"].items():
            try:
                results[name] = _result_of(name, value)
            except ContractError as error:
                unreadable[name] = str(error)
        self.add(expectations, results, unreadable)
        groups = document.get("groups") or {}
        if isinstance(groups, dict):  # of a name that nobody can print there are none
            groups = {name: own for name, own in groups.items() if name in expectations}
        self.groups |= decode(Groups, {"groups": groups}).groups

    def add_slice(self, path: Path) -> None:
        """Add the nodes of a file that a slice has handed over. Raises UsageError, OSError."""
        try:
            given = parse(path.read_bytes())
            document = given.get("document") if isinstance(given, dict) else None
            if not is_document(document):
                raise ContractError("it has no document with expectations and results")
            self.add_document(document)
        except (ContractError, UsageError) as error:
            raise UsageError(
                f"{path}: expected what a slice has handed over: {error}. Begin a new run."
            ) from error


def is_document(given: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this is an object with `expectations` and with `results` by node.

    It is looked at no further here.
    """
    return isinstance(given, dict) and all(
        isinstance(given.get(part), dict) for part in ("expectations", "results")
    )


def _result_of(name: str, value: Any) -> NodeResult:
    result = node_result(value, TESTS)
    if result.node != name:
        raise ContractError(f"it is one of node {one_line(result.node)}")
    tests = tuple(
        dataclasses.replace(test, findings=tuple(map(advised, test.findings))) if test.findings else test
        for test in result.tests
    )
    return dataclasses.replace(result, tests=tests)
