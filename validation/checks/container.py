"""Containers: does this node's container engine start one that sees every GPU?

No image is pulled: one that is already on the node serves, with `nvidia-smi` in place of what it would run;
the NVIDIA Container Toolkit brings that along. The container has no network and is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from validation.checks.check import DRIVER, Check, CostStep, IdleNode, Need, Scope
from validation.checks.launch import without_torch
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, TestResult
from validation.model.not_run import NotRunError
from validation.processes.child import Request
from validation.processes.command import CommandError, run

TIMEOUT_S = 60.0
PREFIX = "temper-validation-"
#: What makes an engine hand over all GPUs: Docker and nerdctl by the toolkit's hook or CDI, Podman by CDI.
GPUS = {
    "docker": ["--gpus", "all"],
    "nerdctl": ["--gpus", "all"],
    "podman": ["--device", "nvidia.com/gpu=all"],
}


#: Engines that have no program with which a container is started by hand, by their sockets.
SERVED = {
    "/run/k3s/containerd/containerd.sock": "RKE2 or K3s",
    "/run/k0s/containerd.sock": "k0s",
    "/var/snap/microk8s/common/run/containerd.sock": "MicroK8s",
    "/run/crio/crio.sock": "CRI-O",
    "/run/containerd/containerd.sock": "containerd",
    "/run/docker.sock": "Docker",
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


class GpuContainer(Check):
    """The first of Docker, nerdctl and Podman that has an image starts it with all GPUs.

    It has no network and runs `nvidia-smi -L`; an image in which nothing of the node's runs is passed over;
    no image is pulled, nothing stays.
    """

    id = "gpu_container"
    title = "a container sees every GPU"
    place = 40
    scope = Scope.NODE
    needs = (Need("Docker, Podman or nerdctl with an image of its own"), DRIVER)
    passes = "the container sees every GPU"

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("one container", idle.container)

    def perform(self, node: Node) -> TestResult:
        """Start one on this node."""
        return without_torch(self, node, "the test of containers", gpus=len(node.gpus), timeout_s=TIMEOUT_S)


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: start a container with all GPUs by the first engine that can. Raises NotRunError."""
    gpus, timeout_s = request.parameters["gpus"], request.parameters["timeout_s"]
    stage("looking for a container engine with an image")
    engine, reason = find_engine(timeout_s)
    if engine is None:
        raise NotRunError(reason)
    stage(f"removing what killed runs left in {engine.name}")
    sweep(engine.name, timeout_s)
    for image in engine.images[:MOST_IMAGES]:
        stage(f"starting a container of {engine.name} from image {image}")
        try:
            findings = tuple(_look(engine.name, image, gpus, timeout_s))
        except UnsuitableImageError as error:
            reason = f"no image that {engine.name} has can run a program of the node; it says: {error}"
        else:
            return Measured(findings=findings, details={"engine": engine.name, "image": image})
    raise NotRunError(reason)


def find_engine(timeout_s: float) -> tuple[Engine | None, str]:
    """Return the first engine that answers and has an image; else None, and why."""
    reasons = []
    for name in GPUS:
        try:
            images = _ask([name, "image", "ls", "--quiet"], timeout_s).split()
        except FileNotFoundError:
            continue
        except OSError as error:  # a folder or program on PATH that this user may not use
            reasons.append(f"{name}: {error.strerror or error}")
            continue
        except ContainerError as error:
            reasons.append(f"{name}: {error}")
            continue
        if images:
            return Engine(name, tuple(dict.fromkeys(images))), ""
        reasons.append(f"{name} has no image, and none is pulled for a test")
    return None, "; ".join(reasons) or _unasked()


def _unasked() -> str:
    """Return why none was asked: only engines of Kubernetes run here, or there is none."""
    running = [name for path, name in SERVED.items() if Path(path).is_socket()]
    if not running:
        return "no container engine is installed"
    return (
        f"{', '.join(running)} runs here without docker, nerdctl or podman, which this test needs: start a "
        "pod that asks for a GPU instead"
    )


def sweep(engine: str, timeout_s: float) -> None:
    """Remove containers of runs that were killed: ours, by their name, and of a process that is gone."""
    listing = [engine, "ps", "--all", "--filter", f"name={PREFIX}", "--format", "{{.Names}}"]
    with contextlib.suppress(ContainerError):
        for name in _ask(listing, timeout_s).split():
            owner = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                _ask([engine, "rm", "--force", name], timeout_s)


def _look(engine: str, image: str, gpus: int, timeout_s: float) -> list[Finding]:
    """Return what is wrong with a container of this image. Raises UnsuitableImageError."""
    name = f"{PREFIX}{os.getpid()}"
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
        seen = sum(line.startswith("GPU ") for line in _ask(command, timeout_s).splitlines())
    except ContainerError as error:
        if UNSUITABLE.search(str(error)):
            raise UnsuitableImageError(str(error)) from error
        return [finding("container-no-gpu", engine=engine, error=error)]
    finally:
        # Gone already, unless it hung; an engine that hangs on this, too, has been said to.
        with contextlib.suppress(CommandError):
            run([engine, "rm", "--force", name], timeout_s)
    if seen == gpus:
        return []
    return [finding("container-gpu-count", engine=engine, seen=seen, expected=gpus)]


def _ask(command: list[str], timeout_s: float) -> str:
    """Return what a command prints. Raises ContainerError, OSError where it cannot be started."""
    try:
        done = run(command, timeout_s)
    except CommandError as error:
        raise ContainerError(str(error)) from error
    if done.status != 0:
        words = (done.errors or done.output).strip().splitlines()
        raise ContainerError(words[-1][:300] if words else f"exit status {done.status}")
    return done.output
