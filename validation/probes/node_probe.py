"""Probing the node: what touches hardware, the driver or other programs, read in a process of its own.

A read of sysfs or of the kernel log, or a program that asks the driver, can sleep in the kernel for ever when
a GPU has fallen off the bus, and no time-out in the process that does it can end that. So a process without
torch probes, with a budget, and says at which stage it is; it stays for the next probe, because starting it
costs a tenth of a second. What it brings home are facts, which the checks judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from validation.model.contract import ContractError, Measured, decode, encode
from validation.probes import counters, gpu_samples, kernel_log, machine, nvidia_smi, nvlink, topology
from validation.probes.kernel_log import KernelLog
from validation.probes.nvidia_smi import NvidiaSmiError, Report
from validation.probes.topology import PciePort, Topology
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome, WorkerPool, run_children

Stage = Callable[[str], None]

T = TypeVar("T")

#: More than the time limits of all programs that are asked in one probe, so that one that hangs is named by
#: its own limit, and this one only ends what sleeps in the kernel.
BUDGET_S = 120.0
SAMPLE_BUDGET_S = nvidia_smi.SAMPLE_TIMEOUT_S + 10.0
NAME = "the process that looks at the node"


@dataclass(frozen=True)
class Facts:
    """What the node says of its GPUs and their driver at one moment."""

    pci_gpus: tuple[machine.PciGpu, ...] = ()
    pcie_ports: dict[str, PciePort] = field(default_factory=dict)  # above each GPU, by its address
    nvswitch: bool = False
    loaded_driver: str | None = None
    driver_libraries: dict[str, str] = field(default_factory=dict)
    smi: Report | NvidiaSmiError = field(default_factory=lambda: NvidiaSmiError("other", "nobody looked"))
    nvlinks: dict[int, nvlink.Links] | NvidiaSmiError = field(default_factory=dict)
    kernel_log: KernelLog = field(default_factory=KernelLog)
    fabric_manager: str | None = None
    fabric_manager_runs: bool | None = None


@dataclass(frozen=True)
class Sources:
    """Where facts come from."""

    pci_gpus: Callable[[], tuple[machine.PciGpu, ...]] = machine.pci_gpus
    pcie_ports: Callable[[Iterable[str]], dict[str, PciePort]] = topology.pcie_ports
    nvswitch: Callable[[], bool] = machine.has_nvswitch
    loaded_driver: Callable[[], str | None] = machine.loaded_driver
    driver_libraries: Callable[[], dict[str, str]] = machine.driver_libraries
    query: Callable[[], Report] = nvidia_smi.query
    nvlinks: Callable[[], dict[int, nvlink.Links]] = nvlink.query
    kernel_log: Callable[[], KernelLog] = kernel_log.read_kernel_log
    fabric_manager: Callable[[], str | None] = machine.fabric_manager_version
    fabric_manager_runs: Callable[[], bool | None] = machine.fabric_manager_runs


def gather(sources: Sources, on_switches: bool, stage: Stage) -> Facts:
    """Look at everything once. `on_switches`: whether NVSwitches are expected, if none is on the PCI bus."""
    stage("listing the GPUs on the PCI bus")
    gpus, nvswitch = sources.pci_gpus(), sources.nvswitch()
    ports = sources.pcie_ports(gpu.address for gpu in gpus)
    stage("looking for the driver and its libraries")
    driver, libraries = sources.loaded_driver(), sources.driver_libraries()
    stage("reading the kernel log of Xid errors")
    kernel_log = sources.kernel_log() if gpus else KernelLog()
    stage("asking nvidia-smi about every GPU")
    smi = _or_error(sources.query)
    stage("asking nvidia-smi for the NVLinks")
    nvlinks = _or_error(sources.nvlinks) if isinstance(smi, Report) else {}
    stage("asking the fabric manager for its version")
    fabric_manager = sources.fabric_manager() if nvswitch or on_switches else None
    runs = sources.fabric_manager_runs() if nvswitch and fabric_manager else None
    return Facts(gpus, ports, nvswitch, driver, libraries, smi, nvlinks, kernel_log, fabric_manager, runs)


def _or_error(ask: Callable[[], T]) -> T | NvidiaSmiError:
    try:
        return ask()
    except NvidiaSmiError as error:
        return error


@dataclass(frozen=True)
class _Sampled:
    samples: tuple[gpu_samples.Sample, ...] | NvidiaSmiError


@dataclass(frozen=True)
class _Counted:
    counts: dict[int, dict[str, int]]


def probe(request: Request, stage: Stage) -> Measured:
    """In the probing process: one of the four things that a NodeProbe asks for."""
    wanted: Any
    match request.parameters:
        case {"facts": bool() as on_switches}:
            wanted = gather(Sources(), on_switches, stage)
        case {"topology": list() as gpus}:
            stage("reading the topology of the PCI bus and the network adapters")
            wanted = topology.read(tuple(gpus))
        case {"counts": _}:
            stage("asking nvidia-smi for error counters")
            wanted = _Counted(counters.read())
        case _:
            stage("asking nvidia-smi for clocks and links")
            wanted = _Sampled(_or_error(gpu_samples.sample))
    return Measured(details=encode(wanted))


class NodeProbe:
    """Keeps a process that probes the node. Whoever made it closes it."""

    def __init__(self, function: str = f"{__name__}:probe", budget_s: float = BUDGET_S) -> None:
        self._pool = WorkerPool()
        self._function, self._budget_s = function, budget_s

    def facts(self, on_switches: bool) -> Facts | ProcessOutcome:
        """Return what the node says now, or what became of the process that asked."""
        return self._ask(Facts, self._budget_s, facts=on_switches)

    def topology(self, gpus: tuple[str, ...]) -> Topology | ProcessOutcome:
        """Return how the GPUs with these PCI addresses hang on the machine; likewise."""
        return self._ask(Topology, self._budget_s, topology=gpus)

    def sample(self) -> tuple[gpu_samples.Sample, ...]:
        """Clocks, power and links of every GPU now. Raises NvidiaSmiError."""
        found = self._ask(_Sampled, min(self._budget_s, SAMPLE_BUDGET_S), sample=True)
        if isinstance(found, ProcessOutcome):
            raise NvidiaSmiError("timeout", failure_reason(found))
        if isinstance(found.samples, NvidiaSmiError):
            raise found.samples
        return found.samples

    def counts(self) -> counters.Counts:
        """Return the error counters now, empty where nobody says them."""
        found = self._ask(_Counted, self._budget_s, counts=True)
        return {} if isinstance(found, ProcessOutcome) else found.counts

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    @property
    def stuck(self) -> list[ProcessOutcome]:
        """What became of the process if it did not end."""
        return self._pool.stuck

    def _ask(self, kind: type[T], budget_s: float, **parameters: Any) -> T | ProcessOutcome:
        request = Request(NAME, self._function, "none", parameters=parameters, reuse=True)
        (outcome,) = run_children([request], budget_s, pool=self._pool)
        if outcome.ending is not Ending.DONE or outcome.measured.not_run:
            return outcome
        try:
            return decode(kind, outcome.measured.details)
        except ContractError as error:
            problem = f"{NAME} answered something that is no result: {error}"
            return dataclasses.replace(outcome, ending=Ending.UNREADABLE, problem=problem)


def failure_reason(outcome: ProcessOutcome) -> str:
    """Return why nothing was seen."""
    return outcome.problem or outcome.measured.not_run or "it gave no reason"
