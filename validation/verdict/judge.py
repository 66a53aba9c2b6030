"""From results and expectations to verdicts, for a node and for a fleet.

Pure functions: the same inputs give the same verdict.

Judged is, in this order: did the test itself fail (wrong result, hang, broken hardware); what do the three
judges of numbers say (references.py, cohort.py, history.py); did a required test run at all. What was not run
stays visible and is never counted as passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from validation.model.contract import (
    SUMMARY_VERSION,
    Finding,
    Measurement,
    NodeResult,
    State,
    TestResult,
    worst,
)
from validation.model.expectations import Expectation
from validation.model.printable import first_of, number_of
from validation.model.quantities import quantity
from validation.verdict import references, sanity
from validation.verdict.baseline import Comparison
from validation.verdict.gpus import computed, counts, judge_gpus, unknown_models
from validation.verdict.verdicts import FleetVerdict, NodeVerdict, TestVerdict

#: Of each sentence in a verdict: one node's words must not make the summary larger than what reads it takes.
MOST_CHARACTERS = 4000
#: Exit status: everything passed; a GPU or a node failed; the environment kept something required from
#: running.
EXIT_PASS, EXIT_FAIL, EXIT_ENVIRONMENT = 0, 1, 2


def judge_node(
    name: str,
    result: NodeResult | None,
    expectation: Expectation,
    headlines: Mapping[str, tuple[str, ...]],
    *,
    comparisons: Mapping[str, Comparison] | None = None,
    more_tests: tuple[TestVerdict, ...] = (),
    fail_on_degraded: bool = False,
) -> NodeVerdict:
    """Return the verdict on one node.

    `headlines` are the measurements that stand for each test, the best first; `comparisons` what fleet and
    history say of a test, `more_tests` what was measured with other nodes.
    """
    if result is None or expectation.not_run:
        reason = expectation.not_run or "no result came back from this node"
        return NodeVerdict(name, State.NOT_RUN, EXIT_ENVIRONMENT, _expected_gpus(expectation), (), (reason,))
    tests = tuple(
        _judge_test(
            test,
            references.compare(test, result, expectation.references)
            + (comparisons or {}).get(test.id, Comparison()),
            required=test.id in expectation.required_tests,
            headline=headlines.get(test.id, ()),
            more=tuple(
                sanity.findings(test, result, expectation.references, measures=bool(headlines.get(test.id)))
            ),
        )
        for test in result.tests
    ) + tuple(
        TestVerdict(test, State.NOT_RUN, True, "", "it was not among the tests of this run", (), ())
        for test in expectation.required_tests
        if test not in {run.id for run in result.tests}
    )
    tests += more_tests
    left_out = [test for test in tests if test.required and test.state is State.NOT_RUN]
    ran = [test.state for test in tests if test.state is not State.NOT_RUN]
    reasons = [f"{test.id}: {sentence}" for test in tests for sentence in _why(test)] + [
        f"{test.id} is required and was not run: {test.reason}" for test in left_out
    ]
    if wrong := _wrong_count(result, expectation, tests):
        reasons.insert(0, wrong)
        ran.append(State.FAIL)
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
    gpus = judge_gpus(result, expectation.references, tests)
    found = _found_gpus(result, expectation)
    return NodeVerdict(name, state, exit_status, found, tests, tuple(reasons), gpus)


def _wrong_count(result: NodeResult, expectation: Expectation, tests: tuple[TestVerdict, ...]) -> str:
    """Return a sentence if the node has another number of GPUs than expected, unless health has said so."""
    expected, found = expectation.gpu_count, len(result.gpus)
    said = {finding.code for test in tests for finding in test.findings}
    if expected in {None, found} or said & {"gpu-count", "gpu-not-driven"}:
        return ""
    return f"{found} GPUs were found on this node, expected {expected}. What to do: run the test health"


def judge_fleet(nodes: Iterable[NodeVerdict]) -> FleetVerdict:
    """Return the verdict on a fleet: as good as its worst node. An empty fleet has not passed."""
    verdicts = tuple(sorted(nodes, key=lambda node: node.node))
    state = worst((node.state for node in verdicts), State.NOT_RUN)
    statuses = {node.exit_status for node in verdicts}
    exit_status = next((status for status in (EXIT_FAIL, EXIT_ENVIRONMENT) if status in statuses), EXIT_PASS)
    if not verdicts:
        exit_status = EXIT_ENVIRONMENT
    return FleetVerdict(SUMMARY_VERSION, state, exit_status, _sentence(state, verdicts), verdicts)


def _why(test: TestVerdict) -> list[str]:
    """Return why a test did not pass: no state but pass and not-run goes without a sentence."""
    said = _sentences(test.findings)
    if not said and test.state in {State.DEGRADED, State.FAIL}:
        said = [f"{test.state}: {test.reason or 'its result does not say why'}"]
    return said


def _sentences(findings: Iterable[Finding]) -> list[str]:
    """Return what is wrong and what to do; the same on several GPUs in one sentence."""
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
    test: TestResult,
    compared: Comparison,
    *,
    required: bool,
    headline: tuple[str, ...],
    more: tuple[Finding, ...],
) -> TestVerdict:
    findings = tuple(map(_short_finding, test.findings + more + compared.findings))
    found = worst(finding.state for finding in findings)
    # What was not run on one GPU does not excuse what failed on another.
    state = (
        test.state if test.state is State.NOT_RUN and found is not State.FAIL else worst([test.state, found])
    )
    return TestVerdict(
        id=test.id,
        state=state,
        required=required,
        headline=_headline(test, headline),
        reason=_short(test.reason),
        findings=findings,
        notes=tuple(map(_short, compared.notes)),
    )


def _short_finding(found: Finding) -> Finding:
    if len(found.text) <= MOST_CHARACTERS and len(found.action) <= MOST_CHARACTERS:
        return found
    return replace(found, text=_short(found.text), action=_short(found.action))


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _headline(test: TestResult, names: tuple[str, ...]) -> str:
    """Return the number of a test in a table: the best name that was measured, largest size, worst GPU."""
    for name in names:
        found = [measurement for measurement in test.measurements if measurement.name == name]
        if found:
            largest = max(_size(measurement) for measurement in found)
            return quantity(min((m for m in found if _size(m) == largest), key=lambda m: m.value))
    return ""


def _size(measurement: Measurement) -> int:
    size = measurement.conditions.get("size_bytes", 0)
    return size if isinstance(size, int) else 0


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
    total = number_of(len(nodes), "node")
    parts = [
        f"{len(names)} of {total} {verb}{f' ({first_of(names)})' if name_them else ''}"
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
    each = [(node.node, node.gpu_verdicts) for node in nodes]
    idle = [node.node for node in nodes if node.gpu_verdicts and not computed(node.tests)]
    more = "".join(f" {said}" for said in (counts(each, idle), unknown_models(each)) if said)
    return f"Verdict: {state}. {'; '.join(parts)}.{more}{left_out}"


def _where_run(nodes: tuple[NodeVerdict, ...]) -> dict[str, bool]:
    """For each test of the runs, whether any node could run it."""
    ran: dict[str, bool] = {}
    for node in nodes:
        for test in node.tests:
            ran[test.id] = ran.get(test.id, False) or test.state is not State.NOT_RUN
    return ran
