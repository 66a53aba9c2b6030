"""What a check is: a class that runs one test and says all that others need to know of it.

Registry, plans, estimate, documents and the choices of inventories are derived from these classes. A class
with an `id` is a check; its docstring is what docs/operate/validation.md says it measures.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from validation.checks.node import Node
from validation.model.contract import State, StringEnum, TestResult
from validation.model.plans import WHOLE, Plan, RunOptions, Timing
from validation.processes.pool import PATIENCE


class Scope(StringEnum):
    """What the numbers and findings of a check are about."""

    NODE = "node"
    CPU = "CPU"
    EACH_GPU = "each GPU"
    GPU_PAIRS = "pairs of GPUs"
    ALL_GPUS = "all GPUs together"
    PATHS = "paths"


@dataclass(frozen=True)
class Need:
    """What a check cannot run without: in words, and why a node lacks it (None: it does not).

    What only the check itself can find out is given in words alone.
    """

    words: str
    why_not: Callable[[Node], str | None] = lambda _: None


def _why_no_driver(node: Node) -> str | None:
    return node.why_no_gpu() or (None if node.loaded_driver else "the NVIDIA driver is not loaded")


def _why_one_gpu(node: Node) -> str | None:
    return "this node has one GPU, and this test needs two" if len(node.gpus) == 1 else None


GPU = Need("an NVIDIA GPU on the PCI bus", Node.why_no_gpu)
DRIVER = Need("an NVIDIA GPU with its driver", _why_no_driver)
TORCH = Need("torch", Node.why_no_torch)
CUDA = Need("an NVIDIA GPU with its driver, torch built with CUDA", Node.why_no_cuda)
TWO_GPUS = Need("two or more GPUs", _why_one_gpu)

#: The plans that measure for longer than a minute.
BEYOND_QUICK = tuple(name for name in WHOLE if name != "quick")


#: For so many seconds at least the processes of a test may make no progress: torch comes from a cold disk,
#: eight GPUs without persistence mode wake up.
LEAST_PATIENCE_S = 60.0


#: Of the first warm-up, what later numbers of the same process need: the device is warm, only their code is
#: not loaded yet.
LATER_WARM_UP = 0.1


@dataclass(frozen=True)
class IdleNode:
    """A node on which a plan runs, and the seconds that something takes there, whatever the plan says.

    These are assumptions for a server with eight GPUs and persistence mode. One H200 took 26 and 32 s for the
    quick plan, which is 53 s here (2026-11-26); what a model costs was read off it.
    """

    plan: Plan
    gpus: int = 8
    first_start: float = 6.0  # Python and torch, from disk
    start: float = 3.0  # the same from the page cache, on all GPUs at once
    contexts: float = 2.0  # one on each GPU, at once
    nvidia_smi: float = 1.0  # nvidia-smi -q -x, on all GPUs
    libraries: float = 1.8  # cuDNN, NCCL, and a computation on each GPU, one after the other
    container: float = 5.0  # start one and ask nvidia-smi there
    product: float = 0.3  # make matrices, checksums and the check of a product
    buffers: float = 2.0  # page-locked memory filled with a pattern, and compared at the end
    compared: float = 0.3  # a copy between GPUs, brought to the host from both
    pattern_s_gb: float = 0.06  # write and read a GB of memory, twice
    memory_bytes: float = 72e9  # of a GPU, what the pattern test finds free
    communicator: float = 4.0  # NCCL finds its ways
    gloo: float = 1.0  # ranks meet, sum, and check
    training: float = 4.0  # make a model, and compare its gradients


@dataclass(frozen=True)
class CostStep:
    """A part of a check, so many times so many seconds."""

    what: str
    seconds: float
    times: int = 1

    def __str__(self) -> str:
        return f"{self.what} {f'{self.times} x ' if self.times > 1 else ''}{self.seconds:.3g}"


def series(timing: Timing, count: int = 1, gpus: int = 1) -> list[CostStep]:
    """`count` numbers of one process, which is warm after the first; of each of `gpus` in turn."""
    steps = [
        CostStep("warm up", timing.warm_up_s),
        CostStep("warm up again", LATER_WARM_UP * timing.warm_up_s, count - 1),
        CostStep("measure", timing.measure_s, count),
    ]
    return [dataclasses.replace(step, times=step.times * gpus) for step in steps]


def total(steps: Iterable[CostStep]) -> float:
    """Return seconds of all steps."""
    return sum(step.seconds * step.times for step in steps)


class Check(abc.ABC):
    """A test of a node. `method` is the version of the way it measures."""

    id: ClassVar[str]
    title: ClassVar[str]
    #: Its place in a run: below 100 reads only, then the CPU, from 200 the GPUs, from 300 data and training,
    #: from 900 what the load left.
    place: ClassVar[int]
    scope: ClassVar[Scope]
    needs: ClassVar[tuple[Need, ...]] = ()
    #: The plans that it belongs to. In others it runs only where it is asked for, by name or by an option.
    plans: ClassVar[tuple[str, ...]] = WHOLE
    #: When it passes, for the documentation.
    passes: ClassVar[str]
    method: ClassVar[int] = 1
    #: The measurements that stand for it in a table, the best first.
    headline: ClassVar[tuple[str, ...]] = ()
    #: Whether a node with GPUs is accepted only after this check ran, unless an expectation says otherwise.
    proves_a_gpu: ClassVar[bool] = False
    #: Whether it has GPUs compute, as all do that need CUDA. One that only asks the driver proves less.
    computes_on_gpus: ClassVar[bool] = False
    #: The option of a run (a field of RunOptions) that asks for it, and whether it must then have run.
    option: ClassVar[str | None] = None
    required_if_asked: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Derive what follows from the needs."""
        super().__init_subclass__()
        cls.computes_on_gpus |= CUDA in cls.needs

    @property
    def function(self) -> str:
        """What its measuring processes run: `measure` of its module."""
        return f"{type(self).__module__}:measure"

    def asked_for(self, options: RunOptions) -> bool:
        """Return whether these options ask for it, in a plan that leaves it out, too."""
        return self.option is not None and bool(getattr(options, self.option))

    @abc.abstractmethod
    def cost(self, idle: IdleNode) -> Iterable[CostStep]:
        """Return how long it takes on an idle node, step by step."""

    @abc.abstractmethod
    def perform(self, node: Node) -> TestResult:
        """Run it on a node that has what it needs."""

    def patience_s(self, node: Node) -> float:
        """After how long without progress its processes are said to hang: see PATIENCE."""
        return node.stretch * max(LEAST_PATIENCE_S, PATIENCE * self.longest_s(node))

    def longest_s(self, node: Node) -> float:
        """Return how long its longest step takes on an idle node."""
        steps = self.cost(IdleNode(node.plan, len(node.gpus)))
        return max((step.seconds for step in steps), default=0.0)

    def run(self, node: Node) -> TestResult:
        """Run it here if this node has what it needs, and say how it came out."""
        started = time.monotonic()
        reason = next(filter(None, (need.why_not(node) for need in self.needs)), None)
        found = not_run(self, reason) if reason else self.perform(node)
        return dataclasses.replace(found, duration_s=round(time.monotonic() - started, 3))


def not_run(check: Check, reason: str) -> TestResult:
    """Return a test that the environment kept from running, and why."""
    return TestResult(check.id, State.NOT_RUN, check.method, 0.0, reason)
