"""From results and expectations to verdicts, for a node and for a fleet.

Pure functions: the same inputs give the same verdict.

Judged is, in this order: did the test itself fail (wrong result, hang, broken hardware); is a number below
the floor for its GPU model; did a required test run at all. What was not run stays visible and is never
counted as passed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validation.contract import SCHEMA_VERSION, Finding, State, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from validation.contract import Measurement, NodeResult, TestResult
    from validation.expectations import Expectation, References

#: Exit status: everything passed; a GPU or a node failed; the environment kept something required from
#: running.
EXIT_PASS, EXIT_FAIL, EXIT_ENVIRONMENT = 0, 1, 2

UNITS = {"tflops": "TFLOP/s", "gflops": "GFLOP/s", "gb_s": "GB/s"}


@dataclass(frozen=True)
class TestVerdict:
    """A test on a node, judged. `headline` is the number that stands for it, with its unit, or empty."""

    __test__ = False  # not pytest's

    id: str
    state: State
    required: bool
    headline: str
    reason: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class NodeVerdict:
    """A node, judged. `reasons` are sentences: why it did not pass."""

    node: str
    state: State
    exit_status: int
    gpus: str
    tests: tuple[TestVerdict, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class FleetVerdict:
    """All nodes, judged. `sentence` says it in one."""

    schema_version: int
    state: State
    exit_status: int
    sentence: str
    nodes: tuple[NodeVerdict, ...]


def judge_node(
    name: str,
    result: NodeResult | None,
    expectation: Expectation,
    headlines: Mapping[str, tuple[str, ...]],
    *,
    fail_on_degraded: bool = False,
) -> NodeVerdict:
    """The verdict on one node. `headlines` are the measurements that stand for each test, the best first."""
    if result is None:
        reason = expectation.not_run or "no result came back from this node"
        return NodeVerdict(name, State.NOT_RUN, EXIT_ENVIRONMENT, _expected_gpus(expectation), (), (reason,))
    tests = tuple(
        _judge_test(test, result, expectation, headlines.get(test.id, ())) for test in result.tests
    ) + tuple(
        TestVerdict(test, State.NOT_RUN, True, "", "it was not among the tests of this run", (), ())
        for test in expectation.required_tests
        if test not in {run.id for run in result.tests}
    )
    left_out = [test for test in tests if test.required and test.state is State.NOT_RUN]
    ran = [test.state for test in tests if test.state is not State.NOT_RUN]
    reasons = [f"{test.id}: {sentence}" for test in tests for sentence in _sentences(test.findings)] + [
        f"{test.id} is required and was not run: {test.reason}" for test in left_out
    ]
    state, exit_status = worst(ran), EXIT_PASS
    if state is State.FAIL:
        exit_status = EXIT_FAIL
    elif left_out:
        state, exit_status = State.FAIL, EXIT_ENVIRONMENT
    elif not ran:
        state, exit_status = State.NOT_RUN, EXIT_ENVIRONMENT
        reasons.append("no test could run on this node")
    elif state is State.DEGRADED and fail_on_degraded:
        exit_status = EXIT_FAIL
    return NodeVerdict(name, state, exit_status, _found_gpus(result, expectation), tests, tuple(reasons))


def judge_fleet(nodes: Iterable[NodeVerdict]) -> FleetVerdict:
    """The verdict on a fleet: as good as its worst node. An empty fleet has not passed."""
    verdicts = tuple(sorted(nodes, key=lambda node: node.node))
    states = {node.state for node in verdicts}
    severity = (State.FAIL, State.NOT_RUN, State.DEGRADED, State.PASS)
    state = next((state for state in severity if state in states), State.NOT_RUN)
    statuses = {node.exit_status for node in verdicts}
    exit_status = next((status for status in (EXIT_FAIL, EXIT_ENVIRONMENT) if status in statuses), EXIT_PASS)
    if not verdicts:
        exit_status = EXIT_ENVIRONMENT
    return FleetVerdict(SCHEMA_VERSION, state, exit_status, _sentence(state, verdicts), verdicts)


def _sentences(findings: Iterable[Finding]) -> list[str]:
    """What is wrong and what to do; the same on several GPUs in one sentence."""
    devices: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        same = finding.text.replace(f"GPU {finding.device}", "GPU")
        devices.setdefault((finding.code, same, finding.action), []).append(finding)
    sentences = []
    for (_, _, action), alike in devices.items():
        others = ", ".join(str(finding.device) for finding in alike[1:])
        also = f"; the same on GPU {others}" if others else ""
        remedy = f". What to do: {action}" if action else ""
        sentences.append(f"{alike[0].text.rstrip('.')}{also}{remedy}")
    return sentences


def _judge_test(
    test: TestResult, result: NodeResult, expectation: Expectation, headline: tuple[str, ...]
) -> TestVerdict:
    below, notes = _compare(test, result, expectation.references)
    findings = test.findings + below
    state = test.state
    if state is not State.NOT_RUN:
        state = worst([state, *(finding.state for finding in findings)])
    return TestVerdict(
        id=test.id,
        state=state,
        required=test.id in expectation.required_tests,
        headline=_headline(test, headline),
        reason=test.reason,
        findings=findings,
        notes=notes,
    )


def _compare(
    test: TestResult, result: NodeResult, references: References
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings for numbers below their floor, and which numbers of GPUs there was no floor for."""
    below, without = [], set()
    for measurement in test.measurements:
        if measurement.name not in REFERENCED or not result.gpus:
            continue
        name, floor = _floor(measurement, result, references)
        if floor is None:
            if test.id.startswith("gpu_"):
                without.add(f"{label(measurement.name)} is not compared: no reference for {name}")
        elif measurement.value < floor:
            where = "" if measurement.device is None else f" on GPU {measurement.device}"
            hints = "".join(f"; {hint}" for hint in _hints(test, measurement.device))
            below.append(
                Finding(
                    "below-floor",
                    State.FAIL,
                    f"{label(measurement.name)} {quantity(measurement)}{where}, "
                    f"floor {number(floor)} ({name}){hints}",
                    "run again on an idle node; if it stays, look at clocks, power, temperature and link",
                    measurement.device,
                )
            )
    return tuple(below), tuple(sorted(without))


#: Measurements of GPUs that data/gpu_models.yml may have a floor for.
REFERENCED = {
    "fp32_tflops",
    "tf32_tflops",
    "fp16_tflops",
    "bf16_tflops",
    "h2d_pinned_gb_s",
    "d2h_pinned_gb_s",
    "busbw_gb_s",
}


def _floor(measurement: Measurement, result: NodeResult, references: References) -> tuple[str, float | None]:
    """What the floor is for (a model, a link), and the floor; None where none is published for this."""
    gpus = [gpu for gpu in result.gpus if measurement.device in {None, gpu.index}]
    found = {gpu.pci_id: references.model_of(gpu.pci_id) for gpu in gpus}
    names = " and ".join(sorted({gpu.name for gpu in gpus})) or f"GPU {measurement.device}"
    models = list(found.values())
    if len(models) != 1 or models[0] is None:
        return names, None
    model = models[0]
    entry = model.get("floor", {}).get(measurement.name)
    if isinstance(entry, list):
        return model["name"], _collective_floor(entry, measurement)
    if entry is not None:
        return model["name"], _value(entry)
    if measurement.name.endswith("_pinned_gb_s"):
        generation, width = gpus[0].pcie_generation_max, gpus[0].pcie_width_max
        link = references.pcie_x16.get(str(generation), {}).get("floor", {}).get(measurement.name)
        if link is not None and width:
            floor = _value(link)
            return f"PCIe generation {generation} x{width}", None if floor is None else floor * width / 16
    return model["name"], None


def _collective_floor(entries: list[dict[str, Any]], measurement: Measurement) -> float | None:
    """The floor for as many GPUs, at a message at least as large as the one that it was taken with."""
    size_bytes, ranks = measurement.conditions.get("size_bytes"), measurement.conditions.get("ranks")
    fitting = [
        entry
        for entry in entries
        if entry["gpus"] == ranks and isinstance(size_bytes, int) and size_bytes >= entry["size_bytes"]
    ]
    return _value(max(fitting, key=lambda entry: int(entry["size_bytes"]))) if fitting else None


def _value(entry: dict[str, Any]) -> float | None:
    """A number of the table; one that nobody verified judges nobody."""
    return float(entry["value"]) if entry.get("verified", True) else None


def _hints(test: TestResult, device: int | None) -> list[str]:
    """What telemetry showed on this GPU while the test ran, where it explains a low number."""
    hints = []
    for gpu in test.details.get("telemetry", []):
        if device in {None, gpu["device"]}:
            hints += [
                f"{name.replace('_', ' ')} was active {share:.0%} of the time"
                for name, share in gpu["event_reason_shares"].items()
            ]
    return hints


def _headline(test: TestResult, names: tuple[str, ...]) -> str:
    """The number of a test in a table: the best name that was measured, largest size, worst GPU."""
    for name in names:
        found = [measurement for measurement in test.measurements if measurement.name == name]
        if found:
            largest = max(_size(measurement) for measurement in found)
            return quantity(min((m for m in found if _size(m) == largest), key=lambda m: m.value))
    return ""


def _size(measurement: Measurement) -> int:
    size = measurement.conditions.get("size_bytes", 0)
    return size if isinstance(size, int) else 0


def label(name: str) -> str:
    """`h2d_pinned_gb_s` without its unit, as a reader says it: `h2d pinned`."""
    return next((name.removesuffix(f"_{unit}") for unit in UNITS if name.endswith(f"_{unit}")), name).replace(
        "_", " "
    )


def quantity(measurement: Measurement) -> str:
    """A measurement's value with its unit."""
    unit = next((text for unit, text in UNITS.items() if measurement.name.endswith(unit)), "")
    return f"{number(measurement.value)} {unit}".rstrip()


def number(value: float) -> str:
    """A value with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _expected_gpus(expectation: Expectation) -> str:
    return ", ".join(f"{gpus.count}x {gpus.name}" for gpus in expectation.gpus or ()) or "unknown"


def _found_gpus(result: NodeResult, expectation: Expectation) -> str:
    names = Counter(
        model["name"] if (model := expectation.references.model_of(gpu.pci_id)) else gpu.name
        for gpu in result.gpus
    )
    return ", ".join(f"{count}x {name}" for name, count in sorted(names.items())) or "none"


def _sentence(state: State, nodes: tuple[NodeVerdict, ...]) -> str:
    if not nodes:
        return "Verdict: not-run. There is no node to judge."
    of = {state: [node.node for node in nodes if node.state is state] for state in State}
    noun = "node" if len(nodes) == 1 else "nodes"
    parts = [
        f"{len(names)} of {len(nodes)} {noun} {verb}{_naming(names) if name_them else ''}"
        for names, verb, name_them in (
            (of[State.PASS], "passed", False),
            (of[State.DEGRADED], "degraded", True),
            (of[State.FAIL], "failed", True),
            (of[State.NOT_RUN], "not run", True),
        )
        if names
    ]
    nowhere = [test for test, ran in _where_run(nodes).items() if not ran]
    left_out = f" Not run on any node: {', '.join(nowhere)}." if nowhere else ""
    return f"Verdict: {state}. {'; '.join(parts)}.{left_out}"


def _where_run(nodes: tuple[NodeVerdict, ...]) -> dict[str, bool]:
    """For each test of the runs, whether any node could run it."""
    ran: dict[str, bool] = {}
    for node in nodes:
        for test in node.tests:
            ran[test.id] = ran.get(test.id, False) or test.state is not State.NOT_RUN
    return ran


def _naming(names: list[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f" ({shown} and {len(names) - most} more)" if len(names) > most else f" ({shown})"
