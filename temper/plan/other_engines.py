"""Container engines that role container_engines does not set up: what an operator does for their GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from temper.plan.facts import OtherEngine
from temper.plan.variables import ContainerEngines

RANCHER = (
    "it registers nvidia-container-runtime by itself when it starts and finds the program. Once the stack is "
    "installed, drain the node and restart {units} (a reboot does the same); {config} then names the runtime"
)
OFF_PATH = "{program} is not on PATH. Put it there, or name {name} in container_engines_exclude"
# Name -> title, and what is to be done.
REMEDIES = {
    "rke2": (
        "RKE2",
        RANCHER.format(
            units="rke2-agent or rke2-server",
            config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        ),
    ),
    "k3s": (
        "K3s",
        RANCHER.format(
            units="k3s or k3s-agent", config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
        ),
    ),
    "k0s": (
        "k0s",
        "register the runtime by a drop-in in /etc/k0s/containerd.d, or by the GPU operator as k0s documents",
    ),
    "microk8s": (
        "MicroK8s",
        "register the runtime in /var/snap/microk8s/current/args/containerd-template.toml, or run `microk8s "
        "enable nvidia --gpu-operator-driver=host`",
    ),
    "cri-dockerd": (
        "cri-dockerd",
        "its pods get Docker's default runtime, unless it is new enough to pass on the handler of a "
        "RuntimeClass: set container_engines_default_runtime: true where it is not",
    ),
    "docker": ("Docker", OFF_PATH.format(program="dockerd", name="docker")),
    "containerd": ("containerd", OFF_PATH.format(program="containerd", name="containerd")),
    "crio": ("CRI-O", OFF_PATH.format(program="crio", name="crio")),
    "podman": ("Podman", OFF_PATH.format(program="podman", name="podman")),
    "rootless": (
        "an engine of a user",
        "its containers get GPUs through CDI (--device nvidia.com/gpu=all); without CDI, the user needs "
        "no-cgroups = true in nvidia-container-runtime/config.toml below an XDG_CONFIG_HOME of his own",
    ),
    "other": (
        "another container engine",
        "register nvidia-container-runtime in its own configuration (nvidia-ctk runtime configure)",
    ),
}


def engine_warnings(engines: Iterable[OtherEngine], wanted: ContainerEngines) -> list[str]:
    """Name each kind of engine that stays without the role's settings, and what is to be done."""
    if wanted.state == "absent":
        return []
    found: dict[str, str] = {}
    for engine in engines:
        settled = engine.ready or (engine.name == "cri-dockerd" and wanted.default_runtime)
        if not settled and engine.name not in wanted.exclude:
            found.setdefault(engine.name, engine.where)
    return [
        f"{title} is there ({where}), and role container_engines does not set it up: {remedy}"
        for name, where in found.items()
        for title, remedy in [REMEDIES[name]]
    ]
