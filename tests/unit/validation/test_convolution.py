"""The convolution checks: every number and finding on a scripted backend, and real steps on the CPU."""

import math
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from validation.checks import convolution
from validation.model.contract import Measurement, State
from validation.model.not_run import NotRunError
from validation.model.quantities import is_rate, quantity
from validation.processes.child import Request

TIMING = {"warm_up_s": 1.0, "measure_s": 5.0, "least": 5, "most": 1000}
IMAGES = {"width": 8, "edge": 32, "batch": 8}
STEPS = {"contiguous": 0.4, "channels_last": 0.2, "autotuned": 0.16}


def ignore(_stage: str) -> None:
    """Nobody listens."""


def compare(backend: ScriptedBackend) -> Any:
    name, device = ("GPU 3", 3) if backend.name == "cuda" else ("the CPU", 0)
    request = Request(name, "", backend.name, device, parameters={"images": IMAGES, "timing": TIMING})
    return convolution.compare(backend, request, ignore)


def test_each_way_is_held_against_the_one_before() -> None:
    backend = ScriptedBackend(steps=STEPS)
    measured = compare(backend)
    assert {m.name: m.value for m in measured.measurements} == {
        "contiguous_convolution_samples_s": 20.0,
        "channels_last_convolution_samples_s": 40.0,
        "autotuned_convolution_samples_s": 50.0,
        "channels_last_gain_times": 2.0,
        "autotune_gain_times": 1.25,
    }
    assert {m.device for m in measured.measurements} == {3}
    assert measured.findings == ()
    assert [call for call in backend.calls if call.startswith("convolution")] == [
        "convolution contiguous in bf16",
        "convolution channels_last in bf16",
        "convolution channels_last autotuned in bf16",
    ]


def test_a_gain_has_a_unit_and_is_no_rate_that_a_judge_would_compare() -> None:
    gains = [m for m in compare(ScriptedBackend(steps=STEPS)).measurements if "gain" in m.name]
    assert [quantity(gain) for gain in gains] == ["2.00 times", "1.25 times"]
    assert not any(is_rate(gain) for gain in gains)


def test_a_gain_is_advised_with_its_number() -> None:
    texts = compare(ScriptedBackend(steps=STEPS)).details["advice"]["Convolutions"]
    assert ["channels_last" in texts[0], "2.00 times" in texts[0], "use it" in texts[0]] == [True] * 3
    assert ["cudnn.benchmark" in texts[1], "1.25 times" in texts[1]] == [True] * 2


def test_what_makes_a_step_slower_is_advised_against() -> None:
    texts = compare(ScriptedBackend(steps=STEPS | {"autotuned": 0.4})).details["advice"]["Convolutions"]
    assert "0.50 times as fast" in texts[1]
    assert texts[1].endswith("leave it out")


def test_a_gain_within_the_noise_is_not_advised() -> None:
    measured = compare(ScriptedBackend(run_seconds=[0.1, *[0.098, 0.102] * 5000]))
    gains = [m for m in measured.measurements if m.name.endswith("gain_times")]
    assert all(0 < gain.spread < 0.1 for gain in gains)
    assert "advice" not in measured.details


@each((0.05, True), (0.3, False))
def test_a_large_gain_of_noisy_runs_is_not_advised(spread: float, advised: bool) -> None:
    gain = Measurement("autotune_gain_times", 2.5, 9, spread, 3)
    assert bool(convolution.advice(gain)) == advised


def test_equal_rates_are_not_advised() -> None:
    assert "advice" not in compare(ScriptedBackend(run_seconds=[0.1])).details


def test_on_a_cpu_nothing_is_autotuned() -> None:
    measured = compare(ScriptedBackend("cpu", formats=("fp32",), steps=STEPS))
    assert [m.name for m in measured.measurements] == [
        "contiguous_convolution_samples_s",
        "channels_last_convolution_samples_s",
        "channels_last_gain_times",
    ]
    assert measured.details["format"] == "fp32"


def test_a_gpu_without_bf16_takes_fp16_and_counts_the_steps_that_are_skipped() -> None:
    measured = compare(ScriptedBackend(formats=("fp32", "fp16"), steps=STEPS))
    assert (measured.details["format"], measured.details["skipped"].keys()) == ("fp16", STEPS.keys())


@each(math.nan, 0.1)
def test_gradients_that_differ_fail(wrong: float) -> None:
    findings = compare(ScriptedBackend(wrong=wrong)).findings
    assert [(f.code, f.state, f.device) for f in findings] == [("wrong-result", State.FAIL, 3)] * 3
    assert "autotuned" in findings[-1].text


@each(0.0, math.nan)
def test_a_loss_that_does_not_fall_fails(fall: float) -> None:
    (finding,) = compare(ScriptedBackend(falls={"autotuned": fall})).findings
    assert (finding.code, finding.state) == ("loss-does-not-fall", State.FAIL)
    assert "bf16 (autotuned)" in finding.text


def test_a_gpu_with_less_memory_than_the_step_takes_is_not_run() -> None:
    with pytest.raises(NotRunError, match="of free memory needed"):
        compare(ScriptedBackend(free=1 << 20))


@pytest.mark.component
@needs_torch
def test_a_cpu_computes_the_same_in_both_layouts_and_sees_where_it_does_not() -> None:
    errors, falls, damaged, before, within, after = there("""
    import torch
    from validation.backends.convolution import ConvolutionStep
    from validation.backends.protocol import ImageShape

    cpu, images = torch.device("cpu"), ImageShape(width=8, edge=32, batch=8)
    ways = [dict(channels_last=False, autotuned=False), dict(channels_last=True, autotuned=True)]
    steps = [ConvolutionStep(cpu, images, "fp32", **way) for way in ways]

    class Damaged(ConvolutionStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            self._model.parameters[3].grad.mul_(1.1)
            return loss

    class Looking(ConvolutionStep):
        def backward(self, batch, target):
            seen.append(torch.backends.cudnn.benchmark)
            assert batch.is_contiguous(memory_format=torch.channels_last)
            assert self._model.parameters[0].is_contiguous(memory_format=torch.channels_last)
            return super().backward(batch, target)

    seen = [torch.backends.cudnn.benchmark]
    Looking(cpu, images, "fp32", **ways[1]).run()
    answer = [
        [step.error() for step in steps],
        [step.fall() for step in steps],
        Damaged(cpu, images, "fp32", **ways[1]).error(),
        *seen,
        torch.backends.cudnn.benchmark,
    ]
    """)
    assert errors[0] == 0 < errors[1] < convolution.TOLERANCE / 10
    assert min(falls) > 0
    assert damaged > convolution.TOLERANCE
    assert (before, within, after) == (False, True, False)
