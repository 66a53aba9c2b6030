"""Training with FSDP beside DDP: every number and finding on a scripted backend, and real ranks with gloo."""

import math
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_parallel import outcome, request
from tests.unit.validation.test_torch import there
from validation.checks import sharded
from validation.model.contract import Measured, State
from validation.model.not_run import NotRunError
from validation.processes.pool import Ending

GB = 10**9


def backend(**settings: Any) -> ScriptedBackend:
    """A rank with steps of 0.2 s (DDP) and 0.25 s (FSDP), 12 and 9 GB."""
    steps = {"parallel": 0.2, "sharded": 0.25}
    return ScriptedBackend(**{"steps": steps, "peaks": [12 * GB, 9 * GB], **settings})


def rank(number: int, device: ScriptedBackend) -> Measured:
    return sharded.train(device, request(number), lambda _stage: None)


def concluded(others: dict[int, ScriptedBackend] | None = None) -> Any:
    outcomes = [outcome(number, rank(number, (others or {}).get(number) or backend())) for number in range(4)]
    return sharded.GpuShardedTraining().conclude(outcomes)


def test_both_ways_are_measured_and_compared() -> None:
    result = concluded()
    assert {m.name: m.value for m in result.measurements} == {
        "replicated_training_samples_s": 160.0,
        "replicated_step_gb": 12.0,
        "sharded_training_samples_s": 128.0,
        "sharded_step_gb": 9.0,
    }
    assert {tuple(m.conditions.items()) for m in result.measurements} == {
        (("batch", 8), ("format", "bf16"), ("ranks", 4))
    }
    assert result.details == {"all ranks": {"memory_over_replicated": 0.75, "speed_over_replicated": 0.8}}
    assert (result.state, result.findings) == (State.PASS, ())


def test_a_step_is_as_slow_as_its_slowest_rank_and_takes_what_the_fullest_takes() -> None:
    outcomes = [outcome(number, rank(number, backend())) for number in range(4)]
    shards = outcomes[2].measured.details["ways"]["sharded"]
    shards |= {"seconds": [0.5] * len(shards["seconds"]), "bytes": 10 * GB}
    values = {m.name: m.value for m in sharded.compared(outcomes)}
    assert (values["sharded_training_samples_s"], values["sharded_step_gb"]) == (64.0, 10.0)


@each(math.nan, 0.1)
def test_a_step_that_is_not_that_without_shards_fails(wrong: float) -> None:
    result = concluded({1: backend(wrong=wrong)})
    (finding,) = result.findings
    assert (finding.code, result.state) == ("wrong-result", State.FAIL)
    assert "rank 1 (GPU 1)" in finding.text
    assert "FSDP over 4 ranks" in finding.text


def test_shards_that_save_no_memory_are_degraded() -> None:
    result = concluded({3: backend(peaks=[12 * GB, 12 * GB])})
    (finding,) = result.findings
    assert (finding.code, result.state) == ("no-memory-saved", State.DEGRADED)
    assert "4 ranks" in finding.text


def test_without_bf16_both_ways_are_in_fp32_because_fp16_needs_a_scaler() -> None:
    device = backend(formats=("fp32", "fp16"))
    rank(0, device)
    assert {"parallel training fp32", "sharded training fp32"} <= set(device.calls)


def test_a_torch_without_shards_is_not_run_with_the_reason() -> None:
    with pytest.raises(NotRunError, match=r"came with torch 2\.4"):
        rank(0, backend(sharding_fails="torch 2.3 has no fully_shard, which came with torch 2.4"))


def test_with_too_little_memory_on_a_rank_nobody_trains() -> None:
    device = backend(free=1 << 10)
    with pytest.raises(NotRunError, match="of free memory needed"):
        rank(0, device)
    assert not [call for call in device.calls if "training" in call]


def test_a_rank_without_an_answer_leaves_no_numbers_and_is_named() -> None:
    outcomes = [outcome(number, rank(number, backend())) for number in range(3)]
    died = outcome(3, Measured(), Ending.DIED, "training sharded")
    result = sharded.GpuShardedTraining().conclude([*outcomes, died])
    assert (result.measurements, result.state) == ((), State.FAIL)
    assert [finding.code for finding in result.findings] == ["process-died"]


@pytest.mark.component
@needs_torch
def test_real_ranks_train_in_shards() -> None:
    found = there("""
    import dataclasses
    from validation.backends.protocol import Shape
    from validation.checks import parallel, sharded
    from validation.checks.node import Node
    from validation.model.contract import encode
    from validation.model.expectations import Expectation
    from validation.model.plans import PLANS, Timing

    parallel.CPU_SHAPE = Shape(layers=4, width=64, heads=2, tokens=8, batch=2)
    plan = dataclasses.replace(PLANS["quick"], cpu=Timing(0.02, 0.1))
    answer = encode(sharded.CpuShardedTraining().run(Node(plan, Expectation())))
    """)
    assert (found["state"], found["findings"]) == ("pass", [])
    values = {one["name"]: one["value"] for one in found["measurements"]}
    assert len(values) == 4
    assert min(values.values()) > 0
    # How much, depends on how busy this machine is.
    assert found["details"]["all ranks"]["memory_over_replicated"] > 0


@pytest.mark.component
@needs_torch
def test_a_wrong_gradient_a_wrong_loss_and_a_lost_weight_are_seen_on_two_ranks() -> None:
    """On two real ranks: both have halves of every weight, and each has a batch of its own."""
    right, gradient, loss, weight, halves = there("""
    import multiprocessing, os, tempfile, torch
    from concurrent.futures import ProcessPoolExecutor
    from validation.backends.cpu import CpuBackend
    from validation.backends.protocol import Shape
    from validation.backends.sharded import ShardedStep

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    cpu, shape = torch.device("cpu"), Shape(layers=2, width=64, heads=2, tokens=16, batch=4)

    class Gradient(ShardedStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            self._model.parameters[-1].grad.to_local().mul_(1.1)
            return loss

    class Loss(ShardedStep):
        def backward(self, batch, target):
            return super().backward(batch, target) * 1.1

    class Weight(ShardedStep):
        def update(self):
            super().update()
            self._model.parameters[0].to_local().data.mul_(float("nan"))

    def errors(rank, store):
        CpuBackend().join(rank, 2, store, 60)
        found = [kind(cpu, shape, "fp32").error() for kind in (ShardedStep, Gradient, Loss, Weight)]
        found = [error if error == error else None for error in found]
        step = ShardedStep(cpu, shape, "fp32")
        found.append([weight.to_local().numel() / weight.numel() for weight in step.weights])
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        return found

    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, fork) as ranks:
        answer, _ = ranks.map(errors, range(2), [folder + "/store"] * 2, timeout=240)
    """)
    assert right < 1e-5
    assert gradient > 0.05
    assert loss > 0.05
    assert weight is None
    assert set(halves) == {0.5}


@pytest.mark.component
@needs_torch
def test_torch_before_2_6_shards_over_gpus_alone() -> None:
    """It has the function in another place, where the first step wants streams of CUDA."""
    on_cpu, on_gpu = there("""
        import sys, types
        import torch.distributed.fsdp
        from validation.backends.sharded import fully_shard
        from validation.model.not_run import NotRunError

        old = types.ModuleType("torch.distributed._composable.fsdp")
        old.fully_shard = lambda *_: None
        sys.modules[old.__name__] = old
        del torch.distributed.fsdp.fully_shard
        answer = []
        for device in ("cpu", "cuda"):
            try:
                answer.append(fully_shard(device) is old.fully_shard)
            except NotRunError as reason:
                answer.append(str(reason))
    """)
    assert "on a CPU from torch 2.6 on" in on_cpu
    assert on_gpu is True
