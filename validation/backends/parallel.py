"""A training step on all ranks of a group at once, as DistributedDataParallel does it."""

from __future__ import annotations

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from validation.backends.protocol import SCALED, Shape
from validation.backends.training import Model, Trained, TransformerStep


class _Wrapped(torch.nn.Module):  # type: ignore[misc]  # mypy sees no torch
    """The model in the form that torch wants to distribute."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        for number, weight in enumerate(model.parameters):
            self.register_parameter(f"weight_{number}", weight)

    def forward(self, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self._model.loss(batch, target, checkpointed=False)


class Replica:
    """One rank's copy of the model: its gradients are the mean of those of all ranks."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.parameters = model.parameters
        devices = [device.index] if device.type == "cuda" else None
        self._all = DistributedDataParallel(_Wrapped(model), device_ids=devices)

    def loss(self, batch: torch.Tensor, target: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
        """Return that of this rank's batch; nothing of it can be `checkpointed`."""
        assert not checkpointed
        loss: torch.Tensor = self._all(batch, target)
        return loss


class ParallelStep(TransformerStep):
    """A training step of all ranks, each on a batch of its own; work is in samples of one rank.

    All ranks must do the same with it.
    """

    seed = 22

    def __init__(self, device: torch.device, shape: Shape, way: str) -> None:
        self.seed += torch.distributed.get_rank()
        super().__init__(device, shape, way)

    def error(self) -> float:
        """Return how far it is from what all ranks have in common, relative; NaN where a number is none.

        Afterwards the model is at its start again.
        """
        # A scaler begins with a scale at which gradients may overflow.
        mine, self.way = self.way, "fp32" if self.way == SCALED else self.way
        error = self._error()
        self.way = mine
        self._start()
        return error

    def _error(self) -> float:
        """Return how far this rank's gradients are from the mean, and its weights from those of rank 0."""
        self._start()
        self.prepare()
        self.backward(*self.data)
        plain = TransformerStep(self.device, self._shape, self.way)
        plain.prepare()
        plain.backward(*self.data)
        errors = [torch.zeros((), device=self.device)]
        for weight, alone in zip(self._model.parameters, plain.weights, strict=True):
            mean = alone.grad / torch.distributed.get_world_size()
            torch.distributed.all_reduce(mean)
            errors.append(weight.grad.sub(mean).norm() / mean.norm())
        self._start()
        self.step(*self.data)
        for weight in self._model.parameters:
            first = weight.detach().clone()
            torch.distributed.broadcast(first, 0)
            errors.append(weight.detach().sub(first).norm() / first.norm())
        return float(torch.stack(errors).max())  # unlike Python's max(), it keeps a NaN

    def _made(self) -> Trained:
        return Replica(Model(self.device, self._shape), self.device)
