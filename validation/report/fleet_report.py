"""A fleet's verdict for people: a text table, one HTML file, and the folder of a report."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING

from validation.model.contract import State, dumps
from validation.processes.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from validation.fabric.groups import Fleet as Fabric
    from validation.model.contract import NodeResult
    from validation.model.expectations import FleetExpectations
    from validation.verdict.verdicts import FleetVerdict, NodeVerdict, TestVerdict

MOST_NAMES = 8


def text(fleet: FleetVerdict, location: str = "") -> str:
    """A table, the reasons in words, what was not run and why, and last the verdict in a sentence.

    `location` says where the whole report is.
    """
    blocks = [_table(fleet.nodes)] if fleet.nodes else []
    blocks += filter(
        None, [_reasons(fleet), _gpus(fleet), _not_run(fleet), _notes(fleet), location, fleet.sentence]
    )
    return "\n\n".join(blocks) + "\n"


def _table(nodes: tuple[NodeVerdict, ...]) -> str:
    columns = _tests_that_ran(nodes)
    rows = [["Node", "GPUs", "Verdict", *columns]]
    for node in nodes:
        tests = {test.id: test for test in node.tests}
        rows.append([node.node, node.gpus, node.state, *(_cell(tests.get(column)) for column in columns)])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _tests_that_ran(nodes: Iterable[NodeVerdict]) -> list[str]:
    """Tests that ran on at least one node, in order; the others are listed once, below the table."""
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
            lines += [f"  - {reason}" for reason in node.reasons]
    return "\n".join(lines)


def _gpus(fleet: FleetVerdict) -> str:
    """Each GPU that did not pass, with what a ticket about it needs."""
    lines = [
        f"  - {node.node} GPU {gpu.index}: {gpu.state} ({', '.join(gpu.findings) or 'no reason given'}); "
        f"{gpu.model or gpu.name} at {gpu.pci_address}, {gpu.uuid}"
        for node in fleet.nodes
        for gpu in node.gpu_verdicts
        if gpu.state in {State.DEGRADED, State.FAIL}
    ]
    return "\n".join(["GPUs that did not pass:", *lines]) if lines else ""


def _not_run(fleet: FleetVerdict) -> str:
    """Which tests were not run where and why, the same reason of several tests and nodes in one line."""
    where: dict[tuple[str, str], list[str]] = {}
    for node in fleet.nodes:
        for test in node.tests:
            if test.state is State.NOT_RUN and not test.required:
                where.setdefault((test.id, test.reason), []).append(node.node)
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (test_id, reason), nodes in where.items():
        by_reason.setdefault((reason, tuple(nodes)), []).append(test_id)
    if not by_reason:
        return ""
    return "\n".join(
        ["Not run, and not counted as passed (not required here):"]
        + [
            f"  - {', '.join(tests)} on {_names(nodes)}: {reason}"
            for (reason, nodes), tests in by_reason.items()
        ]
    )


def _notes(fleet: FleetVerdict) -> str:
    """Each note once, with all tests and nodes that it holds for."""
    where: dict[tuple[str, str], list[str]] = {}
    for node in fleet.nodes:
        for test in node.tests:
            for note in test.notes:
                where.setdefault((test.id, note), []).append(node.node)
    by_note: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (test_id, note), nodes in where.items():
        by_note.setdefault((note, tuple(nodes)), []).append(test_id)
    return "\n".join(
        (["Notes:"] if by_note else [])
        + [f"  - {', '.join(tests)}: {note} (on {_names(nodes)})" for (note, nodes), tests in by_note.items()]
    )


def _names(nodes: Iterable[str]) -> str:
    names = list(nodes)
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def page(fleet: FleetVerdict) -> str:
    """The verdict as one HTML file that needs nothing else."""
    columns = list(dict.fromkeys(test.id for node in fleet.nodes for test in node.tests))
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ["Node", "GPUs", "Verdict", *columns])
    rows = []
    for node in fleet.nodes:
        tests = {test.id: test for test in node.tests}
        cells = "".join(_html_cell(tests.get(column)) for column in columns)
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in node.reasons)
        rows.append(
            f"<tr><th>{html.escape(node.node)}</th><td>{html.escape(node.gpus)}</td>"
            f'<td class="{node.state}">{node.state}</td>{cells}</tr>'
        )
        if reasons:
            rows.append(f'<tr><td></td><td colspan="{len(columns) + 2}"><ul>{reasons}</ul></td></tr>')
    details = "".join(
        f"<pre>{html.escape(block)}</pre>"
        for block in filter(None, [_gpus(fleet), _not_run(fleet), _notes(fleet)])
    )
    return PAGE.format(
        state=fleet.state,
        sentence=html.escape(fleet.sentence),
        heads=heads,
        rows="\n".join(rows),
        details=details,
    )


def _html_cell(test: TestVerdict | None) -> str:
    if test is None:
        return "<td>-</td>"
    title = html.escape(test.reason or "; ".join(finding.text for finding in test.findings), quote=True)
    return f'<td class="{test.state}" title="{title}">{html.escape(_cell(test))}</td>'


PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Temper validation: {state}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem; color: #1c1c1c; background: #fff; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }}
ul {{ margin: 0; padding-left: 1rem; }}
pre {{ white-space: pre-wrap; }}
.pass {{ color: #12672f; }}
.degraded {{ color: #8a5a00; }}
.fail {{ color: #b00020; font-weight: bold; }}
.not-run {{ color: #666; }}
</style>
<h1 class="{state}">{sentence}</h1>
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
{details}
</html>
"""


def write(
    directory: Path,
    fleet: FleetVerdict,
    results: Mapping[str, NodeResult],
    expectations: FleetExpectations,
    between_nodes: Fabric | None = None,
) -> None:
    """Write the whole report: what was found, what was expected, the verdict for programs and for people.

    `results/` and `expectations.json` are the inputs, so that a report can be made again from its own
    folder. Raises OSError.
    """
    (directory / "results").mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        write_atomically(directory / "results" / f"{name}.json", dumps(result))
    write_atomically(directory / "expectations.json", dumps(expectations))
    if between_nodes:
        write_atomically(directory / "fabric.json", dumps(between_nodes))
    write_atomically(directory / "report.txt", text(fleet))
    write_atomically(directory / "report.html", page(fleet))
    # Last: whoever finds the summary finds a whole report.
    write_atomically(directory / "summary.json", dumps(fleet))


def point_latest_to(directory: Path) -> None:
    """Make the link `latest` beside a report point to it, at no moment to nothing. Raises OSError."""
    link = directory.parent / "latest"
    temporary = directory.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(directory.name)
    temporary.replace(link)
