"""A profile of some training steps: where their time goes, and the trace for whoever wants to look at it."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.backends import traces
from validation.backends.protocol import Backend
from validation.checks.launch import on_device
from validation.checks.node import Node
from validation.checks.training import CpuTraining, GpuTraining, begin, mixed_format
from validation.model.contract import Measured
from validation.processes.child import Request

STEPS = 3
#: A larger trace is not kept, compressed as it is: a thousand times what three steps need is a mistake.
MOST_TRACE_BYTES = 32 << 20
#: Guides to profiling take a GPU for busy in which kernels run 70 to 80 % of the time.
BUSY, FAR_FROM_BUSY = 0.8, 0.7
#: Where the largest part of the rest goes, and what helps.
CAUSES = {
    "transfers": (
        "for {share:.0%} the GPU only copies",
        "keep host memory pinned, copy the next batch ahead on a stream of its own (non_blocking=True), and "
        "leave on the GPU what is there",
    ),
    "input": (
        "for {share:.0%} the GPU waits while the host loads a batch",
        "load the next batch while a step runs: pinned memory, copies with non_blocking=True, num_workers "
        "and prefetch_factor of the DataLoader (data_loading says what this node delivers)",
    ),
    "host": (
        "for {share:.0%} the GPU waits for the host to start kernels",
        "take a larger batch, capture the step (torch.compile with mode='reduce-overhead', or CUDA graphs), "
        "avoid .item() and printing in each step, and look at the CPU's governor and load",
    ),
}


def profile(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = begin(backend, request, stage)
    on_gpu = backend.name == "cuda"
    way = mixed_format(backend) or "fp32"
    stage(f"profiling {STEPS} training steps")
    content = backend.trace(shape, way, STEPS)
    stage("reading the trace")
    found = traces.shares(traces.events(content), on_gpu=on_gpu)
    if found is None or found.computing is None:
        recorder.find(
            "profile-empty", who=request.name, steps=STEPS, work="kernels" if on_gpu else "operators"
        )
    recorder.keep("computing_share", found.computing or 0 if found else 0)
    recorder.keep("loading_share", found.loading if found else 0)
    recorder.keep("idle_share", found.idle if found else 1)
    if on_gpu:
        recorder.keep("transfer_share", found.transfers if found else 0)
    details: dict[str, Any] = {"format": way, "steps": STEPS, "seconds": found.seconds if found else 0}
    if on_gpu and found and (text := advice(found)):
        details["advice"] = {"Time of a training step": [text]}
    if directory := request.parameters.get("traces"):
        name = f"gpu{request.device}" if on_gpu else "cpu"
        # In a profile of its own: what it notes beside takes the host longer, and would look like waiting.
        stage("profiling with memory and shapes")
        kept = backend.trace(shape, way, STEPS, detailed=True)
        details["trace"] = keep(kept, Path(directory, f"trace-{name}.json.gz"))
    return recorder.measured(details)


measure = on_device(profile)


def advice(found: traces.Shares) -> str:
    """Return why a GPU is not busy, with numbers, and what helps; "" for a busy one, or without kernels."""
    if found.computing is None or found.computing >= BUSY:
        return ""
    waits = {
        "transfers": found.only_transfers,
        "input": found.awaiting_data,
        "host": round(found.idle - found.awaiting_data, 4),
    }
    cause = max(waits, key=lambda one: waits[one])
    why, remedy = CAUSES[cause]
    far = "far " if found.computing < FAR_FROM_BUSY else ""
    return (
        f"kernels run {found.computing:.0%} of the time, {far}below {BUSY:.0%}; "
        f"{why.format(share=waits[cause])}: {remedy} (copies run {found.transfers:.0%} of the time, "
        f"{found.only_transfers:.0%} without a kernel)"
    )


def keep(content: bytes, path: Path) -> str:
    """Write a trace, compressed; where it is, or why it is not."""
    compressed = gzip.compress(content, 6, mtime=0)
    if len(compressed) > MOST_TRACE_BYTES:
        return f"not kept: {len(compressed) / 1e6:.0f} MB, more than {MOST_TRACE_BYTES / 1e6:.0f} MB"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name that nobody can guess: root would write through a link that waits there.
        descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(compressed)
            Path(new).replace(path)
        except OSError:
            Path(new).unlink()
            raise
    except OSError as error:
        return f"not kept: {error}"
    return str(path)


class CpuProfile(CpuTraining):
    """The same as `gpu_profile` on the CPU, with operators in place of kernels."""

    id = "cpu_profile"
    title = "a profile of training steps on the CPU"
    place = 350
    passes = "as `gpu_profile`"
    method = 2
    headline = ("computing_share",)
    option = "traces"
    timed = 0  # three steps, whatever the plan says

    def parameters(self, node: Node) -> dict[str, Any]:
        """Return where the traces go."""
        return {"traces": str(node.run_options.traces.absolute()) if node.run_options.traces else None}


class GpuProfile(GpuTraining, CpuProfile):
    """Three training steps under torch's profiler, each with a copy of its batch from pinned host memory.

    The parts of the time in which kernels run, data is loaded or copied, and the GPU is idle; below 80 % in
    kernels its details advise on what holds it up. `--traces DIR` or `gpu_validation_traces` keeps the Chrome
    traces, 32 MiB at most each, and puts the test into every plan (on the controller: `reports/traces/NODE/`,
    where the next run's replace them).
    """

    id = "gpu_profile"
    title = "a profile of training steps on every GPU"
    place = 355
    passes = "the trace shows work"
