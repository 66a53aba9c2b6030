"""Nodes of all kinds: GPUs x systems x kernels x Secure Boot, and what an operator may ask for on them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.bare_node import PYTHONS, bare_node, pci

GPU, DISPLAY, SWITCH = "0302", "0300", ("22a3", "0680")


class System(NamedTuple):
    """A kernel on a release: packages linux-image-* beside its own, and other installed kernels."""

    name: str
    machine: str
    kernel: str
    images: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    backports: bool = False


def on_both(name: str, *kernels: tuple[str, ...]) -> Iterator[System]:
    """The same kernels on both machines, in Debian's words."""
    for release, *images in kernels:
        for machine, word in (("x86_64", "amd64"), ("aarch64", "arm64")):
            named = tuple(image.replace("amd64", word) for image in images)
            yield System(name, machine, release.replace("amd64", word), named)


SYSTEMS = (
    *on_both(
        "debian-12",
        ("6.1.0-37-amd64", "amd64"),
        ("6.1.0-37-cloud-amd64", "cloud-amd64"),
        ("6.1.0-37-rt-amd64", "rt-amd64"),
        ("6.18.44",),
        ("6.12.30+bpo-amd64",),
    ),
    System("debian-12", "x86_64", "6.12.95+deb12-amd64", ("amd64",), backports=True),
    System("debian-12", "x86_64", "6.12.95+deb12-amd64", ("6.12.95+deb12-amd64",), backports=True),
    System("debian-12", "x86_64", "6.1.0-37-amd64", ("amd64",), ("6.1.0-30-amd64",)),
    *on_both(
        "debian-13",
        ("6.12.48+deb13-amd64", "amd64"),
        ("6.12.48+deb13-cloud-amd64", "cloud-amd64"),
        ("7.2.12+deb13-amd64", "amd64"),
        ("6.17.2-1-pve",),
    ),
    System("debian-13", "aarch64", "6.12.48+deb13-arm64-16k", ("arm64-16k",)),
    *on_both("ubuntu-22.04", ("5.15.0-157-generic", "generic"), ("6.8.0-85-generic", "generic-hwe-22.04")),
    *on_both("ubuntu-22.04", ("6.8.0-1031-aws", "aws"), ("5.15.0-1080-azure", "azure-lts-22.04")),
    *on_both("ubuntu-24.04", ("6.8.0-85-generic", "generic"), ("6.17.0-20-generic", "generic-hwe-24.04")),
    *on_both("ubuntu-24.04", ("6.8.0-1031-nvidia", "nvidia"), ("6.8.0-85-lowlatency", "lowlatency")),
    *on_both("ubuntu-24.04", ("6.8.0-85-generic", "virtual"), ("6.17.0-1030-oem", "oem-24.04d")),
    System("ubuntu-24.04", "aarch64", "6.8.0-1031-nvidia-64k", ("nvidia-64k",)),
    System("ubuntu-24.04", "x86_64", "6.18.1-custom"),
    System("ubuntu-24.04", "x86_64", "6.8.0-85-generic", ("generic",), ("6.8.0-80-generic",)),
    *on_both("ubuntu-26.04", ("7.0.0-34-generic", "generic"), ("7.3.0-10-generic", "generic-hwe-26.04")),
    *on_both("ubuntu-26.04", ("7.0.0-1009-aws", "aws"), ("7.0.0-1014-oem", "oem-26.04")),
    System("ubuntu-26.04", "aarch64", "7.0.0-34-generic-64k", ("generic-64k",)),
    System("rhel-8", "x86_64", "4.18.0-553.el8_10.x86_64"),
    System("rhel-8", "aarch64", "4.18.0-553.el8_10.aarch64"),
    System("rhel-8", "x86_64", "4.18.0-553.rt7.342.el8_10.x86_64"),
    System("rhel-9", "x86_64", "5.14.0-611.el9_7.x86_64"),
    System("rhel-9", "x86_64", "5.14.0-611.el9_7.x86_64+rt"),
    System("rhel-9", "aarch64", "5.14.0-611.el9_7.aarch64"),
    System("rhel-9", "aarch64", "5.14.0-611.el9_7.aarch64+64k"),
    System("rhel-9", "x86_64", "6.18.3-1.el9.elrepo.x86_64"),
    System("rhel-10", "x86_64", "6.12.0-124.el10_1.x86_64"),
    System("rhel-10", "aarch64", "6.12.0-124.el10_1.aarch64+64k"),
    System("fedora-43", "x86_64", "6.17.4-300.fc43.x86_64"),
)
# Some of each generation, mixed ones, ids that no table has (between, beyond, before), a Jetson's, none.
HARDWARE: tuple[tuple[str, ...], ...] = (
    ("13f2",),
    ("17fd",),
    ("15f8",),
    ("1b38",),
    ("1db5",),
    ("1eb8",),
    ("20b2",),
    ("2236",),
    ("26b9",),
    ("28b0",),
    ("2331",),
    ("2335",),
    ("233b",),
    ("2342",),
    ("2901",),
    ("2941",),
    ("2bb1",),
    ("3182",),
    ("1db5", "26b9"),
    ("1db5", "2901"),
    ("15f8", "1eb8"),
    ("2901", "1eb8"),
    ("2342", "1db5"),
    ("2343",),
    ("3fff",),
    ("102d",),
    ("2b00",),
    (),
)
FABRICS = ("none", "nvswitch", "nvlink5")
SECURE_BOOT = ("disabled", "enabled")
# The headers of the running kernel: there, offered, or neither.
HEADERS = ("there", "offered", "gone")
# A driver that no package owns, as NVIDIA's .run installer leaves it.
UNPACKAGED = ("", "", "", "580.95.05")


def wide_node(
    system: System,
    devices: tuple[str, ...],
    *,
    secure_boot: str = "disabled",
    fabric: str = "none",
    headers: str = "there",
    unpackaged: str = "",
) -> dict[str, Any]:
    """What node_facts reports of a bare node of this kind."""
    name, _, version = system.name.partition("-")
    codename = {"debian-12": "bookworm", "debian-13": "trixie"}.get(system.name, "")
    releases = (system.kernel, *system.others)
    own = releases if name == "ubuntu" and "custom" not in system.kernel else ()
    at = "6.12.95-1~bpo12+1" if system.backports else "1"
    images = {f"linux-image-{image}": at for image in (*own, *system.images)}
    suites = (codename, f"{codename}-security") if codename else ()
    return bare_node(
        os={"id": name, "version_id": version, "codename": codename, "pretty_name": system.name},
        architecture=system.machine,
        kernel={
            "release": system.kernel,
            "headers_present": headers == "there",
            "headers_installable": headers != "gone",
            "image_packages": images,
        },
        kernels=[{"release": release, "headers_present": headers == "there"} for release in releases],
        secure_boot=secure_boot,
        pci=pci(*((device, GPU) for device in devices), *((SWITCH,) * (fabric == "nvswitch"))),
        nvlink_switch_managed=fabric == "nvlink5",
        apt_sources=[
            {"uri": "http://mirror.example/debian", "suite": suite, "components": ["main"], "signed_by": ""}
            for suite in suites
        ],
        nvidia={**bare_node()["nvidia"], "userspace_version": unpackaged or None},
        pythons=[PYTHONS.get(system.name, "3.12")],
    )
