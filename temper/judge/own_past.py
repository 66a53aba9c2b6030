"""The nodes' own past while a report is made. A history that cannot be used costs no verdict.

Before a history was one file, it was a folder with a file for each node and a line for each run. Such files
are read once, stay where they are, and are not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from temper.base.store import HistoryError
from temper.judge import history
from temper.judge.history import Past, PastRun
from temper.judge.history_store import History
from temper.judge.unshown import Unshown
from validation.model.contract import ContractError, NodeResult, decode, parse
from validation.verdict.baseline import Comparison
from validation.verdict.verdicts import NodeVerdict

#: Versions of a line; 2 had no checksums.
READABLE = {2, 3}
MOST_PROBLEMS = 10


@dataclass(frozen=True)
class TakenOver:
    """How many runs of how many files were added, and a sentence for each line and file that was left out."""

    runs: int = 0
    files: int = 0
    problems: tuple[str, ...] = ()

    def text(self, path: Path) -> str:
        """Return what the operator reads of it; empty where nothing was to be done."""
        if not (self.files or self.problems):
            return ""
        lines = [f"{path} has taken over {self.runs} runs from {self.files} files of earlier versions."]
        lines += [f"  left out: {problem}" for problem in self.problems[:MOST_PROBLEMS]]
        if more := len(self.problems) - MOST_PROBLEMS:
            lines += [f"  left out: {more} more lines"] if more > 0 else []
        return "\n".join(lines) + "\n"


def take_over(history: History, directory: Path) -> TakenOver:
    """Add the runs of a folder's files, all or none of them, and each file once. Raises HistoryError."""
    known = history.taken_over()
    new = [path for path in sorted(directory.glob("*.jsonl")) if path.name not in known]
    if not new:
        return TakenOver()
    runs, problems, read = [], [], []
    for path in new:
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            problems.append(f"{path}: it cannot be read: {error.strerror}")
            continue
        read.append(path.name)
        for found in _runs(text):
            if isinstance(found, PastRun):
                runs.append(found)
            else:
                problems.append(f"{path}, {found}")
    return TakenOver(history.append(runs, read), len(read), tuple(problems))


def _runs(text: str) -> Iterator[PastRun | str]:
    """Yield the run of each line, or which line is none, and why."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = parse(line)
            if not isinstance(value, dict):
                raise ContractError("expected an object")
            version = value.pop("schema_version", None)
            if version not in READABLE:
                raise ContractError(f"schema version {version}, expected {' or '.join(map(str, READABLE))}")
            yield decode(PastRun, value)
        except ContractError as error:
            yield f"line {number}: {error}"


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
