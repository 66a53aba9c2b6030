"""Fleets of many nodes: the first of each release is made, and its disk copied to the others."""

import contextlib
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from tests.lab import node as machine
from tests.lab.cutoff import CampaignError, is_off, lab_command, wait_until
from tests.lab.fleet import Fleet
from tests.lab.settings import Node

BOOT_ATTEMPTS = 3
# What is a node's own, and so is not copied.
OWN = ("etc/hostname", "etc/machine-id", "etc/hosts", "var/lib/gpu-simulator/hardware.json")
OWN_PATTERN = "etc/ssh/ssh_host_*"


def boot(fleet: Fleet) -> None:
    """Boot the nodes; where host keys take too long on a busy machine, those that are missing again.

    Raises:
        CampaignError: they did not all come up.
    """
    for _ in range(BOOT_ATTEMPTS):
        with contextlib.suppress(subprocess.CalledProcessError):
            lab_command(fleet, "up")
            return
    raise CampaignError(f"the nodes did not come up in {BOOT_ATTEMPTS} attempts")


def copy(fleet: Fleet, made: int) -> None:
    """Give all nodes the disks of the first `made`, in turn, and boot them."""
    nodes = fleet.lab.nodes(fleet.size)
    for node in nodes:
        with contextlib.suppress(Exception):  # off is off; what else is wrong shows in the wait
            machine.shut_down(node, "poweroff")
    for node in nodes:
        wait_until(partial(is_off, node), f"{node.name} is off", 180)
    for node in nodes[made:]:
        _copy_disk(nodes[(node.number - 1) % made], node)
    boot(fleet)


def _copy_disk(source: Node, target: Node) -> None:
    """Give a node what another one has stored, but for what is its own."""
    upper = target.state / "upper"
    own = [upper / name for name in OWN] + sorted(upper.glob(OWN_PATTERN))
    with tempfile.TemporaryDirectory(dir=target.state) as folder:
        for number, path in enumerate(own):
            shutil.copy2(path, Path(folder, str(number)))
        shutil.rmtree(upper)
        # With overlayfs's own attributes, which say what a folder hides.
        subprocess.run(["cp", "--archive", str(source.state / "upper"), str(upper)], check=True)
        for path in upper.glob(OWN_PATTERN):
            path.unlink()
        for number, path in enumerate(own):
            shutil.copy2(Path(folder, str(number)), path)
