"""A profile of some training steps: where their time goes, and the trace for whoever wants to look at it."""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.backends import traces
from validation.backends.protocol import Shape
from validation.checks.recorder import Recorder
from validation.checks.training import in_a_child, memory_of, on_each_gpu, on_the_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.node import Node
    from validation.model.contract import Measured, TestResult
    from validation.processes.child import Request

STEPS = 3
#: A larger trace is not kept, compressed as it is: a thousand times what three steps need is a mistake.
MOST_TRACE_BYTES = 32 << 20


def profile(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = Shape(**request.parameters["shape"]), Recorder(backend, request, stage)
    recorder.need(memory_of(shape))
    on_gpu = backend.name == "cuda"
    way = "bf16" if on_gpu and "bf16" in backend.dtypes() else "fp32"
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
    details: dict[str, Any] = {"format": way, "steps": STEPS, "seconds": found.seconds if found else 0}
    if directory := request.parameters.get("traces"):
        name = f"gpu{request.device}" if on_gpu else "cpu"
        details["trace"] = keep(content, Path(directory, f"trace-{name}.json.gz"))
    return recorder.measured(details)


measure = in_a_child(profile)


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


def _parameters(node: Node) -> dict[str, Any]:
    return {"traces": str(node.run_options.traces.absolute()) if node.run_options.traces else None}


class CpuProfile:
    """On the CPU: whether profiling works, and what Python costs between operators."""

    id = "cpu_profile"
    title = "a profile of training steps on the CPU"
    needs = "torch"
    method = 2
    headline: tuple[str, ...] = ("computing_share",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_the_cpu(self, node, f"{__name__}:measure", _parameters(node))


class GpuProfile:
    """On all GPUs at the same time."""

    id = "gpu_profile"
    title = "a profile of training steps on every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 2
    headline: tuple[str, ...] = ("computing_share",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_each_gpu(self, node, f"{__name__}:measure", _parameters(node))
