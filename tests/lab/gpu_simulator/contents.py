"""What simulated packages are made of: files of `packages/`, stand-ins, libraries, units."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tests.lab.gpu_simulator import libraries
from tests.lab.gpu_simulator.deb import File

FILES = Path(__file__).resolve().parent / "packages"


@dataclass(frozen=True)
class Architecture:
    """One machine architecture under its three names."""

    debian: str
    nvidia: str  # in the CUDA repositories' paths
    triplet: str

    @property
    def libraries(self) -> str:
        """The directory of shared libraries."""
        return f"/usr/lib/{self.triplet}"


def text(name: str, **values: str) -> str:
    """Read a file of `packages/` and put values in the place of @NAME@."""
    content = (FILES / name).read_text()
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    return content


def file(name: str, **values: str) -> File:
    """Return a file of `packages/`."""
    return File(text(name, **values).encode())


def program(name: str, **values: str) -> File:
    """Return a file of `packages/` that can be run."""
    return File(text(name, **values).encode(), 0o755)


def stand_in(what: str, **facts: str) -> File:
    """Stand for a binary: JSON that says what it is, and what the simulated programs ask of it."""
    return File((json.dumps({"simulated": f"stands for {what}", **facts}) + "\n").encode())


class Shipped(TypedDict):
    """Files and links of a package."""

    files: dict[str, File]
    links: dict[str, str]


def library(arch: Architecture, soname: str, version: str, code: int = 0, **facts: str) -> Shipped:
    """Return a shared library as NVIDIA ships it: its name has the version, and its soname leads there.

    `code` is the number that it answers when it is asked for its version.
    """
    name = soname.partition(".so.")[0]
    file = f"{name}.so.{version}"
    content = libraries.shared_library(name, soname, version, code, **facts)
    return Shipped(
        files={f"{arch.libraries}/{file}": File(content)}, links={f"{arch.libraries}/{soname}": file}
    )


def upstream(version: str) -> str:
    """Return a package version without epoch and Debian revision."""
    return version.rpartition(":")[2].partition("-")[0]


def with_service(package: str, *, enabled: bool, unit: str = "") -> dict[str, str]:
    """Return maintainer scripts for a package with a unit, of the package's name unless said otherwise."""
    values = {
        "PACKAGE": package,
        "UNIT": unit or f"{package}.service",
        "ENABLED": str(enabled).lower(),
    }
    return {script: text(f"service.{script}", **values) for script in ("postinst", "prerm", "postrm")}
