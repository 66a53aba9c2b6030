"""The node that a run measures: facts about it, read once, that its tests share."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property

from validation.model.contract import GpuIdentity
from validation.model.expectations import Expectation
from validation.model.plans import Plan, RunOptions
from validation.probes import machine, topology
from validation.probes.kernel_log import KernelLog
from validation.probes.node_probe import Facts, NodeProbe, failure_reason
from validation.probes.nvidia_smi import Gpu, NvidiaSmiError, Report
from validation.probes.nvlink import Links
from validation.probes.topology import Topology
from validation.processes.pool import ProcessOutcome, WorkerPool

#: The most that a busy machine stretches a test's budget.
MOST_PATIENCE = 4.0


@dataclass(frozen=True)
class Node:
    """What the tests of one run share: facts about this node, read once.

    `ends_at` (time.monotonic()) is when the run has to have its answer: no test is given more time than that.
    """

    plan: Plan
    expectation: Expectation
    run_options: RunOptions = field(default_factory=RunOptions)
    cpus: int = field(default_factory=machine.available_cpus)
    torch: machine.Torch | None = field(default_factory=machine.find_torch)
    visible_devices: str | None = field(default_factory=lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
    granted: machine.Grant | None = field(default_factory=machine.granted_gpus)
    pool: WorkerPool = field(default_factory=WorkerPool)
    probe: NodeProbe = field(default_factory=NodeProbe)
    ends_at: float = float("inf")

    def probe_now(self) -> None:
        """Read now what tells of faults, so that what comes later is known to be new."""
        _ = self._probed

    def close(self) -> None:
        """End all processes that wait for more to do."""
        self.pool.close()
        self.probe.close()

    @property
    def stuck(self) -> list[ProcessOutcome]:
        """What became of processes that waited for more to do, and did not end when they were to."""
        return [*self.pool.stuck, *self.probe.stuck]

    @cached_property
    def _probed(self) -> Facts | ProcessOutcome:
        return self.probe.facts(bool(self.expectation.nvswitch))

    @property
    def probe_failure(self) -> ProcessOutcome | None:
        """What became of the process that was to look at this node, None where it came back with facts."""
        return self._probed if isinstance(self._probed, ProcessOutcome) else None

    @property
    def facts(self) -> Facts:
        """What this node says of itself; nothing at all after a `probe_failure`."""
        return Facts() if isinstance(self._probed, ProcessOutcome) else self._probed

    @property
    def pci_gpus(self) -> tuple[machine.PciGpu, ...]:
        """The NVIDIA GPUs on the PCI bus, without those that the driver is to leave alone."""
        alone = self.expectation.undriven_gpus
        return tuple(gpu for gpu in self.facts.pci_gpus if gpu.pci_id not in alone and not gpu.given_away)

    @property
    def newly_given(self) -> tuple[machine.PciGpu, ...]:
        """The GPUs that another driver has, and that were the node's own when it was planned."""
        known = self.expectation.given_gpus
        return tuple(gpu for gpu in self.facts.pci_gpus if gpu.given_away and gpu.address not in known)

    @property
    def loaded_driver(self) -> str | None:
        """The version of the kernel module that is loaded, None where none is."""
        return self.facts.loaded_driver

    @property
    def smi(self) -> Report | NvidiaSmiError:
        """What nvidia-smi reports, or why it does not."""
        return self.facts.smi

    @property
    def nvlinks(self) -> dict[int, Links] | NvidiaSmiError:
        """The NVLinks of each GPU that has any, by its index, or why nvidia-smi does not say."""
        return self.facts.nvlinks

    @property
    def kernel_log(self) -> KernelLog:
        """The Xid errors since the driver was loaded."""
        return self.facts.kernel_log

    @property
    def on_switches(self) -> bool:
        """Whether NVSwitches join the GPUs. Those of the fifth generation are not on the PCI bus as such."""
        return self.facts.nvswitch or bool(self.expectation.nvswitch)

    def copies_over_c2c(self, gpu: Gpu) -> bool:
        """Return whether a GPU copies over NVLink-C2C.

        Then its PCIe link carries nothing that is measured.
        """
        return self.expectation.references.is_superchip(gpu.pci_id) and gpu.c2c is not False

    @cached_property
    def topology(self) -> Topology | ProcessOutcome:
        """How the GPUs hang on this machine, or what became of the process that was to read it."""
        return self.probe.topology(tuple(gpu.address for gpu in self.pci_gpus))

    @property
    def gpus(self) -> tuple[GpuIdentity, ...]:
        """The GPUs that the driver drives; without a driver, what the PCI bus shows of them."""
        if isinstance(self.smi, Report):
            return tuple(
                GpuIdentity(
                    index=gpu.index,
                    name=gpu.name,
                    uuid=gpu.uuid,
                    pci_address=gpu.pci_address,
                    pci_id=gpu.pci_id,
                    pcie_generation_max=topology.generation_possible(gpu, port),
                    pcie_width_max=topology.width_possible(gpu, port),
                )
                for gpu in self.smi.gpus
                for port in [topology.port_of(gpu, self.facts.pcie_ports)]
            )
        return tuple(
            GpuIdentity(index, f"10de:{gpu.pci_id}", "", gpu.address, gpu.pci_id)
            for index, gpu in enumerate(self.pci_gpus)
        )

    @property
    def budget_s(self) -> float:
        """How long a test may take now: longer on a machine that has more to do than CPUs to do it with."""
        return min(self.plan.budget_s * self.stretch, self.left_s)

    @property
    def left_s(self) -> float:
        """How long it is until the run has to have its answer."""
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def stretch(self) -> float:
        """How many times as long things may take on a machine as busy as this one is now."""
        return min(MOST_PATIENCE, max(1.0, os.getloadavg()[0] / self.cpus))

    @property
    def exclusive_gpu(self) -> int | None:
        """A GPU that serves one process at a time, None where all serve many."""
        if not isinstance(self.smi, Report):
            return None
        return next((gpu.index for gpu in self.smi.gpus if gpu.is_exclusive), None)

    def free_exclusive_gpu(self) -> None:
        """Before new processes start on GPUs: those that wait would lock them out of an exclusive one."""
        if self.exclusive_gpu is not None:
            self.pool.close()

    def why_no_torch(self) -> str | None:
        """Return why nothing can be measured here, None if it can."""
        if self.torch is None:
            return f"torch is not installed for {sys.executable}"
        return None

    def why_no_gpu(self) -> str | None:
        """Return why this node has no GPU to look at, None if it has."""
        if self.probe_failure:
            return failure_reason(self.probe_failure)
        return None if self.pci_gpus else "no NVIDIA GPU on the PCI bus"

    def _shows_all(self, devices: list[str]) -> bool:
        """Return whether these are all GPUs in their order, by number or by UUID."""
        names = [device.strip() for device in devices]
        return names in ([str(gpu.index) for gpu in self.gpus], [gpu.uuid for gpu in self.gpus])

    def why_no_cuda(self) -> str | None:
        """Return why no GPU can be measured here, from hardware up to framework; None if it can."""
        if reason := self.why_no_gpu():
            return reason
        if self.loaded_driver is None:
            return "the NVIDIA driver is not loaded"
        if isinstance(self.smi, NvidiaSmiError):
            return str(self.smi)
        if self.torch is None:
            return self.why_no_torch()
        if self.torch.cuda is None:
            return f"torch {self.torch.version} is built without CUDA"
        if sliced := [gpu.index for gpu in self.smi.gpus if gpu.mig]:
            return f"MIG is on for GPU {sliced[0]}, and slices of GPUs are not measured"
        if prohibited := [gpu.index for gpu in self.smi.gpus if gpu.compute_mode == "Prohibited"]:
            return f"GPU {prohibited[0]} is in compute mode Prohibited, in which no program can use it"
        if self.visible_devices is not None and not self._shows_all(self.visible_devices.split(",")):
            return (
                f"CUDA_VISIBLE_DEVICES is {self.visible_devices!r}, which hides or renumbers GPUs of this "
                "node: unset it"
            )
        return None
