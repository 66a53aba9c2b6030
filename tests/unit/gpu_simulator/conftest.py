"""A simulated node without a node: files below a temporary directory, programs as calls or as processes."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from unittest import mock

import pytest

from tests.lab.gpu_simulator import nvidia_packages, profiles

SIMULATOR = Path(profiles.__file__).parent
MACHINE = SIMULATOR / "node/usr/lib/gpu-simulator/machine.py"
PACKAGES = SIMULATOR / "packages"


@functools.cache
def code_of(program: Path) -> CodeType:
    return compile(program.read_text(), str(program), "exec")


class SimulatedNode:
    """The files and programs of one node."""

    def __init__(self, root: Path, profile: str) -> None:
        self.root = root
        self.environment = {"GPU_SIMULATOR_ROOT": str(root), "PATH": os.defpath}
        self.write("var/lib/gpu-simulator/hardware.json", json.dumps(profiles.hardware(profile, "gpu01")))

    def write(self, path: str, text: str) -> None:
        """Write a file of the node."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def read(self, path: str) -> str:
        """Read a file of the node, without white space around it."""
        return (self.root / path).read_text().strip()

    def install(self, version: str, flavour: str = "open") -> None:
        """Do what installing the driver's packages does to the files that matter here."""
        library = {"simulated": "NVML", "version": version, "cuda": nvidia_packages.DRIVERS[version]}
        self.write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", json.dumps(library))
        module = {"simulated": "nvidia.ko", "version": version, "flavour": flavour}
        self.write(f"lib/modules/{os.uname().release}/updates/dkms/nvidia.ko", json.dumps(module))
        self.write("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n")

    def run(self, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the simulator's programs as a process of its own, against this node's files."""
        command = [sys.executable, "-IS", str(program), *arguments]
        environment = {**self.environment, "GPU_SIMULATOR_UID": "0"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)

    def call(self, program: Path, *arguments: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        """Run one of the simulator's programs from its first line to its exit status, in this process."""
        command = [str(program), *arguments]
        out, err = io.StringIO(), io.StringIO()
        status = None
        with (
            mock.patch.dict(os.environ, {**self.environment, "GPU_SIMULATOR_UID": str(user)}, clear=True),
            mock.patch.multiple(sys, argv=command, path=list(sys.path), dont_write_bytecode=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                exec(code_of(program), {"__name__": "__main__", "__file__": str(program)})  # noqa: S102
            except SystemExit as end:
                status = end.code
        assert isinstance(status, int)
        return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())

    def machine(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the simulated kernel side."""
        return self.call(MACHINE, *arguments)

    def boot(self) -> None:
        """Start over: what lives in memory is gone."""
        for name in ("sys", "run", "proc", "dev"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        result = self.machine("boot")
        assert result.returncode == 0, result.stderr

    def smi(self, *arguments: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        """Run nvidia-smi."""
        return self.call(PACKAGES / "nvidia_smi.py", *arguments, user=user)

    def query(self, fields: str, *more: str) -> list[list[str]]:
        """Return the rows of --query-gpu without header and units."""
        result = self.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more)
        assert result.returncode == 0, result.stdout
        return [line.split(", ") for line in result.stdout.splitlines()]

    def xml(self) -> ET.Element:
        """Return what -q -x says, parsed."""
        result = self.smi("-q", "-x")
        assert result.returncode == 0, result.stdout
        return ET.fromstring(result.stdout)  # noqa: S314 - our own program's output

    def fault(self, name: str, state: str = "on") -> None:
        """Switch a fault."""
        result = self.machine("fault", name, state)
        assert result.returncode == 0, result.stderr


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., SimulatedNode]:
    """Make nodes that have booted without any driver."""

    def make(profile: str = "l4-1") -> SimulatedNode:
        node = SimulatedNode(tmp_path / profile, profile)
        node.boot()
        return node

    return make


@pytest.fixture
def booted(tmp_path: Path) -> Callable[..., SimulatedNode]:
    """Make nodes that have booted with a driver."""

    def make(profile: str = "l4-1", version: str = "580.126.09", flavour: str = "open") -> SimulatedNode:
        node = SimulatedNode(tmp_path / profile, profile)
        node.install(version, flavour)
        node.boot()
        return node

    return make


@pytest.fixture
def h100(booted: Callable[..., SimulatedNode]) -> SimulatedNode:
    """Eight H100, driver loaded, persistence mode on as nvidia-persistenced would have it."""
    node = booted("hgx-h100-8")
    assert node.smi("-pm", "1").returncode == 0
    return node


@pytest.fixture
def l4(booted: Callable[..., SimulatedNode]) -> SimulatedNode:
    """One L4, driver loaded, persistence mode on."""
    node = booted("l4-1")
    assert node.smi("-pm", "1").returncode == 0
    return node
