"""The GPUs' own memory: bandwidth, a pattern test, and copies from GPU to GPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from validation.backends.factory import make
from validation.backends.protocol import Backend, Operation, PeerLimitError
from validation.checks.check import BEYOND_QUICK, CUDA, TWO_GPUS, Check, CostStep, IdleNode, Scope, series
from validation.checks.launch import Recorder, on_device, on_each_gpu
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, failures, result, watch
from validation.checks.node import Node
from validation.model.contract import Measured, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import PLANS
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome, run_children

#: A GPU and the one that it copies to.
Pair = tuple[int, int]

#: Of the free memory, what the pattern test leaves to libraries.
PATTERN_SHARE = 0.9
#: Without NVSwitches: "each device can support a system-wide maximum of eight peer connections" (CUDA C++
#: programming guide, peer-to-peer memory access).
MOST_PEERS = 8
#: In the details of a GPU: the peers that it does not reach directly; those that had to be measured in
#: another process; and, in those of one process, those that it was refused.
BEYOND, APART, REFUSED = "through_host_memory_to", "in_another_process_to", "not_mapped_to"


def stream(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Bytes read and written count, as STREAM does."""
    parameters = request.parameters
    size_bytes, recorder = parameters["size_bytes"], Recorder(backend, request, stage)
    recorder.need(4 * size_bytes)
    operations: dict[str, tuple[int, Callable[[], Operation]]] = {
        "memory_copy_gb_s": (2, partial(backend.copy, "local", size_bytes)),
        "memory_triad_gb_s": (3, partial(backend.triad, size_bytes)),
    }
    for name, (moved, make_operation) in operations.items():
        stage(f"making the buffers of {name}")
        operation = make_operation()
        conditions: dict[str, int | str] = {"size_bytes": int(operation.work)}
        recorder.rate(name, operation, doing=f"measuring {name}", per_run=moved, conditions=conditions)
        recorder.check(operation, doing=f"checking {name}", case="data", what=name)
        del operation  # its memory is for the next one
    tested = min(parameters["pattern_bytes"], int(PATTERN_SHARE * backend.free_bytes()))
    recorder.check(
        backend.memory_pattern(tested),
        doing=f"writing a pattern to {tested / 1e9:.1f} GB and reading it",
        case="pattern",
        size_gb=tested / 1e9,
    )
    return recorder.measured({"pattern_bytes": tested})


measure = on_device(stream)


class GpuMemory(Check):
    """Copy and triad in each GPU's memory, as STREAM counts; then a pattern test.

    It writes a pattern, another one in each block, and its inverse, over up to 8 GB (`quick`) or 90 % of what
    is free.
    """

    id = "gpu_memory"
    title = "memory of every GPU: bandwidth and a pattern test"
    plans = tuple(PLANS)
    place = 220
    scope = Scope.EACH_GPU
    needs = (CUDA,)
    passes = "every word keeps what was written"
    method = 2  # 2: one warm-up for all
    headline = ("memory_triad_gb_s", "memory_copy_gb_s")

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes, in the processes of the tests before."""
        yield from series(idle.plan.gpu_copy, 2)
        yield CostStep(
            "pattern", min(idle.plan.gpu_pattern_bytes, idle.memory_bytes) * idle.pattern_s_gb / 1e9
        )
        yield CostStep("counters", idle.nvidia_smi)

    def perform(self, node: Node) -> TestResult:
        """Measure the GPUs of this node."""
        parameters = {
            "size_bytes": node.plan.gpu_copy_bytes,
            "timing": dataclasses.asdict(node.plan.gpu_copy),
            "pattern_bytes": node.plan.gpu_pattern_bytes,
        }
        return on_each_gpu(self, node, parameters)


def measure_peers(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: copies between all pairs of GPUs. Raises NotRunError."""

    def start(gpu: int) -> Backend:
        return make(request.backend, gpu, lambda what: stage(f"{what} on GPU {gpu}"))

    return exchange(start, request, stage)


def exchange(
    backend_of: Callable[[int], Backend], request: Request, stage: Callable[[str], None]
) -> Measured:
    """Return the measurement itself, on any backends: from each GPU to the peers that `rows` has for it."""
    rows = {}
    for gpu, peers in request.parameters["rows"]:
        parameters = request.parameters | {"peers": peers}
        row = dataclasses.replace(request, name=f"GPU {gpu}", device=gpu, parameters=parameters)
        try:
            rows[row.name] = send(backend_of(gpu), row, stage)
        except NotRunError as error:
            rows[row.name] = Measured(not_run=str(error))
    left_out = [f"{name}: {row.not_run}" for name, row in rows.items() if row.not_run]
    return Measured(
        measurements=tuple(one for row in rows.values() for one in row.measurements),
        findings=tuple(finding for row in rows.values() for finding in row.findings),
        not_run="; ".join(left_out) or None,
        details={name: row.details for name, row in rows.items() if row.details},
    )


def send(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    size_bytes, recorder = request.parameters["size_bytes"], Recorder(backend, request, stage)
    recorder.need(4 * size_bytes)
    refused = []
    for peer in request.parameters["peers"]:
        stage(f"making room on {request.name} and GPU {peer}")
        try:
            operation = backend.copy(f"peer_{peer}", size_bytes)
        except PeerLimitError:
            refused.append(peer)
            continue
        recorder.rate(
            "peer_gb_s",
            operation,
            doing=f"copying from {request.name} to GPU {peer}",
            conditions={"size_bytes": int(operation.work), "to": peer},
        )
        recorder.check(
            operation,
            doing=f"checking the copy from {request.name} to GPU {peer}",
            case="data",
            what=f"the copy to GPU {peer}",
        )
        del operation
    beyond = [peer for peer in request.parameters["peers"] if not backend.reaches(peer)]
    return recorder.measured({name: peers for name, peers in ((BEYOND, beyond), (REFUSED, refused)) if peers})


def rounds(gpus: list[int], most_peers: int) -> list[dict[int, list[int]]]:
    """Return the peers of each GPU, in rounds of one process in which none has more than `most_peers`.

    Whoever has been a peer stays one until the process ends.
    """
    if len(gpus) - 1 <= most_peers:
        return [{gpu: [other for other in gpus if other != gpu] for gpu in gpus}]
    half = (most_peers + 1) // 2
    blocks = [gpus[start : start + half] for start in range(0, len(gpus), half)]
    met: set[tuple[int, int]] = set()
    found = []
    for first, second in itertools.combinations(blocks, 2):
        members = first + second
        rows = {
            gpu: [other for other in members if other != gpu and (gpu, other) not in met] for gpu in members
        }
        met |= {(gpu, peer) for gpu, peers in rows.items() for peer in peers}
        found.append({gpu: peers for gpu, peers in rows.items() if peers})
    return found


def disjoint(pairs: Iterable[Pair], at_once: int) -> list[dict[int, list[int]]]:
    """Return the peers of each GPU, in rounds in which none has more than one.

    So many pairs in a round at most.
    """
    waiting = sorted(pairs)
    found = []
    while waiting:
        chosen: set[frozenset[int]] = set()
        for pair in map(frozenset, waiting):
            if len(chosen) < at_once and not any(pair & other for other in chosen):
                chosen.add(pair)
        found.append({gpu: [peer] for gpu, peer in waiting if frozenset((gpu, peer)) in chosen})
        waiting = [pair for pair in waiting if frozenset(pair) not in chosen]
    return found


class GpuPeers(Check):
    """Copies from each GPU to each other one, one pair at a time.

    Pairs whose copies go through host memory are named in the details, and so are those that took another
    process, because the driver maps fewer peers in one than there are.
    """

    id = "gpu_peers"
    title = "copies from GPU to GPU, every pair"
    place = 260
    scope = Scope.GPU_PAIRS
    needs = (TWO_GPUS, CUDA)
    plans = BEYOND_QUICK
    passes = "every element arrives"
    method = 2  # 2: all pairs from one process
    headline = ("peer_gb_s",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield CostStep("contexts", idle.contexts)
        yield from series(idle.plan.gpu_peer, idle.gpus - 1, idle.gpus)
        yield CostStep("compare", idle.compared, idle.gpus * (idle.gpus - 1))

    def perform(self, node: Node) -> TestResult:
        """Copy between the GPUs of this node."""
        telemetry = watch(node)
        gpus = [gpu.index for gpu in node.gpus]
        node.free_exclusive_gpu()
        most_peers = len(gpus) if node.on_switches else MOST_PEERS
        outcomes = [self._copy(node, rows, telemetry) for rows in rounds(gpus, most_peers)]
        # Some platforms allow fewer, to one GPU or to all of them together: with less in a process each time.
        apart = refused = _pairs(outcomes, REFUSED)
        for at_once in (len(gpus), 1):
            again = [self._copy(node, rows, telemetry) for rows in disjoint(refused, at_once)]
            refused = _pairs(again, REFUSED)
            outcomes += again if at_once > 1 else map(_without_room, again)
        apart = sorted(set(apart) - set(refused))
        details: dict[str, dict[str, list[int]]] = {}
        for name, pairs in ((BEYOND, _pairs(outcomes, BEYOND)), (APART, apart)):
            for gpu, peer in pairs:
                details.setdefault(f"GPU {gpu}", {}).setdefault(name, []).append(peer)
        outcomes = [
            dataclasses.replace(outcome, measured=dataclasses.replace(outcome.measured, details={}))
            for outcome in outcomes
        ]
        # Of which GPU it died, its stage says, and not the device of its request.
        findings = [dataclasses.replace(finding, device=None) for finding in failures(outcomes)]
        return result(self, outcomes, findings=findings, details=details, telemetry=telemetry)

    def _copy(self, node: Node, rows: dict[int, list[int]], telemetry: Telemetry) -> ProcessOutcome:
        """Copy from each of these GPUs to its peers.

        In one process: with one for each GPU, every GPU would get a context of each of them, which takes time
        and some hundred MB, and one that serves one process at a time would turn the others away.
        """
        request = Request(
            f"the process that uses GPUs {', '.join(map(str, sorted(rows)))}",
            f"{__name__}:measure_peers",
            "cuda",
            parameters={
                "size_bytes": node.plan.gpu_peer_bytes,
                "timing": dataclasses.asdict(node.plan.gpu_peer),
                "rows": [[gpu, peers] for gpu, peers in rows.items()],
            },
            environment=CUDA_ENVIRONMENT,
        )
        (outcome,) = run_children(
            [request], node.budget_s, patience_s=self.patience_s(node), tick=telemetry.tick
        )
        return outcome


def _pairs(outcomes: Iterable[ProcessOutcome], name: str) -> list[Pair]:
    """Return the pairs that the details of these processes have under this name."""
    return sorted(
        (gpu, peer)
        for outcome in outcomes
        for gpu, _ in outcome.request.parameters["rows"]
        for peer in outcome.measured.details.get(f"GPU {gpu}", {}).get(name, ())
    )


def _without_room(outcome: ProcessOutcome) -> ProcessOutcome:
    """Of a process that had one pair only: not run, where even that was refused."""
    if not (refused := _pairs([outcome], REFUSED)):
        return outcome
    pairs = " and ".join(f"GPU {gpu} to GPU {peer}" for gpu, peer in refused)
    reason = (
        f"the driver does not map {pairs}, though this process has no other peers (cudaErrorTooManyPeers): "
        "other processes may have as many as there can be"
    )
    said = "; ".join(filter(None, (outcome.measured.not_run, reason)))
    return dataclasses.replace(outcome, measured=dataclasses.replace(outcome.measured, not_run=said))
