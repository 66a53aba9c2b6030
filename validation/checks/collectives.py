"""Collectives between processes: bus bandwidth, exact results, and which rank died or hung."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from validation.backends.factory import STARTING, make
from validation.backends.protocol import Backend, Operation
from validation.backends.sampling import MOST_ATTEMPTS, rate, spread
from validation.checks.check import (
    BEYOND_QUICK,
    CUDA,
    LEAST_PATIENCE_S,
    TORCH,
    TWO_GPUS,
    Check,
    CostStep,
    IdleNode,
    Need,
    Scope,
    not_run,
)
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, failures, result, watch
from validation.checks.node import Node
from validation.checks.witnesses import RasWitness, flight_records, say
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, Measurement, TestResult
from validation.model.cuda_errors import HARDWARE, OF_A_LINK, finding_of
from validation.model.not_run import NotRunError
from validation.model.quantities import NOISY_SPREAD
from validation.probes.nccl_ras import VARIABLE as RAS_VARIABLE
from validation.processes.child import BEGINNING, LOADING, Request, count_step, expect
from validation.processes.pool import PATIENCE, SLACK_S, Ending, ProcessOutcome, WorkerPool, run_children

WARM_UP_RUNS = 3
LEAST_RUNS = 5
#: Of the same length, for preparing and checking.
MORE_RUNS = 2
#: What NCCL says where NVLS is there but does not serve this number of GPUs or is switched off.
NVLS_REFUSED = "no algorithm/protocol available"
NO_NVLS = "the GPUs have no NVLS: that needs NVSwitches that reduce (Hopper or newer) and a fabric manager"
MEETING = "meeting the other ranks"
CONNECTING = "connecting with the other ranks"
#: The stages of a rank until all have met.
UNMET = (BEGINNING, LOADING, STARTING, MEETING, CONNECTING)
#: Ranks wait longer for each other than their parent waits for them: it sees which one is behind, they only
#: see that one is missing.
RANK_PATIENCE = 2
#: Buffer and its original numbers, with some room for the library's own buffers.
MEMORY_SHARE = 0.4
#: By this part of its budget, counted from when all ranks have met, the largest size must have been measured,
#: or is left out: a slow way between ranks has a number, and does not look as if they hung.
SIZES_SHARE = 0.8
#: Ranks say about so often that they go on.
PIECE_S = 5.0
#: Below and above this part of the time a rank sleeps, and polls.
IDLE, BUSY = 0.25, 0.75


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: one rank. Its details hold the seconds of each run by collective and size.

    Raises NotRunError.
    """
    backend = make(request.backend, request.device, stage)
    if ras := request.parameters.get("ras"):
        os.environ[RAS_VARIABLE] = ras
    if request.parameters.get("nvls") and not backend.has_multicast():
        raise NotRunError(NO_NVLS)
    try:
        return reduce(backend, request, stage)
    except RuntimeError as error:
        if request.parameters.get("nvls") and NVLS_REFUSED in str(error):
            raise NotRunError("NCCL does not offer NVLS to these GPUs") from error
        raise


def reduce(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return one rank's part, on any backend."""
    parameters = request.parameters
    rank, world_size = parameters["rank"], parameters["world_size"]
    stage(MEETING)
    backend.join(rank, world_size, parameters["store"], parameters["timeout_s"])
    taken: dict[str, list[float]] = {}
    attempts: dict[str, int] = {}
    findings = []
    limits = _agree(backend, parameters, stage)
    left_out = []
    for kind, size_bytes in _steps(parameters):
        label = _label(kind, size_bytes)
        if not limits.allow(size_bytes):
            left_out.append(label)
            continue
        stage(f"preparing {label}")
        operation = backend.collective(kind, size_bytes)
        stage(f"warming up with {label}")
        # All ranks must run equally often: as often as the slowest of them has the time for.
        go_on = partial(stage, f"warming up with {label}")
        typical = backend.highest(min(seconds_of(backend, operation, WARM_UP_RUNS, PIECE_S, go_on)))
        limits.note(size_bytes, typical)
        runs = affordable_runs(typical, parameters["runs"], parameters.get("at_most_s"))
        stage(f"measuring {label}")
        step = f"{kind} {int(operation.work)}"
        for attempt in range(1, MOST_ATTEMPTS + 1):
            seconds = seconds_of(backend, operation, runs, typical, partial(stage, f"measuring {label}"))
            taken[step], attempts[step] = [round(run, 7) for run in seconds], attempt
            # All ranks measure again, or none: the last attempt of all belongs together.
            if backend.highest(spread(seconds)) <= NOISY_SPREAD or limits.left_s() < runs * typical:
                break
        stage(f"checking {label}")
        if (error := operation.error()) != 0.0:
            findings.append(finding("wrong-result", "collective", who=request.name, error=error, what=label))
        del operation
    stage("leaving")
    backend.barrier()
    details = {"seconds": taken, "attempts": attempts}
    return Measured((), tuple(findings), details=details | ({"left_out": left_out} if left_out else {}))


def seconds_of(
    backend: Backend, operation: Operation, runs: int, typical_s: float, go_on: Callable[[], None]
) -> list[float]:
    """Return seconds of each run; between pieces of some seconds it tells that it goes on."""
    piece = max(1, int(PIECE_S / typical_s)) if typical_s > 0 else runs
    seconds: list[float] = []
    while len(seconds) < runs:
        go_on()
        seconds += backend.seconds(operation, min(piece, runs - len(seconds)), count_step)
    return seconds


def _agree(backend: Backend, parameters: dict[str, Any], stage: Callable[[str], None]) -> _Limits:
    """Return what all ranks have time and memory for; the time of `measure_s` begins when all are there.

    `fits`: whoever asked knows that there is memory for all sizes.
    """
    stage(CONNECTING)
    # The first collective of all, in which NCCL connects them. Until then they wait for each other to start.
    free_bytes = -backend.highest(-backend.free_bytes())
    room_bytes = math.inf if parameters.get("fits") else MEMORY_SHARE * free_bytes
    return _Limits(backend, time.monotonic() + parameters["measure_s"], room_bytes)


class _Limits:
    """What there is time and room for. All ranks agree: what one left out the others would wait for.

    `until` is when the last size must have been measured, in the time.monotonic() of this rank's machine.
    """

    def __init__(self, backend: Backend, until: float, room_bytes: float) -> None:
        self._backend, self._until, self._room_bytes = backend, until, room_bytes
        self._size_bytes, self._typical_s = 0, 0.0

    def note(self, size_bytes: int, typical_s: float) -> None:
        """Note how long the slowest rank takes for a run of this size."""
        self._size_bytes, self._typical_s = size_bytes, typical_s
        expect(typical_s)

    def left_s(self) -> float:
        """Return what the rank that has least time has left. All ranks must ask together."""
        return -self._backend.highest(time.monotonic() - self._until)

    def allow(self, size_bytes: int) -> bool:
        """Return whether a size can be measured. All ranks must ask together; the first size always can."""
        if not self._size_bytes:
            return True
        if size_bytes > self._room_bytes:
            return False
        run_s = self._typical_s * size_bytes / self._size_bytes
        expect(run_s)
        return run_s <= longest_run_s(self.left_s())


def longest_run_s(left_s: float) -> float:
    """Return how long a run may take to be worth measuring in this time."""
    return left_s / (WARM_UP_RUNS + LEAST_RUNS + MORE_RUNS)


def affordable_runs(typical_s: float, wanted: int, at_most_s: float | None) -> int:
    """As many runs as were asked for, or as fit the time, but enough for a median with a spread."""
    if not at_most_s or typical_s <= 0:
        return wanted
    return max(min(LEAST_RUNS, wanted), min(wanted, int(at_most_s / typical_s)))


def _steps(parameters: dict[str, Any]) -> list[tuple[str, int]]:
    return [(kind, size) for kind in parameters["collectives"] for size in parameters["sizes_bytes"]]


def _label(kind: str, size_bytes: int) -> str:
    return f"{kind.replace('_', '-')} of {size_bytes / (1 << 20):g} MiB"


def bus_bandwidth_factor(kind: str, world_size: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): how often a byte crosses a link.

    With one rank nothing moves, and there is no bandwidth.
    """
    return (2 if kind == "all_reduce" else 1) * (world_size - 1) / world_size


def combine(
    seconds_by_rank: list[dict[str, list[float]]],
    attempts: dict[str, int] | None = None,
    prefix: str = "",
) -> tuple[list[Measurement], dict[str, list[float]]]:
    """Bus bandwidth by collective and size, and each rank's median time.

    A run is as slow as its slowest rank.
    """
    measurements, medians, ranks = [], {}, len(seconds_by_rank)
    for step in seconds_by_rank[0]:
        kind, _, size = step.partition(" ")
        slowest = [max(run) for run in zip(*(seconds[step] for seconds in seconds_by_rank), strict=True)]
        measurements.append(
            rate(
                prefix + ("busbw_gb_s" if kind == "all_reduce" else f"{kind}_busbw_gb_s"),
                int(size) * bus_bandwidth_factor(kind, ranks),
                slowest,
                1e9,
                conditions={"size_bytes": int(size), "ranks": ranks},
                attempts=(attempts or {}).get(step, 1),
            )
        )
        medians[step] = [round(statistics.median(seconds[step]), 6) for seconds in seconds_by_rank]
    return measurements, medians


def name_the_culprit(
    outcomes: list[ProcessOutcome],
    order: Callable[[str], int] | None = None,
    ras: RasWitness | None = None,
) -> list[Finding]:
    """Return the rank that broke the collective: it failed first, or hangs and is halted or behind.

    `order` says how far a rank in some stage is; None: by the stages of a collective.

    Of several that were found to have failed at one time nobody knows the first: all are named, and no GPU.
    Where what was counted tells nobody apart, torch's flight recorder may, or `ras`, NCCL's own word.
    """
    order = order or stage_order(outcomes[0].request.parameters)
    late = {Ending.HUNG, Ending.SLOW}
    failed = [outcome for outcome in outcomes if outcome.ending not in late and failures([outcome])]
    if failed:
        when = min(outcome.ended_at for outcome in failed)
        first = [outcome for outcome in failed if outcome.ended_at == when]
        # CUDA reports a GPU's own fault on this GPU alone.
        broken = [outcome for outcome in first if finding_of(outcome.problem) in HARDWARE - OF_A_LINK]
        found = failures(broken if len(broken) == 1 else first)
        # The others failed because of it.
        if len(found) == 1 and found[0].code not in OF_A_LINK:
            return found
        return [dataclasses.replace(one, device=None) for one in found]
    if slow := [outcome for outcome in outcomes if outcome.ending is Ending.SLOW]:
        # All are as slow as the slowest, which may be any of them.
        slowest = min(slow, key=lambda outcome: order(outcome.stage))
        return [dataclasses.replace(one, device=None) for one in failures([slowest])]
    hung = [outcome for outcome in outcomes if outcome.ending is Ending.HUNG]
    return [_who_hangs(hung, len(outcomes), order, ras)] if hung else []


def _who_hangs(
    hung: list[ProcessOutcome], ranks: int, order: Callable[[str], int], ras: RasWitness | None
) -> Finding:
    """Return the ranks that others wait for, or all `ranks` where nothing tells them apart."""

    def how_far(outcome: ProcessOutcome) -> tuple[int, int]:
        return order(outcome.stage), outcome.steps

    least = min(map(how_far, hung))
    # The others wait for one that does not run, which may have got as far as they.
    culprits = [one for one in hung if one.halted] or [one for one in hung if how_far(one) == least]
    if len(culprits) == ranks:
        culprits = _did_not_enter(hung)
    testimonies = [*flight_records(hung), *(ras.testimonies(len(hung)) if ras else [])]
    if len(culprits) == ranks:
        culprits = next(([hung[rank] for rank in one.ranks] for one in testimonies if one.ranks), culprits)
    others = [one for one in hung if one not in culprits]
    stages = dict.fromkeys(sorted((one.stage for one in culprits), key=order))
    stage, silent_s = " and ".join(stages), min(outcome.silent_s for outcome in hung)
    said = say(testimonies, hung, culprits)
    stood = " and ".join(dict.fromkeys(place(one.steps) for one in sorted(culprits, key=how_far)))
    if len(culprits) == ranks:
        return finding(
            "rank-hung", "all", ranks=ranks, stage=stage, place=stood, silent_s=silent_s, seen=said
        )
    names = [
        f"{one.request.name}{f' ({seen})' if (seen := one.halted or one.where) else ''}" for one in culprits
    ]
    facts: dict[str, Any] = {"ranks": " and ".join(names), "stage": stage, "silent_s": silent_s, "seen": said}
    if elsewhere := sorted({one.stage for one in others} - stages.keys(), key=order):
        return finding("rank-hung", "behind", others=elsewhere[-1], **facts)
    if others and min(map(how_far, others)) > max(map(how_far, culprits)):
        waited = place(max(one.steps for one in others))
        return finding("rank-hung", "fewer-runs", place=stood, others=waited, **facts)
    return finding("rank-hung", "some", **facts)


def _did_not_enter(hung: list[ProcessOutcome]) -> list[ProcessOutcome]:
    """Of ranks that have got equally far, those that did not hand over a collective that others wait in.

    They have counted fewer calls. Of ranks within the same call, one that sleeps has not entered it while the
    others look for it all the time, as NCCL does. All where neither tells.
    """
    least = min(one.calls for one in hung)
    culprits = [one for one in hung if one.calls == least]
    if len(culprits) == len(hung):
        idle = [one for one in hung if one.busy is not None and one.busy < IDLE]
        polling = [one for one in hung if one.busy is not None and one.busy > BUSY]
        culprits = idle if polling and len(idle) + len(polling) == len(hung) else hung
    return culprits or hung


def place(steps: int) -> str:
    """Return where a rank stands that has counted so many beginnings and ends of runs."""
    ended, begun = divmod(steps, 2)
    if begun:
        return f"in run {ended + 1}"
    return f"after run {ended}" if ended else "before the first run"


def stage_order(parameters: dict[str, Any]) -> Callable[[str], int]:
    """Return the order of a collective's stages."""
    stages = list(UNMET)
    for step in _steps(parameters):
        stages += [
            f"{doing} {_label(*step)}" for doing in ("preparing", "warming up with", "measuring", "checking")
        ]
    return order_of([*stages, "leaving"])


def order_of(stages: Sequence[str]) -> Callable[[str], int]:
    """Return a function that says how far a rank is that is in this stage; -1 for a stage that is none."""
    return lambda stage: stages.index(stage) if stage in stages else -1


def patience(check: Check, node: Node, backend: str) -> dict[str, Any]:
    """Return how long ranks may make no progress, for run_children.

    What GPUs do takes no longer on a busy machine; how long processes take to start does.
    """
    usual_s = check.patience_s(node)
    if backend != "cuda":
        return {"patience_s": usual_s}
    gpu_s = PATIENCE * check.longest_s(node) + SLACK_S
    longer_s = dict.fromkeys(UNMET, usual_s) | dict.fromkeys(
        (MEETING, CONNECTING), max(gpu_s, LEAST_PATIENCE_S)
    )
    return {"patience_s": gpu_s, "longer_s": longer_s}


def run_ranks(
    check: Check,
    node: Node,
    ranks: list[tuple[str, int]],
    *,
    backend: str,
    sizes_bytes: list[int],
    environment: dict[str, str],
    collectives: tuple[str, ...] | None = None,
    algorithm: str = "",
    telemetry: Telemetry | None = None,
    pool: WorkerPool | None = None,
) -> TestResult:
    """Run one process for each (name, device) of `ranks` and judge what came back."""
    budget_s = node.budget_s
    ras = RasWitness() if backend == "cuda" else None
    with tempfile.TemporaryDirectory(prefix="temper-validation-") as directory:
        requests = [
            Request(
                name,
                check.function,
                backend,
                device=device,
                parameters={
                    "rank": rank,
                    "world_size": len(ranks),
                    "store": str(Path(directory) / "store"),
                    "timeout_s": budget_s * RANK_PATIENCE,
                    "collectives": collectives or node.plan.collectives,
                    "sizes_bytes": sizes_bytes,
                    "runs": node.plan.all_reduce_runs,
                    "at_most_s": node.plan.all_reduce_s,
                    "measure_s": SIZES_SHARE * budget_s,
                    "fits": True,
                    "nvls": algorithm == "nvls",
                    "ras": ras.address if ras else "",
                },
                environment=environment,
                reuse=pool is not None,
            )
            for rank, (name, device) in enumerate(ranks)
        ]
        tick = telemetry.tick if telemetry else None
        outcomes = run_children(
            requests,
            budget_s,
            together=True,
            **patience(check, node, backend),
            tick=tick,
            when_hung=ras.ask if ras else None,
            pool=pool,
        )
        if pool:
            pool.close()  # a process that has met its group cannot meet another one
    measurements: list[Measurement] = []
    details: dict[str, Any] = {}
    findings = name_the_culprit(outcomes, ras=ras)
    if left_out := outcomes[0].measured.details.get("left_out"):
        findings.append(finding("collective-too-slow", budget_s=budget_s, left_out=", ".join(left_out)))
    if all(outcome.measured.details.get("seconds") for outcome in outcomes):
        measurements, medians = combine(
            [outcome.measured.details["seconds"] for outcome in outcomes],
            outcomes[0].measured.details["attempts"],
            f"{algorithm}_" if algorithm else "",
        )
        details["rank_median_s"] = medians
    if settings := {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}:
        details["nccl_environment"] = settings
    return result(
        check,
        outcomes,
        measurements=measurements,
        findings=findings,
        details=details,
        telemetry=telemetry,
    )


class CpuAllReduce(Check):
    """gloo between processes over loopback; bus bandwidth.

    Beyond `quick` also all-gather, reduce-scatter and all-to-all.
    """

    id = "cpu_all_reduce"
    title = "gloo all-reduce between processes"
    place = 120
    scope = Scope.CPU
    needs = (TORCH,)
    passes = "every number is exact, on every rank"
    method = 2  # 2: how often each size runs depends on how long it takes
    headline = ("busbw_gb_s",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield CostStep("ranks", idle.gloo, len(idle.plan.collectives))

    def perform(self, node: Node) -> TestResult:
        """Reduce on this node."""
        return run_ranks(
            self,
            node,
            [(f"rank {rank}", 0) for rank in range(4 if node.cpus >= 4 else 2)],
            backend="cpu",
            sizes_bytes=[node.plan.cpu_all_reduce_bytes],
            environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )


class GpuAllReduce(Check):
    """NCCL over all GPUs of the node, with the node's own settings; bus bandwidth.

    64 MiB and the largest of 1 to 16 GiB that fits, beyond `quick` all sizes between, and all-gather,
    reduce-scatter and all-to-all.
    """

    id = "gpu_all_reduce"
    title = "NCCL all-reduce over the GPUs of the node"
    place = 270
    scope = Scope.ALL_GPUS
    needs: ClassVar[tuple[Need, ...]] = (TWO_GPUS, CUDA)
    passes = "every number is exact, on every rank"
    method = 2  # 2: how often each size runs depends on how long it takes
    headline = ("busbw_gb_s",)
    #: The algorithm that NCCL must use; empty: it chooses.
    algorithm: ClassVar[str] = ""

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        if self.algorithm:
            yield CostStep("start", idle.start)
            yield CostStep("contexts", idle.contexts)
        yield CostStep("NCCL", idle.communicator)
        plan = idle.plan
        sizes = len(plan.gpu_all_reduce_bytes) if plan.sweep else 2
        runs = sizes * (1 if self.algorithm else len(plan.collectives))
        yield CostStep("runs with warm-up and check", plan.all_reduce_s * 1.3, runs)
        yield CostStep("counters", idle.nvidia_smi)

    def perform(self, node: Node) -> TestResult:
        """Reduce on this node."""
        free = [
            gpu.memory_free_mib for gpu in getattr(node.smi, "gpus", ()) if gpu.memory_free_mib is not None
        ]
        room = MEMORY_SHARE * min(free, default=0) * (1 << 20)
        sizes_bytes = [size for size in node.plan.gpu_all_reduce_bytes if size <= room]
        if not sizes_bytes:
            return not_run(self, f"a GPU has only {min(free, default=0)} MiB of free memory")
        forced = {"NCCL_ALGO": self.algorithm} if self.algorithm else {}
        if self.algorithm:
            node.free_exclusive_gpu()
        return run_ranks(
            self,
            node,
            [(f"rank {gpu.index} (GPU {gpu.index})", gpu.index) for gpu in node.gpus],
            backend="cuda",
            # Latency and bandwidth: without a sweep the smallest and the largest.
            sizes_bytes=sizes_bytes if node.plan.sweep else sorted({sizes_bytes[0], sizes_bytes[-1]}),
            environment=CUDA_ENVIRONMENT | forced,
            # An algorithm by name is for the all-reduce: NVLS does not do all of the others.
            collectives=("all_reduce",) if self.algorithm else None,
            algorithm=self.algorithm.lower(),
            telemetry=watch(node),
            pool=None if self.algorithm else node.pool,
        )


class GpuAllReduceRing(GpuAllReduce):
    """The same all-reduce with `NCCL_ALGO=Ring`: what the links carry when no switch adds."""

    id = "gpu_all_reduce_ring"
    title = "NCCL all-reduce in rings over the GPUs of the node"
    place = 280
    plans = BEYOND_QUICK
    method = 1
    headline = ("ring_busbw_gb_s",)
    algorithm = "Ring"


class GpuAllReduceNvls(GpuAllReduceRing):
    """The same with `NCCL_ALGO=NVLS`, in which NVSwitches add.

    It tells a slow link from a switch that does not reduce; not run on GPUs whose driver knows no multicast.
    """

    id = "gpu_all_reduce_nvls"
    title = "NCCL all-reduce with NVLS over the GPUs of the node"
    place = 290
    needs = (*GpuAllReduce.needs, Need("NVSwitches that reduce"))
    headline = ("nvls_busbw_gb_s",)
    algorithm = "NVLS"
