"""The child's side of a batch search: one batch of a step of the user's own, tried and timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from validation.backends.factory import make
from validation.backends.protocol import Backend
from validation.backends.sampling import rate, times
from validation.jobs.own_function import OwnFunction
from validation.model.contract import Measured, decode
from validation.model.not_run import out_of_memory
from validation.model.plans import Timing
from validation.processes.child import Request

#: Of the free memory of a GPU, and of the host for a CPU, what a search takes unless it is told.
SHARES = {"cuda": 0.9, "cpu": 0.5}
RATE, MEMORY = "samples_s", "peak_gb"


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: one batch. Details have the budget, and `why` where it does not fit. Raises NotRunError."""
    # The job's own settings of CUDA and of torch's allocator hold here, too.
    backend = make(request.backend, request.device, stage, own_environment=True)
    budget = request.parameters["budget_bytes"]
    if budget is None:
        budget = int(SHARES[request.backend] * backend.free_bytes())
    details = {"budget_bytes": budget}
    try:
        return _measured(backend, budget, request, stage, details)
    except (RuntimeError, MemoryError) as error:
        if not (words := out_of_memory(error)):
            raise
        return Measured(details=details | {"why": words})


def _measured(
    backend: Backend, budget: int, request: Request, stage: Callable[[str], None], details: dict[str, int]
) -> Measured:
    function = decode(OwnFunction, request.parameters["function"])
    stage(f"loading {function.file or function.module}")
    make_step = function.load()
    batch = request.parameters["batch"]
    stage(f"the first steps with a batch of {batch}")
    backend.limit_memory(budget)
    step, peak_bytes = backend.first_steps(make_step, batch)
    timing = Timing(**request.parameters["timing"])
    # Two steps that fit prove no third: memory fragments, so that it may run out here, too.
    seconds, attempts = times(backend, step, timing, partial(stage, f"timing a batch of {batch}"))
    found = rate(RATE, step.work, seconds, 1, attempts=attempts)
    return Measured((found,), details=details | {MEMORY: round(peak_bytes / 1e9, 3)})
