"""What a node needs beside packages: a module for every kernel, signed where that is asked for, and units.

Real runs on two nodes, one of which becomes an HGX B200 with Secure Boot. What the firmware would say is put
where the kernel shows it.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import Fleet, installed, on_node
from tests.lab.gpu_simulator import profiles
from tests.lab.settings import Lab, Node
from tests.unit.modules_on_disk import Certificate

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="modules")
FLEET = Fleet(LAB)
B200, L4 = LAB.nodes(2)
DRIVER = "580.178.04"
WISHES: dict[str, Any] = {"nvidia_stack_dcgm_exporter": True}
OTHER_KERNEL = "6.1.0-99-amd64"
GLOBAL, SHIM = "8be4df61-93ca-11d2-aa0d-00e098032b8c", "605dab50-e046-4300-abb6-3dd810dd8b23"
# EFI_SIGNATURE_LIST: the type X.509, the list's size, no header, an entry's size, the entry's owner.
X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two bare nodes, the first an HGX B200, and nothing left of them afterwards."""
    hardware = json.dumps(profiles.hardware("hgx-b200-8", B200.name))
    with FLEET.booted():
        on_node(B200, f"cat >/var/lib/gpu-simulator/hardware.json <<'END'\n{hardware}\nEND")
        FLEET.command("reboot", B200.name)
        yield


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """The operator's key pair."""
    return Certificate.make(tmp_path_factory.mktemp("mok"), "Example fleet key")


@pytest.fixture(scope="module")
def converged(lab: None) -> None:
    """Both nodes have the stack, and run what belongs to it."""
    run = FLEET.playbook("provision", None, **WISHES)
    assert run.status == 0, run.output


def enable_secure_boot(node: Node, certificate: Path) -> None:
    """Show the variables of a firmware that validates and knows the certificate, until the next reboot."""
    content = certificate.read_bytes()
    entry = bytes(16) + content
    listing = X509 + struct.pack("<III", 28 + len(entry), 0, len(entry)) + entry
    folder = "/sys/firmware/efi/efivars"
    on_node(
        node,
        "mount -o remount,rw,bind /sys; mkdir -p /sys/firmware; mount -o remount,ro,bind /sys;"
        f"mount -t tmpfs lab /sys/firmware; mkdir -p {folder};"
        f"printf '\\006\\000\\000\\000\\001' >{folder}/SecureBoot-{GLOBAL};"
        f"printf %s {(bytes(4) + listing).hex()} | python3 -c 'import sys;"
        "sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))'"
        f" >{folder}/MokListRT-{SHIM}",
    )


def install_kernel(node: Node, *, headers: bool) -> None:
    folder = f"/lib/modules/{OTHER_KERNEL}"
    on_node(node, f"mkdir -p {folder}{'/build' if headers else ''}; touch /boot/vmlinuz-{OTHER_KERNEL}")


def remove_kernel(node: Node) -> None:
    on_node(node, f"rm -rf /lib/modules/{OTHER_KERNEL} /boot/vmlinuz-{OTHER_KERNEL}")


def modinfo(node: Node, field: str, kernel: str = "$(uname -r)") -> str:
    return on_node(node, f"modinfo -k {kernel} -F {field} nvidia").strip()


def test_a_b200_gets_what_its_switches_need_and_a_fabric(converged: None) -> None:
    packages = installed(B200)
    assert {
        "nvidia-fabricmanager",
        "libnvidia-nscq",
        "libnvsdm",
        "nvlsm",
        "infiniband-diags",
    } <= packages.keys()
    on_node(B200, "systemctl start nvidia-fabricmanager")
    state = on_node(B200, "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader")
    assert set(state.splitlines()) == {"Completed, Success"}
    assert on_node(B200, "pgrep -f nvlsm.conf").strip()


def test_dcgm_and_its_exporter_come_where_they_are_asked_for(converged: None) -> None:
    assert {"datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"} <= installed(L4).keys()
    on_node(L4, "systemctl start nvidia-dcgm nvidia-dcgm-exporter")
    fetch = "import urllib.request as r; print(r.urlopen('http://localhost:9400/metrics').read().decode())"
    assert f'UUID="{profiles.hardware("l4-1", L4.name)["gpus"][0]["uuid"]}"' in on_node(
        L4, f'for try in 1 2 3 4 5 6 7 8 9 10; do python3 -c "{fetch}" && break; sleep 0.5; done'
    )


def test_a_unit_does_not_start_where_its_hardware_is_missing(converged: None) -> None:
    unit = "nvidia-dcgm"
    condition = on_node(L4, f"systemctl show {unit} --property=Conditions --value; systemctl cat {unit}")
    assert "ConditionPathExists=/proc/driver/nvidia/version" in condition


def test_a_kernel_with_headers_that_dkms_passed_over_gets_the_module(converged: None) -> None:
    install_kernel(L4, headers=True)
    run = FLEET.playbook("provision", L4, **WISHES)
    assert (run.status, run.changed(L4)) == (0, 1), run.output
    assert modinfo(L4, "version", OTHER_KERNEL) == DRIVER
    remove_kernel(L4)


def test_a_kernel_without_headers_is_refused_before_it_can_boot(converged: None) -> None:
    install_kernel(L4, headers=False)
    run = FLEET.playbook("provision", L4, **WISHES)
    remove_kernel(L4)
    assert run.status != 0
    assert (
        f"Kernel {OTHER_KERNEL} would boot without the driver: it has no nvidia module, because its headers "
        f"are missing: install linux-headers-{OTHER_KERNEL}."
    ) in run.said, run.output


def test_a_build_that_fails_is_said_with_the_compilers_error(converged: None) -> None:
    install_kernel(L4, headers=True)
    FLEET.command("fault", L4.name, "module-build-fails", "on")
    run = FLEET.playbook("provision", L4, **WISHES)
    FLEET.command("fault", L4.name, "module-build-fails", "off")
    remove_kernel(L4)
    assert run.status != 0
    assert f"Kernel {OTHER_KERNEL} would boot without the driver" in run.said, run.output
    assert "too few arguments to function 'pci_resize_resource'" in run.said, run.output


def test_with_secure_boot_modules_are_signed_with_the_operators_key(
    converged: None, certificate: Certificate
) -> None:
    assert modinfo(B200, "signer") == "DKMS module signing key"
    enable_secure_boot(B200, certificate.der)
    keys = {
        "nvidia_stack_mok_certificate": str(certificate.der),
        "nvidia_stack_mok_private_key": str(certificate.key),
    }
    run = FLEET.playbook("provision", B200, **WISHES, **keys)
    assert run.status == 0, run.output
    assert modinfo(B200, "signer") == "Example fleet key"
    assert modinfo(B200, "sig_key").replace(":", "") == certificate.serial
    secret = certificate.key.read_text().splitlines()[1]
    assert secret not in run.output
    assert secret not in on_node(B200, "journalctl --quiet")
    assert on_node(B200, "stat -c '%a %U' /var/lib/temper/module-signing/mok.key").strip() == "600 root"
    assert FLEET.playbook("provision", B200, **WISHES, **keys).changed(B200) == 0


def test_a_key_that_is_no_longer_used_is_removed(converged: None) -> None:
    on_node(B200, "umount /sys/firmware || true")
    run = FLEET.playbook("provision", B200, **WISHES)
    assert run.status == 0, run.output
    assert on_node(B200, "ls /var/lib/temper/module-signing").strip() == ""
    assert on_node(B200, "ls /etc/dkms/framework.conf.d").strip() == ""
