"""The simulated dkms: what the real one would leave, say and answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.gpu_simulator import contents, libraries
from tests.unit.modules_on_disk import Certificate, install_kernel

pytestmark = pytest.mark.component

KERNEL, OTHER = "6.1.0-56-amd64", "6.1.0-50-amd64"
VERSION = "580.178.04"
INSTALLED = f"nvidia/{VERSION}, {KERNEL}, {os.uname().machine}: installed\n"


class Dkms:
    """A node's files, and dkms run on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        source = root / f"usr/src/nvidia-{VERSION}"
        source.mkdir(parents=True)
        (source / "nvidia.o").write_bytes(libraries.kernel_module(VERSION, "open"))
        (source / "build.sh").write_text(contents.text("module-build.sh"))
        (source / "dkms.conf").write_text(contents.text("dkms.conf", VERSION=VERSION))
        self.program = root / "dkms"
        self.program.write_text(contents.text("dkms.py", VERSION="3.3.0"))

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GPU_SIMULATOR_ROOT": str(self.root)}
        command = [sys.executable, "-I", str(self.program), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def succeed(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def modinfo(self, field: str) -> str:
        command = ["modinfo", "-b", str(self.root), "-k", KERNEL, "-F", field, "nvidia"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def dkms(tmp_path: Path) -> Dkms:
    install_kernel(tmp_path, KERNEL)
    return Dkms(tmp_path)


def test_a_module_goes_from_added_to_built_to_installed(dkms: Dkms) -> None:
    module = f"nvidia/{VERSION}"
    dkms.succeed("add", "-m", "nvidia", "-v", VERSION)
    assert dkms.succeed("status") == f"{module}: added\n"
    dkms.succeed("build", module, "-k", KERNEL)
    assert dkms.succeed("status") == INSTALLED.replace("installed", "built")
    dkms.succeed("install", module, "-k", KERNEL)
    assert dkms.succeed("status") == INSTALLED
    assert dkms.modinfo("version") == VERSION


def test_autoinstall_builds_what_is_missing_for_one_kernel(dkms: Dkms) -> None:
    install_kernel(dkms.root, OTHER)
    dkms.succeed("add", f"nvidia/{VERSION}")
    dkms.succeed("autoinstall", "-k", KERNEL)
    assert dkms.succeed("status") == INSTALLED
    assert dkms.succeed("autoinstall", "-k", KERNEL) == ""


def test_a_kernel_without_headers_gets_no_module(dkms: Dkms) -> None:
    install_kernel(dkms.root, OTHER, headers=False)
    dkms.succeed("add", f"nvidia/{VERSION}")
    result = dkms("install", f"nvidia/{VERSION}", "-k", OTHER)
    assert (result.returncode, f"linux-headers-{OTHER}" in result.stderr) == (21, True)


def test_a_build_that_fails_leaves_the_compilers_words(dkms: Dkms) -> None:
    faults = dkms.root / "var/lib/gpu-simulator/faults.json"
    faults.parent.mkdir(parents=True)
    faults.write_text('["module-build-fails"]')
    dkms.succeed("add", f"nvidia/{VERSION}")
    result = dkms("install", f"nvidia/{VERSION}", "-k", KERNEL)
    log = dkms.root / f"var/lib/dkms/nvidia/{VERSION}/build/make.log"
    assert result.returncode == 10
    assert f"Consult {log} for more information." in result.stderr
    assert "error: too few arguments to function 'pci_resize_resource'" in log.read_text()
    assert dkms("autoinstall", "-k", KERNEL).returncode == 11


def test_modules_are_signed_with_the_key_of_the_configuration(dkms: Dkms) -> None:
    certificate = Certificate.make(dkms.root, "Example machine owner key")
    configuration = dkms.root / "etc/dkms/framework.conf.d/example.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text('mok_signing_key="/mok.key"\nmok_certificate="/mok.der"\n')
    dkms.succeed("install", f"nvidia/{VERSION}", "-k", KERNEL)
    assert dkms.modinfo("signer") == "Example machine owner key"
    assert dkms.modinfo("sig_key").replace(":", "") == certificate.serial


def test_a_key_is_made_where_none_is_configured(dkms: Dkms) -> None:
    dkms.succeed("install", f"nvidia/{VERSION}", "-k", KERNEL)
    assert dkms.modinfo("signer") == "DKMS module signing key"
    assert (dkms.root / "var/lib/dkms/mok.pub").is_file()


def test_a_module_that_somebody_replaced_differs(dkms: Dkms) -> None:
    dkms.succeed("install", f"nvidia/{VERSION}", "-k", KERNEL)
    (dkms.root / f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko").write_text("another")
    assert "(Differences between built and installed modules)" in dkms.succeed("status")


def test_removing_leaves_nothing(dkms: Dkms) -> None:
    dkms.succeed("install", f"nvidia/{VERSION}", "-k", KERNEL)
    dkms.succeed("remove", f"nvidia/{VERSION}", "--all")
    assert dkms.succeed("status") == ""
    assert not (dkms.root / "var/lib/dkms/nvidia").exists()
    assert not list((dkms.root / f"lib/modules/{KERNEL}/updates/dkms").iterdir())
