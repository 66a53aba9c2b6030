"""What threads and clocks are tuned for: a training step, which is many small operations.

On a CPU each small operation waits for the last of its threads. With more threads than CPUs that one waits
for a CPU, while the others keep theirs busy with waiting: what a large matrix product barely shows costs a
step several times its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from validation.backends.protocol import Backend, Shape
from validation.backends.sampling import rate, repeated
from validation.checks.launch import on_device
from validation.checks.training import mixed_format
from validation.model.contract import Measured
from validation.model.plans import Timing
from validation.processes.child import Request

METRIC = "training_samples_s"


def train(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend.

    One step warms up, and none is measured again for its noise, which the pairs of a search even out: with
    far too many threads a step can take many seconds.
    """
    shape = Shape(**request.parameters["shape"])
    stage("making the model")
    way = mixed_format(backend) or "fp32"
    operation = backend.training(shape, way)

    def step(doing: str) -> float:
        stage(doing)
        return backend.seconds(operation, 1)[0]

    step("warming up")
    seconds = repeated(partial(step, "training"), Timing(**request.parameters["timing"]))
    return Measured(
        (rate(METRIC, operation.work, seconds, 1, conditions={"batch": shape.batch, "format": way}),)
    )


measure = on_device(train)
