"""A fleet's verdict for people: a text table, and the folder of a report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from validation.model.contract import EXPECTATIONS_VERSION, NodeResult, State, dumps, encoded, json_text
from validation.model.expectations import Expectation
from validation.model.grouping import by_key
from validation.model.printable import aligned, first_of, one_line
from validation.processes.files import file_stem, own, write_all, write_atomically
from validation.verdict.verdicts import FleetVerdict, NodeVerdict, TestVerdict

if TYPE_CHECKING:
    from validation.fabric.groups import Fleet as Fabric


def text(fleet: FleetVerdict, location: str = "") -> str:
    """Return a table, the reasons in words, what was not run and why, and last the verdict in a sentence.

    `location` says where the whole report is.
    """
    blocks = [_table(fleet.nodes)] if fleet.nodes else []
    blocks += filter(
        None,
        [_reasons(fleet), _gpus(fleet), _not_run(fleet), _notes(fleet), location, one_line(fleet.sentence)],
    )
    return "\n\n".join(blocks) + "\n"


def _table(nodes: tuple[NodeVerdict, ...]) -> str:
    columns = _tests_that_ran(nodes)
    rows = [["Node", "GPUs", "Verdict", *columns]]
    for node in nodes:
        tests = {test.id: test for test in node.tests}
        cells = [node.node, node.gpus, node.state, *(_cell(tests.get(column)) for column in columns)]
        rows.append([*map(one_line, cells)])
    rule = ["-" * max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(aligned([rows[0], rule, *rows[1:]]))


def _tests_that_ran(nodes: Iterable[NodeVerdict]) -> list[str]:
    """Return tests that ran on at least one node, in order; the others are listed once, below the table."""
    ran: dict[str, bool] = {}
    for node in nodes:
        for test in node.tests:
            ran[test.id] = ran.get(test.id, False) or test.state is not State.NOT_RUN
    return [test for test, some in ran.items() if some]


def _cell(test: TestVerdict | None) -> str:
    if test is None:
        return "-"
    return f"{test.state} {test.headline}".rstrip()


def _reasons(fleet: FleetVerdict) -> str:
    lines = []
    for node in fleet.nodes:
        if node.reasons:
            lines.append(f"{node.node}: {node.state}")
            lines += [f"  - {one_line(reason)}" for reason in node.reasons]
    return "\n".join(lines)


def _gpus(fleet: FleetVerdict) -> str:
    """Return each GPU that did not pass, with what a ticket about it needs."""
    lines = [
        one_line(
            f"  - {node.node} GPU {gpu.index}: {gpu.state} ({', '.join(gpu.findings) or 'no reason given'}); "
            f"{gpu.model or gpu.name} at {gpu.pci_address}, {gpu.uuid}"
        )
        for node in fleet.nodes
        for gpu in node.gpu_verdicts
        if gpu.state in {State.DEGRADED, State.FAIL}
    ]
    return "\n".join(["GPUs that did not pass:", *lines]) if lines else ""


def _together(said: Iterable[tuple[tuple[str, str], str]]) -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """Return the tests by what is said of them and of which nodes; it comes as ((test, text), node)."""
    return by_key(((text, tuple(nodes)), test) for (test, text), nodes in by_key(said).items())


def _not_run(fleet: FleetVerdict) -> str:
    """Return which tests were not run where and why, one line for the same reason of several."""
    by_reason = _together(
        ((test.id, test.reason), node.node)
        for node in fleet.nodes
        for test in node.tests
        if test.state is State.NOT_RUN and not test.required
    )
    if not by_reason:
        return ""
    return "\n".join(
        ["Not run, and not counted as passed (not required here):"]
        + [
            f"  - {', '.join(tests)} on {first_of(nodes)}: {one_line(reason)}"
            for (reason, nodes), tests in by_reason.items()
        ]
    )


def _notes(fleet: FleetVerdict) -> str:
    """Return each note once, with all tests and nodes that it holds for."""
    by_note = _together(
        ((test.id, note), node.node) for node in fleet.nodes for test in node.tests for note in test.notes
    )
    return "\n".join(
        (["Notes:"] if by_note else [])
        + [
            f"  - {', '.join(tests)}: {one_line(note)} (on {first_of(nodes)})"
            for (note, nodes), tests in by_note.items()
        ]
    )


def write_results(directory: Path, results: Mapping[str, NodeResult]) -> None:
    """Write what was found on each node. Raises OSError."""
    own(directory.parent)
    folder = directory / "results"
    folder.mkdir(parents=True, exist_ok=True)
    write_all((folder / f"{file_stem(name)}.json", dumps(result)) for name, result in results.items())


def write(
    directory: Path,
    fleet: FleetVerdict,
    expectations: Mapping[str, Expectation],
    between_nodes: Fabric | None = None,
) -> None:
    """Write beside the results what was expected, and the verdict in words.

    `results/` and `expectations.json` are the inputs, so that a report can be made again from its own
    folder. Raises OSError.
    """
    # The same is expected of most nodes: they have the same object, which is encoded once.
    different = {id(expected): expected for expected in expectations.values()}
    texts = {key: encoded(expected) for key, expected in different.items()}
    nodes = {name: texts[id(expected)] for name, expected in sorted(expectations.items())}
    document = {"schema_version": EXPECTATIONS_VERSION, "nodes": nodes}
    write_atomically(directory / "expectations.json", json_text(document))
    if between_nodes:
        write_atomically(directory / "fabric.json", dumps(between_nodes))
    write_atomically(directory / "report.txt", text(fleet))


def conclude(directory: Path, fleet: FleetVerdict) -> None:
    """Write the verdict for programs, last: whoever finds it finds a whole report. Raises OSError."""
    write_atomically(directory / "summary.json", json_text(fleet))


def point_latest_to(directory: Path) -> None:
    """Make the link `latest` beside a report point to it, at no moment to nothing. Raises OSError."""
    link = directory.parent / "latest"
    temporary = directory.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(directory.name)
    temporary.replace(link)
