#!/usr/bin/python3
"""The nvidia module of every installed kernel: there, of the planned version, and signed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: driver_modules
short_description: Make sure that every kernel which could boot has the driver's module
description:
  - Looks at every installed kernel. Where the module is missing, of another version, or not signed by
    O(certificate), it has DKMS build it. DKMS itself builds for the running and the newest kernel only,
    and says nothing about the others.
  - Fails where a kernel stays without the module, and names the kernel and the cause. A reboot into it would
    lose the GPUs.
options:
  version:
    description: The driver's version.
    type: str
    required: true
  dkms:
    description: The module's name in DKMS. Empty for precompiled modules.
    type: str
  certificate:
    description: The certificate (PEM) that must have signed the modules. Empty for any or none.
    type: str
    default: ""
  package_manager:
    description: Whose package names the messages use.
    type: str
    choices: [apt, dnf]
    default: apt
author: Temper developers
"""

EXAMPLES = r"""
- name: Make sure that no kernel boots without the driver
  driver_modules:
    version: 580.178.04
    dkms: nvidia
"""

RETURN = r"""
built:
  description: Kernels that DKMS built the module for, now.
  returned: always
  type: list
  elements: str
kernels:
  description: The module's version by kernel.
  returned: always
  type: dict
"""

import platform
import ssl
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils import process
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver.kernel_modules import installed_kernels, nvidia_modules
from ansible.module_utils.driver.secure_boot import serial_number
from ansible.module_utils.packaging import dkms

ROOT = Path("/")
LAST_LINES = 5
# DKMS compiles the module for minutes on a small machine; nobody waits longer than this.
BUILD_TIMEOUT_S = 3600
HEADERS = {"apt": "linux-headers-{}", "dnf": "kernel-devel-{}"}
REMOVAL = {"apt": "apt-get purge linux-image-{}", "dnf": "dnf remove kernel-core-{}"}

State = dict[str, dict[str, Any]]


def look(*, signers: bool) -> State:
    """Kernel -> headers_present, and its module's version, signer and signing_key."""
    kernels = installed_kernels(ROOT, platform.release())
    modules = nvidia_modules(ROOT, [kernel["release"] for kernel in kernels], signers=signers)
    none = {"version": None, "signer": None, "signing_key": None}
    return {kernel["release"]: kernel | (modules[kernel["release"]] or none) for kernel in kernels}


def lack(kernel: dict[str, Any], version: str, serial: int | None) -> str | None:
    """What is wrong with the module of a kernel; None if nothing is."""
    if kernel["version"] is None:
        return "it has no nvidia module"
    if kernel["version"] != version:
        return f"its nvidia module is of version {kernel['version']}, expected {version}"
    if serial is None:
        return None
    key = kernel["signing_key"]
    if not key:
        return "its nvidia module is not signed"
    if int(key.replace(":", ""), 16) != serial:
        return f"its nvidia module is signed by {kernel['signer']}, not with the given certificate"
    return None


def build(name: str, version: str, release: str) -> str | None:
    """Have DKMS build, sign and install the module for a kernel; why it did not, or None.

    With --force, because a module that was built before may be signed with another key.
    """
    arguments = ["-m", name, "-v", version, "-k", release, "--force"]
    output = ""
    for step in ("build", "install"):
        try:
            completed = process.complete(["dkms", step, *arguments], BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"`dkms {step}` did not end within {BUILD_TIMEOUT_S} s"
        output += completed.stdout + completed.stderr
        if completed.returncode:
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            return " ".join(dkms.failures(output)) or " ".join(lines[-LAST_LINES:])
    return None


def remedy(release: str, manager: str) -> str:
    """What to do about a kernel that cannot get the module."""
    return (
        f"Remove that kernel if it shall not boot again (`{REMOVAL[manager].format(release)}`), or correct "
        "the cause, and run again"
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "dkms": {"type": "str"},
            "certificate": {"type": "str", "default": ""},
            "package_manager": {"type": "str", "choices": ["apt", "dnf"], "default": "apt"},
        },
        supports_check_mode=True,
    )
    version, name = module.params["version"], module.params["dkms"]
    manager = module.params["package_manager"]
    certificate = module.params["certificate"]
    serial = serial_number(ssl.PEM_cert_to_DER_cert(certificate.strip())) if certificate.strip() else None

    before = look(signers=serial is not None)
    lacking = {release: lack(kernel, version, serial) for release, kernel in before.items()}
    lacking = {release: reason for release, reason in lacking.items() if reason}
    causes: dict[str, str] = {}
    built: list[str] = []
    for release, reason in lacking.items():
        if not name:
            causes[release] = f"{reason}, and the driver's packages bring none for it"
        elif not before[release]["headers_present"]:
            package = HEADERS[manager].format(release)
            causes[release] = f"{reason}, because its headers are missing: install {package}"
        elif not process.which("dkms"):
            causes[release] = f"{reason}, and dkms is not installed"
        else:
            built.append(release)
    if module.check_mode:
        module.exit_json(
            changed=bool(built), built=built, kernels={name: k["version"] for name, k in before.items()}
        )
    for release in built:
        failure = build(name, version, release)
        if failure:
            causes[release] = f"{lacking[release]}. {failure}"
    after = look(signers=serial is not None) if built else before
    for release in built:
        reason = lack(after[release], version, serial)
        if reason and release not in causes:
            causes[release] = (
                f"DKMS reports success, but {reason}. Look at `dkms status` and `modinfo nvidia`"
            )
    if causes:
        sentences = [
            f"Kernel {release} would boot without the driver: {cause}. {remedy(release, manager)}."
            for release, cause in causes.items()
        ]
        module.fail_json(msg=" ".join(sentences))
    module.exit_json(
        changed=bool(built),
        built=built,
        kernels={release: kernel["version"] for release, kernel in after.items()},
    )


if __name__ == "__main__":
    main()
