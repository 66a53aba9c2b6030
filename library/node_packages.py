#!/usr/bin/python
"""Packages that a node needs, in whatever version its repositories have, and that no role takes back."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_packages
short_description: Install packages as the roles do, without a record
description:
  - Installs what is missing, and nothing else moves. Another package manager that is at work is waited for;
    a repository of somebody else that cannot be read is a warning, as with M(node_settings).
options:
  names:
    description: Names of the packages.
    type: list
    elements: str
    required: true
author: Temper developers
"""

EXAMPLES = r"""
- name: Install what makes virtual environments
  node_packages:
    names: [python3.11-venv]
"""

RETURN = r"""
installed:
  description: Versions of the packages that were missing, with what they brought along.
  returned: changed
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.packaging.package_settings import PackageSet
from ansible.module_utils.temper.packaging.packages import Wish
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.settings.base import SettingError


def main() -> None:
    module = AnsibleModule(
        argument_spec={"names": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    wanted = PackageSet(Wish({}, dict.fromkeys(module.params["names"], "")))
    try:
        if wanted.settled():
            module.exit_json(changed=False)
        if not module.check_mode:
            wanted.apply()
    except (SettingError, CommandError, OSError) as error:
        module.fail_json(msg=str(error))
    for note in wanted.warnings():
        module.warn(note)
    module.exit_json(changed=True, installed=wanted.result()["installed"])


if __name__ == "__main__":
    main()
