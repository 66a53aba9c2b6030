"""Silent corruption: kernels of many kinds again and again, hot and cold, and every bit compared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from validation.backends.protocol import Backend
from validation.checks.check import CUDA, Check, CostStep, IdleNode, Scope
from validation.checks.launch import Recorder, on_device, on_each_gpu
from validation.checks.matmul import odd_ones_out
from validation.checks.measured import failures
from validation.checks.node import Node
from validation.model import checksums
from validation.model.contract import Digest, Measured, TestResult
from validation.model.shapes import MatmulShape
from validation.processes.child import Request

if TYPE_CHECKING:
    import torch

    from validation.backends.kernels import Kernel

#: Operands, and the first result of each kernel.
NEEDED_BYTES = 3 << 30
#: Between rounds, in turn: load, and none. Clock and voltage follow; no setting is touched.
PAUSE_S = 1.0
LOAD = MatmulShape(4096, 4096, 4096)
#: A first result is compared at least so often.
LEAST_ROUNDS = 3


class Comparison:
    """What is known of each kernel, and what was found to be wrong."""

    def __init__(self, backend: Backend, recorder: Recorder, who: str) -> None:
        self._software, self._recorder, self._who = backend.software(), recorder, who
        self._first: dict[tuple[str, str], tuple[str, torch.Tensor]] = {}
        self._told: set[tuple[str, str, str]] = set()
        self.digests: list[Digest] = []
        self.rounds = self.compared = 0
        #: Wrong results by unit.
        self.wrong: dict[str, int] = {}

    def look(self, kernel: Kernel) -> None:
        """Run a kernel, and compare its result with the right one, where it is known, and with its first."""
        found = kernel.run()
        value = kernel.digest(found)
        self.compared += 1
        first = self._first.get((kernel.name, kernel.pattern))
        conditions = {"pattern": kernel.pattern} | self._software
        taken = Digest(kernel.name, value, self._recorder.device, conditions)
        name = checksums.product(taken)
        if first is None:
            self._first[kernel.name, kernel.pattern] = value, found
            self.digests.append(taken)
        elif value != first[0]:
            if self._is_new(kernel, "not-repeatable"):
                self._recorder.find(
                    "not-repeatable",
                    "kernel",
                    who=self._who,
                    kernel=name,
                    before=first[0],
                    after=value,
                    round=self.rounds + 1,
                    difference=str(kernel.difference(first[1], found)),
                )
            return
        if kernel.expected is None:
            return
        right = kernel.expected()
        if not found.equal(right) and self._is_new(kernel, "wrong-result"):
            how = str(kernel.difference(right, found))
            self._recorder.find("wrong-result", "kernel", who=self._who, kernel=name, difference=how)

    def _is_new(self, kernel: Kernel, code: str) -> bool:
        """Count a wrong result; whether it is the first of its kernel."""
        self.wrong[kernel.unit] = self.wrong.get(kernel.unit, 0) + 1
        known = (code, kernel.name, kernel.pattern) in self._told
        self._told.add((code, kernel.name, kernel.pattern))
        return not known


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    recorder = Recorder(backend, request, stage)
    recorder.need(NEEDED_BYTES)
    stage("making the operands of all kernels")
    kernels = list(backend.kernels())
    comparison = Comparison(backend, recorder, request.name)
    until = time.monotonic() + request.parameters["seconds"]
    while comparison.rounds < LEAST_ROUNDS or time.monotonic() < until:
        for kernel in kernels:
            stage(f"round {comparison.rounds + 1}: {kernel.name} of {kernel.pattern} numbers")
            comparison.look(kernel)
        comparison.rounds += 1
        rest(backend, stage, request.parameters["pause_s"], loaded=comparison.rounds % 2 == 1)
    recorder.keep("kernels_compared_times", comparison.compared)
    details = {"rounds": comparison.rounds, "kernels": len(kernels), "wrong_by_unit": comparison.wrong}
    return recorder.measured(details, digests=comparison.digests)


def rest(backend: Backend, stage: Callable[[str], None], pause_s: float, *, loaded: bool) -> None:
    """Wait before the next round, under load or idle."""
    stage("load before the next round" if loaded else "a pause before the next round")
    until = time.monotonic() + pause_s
    if not loaded:
        time.sleep(pause_s)
        return
    operation = backend.matmul("fp16" if "fp16" in backend.dtypes() else "fp32", LOAD)
    while time.monotonic() < until:
        backend.seconds(operation, 20)


measure = on_device(compare)


class GpuCorruption(Check):
    """Kernels of many kinds on all GPUs at once, again and again, each result compared bit for bit.

    Products of every format in two sizes, with random numbers and with few small ones whose product is known;
    multiply-add, special functions, sums, whole numbers, sorting, and data that is moved. Between rounds come
    load and rest in turn, so that clocks change. Bits are also compared between GPUs, nodes and days.
    """

    id = "gpu_corruption"
    title = "silent corruption: the same bits from kernels of many kinds"
    place = 295
    scope = Scope.EACH_GPU
    needs = (CUDA,)
    plans = ("burn-in", "corruption")
    passes = (
        "every kernel gives the bits of its first run, and of equal GPUs; those with a known result give it"
    )
    headline = ("kernels_compared_times",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield CostStep("contexts", idle.contexts)
        # It says each kernel, so that a second is its longest step.
        yield CostStep("compare", 1.0, int(idle.plan.corruption_s))
        yield CostStep("counters", idle.nvidia_smi)

    def perform(self, node: Node) -> TestResult:
        """Compare on this node."""
        parameters = {
            "timing": dataclasses.asdict(node.plan.gpu_copy),
            # Where it is asked for by name in another plan, it takes a minute.
            "seconds": node.plan.corruption_s or 60.0,
            "pause_s": PAUSE_S,
        }
        return on_each_gpu(
            self,
            node,
            parameters,
            judge=lambda outcomes: failures(outcomes) + odd_ones_out(outcomes, node.gpus),
        )
