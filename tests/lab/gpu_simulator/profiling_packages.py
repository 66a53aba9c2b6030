"""The simulated profilers: Nsight Systems and Nsight Compute, as a CUDA release brings them.

Names follow NVIDIA's package lists: a metapackage for each CUDA release, which needs one version of the tool.
Which versions 12.9 and 13.2 have is assumed; 13.0 has Nsight Compute 2025.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.lab.gpu_simulator.contents import Architecture
from tests.lab.gpu_simulator.deb import File, Package

# CUDA release -> version of its packages, of Nsight Systems, of Nsight Compute.
RELEASES = {
    "12.9": ("12.9.1-1", "2025.1.3", "2025.2.1"),
    "13.0": ("13.0.2-1", "2025.3.2", "2025.3.1"),
    "13.2": ("13.2.2-1", "2025.6.3", "2026.1.1"),
}


def _program(line: str) -> File:
    return File(f"#!/bin/sh\n# Simulated by Temper's lab: no profiler.\necho '{line}'\n".encode(), 0o755)


def profiling_packages(arch: Architecture) -> Iterator[Package]:
    """Yield both tools of each CUDA release."""
    for release, (version, systems, compute) in RELEASES.items():
        suffix = release.replace(".", "-")
        tools = (
            ("systems", systems, "bin/nsys", f"NVIDIA Nsight Systems version {systems}"),
            ("compute", compute, "ncu", f"NVIDIA (R) Nsight Compute Command Line Profiler Version {compute}"),
        )
        for tool, number, program, line in tools:
            path = f"/opt/nvidia/nsight-{tool}/{number}/{program}"
            yield Package(
                name=f"nsight-{tool}-{number}",
                version=f"{number}.0-1",
                architecture=arch.debian,
                section="devel",
                description=f"NVIDIA Nsight {tool.title()}",
                files={path: _program(line)},
            )
            yield Package(
                name=f"cuda-nsight-{tool}-{suffix}",
                version=version,
                architecture=arch.debian,
                section="devel",
                description=f"NVIDIA Nsight {tool.title()} of CUDA {release} (metapackage)",
                depends=f"nsight-{tool}-{number} (>= {number})",
            )
