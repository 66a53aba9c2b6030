"""What the operating system of a node can be tuned to, and what it cannot have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from temper.plan.facts import Tunables
from temper.plan.machine import GIB
from temper.plan.refusals import Refusal, refusal
from temper.plan.role_variables import size_bytes
from temper.plan.variables import OsTuning

KEEP = "keep"
AUTO = "auto"
PERFORMANCE = "performance"
RUNNING = "running"
STOPPED = "stopped"
HUGEPAGES = "kernel/mm/transparent_hugepage"
NVME = "block/nvme*n*/queue"
MIB = 2**20


@dataclass(frozen=True)
class KernelValue:
    """A value for the files below /sys that match `pattern`.

    `variable` is what asks for it, `offered` what the node has to choose from, `subject` what it is of, and
    `lacking` why a node may have none. `attribute` is the file's name in a rule of udev, which sets it for
    NVMe drives that come later; empty where nothing comes.
    """

    variable: str
    pattern: str
    value: str
    offered: tuple[str, ...]
    why: str
    subject: str
    lacking: str
    attribute: str = ""


def asked(wanted: OsTuning, node: Tunables) -> Iterator[KernelValue]:
    """Yield what the operator wants of the kernel's values, whether or not the node has them."""
    governor = wanted.cpu_governor
    if governor != KEEP and not (governor == AUTO and left_to(node)):
        yield KernelValue(
            "os_tuning_cpu_governor",
            "devices/system/cpu/cpufreq/policy*/scaling_governor",
            PERFORMANCE if governor == AUTO else governor,
            node.cpu_governors,
            "CPUs that lower their clocks start copies and kernels late",
            "CPU governor",
            "the system sets no clocks of CPUs (no cpufreq), as in a virtual machine",
        )
    choices = {
        "enabled": ("os_tuning_transparent_hugepages", wanted.transparent_hugepages, node.hugepages),
        "defrag": (
            "os_tuning_transparent_hugepages_defrag",
            wanted.transparent_hugepages_defrag,
            node.hugepages_defrag,
        ),
    }
    for name, (variable, value, offered) in choices.items():
        if value != KEEP:
            yield KernelValue(
                variable,
                f"{HUGEPAGES}/{name}",
                value,
                offered,
                "The operator says which programs get huge pages, and when",
                f"transparent huge pages ({name})",
                "the kernel has none, or they cannot be set from here",
            )
    yield from of_nvme(wanted, node)


def left_to(node: Tunables) -> str:
    """Return why the governor is left alone where the operator names none.

    Nobody is refused for a default.
    """
    if node.tuners:
        return f"{', '.join(node.tuners)} sets it"
    if node.cpu_governors and PERFORMANCE not in node.cpu_governors:
        return f"there is no {PERFORMANCE}, but {', '.join(node.cpu_governors)}"
    return ""


def of_nvme(wanted: OsTuning, node: Tunables) -> Iterator[KernelValue]:
    """Yield what the operator wants of every NVMe drive."""
    lacking = "there is no NVMe drive, or it cannot be set from here"
    if wanted.nvme_scheduler != KEEP:
        yield KernelValue(
            "os_tuning_nvme_scheduler",
            f"{NVME}/scheduler",
            wanted.nvme_scheduler,
            node.nvme_schedulers,
            "The operator says who sorts requests for fast drives",
            "NVMe scheduler",
            lacking,
            "queue/scheduler",
        )
    if wanted.nvme_read_ahead_kb is not None:
        value = str(wanted.nvme_read_ahead_kb)
        yield KernelValue(
            "os_tuning_nvme_read_ahead_kb",
            f"{NVME}/read_ahead_kb",
            value,
            (value,) if node.nvme else (),
            "The operator knows how data is read: in a row, or here and there",
            "NVMe read-ahead",
            lacking,
            "queue/read_ahead_kb",
        )


def network_sysctls(wanted: OsTuning) -> dict[str, str]:
    """Return how large buffers of sockets may grow.

    The kernel's own least and first sizes stay (ip-sysctl).
    """
    largest = wanted.network_buffer_mib * MIB
    if not largest:
        return {}
    return {
        "net.core.rmem_max": str(largest),
        "net.core.wmem_max": str(largest),
        "net.ipv4.tcp_rmem": f"4096 131072 {largest}",
        "net.ipv4.tcp_wmem": f"4096 16384 {largest}",
    }


def shm_problems(wanted: OsTuning, memory_bytes: int) -> list[Refusal]:
    """Return a size of /dev/shm that is more than the memory it is made of."""
    if not wanted.shm or wanted.shm.endswith("%") or wanted.state == "absent":
        return []
    if size_bytes(wanted.shm, memory_bytes) <= memory_bytes:
        return []
    return [refusal("shm-too-large", wanted=wanted.shm, memory_gib=memory_bytes / GIB)]


def nofile_problems(wanted: OsTuning, nr_open: int) -> list[Refusal]:
    """Return a limit that the kernel refuses: pam_limits then lets nobody log in."""
    own = str(wanted.sysctls.get("fs.nr_open", ""))
    most = max(nr_open, int(own) if own.isdecimal() else 0)
    if not nr_open or wanted.nofile <= most or wanted.state == "absent":
        return []
    return [refusal("nofile-too-large", wanted=wanted.nofile, most=most)]


def kernel_values(wanted: OsTuning, node: Tunables) -> tuple[KernelValue, ...]:
    """Return what is set on this node."""
    return tuple(one for one in asked(wanted, node) if one.value in one.offered)


def tuning_problems(wanted: OsTuning, node: Tunables) -> list[Refusal]:
    """Return values that this node does not offer, where it offers others."""
    return [
        refusal("tuning-not-offered", variable=one.variable, wanted=one.value, offered=one.offered)
        for one in asked(wanted, node)
        if wanted.state == "present" and one.offered and one.value not in one.offered
    ]


def tuning_notes(wanted: OsTuning, node: Tunables) -> list[str]:
    """Return what of the wanted tuning is left out here, and why."""
    if wanted.state == "absent":
        return []
    found = [f"{one.subject} ({one.lacking})" for one in asked(wanted, node) if not one.offered]
    if wanted.shm and not node.shm:
        found.append("size of /dev/shm (it is no file system of its own)")
    if wanted.irqbalance == STOPPED and not node.irqbalance:
        found.append("irqbalance (it is not installed)")
    if (wanted.rdma or wanted.peermem) and not node.rdma:
        found.append("RDMA (there is no adapter)")
    elif wanted.rdma and node.ofed:
        found.append(f"RDMA packages ({node.ofed} is installed and left alone)")
    if wanted.cpu_governor == AUTO and (reason := left_to(node)):
        found.append(f"CPU governor ({reason})")
    return found


def tuning_warnings(wanted: OsTuning, node: Tunables) -> list[str]:
    """Return what may not last, because another service sets it, too, or may not work."""
    if wanted.state == "absent":
        return []
    found = [
        f"{one.variable} is {one.value}, and {', '.join(node.tuners)} on this node may set it anew; "
        f"disable that service, or set {KEEP}"
        for one in kernel_values(wanted, node)
        if node.tuners
    ]
    if wanted.peermem and node.rdma and not node.ofed:
        found.append(
            "os_tuning_peermem is set and no OFED is installed: the kernel's own RDMA modules may refuse "
            "nvidia-peermem. With open kernel modules of the driver DMA-BUF does the same; leave it out then"
        )
    return found
