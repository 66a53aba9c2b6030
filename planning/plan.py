"""The plan of one node: what is installed and set there, or every reason to refuse it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from planning import nvidia_source
from planning.environment import environment
from planning.hardware import fabric_of, fabric_warnings, gpu_inventory
from planning.machine import machine_problems
from planning.model import Facts, Offer, Request
from planning.system import system_of
from planning.text import plan_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Where packages come from: variable nvidia_stack_source.
SOURCES: Mapping[str, Callable[[Request], Offer]] = {"nvidia": nvidia_source.offer}


def node_plan(node: Facts, tables: Facts, values: Facts, address: str = "") -> dict[str, Any]:
    """The plan of one node.

    `node` is the fact of module node_facts, `tables` the merged data files, `values` the effective role
    variables, `address` the node's address in the inventory. The result has `problems`: empty, or the plan
    must not be carried out.
    """
    system, problems = system_of(node, tables)
    gpus, unknown = gpu_inventory(node["pci"], tables["models"])
    fabric = fabric_of(node)
    gpu_problems, warnings = unknown_gpus(unknown, allowed=values["preflight_unknown_gpu_ok"])
    problems += gpu_problems
    if not gpus and not unknown:
        problems.append(
            "no NVIDIA GPU on the PCI bus; take the node out of the group gpu_nodes, or check slot, power "
            "and firmware"
        )
    warnings += fabric_warnings(gpus, fabric, tables["models"])

    source = values["nvidia_stack_source"]
    found = Offer(stack=values["nvidia_stack_name"] or tables["nvidia_default_stack"])
    if system:
        found = SOURCES[source](Request(node, tables, values, system, gpus, unknown, fabric))
    settled = bool(found.packages) and all(
        node["packages"].get(name) == (wanted or node["packages"].get(name) or "missing")
        for name, wanted in found.packages.items()
    )
    problems += found.problems
    if found.driver:
        problems += machine_problems(node, values, settled) + busy_problems(node, values, settled)
    locks = [tables["architectures"][gpu["architecture"]]["locked_clocks"] for gpu in gpus]
    # Not asdict: it copies, and the containers that Ansible hands to filters refuse to be copied.
    return {field.name: getattr(found, field.name) for field in fields(found)} | {
        "source": source,
        "package_manager": system.package_manager if system else None,
        "gpus": gpus,
        "unknown_gpus": unknown,
        "fabric": fabric,
        "nvswitch": fabric == "nvswitch",
        "headers": found.present,
        "locked_clocks": {kind: all(lock[kind] for lock in locks) for kind in ("graphics", "memory")},
        "environment": environment(node, sum(gpu["count"] for gpu in gpus) + len(unknown), values, address),
        "settled": settled,
        "problems": problems,
        "warnings": warnings + found.warnings,
    }


def unknown_gpus(device_ids: list[str], *, allowed: bool) -> tuple[list[str], list[str]]:
    """Problems and warnings about GPUs that no table knows."""
    problems, warnings = [], []
    for device_id in dict.fromkeys(device_ids):
        text = f"GPU with PCI id 10de:{device_id} is in no table"
        if allowed:
            warnings.append(
                f"{text}; planned as the newest known architecture allows, and no reference value judges it"
            )
        else:
            problems.append(
                f"{text}; add it to data/gpu_models.yml, or set preflight_unknown_gpu_ok: true to go on "
                "without references"
            )
    return problems, warnings


def busy_problems(node: Facts, values: Facts, settled: bool) -> list[str]:
    """A driver does not change under a job."""
    busy = node["nvidia"]["compute_processes"]
    if not busy or settled or values["nvidia_stack_busy_ok"]:
        return []
    return [
        f"the driver would change while {len(busy)} process(es) use the GPUs ({', '.join(busy[:3])}); "
        "drain the node first, or set nvidia_stack_busy_ok: true"
    ]


def preflight_plan(
    result: Facts, tables: Facts, variables: Facts, target: Mapping[str, str]
) -> dict[str, Any]:
    """The plan from what preflight collected, with every problem of the node in one list.

    `result` is what the task with module node_facts returned, `variables` what filter role_variables
    returned (values and problems), `target` has the node's `address` and `user` in the inventory.
    """
    problems: list[str] = list(variables["problems"])
    if result.get("unreachable"):
        # Ansible's own words come before ssh's.
        reason = " ".join(str(result.get("msg", "")).split()).rpartition("reached over ssh: ")[2].rstrip(".")
        problems.append(
            f"{target['address']} cannot be reached over SSH as {target['user']}: {reason}. "
            "Check that it is up, and ansible_host, ansible_user, the key (ansible_ssh_private_key_file) and "
            "the known host key"
        )
        return {"problems": problems, "text": "", "driver": None}
    node = result["ansible_facts"]["temper"]
    plan = node_plan(node, tables, variables["values"], target["address"])
    return plan | {"problems": problems + plan["problems"], "text": plan_text(plan, node)}
