"""The faults that a simulated node can have, by name.

A node's active faults are a JSON list of names in `/var/lib/gpu-simulator/faults.json`. They are independent
of each other, act at once (no reboot) and end when their name leaves the list. On the node,
`/usr/lib/gpu-simulator/gpu-simulator fault NAME on|off` edits the list and brings sysfs in line with it.

`gpu-lost` concerns the last GPU of a node, every other fault the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FAULTS: Mapping[str, str] = {
    "no-driver": "the nvidia kernel module does not load",
    "gpu-lost": "the last GPU has fallen off the bus",
    "module-build-fails": "the nvidia module does not compile, as on a kernel that is too new for it",
    "ecc-errors": "the first GPU counts uncorrectable memory errors since boot",
    "row-remap-failure": "the first GPU could not remap a faulty memory row",
    "throttling": "the first GPU slows down because it is too hot",
    "pcie-gen1": "the first GPU's PCIe link stays at generation 1, under load too",
    "fabric-not-ready": "the GPUs do not finish their registration with the NVLink fabric",
    "compute-process": "a process computes on the first GPU",
}


def check(names: Iterable[str]) -> list[str]:
    """Return `names` sorted and without repetition; raise ValueError if one of them is no fault."""
    wanted = sorted(set(names))
    unknown = [name for name in wanted if name not in FAULTS]
    if unknown:
        raise ValueError(f"unknown fault {', '.join(unknown)}: expected one of {', '.join(sorted(FAULTS))}")
    return wanted
