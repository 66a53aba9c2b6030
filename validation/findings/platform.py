"""What the findings about links, the platform, torch and containers mean; explanations.py joins them all."""

from __future__ import annotations

from validation.findings.explanation import Explanation

NVIDIA_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
FABRIC_MANAGER = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
CUDA_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/index.html"

EXPLANATIONS: dict[str, Explanation] = {
    "fabric-manager-stopped": Explanation(
        "The fabric manager of a node with NVSwitches does not run",
        "What it has set up may go on to work, so that everything looks healthy; after the next reset of a "
        "GPU, or a reboot, CUDA does not start",
        ("it crashed, or met an NVLink error that it is told to stop at", "it was never enabled"),
        ("journalctl --unit nvidia-fabricmanager", "systemctl enable --now nvidia-fabricmanager"),
        FABRIC_MANAGER,
    ),
    "nvlink-unknown": Explanation(
        "The NVLinks of a node with NVSwitches cannot be looked at",
        "nvidia-smi nvlink --status failed, so links that are down would not be found",
        ("a driver that hangs", "a GPU that is lost"),
        ("run nvidia-smi nvlink --status on the node", "look for Xid errors in the kernel log"),
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
    "numa-unknown": Explanation(
        "The firmware does not say which NUMA node a GPU belongs to",
        "Processes and pinned memory cannot be placed near it: transfers may cross the sockets' link",
        ("old firmware", "NUMA is switched off", "a virtual machine without NUMA placement"),
        ("update the firmware or change its settings", "for a virtual machine, ask the host for placement"),
    ),
    "pcie-uplink-slow": Explanation(
        "The PCIe link above a network adapter or a PCIe switch is slower than both of its ends can be",
        "All traffic behind it is: to the fabric, or between host and every GPU behind the switch",
        ("dirty or loose contacts", "a riser or cable that is damaged", "firmware settings"),
        ("reseat card and riser", "look for AER errors in the kernel log"),
    ),
    "acs-unknown": Explanation(
        "Nobody knows whether PCIe access control redirects traffic between devices",
        "The kernel shows the registers of bridges to root alone",
        ("the payload was run by another user", "a container without the host's sysfs"),
        ("run it as root",),
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
}
