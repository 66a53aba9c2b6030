"""What the driver's and the libraries' packages leave: one version, loaded, and kept."""

import pytest
from testinfra.host import Host

DRIVER_PACKAGES = {
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver-cuda",
    "nvidia-kernel-support",
    "firmware-nvidia-gsp",
    "nvidia-modprobe",
    "nvidia-persistenced",
}
STACK_PACKAGES = DRIVER_PACKAGES | {
    "cuda-toolkit-13-0",
    "cudnn9-cuda-13",
    "libnccl2",
    "nvidia-container-toolkit",
}


@pytest.fixture
def packages(host: Host) -> dict[str, str]:
    """Return the version of every installed package by its name."""
    lines = host.check_output("dpkg-query --show --showformat='${db:Status-Status} ${Package} ${Version}\n'")
    fields = [line.split() for line in lines.splitlines()]
    return {name: version for status, name, version in (line for line in fields if line[0] == "installed")}


@pytest.fixture
def loaded_version(host: Host) -> str:
    """Return the version of the NVIDIA kernel module that is loaded."""
    return str(host.file("/sys/module/nvidia/version").content_string).strip()


def pci_devices(host: Host, device_class: str) -> int:
    """Count NVIDIA's PCI devices of a class, given as its first digits."""
    devices = host.check_output(
        "for device in /sys/bus/pci/devices/*; do echo $(cat $device/vendor $device/class); done"
    )
    return sum(line.startswith(f"0x10de 0x{device_class}") for line in devices.splitlines())


def test_driver_packages_are_at_the_version_that_is_loaded(
    packages: dict[str, str], loaded_version: str
) -> None:
    found = {name: packages.get(name, "").rpartition("-")[0] for name in DRIVER_PACKAGES}
    assert found == dict.fromkeys(DRIVER_PACKAGES, loaded_version)


def test_driver_answers_for_every_gpu(host: Host, loaded_version: str) -> None:
    gpus = pci_devices(host, "03")  # display controllers: VGA adapters and 3D controllers
    answers = host.check_output("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split()
    assert answers == [loaded_version] * gpus


def test_libraries_tell_the_versions_of_their_packages(host: Host, packages: dict[str, str]) -> None:
    load = "import ctypes; number = ctypes.c_int();"
    cudnn = "print(ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    nccl = "ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(number)); print(number.value)"
    numbers = [int(host.check_output(f'python3 -c "{load} {ask}"')) for ask in (cudnn, nccl)]
    # Both encode a version as ten thousands, hundreds and ones.
    told = [f"{number // 10000}.{number // 100 % 100}.{number % 100}" for number in numbers]
    installed = [packages["cudnn9-cuda-13"].rpartition(".")[0], packages["libnccl2"].partition("-")[0]]
    assert told == installed


def test_every_kernel_that_could_boot_has_the_driver(host: Host, loaded_version: str) -> None:
    images = host.check_output("cd /boot; ls vmlinuz-* 2>/dev/null || true").split()
    kernels = {host.check_output("uname -r"), *(image.removeprefix("vmlinuz-") for image in images)}
    versions = {host.check_output(f"modinfo -k {kernel} -F version nvidia") for kernel in kernels}
    assert versions == {loaded_version}


def test_dkms_says_that_the_module_is_installed(host: Host, loaded_version: str) -> None:
    release = host.check_output("uname -r")
    assert f"nvidia/{loaded_version}, {release}, " in host.check_output("dkms status")
    assert all(line.endswith(": installed") for line in host.check_output("dkms status").splitlines())


def test_no_signing_key_is_left_where_none_is_used(host: Host) -> None:
    assert not host.file("/var/lib/temper/module-signing/mok.key").exists


def test_stack_is_installed(packages: dict[str, str]) -> None:
    assert STACK_PACKAGES - packages.keys() == set()


def test_stack_is_held(host: Host) -> None:
    assert STACK_PACKAGES - set(host.check_output("apt-mark showhold").split()) == set()


def test_upgrade_of_everything_leaves_the_stack_alone(host: Host) -> None:
    steps = host.check_output("apt-get --simulate dist-upgrade").splitlines()
    touched = {step.split()[1] for step in steps if step.startswith(("Inst ", "Remv "))}
    assert {
        name for name in touched if "nvidia" in name or "cuda" in name
    } | touched & STACK_PACKAGES == set()


def test_nouveau_is_neither_loaded_nor_loadable_by_alias(host: Host) -> None:
    assert not host.file("/sys/module/nouveau").exists
    assert "blacklist nouveau" in host.check_output("modprobe --showconfig").splitlines()


def test_repositories_are_signed_by_keys_of_their_own(host: Host) -> None:
    """`apt-get update` fails on a bad signature; a key trusted for every repository would make it pass."""
    host.check_output("apt-get update")
    keys = host.file("/etc/apt/trusted.gpg.d").listdir()
    assert [key for key in keys if not key.startswith("debian-archive-")] == []


def test_fabric_manager_runs_where_there_are_switches_and_only_there(
    host: Host, packages: dict[str, str], loaded_version: str
) -> None:
    if pci_devices(host, "0680"):  # bridges: NVSwitches
        assert host.service("nvidia-fabricmanager").is_running
        assert packages["nvidia-fabricmanager"].rpartition("-")[0] == loaded_version
    else:
        assert "nvidia-fabricmanager" not in packages
