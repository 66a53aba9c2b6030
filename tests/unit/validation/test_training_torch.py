"""The training-shaped checks with the torch that nodes get: real steps, and what is wrong is found."""

from __future__ import annotations

import pytest

from tests.unit.validation.test_torch import PYTHON, there

pytestmark = pytest.mark.skipif(not PYTHON, reason="TEMPER_PAYLOAD_PYTHON names no Python with torch")

RUN = """
    import dataclasses
    from validation.backends import Shape
    from validation.checks import Node, training
    from validation.checks.registry import CHECKS
    from validation.contract import encode
    from validation.expectations import Expectation
    from validation.measure import Timing
    from validation.plans import PLANS

    training.CPU_SHAPE = Shape(layers=2, width=64, heads=2, tokens=32, batch=8)
    plan = dataclasses.replace(PLANS["quick"], cpu=Timing(0.05, 0.1))
    node = Node(plan, Expectation())
"""


def test_a_cpu_trains_the_same_in_mixed_precision() -> None:
    found = there(RUN + "    answer = encode(CHECKS['cpu_amp'].run(node))")
    assert (found["state"], found["findings"]) == ("pass", [])
    names = [measurement["name"] for measurement in found["measurements"]]
    assert names == ["fp32_training_samples_s", "bf16_training_samples_s"]
    assert found["details"]["the CPU"]["bf16_gain_over"]["fp32"] > 0


STEP = """
    import torch
    from validation.backends import Shape
    from validation.backends.training import TrainingStep
    cpu, shape = torch.device("cpu"), Shape(layers=2, width=64, heads=2, tokens=32, batch=8)
"""


def test_losses_and_gradients_of_every_way_are_those_of_plain_fp32_up_to_rounding() -> None:
    fp32, bf16, accumulated, checkpointed = there(
        STEP
        + """
    ways = ("fp32", "bf16", "accumulated", "checkpointed")
    answer = [TrainingStep(cpu, shape, way).error() for way in ways]
    """
    )
    assert fp32 == 0
    assert 0 < bf16 < 1e-2
    assert 0 <= accumulated < 1e-5
    assert 0 <= checkpointed < 1e-5


@pytest.mark.parametrize(
    ("damage", "error"), [("total * float('nan')", "nan"), ("total + 1", "large"), ("total", "small")]
)
def test_losses_that_are_wrong_are_seen(damage: str, error: str) -> None:
    found = there(
        STEP
        + f"""
    class Damaged(TrainingStep):
        def step(self, batch, target):
            total = super().step(batch, target)
            return {damage} if self.way == "bf16" else total

    error = Damaged(cpu, shape, "bf16").error()
    answer = "nan" if error != error else "large" if error > 0.1 else "small"
    """
    )
    assert found == error
