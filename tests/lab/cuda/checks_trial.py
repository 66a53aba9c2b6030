"""The checks that train, on models that a host can train; each in a process of its own, as in the payload.

It prints JSON. The folder that it is given gets the trace; the names after it are the checks.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))  # the checkout

from validation.backends.protocol import MIXED, ImageShape, Shape
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.checks.registry import CHECKS
from validation.model.contract import encode
from validation.model.plans import Timing
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome, run_children

SMALL = Shape(layers=2, width=64, heads=2, tokens=16, batch=8)
IMAGES = ImageShape(width=4, edge=32, batch=8)
TIMING = Timing(warm_up_s=0.01, measure_s=0.05, least=3)
PARALLEL, RANKS = "gpu_parallel_training", 2
#: By the clock, which tells nothing on a busy machine: the kernel ends what uses too much CPU (machine.py).
BUDGET_S = 3600


def main() -> None:
    """One after the other."""
    folder, *tests = sys.argv[1:]
    shared = {
        "shape": dataclasses.asdict(SMALL),
        "images": dataclasses.asdict(IMAGES),
        "timing": dataclasses.asdict(TIMING),
        "ways": ["fp32", "tf32", *MIXED],
        "traces": folder,
    }
    found = {}
    for test in tests:
        outcomes = parallel(shared) if test == PARALLEL else [alone(test, shared)]
        found[test] = [
            {"ending": outcome.ending, "problem": outcome.problem, **encode(outcome.measured)}
            for outcome in outcomes
        ]
    print(json.dumps(found))


def alone(test: str, shared: dict[str, Any]) -> ProcessOutcome:
    """A check of one GPU."""
    request = Request("GPU 0", CHECKS[test].function, "cuda", parameters=shared)
    (outcome,) = run_children([request], BUDGET_S)
    return outcome


def parallel(shared: dict[str, Any]) -> list[ProcessOutcome]:
    """The check that trains on several GPUs, a rank on each."""
    with tempfile.TemporaryDirectory() as directory:
        group = {"world_size": RANKS, "store": f"{directory}/store", "timeout_s": BUDGET_S}
        requests = [
            Request(
                f"rank {rank}",
                CHECKS[PARALLEL].function,
                "cuda",
                device=rank,
                parameters=shared | group | {"rank": rank},
                environment=CUDA_ENVIRONMENT,
            )
            for rank in range(RANKS)
        ]
        return run_children(requests, BUDGET_S, together=True)


if __name__ == "__main__":
    main()
