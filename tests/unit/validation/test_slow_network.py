"""A collective over a slow network: fewer sizes, on which all ranks agree, and never out of time."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from tests.unit.validation.scripted import ScriptedBackend, ScriptedOperation
from validation.checks import collectives
from validation.child import Request

STAGES: list[str] = []


@dataclasses.dataclass
class SlowNetwork(ScriptedBackend):
    """A backend whose collectives carry 0.1 GB/s; another rank has so much less time left than this one."""

    behind_s: float = 0.0

    def collective(self, kind: str, size_bytes: int) -> ScriptedOperation:
        super().collective(kind, size_bytes)
        return ScriptedOperation(float(size_bytes), self.wrong, takes=size_bytes / 1e8)

    def highest(self, value: float) -> float:
        return value + self.behind_s if value < 0 else value


@pytest.mark.parametrize(
    ("left_s", "behind_s", "measured", "left_out"),
    [
        (60.0, 0.0, [1 << 20, 1 << 26], ["all-reduce of 4096 MiB"]),
        (1e6, 0.0, [1 << 20, 1 << 26, 1 << 32], []),
        (60.0, 59.0, [1 << 20], ["all-reduce of 64 MiB", "all-reduce of 4096 MiB"]),
        (-1.0, 0.0, [1 << 20], ["all-reduce of 64 MiB", "all-reduce of 4096 MiB"]),
    ],
)
def test_sizes_that_a_slow_network_has_no_time_for_are_left_out_by_all_ranks_and_named(
    left_s: float, behind_s: float, measured: list[int], left_out: list[str]
) -> None:
    parameters: dict[str, Any] = {
        "rank": 0,
        "world_size": 2,
        "store": "s",
        "timeout_s": 9,
        "collectives": ["all_reduce"],
        "sizes_bytes": [1 << 20, 1 << 26, 1 << 32],
        "runs": 5,
        "until": time.monotonic() + left_s,
    }
    request = Request("", "", "cpu", parameters=parameters)
    found = collectives.reduce(SlowNetwork(behind_s=behind_s), request, STAGES.append)
    assert list(found.details["seconds"]) == [f"all_reduce {size}" for size in measured]
    assert found.details.get("left_out", []) == left_out


def test_noisy_numbers_are_not_measured_again_when_time_is_up() -> None:
    parameters: dict[str, Any] = {
        "rank": 0,
        "world_size": 2,
        "store": "s",
        "timeout_s": 9,
        "collectives": ["all_reduce"],
    }
    parameters |= {"sizes_bytes": [64], "runs": 8, "until": time.monotonic() - 1}
    request = Request("", "", "cpu", parameters=parameters)
    noisy = collectives.reduce(ScriptedBackend(run_seconds=[0.1, 0.9] * 40), request, STAGES.append)
    assert noisy.details["attempts"] == {"all_reduce 64": 1}
