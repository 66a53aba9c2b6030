"""The training-shaped checks on a scripted backend: every number and every finding."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.validation.samples import node
from tests.unit.validation.scripted import ScriptedBackend
from validation.backends import NotRunError
from validation.checks import precision, step_memory
from validation.checks.registry import CHECKS
from validation.child import Request
from validation.comparison import is_rate
from validation.contract import State

TIMING = {"warm_up_s": 1.0, "measure_s": 5.0, "least": 5, "most": 1000}
SHAPE = {"layers": 2, "width": 64, "heads": 2, "tokens": 16, "batch": 8}
STEPS = {"fp32": 0.8, "tf32": 0.4, "bf16": 0.2}


def ignore(_stage: str) -> None:
    """Nobody listens."""


def request(backend: str = "cuda", **parameters: Any) -> Request:
    shared = {"shape": SHAPE, "timing": TIMING}
    name, device = ("GPU 3", 3) if backend == "cuda" else ("the CPU", 0)
    return Request(name, "", backend, device, parameters=shared | parameters)


def amp(backend: ScriptedBackend) -> Any:
    return precision.compare(backend, request(backend.name, ways=["fp32", "tf32", "bf16"]), ignore)


@pytest.mark.parametrize("test", [check for check in CHECKS if check.startswith("gpu_")])
def test_on_a_node_without_a_gpu_nothing_that_needs_one_is_run(test: str) -> None:
    result = CHECKS[test].run(node(pci_gpus=()))
    assert (result.state, result.measurements) == (State.NOT_RUN, ())


@pytest.mark.parametrize("test", ["cpu_amp", "cpu_step_memory"])
def test_without_torch_nothing_is_trained(test: str) -> None:
    result = CHECKS[test].run(node(torch=None))
    assert result.state is State.NOT_RUN
    assert result.reason.startswith("torch is not installed for")


def test_mixed_precision_is_compared_with_every_other_format() -> None:
    measured = amp(ScriptedBackend(steps=STEPS))
    assert [(m.name, m.value, m.device) for m in measured.measurements] == [
        ("fp32_training_samples_s", 10.0, 3),
        ("tf32_training_samples_s", 20.0, 3),
        ("bf16_training_samples_s", 40.0, 3),
    ]
    assert measured.findings == ()
    assert measured.details == {"bf16_gain_over": {"fp32": 4.0, "tf32": 2.0}}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.1])
def test_losses_that_are_none_or_far_from_those_of_full_precision_fail(wrong: float) -> None:
    measured = amp(ScriptedBackend(steps=STEPS, wrong=wrong))
    assert {(f.code, f.state, f.device) for f in measured.findings} == {("wrong-result", State.FAIL, 3)}
    assert len(measured.findings) == 3


def test_mixed_precision_that_is_slower_on_a_gpu_is_degraded() -> None:
    measured = amp(ScriptedBackend(steps=STEPS | {"bf16": 0.5}))
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("amp-no-gain", State.DEGRADED)
    assert "16.0 samples/s in bf16, 20.0 in tf32" in finding.text


def test_mixed_precision_that_is_slower_on_a_cpu_is_no_fault() -> None:
    assert amp(ScriptedBackend("cpu", steps=STEPS | {"bf16": 5.0})).findings == ()


def test_a_gpu_without_bf16_is_not_run() -> None:
    with pytest.raises(NotRunError, match="does not compute in bf16"):
        amp(ScriptedBackend(formats=("fp32", "fp16")))


def test_a_gpu_that_is_full_is_not_run() -> None:
    with pytest.raises(NotRunError, match="of free memory needed"):
        amp(ScriptedBackend(free=1000))


def memory(backend: ScriptedBackend) -> Any:
    return step_memory.compare(backend, request(backend.name), ignore)


def test_every_way_to_save_memory_is_compared_with_the_plain_step() -> None:
    steps = {"fp32": 0.4, "accumulated": 0.5, "checkpointed": 0.8}
    measured = memory(ScriptedBackend(steps=steps, peaks=[4_000_000_000, 1_500_000_000, 1_000_000_000]))
    assert {m.name: m.value for m in measured.measurements} == {
        "plain_step_samples_s": 20.0,
        "plain_step_gb": 4.0,
        "accumulated_step_samples_s": 16.0,
        "accumulated_step_gb": 1.5,
        "checkpointed_step_samples_s": 10.0,
        "checkpointed_step_gb": 1.0,
    }
    assert measured.findings == ()
    assert measured.details == {
        "memory_over_plain": {"accumulated": 0.375, "checkpointed": 0.25},
        "speed_over_plain": {"accumulated": 0.8, "checkpointed": 0.5},
    }


@pytest.mark.parametrize("wrong", [math.nan, 0.01])
def test_gradients_that_differ_fail(wrong: float) -> None:
    measured = memory(ScriptedBackend(wrong=wrong, peaks=[3, 2, 1]))
    assert [finding.code for finding in measured.findings] == ["wrong-result"] * 3
    assert "gradients of the checkpointed step" in measured.findings[-1].text


def test_checkpointing_that_saves_nothing_is_degraded() -> None:
    measured = memory(ScriptedBackend(peaks=[2_000_000_000, 1_000_000_000, 2_000_000_000]))
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("no-memory-saved", State.DEGRADED)
    assert "the checkpointed step takes 2 GB, the plain one 2 GB" in finding.text


def test_the_size_of_a_step_is_no_rate_that_a_judge_would_compare() -> None:
    measured = memory(ScriptedBackend(peaks=[3, 2, 1]))
    judged = [m.name for m in measured.measurements if is_rate(m)]
    assert judged == [f"{name}_step_samples_s" for name in step_memory.WAYS.values()]
