"""The verdict on each GPU of a node: what an operator drains, swaps or sends back.

A GPU is as bad as the worst that was found on it. Where a test of GPUs failed and names none of them (a
collective, say), nobody can tell which is to blame: then those on which nothing was found are degraded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from validation.checks.check import Scope
from validation.checks.registry import CHECKS
from validation.model.contract import Finding, NodeResult, State, worst
from validation.model.expectations import References
from validation.model.printable import first_of
from validation.model.quantities import of_gpus
from validation.verdict.verdicts import GpuVerdict, TestVerdict

#: The test that looks at every GPU there is without measuring it.
HEALTH = "health"


def judge_gpus(
    result: NodeResult, references: References, tests: Sequence[TestVerdict]
) -> tuple[GpuVerdict, ...]:
    """Return the verdict on each GPU of a result, from the node's tests as they were judged."""
    known = {gpu.index for gpu in result.gpus}
    # As the node says it: a number that fails one GPU does not mean that another one was measured.
    not_run = {test.id for test in tests if test.state is State.NOT_RUN}
    not_run |= {test.id for test in result.tests if test.state is State.NOT_RUN}
    kept_from_running = {
        index
        for test in tests
        if test.required and test.id in not_run and (_of_gpus(test) or test.id == HEALTH)
        for index in known - _measured(result, test.id)
    }
    suspected = [test for test in tests if _of_gpus(test) and _names_none_of(known, test)]
    unhealthy = [code for test in tests if test.id == HEALTH for code in _of_the_node(test.findings)]
    looked_at = _looked_at(result)
    verdicts = []
    for gpu in sorted(result.gpus, key=lambda gpu: gpu.index):
        found = [finding for test in tests for finding in test.findings if finding.device == gpu.index]
        state, codes = worst(finding.state for finding in found), [finding.code for finding in found]
        if state is State.PASS and suspected:
            state = State.DEGRADED
            codes = [finding.code for test in suspected for finding in test.findings]
        elif state is State.PASS and (gpu.index in kept_from_running or gpu.index not in looked_at):
            state = State.NOT_RUN
        elif state is State.PASS and unhealthy:
            state, codes = State.DEGRADED, unhealthy
        model = references.model_of(gpu.pci_id)
        name = str(model["name"]) if model else ""
        verdicts.append(
            GpuVerdict(
                gpu.index, gpu.uuid, gpu.name, gpu.pci_address, name, state, tuple(dict.fromkeys(codes))
            )
        )
    return tuple(verdicts)


def _measured(result: NodeResult, test_id: str) -> set[int]:
    """Return the GPUs that a test brought a number of."""
    numbers = [one for test in result.tests if test.id == test_id for one in test.measurements]
    return {one.device for one in numbers if one.device is not None}


def _of_gpus(test: TestVerdict) -> bool:
    check = CHECKS.get(test.id)
    return test.id.startswith("gpu_") and not (check and check.scope is Scope.NODE)


def _names_none_of(gpus: set[int], test: TestVerdict) -> bool:
    """Return whether a test did not pass for something that is of none of these GPUs in particular."""
    if test.state not in {State.DEGRADED, State.FAIL}:
        return False
    return not test.findings or any(finding.device not in gpus for finding in test.findings)


def _of_the_node(findings: Iterable[Finding]) -> list[str]:
    """Codes of what fails the node as a whole: a driver that hangs says nothing of any of its GPUs."""
    return [finding.code for finding in findings if finding.state is State.FAIL and finding.device is None]


def _looked_at(result: NodeResult) -> set[int]:
    """GPUs that some test brought a number of; all of them, where their health could be read."""
    ran = [test for test in result.tests if test.state is not State.NOT_RUN]
    if any(test.id == HEALTH and not _of_the_node(test.findings) for test in ran):
        return {gpu.index for gpu in result.gpus}
    return {index for test in result.tests if of_gpus(test) for index in _measured(result, test.id)}


def computed(tests: Iterable[TestVerdict]) -> bool:
    """Return whether a test has had GPUs of this node compute."""
    return any(
        test.state is not State.NOT_RUN and test.id in CHECKS and CHECKS[test.id].computes_on_gpus
        for test in tests
    )


def counts(nodes: Iterable[tuple[str, Sequence[GpuVerdict]]], idle: Sequence[str] = ()) -> str:
    """`GPUs: 61 of 64 pass, 1 degraded (gpu07: 3), 2 fail (gpu11: 0, 5).`; empty where there are none.

    `idle` are the nodes whose GPUs no test has had compute.
    """
    where: dict[State, dict[str, list[str]]] = {}
    total = 0
    for node, gpus in nodes:
        for gpu in gpus:
            total += 1
            where.setdefault(gpu.state, {}).setdefault(node, []).append(str(gpu.index))
    if not total:
        return ""
    passed = sum(map(len, where.get(State.PASS, {}).values()))
    without = f" (without one computation on those of {first_of(idle)})" if idle and passed else ""
    parts = [f"{passed} of {total} pass{without}"]
    for state in (State.DEGRADED, State.FAIL, State.NOT_RUN):
        if found := where.get(state):
            names = first_of(
                (f"{node}: {', '.join(indices)}" for node, indices in found.items()), between="; "
            )
            parts.append(f"{sum(map(len, found.values()))} {state} ({names})")
    return f"GPUs: {', '.join(parts)}."


def unknown_models(nodes: Iterable[tuple[str, Sequence[GpuVerdict]]]) -> str:
    """Return a sentence for each model that the table does not know; empty where it knows all."""
    where: dict[str, list[str]] = {}
    for node, gpus in nodes:
        for name in sorted({gpu.name for gpu in gpus if not gpu.model}):
            where.setdefault(name, []).append(node)
    return " ".join(
        f"No reference for {name} (on {first_of(found)}): compared only with the fleet and its own past."
        for name, found in where.items()
    )
