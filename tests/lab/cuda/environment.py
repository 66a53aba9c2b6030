"""A Python with a real CUDA build of torch, and the stand-in's libraries for it; both are cached."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cache import digest, obtain
from tests.lab.cuda import build
from tests.lab.process import LabError, step
from tests.lab.process import build as run_logged
from tests.lab.settings import Lab

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OPERATORS = Path(__file__).with_name("operators.py")
#: The oldest torch of nvidia_torch_releases (CUDA 12.1), which makes no context when a device is set, and the
#: newest (CUDA 13.2). TEMPER_CUDA_TORCH names others, the oldest first.
VERSIONS = tuple(os.environ.get("TEMPER_CUDA_TORCH", "2.4.1 2.15.0").split())
#: The headers that the stand-in is compiled with, by CUDA's major release, in which they are compatible.
HEADERS = {"12": "nvidia-cuda-runtime-cu12==12.8.90", "13": "nvidia-cuda-runtime==13.2.75"}
#: Python runs this line at its start, where the environment names the operators: no process is forgotten.
HOOK = "import os, runpy; os.environ.get('{0}') and runpy.run_path(os.environ['{0}'])\n"
VARIABLE = "TEMPER_CUDA_OPERATORS"


@dataclass(frozen=True)
class Environment:
    """A torch and what stands in for CUDA under it."""

    version: str
    cuda: str  # its major release
    python: Path
    libraries: Path
    #: What CUDA's libraries say of themselves, as settings of runtime.c: what this torch was built with.
    versions: dict[str, int]

    def variables(self) -> dict[str, str]:
        """The variables that a process needs to find the stand-in."""
        return {"LD_LIBRARY_PATH": str(self.libraries), VARIABLE: str(OPERATORS)}


def prepare(lab: Lab, version: str) -> Environment:
    """The environment with this torch. Raises LabError."""
    tree = _tree(lab, version)
    packages = _packages(tree)
    headers = next((packages / "nvidia").glob("*/include/cuda_runtime_api.h")).parent
    cuda = _cuda(packages)
    libraries = build.libraries(lab.cache, packages / "torch", headers, cuda)
    return Environment(version, cuda, tree / "bin" / "python3", libraries, _versions(packages))


def _tree(lab: Lab, version: str) -> Path:
    parts: list[str | bytes] = [version, repr(HEADERS), HOOK, sys.version, REQUIREMENTS.read_bytes()]
    name = f"cuda-torch-{version}-{digest(parts)}"
    log = lab.cache / "logs" / f"{name}.log"

    def fill(folder: Path) -> None:
        with step(f"Installing torch {version} with CUDA", "0.5 to 0.9 GB to fetch, 2 GB on disk"):
            run_logged([sys.executable, "-m", "venv", str(folder)], log)
            pip = [f"{folder}/bin/python3", "-m", "pip", "install", "--no-cache-dir", "--no-deps"]
            # Without what torch depends on: the stand-in takes the place of CUDA's own libraries.
            run_logged([*pip, f"torch=={version}", "-r", str(REQUIREMENTS)], log)
            packages = _packages(folder)
            run_logged([*pip, HEADERS[_cuda(packages)]], log)
            _no_cuda(packages)
            (packages / "temper_cuda.pth").write_text(HOOK.format(VARIABLE))

    return obtain(lab.cache, name, fill)


def _packages(tree: Path) -> Path:
    return next((tree / "lib").glob("python3*")) / "site-packages"


def _cuda(packages: Path) -> str:
    """The major release of the CUDA that the torch in this folder is built for. Raises LabError."""
    said = re.search(r"^cuda\b.*= '(\d+)\.", (packages / "torch/version.py").read_text(), re.MULTILINE)
    if said is None or said[1] not in HEADERS:
        raise LabError(
            f"expected a torch for CUDA {' or '.join(HEADERS)} from this machine's pip: there is nothing to "
            "put a stand-in under"
        )
    return said[1]


def _versions(packages: Path) -> dict[str, int]:
    """The versions of libraries that the wheel of torch requires, as these count them."""
    metadata = next(packages.glob("torch-*.dist-info/METADATA")).read_text()
    required = dict(re.findall(r"^Requires-Dist: (?:nvidia-)?([a-z-]+).*==([\d.]+)", metadata, re.MULTILINE))
    found = {}
    for library in ("cudnn", "nccl", "cublas"):
        # Since CUDA 13 torch requires the toolkit, whose release cuBLAS has.
        package = f"{library}-cu" if f"{library}-cu" in required else "cuda-toolkit"
        major, minor, patch = map(int, required[package].split(".")[:3])
        found[library] = major * 10000 + minor * 100 + patch
    return found


def _no_cuda(packages: Path) -> None:
    """Keep the headers, and nothing that torch could load in the place of the stand-in."""
    for library in (packages / "nvidia").rglob("*.so*"):
        library.unlink()
