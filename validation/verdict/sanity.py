"""What no test that did its work brings home: no number, none of some GPU, numbers that cannot be.

A test whose process ended well has said so itself. This looks whether there is anything behind it, whatever
the reason may be that there is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measurement, NodeResult, State, TestResult
from validation.model.expectations import References
from validation.model.quantities import has_unit, label, number, of_gpus, on_gpu, quantity
from validation.verdict.references import peak_of

#: A chip may clock higher than the clock its published peak is computed with; nothing is a quarter faster.
MOST_OVER_PEAK = 1.25


def findings(
    test: TestResult, result: NodeResult, references: References, *, measures: bool
) -> list[Finding]:
    """Return what is wrong with the numbers of a test that ran; `measures` says whether it must have some."""
    if test.state is State.NOT_RUN:
        return list(_impossible(test, result, references))
    if measures and not test.measurements and test.state is not State.FAIL:
        return [finding("no-number")]
    found = list(_impossible(test, result, references))
    if of_gpus(test) and test.state is not State.FAIL:
        found += _left_out(test, result)
    return found


def _impossible(test: TestResult, result: NodeResult, references: References) -> Iterator[Finding]:
    gpus = {gpu.index for gpu in result.gpus}
    for one in filter(has_unit, test.measurements):
        if one.device is not None and one.device not in gpus:
            yield finding(
                "impossible-number", "no-such-gpu", gpu=one.device, number=_said(one), listed=len(gpus)
            )
        elif one.value <= 0 or one.samples < 1 or one.spread < 0:
            yield finding(
                "impossible-number",
                "no-work",
                gpu=one.device,
                number=_said(one),
                runs=one.samples,
                spread=one.spread,
            )
        elif (peak := peak_of(test, one, result, references)) and one.value > MOST_OVER_PEAK * peak:
            yield finding(
                "impossible-number", "above-peak", gpu=one.device, number=_said(one), peak=number(peak)
            )


def _said(one: Measurement) -> str:
    return f"{label(one.name)} {quantity(one)}{on_gpu(one.device)}"


def _left_out(test: TestResult, result: NodeResult) -> Iterator[Finding]:
    """GPUs without a number that others of their model have."""
    measured: dict[str, set[int]] = defaultdict(set)
    for one in test.measurements:
        if one.device is not None:
            measured[one.name].add(one.device)
    model = {gpu.index: gpu.pci_id for gpu in result.gpus}
    missing: dict[int, list[str]] = defaultdict(list)
    for name, devices in measured.items():
        models = {model.get(device) for device in devices}
        for device in sorted(model.keys() - devices):
            if model[device] in models or not any(device in others for others in measured.values()):
                missing[device].append(label(name))
    for device, names in sorted(missing.items()):
        yield finding("gpu-not-measured", gpu=device, numbers=", ".join(names))
