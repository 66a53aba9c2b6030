"""Results of a node with eight GPUs, as the payload writes them, for the tests of the gate."""

import dataclasses
import json
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import Digest, Finding, NodeResult, State

OLD, NEW = "580.178.04", "590.48.01"
GPUS = 8
RECORDED = Path(__file__).parent / "recorded_runs.json"
#: Numbers of a node in the quick plan: test, name, value.
NUMBERS = (
    ("gpu_matmul", "bf16_tflops", 730.0),
    ("gpu_matmul", "fp32_tflops", 51.0),
    ("gpu_transfer", "h2d_pinned_gb_s", 55.0),
)


def run_of(
    factors: Sequence[float] = (1.0,) * GPUS,
    *,
    driver: str = OLD,
    bits: Sequence[str] = (),
    findings: Iterable[Finding] = (),
    conditions: dict[str, int | str] | None = None,
    shapes: int = 1,
    draw: Callable[[], float] = lambda: 0.0,
    **changes: Any,
) -> NodeResult:
    """One run; each GPU reaches so much of its numbers, and `draw` says how far each of them is off.

    Every number is there for so many `shapes`.
    """
    shape = conditions or {"m": 8192, "n": 8192, "k": 8192}
    tests = [
        one_test(
            test,
            State.PASS,
            *(
                measurement(
                    name,
                    value * factor * (1 + draw()),
                    device=gpu,
                    conditions=shape | ({"shape": number} if number else {}),
                )
                for at, name, value in NUMBERS
                if at == test
                for number in range(shapes)
                for gpu, factor in enumerate(factors)
            ),
            findings=tuple(findings) if test == "gpu_matmul" else (),
            digests=tuple(
                Digest("bf16", value, gpu, {"m": 8192, "torch": "2.13"}) for gpu, value in enumerate(bits)
            )
            if test == "gpu_matmul"
            else (),
        )
        for test in dict.fromkeys(at for at, *_ in NUMBERS)
    ]
    result = node_result(*tests, gpus=len(factors))
    return dataclasses.replace(result, machine=dataclasses.replace(result.machine, driver=driver), **changes)


def runs_of(
    count: int,
    draw: Callable[[], float] = lambda: 0.0,
    *,
    loss: float = 0.0,
    gpus: int = GPUS,
    **changes: Any,
) -> list[NodeResult]:
    """Runs in which every number of every GPU is off by what `draw` says."""
    return [run_of([1 - loss] * gpus, draw=draw, **changes) for _ in range(count)]


def recorded_noise() -> list[float]:
    """How runs of the payload deviated, in units of their own scatter: measured, on a busy machine.

    The file has every number of forty runs of the CPU's tests (matmul, copy, all-reduce over gloo) in a row.
    Their scale is that machine's; their shape, with its outliers, is what a simulation needs.
    """
    shapes: list[float] = []
    for values in json.loads(RECORDED.read_text())["numbers"].values():
        median = statistics.median(values)
        scale = 1.4826 * statistics.median(abs(value - median) for value in values)
        shapes += [(value - median) / scale for value in values]
    return shapes


def drawn_from(shapes: Sequence[float], sigma: float, chance: random.Random) -> Callable[[], float]:
    """Deviations of the recorded shape, with a scatter of `sigma`; none takes a number below zero."""
    return lambda: max(sigma * chance.choice(shapes), -0.95)
