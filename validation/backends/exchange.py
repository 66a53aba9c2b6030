"""Collectives besides the all-reduce, in torch: each rank's part of the data is known, so results are exact.

A buffer of `size_bytes` is the larger one of a collective, as nccl-tests count: what is gathered, what is
scattered, what is sent.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Callable, Iterator

import torch
import torch.distributed
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

from validation.backends.operations import ROW, row
from validation.model.contract import encoded
from validation.model.not_run import NotRunError
from validation.probes import flight_recorder
from validation.processes.child import collective_call, when_asked

TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


class Exchange:
    """all_gather, reduce_scatter or all_to_all over all ranks.

    What rank r holds for rank j is a row of small whole numbers of its own, repeated: a part that arrives at
    the wrong place, from the wrong rank or not at all is found.
    """

    def __init__(self, device: torch.device, kind: str, size_bytes: int) -> None:
        self._rank, self._ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._part = part_elements(size_bytes, self._ranks)
        self.work = float(self._part * self._ranks * 4)
        self._kind = kind
        self._device = device
        # In place: a second copy of a buffer that takes much of the GPU would not fit.
        self._source = torch.empty(self._part * (1 if kind == "all_gather" else self._ranks), device=device)
        for part, numbers in zip(self._source.split(self._part), self._sent(), strict=True):
            for block in part.split(ROW):
                block.copy_(numbers[: block.numel()])
        self._target = torch.empty(
            self._part * (1 if kind == "reduce_scatter" else self._ranks), device=device
        )

    def _sent(self) -> Iterator[torch.Tensor]:
        """Yield the row of each part of the source, one at a time: those of all ranks would fill a GPU."""
        if self._kind == "all_gather":
            yield self._row(self._rank)
        else:
            yield from (self._row(self._rank * self._ranks + to) for to in range(self._ranks))

    def _expected(self) -> Iterator[torch.Tensor]:
        """Yield the row of each part of the target, one at a time."""
        if self._kind == "all_gather":
            yield from (self._row(rank) for rank in range(self._ranks))
            return
        received = (self._row(rank * self._ranks + self._rank) for rank in range(self._ranks))
        if self._kind == "all_to_all":
            yield from received
        else:
            yield functools.reduce(torch.add, received)

    def _row(self, number: int) -> torch.Tensor:
        return row(number, self._device, min(ROW, self._part))

    def prepare(self) -> None:
        """Nothing: the source stays as it is."""

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        with collective_call():
            _FUNCTIONS[self._kind](self._target, self._source)

    def error(self) -> float:
        """Return the part of the elements that are not exactly right, on this rank."""
        self._target.fill_(float("nan"))
        self.run()
        wrong = 0
        for part, numbers in zip(self._target.split(self._part), self._expected(), strict=True):
            for block in part.split(ROW):
                wrong += int((block != numbers[: block.numel()]).sum())
        return wrong / int(self._target.numel())


def part_elements(size_bytes: int, ranks: int) -> int:
    """Return the fp32 numbers of each rank's part of a buffer.

    Each part begins at a multiple of 16 bytes, which NCCL copies at a time, for any number of ranks.
    """
    return max(4, size_bytes // (16 * ranks) * 4)


def _function(*names: str) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """Return the first of these that this torch has: 2.13 gave some a new name."""
    found: Callable[[torch.Tensor, torch.Tensor], object] = next(
        getattr(torch.distributed, name) for name in names if hasattr(torch.distributed, name)
    )
    return found


_FUNCTIONS = {
    "all_gather": _function("all_gather_single", "all_gather_into_tensor"),
    "reduce_scatter": _function("reduce_scatter_single", "reduce_scatter_tensor"),
    "all_to_all": _function("all_to_all_single"),
}


def join(library: str, rank: int, world_size: int, store: str, timeout_s: float) -> None:
    """Become one of `world_size` ranks that meet at `store`: a file, or tcp://ADDRESS:PORT/RUN at rank 0.

    Only ranks of the same run meet there. One that hangs tells its last collective (flight_recorder.py).
    """
    flight_recorder.keep()
    torch.distributed.init_process_group(
        library,
        rank=rank,
        world_size=world_size,
        store=meet(rank, world_size, store, timeout_s)
        if store.startswith("tcp://")
        else torch.distributed.FileStore(store, world_size),
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    when_asked(lambda: encoded(flight_recorder.of_this_process(library)))


def meet(rank: int, world_size: int, store: str, timeout_s: float) -> torch.distributed.Store:
    """Return what ranks share that meet at tcp://ADDRESS:PORT/RUN; rank 0 keeps it for as long as it lives.

    It is the rendezvous of torchrun, as `torchrun --node-rank --master-addr` does it.

    Its static kind keeps the ranks that the order gives, and costs a rank one connection. The other, c10d,
    deals out ranks by who comes first, and all ranks compete to write one common state: thousands are too
    many for that.

    Raises NotRunError.
    """
    endpoint, _, run = store.removeprefix("tcp://").partition("/")
    parameters = RendezvousParameters(
        "static",
        endpoint,
        run,
        min_nodes=world_size,
        max_nodes=world_size,
        rank=rank,
        timeout=math.ceil(timeout_s),
    )
    try:
        found = registry.get_rendezvous_handler(parameters).next_rendezvous()
    except RuntimeError as error:
        if rank or not TAKEN.search(str(error)):
            raise
        # Any user's, who must not make this node look broken.
        raise NotRunError(
            f"another program of this node has port {endpoint.rpartition(':')[2]} (`ss -ltnp` names it): end "
            "it, or choose another port in gpu_validation_fabric_port"
        ) from error
    shared: torch.distributed.Store = found.store
    return shared


def highest(value: float, device: torch.device) -> float:
    """Return the highest of the values of all ranks; all learn the same.

    Each fills a place of its own and all are summed in fp32: that much every algorithm of NCCL can do, also
    one that was asked for by name (NVLS has no maximum of fp32).
    """
    values = torch.zeros(torch.distributed.get_world_size(), device=device)
    values[torch.distributed.get_rank()] = value
    with collective_call():
        torch.distributed.all_reduce(values)
    return float(values.max())
