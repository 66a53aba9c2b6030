"""The training-shaped checks on a scripted backend: every number and every finding."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.each import each
from tests.unit.validation.scripted import ScriptedBackend
from validation.checks import batch, precision, profile, step_memory
from validation.checks.training import GPU_SHAPE
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.model.quantities import is_rate
from validation.processes.child import Request

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
    return precision.compare(backend, request(backend.name, ways=["fp32", "tf32", "bf16", "fp16"]), ignore)


def test_mixed_precision_is_compared_with_every_other_format() -> None:
    measured = amp(ScriptedBackend(steps=STEPS))
    assert [(m.name, m.value, m.device) for m in measured.measurements] == [
        ("fp32_training_samples_s", 10.0, 3),
        ("tf32_training_samples_s", 20.0, 3),
        ("bf16_training_samples_s", 40.0, 3),
    ]
    assert measured.findings == ()
    assert measured.details == {"bf16_gain_over": {"fp32": 4.0, "tf32": 2.0}}


@each(math.nan, math.inf, 0.1)
def test_losses_that_are_none_or_far_from_those_of_full_precision_fail(wrong: float) -> None:
    measured = amp(ScriptedBackend(steps=STEPS, wrong=wrong))
    assert {(f.code, f.state, f.device) for f in measured.findings} == {("wrong-result", State.FAIL, 3)}
    assert len(measured.findings) == 3


def test_mixed_precision_that_is_slower_on_a_gpu_is_degraded() -> None:
    measured = amp(ScriptedBackend(steps=STEPS | {"bf16": 0.5}))
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("amp-no-gain", State.DEGRADED)
    assert "16.0 samples/s in bf16, 20.0 in tf32" in finding.text


SLOWER: dict[str, Any] = {"formats": ("fp32", "fp16"), "steps": {"fp32": 0.4, "fp16": 0.5}}
TWO = {"fp32": 0.8, "tf32": 0.4}


@each(
    (ScriptedBackend("cpu", steps=STEPS | {"bf16": 5.0}, tensor_cores=False), []),
    (ScriptedBackend(**SLOWER, tensor_cores=False), []),
    (ScriptedBackend(**SLOWER, tensor_cores=True), ["amp-no-gain"]),
    (ScriptedBackend(steps=TWO, run_seconds=[0.6]), ["amp-no-gain"]),
    (ScriptedBackend(steps=TWO, run_seconds=[0.9, *[0.3, 0.9] * 1000]), []),  # noise
)
def test_mixed_precision_has_to_gain_where_a_device_has_tensor_cores(
    backend: ScriptedBackend, codes: list[str]
) -> None:
    assert [finding.code for finding in amp(backend).findings] == codes


def test_no_gpu_is_blamed_where_the_host_is_too_slow_to_start_its_kernels() -> None:
    measured = amp(ScriptedBackend(steps=STEPS | {"bf16": 0.5}, launch_s=0.45))
    assert (measured.findings, measured.details["as_fast_as_the_host"]) == ((), ["tf32", "bf16"])


def test_a_gpu_without_bf16_mixes_with_fp16_and_counts_the_steps_that_are_skipped() -> None:
    steps = {"fp32": 0.8, "fp16": 0.2}
    measured = amp(ScriptedBackend(formats=("fp32", "fp16"), steps=steps, skips={"fp16": 3}))
    assert {m.name: m.value for m in measured.measurements} == {
        "fp32_training_samples_s": 10.0,
        "fp16_training_samples_s": 40.0,
    }
    assert measured.findings == ()
    assert measured.details == {
        "fp16_gain_over": {"fp32": 4.0},
        "skipped_steps": {"steps": 100, "skipped": 3},
    }


def test_a_gpu_with_bf16_does_not_train_in_fp16() -> None:
    backend = ScriptedBackend(steps=STEPS)
    amp(backend)
    assert "training fp16" not in backend.calls


@each(0.0, -0.1, math.nan)
def test_a_loss_that_does_not_fall_fails(fall: float) -> None:
    measured = amp(ScriptedBackend(formats=("fp32", "fp16"), falls={"fp16": fall}))
    (finding,) = measured.findings
    assert (finding.code, finding.state, finding.device) == ("loss-does-not-fall", State.FAIL, 3)
    assert "in fp16" in finding.text


def test_a_gpu_without_any_narrower_format_is_not_run() -> None:
    with pytest.raises(NotRunError, match="in neither bf16 nor fp16"):
        amp(ScriptedBackend(formats=("fp32",)))


def test_a_gpu_without_bf16_is_profiled_and_filled_in_fp16() -> None:
    backend = ScriptedBackend(formats=("fp32", "fp16"), losses={4: 1.0})
    measured = search(backend)
    profile.profile(backend, request(), ignore)
    assert measured.details["format"] == "fp16"
    # What was measured in fp32 before must not be compared with it.
    assert measured.measurements[0].conditions == {"format": "fp16"}
    assert {"try 4 in fp16", "trace 3 in fp16"} <= set(backend.calls)


@each(precision.compare, step_memory.compare, profile.profile)
def test_a_gpu_with_less_memory_than_the_step_takes_is_not_run(measurement: Any) -> None:
    small = ScriptedBackend(free=int(7.6e9), steps=STEPS, peaks=[3, 2, 1])
    asked = request(shape=dataclasses.asdict(GPU_SHAPE), ways=["fp32", "tf32", "bf16"])
    with pytest.raises(NotRunError, match=r"13\.4 GB of free memory needed, 7\.6 GB found"):
        measurement(small, asked, ignore)


def test_a_small_gpu_still_finds_its_largest_batch() -> None:
    asked = request(shape=dataclasses.asdict(GPU_SHAPE))
    measured = batch.search(ScriptedBackend(free=int(7.6e9), losses={2: 1.0}), asked, ignore)
    assert {m.name: m.value for m in measured.measurements}["largest_batch_samples"] == 2


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


@each(math.nan, 0.01)
def test_gradients_that_differ_fail(wrong: float) -> None:
    measured = memory(ScriptedBackend(wrong=wrong, peaks=[3, 2, 1]))
    assert [finding.code for finding in measured.findings] == ["wrong-result"] * 3
    assert "gradients of the checkpointed step" in measured.findings[-1].text


def test_checkpointing_that_saves_nothing_is_degraded() -> None:
    measured = memory(ScriptedBackend(peaks=[2_000_000_000, 1_000_000_000, 2_000_000_000]))
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("no-memory-saved", State.DEGRADED)
    assert "the checkpointed step takes 2 GB, the plain one 2 GB" in finding.text


def test_sizes_are_no_rates_that_a_judge_would_compare() -> None:
    rates = [f"{name}_step_samples_s" for name in step_memory.WAYS.values()]
    assert [m.name for m in memory(ScriptedBackend(peaks=[3, 2, 1])).measurements if is_rate(m)] == rates
    measured = search(ScriptedBackend(losses={4: 1.0}))
    assert [m.name for m in measured.measurements if is_rate(m)] == ["largest_batch_training_samples_s"]


def search(backend: ScriptedBackend) -> Any:
    return batch.search(backend, request(backend.name), ignore)


@given(st.integers(min_value=1, max_value=batch.MOST_SAMPLES))
def test_the_search_finds_the_largest_batch_in_few_tries(right: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= right

    found = batch.largest(fits)
    assert found <= right <= found + found // batch.PARTS
    assert len(tried) <= 20


def test_a_search_that_nothing_stops_ends() -> None:
    assert batch.largest(lambda _size: True) <= batch.MOST_SAMPLES


def test_the_largest_batch_is_found_within_most_of_the_free_memory_and_timed() -> None:
    backend = ScriptedBackend(losses={37: 1.0}, steps={"bf16": 0.5}, free=100)
    measured = search(backend)
    assert [(m.name, m.value) for m in measured.measurements] == [
        ("largest_batch_training_samples_s", 74.0),
        ("largest_batch_samples", 37),
    ]
    assert measured.findings == ()
    assert backend.calls[0] == "limit 90"
    assert measured.details["tried"] == [1, 2, 4, 8, 16, 32, 36, 37, 38, 40, 48, 64]


def test_a_batch_that_runs_out_of_memory_only_when_it_is_timed_is_lowered() -> None:
    backend = ScriptedBackend(losses={400: 1.0}, steps={"bf16": 0.5}, goes_on=300)
    measured = search(backend)
    # The search ends at 400; then 12, 24 and 48 samples are given up, and more.
    assert measured.details["ran_out_when_timed"] == [400, 388, 364, 316]
    assert {m.name: m.value for m in measured.measurements} == {
        "largest_batch_training_samples_s": 440.0,
        "largest_batch_samples": 220,
    }
    assert measured.findings == ()


def test_an_error_that_has_nothing_to_do_with_memory_is_not_taken_for_it() -> None:
    tried: list[int] = []

    def broken(batch: int) -> None:
        tried.append(batch)
        raise RuntimeError("unspecified launch failure")

    with pytest.raises(RuntimeError, match="launch failure"):
        batch.largest_that_goes_on(broken, 64)
    assert tried == [64]


@each(1, 2, 3, 31, 32, 33, 1000, batch.MOST_SAMPLES)
def test_a_device_that_cannot_go_on_with_any_batch_is_told_so_soon(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It takes a second with all that the other tests of this process have loaded.
    monkeypatch.setattr("gc.collect", lambda: 0)
    tried: list[int] = []

    def full(size: int) -> None:
        tried.append(size)
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        batch.largest_that_goes_on(full, first)
    assert min(tried) >= 1
    assert len(tried) <= 7


@each(math.nan, math.inf)
def test_a_loss_that_is_no_number_fails(loss: float) -> None:
    measured = search(ScriptedBackend(losses={8: loss, 12: 1.0}))
    assert [(f.code, f.state) for f in measured.findings] == [("wrong-result", State.FAIL)]
    assert "the loss of a batch of 8 is no number" in measured.findings[0].text


@each(
    # 1, 2, 4, 8, 6 and 7 find that 6 fit; then no more than 3 do.
    ({6: 1.0}, 3, [("memory-not-returned", State.DEGRADED)], [3]),
    ({4: math.nan, 6: 1.0}, 0, [("wrong-result", State.FAIL), ("memory-not-returned", State.DEGRADED)], []),
)
def test_memory_that_does_not_come_back_is_degraded_whatever_else_is_wrong(
    losses: dict[int, float], still_fits: int, found: list[tuple[str, State]], sizes: list[int]
) -> None:
    measured = search(ScriptedBackend(losses=losses, exhausted_after=6, still_fits=still_fits))
    assert [(f.code, f.state) for f in measured.findings] == found
    assert [m.value for m in measured.measurements if not is_rate(m)] == sizes


@each(
    (ScriptedBackend(losses={0: 1.0}), "not even one sample fits in"),
    (ScriptedBackend("cpu", free=batch.CPU_BUDGET_BYTES), "of free memory needed"),
    # Nothing comes back: another process may have it.
    (ScriptedBackend(losses={6: 1.0}, exhausted_after=6), "a batch of 6 fitted in .* something else took it"),
)
def test_a_device_without_memory_for_the_search_is_not_run(backend: ScriptedBackend, why: str) -> None:
    with pytest.raises(NotRunError, match=why):
        search(backend)
