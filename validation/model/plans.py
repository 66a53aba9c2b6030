"""Plans: for how long tests measure, and how long they may take at most. Each test names its plans.

A budget ends what goes on but is much too slow. It is many times what a test needs on an idle machine, so
that a slow or busy machine never fails by time-out. What makes no progress ends earlier (Check.patience_s).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """How long to warm up and to measure, in seconds; the least and the most samples to take."""

    warm_up_s: float
    measure_s: float
    least: int = 5
    most: int = 1000


@dataclass(frozen=True)
class Plan:
    """One depth of validation. Sizes in bytes; `cpu_matmul_size` is the edge of square matrices.

    Those of GPUs depend on the GPU, and not on the plan (shapes.py).
    """

    name: str
    summary: str
    budget_s: float  # of one test, on a machine that is not overloaded
    cpu: Timing
    gpu: Timing
    gpu_copy: Timing
    cpu_copy_bytes: int
    cpu_all_reduce_bytes: int
    gpu_copy_bytes: int
    gpu_peer: Timing
    gpu_peer_bytes: int
    gpu_pattern_bytes: int  # at most; what is free bounds it
    gpu_all_reduce_bytes: tuple[int, ...]  # the largest one that fits in memory carries the verdict
    all_reduce_runs: int  # of each collective and size, at most
    all_reduce_s: float  # likewise, as measured by all ranks together

    def cpu_matmul_size(self, cpus: int) -> int:
        """Large enough to keep all CPUs busy for milliseconds, small enough to repeat it often."""
        return 1024 if cpus < 8 else 2048 if cpus < 32 else 4096

    #: For how long the tests are repeated; 0: once.
    duration_s: float = 0
    #: Of one group of nodes, once they have met; a node that does not come costs this and the time to meet.
    fabric_budget_s: float = 120
    fabric_gloo_bytes: tuple[int, ...] = (1 << 20, 8 << 20)
    collectives: tuple[str, ...] = ("all_reduce",)
    #: All message sizes that fit, or only the smallest and the largest.
    sweep: bool = True
    gpu_directions: tuple[str, ...] = ("h2d", "d2h")
    #: The file that storage is read from: its size, and how long writing it may take, at most.
    storage_bytes: int = 1 << 30
    storage_write_s: float = 10
    #: How long kernels of many kinds are compared with themselves, at least.
    corruption_s: float = 0
    #: How long the fastest published shapes of a GPU are measured, after the long load; None: not at all.
    gpu_best: Timing | None = None
    #: How long each shape is tried in the search for the one that is the fastest here; None: no search.
    gpu_search: Timing | None = None


MIB = 1 << 20
GIB = 1 << 30

#: How long an operator may have tests repeated at most.
MOST_HOURS = 1000

_QUICK = Plan(
    name="quick",
    summary="under a minute: is this node healthy, correct and about as fast as it should be?",
    budget_s=300,
    cpu=Timing(warm_up_s=0.3, measure_s=0.7),
    gpu=Timing(warm_up_s=1, measure_s=0.5),
    gpu_copy=Timing(warm_up_s=0.05, measure_s=0.2),
    cpu_copy_bytes=64 * MIB,
    cpu_all_reduce_bytes=16 * MIB,
    gpu_copy_bytes=512 * MIB,
    gpu_peer=Timing(warm_up_s=0.02, measure_s=0.05),
    gpu_peer_bytes=256 * MIB,
    gpu_pattern_bytes=8 * GIB,
    gpu_all_reduce_bytes=(64 * MIB, GIB, 4 * GIB, 8 * GIB, 16 * GIB),
    all_reduce_runs=20,
    all_reduce_s=1,
    sweep=False,
)

_STANDARD = replace(
    _QUICK,
    name="standard",
    summary="about 28 minutes on eight GPUs, 5 for each storage path: the same, and throttling shows",
    budget_s=1200,
    cpu=Timing(warm_up_s=3, measure_s=10),
    gpu=Timing(warm_up_s=30, measure_s=20, most=20000),
    gpu_best=Timing(warm_up_s=0.2, measure_s=1, least=20),
    gpu_search=Timing(warm_up_s=0.02, measure_s=0.1),
    gpu_copy=Timing(warm_up_s=2, measure_s=5),
    cpu_copy_bytes=256 * MIB,
    cpu_all_reduce_bytes=256 * MIB,
    gpu_peer=Timing(warm_up_s=0.1, measure_s=0.3),
    gpu_pattern_bytes=1024 * GIB,
    all_reduce_runs=100,
    storage_bytes=8 * GIB,
    storage_write_s=60,
    all_reduce_s=10,
    sweep=True,
    collectives=("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    gpu_directions=("h2d", "d2h", "both", "h2d_pageable", "d2h_pageable"),
)

_BURN_IN = replace(
    _STANDARD,
    name="burn-in",
    summary="four hours of load, again and again: stops at the first fault, resumes when interrupted",
    budget_s=3600,
    cpu=Timing(warm_up_s=1, measure_s=20, most=20000),
    gpu=Timing(warm_up_s=30, measure_s=120, most=200000),
    gpu_copy=Timing(warm_up_s=2, measure_s=10, most=20000),
    all_reduce_runs=200,
    all_reduce_s=20,
    duration_s=4 * 3600,
    gpu_search=None,  # another round may find another shape, and rounds are to compare
    corruption_s=120,
    gpu_directions=("h2d", "d2h", "both"),
)

_CORRUPTION = replace(
    _STANDARD,
    name="corruption",
    summary="ten minutes: does each GPU compute the same bits each time, in kernels of many kinds?",
    corruption_s=480,
)

PLANS = {plan.name: plan for plan in (_QUICK, _STANDARD, _BURN_IN, _CORRUPTION)}
#: What must have run in a plan that measures one property, in place of what inventories require.
REQUIRED = {_CORRUPTION.name: ("health", "gpu_corruption")}
#: Those that measure all that a node has, rather than one property of it.
WHOLE = tuple(name for name in PLANS if name != _CORRUPTION.name)


@dataclass(frozen=True)
class RunOptions:
    """What the operator asks of a run besides its plan. `storage_paths` are folders or files to read from."""

    storage_paths: tuple[Path, ...] = ()
    #: What each of the paths must reach; None: nothing is compared with a floor.
    storage_floor_gb_s: float | None = None
    #: The folder that gets the traces of profiles.
    traces: Path | None = None
    #: The Python that has TensorFlow.
    tensorflow: Path | None = None
    #: Whether programs are to draw on the GPUs.
    graphics: bool = False


NO_OPTIONS = RunOptions()
