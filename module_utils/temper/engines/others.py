"""Container engines that no role sets up: found by their units, configurations and sockets, not on PATH.

What is named here was read in k3s-io/k3s (pkg/agent/containerd/runtimes.go), rancher/rke2-docs
(docs/add-ons/gpu_operators.md), k0sproject/k0s (docs/runtime.md), canonical/microk8s-core-addons
(addons/nvidia/enable) and Docker's and containerd's pages on rootless mode, 2026-11-26.
"""

from __future__ import annotations

import itertools
import re
import stat
import typing
from pathlib import Path

from ansible.module_utils.temper.process import which

UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
SOCKET_TABLE = "proc/net/unix"
#: More than any machine has of them; beyond that, somebody only wants to be read.
MOST_SOCKETS = 100_000
MOST_CONFIG_BYTES = 1 << 20
MOST_NAMED = 20
RUNTIME = b"nvidia-container-runtime"
# A socket by which an engine is spoken to, wherever it is.
ENGINE_SOCKET = re.compile(r"/(?:[\w.+-]+/)+(?:containerd|crio|cri-dockerd|docker|podman)\.sock")
# Where a user's own engine has its state and its socket.
ROOTLESS = ("docker.sock", "dockerd-rootless", "containerd-rootless")
# What tells kubelet which engine is to be used.
KUBELET = (
    "var/lib/kubelet/kubeadm-flags.env",
    "var/lib/kubelet/config.yaml",
    "etc/default/kubelet",
    "etc/sysconfig/kubelet",
)
ENDPOINT = re.compile(
    r"(?:--container-runtime-endpoint[= ]|containerRuntimeEndpoint:\s*)\"?(?:unix://)?(/[\w./+-]+)"
)


VAR_RUN = re.compile(r"^/var/run/")


class Known(typing.NamedTuple):
    """What one engine is known by. `configs` are also where it names the runtimes that it has."""

    units: tuple[str, ...]
    configs: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    program: str = ""  # on PATH, the role sets this engine up


RANCHER = "var/lib/rancher/{}/agent/etc/containerd/config.toml"
KNOWN = {
    "rke2": Known(("rke2-agent", "rke2-server"), (RANCHER.format("rke2"),)),
    "k3s": Known(("k3s", "k3s-agent"), (RANCHER.format("k3s"),)),
    "k0s": Known(
        ("k0sworker", "k0scontroller"),
        ("etc/k0s/containerd.d/nvidia.toml", "run/k0s/containerd-cri.toml"),
        ("run/k0s/containerd.sock",),
    ),
    "microk8s": Known(
        ("snap.microk8s.daemon-containerd",),
        ("var/snap/microk8s/current/args/containerd-template.toml",),
        ("var/snap/microk8s/common/run/containerd.sock",),
    ),
    "cri-dockerd": Known(("cri-docker",), (), ("run/cri-dockerd.sock",)),
    "docker": Known(("docker",), (), ("run/docker.sock", "run/docker/containerd/containerd.sock"), "dockerd"),
    "containerd": Known(("containerd",), (), ("run/containerd/containerd.sock",), "containerd"),
    "crio": Known(("crio",), (), ("run/crio/crio.sock",), "crio"),
    "podman": Known((), (), ("run/podman/podman.sock",), "podman"),
}
# Of both of Rancher's.
RANCHER_SOCKET = "/run/k3s/containerd/containerd.sock"


class OtherEngine(typing.NamedTuple):
    """An engine that is not set up here.

    `where` is what it was found by, `runs` whether its unit or socket is active, `ready` whether its own
    configuration names NVIDIA's runtime. An engine of another kind is called "other", a user's "rootless".
    """

    name: str
    where: str
    runs: bool
    ready: bool

    @property
    def of_root(self) -> bool:
        """Whether its containers are root's, so that device control groups hold for them."""
        return self.name != "rootless"


def other_engines(root: Path = Path("/")) -> list[OtherEngine]:
    """Return all that are found, the well known first."""
    found = [engine for name, known in KNOWN.items() if (engine := _look(name, known, root))]
    found += [OtherEngine("rootless", path, runs=True, ready=False) for path in _rootless(root)]
    taken = {f"/{socket}" for known in KNOWN.values() for socket in known.sockets}
    if any(engine.name in ("rke2", "k3s") for engine in found):
        taken.add(RANCHER_SOCKET)
    found += [OtherEngine("other", path, runs=True, ready=False) for path in _sockets(root) - taken]
    return sorted(found, key=lambda one: one.where)[:MOST_NAMED]


def _look(name: str, known: Known, root: Path) -> OtherEngine | None:
    if known.program and which(known.program):
        return None
    units = [f"{folder}/{unit}.service" for unit in known.units for folder in UNITS]
    groups = [f"{folder}/{unit}.service" for unit in known.units for folder in GROUPS]
    sockets = [path for path in known.sockets if _is_socket(root / path)]
    evidence = [*(path for path in (*units, *known.configs) if _exists(root / path)), *sockets]
    if not evidence:
        return None
    runs = bool(sockets) or any(_exists(root / path) for path in groups)
    ready = any(RUNTIME in _beginning(root / path) for path in known.configs)
    return OtherEngine(name, f"/{evidence[0]}", runs, ready)


def _rootless(root: Path) -> list[str]:
    """Users' own engines, of those who are logged in or linger."""
    folders = sorted((root / "run/user").glob("[0-9]*"))
    paths = [folder / name for folder in folders for name in ROOTLESS]
    return [f"/{path.relative_to(root)}" for path in paths if _exists(path)]


def _sockets(root: Path) -> set[str]:
    """Root's sockets that are an engine's by their name, or that kubelet is told to use."""
    told = " ".join(_beginning(root / path).decode(errors="replace") for path in KUBELET)
    found = {match[1] for match in ENDPOINT.finditer(told)}
    try:
        with (root / SOCKET_TABLE).open(encoding="utf-8", errors="replace") as table:
            for line in itertools.islice(table, MOST_SOCKETS):
                path = line.rstrip("\n").rpartition(" ")[2]
                if ENGINE_SOCKET.fullmatch(path):
                    found.add(path)
    except OSError:
        pass  # the tree of an image has none
    return {VAR_RUN.sub("/run/", path) for path in found if _is_socket(root / path.lstrip("/"))}


def _exists(path: Path) -> bool:
    """Return whether there is anything. A user may have mounted what root may not look at."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _is_socket(path: Path) -> bool:
    """Return whether it is a socket of root's: a user may give his own any name."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == 0


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_CONFIG_BYTES)
    except OSError:
        return b""
