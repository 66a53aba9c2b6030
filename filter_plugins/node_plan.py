"""Resolve what a node needs: packages and settings, or every reason to refuse.

Facts, tables and the operator's wishes go in. Pure functions without I/O: the same inputs give the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

GIB = 2**30
GPU_CLASSES = ("0300", "0302")
BRIDGE_CLASS = "0680"
NVLINK_5_ARCHITECTURES = ("blackwell", "rubin")
DEBIAN_ARCHITECTURES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "sbsa")}
SECURE_BOOT_REMEDY = (
    "enrol the DKMS signing key (mokutil --import /var/lib/dkms/mok.pub, then confirm at the console on "
    "reboot) and set preflight_secure_boot_ok: true, or disable Secure Boot in the firmware"
)

Facts = Mapping[str, Any]


def version(text: str) -> tuple[int, ...]:
    """An NVIDIA version ("580.126.09", "12.9") as a tuple that compares numerically."""
    return tuple(int(part) for part in str(text).split("."))


def branch(driver: str) -> int:
    """The branch of a driver version: 580 of "580.126.09"."""
    return version(driver)[0]


def model_of(device_id: str, models: Mapping[str, Any]) -> str | None:
    """The key of the GPU model that has this PCI device id (4 hex digits, lower case)."""
    return next((key for key, model in models.items() if device_id in model["pci_ids"]), None)


def gpu_inventory(
    pci: Iterable[Mapping[str, str]], models: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Known GPUs by model with their count, and the device id of each GPU that no table knows."""
    gpus = [device["device_id"] for device in pci if device["class_id"] in GPU_CLASSES]
    found = Counter(model_of(device_id, models) for device_id in gpus)
    known = [
        {
            "model": key,
            "name": models[key]["name"],
            "architecture": models[key]["architecture"],
            "count": count,
        }
        for key, count in sorted((key, count) for key, count in found.items() if key is not None)
    ]
    return known, sorted(device_id for device_id in gpus if model_of(device_id, models) is None)


def stack_problems(stack_name: str, stack: Facts, gpus: list[dict[str, Any]], tables: Facts) -> list[str]:
    """Why this stack cannot drive these GPUs; each sentence names the rule and the remedy."""
    problems = []
    wanted = branch(stack["driver"])
    for gpu in gpus:
        rule = tables["nvidia_architectures"][gpu["architecture"]]
        last, first, last_cuda = rule["last_branch"], rule["first_branch"], rule["last_cuda"]
        if last and wanted > last:
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) needs driver branch {last} or older; "
                f"stack {stack_name} has {wanted}; {suggest(gpus, tables)}"
            )
        elif first and wanted < first:
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) needs driver branch {first} or newer; "
                f"stack {stack_name} has {wanted}; {suggest(gpus, tables)}"
            )
        elif last_cuda and version(stack["cuda"]) > version(last_cuda):
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) works with CUDA {last_cuda} or older; "
                f"stack {stack_name} has {stack['cuda']}; {suggest(gpus, tables)}"
            )
    return problems


def suggest(gpus: list[dict[str, Any]], tables: Facts) -> str:
    """The remedy: a stack in the table that fits all GPUs of the node."""
    fitting = [
        name
        for name, stack in tables["nvidia_stacks"].items()
        if all(fits(stack, tables["nvidia_architectures"][gpu["architecture"]]) for gpu in gpus)
    ]
    return (
        f"set nvidia_stack_name: {fitting[-1]}"
        if fitting
        else "no stack in data/stacks.yml fits all GPUs of this node"
    )


def fits(stack: Facts, rule: Facts) -> bool:
    """Whether an architecture's rule allows this stack's driver and CUDA."""
    wanted = branch(stack["driver"])
    return (
        (not rule["last_branch"] or wanted <= rule["last_branch"])
        and (not rule["first_branch"] or wanted >= rule["first_branch"])
        and (not rule["last_cuda"] or version(stack["cuda"]) <= version(rule["last_cuda"]))
    )


def kernel_modules(
    wish: str, driver: str, gpus: list[dict[str, Any]], tables: Facts
) -> tuple[str, list[str]]:
    """The flavour of the kernel modules, `open` or `proprietary`, and why the wish cannot be met."""
    needs = {tables["nvidia_architectures"][gpu["architecture"]]["open_modules"]: gpu["name"] for gpu in gpus}
    if "required" in needs and "impossible" in needs:
        return "open", [
            f"{needs['required']} works only with open kernel modules, {needs['impossible']} only with "
            "proprietary ones: one node cannot drive both; move one of them to another node"
        ]
    flavour = wish
    if wish == "auto":
        flavour = "proprietary" if "impossible" in needs else "open"
    problems = []
    if flavour == "open" and "impossible" in needs:
        problems.append(
            f"{needs['impossible']} does not work with open kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    if flavour == "proprietary" and "required" in needs:
        problems.append(
            f"{needs['required']} works only with open kernel modules; set nvidia_stack_kernel_modules: auto"
        )
    rules = tables["nvidia_kernel_modules"]
    if flavour == "open" and version(driver) < version(rules["open_minimum_driver"]["driver"]):
        problems.append(
            f"open kernel modules of driver {driver} do not compile on current kernels; "
            f"use a stack with driver {rules['open_minimum_driver']['driver']} or newer"
        )
    if flavour == "proprietary" and branch(driver) > rules["proprietary_last_branch"]["branch"]:
        problems.append(
            f"driver branch {branch(driver)} has no proprietary kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    return flavour, problems


def package_list(stack: Facts, flavour: str, nvswitch: bool) -> dict[str, str]:
    """Names and exact versions for Debian from NVIDIA's repository.

    A pin keeps what they depend on at the driver's version.
    """
    driver = stack["driver_package"]
    cuda_major, cuda_minor = stack["cuda"].split(".")
    modules = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    packages = {
        "nvidia-driver-cuda": driver,
        modules: driver,
        "nvidia-persistenced": driver,
        "nvidia-modprobe": driver,
        f"cuda-toolkit-{cuda_major}-{cuda_minor}": stack["cuda_package"],
        f"cudnn9-cuda-{cuda_major}": stack["cudnn_package"],
        "libnccl2": stack["nccl_package"],
        "libnccl-dev": stack["nccl_package"],
        "nvidia-container-toolkit": stack["container_toolkit_package"],
        "nvidia-container-toolkit-base": stack["container_toolkit_package"],
        "libnvidia-container-tools": stack["container_toolkit_package"],
        "libnvidia-container1": stack["container_toolkit_package"],
    }
    if nvswitch:
        packages |= {"nvidia-fabricmanager": driver, "libnvidia-nscq": driver}
    return packages


def version_pins(stack: Facts) -> list[dict[str, str]]:
    """Which versions apt may choose for what the listed packages pull in: their siblings at the same version.

    A pattern that also matches another package (nvidia-* and the container toolkit) does not affect it,
    because that one has no such version.
    """
    return [
        {"packages": "nvidia-* libnvidia-* libcuda1 libnvsdm", "version": stack["driver_package"]},
        {"packages": "cudnn9-* libcudnn9-*", "version": stack["cudnn_package"]},
        {"packages": "libnccl*", "version": stack["nccl_package"]},
    ]


def repositories(
    distribution: Facts, arch: tuple[str, str], values: Facts, tables: Facts
) -> list[dict[str, Any]]:
    """The signed repositories of the stack; a mirror or another key comes from the inventory."""
    deb_arch, repo_arch = arch
    cuda = (
        f"{values['nvidia_stack_cuda_repository_url'].rstrip('/')}/{distribution['repository']}/{repo_arch}/"
    )
    toolkit_root = values["nvidia_stack_container_repository_url"].rstrip("/")
    toolkit_table = tables["nvidia_container_toolkit_repository"]
    return [
        {
            "name": "nvidia-cuda",
            "uri": cuda,
            "suite": "/",
            "key_url": values["nvidia_stack_cuda_key_url"] or cuda + distribution["key_file"],
            "fingerprints": values["nvidia_stack_cuda_key_fingerprints"] or distribution["key_fingerprints"],
        },
        {
            "name": "nvidia-container-toolkit",
            "uri": f"{toolkit_root}/stable/deb/{deb_arch}/",
            "suite": "/",
            "key_url": values["nvidia_stack_container_key_url"]
            or f"{toolkit_root}/{toolkit_table['key_file']}",
            "fingerprints": values["nvidia_stack_container_key_fingerprints"]
            or toolkit_table["key_fingerprints"],
        },
    ]


def machine_problems(node: Facts, values: Facts, settled: bool) -> list[str]:
    """What is wrong with the machine itself. A node that already has the stack needs no room for it."""
    problems = []
    if node["secure_boot"] == "enabled" and not values["preflight_secure_boot_ok"]:
        problems.append(
            "Secure Boot is enabled, and the kernel would refuse modules that DKMS builds; "
            f"{SECURE_BOOT_REMEDY}"
        )
    release = node["kernel"]["release"]
    if not node["kernel"]["headers_present"] and not node["kernel"]["headers_installable"]:
        problems.append(
            f"the headers of the running kernel {release} are neither installed nor offered by the package "
            "manager, so that no driver module can be built; boot a kernel that the distribution still "
            "offers (apt-get dist-upgrade, then reboot)"
        )
    needed = values["preflight_minimum_free_gib"]
    if not settled:
        # What goes to /usr also passes through /var/cache/apt; a separate small /boot is no target.
        problems += [
            f"{disk['path']} has {disk['free_bytes'] / GIB:.1f} GiB free, the stack needs {needed} GiB "
            "there; free space or lower preflight_minimum_free_gib"
            for disk in node["disks"]
            if disk["path"] != "/boot" and disk["free_bytes"] < needed * GIB
        ]
    return problems


def environment(node: Facts, gpu_count: int, values: Facts, address: str) -> dict[str, Any]:
    """Thread counts for one process a GPU, and NCCL's settings.

    NCCL's sockets use the interface that carries the node's inventory address.
    """
    threads = values["compute_environment_omp_num_threads"] or max(
        1, node["cpu"]["physical"] // max(1, gpu_count)
    )
    interface = values["compute_environment_nccl_socket_ifname"] or nccl_interface(
        node["interfaces"], address
    )
    nccl = {"NCCL_SOCKET_IFNAME": interface} if interface else {}
    return {"omp_num_threads": int(threads), "nccl": nccl | values["compute_environment_nccl"]}


def nccl_interface(interfaces: Iterable[Mapping[str, Any]], address: str) -> str | None:
    """The interface with this address, else the one with the default route.

    Written `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    ups = [interface for interface in interfaces if interface["up"]]
    carrying = [i for i in ups if address in i["addresses"]] or [i for i in ups if i["default_route"]]
    return f"={carrying[0]['name']}" if carrying else None


def fabric_warnings(gpus: list[dict[str, Any]], nvswitch: bool, models: Mapping[str, Any]) -> list[str]:
    """NVLink 5 systems have no NVSwitch of NVIDIA's on the PCI bus, and need more than this plan installs."""
    return [
        f"{gpu['name']}: if its GPUs are joined by NVLink switches (HGX B200, GB200 NVL72), the fabric also "
        "needs nvidia-fabricmanager and nvlsm, which this plan does not install"
        for gpu in gpus
        if gpu["architecture"] in NVLINK_5_ARCHITECTURES
        and models[gpu["model"]]["nvswitch_system_possible"]
        and not nvswitch
    ]


def node_plan(node: Facts, tables: Facts, values: Facts, address: str = "") -> dict[str, Any]:
    """The plan of one node.

    `node` is the fact of module node_facts, `tables` the merged data files, `values` the effective role
    variables, `address` the node's address in the inventory. The result has `problems`: empty, or the plan
    must not be carried out.
    """
    warnings: list[str] = []
    os, arch = node["os"], DEBIAN_ARCHITECTURES.get(node["architecture"])
    distribution = tables["nvidia_distributions"].get(f"{os['id']}-{os['version_id']}")
    problems: list[str] = []
    if not distribution:
        known = ", ".join(sorted(tables["nvidia_distributions"]))
        problems.append(
            f"operating system {os['pretty_name'] or os['id'] or 'unknown'} is not supported; "
            f"expected one of: {known}"
        )
    if not arch:
        known = ", ".join(DEBIAN_ARCHITECTURES)
        problems.append(f"architecture {node['architecture']} is not supported; expected one of: {known}")

    gpus, unknown = gpu_inventory(node["pci"], tables["models"])
    nvswitch = any(device["class_id"] == BRIDGE_CLASS for device in node["pci"])
    for device_id in dict.fromkeys(unknown):
        text = f"GPU with PCI id 10de:{device_id} is in no table"
        if values["preflight_unknown_gpu_ok"]:
            warnings.append(
                f"{text}; planned as the newest known architecture allows, and no reference value judges it"
            )
        else:
            problems.append(
                f"{text}; add it to data/gpu_models.yml, or set preflight_unknown_gpu_ok: true to go on "
                "without references"
            )
    if not gpus and not unknown:
        problems.append(
            "no NVIDIA GPU on the PCI bus; take the node out of the group gpu_nodes, or check slot, power "
            "and firmware"
        )

    warnings += fabric_warnings(gpus, nvswitch, tables["models"])

    stacks = tables["nvidia_stacks"]
    stack_name = values["nvidia_stack_name"] or tables["nvidia_default_stack"]
    plan: dict[str, Any] = {
        "stack": stack_name,
        "gpus": gpus,
        "unknown_gpus": unknown,
        "nvswitch": nvswitch,
        "environment": environment(node, sum(gpu["count"] for gpu in gpus) + len(unknown), values, address),
        "problems": problems,
        "warnings": warnings,
    }
    stack = stacks.get(stack_name)
    if not stack:
        problems.append(
            f"nvidia_stack_name: no stack is named {stack_name}; "
            f"data/stacks.yml has: {', '.join(sorted(stacks))}"
        )
    if not stack or not distribution or not arch:
        return plan | {"driver": None, "packages": {}, "repositories": []}

    flavour, module_problems = kernel_modules(
        values["nvidia_stack_kernel_modules"], stack["driver"], gpus, tables
    )
    packages = package_list(stack, flavour, nvswitch)
    settled = all(node["packages"].get(name) == wanted for name, wanted in packages.items())
    problems += (
        stack_problems(stack_name, stack, gpus, tables)
        + module_problems
        + machine_problems(node, values, settled)
    )
    end_of_life = tables["nvidia_driver_branches"][str(branch(stack["driver"]))]["end_of_life"]
    locks = [tables["architectures"][gpu["architecture"]]["locked_clocks"] for gpu in gpus]
    busy = node["nvidia"]["compute_processes"]
    if busy and not settled and not values["nvidia_stack_busy_ok"]:
        problems.append(
            f"the driver would change while {len(busy)} process(es) use the GPUs ({', '.join(busy[:3])}); "
            "drain the node first, or set nvidia_stack_busy_ok: true"
        )
    headers = (
        []
        if node["kernel"]["headers_present"]
        else [f"linux-headers-{node['kernel']['release']}", f"linux-headers-{arch[0]}"]
    )
    return plan | {
        "driver": {
            "version": stack["driver"],
            "branch": branch(stack["driver"]),
            "modules": flavour,
            "end_of_life": end_of_life,
        },
        "cuda": stack["cuda"],
        "torch": stack["torch"],
        "packages": packages,
        "pins": version_pins(stack),
        "headers": headers,
        "repositories": repositories(distribution, arch, values, tables),
        "services": ["nvidia-persistenced"] + (["nvidia-fabricmanager"] if nvswitch else []),
        "locked_clocks": {kind: all(lock[kind] for lock in locks) for kind in ("graphics", "memory")},
        "settled": settled,
    }


def plan_text(plan: Facts, node: Facts) -> str:
    """The plan in a few lines for the operator, or every reason to refuse."""
    unknown: Counter[str] = Counter(plan["unknown_gpus"])
    gpus = [f"{gpu['count']}x {gpu['name']}" for gpu in plan["gpus"]] + [
        f"{count}x 10de:{device_id} (unknown)" for device_id, count in unknown.items()
    ]
    lines = [
        f"{node['os']['pretty_name']}, kernel {node['kernel']['release']}, {', '.join(gpus) or 'no GPU'}"
        + (", NVSwitch" if plan["nvswitch"] else "")
    ]
    if plan["driver"]:
        driver = plan["driver"]
        state = "in place" if plan["settled"] else "to be installed"
        lines.append(
            f"stack {plan['stack']} ({state}): driver {driver['version']} ({driver['modules']} modules, "
            f"supported to {driver['end_of_life']}), CUDA {plan['cuda']}, {len(plan['packages'])} packages"
        )
    nccl = " ".join(f"{key}={value}" for key, value in plan["environment"]["nccl"].items())
    lines.append(f"environment: OMP_NUM_THREADS={plan['environment']['omp_num_threads']} {nccl}".rstrip())
    lines += [f"warning: {warning}" for warning in plan["warnings"]]
    return "\n".join(lines)


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


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {"preflight_plan": preflight_plan}
