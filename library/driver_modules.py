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

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver.module_builds import KernelModules
from ansible.module_utils.settings.module import settle_one


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
    settle_one(module, KernelModules.from_parameters(module.params))


if __name__ == "__main__":
    main()
