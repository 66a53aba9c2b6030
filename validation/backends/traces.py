"""What a Chrome trace of training steps says, in numbers: where the time went."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from validation.model.not_run import NotRunError

#: How the steps of a trace are marked.
LOADING, STEP = "data loading", "training step"
#: What torch's profiler calls the work of a GPU, and of it what computes; and the operators of a CPU.
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
KERNELS = "kernel"
TRANSFERS = "gpu_memcpy"
OPERATORS = "cpu_op"


@dataclass(frozen=True)
class Shares:
    """Parts of the time from the first step to the end of the last work; `computing` is None for no work.

    Of a GPU also: `transfers`, in which copies run to or from it; `only_transfers`, in which no kernel runs
    beside them; and `awaiting_data`, in which it is idle while the host loads a batch.
    """

    computing: float | None
    loading: float
    idle: float
    seconds: float
    transfers: float = 0.0
    only_transfers: float = 0.0
    awaiting_data: float = 0.0


def events(content: bytes) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace.

    Raises NotRunError for what is none, as where a disk became full.
    """
    try:
        found: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotRunError(f"torch's profiler wrote a trace that cannot be read: {error!r}") from error
    return found


def shares(events: Iterable[dict[str, Any]], *, on_gpu: bool) -> Shares | None:
    """Return where the time of the marked steps went; None for a trace without any.

    On a GPU computing is time in which some kernel runs, and idle that in which it does nothing at all; on a
    CPU they are time in operators, and outside of them. Work of several streams at once counts once.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event.get("ph") == "X":
            span = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            spans.setdefault(str(event.get("cat")), []).append(span)
            if event.get("cat") == "user_annotation":
                spans.setdefault(str(event["name"]), []).append(span)
    marked = spans.get(LOADING, []) + spans.get(STEP, [])
    if not marked:
        return None
    work = [span for kind in (GPU_WORK if on_gpu else (OPERATORS,)) for span in spans.get(kind, [])]
    computing = spans.get(KERNELS if on_gpu else OPERATORS, [])
    start, end = min(marked)[0], max(end for _, end in marked + work)
    whole = end - start

    def share(some: list[tuple[float, float]]) -> float:
        covered = _covered([(max(first, start), last) for first, last in some if last > start])
        return round(covered / whole, 4)

    loading, transfers = spans.get(LOADING, []), spans.get(TRANSFERS, []) if on_gpu else []
    found = Shares(
        computing=share(computing) if computing else None,
        loading=share(loading),
        idle=round(1 - share(work), 4),
        seconds=whole / 1e6,
    )
    if not on_gpu:
        return found
    return dataclasses.replace(
        found,
        transfers=share(transfers),
        only_transfers=round(share(computing + transfers) - share(computing), 4),
        awaiting_data=round(share(work + loading) - share(work), 4),
    )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length that spans cover together."""
    length, reached = 0.0, float("-inf")
    for first, last in sorted(spans):
        length += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return length
