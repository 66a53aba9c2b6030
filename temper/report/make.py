"""The commands of a fleet: report judges it, fabric and groups measure between nodes."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base.garbage import uncollected
from temper.judge.cohort import Cohorts
from temper.judge.fabric import judge_fabric
from temper.judge.parts import Parts
from temper.judge.results import results_in
from temper.judge.unshown import Unshown
from temper.report.part import FleetPart, Known, Shown, Wanted, is_document
from validation.checks.registry import TESTS
from validation.fabric.groups import Fleet, read_rounds
from validation.model.contract import ContractError, loads, parse
from validation.model.expectations import read_fleet
from validation.model.usage import UsageError
from validation.probes.machine import available_cpus
from validation.report import fleet_report
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_PASS, judge_fleet
from validation.verdict.verdicts import FleetVerdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection

    from temper.report.changes import Change
    from temper.report.node import NodePage
    from temper.report.part import Heard

#: A part of less than this, some 250 nodes, is not worth a process of its own.
LEAST_BYTES = 8 << 20


@uncollected()
def judge(options: argparse.Namespace) -> int:
    """Judge the results of a fleet and write the report."""
    if options.fleet == bool(options.results and options.expectations):
        raise UsageError("report needs either --results DIR and --expectations FILE, or --fleet")
    if options.history and options.history.is_dir():
        raise UsageError(
            f"--history {options.history} is a folder; expected one file, such as {options.history}.sqlite, "
            "which takes over what is in that folder"
        )
    given = _from_stdin(options) if options.fleet else _from_files(options)
    between_nodes = judge_fabric(given.between_nodes) if given.between_nodes else {}
    before = functools.cache(functools.partial(_report_before, options.output))
    unshown = Unshown()
    with Parts(given.parts) as parts:
        names = parts.each(FleetPart.read, given.sources)
        given.sources.clear()
        heard = parts.each(FleetPart.hear, _elsewhere(names))
        taken_over, unusable = _take_over(options.history)
        known = Known(Cohorts.of(one.numbers for one in heard), between_nodes, unusable)
        judged = parts.each(FleetPart.judge, [known] * len(parts), before)
        unusable = next((one.unusable for one in judged if one.unusable), "")
        fleet = judge_fleet(verdict for one in judged for verdict in one.verdicts)
        inputs = [one.inputs for one in judged]
        write = functools.cache(
            functools.partial(fleet_report.write, options.output, fleet, inputs, given.between_nodes)
        )
        _write_pages(parts, heard, fleet, before, options.output, write)
        write()
        fleet_report.conclude(options.output, fleet, inputs)
        ended = parts.each(FleetPart.finish, [unusable] * len(parts))
        unusable = next((one.unusable for one in ended if one.unusable), "")
        unshown.said += chain.from_iterable(one.unshown for one in ended)
    if options.latest:
        fleet_report.point_latest_to(options.output)
    text = fleet_report.text(fleet, f"Report: {options.output / 'report.html'}")
    print(taken_over, end="")
    problem = (f"{unusable}\n" if unusable else "") + unshown.text()
    # What ends the run is said last.
    print(*((problem, text) if fleet.exit_status else (text, problem)), sep="", end="")
    return fleet.exit_status or (EXIT_ENVIRONMENT if problem else EXIT_PASS)


@dataclass(frozen=True)
class _Given:
    """What a report is made from: parts of the fleet, and what each of them has to read."""

    parts: list[FleetPart]
    sources: list[list[Path | dict[str, Any]]]
    between_nodes: Fleet | None = None


def _from_files(options: argparse.Namespace) -> _Given:
    part = FleetPart(options)
    part.hold(read_fleet(options.expectations, TESTS).nodes, *results_in(options.results))
    between_nodes = read_rounds(parse(options.fabric.read_bytes())) if options.fabric else None
    return _Given([part], [[]], between_nodes)


def _from_stdin(options: argparse.Namespace) -> _Given:
    """A document with expectations, results and what was measured between nodes, or the files of slices.

    What is known without the slices stands beside them, in a document of its own. What was measured between
    nodes no slice has.
    """
    given = parse(sys.stdin.buffer.read())
    slices = given.get("slices") if isinstance(given, dict) else None
    document = given.get("document") if isinstance(slices, list) else given
    if not is_document(document) or not all(isinstance(path, str) for path in slices or ()):
        raise UsageError(
            'standard input is not {"expectations": {...}, "results": {node: ...}}, and not '
            '{"document": {...}, "slices": [file, ...]} either'
        )
    if slices is None:
        between_nodes = read_rounds(given["fabric"]) if given.get("fabric") else None
        return _Given([FleetPart(options)], [[document]], between_nodes)
    sources = _shares([Path(path) for path in slices])
    sources[0].insert(0, document)
    return _Given([FleetPart(options) for _ in sources], sources)


def _shares(paths: list[Path]) -> list[list[Path | dict[str, Any]]]:
    """The files for each part: in their order, parts of like size, as many as there are CPUs to read them."""
    sizes = [path.stat().st_size for path in paths]
    whole = max(1, sum(sizes))
    count = max(1, min(available_cpus(), len(paths), whole // LEAST_BYTES))
    shares: list[list[Path | dict[str, Any]]] = [[] for _ in range(count)]
    before = 0
    for path, size in zip(paths, sizes, strict=True):
        # Files at the end may be empty.
        shares[min(before * count // whole, count - 1)].append(path)
        before += size
    return shares


def _elsewhere(names: list[list[str]]) -> list[set[str]]:
    """The nodes that each part has and a later one has, too: there they stay. `names` are those of each."""
    found: list[set[str]] = []
    later: set[str] = set()
    for those in map(set, reversed(names)):
        found.append(those & later)
        later |= those
    return found[::-1]


def _take_over(path: Path | None) -> tuple[str, str]:
    """Take a history of an earlier form over: a line that says so, and why the history cannot be used.

    Both are empty where there is nothing to say.
    """
    if path is None:
        return "", ""
    # Late: a node measures without SQLite.
    from temper.base.store import HistoryError
    from temper.judge.history_files import take_over
    from temper.judge.history_store import History

    try:
        return take_over(History(path), path.with_suffix("")).text(path), ""
    except HistoryError as error:
        return "", str(error)


def _write_pages(
    parts: Parts[FleetPart],
    heard: list[Heard],
    fleet: FleetVerdict,
    before: Callable[[], tuple[FleetVerdict | None, str]],
    output: Path,
    meanwhile: Callable[[], object],
) -> None:
    """Write the report that people look at. Raises OSError.

    `before` reads the last one. `meanwhile` is what is done while pages of nodes are written.
    """
    from temper.report.inputs import Report, Validation
    from temper.report.metrics import distributions, middles
    from temper.report.write import Elsewhere, write

    numbers = distributions(one.pools for one in heard)
    last_measured = max(one.last_measured for one in heard)

    def nodes(changed: list[Change]) -> _Nodes:
        parts.each(FleetPart.show, [Shown(middles(numbers), changed)] * len(parts))
        return _Nodes(parts, meanwhile)

    last, name = before()
    report = Report(Validation(fleet, {}, before=last, before_name=name))
    write(output, report, elsewhere=Elsewhere(numbers, last_measured, nodes))


class _Nodes:
    """The pages of all nodes, made where their results are."""

    def __init__(self, parts: Parts[FleetPart], meanwhile: Callable[[], object]) -> None:
        self._parts = parts
        self._meanwhile = meanwhile

    def pages_of(self, names: Collection[str]) -> dict[str, NodePage]:
        """What they show, by name."""
        found = self._parts.each(FleetPart.pages_of, [list(names)] * len(self._parts))
        return {name: page for one in found for name, page in one.items()}

    def write(self, folder: Path, names: Collection[str], index: str) -> list[Path]:
        """Write them; returns the files. Raises OSError."""
        wanted = Wanted(folder, list(names), index)
        asked = [wanted] * len(self._parts)
        return list(chain(*self._parts.each(FleetPart.write_pages, asked, self._meanwhile)))


def _report_before(output: Path) -> tuple[FleetVerdict | None, str]:
    """The verdict of the last report beside this one, and its name; none where there is none to read."""
    latest = output.parent / "latest"
    try:
        return loads(FleetVerdict, (latest / "summary.json").read_bytes()), latest.resolve().name
    except (OSError, ContractError):
        return None, ""
