"""The training-shaped checks with the torch that nodes get: real steps, and what is wrong is found."""

from __future__ import annotations

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.test_torch import there

pytestmark = [pytest.mark.component, needs_torch]

RUN = """
    import dataclasses
    from validation.backends.protocol import Shape
    from validation.checks import training
    from validation.checks.node import Node
    from validation.checks.registry import CHECKS
    from validation.model.contract import encode
    from validation.model.expectations import Expectation
    from validation.model.plans import Timing
    from validation.model.plans import PLANS

    training.CPU_SHAPE = Shape(layers=4, width=64, heads=2, tokens=32, batch=8)
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
    from validation.backends.protocol import Shape
    from validation.backends.training import TransformerStep
    cpu, shape = torch.device("cpu"), Shape(layers=2, width=64, heads=2, tokens=32, batch=8)
"""


def test_a_step_that_nobody_holds_gives_its_memory_back_at_once() -> None:
    """An H200 was called degraded for the memory of the batch before, which Python had not collected yet."""
    alive = there(
        STEP
        + """
    import gc, weakref
    from validation.backends.convolution import ConvolutionStep
    from validation.backends.protocol import ImageShape

    def used(step):
        step.prepare(), step.run(), step.error()
        return weakref.ref(step)

    used(TransformerStep(cpu, shape, "fp32"))  # what torch loads with the first one holds it
    gc.collect()
    gc.disable()
    ways = ("fp32", "bf16", "fp16", "accumulated", "checkpointed")
    steps = [used(TransformerStep(cpu, shape, way)) for way in ways]
    images = ImageShape(width=4, edge=32, batch=2)
    steps.append(used(ConvolutionStep(cpu, images, "fp32", channels_last=True, autotuned=False)))
    answer = sum(step() is not None for step in steps)
    """
    )
    assert alive == 0


def test_losses_and_gradients_of_every_way_are_those_of_plain_fp32_up_to_rounding() -> None:
    fp32, bf16, accumulated, checkpointed = there(
        STEP
        + """
    ways = ("fp32", "bf16", "accumulated", "checkpointed")
    answer = [TransformerStep(cpu, shape, way).error() for way in ways]
    """
    )
    assert fp32 == 0
    assert 0 < bf16 < 1e-2
    assert 0 <= accumulated < 1e-5
    assert 0 <= checkpointed < 1e-5


def test_fp16_scales_the_loss_and_skips_a_step_whose_gradients_are_not_finite() -> None:
    error, fall, usual, overflowing, skipped, none = there(
        STEP
        + """
    step = TransformerStep(cpu, shape, "fp16")
    answer = [step.error(), step.fall(), step.skipped]
    # So far from the targets that the scaled gradients overflow fp16 until the scale has halved some times.
    step.data[1].mul_(3000)
    answer += [step.fall(), step.skipped]

    class Broken(TransformerStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            self._model.parameters[0].grad.fill_(float("inf"))
            return loss

    fall = Broken(cpu, shape, "fp16").fall()
    answer.append(None if fall != fall else fall)
    """
    )
    assert 0 < error < 1e-2
    assert fall > 0
    assert usual == 0
    assert skipped > 0
    assert overflowing > 0
    assert none is None  # no step was ever done


def test_a_cpu_runs_the_check_that_gpus_without_bf16_get() -> None:
    found = there(
        RUN
        + """
    from validation.backends.cpu import CpuBackend
    from validation.checks import precision
    from validation.processes.child import Request

    training.CPU_SHAPE = Shape(layers=1, width=32, heads=2, tokens=8, batch=4)
    timing = dict(warm_up_s=0, measure_s=0.01)
    parameters = dict(shape=dataclasses.asdict(training.CPU_SHAPE), timing=timing, ways=["fp32", "fp16"])
    request = Request("the CPU", "", "cpu", parameters=parameters)
    answer = encode(precision.compare(CpuBackend(), request, lambda stage: None))
    """
    )
    assert found["findings"] == []
    assert found["details"]["skipped_steps"]["skipped"] == 0 < found["details"]["skipped_steps"]["steps"]
    assert found["details"]["fp16_gain_over"]["fp32"] > 0


@each("mul_(0)", "mul_(1.1)", "mul_(float('nan'))")
def test_gradients_of_mixed_precision_that_are_wrong_are_seen_though_losses_hardly_change(
    damage: str,
) -> None:
    right, wrong = there(
        STEP
        + f"""
    from validation.checks.precision import TOLERANCE

    class Damaged(TransformerStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            if self.way == "bf16":
                self._model.parameters[-1].grad.{damage}
            return loss

    answer = [kind(cpu, shape, "bf16").error() <= TOLERANCE["bf16"] for kind in (TransformerStep, Damaged)]
    """
    )
    assert (right, wrong) == (True, False)


def test_operands_that_tensor_cores_cut_off_to_tf32_are_far_from_the_tolerance() -> None:
    """They ignore the last 13 bits (PTX ISA, mma with .tf32), which is a deviation towards zero."""
    product, product_tolerance, step, step_tolerance = there(
        STEP
        + """
    from torch.utils._python_dispatch import TorchDispatchMode
    from validation.backends.operations import Matmul
    from validation.checks import matmul, precision
    from validation.model.shapes import MatmulShape

    class CutOff(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.__name__.split(".")[0] in ("mm", "addmm", "bmm", "baddbmm"):
                args = [self.cut(one) if isinstance(one, torch.Tensor) else one for one in args]
            return function(*args, **(kwargs or {}))

        def cut(self, one):
            return (one.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) if (
                one.dtype == torch.float32
            ) else one

    class CutOffProduct(Matmul):
        def run(self):
            with CutOff():
                self._c.copy_(torch.mm(self._a, self._b.t()))

    class CutOffStep(TransformerStep):
        def _probe(self, way):
            if way == "fp32":
                return super()._probe(way)
            with CutOff():
                return super()._probe(way)

    # The products are looked at through random vectors, and the error scatters by a fifth.
    torch.manual_seed(0)
    product = CutOffProduct(cpu, "tf32", MatmulShape(1024, 1024, 1024)).error()
    step = CutOffStep(cpu, Shape(layers=4, width=256, heads=4, tokens=64, batch=4), "tf32").error()
    answer = [product, matmul.TOLERANCE["tf32"], step, precision.TOLERANCE["tf32"]]
    """
    )
    assert 1e-3 < product < product_tolerance / 3
    assert 1e-3 < step < step_tolerance / 3


def test_losses_that_are_wrong_are_seen() -> None:
    nan, large, none = there(
        STEP
        + """
    class Damaged(TransformerStep):
        def step(self, batch, target):
            total = super().step(batch, target)
            return damage(total) if self.way == "bf16" else total

    answer = []
    for damage in (lambda loss: loss * float("nan"), lambda loss: loss + 1, lambda loss: loss):
        error = Damaged(cpu, shape, "bf16").error()
        answer.append(None if error != error else error)
    """
    )
    assert nan is None
    assert large > 0.1 > none


def test_a_cpu_saves_memory_and_keeps_its_gradients() -> None:
    found = there(RUN + "    answer = encode(CHECKS['cpu_step_memory'].run(node))")
    assert (found["state"], found["findings"]) == ("pass", [])
    saved = found["details"]["the CPU"]["memory_over_plain"]
    assert 0 < saved["accumulated"] < 1
    assert 0 < saved["checkpointed"] < 1


def test_one_wrong_gradient_is_seen() -> None:
    right = there(
        STEP
        + """
    class Damaged(TransformerStep):
        def backward(self, batch, target):
            loss = super().backward(batch, target)
            if self.way != "fp32":
                damage(self._model.parameters[-1].grad)
            return loss

    nan = float("nan")
    answer = []
    for damage in (lambda g: g, lambda g: g.mul_(4), lambda g: g[0, :1].mul_(nan), lambda g: g.zero_()):
        answer.append([Damaged(cpu, shape, way).error() <= 1e-3 for way in ("accumulated", "checkpointed")])
    """
    )
    assert right == [[True, True], [False, False], [False, False], [False, False]]


def test_the_peak_of_memory_is_what_was_allocated_at_the_same_time_whatever_was_before() -> None:
    peaks = there("""
        import torch
        from validation.backends.memory import peak_of_allocations

        kept = []

        def run():
            first = torch.empty(8 << 20, dtype=torch.uint8)
            kept.append(torch.empty(4 << 20, dtype=torch.uint8))
            del first
            third = torch.empty(2 << 20, dtype=torch.uint8)

        answer = [peak_of_allocations(run, kept.clear) for _ in range(3)]
    """)
    assert peaks == [12 << 20] * 3


def test_a_cpu_finds_its_largest_batch_and_runs_out_of_memory_on_the_way() -> None:
    found = there(
        RUN
        + """
    from validation.backends.cpu import CpuBackend
    from validation.checks import batch
    from validation.processes.child import Request

    batch.CPU_BUDGET_BYTES = 6 << 20
    parameters = dict(shape=dataclasses.asdict(training.CPU_SHAPE), timing=dict(warm_up_s=0, measure_s=0))
    request = Request("the CPU", "", "cpu", parameters=parameters)
    answer = [encode(batch.search(CpuBackend(), request, lambda stage: None)) for _ in range(2)]
    """
    )
    first, again = (
        measurement["value"]
        for one in found
        for measurement in one["measurements"]
        if measurement["name"] == "largest_batch_samples"
    )
    assert first == again
    assert 1 <= first < max(found[0]["details"]["tried"])
    assert found[0]["findings"] == []


def test_a_budget_counts_what_lives_and_not_what_was() -> None:
    allowed, refused, after = there("""
        import torch
        from validation.backends.memory import MemoryBudget

        def take(*sizes):
            with MemoryBudget(10 << 20):
                try:
                    kept = [torch.zeros(size << 20, dtype=torch.uint8) for size in sizes]
                    views = [tensor[1:].view(-1) for tensor in kept]
                except MemoryError:
                    return False
            return True

        def one_after_the_other():
            with MemoryBudget(10 << 20):
                for _ in range(5):
                    torch.zeros(6 << 20, dtype=torch.uint8)
            return True

        answer = [take(4, 6), take(4, 7), one_after_the_other()]
    """)
    assert (allowed, refused, after) == (True, False, True)
