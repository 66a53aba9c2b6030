"""What a page of a node shows: findings with their remedy, every number of every GPU, charts, controls."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from temper.compliance.model import ControlResult, NodeStatement, WaivedBy
from temper.report import advice, changes, svg, to_do
from temper.report.changes import Change
from temper.report.inputs import Metric, Past, metric_of
from temper.report.metrics import OF_PAIRS, Beside, FleetNumbers
from temper.report.words import (
    SHARE,
    conditions,
    difference,
    duration,
    is_number,
    kind,
    moment,
    number,
    percent,
    quantity,
    size,
    slug,
)
from validation.checks.measured import HW_SLOWDOWN, SLOWDOWNS
from validation.checks.registry import CHECKS
from validation.model import telemetry
from validation.model.contract import ContractError, Measurement, NodeResult, TestResult
from validation.model.grouping import by_key
from validation.model.quantities import label, unit
from validation.verdict.verdicts import GpuVerdict, NodeVerdict, TestVerdict

#: Numbers that a chart shows better than rows do: over message sizes, over workers, between pairs of GPUs.
BUS_BANDWIDTH = "busbw_gb_s"
LOADING = "loading_samples_s"
PAIRS = "peer_gb_s"
#: Controls that somebody has to look at, in this order.
TO_SHOW = ("fail", "not-checked", "waived")
SHADES = 9
#: Reasons that hold clocks down through a fault of cooling or power supply.
FAULTS = (*SLOWDOWNS, HW_SLOWDOWN)
#: What a course of time shows: the name in a result, what it is called, its unit.
COURSES = (
    ("sm_clock_mhz", "SM clock", "MHz"),
    ("power_w", "Power", "W"),
    ("temperature_c", "Temperature", "°C"),
)


@dataclass(frozen=True)
class Row:
    """A number with all that it stands beside, in words and as bars. `value` is that of the result."""

    metric: str
    taken: str
    where: str
    value: float
    shown: str
    spread: str
    attempts: int
    beside: str
    peak: str
    against_median: str
    past: str
    against_past: str
    moved: bool
    below: bool
    bar: Markup
    line: Markup


@dataclass(frozen=True)
class Group:
    """The rows of one metric, and what all of them stand beside."""

    metric: str
    taken: str
    beside: str
    rows: tuple[Row, ...]


def grouped(rows: Iterable[Row]) -> tuple[Group, ...]:
    """Rows of one metric and what they share, together."""
    found = by_key(((row.metric, row.taken, row.beside), row) for row in rows)
    return tuple(Group(*key, tuple(members)) for key, members in found.items())


@dataclass(frozen=True)
class Matrix:
    """Rates between GPUs: a row for each that sends, and a cell for each that receives (shade and value)."""

    gpus: tuple[int, ...]
    rows: tuple[tuple[int, tuple[tuple[int, float] | None, ...]], ...]
    notes: tuple[str, ...]
    lowest: str
    highest: str


@dataclass(frozen=True)
class Course:
    """Telemetry of a test: charts, and a row for each GPU."""

    charts: tuple[Markup, ...]
    rows: tuple[tuple[str, ...], ...]
    slowed: tuple[str, ...]
    limited: tuple[str, ...]


@dataclass(frozen=True)
class Test:
    """A test on the page of a node."""

    __test__ = False  # not pytest's

    judged: TestVerdict
    title: str
    took: str
    notes: tuple[str, ...]
    groups: tuple[Group, ...]
    charts: tuple[tuple[Markup, tuple[Group, ...]], ...]
    matrix: Matrix | None
    course: Course | None


@dataclass(frozen=True)
class Fault:
    """A finding: where it was found, what (of several numbers, each), and what to do."""

    state: str
    test: str
    code: str
    gpu: str
    texts: tuple[str, ...]
    action: str
    machine_action: str


@dataclass(frozen=True)
class NodePage:
    """All that is known of a node. Where a part of the report is missing, its fields are empty.

    `gpus` are verdicts, each with the GPU's link in words.
    """

    name: str
    slug: str
    kind: str
    state: str
    compliance: str
    sentence: str
    steps: tuple[to_do.Step, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    changed: tuple[Change, ...] = ()
    moved: tuple[Group, ...] = ()
    faults: tuple[Fault, ...] = ()
    reasons: tuple[str, ...] = ()
    gpus: tuple[tuple[GpuVerdict, str], ...] = ()
    advice: tuple[advice.Advice, ...] = ()
    tests: tuple[Test, ...] = ()
    controls: tuple[ControlResult, ...] = ()
    to_show: tuple[ControlResult, ...] = ()
    #: What Temper gives up: not the operator's decision, and nothing to look at each time.
    relaxed: tuple[ControlResult, ...] = ()


@dataclass(frozen=True)
class Known:
    """What the report knows of one node, and of the fleet around it."""

    name: str
    verdict: NodeVerdict | None = None
    result: NodeResult | None = None
    statement: NodeStatement | None = None
    changed: tuple[Change, ...] = ()


def page_of(known: Known, fleet: FleetNumbers, past: Past | None = None, options: str = "") -> NodePage:
    """Return the page of a node. `options` name the inventory in commands."""
    verdict, result, statement = known.verdict, known.result, known.statement
    states = [one for one in (verdict and verdict.state, statement and statement.verdict) if one]
    numbers = Numbers(result, fleet, past or {}) if result else None
    tests = tuple(_tests(verdict, result, numbers))
    groups = [
        one for test in tests for one in (*test.groups, *(one for _, some in test.charts for one in some))
    ]
    moved = (row for group in groups for row in group.rows if row.moved)
    controls = statement.controls if statement else ()
    relaxed = tuple(one for one in controls if one.waived_by is WaivedBy.PROFILE)
    return NodePage(
        name=known.name,
        slug=slug(known.name),
        kind=kind(*states),
        state=verdict.state if verdict else "",
        compliance=statement.verdict if statement else "",
        sentence=_sentence(verdict, statement),
        steps=tuple(
            to_do.steps(known.name, verdict, statement, options, result.plan if result else to_do.QUICK)
        ),
        facts=tuple(_facts(result, verdict, statement)),
        changed=known.changed,
        moved=grouped(moved),
        faults=tuple(_faults(verdict)),
        reasons=verdict.reasons if verdict else (),
        gpus=tuple(_gpus(verdict, result)),
        advice=tuple(advice.of_node(result)) if result else (),
        tests=tests,
        controls=controls,
        to_show=tuple(
            one
            for state in TO_SHOW
            for one in controls
            if one.state == state and one.waived_by is not WaivedBy.PROFILE
        ),
        relaxed=relaxed,
    )


def unshown(known: Known, why: str) -> NodePage:
    """Return the page of a node whose result, or something else of it, could not be shown."""
    verdict, statement = known.verdict, known.statement
    return NodePage(
        name=known.name,
        slug=slug(known.name),
        kind="unknown",
        state=verdict.state if verdict else "",
        compliance=statement.verdict if statement else "",
        sentence=f"Its result could not be shown: {why}.",
    )


def _sentence(verdict: NodeVerdict | None, statement: NodeStatement | None) -> str:
    parts = []
    if verdict:
        parts += to_do.reasons(verdict, None)[:1] or ["Every test that ran passed"]
    if statement and statement.reason:
        parts.append(statement.reason)
    elif statement:
        failing = sum(control.state == "fail" for control in statement.controls)
        parts.append(f"{failing} of {len(statement.controls)} controls fail")
    return ". ".join(part.rstrip(".") for part in parts) + ("." if parts else "")


def _facts(
    result: NodeResult | None, verdict: NodeVerdict | None, statement: NodeStatement | None
) -> Iterator[tuple[str, str]]:
    if verdict:
        yield "GPUs", verdict.gpus
    elif statement and statement.gpus:
        yield "GPUs", statement.gpus
    if result:
        machine = result.machine
        yield "Driver", machine.driver or "none"
        yield "torch", machine.torch or "none"
        yield "System", f"{machine.system}, kernel {machine.kernel}"
        yield "CPU", f"{machine.cpu_model}, {machine.cpus} CPUs"
        yield "Memory", size(machine.memory_bytes)
        yield "Plan", result.plan
        yield "Measured", f"{moment(result.started_at)}, in {duration(result.duration_s)}"
    elif statement and statement.system:
        yield "System", statement.system
        yield "Driver", statement.driver or "none"


def _faults(verdict: NodeVerdict | None) -> Iterator[Fault]:
    """Return findings, the worst first; the same on one GPU in several numbers is one."""
    found = [(finding, test.id) for test in verdict.tests for finding in test.findings] if verdict else []
    alike: dict[tuple[str, str, str, str, str, str], list[str]] = {}
    for one, test in sorted(found, key=lambda one: -one[0].state.severity):
        gpu = "" if one.device is None else f"GPU {one.device}"
        key = one.state.value, test, one.code, gpu, one.action, one.machine_action or ""
        alike.setdefault(key, []).append(one.text)
    for (state, test, code, gpu, action, machine_action), texts in alike.items():
        yield Fault(state, test, code, gpu, tuple(texts), action, machine_action)


def _gpus(verdict: NodeVerdict | None, result: NodeResult | None) -> Iterator[tuple[GpuVerdict, str]]:
    links = {gpu.index: gpu for gpu in result.gpus} if result else {}
    for one in verdict.gpu_verdicts if verdict else ():
        gpu = links.get(one.index)
        link = (
            f"PCIe {gpu.pcie_generation_max} x{gpu.pcie_width_max}"
            if gpu and gpu.pcie_generation_max and gpu.pcie_width_max
            else ""
        )
        yield one, link


class Numbers:
    """The numbers of one node, each beside the fleet's and its own past."""

    def __init__(self, result: NodeResult, fleet: FleetNumbers, past: Past) -> None:
        self._result, self._fleet, self._past = result, fleet, past
        self.gpus = {gpu.index for gpu in result.gpus}
        self._uuids: dict[int | None, str] = {gpu.index: gpu.uuid for gpu in result.gpus}

    def floor(self, test: TestResult, measurement: Measurement) -> float | None:
        """Return the floor of a number."""
        return self._fleet.beside(test, measurement, self._result).standards.floor

    def groups(self, test: TestResult, found: Iterable[Measurement]) -> tuple[Group, ...]:
        """Return some numbers by metric, with bars that compare within each of them."""
        listed = [(one, metric_of(test, one), self._fleet.beside(test, one, self._result)) for one in found]
        most: dict[Metric, float] = {}
        for one, metric, beside in listed:
            known = (one.value * (1 + one.spread / 2), beside.standards.floor, beside.standards.published)
            most[metric] = max(
                most.get(metric, 0.0), *(x for x in known if x is not None and is_number(x)), 0.0
            )
        return grouped(self._row(one, metric, beside, 1.05 * most[metric]) for one, metric, beside in listed)

    def _row(self, one: Measurement, metric: Metric, beside: Beside, most: float) -> Row:
        standards, median = beside.standards, beside.median
        past = self._past.get((metric, self._uuids.get(one.device, "")), ())
        values = [value.value for value in past if is_number(value.value)]
        moved = bool(values) and changes.moved(one, values[-1])
        rate = bool(unit(one.name))
        return Row(
            metric=label(one.name.removesuffix(SHARE)),
            # A product's format is in its name.
            taken=conditions(one.conditions, ("dtype",)),
            where="node" if one.device is None else f"GPU {one.device}",
            value=one.value,
            shown=quantity(one.value, one.name),
            spread=percent(one.spread) if one.samples > 1 else "",
            attempts=one.attempts,
            beside=beside.words,
            peak=percent(one.value / standards.peak) if standards.peak else "",
            against_median=difference(one.value, median) if rate else "",
            past=quantity(statistics.median(values), one.name) if values else "",
            against_past=difference(one.value, values[-1]) if moved else "unchanged" if values else "",
            moved=moved,
            below=standards.floor is not None and one.value < standards.floor,
            bar=svg.bar(one.value, one.spread, svg.Marks(standards.floor, standards.published, median), most)
            if rate
            else Markup(""),
            line=svg.sparkline(values, one.value, standards.floor),
        )


def _tests(verdict: NodeVerdict | None, result: NodeResult | None, numbers: Numbers | None) -> Iterator[Test]:
    measured = {test.id: test for test in result.tests} if result else {}
    for judged in verdict.tests if verdict else ():
        yield _test(judged, measured.get(judged.id), numbers)


def _test(judged: TestVerdict, test: TestResult | None, numbers: Numbers | None) -> Test:
    check = CHECKS.get(judged.id)
    groups: tuple[Group, ...] = ()
    charts: tuple[tuple[Markup, tuple[Group, ...]], ...] = ()
    notes, course = judged.notes, None
    if test:
        try:
            course = _course(test)
        except ContractError as error:
            notes = (*notes, f"its telemetry could not be shown: {error}")
    if test and numbers:
        drawn = (BUS_BANDWIDTH, LOADING, PAIRS)
        groups = numbers.groups(
            test,
            (
                one
                for one in test.measurements
                if not one.name.endswith(drawn) or one.name.startswith("best_")
            ),
        )
        charts = tuple(_charts(test, numbers))
    return Test(
        judged,
        title=check.title if check else judged.id,
        took=duration(test.duration_s) if test else "",
        notes=notes,
        groups=groups,
        charts=charts,
        matrix=_matrix(test, numbers.gpus) if test and numbers else None,
        course=course,
    )


def _charts(test: TestResult, numbers: Numbers) -> Iterator[tuple[Markup, tuple[Group, ...]]]:
    """Bus bandwidth over message size; samples a second over workers."""
    buses = [one for one in test.measurements if one.name.endswith(BUS_BANDWIDTH)]
    if buses:
        by_name = _series(buses, "size_bytes")
        lines = [
            svg.Line(name.removesuffix(BUS_BANDWIDTH).strip("_").replace("_", "-") or "all-reduce", points)
            for name, points in by_name.items()
        ]
        floors = [
            (float(at), floor)
            for one in buses
            if (floor := numbers.floor(test, one)) is not None
            and isinstance(at := one.conditions.get("size_bytes"), int)
        ]
        axes = svg.SIZES, svg.Axis("bus bandwidth in GB/s", from_zero=True)
        chart = svg.lines(lines, *axes, "Bus bandwidth over message size", floors)
        yield chart, numbers.groups(test, buses)
    loading = [one for one in test.measurements if one.name == LOADING]
    if loading:
        lines = [
            svg.Line("pinned" if pinned else "not pinned", points)
            for pinned in (0, 1)
            if (
                points := _points(
                    [one for one in loading if one.conditions.get("pin_memory", 0) == pinned], "workers"
                )
            )
        ]
        axes = svg.Axis("workers"), svg.Axis("loading in samples/s", from_zero=True)
        yield svg.lines(lines, *axes, "Samples a second over workers"), numbers.groups(test, loading)


def _series(found: list[Measurement], condition: str) -> dict[str, tuple[svg.Point, ...]]:
    by_name = by_key((one.name, one) for one in found)
    return {name: _points(ones, condition) for name, ones in by_name.items()}


def _points(found: list[Measurement], condition: str) -> tuple[svg.Point, ...]:
    points = [
        (float(at), one.value)
        for one in found
        if isinstance(at := one.conditions.get(condition), int) and is_number(one.value)
    ]
    return tuple(sorted(points))


def _matrix(test: TestResult, there: Container[object]) -> Matrix | None:
    """Rates from each of these GPUs (row) to each other one (column)."""
    found: dict[tuple[int, int], float] = {
        (one.device or 0, to): one.value
        for one in test.measurements
        if one.name == PAIRS
        and one.device in there
        and isinstance(to := one.conditions.get(OF_PAIRS), int)
        and to in there
    }
    known = [value for value in found.values() if is_number(value)]
    if not known:
        return None
    gpus = tuple(sorted({gpu for pair in found for gpu in pair}))
    low, high = min(known), max(known)

    def cell(sender: int, receiver: int) -> tuple[int, float] | None:
        value = found.get((sender, receiver))
        if value is None or not is_number(value):
            return None
        # The darkest is the fastest; a matrix that is all alike is all dark.
        return SHADES - 1 - round((SHADES - 1) * min(1.0, (high - value) / (0.5 * high or 1.0))), value

    notes = [
        f"{who}: {name.replace('_', ' ')} GPU {', '.join(map(str, peers))}"
        for who, details in test.details.items()
        if who.startswith("GPU ") and isinstance(details, dict)
        for name, peers in details.items()
        if isinstance(peers, list)
    ]
    rows = tuple((sender, tuple(cell(sender, receiver) for receiver in gpus)) for sender in gpus)
    return Matrix(gpus, rows, tuple(notes), quantity(low, PAIRS), quantity(high, PAIRS))


def _course(test: TestResult) -> Course | None:
    """Clocks, power, temperature and throttling over the time of a test, as far as the result has them."""
    seen, series = test.telemetry, test.telemetry_series
    if not seen and not series:
        return None
    rows = tuple(
        (
            f"GPU {one.device}",
            f"{number(one.sm_clock_mhz_median)} MHz",
            f"{number(one.power_w_max)} W",
            f"{number(one.temperature_c_max)} °C",
            ", ".join(
                f"{reason.replace('_', ' ')} {percent(part)}"
                for reason, part in one.event_reason_shares.items()
            )
            or "none",
        )
        for one in seen
    )
    charts = []
    for name, title, measure in COURSES if any(len(one.seconds) > 1 for one in series) else ():
        found = [
            svg.Line(f"GPU {one.device}", tuple(zip(one.seconds, getattr(one, name), strict=False)))
            for one in series
        ]
        charts.append(
            svg.lines(
                found, svg.Axis("seconds"), svg.Axis(f"{title} in {measure}"), f"{title} during {test.id}"
            )
        )
    held = list(_held_back(series))
    return Course(
        tuple(charts),
        rows,
        tuple(said for fault, said in held if fault),
        tuple(said for fault, said in held if not fault),
    )


def _held_back(series: Iterable[telemetry.Course]) -> Iterator[tuple[bool, str]]:
    """Yield when which GPUs were held back, by what, and whether that is a fault: a power limit is none."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in series:
        held = zip(one.seconds, one.event_reasons, strict=False)
        spans = by_key((reason, at) for at, reasons in held for reason in reasons)
        for reason, moments in spans.items():
            first, last = number(moments[0]), number(moments[-1])
            span = f"at {first} s" if first == last else f"between {first} and {last} s"
            found.setdefault((reason, span), []).append(str(one.device))
    for (reason, span), gpus in found.items():
        yield reason in FAULTS, f"{reason.replace('_', ' ')} {span} on GPU {', '.join(gpus)}"
