"""Canonical's signed driver through the real apt and dpkg, on empty packages of Ubuntu's names."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.apt_machine import Archive
from tests.unit.planning_nodes import node, plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.apt_machine import Machine

    Run = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb"))),
        reason="needs root and Debian's package tools",
    ),
]
MODULES = "linux-modules-nvidia-580-server-open"
NOW, NEXT = ("6.8.0-134", "580.173.02-0ubuntu0.24.04.1"), ("6.8.0-140", "580.178.04-0ubuntu0.24.04.1")


def publish(archive: Archive, kernel: str, driver: str) -> None:
    """What Ubuntu publishes together: a kernel, and the driver with modules for it."""
    image, modules = f"linux-image-{kernel}-generic", f"{MODULES}-{kernel}-generic"
    archive.add(image, kernel)
    archive.add("linux-image-generic", kernel, Depends=f"{image} (= {kernel})")
    archive.add("nvidia-kernel-common-580-server", driver)
    for name in ("libnvidia-cfg1", "libnvidia-compute", "nvidia-compute-utils", "nvidia-utils"):
        archive.add(f"{name}-580-server", driver)
    depends = f"libnvidia-compute-580-server (= {driver}), nvidia-kernel-common-580-server (= {driver})"
    archive.add("nvidia-headless-no-dkms-580-server-open", driver, Depends=depends)
    needs = f"nvidia-kernel-common-580-server (>= {driver.partition('-')[0]})"
    archive.add(modules, kernel, Depends=f"{image}, {needs}")
    archive.add(f"{MODULES}-generic", kernel, Depends=f"{modules} (= {kernel}), {needs}")


@pytest.fixture
def ubuntu(machine: Machine, tmp_path: Path) -> Archive:
    """Ubuntu's archive, and a machine with the kernel of the day."""
    archive = Archive(tmp_path / "ubuntu")
    archive.path.mkdir()
    publish(archive, *NOW)
    machine.use(archive)
    machine.install("linux-image-generic")
    return archive


@pytest.fixture
def provision(settle: Run) -> Callable[[], dict[str, Any]]:
    """Have the packages of a node's plan installed and held, as the role does."""
    kernel = {
        "release": f"{NOW[0]}-generic",
        "headers_present": False,
        "headers_installable": False,
        "image_packages": {f"linux-image-{NOW[0]}-generic": "1", "linux-image-generic": "1"},
    }
    os = {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "pretty_name": "Ubuntu 24.04"}
    found = plan(
        node(os=os, kernel=kernel),
        nvidia_stack_source="distro",
        nvidia_stack_distro_container_toolkit=False,
    )
    assert found["problems"] == []
    wanted = found["packages"] | found["present"]
    return lambda: settle(wanted, hold_versions=[found["driver"]["package_version"]])


def test_driver_and_modules_come_for_the_kernel_that_is_there(
    ubuntu: Archive, machine: Machine, provision: Callable[[], dict[str, Any]]
) -> None:
    first, second = provision(), provision()
    assert (first["changed"], second["changed"]) == (True, False)
    versions = machine.versions()
    assert versions[f"{MODULES}-{NOW[0]}-generic"] == versions["linux-image-generic"] == NOW[0]
    assert (
        versions["nvidia-utils-580-server"] == versions["nvidia-headless-no-dkms-580-server-open"] == NOW[1]
    )
    assert {"linux-image-generic", f"{MODULES}-generic", "nvidia-kernel-common-580-server"} <= {
        *machine.held()
    }


def test_no_kernel_comes_without_modules_and_both_come_when_the_holds_are_ignored(
    ubuntu: Archive, machine: Machine, provision: Callable[[], dict[str, Any]]
) -> None:
    provision()
    publish(ubuntu, *NEXT)
    machine.run("apt-get", "-q", "update")
    before = machine.versions()
    machine.run("apt-get", "-q", "-y", "dist-upgrade")
    assert machine.versions() == before
    # As docs/operate/nvidia_stack.md says.
    machine.run("apt-get", "-q", "-y", "--ignore-hold", "--allow-change-held-packages", "dist-upgrade")
    after = machine.versions()
    assert after[f"{MODULES}-{NEXT[0]}-generic"] == after["linux-image-generic"] == NEXT[0]
    assert after["nvidia-utils-580-server"] == after["nvidia-kernel-common-580-server"] == NEXT[1]


def test_node_with_an_older_kernel_is_refused_before_a_newer_one_comes(
    ubuntu: Archive, machine: Machine, provision: Callable[[], dict[str, Any]]
) -> None:
    publish(ubuntu, *NEXT)
    machine.run("apt-get", "-q", "update")
    message = provision()["msg"]
    assert f"it would install another kernel (linux-image-{NEXT[0]}-generic)" in message
    assert f"linux-image-{NEXT[0]}-generic" not in machine.versions()
