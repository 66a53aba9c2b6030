"""A training step on all ranks of a group with weights in shards, as torch's FSDP does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.nn
from torch.distributed.device_mesh import init_device_mesh

from validation.backends.parallel import ParallelStep
from validation.backends.training import Model, TransformerStep
from validation.model.not_run import NotRunError


def fully_shard(device_type: str) -> Callable[..., Any]:
    """Torch's function of that name, which has moved with 2.6. Raises NotRunError where it cannot be used.

    Before that it wants streams of CUDA, and fails on a CPU with the first step (FSDPCommContext in
    torch/distributed/_composable/fsdp/_fsdp_param_group.py).
    """
    try:
        from torch.distributed.fsdp import fully_shard as found
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard as found
        except ImportError as error:
            raise NotRunError(
                f"torch {torch.__version__} has no fully_shard, which came with torch 2.4"
            ) from error
        if device_type == "cpu":
            raise NotRunError(
                f"torch {torch.__version__} shards over GPUs alone; over processes on a CPU from torch 2.6 on"
            ) from None
    return found  # type: ignore[no-any-return]  # mypy sees no torch


class _Block(torch.nn.Module):  # type: ignore[misc]  # as above
    """A transformer block in the form that torch wants to shard: its weights are gathered for it alone."""

    def __init__(self, model: Model, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self._model = model
        self._names = [f"weight_{number}" for number in range(len(weights))]
        for name, weight in zip(self._names, weights, strict=True):
            self.register_parameter(name, weight)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        # By their names, each time: while it runs they are other tensors, whole ones.
        return self._model.block(batch, *(getattr(self, name) for name in self._names))


class _Blocks(torch.nn.Module):  # type: ignore[misc]  # as above
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(_Block(model, weights) for weights in model.layers)

    def forward(self, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            batch = block(batch)
        return torch.nn.functional.mse_loss(batch.float(), target)


class Shards:
    """One rank's part of the weights of each block, and of their gradients."""

    def __init__(self, model: Model, device: torch.device) -> None:
        """Raise NotRunError."""
        shard = fully_shard(device.type)
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        self._all = _Blocks(model)
        for block in self._all.blocks:
            shard(block, mesh=mesh)
        shard(self._all, mesh=mesh)
        # The whole ones would stay in memory.
        model.forget()
        self.parameters = list(self._all.parameters())

    def loss(self, batch: torch.Tensor, target: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
        """Return that of this rank's batch; nothing of it can be `checkpointed`."""
        assert not checkpointed
        loss: torch.Tensor = self._all(batch, target)
        return loss


class ShardedStep(ParallelStep):
    """A training step of all ranks, each on a batch of its own, with a part of the weights on each."""

    def _error(self) -> float:
        """Return how far loss, gradients and weights are from those of the same step without shards."""
        self._start()
        self.prepare()
        loss = self.backward(*self.data)
        plain = TransformerStep(self.device, self._shape, self.way)
        plain.prepare()
        alone = plain.backward(*self.data)
        errors = [(loss - alone).abs() / alone]
        for shard, whole in zip(self._model.parameters, plain.weights, strict=True):
            torch.distributed.all_reduce(whole.grad)
            whole.grad /= torch.distributed.get_world_size()
            errors.append(_distance(shard.grad.full_tensor(), whole.grad))
        for step in (self, plain):
            step.update()
        errors += [
            _distance(shard.detach().full_tensor(), whole.detach())
            for shard, whole in zip(self._model.parameters, plain.weights, strict=True)
        ]
        return float(torch.stack(errors).max())  # unlike Python's max(), it keeps a NaN

    def _made(self) -> Shards:
        return Shards(Model(self.device, self._shape), self.device)


def _distance(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return found.sub(right).norm() / right.norm()
