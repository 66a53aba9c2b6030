"""What the driver's and the libraries' packages leave: one version, loaded, and kept."""

import pytest
from testinfra.host import Host

DRIVER_PACKAGES = (
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver-cuda",
    "nvidia-modprobe",
    "nvidia-persistenced",
)
STACK_PACKAGES = (
    *DRIVER_PACKAGES,
    "cuda-toolkit-13-0",
    "cudnn9-cuda-13",
    "libnccl2",
    "nvidia-container-toolkit",
)
HGX = "gpu01"  # the node with NVSwitches


def loaded_version(host: Host) -> str:
    """Return the version of the NVIDIA kernel module that is loaded."""
    return str(host.file("/sys/module/nvidia/version").content_string).strip()


def is_gpu(host: Host, device: str) -> bool:
    """Say whether a PCI device is NVIDIA's and of a display class: a 3D controller or a VGA adapter."""
    folder = f"/sys/bus/pci/devices/{device}"
    vendor, kind = (str(host.file(f"{folder}/{name}").content_string) for name in ("vendor", "class"))
    return vendor.strip() == "0x10de" and kind.startswith("0x03")


@pytest.mark.parametrize("package", DRIVER_PACKAGES)
def test_driver_package_is_at_the_version_that_is_loaded(host: Host, package: str) -> None:
    assert host.package(package).version.rpartition("-")[0] == loaded_version(host)


def test_driver_answers_for_every_gpu(host: Host) -> None:
    gpus = [device for device in host.file("/sys/bus/pci/devices").listdir() if is_gpu(host, device)]
    answered = host.check_output("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split()
    assert answered == [loaded_version(host)] * len(gpus)


@pytest.mark.parametrize("package", STACK_PACKAGES)
def test_package_is_installed_and_held(host: Host, package: str) -> None:
    assert host.package(package).is_installed
    assert package in host.check_output("apt-mark showhold").split()


def test_upgrade_of_everything_leaves_the_stack_alone(host: Host) -> None:
    moved = host.check_output("apt-get --simulate dist-upgrade").splitlines()
    assert [line for line in moved if line.startswith(("Inst", "Remv")) and "nvidia" in line.lower()] == []


def test_nouveau_is_neither_loaded_nor_loadable_by_alias(host: Host) -> None:
    assert not host.file("/sys/module/nouveau").exists
    assert "blacklist nouveau" in host.check_output("modprobe --showconfig").splitlines()


def test_repositories_are_signed_by_keys_of_their_own(host: Host) -> None:
    """`apt-get update` fails on a bad signature; a key trusted for every repository would make it pass."""
    host.check_output("apt-get update")
    trusted_for_all = host.check_output(
        "find /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d -name '*nvidia*' -o -name '*cuda*'"
    )
    assert trusted_for_all == ""


def test_fabric_manager_runs_where_there_are_switches_and_only_there(host: Host) -> None:
    service = host.service("nvidia-fabricmanager")
    if host.backend.host == HGX:
        assert service.is_running
        assert host.package("nvidia-fabricmanager").version.rpartition("-")[0] == loaded_version(host)
    else:
        assert not host.package("nvidia-fabricmanager").is_installed
