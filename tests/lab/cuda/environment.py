"""A Python with a real CUDA build of torch, and the stand-in's libraries for it; both are cached."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.cache import digest, obtain
from tests.lab.cuda import build
from tests.lab.process import LabError, step
from tests.lab.process import build as run_logged

if TYPE_CHECKING:
    from tests.lab.settings import Lab

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OPERATORS = Path(__file__).with_name("operators.py")
#: One torch that makes no context when a device is set, and one that does (from 2.8 on).
VERSIONS = ("2.7.1", "2.9.1")
#: The headers that the stand-in is compiled with: newer than either torch's CUDA, which is compatible.
HEADERS = "nvidia-cuda-runtime-cu12==12.8.90"
#: Python runs this line at its start, where the environment names the operators: no process is forgotten.
HOOK = "import os, runpy; os.environ.get('{0}') and runpy.run_path(os.environ['{0}'])\n"
VARIABLE = "TEMPER_CUDA_OPERATORS"


@dataclass(frozen=True)
class Environment:
    """A torch and what stands in for CUDA under it."""

    version: str
    python: Path
    libraries: Path

    def variables(self) -> dict[str, str]:
        """The variables that a process needs to find the stand-in."""
        return {"LD_LIBRARY_PATH": str(self.libraries), VARIABLE: str(OPERATORS)}


def prepare(lab: Lab, version: str) -> Environment:
    """The environment with this torch. Raises LabError."""
    tree = _tree(lab, version)
    packages = next((tree / "lib").glob("python3*")) / "site-packages"
    headers = packages / "nvidia" / "cuda_runtime" / "include"
    libraries = build.libraries(lab.cache, packages / "torch", headers)
    return Environment(version, tree / "bin" / "python3", libraries)


def _tree(lab: Lab, version: str) -> Path:
    parts: list[str | bytes] = [version, HEADERS, HOOK, sys.version, REQUIREMENTS.read_bytes()]
    name = f"cuda-torch-{version}-{digest(parts)}"
    log = lab.cache / "logs" / f"{name}.log"

    def fill(folder: Path) -> None:
        with step(f"Installing torch {version} with CUDA", "0.9 GB to fetch, 2 GB on disk"):
            run_logged([sys.executable, "-m", "venv", str(folder)], log)
            pip = [f"{folder}/bin/python3", "-m", "pip", "install", "--no-cache-dir", "--no-deps"]
            # Without what torch depends on: the stand-in takes the place of CUDA's own libraries.
            run_logged([*pip, f"torch=={version}", HEADERS, "-r", str(REQUIREMENTS)], log)
            packages = next((folder / "lib").glob("python3*")) / "site-packages"
            _no_cuda(packages)
            (packages / "temper_cuda.pth").write_text(HOOK.format(VARIABLE))

    return obtain(lab.cache, name, fill)


def _no_cuda(packages: Path) -> None:
    """Keep the headers, and nothing that torch could load in the place of the stand-in. Raises LabError."""
    for library in (packages / "nvidia").rglob("*.so*"):
        library.unlink()
    if not list((packages / "torch" / "lib").glob("libtorch_cuda.so")):
        raise LabError("this machine's pip has only a torch without CUDA: nothing to put a stand-in under")
