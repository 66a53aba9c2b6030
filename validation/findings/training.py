"""What the findings of the training-shaped tests and of storage mean; explanations.py has the others."""

from __future__ import annotations

from validation.findings.explanation import Explanation

AMP = "https://docs.pytorch.org/docs/stable/amp.html"

EXPLANATIONS: dict[str, Explanation] = {
    "shm-too-small": Explanation(
        "Shared memory is too small for the workers of a DataLoader",
        "Workers hand over their batches in /dev/shm; when it is full, the kernel ends one with a bus error",
        (
            "a container with its engine's default of 64 MB",
            "a small size= of the node's own /dev/shm",
            "files left there",
        ),
        (
            "start containers with --ipc=host or a larger --shm-size",
            "on the node itself, mount /dev/shm with a larger size=",
            "use fewer workers or smaller batches",
        ),
        "https://docs.docker.com/reference/cli/docker/container/run/",
    ),
    "loader-limited": Explanation(
        "The environment allows fewer workers of a DataLoader than it has CPUs for",
        "A worker is a process, and each batch that it hands over is an open file of the job for a moment",
        ("a low --pids-limit or TasksMax=", "a limit of 1024 open files or fewer"),
        (
            "raise the limits of what starts training jobs: TasksMax= and LimitNOFILE= of a unit, "
            "--pids-limit and --ulimit nofile= of a container",
            "use fewer workers",
        ),
        "https://docs.pytorch.org/docs/stable/multiprocessing.html",
    ),
    "loader-worker-died": Explanation(
        "A worker of a DataLoader died or hung",
        "It was loading synthetic samples from memory, which fails on no healthy node",
        ("the kernel's out-of-memory killer", "a limit on processes or memory", "broken memory"),
        (
            "look for the out-of-memory killer in the kernel log",
            "look at the limits of the service or container",
        ),
        "https://docs.pytorch.org/docs/stable/data.html",
    ),
    "storage-below-floor": Explanation(
        "Storage reads more slowly than the operator wants",
        "Large sequential reads past the page cache; the floor is gpu_validation_storage_floor_gb_s",
        (
            "other users of the storage",
            "a slow link or a path that failed over",
            "a disk that fails or is full",
        ),
        ("see who else uses it", "look at its links, mount options and health", "compare with another node"),
    ),
    "storage-cache-unknown": Explanation(
        "Nobody can tell whether storage is as fast as the operator wants",
        "The file system has a cache of its own that reads cannot be kept out of; the number, which is above "
        "gpu_validation_storage_floor_gb_s, may be the cache's",
        (
            "ZFS, which takes O_DIRECT for a hint and keeps its cache when it is asked to drop it",
            "FUSE, whose process on this node may have the data in its memory",
            "a file that programs map into their memory, on a file system without O_DIRECT",
        ),
        (
            "name a path on this node that another file system is on",
            "run without the floor, and measure it with files larger than the memory of the node",
        ),
        "https://openzfs.github.io/openzfs-docs/man/master/7/zfsprops.7.html",
    ),
    "storage-error": Explanation(
        "Storage answered with an error",
        "A read, or a write of the file to read, ended with the error in the finding",
        ("a broken disk", "a server that went away", "a damaged file system"),
        ("look for errors of this disk, file system or server in the kernel log",),
    ),
    "storage-wrong-data": Explanation(
        "Storage gave other data than was written",
        "Blocks of our own file came back changed, or those of an existing file differed when read again",
        ("a broken disk, controller or cable", "broken memory", "somebody who writes to the file meanwhile"),
        ("take this storage out of use", "check the memory of the node"),
    ),
    "profile-empty": Explanation(
        "A profile of training steps shows no work",
        "torch's profiler ran and brought a trace without kernels, on a CPU without operators",
        ("another profiler that holds the GPU, DCGM's metrics for one", "a torch without CUPTI"),
        ("end the other profiler (dcgmi profile --pause)", "install a torch that is built with CUPTI"),
        "https://docs.pytorch.org/docs/stable/profiler.html",
    ),
    "amp-no-gain": Explanation(
        "Mixed precision is slower than full precision",
        "A training step in bf16 uses tensor cores and half the memory traffic, so it should be faster",
        (
            "other users of the GPU",
            "a torch without kernels for this GPU",
            "a CPU that cannot launch fast enough",
        ),
        ("run again on an idle node", "compare torch, driver and clocks with a node that gains"),
        AMP,
    ),
    "memory-not-returned": Explanation(
        "Memory does not come back after a batch was too large",
        "A batch that had fitted no longer fitted after larger ones had run out of memory and were given up",
        ("another process that took the memory meanwhile", "a torch that keeps memory it cannot use"),
        ("see what else uses the memory of the device", "try another version of torch"),
        "https://docs.pytorch.org/docs/stable/notes/faq.html",
    ),
    "no-memory-saved": Explanation(
        "Gradient accumulation or activation checkpointing saves no memory",
        "Both keep fewer activations for the backward pass, so a step must take less memory with them",
        ("a torch that ignores them", "libraries that take more work space for smaller parts of a batch"),
        ("try another version of torch", "compare with another node"),
        "https://docs.pytorch.org/docs/stable/checkpoint.html",
    ),
}
