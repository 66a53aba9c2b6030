"""Kernels, and a boot loader that chooses between them, on nodes that have the host's kernel.

Real on such a node: apt and dpkg, Debian's grub-common and grub2-common with update-grub and grub-editenv.
Simulated: DKMS and the driver, as on every node; the packages of kernels, which are empty but for what other
programs look at; grub-probe, which would ask the disk; what GRUB does at boot (`boot.py`), from its own
script; and uname(2) (`uname.c`). Only the tests that need it put it on a node.
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.fleet import on_node
from tests.lab.gpu_simulator import deb, repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.lab.settings import Node

HERE = Path(__file__).resolve().parent
ARCHIVE = "/srv/kernels"
#: DKMS's hook alone: an initramfs of these kernels would have nothing in it.
BUILD = "hook=/etc/kernel/{folder}/dkms; [ ! -x $hook ] || $hook {release} /boot/vmlinuz-{release}"
#: What GRUB's hook (zz-update-grub) does, but in containers, where it does nothing.
MENU = "[ ! -e /boot/grub/grub.cfg ] || update-grub"
#: What DKMS's own hook in /etc/kernel/prerm.d does; the simulated dkms has none.
DKMS = (
    "! command -v dkms >/dev/null || dkms status -k {release} | cut -d, -f1 | "
    "while read module; do dkms remove $module -k {release}; done"
)


def release_of(number: int) -> str:
    """A kernel of Debian 12's kind that Debian itself has not reached."""
    return f"6.1.0-{number}-{repository.architecture().debian}"


def kernel_packages(number: int) -> list[deb.Package]:
    """Image and headers of a kernel, and the packages that follow the newest."""
    release, version = release_of(number), f"6.1.{number}-1"
    architecture = repository.architecture().debian

    def package(
        name: str, depends: str = "", files: Mapping[str, bytes] | None = None, **scripts: str
    ) -> deb.Package:
        return deb.Package(
            name,
            version,
            architecture,
            "a kernel",
            depends=depends,
            files={path: deb.File(content) for path, content in (files or {}).items()},
            scripts={kind: f"#!/bin/sh\nset -e\n{text}\n" for kind, text in scripts.items()},
        )

    modules = f"/lib/modules/{release}"
    image = {f"/boot/vmlinuz-{release}": b"kernel\n", f"{modules}/modules.builtin": b""}
    return [
        package(
            f"linux-image-{release}",
            files=image,
            postinst=f"echo initrd >/boot/initrd.img-{release}\n"
            + f"{BUILD.format(folder='postinst.d', release=release)}\n{MENU}",
            prerm=DKMS.format(release=release),
            postrm=f"[ $1 != upgrade ] || exit 0; rm -rf /boot/initrd.img-{release} {modules}\n{MENU}",
        ),
        package(
            f"linux-headers-{release}",
            files={f"{modules}/build/Makefile": b""},
            postinst=BUILD.format(folder="header_postinst.d", release=release),
        ),
        package(f"linux-image-{architecture}", f"linux-image-{release} (= {version})"),
        package(f"linux-headers-{architecture}", f"linux-headers-{release} (= {version})"),
    ]


def publish(node: Node, *numbers: int) -> None:
    """Offer kernels, up to the highest number, in a repository on the node itself."""
    packages = [package for number in numbers for package in kernel_packages(number)]
    built = {package.filename: deb.build(package) for package in packages}
    index = "\n".join(
        deb.index_stanza(package, built[package.filename], f"./{package.filename}") for package in packages
    )
    on_node(node, f"rm -rf {ARCHIVE}; mkdir -p {ARCHIVE}")
    for name, content in {**built, "Packages": index.encode()}.items():
        put(node, f"{ARCHIVE}/{name}", content)
    source = f"Types: deb\nURIs: copy:{ARCHIVE}\nSuites: ./\nTrusted: yes\n"
    put(node, "/etc/apt/sources.list.d/kernels.sources", source.encode())


def furnish(node: Node, number: int) -> None:
    """GRUB and a kernel, which runs then."""
    publish(node, number)
    architecture = repository.architecture().debian
    on_node(
        node,
        "apt-get -q update; apt-get -q -y install --no-install-recommends grub2-common; "
        "dpkg-divert --divert /usr/sbin/grub-probe.real --rename /usr/sbin/grub-probe",
        timeout_s=600,
    )
    put(node, "/usr/sbin/grub-probe", (HERE / "grub-probe.sh").read_bytes(), mode="755")
    put(node, "/usr/lib/boot-simulator/boot.py", (HERE / "boot.py").read_bytes(), mode="755")
    put(node, "/usr/lib/boot-simulator/uname.so", preloaded(), mode="755")
    unit = "boot-simulator.service"
    put(node, f"/etc/systemd/system/{unit}", (HERE / unit).read_bytes())
    on_node(
        node,
        f"apt-get -q -y install linux-image-{architecture} linux-headers-{architecture}; "
        "mkdir -p /boot/grub; grub-editenv /boot/grub/grubenv create; update-grub; "
        "echo /usr/lib/boot-simulator/uname.so >/etc/ld.so.preload; "
        f"systemctl daemon-reload; systemctl enable {unit}; systemctl start {unit}",
        timeout_s=600,
    )


def put(node: Node, path: str, content: bytes, mode: str = "644") -> None:
    """Write a file on a node."""
    text = base64.b64encode(content).decode()
    on_node(node, f"mkdir -p $(dirname {path}); base64 -d >{path} <<'END'\n{text}\nEND\nchmod {mode} {path}")


def preloaded() -> bytes:
    """The library that answers uname(2)."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "uname.so"
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", str(output)]
        subprocess.run([*command, str(HERE / "uname.c")], check=True)
        return output.read_bytes()
