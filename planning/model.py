"""What a source of packages is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]
Gpu = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """The distribution release and the architecture, under the names that repositories give them."""

    distribution: str  # a key of nvidia_distributions: "debian-12"
    row: Facts  # its row
    architecture: str  # the kernel's word: x86_64 | aarch64
    package_architecture: str  # amd64 | arm64; x86_64 | aarch64 for rpm
    repository_architecture: str  # NVIDIA's word: x86_64 | sbsa

    @property
    def major(self) -> str:
        """The release's major version: 9 of rhel-9."""
        return self.distribution.rpartition("-")[2].partition(".")[0]

    @property
    def package_manager(self) -> str:
        """`apt` or `dnf`."""
        return str(self.row["package_manager"])


@dataclass(frozen=True)
class Request:
    """What a source is asked for: this hardware, on this system, as the operator wishes it."""

    node: Facts  # fact `temper` of module node_facts
    tables: Facts  # all of data/*.yml
    values: Facts  # effective role variables
    system: System
    gpus: list[dict[str, Any]]  # known ones: {model, name, architecture, count}
    unknown_gpus: list[str]  # PCI device ids
    fabric: str  # none | nvswitch | nvlink5
    today: str = ""  # "2026-11-21"; without it, no end of life is judged


@dataclass(frozen=True)
class Offer:
    """What a source answers: its part of the plan. With problems, the rest must not be carried out.

    Keys and meaning are those of the plan (docs/nvidia_stack.md).
    """

    stack: str
    driver: dict[str, Any] | None = None
    cuda: str | None = None
    torch: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    present: list[str] = field(default_factory=list)
    pins: list[dict[str, str]] = field(default_factory=list)
    repositories: list[dict[str, Any]] = field(default_factory=list)
    module_streams: list[dict[str, str]] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    runtime: dict[str, str | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hint: str = ""  # what the operator should know where the package manager cannot carry the plan out
