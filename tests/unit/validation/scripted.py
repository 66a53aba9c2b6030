"""A backend without a device: it says what a test tells it to, so that every path can be driven."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from validation.backends.protocol import LimitError, PeerLimitError, WorkerError
from validation.model.not_run import NotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from validation.backends.kernels import Kernel
    from validation.backends.protocol import ImageShape, Operation, Piece, Shape, Training
    from validation.model.shapes import MatmulShape


@dataclass
class ScriptedOperation:
    """An operation that stands for `work` and comes out as wrong as it is told."""

    work: float
    wrong: float
    digests: list[str] = field(default_factory=lambda: ["same"])
    takes: float | None = None
    falls: float = 0.05
    steps: int = 100
    skipped: int = 0

    def fall(self) -> float:
        return self.falls

    def error(self) -> float:
        return self.wrong

    def digest(self) -> str:
        return self.digests.pop(0) if len(self.digests) > 1 else self.digests[0]


@dataclass
class ScriptedLoading:
    """Batches that take so long and come out so wrong; its workers die after so many, with these words."""

    work: float
    batch_s: float
    wrong: float
    dies_after: int | None
    words: str
    closed: bool = False

    def take(self, batches: int, go_on: Callable[[], None]) -> float:
        go_on()
        if self.dies_after is not None:
            self.dies_after -= batches
            if self.dies_after < 0:
                raise WorkerError(self.words)
        return self.batch_s * batches

    def error(self) -> float:
        return self.wrong

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedCheckpoint:
    """A checkpoint of 4 MB that takes 0.01 s to save and 0.004 s to load."""

    damage: Exception | None
    size_bytes: int = 4_000_000

    def save(self, descriptor: int, go_on: Callable[[], None]) -> float:
        os.pwrite(descriptor, bytes(self.size_bytes), 0)
        os.fsync(descriptor)
        go_on()
        return 0.01

    def load(self, descriptor: int, go_on: Callable[[], None]) -> float:
        go_on()
        if self.damage:
            raise self.damage
        return 0.004


@dataclass
class ScriptedBackend:
    """Each run takes the next of `run_seconds`, the last for ever; `wrong` is every operation's error."""

    name: str = "cuda"
    run_seconds: list[float] = field(default_factory=lambda: [0.5])
    wrong: float = 0.0
    formats: tuple[str, ...] = ("fp32", "tf32", "fp16", "bf16")
    free: int = 80 << 30
    digests: list[str] = field(default_factory=lambda: ["same"])
    multicast: bool = True
    beyond: tuple[int, ...] = ()
    #: So many peers may be mapped, if that is limited.
    most_peers: int | None = None
    calls: list[str] = field(default_factory=list)
    #: Seconds of a training step, by the way in which it is run.
    steps: dict[str, float] = field(default_factory=dict)
    tensor_cores: bool = True
    #: By which part the loss falls, and how many steps are skipped, by the way.
    falls: dict[str, float] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)
    #: What loading a checkpoint raises.
    saved: Exception | None = None
    #: What the host takes to start a training step.
    launch_s: float = 0.0
    #: What each peak_bytes() says, one after the other.
    peaks: list[int] = field(default_factory=list)
    #: What a trace has.
    events: list[dict[str, Any]] = field(default_factory=list)
    #: The trace as it is, if it has none of these.
    written: bytes | None = None
    #: Seconds of a batch by the number of workers; after how many batches they die, and what they say then.
    batches: dict[int, float] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    last_words: str = "DataLoader worker (pid 7) is killed by signal: Killed."
    loadings: list[ScriptedLoading] = field(default_factory=list)
    #: Seconds of a batch of files by workers, prefetch_factor, and whether workers stay; else as `batches`.
    files: dict[tuple[int, int, bool], float] = field(default_factory=dict)
    #: So many processes may be started.
    most_workers: int = 1000
    #: The loss of a training step in try_step(), by its batch; the largest batch is the last that fits.
    losses: dict[int, float] = field(default_factory=dict)
    #: Why weights cannot be in shards.
    sharding_fails: str = ""
    #: After so many tries only so large a batch still fits.
    exhausted_after: int | None = None
    still_fits: int = 0
    #: With a larger batch than this memory runs out while a step is timed.
    goes_on: int | None = None

    def seconds(
        self, operation: Operation, count: int, step: Callable[[], None] | None = None
    ) -> list[float]:
        assert operation.work
        if step:
            for _ in range(2 * count):
                step()
        self.calls.append(f"seconds {count}")
        assert isinstance(operation, ScriptedOperation)
        if self.goes_on is not None and operation.work > self.goes_on:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if operation.takes is not None:
            return [operation.takes] * count
        times = []
        for _ in range(count):
            times.append(self.run_seconds[0])
            if len(self.run_seconds) > 1:
                self.run_seconds.pop(0)
        return times

    def dtypes(self) -> tuple[str, ...]:
        return self.formats

    def software(self) -> dict[str, int | str]:
        return {"torch": "2.13.0", "cublas": "13.1.0"}

    def free_bytes(self) -> int:
        return self.free

    def matmul(self, dtype: str, shape: MatmulShape, *, cold: bool = False) -> ScriptedOperation:
        self.calls.append(f"matmul {dtype} {shape}{' cold' if cold else ''}")
        return ScriptedOperation(shape.flop, self.wrong, list(self.digests))

    def copy(self, direction: str, size_bytes: int) -> ScriptedOperation:
        if direction.startswith("peer_") and self.calls.count("mapped") == self.most_peers:
            raise PeerLimitError("CUDA error: peer mapping resources exhausted")
        self.calls += [f"copy {direction}", *(["mapped"] if direction.startswith("peer_") else [])]
        return ScriptedOperation(float(size_bytes), self.wrong)

    def reaches(self, peer: int) -> bool:
        return peer not in self.beyond

    def triad(self, size_bytes: int) -> ScriptedOperation:
        self.calls.append("triad")
        return ScriptedOperation(float(size_bytes), self.wrong)

    def memory_pattern(self, size_bytes: int) -> ScriptedOperation:
        self.calls.append(f"pattern of {size_bytes}")
        return ScriptedOperation(float(size_bytes), self.wrong)

    def training(self, shape: Shape, way: str) -> ScriptedOperation:
        self.calls.append(f"training {way}")
        return ScriptedOperation(
            float(shape.batch),
            self.wrong,
            takes=self.steps.get(way),
            falls=self.falls.get(way, 0.05),
            skipped=self.skips.get(way, 0),
        )

    def first_steps(self, make_step: Callable[[int], Any], batch: int) -> tuple[ScriptedOperation, int]:
        make_step(batch)
        return ScriptedOperation(float(batch), self.wrong), self.peaks.pop(0)

    def parallel_training(self, shape: Shape, way: str) -> ScriptedOperation:
        self.calls.append(f"parallel training {way}")
        return ScriptedOperation(float(shape.batch), self.wrong, takes=self.steps.get("parallel"))

    def sharded_training(self, shape: Shape, way: str) -> ScriptedOperation:
        self.calls.append(f"sharded training {way}")
        if self.sharding_fails:
            raise NotRunError(self.sharding_fails)
        return ScriptedOperation(float(shape.batch), self.wrong, takes=self.steps.get("sharded"))

    def peak_with_its_making(self, make: Callable[[], Operation]) -> int:
        make()
        return self.peaks.pop(0)

    def convolution(
        self, images: ImageShape, way: str, *, channels_last: bool, autotuned: bool
    ) -> ScriptedOperation:
        layout = "channels_last" if channels_last else "contiguous"
        self.calls.append(f"convolution {layout}{' autotuned' if autotuned else ''} in {way}")
        name = "autotuned" if autotuned else layout
        operation = ScriptedOperation(float(images.batch), self.wrong, takes=self.steps.get(name))
        operation.falls = self.falls.get(name, 0.05)
        return operation

    def checkpoint(self, shape: Shape) -> ScriptedCheckpoint:
        self.calls.append(f"checkpoint of {shape.layers} x {shape.width}")
        return ScriptedCheckpoint(self.saved)

    def kernels(self) -> Iterator[Kernel]:
        """None: tests of them have torch."""
        return iter(())

    def has_tensor_cores(self) -> bool:
        return self.tensor_cores

    def launch_seconds(self, operation: Training) -> float:
        assert operation.work
        return self.launch_s

    def peak_bytes(self, operation: Operation) -> int:
        assert operation.work
        return self.peaks.pop(0)

    def limit_memory(self, size_bytes: int) -> None:
        self.calls.append(f"limit {size_bytes}")

    def try_step(self, shape: Shape, way: str) -> float | None:
        self.calls.append(f"try {shape.batch} in {way}")
        tries = sum(call.startswith("try ") for call in self.calls)
        exhausted = tries > (self.exhausted_after or tries)
        if shape.batch > (self.still_fits if exhausted else max(self.losses)):
            return None
        return self.losses.get(shape.batch, 1.0)

    def trace(self, shape: Shape, way: str, steps: int, *, detailed: bool = False) -> bytes:
        self.calls.append(f"{'detailed ' if detailed else ''}trace {steps} in {way}")
        return json.dumps({"traceEvents": self.events}).encode() if self.written is None else self.written

    def loading(self, workers: int, *, pinned: bool) -> ScriptedLoading:
        if workers > self.most_workers:
            raise LimitError("no more can be started: Resource temporarily unavailable")
        batch_s = self.batches[workers] / (2 if pinned else 1)
        self.loadings.append(
            ScriptedLoading(32, batch_s, self.wrong, self.deaths.get(workers), self.last_words)
        )
        return self.loadings[-1]

    def file_loading(
        self, pieces: Sequence[Piece], workers: int, *, prefetch: int, persistent: bool, batches: int
    ) -> ScriptedLoading:
        self.calls.append(f"files {workers} {prefetch} {persistent}")
        if workers > self.most_workers:
            raise LimitError("no more can be started: Resource temporarily unavailable")
        batch_s = self.files.get((workers, prefetch, persistent), self.batches.get(workers, 1.0))
        loading = ScriptedLoading(32, batch_s, self.wrong, self.deaths.get(workers), self.last_words)
        self.loadings.append(loading)
        return loading

    def shared_bytes(self, workers: int) -> int:
        return 100 * workers

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        self.calls.append(f"join {rank} of {world_size} at {store} for {timeout_s:.0f} s")

    def barrier(self) -> None:
        self.calls.append("barrier")

    def highest(self, value: float) -> float:
        return value

    def has_multicast(self) -> bool:
        return self.multicast

    def collective(self, kind: str, size_bytes: int) -> ScriptedOperation:
        self.calls.append(f"{kind} {size_bytes}")
        return ScriptedOperation(float(size_bytes), self.wrong)
