"""What Slurm has to know of a node's GPUs: gres.conf, cgroup.conf, and the words for slurm.conf."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from temper.plan.facts import GPU_CLASSES, NodeFacts, Socket

NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class SlurmGpu:
    """A GPU: its type, the number of its device file, its NUMA node (None: not known)."""

    kind: str
    minor: int
    numa_node: int | None


def slurm_gpus(
    node: NodeFacts, names: Mapping[str, str], left_alone: Collection[str]
) -> tuple[SlurmGpu, ...]:
    """Return the GPUs for jobs; `names` are those of models by PCI id, `left_alone` ids that are for no job.

    Before the driver is loaded, device files are taken to be numbered in the order of PCI addresses, as the
    driver finds them; afterwards it says so itself. A GPU that a loaded driver does not know gets a number
    that no other has.
    """
    devices = sorted(
        (one for one in node.own_pci if one.class_id in GPU_CLASSES and one.device_id not in left_alone),
        key=lambda one: one.address,
    )
    taken = {device.minor for device in devices}
    free = (number for number in itertools.count() if number not in taken)
    return tuple(
        SlurmGpu(
            kind(names.get(device.device_id, f"10de {device.device_id}")),
            next(free) if device.minor is None else device.minor,
            device.numa_node,
        )
        for device in devices
    )


def kind(name: str) -> str:
    """Return a model's name as Slurm's type: H100 SXM 80 GB is h100_sxm_80_gb."""
    return NAME.sub("_", name.lower()).strip("_")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as Slurm writes them: 0-3,8."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)


def cores_beside(numa_node: int | None, sockets: Sequence[Socket]) -> str:
    """Return the cores of the socket that a GPU hangs on, in Slurm's own count; empty where all are as good.

    Slurm takes all cores of a socket or none, and counts cores over the sockets (gres.conf(5), "Cores").
    """
    first = 0
    for socket in sockets:
        if numa_node in socket.numa_nodes:
            return f"{first}-{first + socket.cores - 1}" if len(sockets) > 1 else ""
        first += socket.cores
    return ""


def gres(gpus: Sequence[SlurmGpu], *, typed: bool, divided: bool) -> str:
    """Return the value of Gres= in the node's line of slurm.conf.

    Of GPUs that are `divided` each instance counts, and only slurmd says how many it finds.
    """
    if not typed:
        return "gpu:NUMBER, as many as `slurmd -G` lists," if divided else f"gpu:{len(gpus)}"
    return ",".join(f"gpu:{name}:{count}" for name, count in sorted(Counter(g.kind for g in gpus).items()))


def gres_lines(gpus: Sequence[SlurmGpu], sockets: Sequence[Socket]) -> list[str]:
    """Return the lines of gres.conf: GPUs of one type beside the same cores together."""
    lines = []
    placed = sorted((gpu.kind, cores_beside(gpu.numa_node, sockets), gpu.minor) for gpu in gpus)
    for (name, cores), group in groupby(placed, key=lambda place: place[:2]):
        numbers = ranges(minor for *_, minor in group)
        file = f"[{numbers}]" if not numbers.isdigit() else numbers
        lines.append(f"Name=gpu Type={name} File=/dev/nvidia{file}{f' Cores={cores}' if cores else ''}")
    return lines


def cgroup_value(value: object) -> str:
    """Return a value of cgroup.conf; YAML reads yes and no as booleans."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
