"""What the lab needs of the machine, checked before anything is built; every lack is one sentence."""

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab import host_apt, network
from tests.lab.process import LabError, run
from tests.lab.settings import STATE_ROOT, Lab

# Tool: Debian package.
TOOLS = {
    "apt-config": "apt",
    "gcc": "gcc",
    "gpg": "gnupg",
    "gpgconf": "gpgconf",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}

_GIB = 2**30
# Measured, with some room: what building leaves behind and what it needs meanwhile.
_ROOT_FILE_SYSTEM_GIB = 0.5
_PAYLOAD_GIB = 3.0
_NODE_GIB = 0.2


def problems(lab: Lab, nodes: int) -> list[str]:
    """Every reason why the lab cannot run here, a sentence each.

    Args:
        lab: the lab.
        nodes: how many nodes it shall have.
    """
    if platform.system() != "Linux":
        return [f"The lab boots Linux containers and needs a Linux machine; this is {platform.system()}."]
    if os.geteuid() != 0:
        return [
            "The lab creates network namespaces and mounts and needs root; run it as root (sudo make ...)."
        ]
    missing = [*_missing_tools(), *_virtual_environments()]
    # The other checks use the tools.
    return missing or [*_apt(), *_overlay(), *_disk(lab, nodes), *_network(lab)]


def check(lab: Lab, nodes: int) -> None:
    """Check everything.

    Raises:
        LabError: something is missing; the message names all of it.
    """
    found = problems(lab, nodes)
    if found:
        raise LabError("\n".join(found))


def _missing_tools() -> Iterator[str]:
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            yield f"The lab needs {tool}, which is not installed: apt-get install {package}"


def _virtual_environments() -> Iterator[str]:
    # Debian's python3 comes without; the payload's packages are installed with the pip that it brings.
    if not importlib.util.find_spec("ensurepip"):
        yield "The lab needs Python's ensurepip, which is not installed: apt-get install python3-venv"


def _apt() -> Iterator[str]:
    try:
        yield from dict.fromkeys(host_apt.read().unreachable())
    except LabError as error:
        yield str(error)


def _overlay() -> Iterator[str]:
    STATE_ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STATE_ROOT, prefix=".check-") as directory:
        for name in ("lower", "upper", "work", "merged"):
            Path(directory, name).mkdir()
        options = ",".join(
            f"{kind}={directory}/{name}"
            for kind, name in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work"))
        )
        mount = ["mount", "-t", "overlay", "lab", "-o", options, f"{directory}/merged"]
        try:
            # In a mount namespace of its own, so that nothing stays mounted.
            run(["unshare", "--mount", "--propagation", "private", *mount])
        except LabError as error:
            yield (
                f"The lab's nodes need overlayfs in {STATE_ROOT}, and mounting one there failed ({error}); "
                "load the module (modprobe overlay), or mount an ext4 or xfs file system there."
            )


def _disk(lab: Lab, nodes: int) -> Iterator[str]:
    lab.cache.mkdir(parents=True, exist_ok=True)
    cached = {path.name.split("-")[0] for path in lab.cache.iterdir() if path.is_dir()}
    build_gib = 0.0
    if "rootfs" not in cached:
        build_gib += 2 * _ROOT_FILE_SYSTEM_GIB
    if "payload" not in cached:
        build_gib += _PAYLOAD_GIB
    existing = len(list((lab.state / "nodes").glob("gpu*")))
    nodes_gib = max(0, nodes - existing) * _NODE_GIB
    same = lab.cache.stat().st_dev == STATE_ROOT.stat().st_dev
    needs = {lab.cache: build_gib + nodes_gib} if same else {lab.cache: build_gib, STATE_ROOT: nodes_gib}
    for path, needed_gib in needs.items():
        free_gib = shutil.disk_usage(path).free / _GIB
        if free_gib < needed_gib:
            yield (
                f"The lab needs {needed_gib:.1f} GiB of free disk in {path} and found {free_gib:.1f} GiB; "
                "free some, or set TEMPER_LAB_CACHE to a directory with more."
            )


def _network(lab: Lab) -> Iterator[str]:
    try:
        network.check_free(lab)
        network.name_servers()
    except LabError as error:
        yield str(error)
