"""A bare node installs the whole stack from a mirror that has only what was listed."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import CHECKOUT, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("lab")]

LAB = Lab(name="mirror")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
PORT = 8081


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[None]:
    """Serve a directory on the lab's bridge."""
    server = CHECKOUT / "tests/lab/repository_server.py"
    command = [sys.executable, str(server), LAB.address, str(PORT), str(directory)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def test_a_bare_node_installs_from_the_listed_files_alone(tmp_path: Path) -> None:
    listing = tmp_path / "mirror.json"
    listed = FLEET.playbook("mirror_list", mirror_list_file=str(listing))
    assert listed.status == 0, listed.output
    assert on_node(NODE, "ls /etc/apt/sources.list.d").split() == ["debian.sources"]

    www = tmp_path / "www"
    subprocess.run([sys.executable, "-m", "tools.mirror", listing, www], cwd=CHECKOUT, check=True)
    wanted = {
        unquote(package["uri"].rpartition("/")[2])
        for repository in json.loads(listing.read_text())["repositories"]
        for package in repository["packages"]
    }
    assert {path.name for path in www.rglob("*.deb")} == wanted

    mirror = f"http://{LAB.address}:{PORT}/{LAB.address}"
    with serving(www):
        run = FLEET.playbook(
            "provision",
            nvidia_stack_cuda_repository_url=f"{mirror}/compute/cuda/repos",
            nvidia_stack_cuda_key_url=f"{mirror}/libnvidia-container/gpgkey",
            nvidia_stack_container_repository_url=f"{mirror}/libnvidia-container",
        )
    assert run.status == 0, run.output
    assert on_node(NODE, "cat /sys/module/nvidia/version").strip() == "580.178.04"
