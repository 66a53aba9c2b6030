"""What is wrong with the machine itself, whatever is to be installed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.model import Facts

GIB = 2**30
SECURE_BOOT_REMEDY = (
    "enrol the DKMS signing key (mokutil --import /var/lib/dkms/mok.pub, then confirm at the console on "
    "reboot) and set preflight_secure_boot_ok: true, or disable Secure Boot in the firmware"
)


def machine_problems(node: Facts, values: Facts, settled: bool) -> list[str]:
    """What is wrong with the machine itself. A node that already has the stack needs no room for it."""
    problems = []
    if node["secure_boot"] == "enabled" and not values["preflight_secure_boot_ok"]:
        problems.append(
            "Secure Boot is enabled, and the kernel would refuse modules that DKMS builds; "
            f"{SECURE_BOOT_REMEDY}"
        )
    release = node["kernel"]["release"]
    if not node["kernel"]["headers_present"] and not node["kernel"]["headers_installable"]:
        problems.append(
            f"the headers of the running kernel {release} are neither installed nor offered by the package "
            "manager, so that no driver module can be built; boot a kernel that the distribution still "
            "offers (apt-get dist-upgrade, then reboot)"
        )
    needed = values["preflight_minimum_free_gib"]
    if not settled:
        # What goes to /usr also passes through /var/cache/apt; a separate small /boot is no target.
        problems += [
            f"{disk['path']} has {disk['free_bytes'] / GIB:.1f} GiB free, the stack needs {needed} GiB "
            "there; free space or lower preflight_minimum_free_gib"
            for disk in node["disks"]
            if disk["path"] != "/boot" and disk["free_bytes"] < needed * GIB
        ]
    return problems
