"""How fast the node reads where its training data is."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from validation.backends import storage
from validation.backends.sampling import MOST_ATTEMPTS, calm, rate, repeated
from validation.checks.check import BEYOND_QUICK, Check, CostStep, IdleNode, Need, Scope, series
from validation.checks.launch import Stage
from validation.checks.measured import result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, Measurement, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.model.quantities import NOISY_SPREAD, number
from validation.processes.child import Request
from validation.processes.pool import run_children

THREADS = 8
#: The file that is written to and read from at random: in any plan no larger, and not written for longer.
MOST_BYTES, MOST_WRITE_S = 1 << 30, 10.0
#: Blocks that are compared with what was written, spread over the file, and for how long at most.
CHECKED_BLOCKS = 32
CHECK_S = 30.0
#: Where storage is slow, a sample is smaller, to take so long; where that does not do, nothing is measured
#: again. Slow storage is slow, and no test that hangs.
SAMPLE_S = 2.0


def on_path(
    work: Callable[[storage.Source, Path, Request, Stage], Measured],
) -> Callable[[Request, Stage], Measured]:
    """Return what a child runs: the work on the path of its request, or on a file of our own in it."""

    def measure(request: Request, stage: Stage) -> Measured:
        """Raise NotRunError where it cannot be done there."""
        parameters = request.parameters
        path = Path(parameters["path"])
        go_on = partial(stage, f"preparing a file in {path}")
        go_on()
        bounds = parameters["most_bytes"], parameters["write_s"]
        through = parameters.get("through_cache", False)
        try:
            with storage.opened(path, *bounds, go_on, through_cache=through) as source:
                return work(source, path, request, stage)
        except OSError as error:
            if reason := storage.why_full(path, error):
                raise NotRunError(reason) from error
            return Measured(findings=(finding("storage-error", path=path, error=error.strerror or error),))

    return measure


def read(source: storage.Source, path: Path, request: Request, stage: Stage) -> Measured:
    """Measure sequential reads in several threads and in one. Raises NotRunError, OSError."""
    floor_gb_s = request.parameters["floor_gb_s"]
    measurements = sequential("read", source.seconds, source, path, request, stage)
    wrong, checked_blocks = _compare(source, partial(stage, f"comparing what was read from {path}"))
    if wrong and source.has_changed:
        raise NotRunError(f"{path} was written to while it was read: name a file that nobody changes")
    findings = wrong_data(path, wrong, checked_blocks)
    findings += below_floor(measurements[0], path, floor_gb_s)
    if floor_gb_s is not None and measurements[0].value >= floor_gb_s and source.how == storage.UNKNOWN:
        findings.append(
            finding(
                "storage-cache-unknown",
                path=path,
                rate=number(measurements[0].value),
                threads=THREADS,
                floor=number(floor_gb_s),
            )
        )
    own = "a file of our own" if source.content else "the file that is there"
    said = {
        "read": own,
        "file_bytes": source.size_bytes,
        "checked_blocks": checked_blocks,
        "cache": source.how,
    }
    return Measured(tuple(measurements), tuple(findings), details=said)


def below_floor(measured: Measurement, path: Path, floor_gb_s: float | None) -> list[Finding]:
    """Return what the operator's floor says of a number; noise excuses, but is said."""
    if floor_gb_s is None or measured.value >= floor_gb_s:
        return []
    facts: dict[str, Any] = {
        "path": path,
        "rate": number(measured.value),
        "threads": THREADS,
        "floor": number(floor_gb_s),
    }
    if measured.spread > NOISY_SPREAD and measured.value * (1 + measured.spread) >= floor_gb_s:
        return [finding("storage-below-floor", "noisy", spread=measured.spread, **facts)]
    return [finding("storage-below-floor", "slow", **facts)]


def sequential(
    doing: str,
    take: Callable[..., float],
    source: storage.Source,
    path: Path,
    request: Request,
    stage: Stage,
) -> list[Measurement]:
    """Return the rates to `read` or `write` in several threads and in one. Raises OSError.

    `take` does so, and returns how long it took.
    """
    timing = Timing(**request.parameters["timing"])
    words, measurements = {"read": "reading from", "write": "writing to"}[doing], []
    with ThreadPoolExecutor(THREADS) as pool:
        for name, threads in ((f"storage_{doing}_gb_s", THREADS), (f"storage_{doing}_one_thread_gb_s", 1)):
            seconds_of = partial(take, pool, threads)
            go_on = partial(stage, f"{words} {path} in {threads} threads")
            section, sample_s = _section(source, seconds_of, threads, go_on)
            places = itertools.cycle(range(0, source.size_bytes // section * section, section))
            next(places)  # what was just taken

            once = partial(_once, seconds_of, places, section, go_on)
            most = MOST_ATTEMPTS if sample_s <= SAMPLE_S else 1
            seconds, attempts = calm(partial(repeated, once, timing), most)
            conditions: dict[str, int | str] = {"path": str(path), "threads": threads, "cache": source.how}
            measurements.append(rate(name, section, seconds, 1e9, None, conditions, attempts))
    return measurements


def _once(
    seconds_of: Callable[..., float], places: Iterator[int], section: int, go_on: Callable[[], None]
) -> float:
    go_on()
    return seconds_of(next(places), section, go_on)


def _section(
    source: storage.Source, seconds_of: Callable[..., float], threads: int, go_on: Callable[[], None]
) -> tuple[int, float]:
    """Return the bytes of one sample, and about how many seconds it takes. This also starts the threads."""
    most, first = min(storage.SECTION, source.size_bytes), threads * storage.BLOCK
    go_on()
    seconds = seconds_of(0, first, go_on)
    section = max(first, min(most, int(first * SAMPLE_S / seconds) // storage.BLOCK * storage.BLOCK))
    return section, seconds * section / first


def blocks_to_compare(source: storage.Source) -> list[int]:
    """Return blocks that are spread over the file."""
    blocks = source.size_bytes // storage.BLOCK
    return sorted({blocks * place // CHECKED_BLOCKS for place in range(CHECKED_BLOCKS)})


def wrong_data(path: Path, wrong: list[int], checked: int) -> list[Finding]:
    """Return the finding on blocks that are not what was written; none where all are."""
    if not wrong:
        return []
    size_mib, first = storage.BLOCK // storage.MIB, wrong[0] * storage.BLOCK
    facts: dict[str, Any] = {
        "path": path,
        "wrong": len(wrong),
        "checked": checked,
        "block_mib": size_mib,
        "first": first,
    }
    return [finding("storage-wrong-data", **facts)]


def _compare(source: storage.Source, go_on: Callable[[], None]) -> tuple[list[int], int]:
    """Return the blocks that are wrong, and how many there was time to look at: one at least."""
    deadline, wrong, count, blocks = time.monotonic() + CHECK_S, [], 0, blocks_to_compare(source)
    # From the middle: where there is no time for all, these are not all from the beginning.
    for block in sorted(blocks, key=lambda block: abs(block - blocks[len(blocks) // 2])):
        go_on()
        wrong += [block] if source.wrong(block) else []
        count += 1
        if time.monotonic() > deadline:
            break
    return sorted(wrong), count


measure = on_path(read)


def _why_no_path(node: Node) -> str | None:
    named = node.run_options.storage_paths
    return None if named else "no path was named (--storage, gpu_validation_storage_paths)"


class StorageCheck(Check):
    """A check of each path that the operator names, one after the other: they may share a disk or a link."""

    scope = Scope.PATHS
    needs: ClassVar[tuple[Need, ...]] = (Need("a path that the operator names", _why_no_path),)
    plans = BEYOND_QUICK

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes for one path."""
        yield CostStep("write", min(MOST_WRITE_S, idle.plan.storage_write_s))
        yield from series(idle.plan.cpu, 2)

    def parameters(self, node: Node) -> dict[str, Any]:
        """Return what the measurement is told besides the path and its timing."""
        return {
            "most_bytes": min(MOST_BYTES, node.plan.storage_bytes),
            "write_s": min(MOST_WRITE_S, node.plan.storage_write_s),
        }

    def perform(self, node: Node) -> TestResult:
        """Measure on this node."""
        outcomes = []
        for path in node.run_options.storage_paths:
            own = {"path": str(path), "timing": dataclasses.asdict(node.plan.cpu)}
            request = Request(str(path), self.function, "cpu", parameters=own | self.parameters(node))
            outcomes += run_children([request], node.budget_s, patience_s=self.patience_s(node))
        return result(self, outcomes)


class StorageRead(StorageCheck):
    """Sequential reads of 4 MiB in 8 threads and in one, of each path in `gpu_validation_storage_paths`.

    A path (`--storage`) puts this test into every plan and makes it required. A folder gets a file of our own
    without a name, gone when its process is; a file is only read. O_DIRECT where the file system has it, else
    pages are dropped from the cache first; the details say which. ZFS and FUSE keep a cache of their own all
    the same, and so do pages that somebody maps: there the details say `unknown`, and a floor that is reached
    is `storage-cache-unknown` (degraded). Slow storage is read in smaller samples. Devices, pipes, files
    below 32 MiB and files with holes are refused. What the storage itself caches is not seen through.
    """

    id = "storage_read"
    title = "sequential reads where the training data is"
    place = 310
    passes = (
        "blocks are what was written (of a file: the same twice), and no path is below "
        "`gpu_validation_storage_floor_gb_s` (`--storage-floor`)"
    )
    headline = ("storage_read_gb_s",)
    option = "storage_paths"
    required_if_asked = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes for one path."""
        yield CostStep("write", idle.plan.storage_write_s)
        yield from series(idle.plan.cpu, 2)

    def parameters(self, node: Node) -> dict[str, Any]:
        """Return what the measurement is told besides the path and its timing."""
        return {
            "most_bytes": node.plan.storage_bytes,
            "write_s": node.plan.storage_write_s,
            "floor_gb_s": node.run_options.storage_floor_gb_s,
        }
