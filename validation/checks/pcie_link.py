"""The PCIe link of a GPU: what it runs at, against what the card and the port above it both can do.

nvidia-smi's maximum number of lanes is the card's alone, its maximum generation that of card and system.
Where nobody sees the port, as in a virtual machine, that a lane or a generation is missing fails nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding
from validation.probes.nvidia_smi import FULL_SPEED_STATES, Gpu, Report
from validation.probes.topology import generation_possible, port_of, width_possible

#: GPUs that are soldered to a board with as many lanes as its maker laid.
SOLDERED = re.compile(r"Laptop GPU|with Max-Q|Mobile")
#: GPUs that virtual machines of AWS (g4dn, g5, g6e) have with 8 of 16 lanes: reports of T4 and A10G in
#: https://github.com/influxdata/telegraf/tree/b2726314/plugins/inputs/nvidia_smi/testdata, of L40S and T4 in
#: https://github.com/NVIDIA/k8s-test-infra/tree/3b2b865d/tests/e2e/go/assertions/nvidiasmi/testdata/hardware.
HALF_GIVEN = re.compile(r"\b(T4|A10G|L40S)$")


def examine(node: Node, gpu: Gpu) -> Iterator[Finding]:
    """Yield slow links. An idle GPU may lower its link to generation 1, no busy one may, and lanes never go.

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
    """Return whether the host of a virtual machine gives so few lanes by design.

    Several GPUs of a kind with equally few are; of a single one only the published reports say so. What the
    lanes carry is measured, and the node's history shows lanes that go later.
    """
    gpus = node.smi.gpus if isinstance(node.smi, Report) else ()
    widths = [one.pcie_width for one in gpus if one.pci_id == gpu.pci_id]
    alike = len(widths) > 1 and len(set(widths)) == 1
    return gpu.guest and (alike or (gpu.pcie_width == 8 and bool(HALF_GIVEN.search(gpu.name))))


def _below(found: int | None, possible: int | None) -> bool:
    return bool(found and possible and found < possible)


def _slot(node: Node, gpu: Gpu, generation: int | None, width: int | None) -> Iterator[Finding]:
    """Yield a port that offers less than the GPU can do, unless the board is plainly built like that."""
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
    """Return whether it is soldered, or all ports above the GPUs of this node are as narrow as its own."""
    if SOLDERED.search(gpu.name):
        return True
    gpus = node.smi.gpus if isinstance(node.smi, Report) else ()
    ports = [port_of(one, node.facts.pcie_ports) for one in gpus]
    return len(ports) > 1 and all(port and port.width == width for port in ports)
