"""What the findings about GPUs, their memory and their driver mean; explanations.py joins them all."""

from __future__ import annotations

from validation.findings import xids
from validation.findings.explanation import Explanation

NVIDIA_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
FABRIC_MANAGER = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
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
    "kernel-log-unreadable": Explanation(
        "The kernel log cannot be read",
        "Xid errors stand only there, so nobody knows whether there were any",
        (
            "not run as root, on a system that keeps the kernel log from users",
            "inside a container",
            "the journal gave no answer, and the kernel's own buffer has lost its beginning",
        ),
        ("run this as root, or as a member of the groups adm or systemd-journal", "journalctl --verify"),
        xids.SOURCE,
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
    "gpu-not-driven": Explanation(
        "The driver drives fewer GPUs than the PCI bus has",
        "A GPU is there, but the driver refused it or gave it up",
        (
            "the driver does not support the model",
            "the GPU failed to initialise",
            "it is bound to vfio-pci",
            "a container or job was given a part of the GPUs; where a variable says so, it is only degraded",
        ),
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
    "power-limit-low": Explanation(
        "The power limit of a GPU is lower than expected",
        "Under load its clocks, and so its numbers, are lower",
        ("somebody lowered it, or a tool did at boot", "the server limits the power of its GPUs"),
        ("set it: gpu_settings_power_limit_w", "look at power capping in the server's management"),
        NVIDIA_SMI,
    ),
    "application-clock-low": Explanation(
        "The application clock of a GPU is below its default",
        "Programs run at that clock at most, so that numbers are lower without any fault",
        ("somebody lowered it with nvidia-smi -ac", "a scheduler's prologue did and nothing gave it back"),
        ("nvidia-smi --reset-applications-clocks",),
        NVIDIA_SMI,
    ),
    "clocks-not-locked": Explanation(
        "A GPU runs faster under load than the clock that it is to be locked at",
        "Numbers are not those that were planned for, and power is not either",
        (
            "the unit that locks clocks did not run after the driver was loaded",
            "somebody gave the clocks back",
        ),
        ("run the role gpu_settings", "nvidia-smi --lock-gpu-clocks sets them until the next load"),
        NVIDIA_SMI,
    ),
    "ecc-off": Explanation(
        "ECC is off on a data-centre GPU",
        "Memory errors are not corrected, and not counted: a healthy report says nothing about the memory",
        ("somebody switched it off for a little more memory or speed",),
        ("nvidia-smi --ecc-config=1, then reset the GPU or reboot",),
        NVIDIA_SMI,
    ),
    "gpu-memory-taken": Explanation(
        "Memory of a GPU is in use, and no process is seen that uses it",
        "Somebody measures or computes at the same time, or a process that died left its memory",
        ("a job in another container", "a process that hangs in the driver"),
        ("look at the node from outside of the container", "reset the GPU where nobody uses it"),
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
}
