"""What a history was before it was one file: a folder with a file for each node and a line for each run.

Such files are read once, stay where they are, and are not read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from temper.judge.history import PastRun
from validation.model.contract import ContractError, decode, parse

if TYPE_CHECKING:
    from temper.judge.history_store import History

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
