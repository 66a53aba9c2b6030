"""Training on several ranks: every number and finding on a scripted backend, and real ranks with gloo."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from validation.checks import collectives, parallel, sharded
from validation.model.contract import Measured, State
from validation.model.not_run import NotRunError
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

SHAPE = {"layers": 2, "width": 64, "heads": 2, "tokens": 16, "batch": 8}
TIMING = {"warm_up_s": 1.0, "measure_s": 5.0, "least": 5, "most": 1000}
STEPS = {"bf16": 0.2, "parallel": 0.25}


def request(rank: int = 0, ranks: int = 4) -> Request:
    parameters = {
        "rank": rank,
        "world_size": ranks,
        "store": "/nowhere",
        "timeout_s": 60,
        "shape": SHAPE,
        "timing": TIMING,
    }
    return Request(f"rank {rank} (GPU {rank})", "", "cuda", rank, parameters=parameters)


def rank(number: int, backend: ScriptedBackend | None = None) -> Measured:
    return parallel.train(backend or ScriptedBackend(steps=STEPS), request(number), lambda _stage: None)


def outcome(
    number: int, measured: Measured, ending: Ending = Ending.DONE, stage: str = "leaving"
) -> ProcessOutcome:
    return ProcessOutcome(request(number), ending, measured, f"rank {number} ended", stage, 1.0)


def concluded(backends: dict[int, ScriptedBackend] | None = None) -> Any:
    outcomes = [outcome(number, rank(number, (backends or {}).get(number))) for number in range(4)]
    return parallel.GpuParallelTraining().conclude(outcomes)


def test_scaling_is_what_all_ranks_do_over_so_many_times_what_one_does_alone() -> None:
    result = concluded()
    assert {m.name: m.value for m in result.measurements} == {
        "one_rank_training_samples_s": 40.0,
        "parallel_training_samples_s": 128.0,
        "scaling_share": 0.8,
    }
    assert result.measurements[-1].conditions == {"batch": 8, "format": "bf16", "ranks": 4}
    assert (result.state, result.findings) == (State.PASS, ())


def test_one_rank_alone_is_measured_before_it_meets_the_others() -> None:
    first, second = ScriptedBackend(steps=STEPS), ScriptedBackend(steps=STEPS)
    rank(0, first)
    rank(1, second)
    calls = [call.split()[0] for call in first.calls]
    assert calls.index("training") < calls.index("join") < calls.index("parallel")
    assert "training bf16" not in second.calls


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    outcomes = [outcome(number, rank(number)) for number in range(4)]
    slow = [2 * seconds for seconds in outcomes[2].measured.details["seconds"]]
    measured = dataclasses.replace(
        outcomes[2].measured, details=outcomes[2].measured.details | {"seconds": slow}
    )
    outcomes[2] = dataclasses.replace(outcomes[2], measured=measured)
    values = {m.name: m.value for m in parallel.together(outcomes)}
    assert (values["parallel_training_samples_s"], values["scaling_share"]) == (64.0, 0.4)


def test_ranks_that_wait_for_each_other_are_advised_with_numbers() -> None:
    (text,) = concluded().details["all ranks"]["advice"]["Training on several ranks"]
    words = ("4 ranks train 128 samples/s, one 40.0", "80% (± 0%) of 4 times", "no_sync")
    assert [word for word in words if word not in text] == []


def test_ranks_that_scale_well_or_only_seem_not_to_are_not_advised() -> None:
    assert (
        "all ranks"
        not in concluded({n: ScriptedBackend(steps=STEPS | {"parallel": 0.2}) for n in range(4)}).details
    )
    found = list(concluded().measurements)
    assert parallel.advice(found)
    for value, spread in ((0.85, 0.08), (0.4, 0.3)):
        noisy = dataclasses.replace(found[-1], value=value, spread=spread)
        assert not parallel.advice([*found[:-1], noisy])


def test_ranks_on_the_cpus_of_one_node_are_not_advised() -> None:
    outcomes = [outcome(number, rank(number)) for number in range(4)]
    result = parallel.CpuParallelTraining().conclude(outcomes)
    assert (len(result.measurements), result.details) == (3, {})


@each(math.nan, 0.1)
def test_gradients_that_are_not_the_mean_of_all_fail(wrong: float) -> None:
    result = concluded({1: ScriptedBackend(steps=STEPS, wrong=wrong)})
    (finding,) = result.findings
    assert (finding.code, result.state) == ("wrong-result", State.FAIL)
    assert "rank 1 (GPU 1)" in finding.text
    assert "4 ranks" in finding.text


def test_with_too_little_memory_on_a_rank_it_is_not_run_and_nobody_waits() -> None:
    backend = ScriptedBackend(steps=STEPS, free=1 << 10)
    with pytest.raises(NotRunError, match="of free memory needed"):
        rank(0, backend)
    # It had met the others, so that they learned of it.
    assert any(call.startswith("join") for call in backend.calls)
    assert "training bf16" not in backend.calls


def test_of_ranks_that_hang_the_one_that_is_behind_is_named() -> None:
    empty = Measured()
    outcomes = [
        dataclasses.replace(outcome(n, empty, Ending.HUNG, "meeting the other ranks"), silent_s=60.0)
        for n in range(4)
    ]
    outcomes[2] = dataclasses.replace(outcomes[2], stage="making the model")
    result = parallel.GpuParallelTraining().conclude(outcomes)
    (finding,) = result.findings
    assert (finding.code, result.state) == ("rank-hung", State.FAIL)
    assert finding.text.startswith("rank 2 (GPU 2) hung in stage: making the model")
    assert result.measurements == ()


@each(
    (parallel.train, parallel.STAGES, ScriptedBackend(steps=STEPS), 0),
    (parallel.train, parallel.STAGES, ScriptedBackend(steps=STEPS), 1),
    (
        sharded.train,
        sharded.STAGES,
        ScriptedBackend(steps={"parallel": 0.2, "sharded": 0.25}, peaks=[12 << 30, 9 << 30]),
        0,
    ),
)
def test_the_stages_of_a_rank_are_known_in_their_order(
    train: Callable[..., Measured], stages: Any, backend: ScriptedBackend, number: int
) -> None:
    told: list[str] = []
    train(backend, request(number), told.append)
    places = [collectives.order_of(stages)(stage) for stage in told]
    assert places == sorted(places)
    assert min(places) >= 0
    assert told[-1] == "leaving"


@pytest.mark.component
@needs_torch
def test_real_ranks_train_together() -> None:
    found = there("""
    import dataclasses
    from validation.backends.protocol import Shape
    from validation.checks import parallel
    from validation.checks.node import Node
    from validation.model.contract import encode
    from validation.model.expectations import Expectation
    from validation.model.plans import PLANS, Timing

    parallel.CPU_SHAPE = Shape(layers=2, width=64, heads=2, tokens=16, batch=4)
    plan = dataclasses.replace(PLANS["quick"], cpu=Timing(0.02, 0.1))
    answer = encode(parallel.CpuParallelTraining().run(Node(plan, Expectation())))
    """)
    assert (found["state"], found["findings"]) == ("pass", [])
    names = [measurement["name"] for measurement in found["measurements"]]
    assert names == ["one_rank_training_samples_s", "parallel_training_samples_s", "scaling_share"]
    assert all(measurement["value"] > 0 for measurement in found["measurements"])


@pytest.mark.component
@needs_torch
def test_a_gradient_that_is_not_the_mean_and_a_weight_of_its_own_are_seen() -> None:
    right, scaled, gradient, weight = there("""
    import tempfile, torch
    from validation.backends.cpu import CpuBackend
    from validation.backends.parallel import ParallelStep
    from validation.backends.protocol import Shape

    cpu, shape = torch.device("cpu"), Shape(layers=2, width=64, heads=2, tokens=16, batch=4)

    class Gradient(ParallelStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            self._model.parameters[-1].grad.mul_(1.1)
            return loss

    class Weight(ParallelStep):
        def step(self, batch, target):
            loss = super().step(batch, target)
            self._model.parameters[0].data.mul_(float("nan"))
            return loss

    answer = []
    with tempfile.TemporaryDirectory() as folder:
        CpuBackend().join(0, 1, folder + "/store", 60)
        kinds = (ParallelStep, "fp32"), (ParallelStep, "fp16"), (Gradient, "fp32"), (Weight, "fp32")
        for kind, way in kinds:
            step = kind(cpu, shape, way)
            error = step.error()
            answer.append(error if error == error else None)
            assert step.way == way
        torch.distributed.destroy_process_group()
    """)
    assert max(right, scaled) < 1e-5
    assert gradient > 0.05
    assert weight is None
