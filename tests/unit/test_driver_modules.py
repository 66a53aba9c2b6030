"""No kernel is left that would boot without the driver: built where it can be, named where it cannot."""

import os
import ssl
from pathlib import Path

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import module_builds
from ansible.module_utils.temper.driver.module_builds import KernelModules
from ansible.module_utils.temper.driver.secure_boot import serial_number
from ansible.module_utils.temper.packaging import dkms as dkms_logs
from ansible.module_utils.temper.settings.base import SettingError

from tests.lab.gpu_simulator import contents, libraries
from tests.unit.executables import executable
from tests.unit.modules_on_disk import Certificate, install_kernel, install_module

pytestmark = pytest.mark.component

RUNNING, OLD = "6.1.0-56-amd64", "6.1.0-50-amd64"
VERSION = "580.178.04"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with a running and an old kernel, headers, and the simulated dkms with the driver's source."""
    root = tmp_path / "root"
    root.mkdir()
    install_kernel(root, RUNNING)
    install_kernel(root, OLD)
    source = root / f"usr/src/nvidia-{VERSION}"
    source.mkdir(parents=True)
    (source / "nvidia.o").write_bytes(libraries.kernel_module(VERSION, "open"))
    (source / "build.sh").write_text(contents.text("module-build.sh"))
    (source / "dkms.conf").write_text(contents.text("dkms.conf", VERSION=VERSION))
    program = executable(tmp_path / "bin/dkms", contents.text("dkms.py", VERSION="3.3.0"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GPU_SIMULATOR_ROOT", str(root))
    monkeypatch.setattr(module_builds, "ROOT", root)
    monkeypatch.setattr("platform.release", lambda: RUNNING)
    monkeypatch.setattr(dkms_logs, "TREE", root / "var/lib/dkms")
    monkeypatch.setattr(dkms_logs, "KEPT_LOGS", tmp_path / "logs")
    return root


def modules(certificate: str = "", *, dkms: str = "nvidia", manager: str = "apt") -> KernelModules:
    return KernelModules(VERSION, dkms, certificate, manager)


def refusal(setting: KernelModules) -> str:
    """What is said where a kernel stays without the module."""
    with pytest.raises(SettingError) as error:
        setting.apply()
    return str(error.value)


def break_builds(root: Path) -> None:
    faults = root / "var/lib/gpu-simulator/faults.json"
    faults.parent.mkdir(parents=True)
    faults.write_text('["module-build-fails"]')


def test_kernels_that_have_the_module_are_left_alone(root: Path) -> None:
    for release in (RUNNING, OLD):
        install_module(root, release, VERSION)
    setting = modules()
    assert (setting.settled(), setting.change()) == (True, [])
    assert setting.result() == {"built": [], "kernels": {RUNNING: VERSION, OLD: VERSION}}


def test_a_kernel_that_dkms_passed_over_gets_the_module(root: Path) -> None:
    install_module(root, RUNNING, VERSION)
    setting = modules()
    assert not setting.settled()
    setting.apply()
    result = setting.result()
    assert (setting.settled(), result["built"], result["kernels"][OLD]) == (True, [OLD], VERSION)


def test_what_would_be_built_is_known_before(root: Path) -> None:
    setting = modules()
    assert (setting.settled(), setting.result()["built"]) == (False, [OLD, RUNNING])
    assert [change.name.split()[-1] for change in setting.change()] == [OLD, RUNNING]
    assert not (root / "var/lib/dkms").exists()


def test_a_module_of_another_version_is_replaced(root: Path) -> None:
    for release in (RUNNING, OLD):
        install_module(root, release, "580.126.09")
    setting = modules()
    setting.apply()
    assert setting.result()["built"] == [OLD, RUNNING]


def test_missing_headers_are_named_with_their_package(root: Path) -> None:
    install_module(root, RUNNING, VERSION)
    (root / f"lib/modules/{OLD}/build/include").rmdir()
    (root / f"lib/modules/{OLD}/build").rmdir()
    message = refusal(modules())
    assert message == (
        f"Kernel {OLD} would boot without the driver: it has no nvidia module, because its headers are "
        f"missing: install linux-headers-{OLD}. Remove that kernel if it shall not boot again "
        f"(`apt-get purge linux-image-{OLD}`), or correct the cause, and run again."
    )


def test_package_names_are_the_distributions(root: Path) -> None:
    for release in (RUNNING, OLD):
        (root / f"lib/modules/{release}/build/include").rmdir()
        (root / f"lib/modules/{release}/build").rmdir()
    message = refusal(modules(manager="dnf"))
    assert f"install 'kernel-devel-uname-r = {OLD}'" in message
    assert f"dnf remove 'kernel-uname-r = {OLD}'" in message


def test_a_failed_build_is_said_with_the_compilers_error(root: Path) -> None:
    install_module(root, RUNNING, VERSION)
    break_builds(root)
    message = refusal(modules())
    assert f"Kernel {OLD} would boot without the driver: it has no nvidia module." in message
    assert "error: too few arguments to function 'pci_resize_resource'" in message


def test_a_node_without_dkms_is_told_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(process, "SYSTEM_PATH", "/nowhere")
    message = refusal(modules())
    assert "it has no nvidia module, and dkms is not installed" in message


def test_precompiled_modules_are_not_built(root: Path) -> None:
    install_module(root, RUNNING, VERSION)
    message = refusal(modules(dkms=""))
    assert f"Kernel {OLD} would boot without the driver" in message
    assert "the driver's packages bring none for it" in message


# ---------------------------------------------------------------- signatures


@pytest.fixture
def certificate(tmp_path: Path, root: Path) -> Certificate:
    """A certificate that the node's DKMS signs with."""
    made = Certificate.make(tmp_path, "Example machine owner key")
    for path in (made.key, made.der):
        (root / path.name).write_bytes(path.read_bytes())
    configuration = root / "etc/dkms/framework.conf.d/temper.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text('mok_signing_key="/mok.key"\nmok_certificate="/mok.der"\n')
    return made


def pem(certificate: Certificate) -> str:
    return ssl.DER_cert_to_PEM_cert(certificate.der.read_bytes())


def test_the_serial_number_is_the_one_that_openssl_prints(certificate: Certificate) -> None:
    assert serial_number(certificate.der.read_bytes()) == int(certificate.serial, 16)


@pytest.mark.parametrize("content", [b"", b"\x30", b"\x30\x03\x02\x01\x00", b"no certificate at all"])
def test_what_is_no_certificate_has_no_serial_number(content: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        serial_number(content)


def test_modules_signed_with_the_given_certificate_are_left_alone(
    root: Path, certificate: Certificate
) -> None:
    for release in (RUNNING, OLD):
        install_module(root, release, VERSION, certificate=certificate)
    assert modules(pem(certificate)).settled()


@pytest.mark.parametrize("signed", [False, True])
def test_a_module_without_the_right_signature_is_built_again(
    root: Path, tmp_path: Path, certificate: Certificate, signed: bool
) -> None:
    (tmp_path / "other").mkdir()
    other = Certificate.make(tmp_path / "other", "Somebody else") if signed else None
    install_module(root, RUNNING, VERSION, certificate=certificate)
    install_module(root, OLD, VERSION, certificate=other)
    setting = modules(pem(certificate))
    setting.apply()
    assert (setting.result()["built"], setting.settled()) == ([OLD], True)


def test_a_signature_with_another_key_after_the_build_is_a_failure(
    root: Path, certificate: Certificate
) -> None:
    (root / "etc/dkms/framework.conf.d/temper.conf").unlink()  # DKMS then makes a key of its own
    message = refusal(modules(pem(certificate)))
    assert "signed by DKMS module signing key, not with the given certificate" in message
