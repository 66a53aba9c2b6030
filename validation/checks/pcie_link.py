"""The PCIe link of a GPU: what it runs at, against what the card and the port above it both can do.

nvidia-smi's maximum number of lanes is the card's alone, its maximum generation that of card and system.
Where nobody sees the port, as in a virtual machine, that a lane or a generation is missing fails nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from validation.findings.catalogue import finding
from validation.probes.nvidia_smi import FULL_SPEED_STATES, Report
from validation.probes.pcie import generation_possible, port_of, width_possible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.checks.node import Node
    from validation.model.contract import Finding
    from validation.probes.nvidia_smi import Gpu

#: GPUs that are soldered to a board with as many lanes as its maker laid.
SOLDERED = re.compile(r"Laptop GPU|with Max-Q|Mobile")


def examine(node: Node, gpu: Gpu) -> Iterator[Finding]:
    """An idle GPU may lower its link to generation 1; one at full speed may not, and lanes never go.

    The link of a GPU that copies over NVLink-C2C is idle at full speed, too, and a lost lane slows nothing.
    """
    if gpu.shares_memory:
        return
    c2c = node.copies_over_c2c(gpu)
    port = port_of(gpu, node.facts.pcie_ports)
    generation_max = generation_possible(gpu, port)
    width_max = gpu.pcie_width_max if port is None else width_possible(gpu, port)
    at_full_speed = gpu.performance_state in FULL_SPEED_STATES and not c2c
    slow = at_full_speed and _below(gpu.pcie_generation, generation_max)
    narrow = _below(gpu.pcie_width, width_max) and not _as_given(node, gpu)
    if slow or (narrow and not (port is None and SOLDERED.search(gpu.name))):
        unseen = gpu.guest or port is None
        yield finding(
            "pcie-link-down-trained",
            "superchip" if c2c else "unseen" if unseen else "card",
            gpu=gpu.index,
            generation=gpu.pcie_generation,
            width=gpu.pcie_width,
            generation_max=generation_max,
            width_max=width_max,
        )
    yield from _slot(node, gpu, generation_max, width_max)


def _as_given(node: Node, gpu: Gpu) -> bool:
    """Whether a virtual machine has all its GPUs of a kind with as few lanes: so its host gives them.

    AWS gives T4 (g4dn), A10G (g5) and L40S (g6e) 8 of 16 lanes: telegraf's and k8s-test-infra's published
    reports. What they carry is measured; against lanes that go later stands the node's own past.
    """
    gpus = node.smi.gpus if isinstance(node.smi, Report) else ()
    alike = {one.pcie_width for one in gpus if one.pci_id == gpu.pci_id}
    return gpu.guest and len(alike) == 1


def _below(found: int | None, possible: int | None) -> bool:
    return bool(found and possible and found < possible)


def _slot(node: Node, gpu: Gpu, generation: int | None, width: int | None) -> Iterator[Finding]:
    """A port that offers less than the GPU can do, unless the board is plainly built like that."""
    if generation is None or width is None:
        return
    model = node.expectation.references.model_of(gpu.pci_id) or {}
    link = model.get("pcie", {"generation": generation, "width": gpu.pcie_width_max})
    narrow = width < link["width"] and not _by_design(node, gpu, width)
    if generation < link["generation"] or narrow:
        yield finding(
            "pcie-slot-limits",
            gpu=gpu.index,
            generation=generation,
            width=width,
            model=model.get("name", gpu.name),
            model_generation=link["generation"],
            model_width=link["width"],
        )


def _by_design(node: Node, gpu: Gpu, width: int) -> bool:
    """Whether it is soldered, or all ports above the GPUs of this node are as narrow as its own."""
    if SOLDERED.search(gpu.name):
        return True
    gpus = node.smi.gpus if isinstance(node.smi, Report) else ()
    ports = [port_of(one, node.facts.pcie_ports) for one in gpus]
    return len(ports) > 1 and all(port and port.width == width for port in ports)
