#!/usr/bin/python
"""What a node's own programs say of what its plan wants, before anything on the node is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_programs
short_description: Ask visudo, sshd, nft and auditctl whether they would take what is wanted
description:
  - Composes what the hardening would write, and has the node's own programs read it. Finds what else keeps a
    role out, such as another firewall or stacks of PAM that authselect does not keep.
  - Writes temporary files alone.
  - A program that is not installed is not asked, and none without root's rights.
  - nft is asked where the firewall's table is loaded; elsewhere its check would load kernel modules.
options:
  roles:
    description: The roles' parts of the plan, as JSON (temper/plan/node_plan.py, C(RolePlan)).
    type: str
    required: true
author: Temper developers
"""

EXAMPLES = r"""
- name: Ask the node's programs
  node_programs:
    roles: "[{{ preflight_plan.roles.os_hardening }}]"
"""

RETURN = r"""
unknown:
  description: Control -> which program, in which version, does not know what it asks for. It is left out.
  returned: always
  type: dict
without:
  description: What programs do not know of the rest, and go without, a sentence each.
  returned: always
  type: list
  elements: str
refused:
  description: Why a C(role) cannot be carried out here, as C(said); it may say what to do, too (C(advises)).
  returned: always
  type: list
  elements: dict
unasked:
  description: Program -> why it gave no answer.
  returned: always
  type: dict
"""

import json
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.settings import programs


def main() -> None:
    module = AnsibleModule(
        # A long text, of no use in the node's log.
        argument_spec={"roles": {"type": "str", "required": True, "no_log": True}},
        supports_check_mode=True,
    )
    found = programs.ask(json.loads(module.params["roles"]))
    module.exit_json(changed=False, **asdict(found))


if __name__ == "__main__":
    main()
