"""Read results of nodes from files and folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temper.base.options import told
from validation.checks.registry import TESTS
from validation.model.contract import (
    MOST_RESULT_BYTES,
    ContractError,
    NodeResult,
    UsageError,
    node_result,
    parse,
)
from validation.model.printable import one_line
from validation.processes import files


def results_in(directory: Path) -> tuple[dict[str, NodeResult], dict[str, str]]:
    """Return the results in a folder by node, and why others cannot be read, by their file's name.

    Raises UsageError for two of one node.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such folder; expected one with a JSON file for each node")
    results: dict[str, NodeResult] = {}
    unreadable: dict[str, str] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            if not path.is_file():  # nobody writes to a pipe
                raise ContractError(f"{path}: expected a file")
            result = result_in(path)
        except (ContractError, OSError) as error:
            unreadable[path.stem] = told(error)
            continue
        if result.node in results:
            raise UsageError(f"{path}: a second result of node {one_line(result.node)}; remove one of them")
        results[result.node] = result
    return results, unreadable


@contextmanager
def naming(path: Path) -> Iterator[Path]:
    """Have what is wrong with a document say in which file. Raises ContractError."""
    try:
        yield path
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from error


def result_in(path: Path) -> NodeResult:
    """Return the result in a file. Raises ContractError, OSError."""
    with naming(path):
        return node_result(parse(files.read_at_most(path, MOST_RESULT_BYTES)), TESTS)


def one_or_more(path: Path) -> tuple[dict[str, NodeResult], dict[str, str]]:
    """Return the results at a path (a result, or the folder of a report or of results) as `results_in` does.

    Raises UsageError, ContractError, OSError.
    """
    if path.is_dir():
        folder = path / "results"
        results, unreadable = results_in(folder if folder.is_dir() else path)
        if not results:
            raise UsageError(
                f"{path}: expected results, found {next(iter(unreadable.values()), 'no JSON file')}"
            )
        return results, unreadable
    result = result_in(path)
    return {result.node: result}, {}
