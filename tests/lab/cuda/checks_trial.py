"""The checks that train, on a model that a host can train; each in a process of its own, as in the payload.

It prints JSON. The folder that it is given gets the trace.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))  # the checkout

from validation.backends.protocol import Shape
from validation.checks.registry import CHECKS
from validation.model.contract import encode
from validation.model.plans import Timing
from validation.processes.child import Request
from validation.processes.pool import run_children

SMALL = Shape(layers=2, width=64, heads=2, tokens=16, batch=8)
TIMING = Timing(warm_up_s=0.01, measure_s=0.05, least=3)
TESTS = ("gpu_amp", "gpu_step_memory", "gpu_batch", "gpu_profile")
BUDGET_S = 300


def main() -> None:
    """One after the other."""
    shared = {
        "shape": dataclasses.asdict(SMALL),
        "timing": dataclasses.asdict(TIMING),
        "ways": ["fp32", "tf32", "bf16"],
        "traces": sys.argv[1],
    }
    found = {}
    for test in TESTS:
        request = Request("GPU 0", CHECKS[test].function, "cuda", parameters=shared)
        (outcome,) = run_children([request], BUDGET_S)
        found[test] = {
            "ending": outcome.ending,
            "problem": outcome.problem,
            **encode(outcome.measured),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
