#!/usr/bin/python3
"""A set of packages at exact versions, installed in one transaction and held."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_set
short_description: Install exact package versions in one transaction and hold them
description:
  - Compares what is installed with the wanted versions and, only where they differ, runs one transaction
    with the complete explicit list, then holds the packages together with everything else that has one of
    O(hold_versions).
  - Every transaction is simulated first; one that would remove a package outside the NVIDIA family, change
    one that somebody else holds, or install a kernel that was not asked for, is refused.
  - Everything is downloaded before anything is installed. An installation that fails is undone, so that the
    package manager goes on working; one that was interrupted is completed by the next run.
options:
  packages:
    description: Names and exact versions, which are held. An empty version means what is offered.
    type: dict
    required: true
  present:
    description: Names that must be installed at any version; these are not held.
    type: list
    elements: str
    default: []
  hold_versions:
    description: Every installed package of the NVIDIA family at one of these versions is held as well.
    type: list
    elements: str
    default: []
  refresh:
    description: Read the package lists again even if all versions are known, because a repository changed.
    type: bool
    default: false
  pins:
    description: Patterns of names and the version that a transaction may choose of them (dnf; for apt they
      are in its preferences).
    type: list
    elements: dict
    default: []
  module_streams:
    description: Modules (C(name)) and the stream (C(stream)) that is enabled before the transaction (dnf).
    type: list
    elements: dict
    default: []
author: Temper developers
"""

EXAMPLES = r"""
- name: Install the stack
  package_set:
    packages: {nvidia-driver-cuda: 580.178.04-1, libnccl2: 2.28.9-1+cuda13.0}
    hold_versions: [580.178.04-1]
"""

RETURN = r"""
installed:
  description: Names that were installed, upgraded or downgraded, with their new versions.
  returned: always
  type: dict
held:
  description: Names whose hold was set.
  returned: always
  type: list
  elements: str
recovered:
  description: Names that an interrupted earlier transaction had left half-way.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.packaging.package_settings import PackageSet
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "present": {"type": "list", "elements": "str", "default": []},
            "hold_versions": {"type": "list", "elements": "str", "default": []},
            "refresh": {"type": "bool", "default": False},
            "pins": {"type": "list", "elements": "dict", "default": []},
            "module_streams": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    settle_one(module, PackageSet.from_parameters(module.params))


if __name__ == "__main__":
    main()
