"""The nodes' own past while a report is made. A history that cannot be used costs no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from temper.base.store import HistoryError
from temper.judge import history
from temper.judge.history import Past, PastRun
from temper.judge.history_files import take_over
from temper.judge.history_store import History
from validation.model.contract import NodeResult
from validation.verdict.baseline import Comparison

if TYPE_CHECKING:
    from temper.judge.unshown import Unshown
    from validation.verdict.verdicts import NodeVerdict


@dataclass(frozen=True)
class Compared:
    """What a node's past says of its tests, and when the node was measured before (ISO 8601), if ever."""

    tests: Mapping[str, Comparison]
    before: str | None


class OwnPast:
    """The nodes' own past. `unusable` says why the history cannot be used, empty where it can.

    `taken_over` says what was read of a history of an earlier form. `unshown` gets what cannot be made of a
    node's result.
    """

    def __init__(self, path: Path | None, unshown: Unshown) -> None:
        self._unshown = unshown
        self._history = History(path) if path else None
        self.unusable = self.taken_over = ""
        if self._history and path:
            try:
                self.taken_over = take_over(self._history, path.with_suffix("")).text(path)
            except HistoryError as error:
                self.unusable = str(error)

    def compare(self, nodes: Iterable[str], results: Mapping[str, NodeResult]) -> dict[str, Compared]:
        """Return what the past of each node says of its result; nothing where no history was named."""
        if self._history is None:
            return {}
        if not self.unusable:
            try:
                return {
                    node: self._unshown.attempt(
                        node,
                        "the comparison with its own past",
                        partial(_compared, results.get(node), past),
                        lambda _why: Compared({}, None),
                    )
                    for node, past in self._history.past(nodes, results)
                }
            except HistoryError as error:
                self.unusable = str(error)
        unknown = Past(notes=(f"not compared with its own past: {self.unusable}",))
        return {node: _compared(results.get(node), unknown) for node in nodes}

    def runs(self, result: NodeResult) -> tuple[PastRun, ...]:
        """Return the earlier runs that a result is compared with; none if the history cannot be used."""
        if self._history is None or self.unusable:
            return ()
        return self._history.basis(result)

    def add(self, verdicts: Iterable[NodeVerdict], results: Mapping[str, NodeResult]) -> None:
        """Add this run of each node."""
        if self._history is None or self.unusable:
            return
        # Before the history is locked for others.
        runs = [
            self._unshown.attempt(
                verdict.node,
                "its entry in the history",
                partial(history.run_of, results[verdict.node], verdict),
                lambda _why: None,
            )
            for verdict in verdicts
            if verdict.node in results
        ]
        try:
            self._history.append(run for run in runs if run)
        except HistoryError as error:
            self.unusable = str(error)


def _compared(result: NodeResult | None, past: Past) -> Compared:
    return Compared(
        history.compare(result, past) if result else {}, past.runs[-1].started_at if past.runs else None
    )
