"""Containers: does this node's container engine start one that sees every GPU?

No image is pulled: one that is already on the node serves, with `nvidia-smi` in place of what it would run;
the NVIDIA Container Toolkit brings that along. The container has no network and is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.checks.measured import not_run
from validation.command import CommandTimeoutError, run
from validation.contract import Finding, State, TestResult

if TYPE_CHECKING:
    from validation.checks import Node

TIMEOUT_S = 60.0
#: What makes an engine hand over all GPUs: Docker and nerdctl by the toolkit's hook or CDI, Podman by CDI.
GPUS = {
    "docker": ["--gpus", "all"],
    "nerdctl": ["--gpus", "all"],
    "podman": ["--device", "nvidia.com/gpu=all"],
}


#: nvidia-smi is there, brought by the toolkit, and the image has no C library for it, or is of another
#: machine: many of the small images that Kubernetes brings along. Where the toolkit brings nothing, the
#: program is "not found".
UNSUITABLE = re.compile(r"exec [^:]*nvidia-smi[^:]*: no such file or directory|exec format error")
#: How many images are tried.
MOST_IMAGES = 5


class UnsuitableImageError(Exception):
    """Nothing of the node's runs in this image; the message is what the engine said."""


class ContainerError(Exception):
    """A command of a container engine failed; the message is what it said last."""


@dataclass(frozen=True)
class Engine:
    """A container engine that answers, and images that it has."""

    name: str
    images: tuple[str, ...]


class GpuContainer:
    """A container with all GPUs, started by the first engine that has an image."""

    id = "gpu_container"
    title = "a container sees every GPU"
    needs = "Docker, Podman or nerdctl with an image of its own, an NVIDIA GPU with its driver"
    method = 1
    headline: tuple[str, ...] = ()

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if not node.pci_gpus:
            return not_run(self, "no NVIDIA GPU on the PCI bus")
        if node.loaded_driver is None:
            return not_run(self, "the NVIDIA driver is not loaded")
        started = time.monotonic()
        engine, reason = find_engine()
        if engine is None:
            return not_run(self, reason, started)
        for image in engine.images[:MOST_IMAGES]:
            try:
                findings = tuple(_look(engine.name, image, len(node.gpus)))
                break
            except UnsuitableImageError as error:
                reason = f"no image that {engine.name} has can run a program of the node; it says: {error}"
        else:
            return not_run(self, reason, started)
        return TestResult(
            id=self.id,
            state=State.FAIL if findings else State.PASS,
            method=self.method,
            duration_s=round(time.monotonic() - started, 3),
            findings=findings,
            details={"engine": engine.name, "image": image},
        )


def find_engine() -> tuple[Engine | None, str]:
    """The first engine that answers and has an image; else None, and why."""
    reasons = []
    for name in GPUS:
        try:
            images = _ask([name, "image", "ls", "--quiet"]).split()
        except FileNotFoundError:
            continue
        except ContainerError as error:
            reasons.append(f"{name}: {error}")
            continue
        if images:
            return Engine(name, tuple(dict.fromkeys(images))), ""
        reasons.append(f"{name} has no image, and none is pulled for a test")
    return None, "; ".join(reasons) or "no container engine is installed"


def _look(engine: str, image: str, gpus: int) -> list[Finding]:
    """What is wrong with a container of this image. Raises UnsuitableImageError."""
    name = f"temper-validation-{os.getpid()}"
    command = [engine, "run", "--rm", "--name", name, "--network", "none", *GPUS[engine]]
    command += [
        "--env",
        "NVIDIA_DRIVER_CAPABILITIES=utility",
        "--entrypoint",
        "nvidia-smi",
        image,
        "-L",
    ]
    try:
        seen = sum(line.startswith("GPU ") for line in _ask(command).splitlines())
    except ContainerError as error:
        if UNSUITABLE.search(str(error)):
            raise UnsuitableImageError(str(error)) from error
        return [
            Finding(
                "container-no-gpu",
                State.FAIL,
                f"{engine} cannot start a container with GPUs: {error}",
                "run the role container_engines; look at nvidia-ctk cdi list and the engine's configuration",
            )
        ]
    finally:
        # Gone already, unless it hung; an engine that hangs on this, too, has been said to.
        with contextlib.suppress(CommandTimeoutError):
            run([engine, "rm", "--force", name], TIMEOUT_S)
    if seen == gpus:
        return []
    return [
        Finding(
            "container-gpu-count",
            State.FAIL,
            f"a container of {engine} sees {seen} GPUs, the node has {gpus}",
            "write the CDI specification again (nvidia-ctk cdi generate), then restart the engine",
        )
    ]


def _ask(command: list[str]) -> str:
    """What a command prints. Raises ContainerError, FileNotFoundError."""
    try:
        done = run(command, TIMEOUT_S)
    except CommandTimeoutError as error:
        raise ContainerError(str(error)) from error
    if done.status != 0:
        words = (done.errors or done.output).strip().splitlines()
        raise ContainerError(words[-1][:300] if words else f"exit status {done.status}")
    return done.output
