"""What each finding means, what usually causes it and what to do: `validation explain CODE`.

Codes are stable. A test proves that every code which this package can emit is explained here.
"""

from __future__ import annotations

import difflib

from validation import explanations_links, explanations_training, xid
from validation.explanation import Explanation

NVIDIA_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
FABRIC_MANAGER = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
CUDA_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/index.html"
PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/index.html"


EXPLANATIONS: dict[str, Explanation] = {
    "gpu-count": Explanation(
        "The PCI bus has another number of GPUs than expected",
        "The kernel sees more or fewer NVIDIA GPUs than the inventory's plan for this node",
        (
            "a GPU fell off the bus or lost power",
            "a riser or slot is loose",
            "the expectation is out of date",
        ),
        ("power-cycle the node", "if a GPU stays away, check its slot and power", "correct the expectation"),
    ),
    "burn-in-rebooted": Explanation(
        "The node booted while the burn-in ran",
        "A burn-in that was interrupted goes on after a boot; that the node went down may be its finding",
        ("somebody booted it", "a power supply or cooling that fails under load", "a crash of the kernel"),
        ("if nobody did that, look at power, temperature and the server's event log",),
    ),
    "test-broke": Explanation(
        "A test broke by its own fault",
        "The program met something that it does not know, and nothing was found out about the hardware",
        ("a fault of this program", "an answer of the driver that it has never seen"),
        ("report it, with the sentence of the finding",),
    ),
    "gpu-vanished": Explanation(
        "A GPU went away while it was tested",
        "nvidia-smi listed it at the start of a test and no longer at its end",
        ("a power or thermal fault", "a bad slot, riser or cable", "a broken GPU"),
        ("look for Xid errors in the kernel log", "power-cycle the node", "if it happens again, replace it"),
    ),
    "gpu-unanswered": Explanation(
        "A GPU does not answer what the driver asks it",
        "nvidia-smi shows an error in place of a value, and a fault may hide behind it",
        ("the GPU is lost or waits for a reset", "a sensor or fan that failed", "damaged firmware data"),
        ("reset the GPU or reboot the node", "if it happens again, have the GPU looked at"),
        NVIDIA_SMI,
    ),
    "telemetry-lost": Explanation(
        "nvidia-smi stopped answering while a GPU worked",
        "Clocks, power, errors and links of that time are unknown",
        ("a GPU that hangs or is lost", "a machine under extreme load"),
        ("look for Xid errors in the kernel log", "run again"),
        NVIDIA_SMI,
    ),
    "kernel-log-unreadable": Explanation(
        "The kernel log cannot be read",
        "Xid errors stand only there, so nobody knows whether there were any",
        ("not run as root, on a system that keeps the kernel log from users", "inside a container"),
        ("run this as root, or as a member of the groups adm or systemd-journal",),
        xid.SOURCE,
    ),
    "sxid-fatal": Explanation(
        "An NVSwitch reported a fatal error",
        "The driver wrote an SXid to the kernel log that ends traffic over this switch or one of its links",
        ("a broken link or trunk", "a fault of the switch or the baseboard"),
        (
            "reset all GPUs and NVSwitches of the node together",
            "if it comes back, have the baseboard replaced",
        ),
        FABRIC_MANAGER,
    ),
    "nvlink-unknown": Explanation(
        "The NVLinks of a node with NVSwitches cannot be looked at",
        "nvidia-smi nvlink --status failed, so links that are down would not be found",
        ("a driver that hangs", "a GPU that is lost"),
        ("run nvidia-smi nvlink --status on the node", "look for Xid errors in the kernel log"),
        NVIDIA_SMI,
    ),
    "gpu-gone": Explanation(
        "A GPU that was there in an earlier run is gone",
        "The history of this node has more GPUs than it has now. What is expected of a node is read from its "
        "PCI bus, where a GPU that fell off is not missed",
        ("a GPU fell off the bus or lost power", "it was taken out"),
        (
            "power-cycle the node",
            "check its slot and power",
            "if it was taken out, remove the node's history",
        ),
    ),
    "gpu-not-measured": Explanation(
        "A GPU has no number that others of its model have",
        "The test ended without saying why: nothing is known about this GPU",
        ("the GPU went away between two tests", "a fault of this program"),
        ("see whether nvidia-smi still lists it, look for Xid errors", "run again"),
    ),
    "no-number": Explanation(
        "A test that measures ended without a number",
        "Nothing was measured, so nothing passed",
        ("the driver's report lists no GPU", "a fault of this program"),
        ("run again", "if it happens again, report it with the result"),
    ),
    "impossible-number": Explanation(
        "A number cannot be true",
        "It is zero or negative, stands for no run, or is more than a quarter above the hardware's peak: no "
        "work was done, or it was not timed",
        ("a kernel that was not started", "a clock that jumped", "a fault of this program"),
        ("run again", "if it happens again, report it with the result"),
    ),
    "gpu-not-driven": Explanation(
        "The driver drives fewer GPUs than the PCI bus has",
        "A GPU is there, but the driver refused it or gave it up",
        ("the driver does not support the model", "the GPU failed to initialise", "it is bound to vfio-pci"),
        ("read the kernel log for lines with NVRM", "power-cycle the node", "replace the GPU if it stays"),
    ),
    "gpu-model": Explanation(
        "A GPU is of another model than expected",
        "Its PCI id is not that of the model which was planned for",
        ("the expectation is out of date", "the wrong part was installed"),
        ("correct the expectation", "have the GPU replaced"),
    ),
    "driver-missing": Explanation(
        "nvidia-smi or the NVML library is not installed",
        "Without them nothing can be asked about the GPUs",
        ("the driver's user-space packages are missing", "the installation was cut off"),
        ("install the driver: playbooks/provision.yml",),
        NVIDIA_SMI,
    ),
    "driver-mismatch": Explanation(
        "Kernel module and libraries of the driver have different versions",
        "The driver was upgraded on disk while the old module is still loaded; CUDA cannot start",
        ("an upgrade without a reboot", "unattended upgrades of a part of the driver"),
        ("reboot the node", "hold the driver's packages, as the role nvidia_stack does"),
        NVIDIA_SMI,
    ),
    "driver-no-driver": Explanation(
        "The NVIDIA kernel module is not loaded",
        "nvidia-smi cannot communicate with the driver",
        (
            "no module was built for the running kernel",
            "Secure Boot refused it",
            "nouveau or vfio-pci holds the GPUs",
        ),
        ("look into the kernel log and `dkms status`", "build the module for this kernel, then reboot"),
        NVIDIA_SMI,
    ),
    "driver-lost": Explanation(
        "A GPU is lost",
        "It does not answer on the bus any more (fallen off, Xid 79)",
        ("power or thermal fault", "a bad slot, riser or cable", "a broken GPU"),
        ("reset or power-cycle the node", "if it is lost again, have it replaced"),
        NVIDIA_SMI,
    ),
    "driver-no-devices": Explanation(
        "The driver found no GPU that it can drive",
        "The module is loaded but refused every GPU",
        ("a driver branch that does not know the model", "the GPUs are bound to another driver"),
        ("look into the kernel log for the driver's reason", "choose a stack that supports the model"),
        NVIDIA_SMI,
    ),
    "driver-timeout": Explanation(
        "nvidia-smi did not answer in time",
        "A GPU or its system processor (GSP) hangs, and blocks the driver",
        ("a hung GPU (Xid 119, 120)", "a machine under extreme load"),
        ("look for Xid errors in the kernel log", "reboot the node"),
        NVIDIA_SMI,
    ),
    "driver-other": Explanation(
        "nvidia-smi failed for another reason",
        "Its message stands in the finding",
        ("a damaged installation",),
        ("run nvidia-smi -q on the node",),
        NVIDIA_SMI,
    ),
    "driver-version": Explanation(
        "Another driver version is loaded than planned",
        "What counts is the module that is loaded, not the package that is installed",
        ("a reboot is due after an upgrade", "somebody installed another version"),
        ("reboot the node if the right version is installed", "else run playbooks/provision.yml"),
    ),
    "library-version": Explanation(
        "A library of the driver has another version than the module that is loaded",
        "CUDA programs and NVML refuse to work with it",
        ("an upgrade without a reboot", "a second driver installation in the library path"),
        (
            "reboot the node",
            "install the libraries of the driver's version",
            "remove what is left of the other",
        ),
    ),
    "fabric-manager-version": Explanation(
        "The fabric manager has another version than the driver",
        "It refuses to start, and without it CUDA cannot start on GPUs with NVSwitches",
        ("driver and fabric manager were upgraded apart",),
        ("install the fabric manager of exactly the driver's version, as the role nvidia_stack does",),
        FABRIC_MANAGER,
    ),
    "ecc-under-load": Explanation(
        "Uncorrectable memory errors came while a GPU was tested",
        "The fault shows under load and may be silent when the GPU is idle",
        ("a failing memory cell or chip", "heat", "power supply"),
        ("drain the node and reset the GPU", "if errors come back, have the GPU replaced"),
        MEMORY_ERRORS,
    ),
    "ecc-uncorrected": Explanation(
        "A GPU had uncorrectable memory errors",
        "Data was lost in DRAM or SRAM since the driver was loaded; programs crashed or computed wrong",
        ("a failing memory cell or chip", "heat", "cosmic radiation: one single event may be chance"),
        ("drain the node and reset the GPU", "if errors come back, have the GPU replaced"),
        MEMORY_ERRORS,
    ),
    "row-remap-failure": Explanation(
        "A faulty memory row could not be remapped",
        "The spare rows of that bank are used up: the fault stays",
        ("memory that wears out",),
        ("have the GPU replaced",),
        MEMORY_ERRORS,
    ),
    "memory-repair-pending": Explanation(
        "A memory repair waits for a reset",
        "A row will be remapped, or a page retired, when the GPU is reset",
        ("corrected errors that came too often", "an uncorrectable error"),
        ("reset the GPU or reboot the node at the next opportunity",),
        MEMORY_ERRORS,
    ),
    "recovery-action": Explanation(
        "The driver asks for a recovery action",
        "The GPU can go on only after what the driver asks for: a reset, a drain or a reboot",
        ("an error that the driver could not handle; the kernel log has its Xid",),
        ("carry the action out", "then validate again"),
        "https://docs.nvidia.com/deploy/nvml-api/index.html",
    ),
    "hw-thermal-slowdown": Explanation(
        "The hardware slows a GPU down because it is too hot",
        "Its own protection halves the clocks or more, until it cools down",
        ("a failed fan", "blocked air flow", "a heat sink that lost contact"),
        ("check fans, air flow and heat sink",),
        NVIDIA_SMI,
    ),
    "hw-power-brake-slowdown": Explanation(
        "The server's power brake slows a GPU down",
        "The server asserts the power brake signal, usually because a power supply failed",
        ("a power supply without input", "power capping of the rack or server"),
        ("check power supplies and power capping in the server's management",),
        NVIDIA_SMI,
    ),
    "sw-thermal-slowdown": Explanation(
        "The driver slows a GPU down because it is hot",
        "GPU or memory temperature is at its limit for work; clocks are reduced softly",
        ("warm intake air", "weak air flow", "dust"),
        ("check fans and air flow",),
        NVIDIA_SMI,
    ),
    "hw-slowdown": Explanation(
        "The hardware slows a GPU down and does not say why",
        "Temperature, power draw or an external power brake",
        ("cooling", "power supply"),
        ("check temperature, power supply and the server's event log",),
        NVIDIA_SMI,
    ),
    "pcie-link-down-trained": Explanation(
        "A PCIe link runs below what GPU and slot can do",
        "Transfers between host and GPU are slower by that factor. An idle GPU may lower its generation, so "
        "that counts only at full speed; lanes never go away by themselves",
        ("dirty or loose contacts", "a riser or cable that is damaged", "firmware settings"),
        ("reseat the GPU or its riser", "look for AER errors in the kernel log"),
        NVIDIA_SMI,
    ),
    "pcie-link-slow-under-load": Explanation(
        "A PCIe link stays slow while the GPU works",
        "An idle GPU may lower its link to save power; one that works and does not raise it has a bad link",
        ("dirty or loose contacts", "a riser or cable that is damaged", "firmware settings"),
        ("reseat the GPU or its riser", "look for AER errors in the kernel log"),
        NVIDIA_SMI,
    ),
    "nvlink-down": Explanation(
        "NVLinks of a GPU are down on a system with NVSwitches",
        "There every link carries traffic: collectives are slower by the missing share, or fail",
        ("a fault of the link, GPU, baseboard or NVSwitch", "the fabric manager took the link out"),
        (
            "read the kernel log (Xid 74, SXid) and the fabric manager's log",
            "reset all GPUs of the node together",
        ),
        FABRIC_MANAGER,
    ),
    "nvlink-fewer": Explanation(
        "A GPU has fewer NVLinks up than another one of its node",
        "Copies over its bridge are slower than those of its neighbours",
        ("a bridge that is not seated", "a node that is built like this"),
        ("check the NVLink bridges",),
        NVIDIA_SMI,
    ),
    "power-limit-low": Explanation(
        "The power limit of a GPU is lower than expected",
        "Under load its clocks, and so its numbers, are lower",
        ("somebody lowered it, or a tool did at boot", "the server limits the power of its GPUs"),
        ("set it: gpu_settings_power_limit_w", "look at power capping in the server's management"),
        NVIDIA_SMI,
    ),
    "numa-unknown": Explanation(
        "The firmware does not say which NUMA node a GPU belongs to",
        "Processes and pinned memory cannot be placed near it: transfers may cross the sockets' link",
        ("old firmware", "NUMA is switched off", "a virtual machine without NUMA placement"),
        ("update the firmware or change its settings", "for a virtual machine, ask the host for placement"),
    ),
    "acs-redirects": Explanation(
        "PCIe access control redirects traffic between devices",
        "Copies between GPUs, and to network adapters, take the way through the CPU; NCCL may hang",
        ("the firmware's default, or virtualisation being switched on",),
        ("switch ACS off in the firmware, or by setpci at each boot, where no virtual machines are hosted",),
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    "iommu-translates": Explanation(
        "The IOMMU translates transfers between devices",
        "GPUDirect RDMA and copies between GPUs over PCIe need it off or in pass-through mode",
        ("the kernel's default on many distributions",),
        ("boot with iommu=pt", "or switch the IOMMU off in the firmware"),
        "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html",
    ),
    "rdma-port-not-active": Explanation(
        "A network port has a link but is not active",
        "It cannot carry RDMA traffic",
        ("no subnet manager on the InfiniBand fabric", "a partition or configuration that was refused"),
        ("check the subnet manager", "look at the switch's log for this port"),
    ),
    "rdma-port-down": Explanation(
        "A network port is down while most of its kind are up",
        "The GPUs next to it use another rail, and collectives across nodes are slower",
        ("a cable or transceiver", "the switch port", "a flapping link"),
        ("check cable, transceiver and switch port",),
    ),
    "rdma-port-slow": Explanation(
        "A network port is slower than others of its kind",
        "Its link came up at a lower rate or with fewer lanes",
        ("a damaged cable or dirty connector", "settings of the switch port"),
        ("reseat or replace cable and transceiver", "look at the switch port's settings"),
    ),
    "pcie-slot-limits": Explanation(
        "The slot offers less than the GPU can do",
        "The whole path from the CPU is narrower or older than the GPU's own interface",
        ("a slot with fewer lanes", "a bifurcation setting", "a cloud's virtual machine, by design"),
        ("use another slot", "check the firmware's PCIe settings"),
    ),
    "fabric-not-ready": Explanation(
        "A GPU is not part of the NVLink fabric",
        "On systems with NVSwitches CUDA cannot start before each GPU has registered with the fabric",
        (
            "nvidia-fabricmanager does not run",
            "it has another version than the driver",
            "an NVSwitch or a trunk link is broken",
        ),
        ("check that nvidia-fabricmanager runs and has exactly the driver's version", "read its log"),
        FABRIC_MANAGER,
    ),
    "persistence-off": Explanation(
        "Persistence mode is off",
        "The driver unloads a GPU's state when nobody uses it: settings are lost, every start takes seconds",
        ("nvidia-persistenced does not run",),
        ("enable nvidia-persistenced, as the role gpu_settings does",),
        PERSISTENCE,
    ),
    "gpu-busy": Explanation(
        "Somebody uses a GPU",
        "Numbers that are taken now are too low, and say nothing about the hardware",
        ("a job runs on the node", "a process was left behind by one"),
        ("drain the node", "validate again"),
    ),
    "torch-cuda-too-new": Explanation(
        "torch is built for a newer CUDA than the driver knows",
        "Within one major version of CUDA older drivers work, across major versions they do not",
        ("torch was upgraded before the driver", "pip chose the newest build"),
        ("upgrade the driver", "or install a torch that is built for the driver's CUDA"),
        CUDA_COMPATIBILITY,
    ),
    "torch-no-gpu": Explanation(
        "torch cannot use any GPU",
        "CUDA could not be initialised; the finding has its message",
        (
            "CUDA_VISIBLE_DEVICES hides them",
            "the fabric manager does not run",
            "device files without permission",
        ),
        ("read the message in the finding", "look at nvidia-smi and the kernel log"),
        CUDA_COMPATIBILITY,
    ),
    "torch-gpu-count": Explanation(
        "torch sees another number of GPUs than nvidia-smi",
        "Jobs would use fewer GPUs than the node has",
        ("CUDA_VISIBLE_DEVICES", "a GPU in an exclusive or prohibited compute mode", "a GPU that failed"),
        ("unset CUDA_VISIBLE_DEVICES", "look into the kernel log"),
    ),
    "torch-architecture": Explanation(
        "torch has no code for a GPU's architecture",
        "Its build contains neither binary code nor PTX that this compute capability can run",
        ("a GPU newer than the build", "a GPU so old that the build dropped it"),
        ("install a torch build whose list has the GPU's compute capability",),
        "https://developer.nvidia.com/cuda-gpus",
    ),
    "torch-compute": Explanation(
        "A GPU does not compute",
        "A sum of a thousand numbers failed or came out wrong",
        ("a broken GPU", "a GPU in a wrong compute mode", "a driver that was half upgraded"),
        ("look for Xid errors of this GPU in the kernel log", "reset the GPU or reboot"),
    ),
    "torch-cudnn": Explanation(
        "cuDNN does not work in torch",
        "Convolutions fail or are wrong",
        ("another cuDNN in LD_LIBRARY_PATH", "a torch that was built without it"),
        ("reinstall torch with its own cuDNN", "clean LD_LIBRARY_PATH"),
        "https://docs.nvidia.com/deeplearning/cudnn/latest/",
    ),
    "torch-nccl": Explanation(
        "torch has no NCCL",
        "GPUs of this node cannot train together",
        ("a torch that was built without it",),
        ("install a torch build with NCCL",),
    ),
    "container-no-gpu": Explanation(
        "The container engine cannot start a container with GPUs",
        "An image of the node was to run nvidia-smi with all GPUs; the finding has the engine's message",
        ("the NVIDIA Container Toolkit is not set up for this engine", "an outdated CDI specification"),
        ("run the role container_engines", "look at nvidia-ctk cdi list and the engine's configuration"),
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ),
    "container-gpu-count": Explanation(
        "A container sees another number of GPUs than the node has",
        "Jobs in containers would use fewer GPUs",
        ("a CDI specification from before a GPU was added or failed",),
        ("write the CDI specification again: nvidia-ctk cdi generate", "restart the engine"),
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
    ),
    "process-died": Explanation(
        "A measuring process died",
        "It ended by a signal or an error, and brought no result",
        ("an Xid on its GPU", "out of memory", "a torch that does not fit the driver"),
        ("read what it said last, in the finding", "look into the kernel log"),
    ),
    "process-hung": Explanation(
        "A measuring process hung",
        "It gave no result within its budget and was ended",
        ("a wedged GPU", "a machine that is busy many times over"),
        ("look for Xid errors in the kernel log", "run again on an idle node; take it out if it hangs again"),
    ),
    "process-unkillable": Explanation(
        "A measuring process cannot be ended",
        "It is stuck in the kernel (state D), below the driver",
        ("a GPU that does not answer",),
        ("reboot the node",),
    ),
    "result-unreadable": Explanation(
        "A measuring process answered something that is no result",
        "NaN, text or half an answer where numbers belong",
        ("memory corruption", "a GPU that computes wrong"),
        ("run again", "if it happens again, take the node out"),
    ),
    "rank-hung": Explanation(
        "Ranks of a collective hung",
        "The one that got least far is named, because the others waited for it",
        ("a link or GPU of that rank", "a rank that is much slower than its budget"),
        ("look for Xid errors of this rank's GPU", "run again on an idle node"),
    ),
    "fabric-node": Explanation(
        "A node fails or is slow with other nodes, and they do well without it",
        "It was measured again with a partner that had done well with another node, and failed again",
        (
            "a cable, transceiver or switch port",
            "a network adapter or its firmware",
            "a firewall on this node",
        ),
        ("check this node's network adapters, cables, switch ports and firewall",),
    ),
    "fabric-unresolved": Explanation(
        "A collective between nodes fails, and no group tells why",
        "All groups that were tried failed, or all pairs work and only the whole does not",
        ("a firewall between all nodes", "the wrong network interface", "the fabric's own configuration"),
        (
            "check firewall, interface names (NCCL_SOCKET_IFNAME) and the fabric between the nodes",
            "run the standard tests of the network",
        ),
    ),
    "wrong-result": Explanation(
        "A computation or transfer gave a wrong result",
        "Silent data corruption: no error was reported, the data was wrong all the same",
        ("a broken GPU, memory or link",),
        ("take the node out of service now", "run the test again to see which GPU it follows"),
    ),
    "not-repeatable": Explanation(
        "The same product is not the same twice",
        "A GPU that computes the same product again must give the same bits; after the load it did not",
        ("a GPU that computes wrong under load", "memory that changes bits", "power supply"),
        ("take the node out of service now", "have the GPU replaced if it happens again"),
        "https://docs.nvidia.com/cuda/cublas/index.html",
    ),
    "gpu-differs": Explanation(
        "A GPU computes another product than its equals",
        "GPUs of one model give the same bits for the same product; this one does not",
        ("a GPU that computes wrong without an error message", "firmware that differs"),
        ("take the node out of service now", "run the test again to see that it stays with this GPU"),
        "https://docs.nvidia.com/cuda/cublas/index.html",
    ),
    "below-floor": Explanation(
        "A number is below the floor for its GPU model",
        "The floor is published or in production use; its source and date are in data/gpu_models.yml",
        ("clocks held down by heat or power", "a link that is slow", "other users", "settings of the node"),
        ("read the reasons beside the number", "run again on an idle node", "compare with a good node"),
    ),
    "noisy-below-floor": Explanation(
        "A number is below its floor, but too noisy to blame the hardware",
        "Its runs spread so far, after being measured three times, that the floor lies within",
        ("other users of the node", "a neighbour on the same host", "clocks that swing"),
        ("see what else uses the node", "run again when it is idle"),
    ),
    "below-fleet": Explanation(
        "A number is below those of its equals",
        "The median of at least four GPUs or nodes of the same kind is higher, beyond scatter and noise",
        ("heat, power limit, clocks", "a slow link", "other firmware or settings than the rest"),
        ("compare clocks, power limit, temperature, link and firmware with a node that is not slow",),
    ),
    "below-own-past": Explanation(
        "A number is below this node's own earlier ones",
        "The same GPU, measured the same way with the same torch, was that much faster",
        (
            "a driver upgrade",
            "cooling that became worse",
            "a link that trained down",
            "a lowered power limit",
        ),
        (
            "find what changed: `validation compare OLD NEW`",
            "to accept the new level, remove the node's file from the history",
        ),
    ),
}

EXPLANATIONS |= {
    f"xid-{number}": Explanation(
        f"Xid {number}: {entry.title}",
        "The driver wrote this to the kernel log since it was loaded",
        ("the finding has the log's last line, and NVIDIA's catalogue the possible causes",),
        (entry.action,),
        xid.SOURCE,
    )
    for number, entry in sorted(xid.REPORTED.items())
}
EXPLANATIONS |= explanations_training.EXPLANATIONS | explanations_links.EXPLANATIONS
EXPLANATIONS["xid-unknown"] = Explanation(
    "An Xid that this program does not know",
    "The driver wrote it to the kernel log since it was loaded",
    ("a driver that is newer than this program",),
    (xid.UNKNOWN.action,),
    xid.SOURCE,
)


def explain(code: str) -> str:
    """All that is known of a code, for people. Raises KeyError."""
    found = EXPLANATIONS[code]
    lines = [f"{code}: {found.title}.", "", f"{found.meaning}."]
    for heading, items in (("Usual causes:", found.causes), ("What to do:", found.actions)):
        lines += ["", heading, *(f"  - {item}" for item in items)]
    return "\n".join([*lines, "", f"Source: {found.source}"]) + "\n"


def overview() -> str:
    """All codes with their titles."""
    width = max(map(len, EXPLANATIONS))
    return "\n".join(f"{code:<{width}}  {found.title}" for code, found in EXPLANATIONS.items()) + "\n"


def closest(code: str) -> str | None:
    """The code that somebody may have meant."""
    return next(iter(difflib.get_close_matches(code, EXPLANATIONS, n=1)), None)
