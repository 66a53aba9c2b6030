"""A collective over a slow network: fewer sizes, on which all ranks agree, and never out of time."""

import dataclasses
import time

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import collective_request
from tests.unit.validation.scripted import ScriptedBackend, ScriptedOperation
from validation.checks import collectives

STAGES: list[str] = []


@dataclasses.dataclass
class SlowNetwork(ScriptedBackend):
    """A backend whose collectives carry 0.1 GB/s; another rank has so much less time left than this one."""

    behind_s: float = 0.0

    def collective(self, kind: str, size_bytes: int) -> ScriptedOperation:
        super().collective(kind, size_bytes)
        return ScriptedOperation(float(size_bytes), self.wrong, takes=size_bytes / 1e8)

    #: Of the rank that has least.
    least_free: int = 80 << 30

    def highest(self, value: float) -> float:
        if value == -self.free:
            return -self.least_free
        return value + self.behind_s if value < 0 else value


@each(
    (60.0, 0.0, [1 << 20, 1 << 26], ["all-reduce of 4096 MiB"]),
    (1e6, 0.0, [1 << 20, 1 << 26, 1 << 32], []),
    (60.0, 59.0, [1 << 20], ["all-reduce of 64 MiB", "all-reduce of 4096 MiB"]),
    (-1.0, 0.0, [1 << 20], ["all-reduce of 64 MiB", "all-reduce of 4096 MiB"]),
)
def test_sizes_that_a_slow_network_has_no_time_for_are_left_out_by_all_ranks_and_named(
    left_s: float, behind_s: float, measured: list[int], left_out: list[str]
) -> None:
    request = collective_request(sizes_bytes=[1 << 20, 1 << 26, 1 << 32], runs=5, measure_s=left_s)
    found = collectives.reduce(SlowNetwork(behind_s=behind_s), request, STAGES.append)
    assert list(found.details["seconds"]) == [f"all_reduce {size}" for size in measured]
    assert found.details.get("left_out", []) == left_out


def test_noisy_numbers_are_not_measured_again_when_time_is_up() -> None:
    request = collective_request(sizes_bytes=[64], runs=8, measure_s=-1.0)
    noisy = collectives.reduce(ScriptedBackend(run_seconds=[0.1, 0.9] * 40), request, STAGES.append)
    assert noisy.details["attempts"] == {"all_reduce 64": 1}


@each(["all_reduce"], ["all_reduce", "all_gather"])
def test_sizes_that_one_rank_has_no_memory_for_are_left_out_by_all_ranks_and_named(
    collectives_: list[str],
) -> None:
    """4096 MiB take 10 GiB with their copies; one rank has 9."""
    sizes = [1 << 20, 1 << 32]
    request = collective_request(collectives=collectives_, sizes_bytes=sizes, runs=5, measure_s=1e6)
    found = collectives.reduce(SlowNetwork(least_free=9 << 30), request, STAGES.append)
    assert list(found.details["seconds"]) == [f"{kind} {1 << 20}" for kind in collectives_]
    assert found.details["left_out"] == [f"{kind.replace('_', '-')} of 4096 MiB" for kind in collectives_]
    enough = collectives.reduce(SlowNetwork(least_free=11 << 30), request, STAGES.append)
    assert "left_out" not in enough.details


def test_the_time_in_which_the_ranks_meet_is_none_in_which_they_measure() -> None:
    now = [0.0]

    @dataclasses.dataclass
    class Late(SlowNetwork):
        def highest(self, value: float) -> float:
            # Another rank comes 300 s after this one: the first collective waits for it.
            now[0] = max(now[0], 300.0)
            return super().highest(value)

    request = collective_request(sizes_bytes=[1 << 20, 1 << 26], runs=5, measure_s=60.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        found = collectives.reduce(Late(), request, STAGES.append)
    assert list(found.details["seconds"]) == [f"all_reduce {1 << 20}", f"all_reduce {1 << 26}"]
