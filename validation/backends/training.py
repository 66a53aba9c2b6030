"""A training step in torch: a small fixed transformer, the ways to run its step, and whether each is right.

The model is fixed, so that numbers compare between nodes. It has no dropout and no bias: one way to compute
its gradients must give those of any other up to rounding, and none of them is zero in theory.
"""

from __future__ import annotations

import abc
import gc
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn
import torch.nn.functional
import torch.profiler
import torch.utils.checkpoint

from validation.backends.memory import exported
from validation.backends.protocol import SCALED, Shape
from validation.backends.traces import LOADING, STEP
from validation.model.not_run import out_of_memory

#: Steps after which the losses of two number formats are compared.
LOSSES = 5
#: Parts of a batch that gradients are accumulated over.
PARTS = 4
#: The formats of protocol.MIXED, as torch calls them.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: A scaler begins at 2^16, and halves its scale at each step that it skips: after so many it is 1.
MOST_SKIPPED = 16


class Trained(Protocol):
    """A model that can be trained."""

    parameters: list[torch.Tensor]

    def loss(self, batch: torch.Tensor, target: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
        """Return a number to be lowered.

        `checkpointed` keeps less for the backward pass, and computes it again.
        """


class Model:
    """Pre-norm transformer blocks on a batch of vectors; the loss is the distance from random targets."""

    def __init__(self, device: torch.device, shape: Shape) -> None:
        self._heads = shape.heads
        # Made on the device: the host would take seconds, and memory of its own for what a GPU has room for.
        generator = torch.Generator(device).manual_seed(21)
        width = shape.width
        sizes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        self.layers = [
            [
                torch.nn.Parameter(torch.randn(size, generator=generator, device=device).div_(size[1] ** 0.5))
                for size in sizes
            ]
            for _ in range(shape.layers)
        ]
        self.parameters = [weight for layer in self.layers for weight in layer]

    def loss(self, batch: torch.Tensor, target: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
        """Mean squared distance; `checkpointed` keeps only what enters a block, and computes it again."""
        for layer in self.layers:
            if checkpointed:
                batch = torch.utils.checkpoint.checkpoint(self.block, batch, *layer, use_reentrant=False)
            else:
                batch = self.block(batch, *layer)
        return torch.nn.functional.mse_loss(batch.float(), target)

    def forget(self) -> None:
        """Let go of the weights, when somebody else has them."""
        self.layers.clear()
        self.parameters.clear()

    def block(
        self,
        batch: torch.Tensor,
        project: torch.Tensor,
        mix: torch.Tensor,
        widen: torch.Tensor,
        narrow: torch.Tensor,
    ) -> torch.Tensor:
        """Return one block, with these weights."""
        functional = torch.nn.functional
        samples, tokens, width = batch.shape
        normal = functional.layer_norm(batch, (width,))
        parts = functional.linear(normal, project).view(samples, tokens, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        batch = batch + functional.linear(seen.transpose(1, 2).reshape(samples, tokens, width), mix)
        normal = functional.layer_norm(batch, (width,))
        return batch + functional.linear(functional.gelu(functional.linear(normal, widen)), narrow)


class Updates:
    """How many steps an optimizer has taken.

    No method of the step: the optimizer would hold the step that holds it, and its memory would come back
    only when Python looks for such circles. On a GPU that is a batch too late.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: Any) -> None:
        """Count one more: a hook of torch's optimizers."""
        self.count += 1


class TrainingStep(abc.ABC):
    """Forward, backward and update of a model on one batch; work is in samples.

    `way` is a number format (fp32, tf32; bf16 or fp16: automatic mixed precision), or, in fp32, `accumulated`
    over parts of the batch or `checkpointed`. In fp16 a step whose gradients are not finite updates nothing;
    `skipped` counts those of all `steps`.
    """

    def __init__(self, device: torch.device, way: str, data: list[torch.Tensor]) -> None:
        """Capture the step; `data` are a batch and its targets, on the device."""
        self.work = float(len(data[0]))
        self.way, self.device, self.data = way, device, data
        self.steps, self._updates = 0, Updates()
        self._start()

    def prepare(self) -> None:
        """fp32 means fp32, and tf32 means tensor cores, whatever this process did before; no gradients."""
        torch.set_float32_matmul_precision("high" if self.way == "tf32" else "highest")
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def skipped(self) -> int:
        """How many steps have updated nothing."""
        return self.steps - self._updates.count

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        self.step(*self.data)

    def launch(self) -> None:
        """Start what the host starts of a run without a wait.

        A scaler waits for the device, to know whether gradients are finite.
        """
        if self.way == SCALED:
            self._optimizer.zero_grad(set_to_none=True)
            self.backward(*self.data)
        else:
            self.run()

    def step(self, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return one step on this batch; its loss, on the device."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.backward(batch, target)
        self.update()
        return loss

    def update(self) -> None:
        """Update the weights by their gradients."""
        self.steps += 1
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def backward(self, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Leave the gradients of the loss in the parameters; return the loss."""
        parts = PARTS if self.way == "accumulated" else 1
        total = torch.zeros((), device=self.device)
        for some, wanted in zip(batch.chunk(parts), target.chunk(parts), strict=True):
            mixed = DTYPES.get(self.way)
            with torch.autocast(self.device.type, dtype=mixed or torch.bfloat16, enabled=mixed is not None):
                loss = self._model.loss(some, wanted, checkpointed=self.way == "checkpointed")
            loss = loss * (some.shape[0] / batch.shape[0])
            self._scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def error(self) -> float:
        """Return how far the losses of some steps and the gradients of one are from those in plain fp32.

        Relative; NaN where a number is none. Afterwards the model is at its start again.
        """
        error = self.far_from(self, self.way)
        self._start()
        return error

    def far_from(self, plain: TrainingStep, way: str) -> float:
        """Return how far losses and gradients, the `way` they are here, are from those of `plain` in fp32.

        Losses alone would not do: in so few steps they hardly change, whatever the gradients are.
        """
        own, (right, *rights) = self._probe(way), plain._probe("fp32")
        errors = [own[0].sub(right).abs().div(right).max()]
        errors += [found.sub(r).norm() / r.norm() for found, r in zip(own[1:], rights, strict=True)]
        return float(torch.stack(errors).max())  # unlike Python's max(), it keeps a NaN

    def fall(self) -> float:
        """Return the part of the loss that is gone after some steps from the start; NaN where a loss is none.

        Afterwards the model is at its start again.
        """
        losses = self._probe(self.way)[0]
        self._start()
        return float((losses[0] - losses[-1]) / losses[0])

    def _probe(self, way: str) -> list[torch.Tensor]:
        """From the start: the losses of some steps, and every parameter's gradient in the first.

        Steps that a scaler skips do not count; losses are NaN where it skips all that it may.
        """
        mine, self.way = self.way, way
        self._start()
        self.prepare()
        losses: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        for _ in range(LOSSES + (MOST_SKIPPED if way == SCALED else 0)):
            before = self._updates.count
            loss = self.step(*self.data)
            if self._updates.count > before:
                gradients = gradients or [weight.grad.clone() for weight in self._model.parameters]
                losses.append(loss)
            if len(losses) == LOSSES:
                break
        else:
            losses = [torch.full((), float("nan"), device=self.device)] * LOSSES
            gradients = [weight.grad.clone() for weight in self._model.parameters]
        self.way = mine
        return [torch.stack(losses), *gradients]

    def _start(self) -> None:
        """Start the same model at the same start, each time."""
        self._model = self._made()
        self._optimizer = torch.optim.SGD(self._model.parameters, lr=1e-3, momentum=0.9, foreach=False)
        # A scaler says of no step whether it skips it: it does not call the optimizer then.
        self._optimizer.register_step_post_hook(self._updates)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.way == SCALED)

    @property
    def weights(self) -> list[torch.Tensor]:
        """What is trained; each has its gradient."""
        return self._model.parameters

    def state(self) -> dict[str, Any]:
        """Return what a job keeps to go on from: weights, and what the optimizer remembers."""
        weights = [weight.detach() for weight in self._model.parameters]
        return {"model": weights, "optimizer": self._optimizer.state_dict()}

    @abc.abstractmethod
    def _made(self) -> Trained:
        """Return the model at its start."""


class TransformerStep(TrainingStep):
    """A training step of the transformer."""

    #: Of its batch.
    seed = 22

    def __init__(self, device: torch.device, shape: Shape, way: str) -> None:
        self._shape = shape
        generator = torch.Generator(device).manual_seed(self.seed)
        size = (shape.batch, shape.tokens, shape.width)
        data = [torch.randn(size, generator=generator, device=device) for _ in range(2)]
        super().__init__(device, way, data)

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """Return a copy where the step runs."""
        return host.to(self.device, non_blocking=True, copy=True)

    def _made(self) -> Trained:
        return Model(self.device, self._shape)


def loss_if_it_fits(device: torch.device, shape: Shape, way: str) -> float | None:
    """Return the loss of the second of two steps; None if there was not enough memory.

    Nothing stays allocated.
    """
    loss = None
    try:
        loss = _loss_of_two_steps(device, shape, way)
    except (RuntimeError, MemoryError) as error:
        # Besides the allocator's own error there is CUDA's and that of its libraries.
        if not isinstance(error, MemoryError) and not out_of_memory(error):
            raise
    # Here, when the exception, and with it the frames that hold tensors, is gone. After a step that fitted,
    # too: torch itself leaves a circle behind where a process's first one ran.
    gc.collect()
    return loss


def _loss_of_two_steps(device: torch.device, shape: Shape, way: str) -> float:
    step = TransformerStep(device, shape, way)
    step.prepare()
    step.run()
    return float(step.step(*step.data))


def trace(step: TransformerStep, steps: int, *, detailed: bool) -> bytes:
    """Return a Chrome trace of `steps` steps, each with the loading of its batch, when all is warm.

    A `detailed` one has memory and the shapes of tensors.

    The first step under the profiler pays for what the profiler itself sets up, and is not in the trace.
    Raises NotRunError.
    """
    step.prepare()
    step.run()
    batch = [torch.randn(one.shape, pin_memory=step.device.type == "cuda") for one in step.data]
    # Only what the step runs on: a profile of the CPU leaves the GPUs of the node alone.
    on_gpu = step.device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    more = {"record_shapes": True, "profile_memory": True} if detailed else {}
    with torch.profiler.profile(activities=activities, schedule=schedule, **more) as profile:
        for number in range(1 + steps):
            with torch.profiler.record_function(LOADING):
                loaded = [step.to_device(host) for host in batch]
            with torch.profiler.record_function(STEP):
                step.step(*loaded)
            if on_gpu and number in {0, steps}:  # nothing of before in the trace, and nothing missing
                torch.cuda.synchronize(step.device)
            profile.step()
    return exported(profile)


#: Steps before any is timed: the first one makes what an optimizer keeps.
FIRST_STEPS = 2


class GivenStep:
    """What `make_step(batch)` returns, called for one step; work is in samples.

    Each run waits for its device: the step may use streams of its own, which no event of ours would see.
    """

    def __init__(self, device: torch.device, make_step: Callable[[int], Any], batch: int) -> None:
        """Raise TypeError where it returns something else than a function."""
        self.work = float(batch)
        self._device = device
        self._step = make_step(batch)
        if not callable(self._step):
            raise TypeError(
                f"{getattr(make_step, '__name__', make_step)}({batch}) returned {type(self._step).__name__}; "
                "expected a function that runs one training step"
            )

    def prepare(self) -> None:
        """Nothing: every run does the same."""

    def run(self) -> None:
        """Run one step, to its end."""
        self._step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def error(self) -> float:
        """None: what is right of it nobody knows but its author."""
        return 0.0
