"""TensorFlow, in the Python that the operator names: does it work with this driver on these GPUs?"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from validation.checks.check import DRIVER, Check, CostStep, IdleNode, Need, Scope
from validation.checks.measured import CUDA_ENVIRONMENT, result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import ContractError, Finding, Measured, TestResult, decode, encode
from validation.model.not_run import NotRunError
from validation.processes import command
from validation.processes.child import Request
from validation.processes.pool import run_children

#: Of the memory that is free, what TensorFlow may take for a product of 16 kB and its libraries. Without
#: memory growth it takes nearly all.
GROWN_SHARE = 0.5
#: It loads gigabytes of libraries, from a disk perhaps, and may compile kernels for a GPU newer than itself.
TIMEOUT_S = 240.0
#: Of what it said before it ended.
WORDS = 300
#: Python imports from the current folder first, for which an empty entry stands; anybody may write to /tmp.
START = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.argv[1])"


@dataclass(frozen=True)
class Gpu:
    """What TensorFlow did on a GPU: the `error`, empty if none; free bytes before and after, if known."""

    error: str
    free_before: int | None
    free_after: int | None


@dataclass(frozen=True)
class Facts:
    """What TensorFlow says of itself and of the GPUs; `mixed_precision` is what is wrong with it."""

    version: str
    built_with_cuda: bool
    gpus: tuple[Gpu, ...]
    mixed_precision: str


def _why_not_asked(node: Node) -> str | None:
    return None if node.run_options.tensorflow else "no Python with TensorFlow was named (--tensorflow)"


class TensorFlow(Check):
    """TensorFlow in the Python that `--tensorflow` or `gpu_validation_tensorflow_python` names.

    Whether it sees every GPU, a product of whole numbers on each, memory growth (set, and honoured: it takes
    less than half of what is free), and a layer under the policy `mixed_float16`. It is then required.
    """

    id = "tensorflow"
    title = "TensorFlow works with driver and GPUs"
    place = 35
    scope = Scope.NODE
    needs = (Need("a Python with TensorFlow that the operator names", _why_not_asked), DRIVER)
    plans = ()
    passes = "all of it works"
    option = "tensorflow"
    required_if_asked = True
    computes_on_gpus = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("first start", 2 * idle.first_start)
        yield CostStep("contexts", idle.contexts)

    def patience_s(self, node: Node) -> float:
        """Return how long to wait: its process waits for TensorFlow, with a limit of its own."""
        return node.stretch * (TIMEOUT_S + 60)

    def perform(self, node: Node) -> TestResult:
        """Ask TensorFlow on this node."""
        node.free_exclusive_gpu()
        request = Request(
            "TensorFlow",
            self.function,
            "none",
            parameters={"python": str(node.run_options.tensorflow), "gpus": len(node.gpus)},
            environment=CUDA_ENVIRONMENT,
        )
        outcomes = run_children([request], node.budget_s, patience_s=self.patience_s(node))
        return result(self, outcomes)


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: run the program in the operator's Python. Raises NotRunError where it has no TensorFlow."""
    python: str = request.parameters["python"]
    program = pkgutil.get_data("validation.probes", "tensorflow_program.py")
    assert program is not None
    stage(f"waiting for TensorFlow in {python}")
    try:
        done = command.run([python, "-c", START, program.decode()], TIMEOUT_S)
    except OSError as error:
        raise NotRunError(f"{python} cannot be started: {error.strerror}") from error
    except command.CommandError as error:
        return Measured(findings=(finding("tensorflow-compute", "died", error=f"it gave {error}"),))
    said = (done.output.strip().splitlines() or [""])[-1]
    if done.status:
        last = (done.errors.strip().splitlines() or [""])[-1][:WORDS]
        ending = "; it said last: ".join(filter(None, (done.ending, last)))
        return Measured(findings=(finding("tensorflow-compute", "died", error=ending),))
    try:
        answer = json.loads(said)
        if isinstance(answer, dict) and "missing" in answer:
            raise NotRunError(f"{python} cannot import TensorFlow: {answer['missing']}")
        facts = decode(Facts, answer)
    except (ValueError, ContractError) as error:
        problem = f"TensorFlow's answer makes no sense: {error}"
        return Measured(findings=(finding("result-unreadable", problem=problem),))
    return Measured(findings=tuple(examine(facts, request.parameters["gpus"])), details=encode(facts))


def examine(facts: Facts, gpus: int) -> Iterator[Finding]:
    """Yield what does not work, cause first."""
    if len(facts.gpus) != gpus:
        yield finding(
            "tensorflow-gpu-count",
            "unusable" if facts.built_with_cuda else "without-cuda",
            version=facts.version,
            seen=len(facts.gpus),
            listed=gpus,
        )
    for index, gpu in enumerate(facts.gpus):
        if gpu.error:
            yield finding("tensorflow-compute", "wrong", gpu=index, error=gpu.error)
        elif gpu.free_before and gpu.free_after is not None:
            share = 1 - gpu.free_after / gpu.free_before
            if share > GROWN_SHARE:
                yield finding("tensorflow-memory-growth", gpu=index, share=share)
    if facts.mixed_precision:
        yield finding("tensorflow-mixed-precision", error=facts.mixed_precision)
