"""Reports of real GPUs, made from the facts in reports/reports.yml as the drivers of their time write them.

Whole ones, of healthy GPUs, lie beside it. Whoever has more can have them judged, too: TEMPER_REPORTS=FOLDER.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from temper.plan.tables import read_yaml

TABLE = Path(__file__).parent / "reports/reports.yml"
DEPRECATED = "Requested functionality has been deprecated"
#: What a report nests: a name with its text, or with what is below it.
Tree = dict[str, Any]
SRAM_AND_DRAM = ("sram_correctable", "sram_uncorrectable", "dram_correctable", "dram_uncorrectable")
SPLIT = (
    "sram_correctable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_correctable",
    "dram_uncorrectable",
)


@dataclass(frozen=True)
class RealReport:
    """What a real nvidia-smi said; `facts` and `finds` are None where it is whole, and somebody's own."""

    name: str
    text: str
    facts: dict[str, Any] | None = None
    finds: tuple[str, ...] | None = None
    faults: tuple[str, ...] = ()


def from_table() -> list[RealReport]:
    """All reports of the table."""
    return [
        RealReport(
            f"{facts['origin']}/{facts['file']}",
            _report(facts),
            facts,
            tuple(facts["finds"]),
            tuple(facts.get("faults", ())),
        )
        for facts in read_yaml(TABLE)["reports"]
    ]


def from_folder() -> list[RealReport]:
    """Whole ones: ours, and those of the folder that TEMPER_REPORTS names."""
    given = os.environ.get("TEMPER_REPORTS")
    folders = [TABLE.parent, Path(given)] if given else [TABLE.parent]
    paths = [path for folder in folders for path in sorted(folder.glob("*.xml"))]
    return [RealReport(path.name, path.read_text(errors="replace")) for path in paths]


def of_gpu(facts: dict[str, Any], index: int) -> dict[str, Any]:
    """What a report says of one of its GPUs."""
    return {**facts, **facts.get("differs", {}).get(index, {})}


def addresses(facts: dict[str, Any]) -> list[str]:
    """The PCI addresses of a report's GPUs, as nvidia-smi writes them."""
    return [f"00000000:{index + 1:02X}:00.0" for index in range(facts.get("gpus", 1))]


def _report(facts: dict[str, Any]) -> str:
    branch = int(facts["driver"].split(".")[0])
    driver = f"<driver_version>{facts['driver']}</driver_version>"
    if branch >= 610:
        driver = (
            f"<driver_version>{facts['driver']} [Deprecated; will be removed in CUDA 14.0.]</driver_version>"
            f"<kmd_version>{facts['driver']}</kmd_version>"
        )
    gpus = "".join(
        f'<gpu id="{address}">\n{_xml(_gpu(of_gpu(facts, index), branch, address))}</gpu>\n'
        for index, address in enumerate(addresses(facts))
    )
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n{driver}\n{gpus}</nvidia_smi_log>\n'


def _gpu(facts: dict[str, Any], branch: int, address: str) -> Tree:
    (generation, generation_max), (width, width_max) = (
        [cell + unit for cell in cells.split("/")] if cells else ["N/A", "N/A"]
        for cells, unit in zip(facts.get("link", [None, None]), ("", "x"), strict=True)
    )
    reasons = "clocks_event_reason" if branch >= 535 else "clocks_throttle_reason"
    clock = DEPRECATED if branch >= 590 else f"{facts['clock']} MHz" if "clock" in facts else "N/A"
    tree: Tree = {
        "product_name": facts["name"],
        "persistence_mode": facts.get("persistence", "N/A"),
        "addressing_mode": "HMM" if branch >= 570 else "None",
        "mig_mode": {"current_mig": facts.get("mig", "N/A")},
        "uuid": f"GPU-00000000-0000-0000-0000-0000000000{address[9:11]}",
        "gpu_virtualization_mode": {
            "virtualization_mode": facts.get(
                "virtualization", "Pass-Through" if facts.get("guest") else "None"
            )
        },
        "vgpu_software_licensed_product": {"license_status": facts["licence"]} if "licence" in facts else {},
        "gpu_reset_status": _reset_status(branch),
        "gpu_recovery_action": "None" if branch >= 570 else {},
        "pci": {
            "pci_device_id": f"{facts['id']}10DE",
            "pci_bus_id": address,
            "pci_gpu_link_info": {
                "pcie_gen": {
                    "max_link_gen": generation_max,
                    "current_link_gen": generation,
                    "max_host_link_gen": facts.get("host_generation", {}),
                },
                "link_widths": {"max_link_width": width_max, "current_link_width": width},
            },
            "replay_counter": "0",
        },
        "fan_speed": "N/A",
        "performance_state": facts["state"],
        f"{reasons}s": {
            f"{reasons}_{name}": "Active" if name in facts.get("active", []) else "Not Active"
            for name in (
                "hw_slowdown",
                "hw_thermal_slowdown",
                "hw_power_brake_slowdown",
                "sw_thermal_slowdown",
            )
        },
        "fb_memory_usage": {
            "total": f"{facts.get('used', 0) + 4096} MiB",
            "used": f"{facts.get('used', 0)} MiB",
            "free": "4096 MiB",
        },
        "compute_mode": "Default",
        "ecc_mode": {"current_ecc": facts.get("ecc", "N/A")},
        "ecc_errors": _errors(facts, branch),
        "retired_pages": _retired(facts, branch),
        "temperature": {"gpu_temp": "40 C"},
        "clocks": {"graphics_clock": "210 MHz"},
        "applications_clocks": {"graphics_clock": clock},
        "default_applications_clocks": {"graphics_clock": clock},
        **_power(facts, branch),
        **facts.get("unsaid", {}),
    }
    if branch >= 470:
        remapped = facts.get("remapped")
        tree["remapped_rows"] = (
            {
                "remapped_row_pending": facts.get("row_pending", remapped),
                "remapped_row_failure": remapped,
            }
            if remapped
            else "N/A"
        )
    if branch >= 615:
        tree["remapped_banks"] = {"bank_remapper_pending": "No"}
    if branch >= 525:
        state, summary, bandwidth = facts.get("fabric", ["N/A", "N/A", "N/A"])
        tree["fabric"] = {"state": state, "status": "Success" if state == "Completed" else state}
        if branch >= 555:
            routes = "False" if summary != "N/A" else "N/A"
            tree["fabric"]["health"] = {"summary": summary, "bandwidth": bandwidth, "route_unhealthy": routes}
    tree["processes"] = [
        {"process_info": {"pid": str(1000 + number), "type": kind, "process_name": "/usr/bin/program"}}
        for number, kind in enumerate(facts.get("processes", []))
    ]
    return tree


def _errors(facts: dict[str, Any], branch: int) -> Tree:
    kind, number = facts["errors"]
    if kind == "bits":
        none = "N/A" if number == "N/A" else 0
        cells = {"device_memory": number, "register_file": none, "total": number}
        return {"volatile": dict.fromkeys(("single_bit", "double_bit"), cells)}
    tree: Tree = {"volatile": dict.fromkeys(SPLIT if kind == "split" else SRAM_AND_DRAM, number)}
    if kind == "split":
        no = "N/A" if number == "N/A" else "No"
        tree["aggregate"] = {"sram_threshold_exceeded": no}
        if branch >= 580:
            tree |= {
                "channel_repair_pending": "No",
                "tpc_repair_pending": "No",
                "unrepairable_memory": facts.get("unrepairable", no),
            }
    return tree


def _retired(facts: dict[str, Any], branch: int) -> Tree:
    """Old drivers have one element for what a newer one calls by two names."""
    pending = facts.get("retired", "N/A")
    if branch < 418:
        return {"pending_retirement": pending}
    return {"pending_blacklist": pending, "pending_retirement": "N/A"}


def _reset_status(branch: int) -> Tree:
    if branch not in range(535, 580):
        return {}
    said = DEPRECATED if branch >= 570 else "No"
    return {"reset_required": said, "drain_and_reset_recommended": said}


def _power(facts: dict[str, Any], branch: int) -> Tree:
    limit, default = (f"{watts:.2f} W" for watts in facts["power"]) if "power" in facts else ("N/A", "N/A")
    if branch < 535:
        return {"power_readings": {"power_limit": limit, "default_power_limit": default}}
    limits = {"current_power_limit": limit, "default_power_limit": default}
    return {"gpu_power_readings": {"gpu_ceiling_power_limit": limits} if branch >= 610 else limits}


def _xml(tree: Tree | list[Tree]) -> str:
    """Elements; those without anything in them are left out."""
    if isinstance(tree, list):
        return "".join(map(_xml, tree))
    return "".join(
        f"<{name}>{_xml(value) if isinstance(value, dict | list) else escape(str(value))}</{name}>\n"
        for name, value in tree.items()
        if value not in ({}, [])
    )
