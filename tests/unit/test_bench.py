"""The bench of the payload, with shapes that take no time: on a GPU it is started by tools/record_gpu.py."""

import pytest

from tests.bench.payload import ALL_REDUCE, COPY, MATMUL, OPERATION, run
from tests.unit.needs import TORCH_PYTHON, needs_torch

ROUNDS = 2
pytestmark = [pytest.mark.component, needs_torch]


@pytest.mark.parametrize(
    "operation",
    [
        MATMUL.format(dtype="fp32", kind="float32", size=16),
        pytest.param(
            COPY.format(direction="local", size_bytes=4096, places=[{}, {}]), marks=pytest.mark.nightly
        ),
    ],
)
def test_operation_is_timed_on_both_sides(operation: str) -> None:
    program = OPERATION.format(device="cpu", rounds=ROUNDS, operation=operation, warm_up_s=0)
    (pairs,) = run(TORCH_PYTHON, program, [[]])
    assert [[len(times) for times in sides] for sides in pairs] == [[5, 5]] * ROUNDS


@pytest.mark.nightly
def test_all_reduce_is_timed_on_both_ranks(tmp_path: object) -> None:
    program = ALL_REDUCE.format(size_bytes=4096, rounds=ROUNDS)
    ranks = run(TORCH_PYTHON, program, [[rank, f"{tmp_path}/store"] for rank in ("0", "1")])
    counted = [[[len(times) for times in sides] for sides in pairs] for pairs in ranks]
    assert counted == [[[5, 5]] * ROUNDS] * 2
