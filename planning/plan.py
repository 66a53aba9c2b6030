"""The plan of one node: what is installed and set there, or every reason to refuse it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from planning import distro, nvidia_source
from planning.environment import environment
from planning.hardware import fabric_of, fabric_warnings, gpu_inventory
from planning.machine import busy_problems, machine_problems, secure_boot_problems, signs_modules
from planning.mixture import mixture_problems
from planning.model import Facts, Offer, Request
from planning.system import system_of
from planning.text import plan_text
from planning.versions import same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Where packages come from: variable nvidia_stack_source.
SOURCES: Mapping[str, Callable[[Request], Offer]] = {
    "nvidia": nvidia_source.offer,
    "distro": distro.offer,
}


def node_plan(
    node: Facts, tables: Facts, values: Facts, target: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The plan of one node.

    `node` is the fact of module node_facts, `tables` the merged data files, `values` the effective role
    variables. `target` has what the controller knows: the node's `address` in the inventory, `today`
    ("2026-11-21"), `mok_sha256` of the operator's certificate for Secure Boot; each may be missing. The
    result has `problems`: empty, or the plan must not be carried out.
    """
    known = target or {}
    mok_sha256 = known.get("mok_sha256", "")
    system, problems = system_of(node, tables)
    gpus, unknown = gpu_inventory(node["pci"], tables["models"])
    fabric = fabric_of(node, values["nvidia_stack_fabric"])
    gpu_problems, warnings = unknown_gpus(unknown, allowed=values["preflight_unknown_gpu_ok"])
    problems += gpu_problems
    if not gpus and not unknown:
        problems.append(
            "no NVIDIA GPU on the PCI bus; take the node out of the group gpu_nodes, or check slot, power "
            "and firmware"
        )
    warnings += fabric_warnings(gpus, fabric, tables["models"], values)

    source = values["nvidia_stack_source"]
    found = Offer(stack=values["nvidia_stack_name"])
    if system:
        request = Request(node, tables, values, system, gpus, unknown, fabric, known.get("today", ""))
        found = SOURCES[source](request)
    settled = bool(found.packages) and all(
        same(node["packages"].get(name), wanted) for name, wanted in found.packages.items()
    )
    problems += found.problems
    if system and not settled and not system.row["booted_in_lab"]:
        warnings.append(
            f"no lab of Temper boots {system.distribution}: this plan comes from tables; try one node first"
        )
    if system and found.driver:
        problems += mixture_problems(node, source)
        problems += secure_boot_problems(node, values, mok_sha256)
        problems += machine_problems(node, values, settled, system.package_manager)
        problems += busy_problems(node, values, settled)
    locks = [tables["architectures"][gpu["architecture"]]["locked_clocks"] for gpu in gpus]
    environ = environment(
        node, sum(gpu["count"] for gpu in gpus) + len(unknown), values, known.get("address", "")
    )
    # Not asdict: it copies, and the containers that Ansible hands to filters refuse to be copied.
    return {field.name: getattr(found, field.name) for field in fields(found)} | {
        "source": source,
        "package_manager": system.package_manager if system else None,
        "system": system.distribution if system else None,
        "architecture": node["architecture"],
        "gpus": gpus,
        "unknown_gpus": unknown,
        "fabric": fabric,
        "locked_clocks": {kind: all(lock[kind] for lock in locks) for kind in ("graphics", "memory")},
        "environment": environ,
        "mok": signs_modules(node, mok_sha256),
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
            warnings.append(f"{text}; planned with care, and no reference value judges it")
        else:
            problems.append(
                f"{text}; add it to data/gpu_models.yml, or set preflight_unknown_gpu_ok: true to go on "
                "without references"
            )
    return problems, warnings


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
    problems += [known for known in (target.get("problem"),) if known]
    node = result["ansible_facts"]["temper"]
    plan = node_plan(node, tables, variables["values"], target)
    return plan | {"problems": problems + plan["problems"], "text": plan_text(plan, node)}
