"""What the PCIe link of a GPU can do: the card, and the port above it, where that can be seen.

Where GPU and CPU are one chip, nvidia-smi names a link that there is not (Syllo/nvtop pull request 499).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from validation.probes.topology import PciePort

if TYPE_CHECKING:
    from validation.probes.nvidia_smi import Gpu


def port_of(gpu: Gpu, ports: Mapping[str, PciePort]) -> PciePort | None:
    """Return the port above a GPU; None where it cannot be seen: that of a virtual machine is made up."""
    return None if gpu.guest else ports.get(gpu.pci_address)


def generation_possible(gpu: Gpu, port: PciePort | None) -> int | None:
    """Return the generation that card and port both have."""
    if gpu.shares_memory:
        return None
    if gpu.pcie_generation_max is None or port is None or not port.generation:
        return gpu.pcie_generation_max
    return min(gpu.pcie_generation_max, max(port.generation, gpu.pcie_generation or 0))


def width_possible(gpu: Gpu, port: PciePort | None) -> int | None:
    """Return the lanes that card and port both have; where no port is seen, those that are there."""
    if gpu.pcie_width_max is None or gpu.shares_memory:
        return None
    width = gpu.pcie_width or gpu.pcie_width_max
    return min(gpu.pcie_width_max, max(port.width, width) if port else width)
