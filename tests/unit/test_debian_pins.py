"""What NVIDIA's packages for Debian pull in has the driver's version, whatever else there is: real apt."""

from pathlib import Path

import pytest
from ansible.module_utils.temper.packaging.packages import FAMILY

from tests.unit.apt_machine import Archive, Machine
from tests.unit.needs import root_and
from tests.unit.planning_nodes import plan

pytestmark = root_and("apt-get", "dpkg-deb")
# Of the names in lists of installed packages of 580.105.08 and 610.57.04, those without nvidia- in front.
LIBRARIES = ("libcudadebugger1", "libnvcuvid1", "libnvoptix1", "libnvidia-ml1", "libegl-nvidia0")
FOUND = ("libcuda1", *LIBRARIES, "firmware-nvidia-gsp", "nvidia-driver-cuda")


@pytest.mark.component
def test_libraries_without_the_vendors_name_follow_the_driver(machine: Machine, tmp_path: Path) -> None:
    found = plan()
    wanted = found["driver"]["package_version"]
    archive = Archive(tmp_path / "nvidia")
    archive.path.mkdir()
    for version in (wanted, "615.71.09-1"):
        archive.add("libcuda1", version)
        archive.add("firmware-nvidia-gsp", version)
        for name in LIBRARIES:
            archive.add(name, version, Depends=f"libcuda1 (>= {version})")
        needs = (f"{name} (>= {version})" for name in FOUND[:-1])
        archive.add("nvidia-driver-cuda", version, Depends=", ".join(needs))
    machine.use(archive)
    pins = (
        f"Package: {pin['packages']}\nPin: version {pin['version']}\nPin-Priority: 1001\n"
        for pin in found["pins"]
    )
    (machine.root / "etc/apt/preferences.d/temper-nvidia").write_text("\n".join(pins))
    machine.install(f"nvidia-driver-cuda={wanted}")
    assert machine.versions() == dict.fromkeys(FOUND, wanted)


def test_they_are_held_with_the_driver() -> None:
    assert [name for name in FOUND if not FAMILY.match(name)] == []
