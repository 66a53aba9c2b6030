"""What the findings about tests and their numbers mean; explanations.py joins them all."""

from __future__ import annotations

from validation.findings.explanation import Explanation

NVIDIA_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

EXPLANATIONS: dict[str, Explanation] = {
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
    "telemetry-lost": Explanation(
        "nvidia-smi stopped answering while a GPU worked",
        "Clocks, power, errors and links of that time are unknown",
        ("a GPU that hangs or is lost", "a machine under extreme load"),
        ("look for Xid errors in the kernel log", "run again"),
        NVIDIA_SMI,
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
        "It is zero or negative, stands for no run, is more than a quarter above the hardware's peak, or is "
        "one of a GPU that nvidia-smi does not list: no work was done, it was not timed, or not there",
        (
            "a kernel that was not started",
            "a clock that jumped",
            "a GPU that went away while it was measured",
            "a fault of this program",
        ),
        ("run again", "if it happens again, report it with the result"),
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
        "It was measured with two nodes that do well with others, and was bad with both",
        (
            "a cable, transceiver or switch port",
            "a network adapter or its firmware",
            "a firewall on this node",
        ),
        ("check this node's network adapters, cables, switch ports and firewall",),
    ),
    "fabric-link": Explanation(
        "Two nodes are bad with each other, and both do well with others",
        "Neither node is to blame: what only these two share is the way between them",
        (
            "a switch port, cable or link between switches that the routing gives to this pair",
            "traffic of several pairs that hashing sends the same way",
        ),
        ("check routing and error counters of the switches between them", "measure again", "leave both in"),
    ),
    "fabric-slow": Explanation(
        "All nodes together are slow, and no pair of them is",
        "Below the operator's floor, below 60 % of what the links carry, or below half of what pairs reach",
        (
            "an oversubscribed network: many pairs at once share links between switches",
            "routing, congestion control or one slow switch",
            "NCCL takes sockets instead of RDMA, or not all adapters, if pairs are slow as well",
        ),
        (
            "measure more pairs: gpu_validation_fabric_pair_rounds",
            "check switches and routing; see what NCCL chose with NCCL_DEBUG=INFO",
        ),
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
    "differs-from-fleet": Explanation(
        "A GPU computes another product than equal GPUs of other nodes",
        "GPUs of one model give the same bits for the same product with the same torch and cuBLAS",
        (
            "a GPU that computes wrong without an error message",
            "without a majority: any of the GPUs that are named",
            "where the driver is another one, too: kernels that the driver compiled otherwise",
        ),
        ("take the node out of service now", "run the test again to see that it stays with this GPU"),
        "https://docs.nvidia.com/cuda/cublas/index.html",
    ),
    "differs-from-own-past": Explanation(
        "A GPU computes another product than in an earlier run",
        "The same GPU with the same torch, cuBLAS and driver gives the same bits at every run",
        ("a GPU that began to compute wrong without an error message", "memory that changes bits"),
        (
            "take the node out of service now",
            "run the test again; `validation compare OLD NEW` shows which products changed",
            "if the older run was the wrong one, remove the node's file from the history",
        ),
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
