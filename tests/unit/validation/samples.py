"""Samples that the tests of the payload share: a nvidia-smi report, a node, results and expectations."""

import dataclasses
from collections.abc import Callable
from typing import Any

from validation.checks.node import Node
from validation.model.contract import (
    RESULT_VERSION,
    GpuIdentity,
    Machine,
    Measurement,
    NodeResult,
    State,
    TestResult,
)
from validation.model.expectations import Expectation, ExpectedGpus, References
from validation.model.plans import PLANS
from validation.probes import counters, gpu_samples, nvidia_smi
from validation.probes.kernel_log import KernelLog
from validation.probes.machine import PciGpu, Torch
from validation.probes.node_probe import Facts, NodeProbe, Sources, gather
from validation.probes.nvlink import Links
from validation.probes.topology import PciePort, Topology
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome

DRIVER = "580.178.04"

H100 = {
    "name": "H100 SXM 80 GB",
    "pci_ids": ["2330"],
    "architecture": "hopper",
    "pcie": {"generation": 5, "width": 16},
    "floor": {
        "bf16_tflops": {"value": 672, "source": "a"},
        "fp16_tflops": {"value": 672, "source": "a", "verified": False},
        "busbw_gb_s": [{"gpus": 8, "size_bytes": 17179869184, "value": 460, "source": "a"}],
    },
}
PCIE = {"5": {"floor": {"h2d_pinned_gb_s": {"value": 48, "source": "a"}}}}


def gpu_xml(**changes: str) -> str:
    """One `<gpu>` of `nvidia-smi -q -x`: a healthy H100, with the text of some elements changed."""
    values = {
        "pci_bus_id": "00000000:1B:00.0",
        "uuid": "GPU-1",
        "performance_state": "P0",
        "persistence_mode": "Enabled",
        "current_mig": "Disabled",
        "dram_uncorrectable": "0",
        "remapped_row_failure": "No",
        "remapped_row_pending": "No",
        "pending_retirement": "N/A",
        "hw_slowdown": "Not Active",
        "hw_thermal_slowdown": "Not Active",
        "hw_power_brake_slowdown": "Not Active",
        "sw_thermal_slowdown": "Not Active",
        "current_link_gen": "5",
        "max_link_gen": "5",
        "current_link_width": "16x",
        "max_link_width": "16x",
        "state": "Completed",
        "status": "Success",
        "gpu_recovery_action": "None",
        "free": "81080 MiB",
        "used": "4 MiB",
        "current_ecc": "Enabled",
        "application_clock": "1980 MHz",
        "compute_mode": "Default",
        "processes": "",
        "virtualization_mode": "None",
        "product_name": "NVIDIA H100 80GB HBM3",
        "current_power_limit": "700.00 W",
        "pci_device_id": "233010DE",
    }
    assert changes.keys() <= values.keys(), f"the sample has no {changes.keys() - values.keys()}"
    v = values | changes
    reasons = "".join(
        f"<clocks_event_reason_{name}>{v[name]}</clocks_event_reason_{name}>"
        for name in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
    )
    return f"""<gpu id="{v["pci_bus_id"]}">
<product_name>{v["product_name"]}</product_name><uuid>{v["uuid"]}</uuid>
<persistence_mode>{v["persistence_mode"]}</persistence_mode>
<mig_mode><current_mig>{v["current_mig"]}</current_mig></mig_mode>
<gpu_virtualization_mode><virtualization_mode>{v["virtualization_mode"]}</virtualization_mode>
</gpu_virtualization_mode><gpu_recovery_action>{v["gpu_recovery_action"]}</gpu_recovery_action>
<pci><pci_device_id>{v["pci_device_id"]}</pci_device_id><pci_bus_id>{v["pci_bus_id"]}</pci_bus_id>
<pci_gpu_link_info><pcie_gen><max_link_gen>{v["max_link_gen"]}</max_link_gen>
<current_link_gen>{v["current_link_gen"]}</current_link_gen></pcie_gen>
<link_widths><max_link_width>{v["max_link_width"]}</max_link_width>
<current_link_width>{v["current_link_width"]}</current_link_width></link_widths></pci_gpu_link_info></pci>
<performance_state>{v["performance_state"]}</performance_state>
<clocks_event_reasons>{reasons}</clocks_event_reasons>
<fb_memory_usage><used>{v["used"]}</used><free>{v["free"]}</free></fb_memory_usage>
<ecc_mode><current_ecc>{v["current_ecc"]}</current_ecc></ecc_mode>
<applications_clocks><graphics_clock>{v["application_clock"]}</graphics_clock></applications_clocks>
<default_applications_clocks><graphics_clock>1980 MHz</graphics_clock></default_applications_clocks>
<compute_mode>{v["compute_mode"]}</compute_mode>
<gpu_power_readings><current_power_limit>{v["current_power_limit"]}</current_power_limit>
<default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
<ecc_errors><volatile><sram_correctable>7</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<dram_uncorrectable>{v["dram_uncorrectable"]}</dram_uncorrectable></volatile></ecc_errors>
<retired_pages><pending_retirement>{v["pending_retirement"]}</pending_retirement></retired_pages>
<remapped_rows><remapped_row_pending>{v["remapped_row_pending"]}</remapped_row_pending>
<remapped_row_failure>{v["remapped_row_failure"]}</remapped_row_failure></remapped_rows>
<fabric><state>{v["state"]}</state><status>{v["status"]}</status></fabric>
<processes>{v["processes"]}</processes></gpu>"""


def smi_xml(*gpus: str, driver: str = DRIVER, attached: int | None = None) -> str:
    """The whole of `nvidia-smi -q -x`."""
    count = "" if attached is None else f"<attached_gpus>{attached}</attached_gpus>\n"
    return (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">'
        f"<nvidia_smi_log><driver_version>{driver}</driver_version>\n"
        + count
        + "\n".join((*gpus, "</nvidia_smi_log>"))
    )


def expectation(count: int = 2, **changes: Any) -> Expectation:
    """`count` H100 with the driver of the sample, nothing required."""
    base = Expectation(
        gpus=(ExpectedGpus("h100_sxm_80gb", "H100 SXM 80 GB", count),),
        driver_version=DRIVER,
        nvswitch=True,
        references=References({"h100_sxm_80gb": H100}, PCIE),
    )
    return dataclasses.replace(base, **changes)


class Told(NodeProbe):
    """Looks at a node that is made up: what it is told, each time anew."""

    def __init__(
        self, sources: Sources, topology: Callable[[tuple[str, ...]], Topology | ProcessOutcome]
    ) -> None:
        super().__init__()
        self._sources, self._topology = sources, topology

    def facts(self, on_switches: bool) -> Facts | ProcessOutcome:
        return gather(self._sources, on_switches, lambda _: None)

    def topology(self, gpus: tuple[str, ...]) -> Topology | ProcessOutcome:
        return self._topology(gpus)

    def sample(self) -> tuple[gpu_samples.Sample, ...]:
        raise nvidia_smi.NvidiaSmiError("missing", "nvidia-smi is not installed")

    def counts(self) -> counters.Counts:
        return {}


def _two_numa_nodes(gpus: tuple[str, ...]) -> Topology:
    return Topology(gpu_numa_node=dict.fromkeys(gpus, 0), gpu_far_numa_node=dict.fromkeys(gpus, 1))


def _say(said: Any) -> Any:
    return said


def node(xml: str | nvidia_smi.NvidiaSmiError | None = None, **changes: Any) -> Node:
    """A node with two healthy H100 as the checks see it. `xml` is what nvidia-smi says, or how it fails."""

    def query() -> nvidia_smi.Report:
        if isinstance(xml, nvidia_smi.NvidiaSmiError):
            raise xml
        return nvidia_smi.parse(
            xml or smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2"))
        )

    told: dict[str, Any] = {
        "pci_gpus": (PciGpu("0000:1b:00.0", "2330"), PciGpu("0000:43:00.0", "2330")),
        "pcie_ports": lambda gpus: dict.fromkeys(gpus, PciePort(16, 5)),
        "nvswitch": True,
        "loaded_driver": DRIVER,
        "driver_libraries": {"libcuda.so.1": DRIVER},
        "fabric_manager": DRIVER,
        "fabric_manager_runs": True,
        "query": query,
        "nvlinks": lambda: {0: Links(18, ()), 1: Links(18, ())},
        "kernel_log": KernelLog,
    }
    facts: dict[str, Any] = {
        "plan": PLANS["quick"],
        "expectation": expectation(),
        "cpus": 2,
        "torch": Torch("2.13.0+cu130", "13.0"),
        "visible_devices": None,
    }
    topology = changes.pop("topology", _two_numa_nodes)
    told |= {name: changes.pop(name) for name in tuple(changes) if name in told}
    # What is no function is the answer.
    sources = Sources(
        **{name: said if callable(said) else lambda said=said: said for name, said in told.items()}
    )
    return Node(**{"probe": Told(sources, topology)} | facts | changes)


def measurement(name: str = "bf16_tflops", value: float = 730.0, **changes: Any) -> Measurement:
    """A number of GPU 0."""
    return dataclasses.replace(Measurement(name, value, samples=20, spread=0.01, device=0), **changes)


def one_test(
    test_id: str = "gpu_matmul", state: State = State.PASS, *measurements: Measurement, **changes: Any
) -> TestResult:
    """A test's result."""
    base = TestResult(test_id, state, method=1, duration_s=1.0, measurements=measurements)
    return dataclasses.replace(base, **changes)


def node_result(*tests: TestResult, name: str = "gpu01", gpus: int | None = None) -> NodeResult:
    """A node's result with `gpus` H100: as many as have a number, two where none has."""
    devices = {one.device for test in tests for one in test.measurements if one.device is not None}
    count = gpus if gpus is not None else max(devices, default=1) + 1
    return NodeResult(
        schema_version=RESULT_VERSION,
        node=name,
        plan="quick",
        started_at="2026-11-20T12:00:00+00:00",
        duration_s=12.0,
        machine=Machine("host", "Debian", "6.1", "CPU", 2, 8 << 30, "3.11.2", "2.13.0", DRIVER),
        gpus=tuple(
            GpuIdentity(
                index, "NVIDIA H100 80GB HBM3", f"GPU-{index}", f"0000:{index:02x}:00.0", "2330", 5, 16
            )
            for index in range(count)
        ),
        tests=tests,
    )


def collective_request(**parameters: Any) -> Request:
    """A request to the first of two ranks."""
    usual = {"rank": 0, "world_size": 2, "store": "s", "timeout_s": 9, "collectives": ["all_reduce"]}
    return Request("", "", "cpu", parameters=usual | parameters)


def is_running(pid: int) -> bool:
    """Whether a process does anything still; one that only waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as status:  # noqa: PTH123 - no path of a file system
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
