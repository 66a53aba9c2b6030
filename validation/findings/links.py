"""What findings about links and counters mean that grew while a GPU was tested."""

from __future__ import annotations

from validation.findings.explanation import Explanation

XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"
MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
NVML = "https://docs.nvidia.com/deploy/nvml-api/group__NvLink.html"

EXPLANATIONS: dict[str, Explanation] = {
    "nvlink-lost-under-load": Explanation(
        "An NVLink trained again or lost packets while a GPU was tested",
        "Traffic stops while a link trains; collectives stall, and a link that goes on doing it ends jobs",
        ("a GPU that is not seated well", "a failing baseboard, cable or NVSwitch"),
        ("read the kernel log for Xid 74, or 144 to 150 on Blackwell", "reseat the GPU", "have it replaced"),
        XID,
    ),
    "nvlink-errors-under-load": Explanation(
        "An NVLink had to send data again while a GPU was tested",
        "The data arrived, at the second attempt; counters that keep growing announce a failing link",
        ("a GPU that is not seated well", "a marginal link: single errors can be chance"),
        ("run again; see whether the same link counts again", "reseat the GPU if it does"),
        NVML,
    ),
    "pcie-replay-under-load": Explanation(
        "The PCIe link of a GPU had to send packets again while it was tested",
        "The packets arrived at a later attempt, which costs bandwidth; many of them cost much",
        ("a riser, cable or slot with a bad contact", "a marginal link: single replays can be chance"),
        ("run again; see whether the same GPU counts again", "reseat the GPU or its riser"),
    ),
    "ecc-corrected-under-load": Explanation(
        "A GPU corrected memory errors while it was tested",
        "The data is right; a cell that keeps failing gets mapped out at the next reset",
        ("a weak memory cell", "cosmic radiation: one single event may be chance"),
        ("run again", "if they keep coming, drain the node and reset the GPU"),
        MEMORY_ERRORS,
    ),
}
