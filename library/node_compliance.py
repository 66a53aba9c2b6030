#!/usr/bin/python
"""How a node compares with its plan, setting by setting, in one call that changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_compliance
short_description: Compare a node with its plan, and change nothing
description:
  - Reads what is in force and what would be after a reboot, and compares it with every setting of the plan.
  - A setting that cannot be read is C(not-checked), with its reason. The others are compared all the same.
  - Contents of files that are secret are not compared, as the plan does not hold them.
options:
  roles:
    description: The roles' parts of the plan, as JSON (temper/plan/node_plan.py, C(RolePlan)).
    type: str
    required: true
  demanded:
    description: What a benchmark asks for where the profile of the hardening does less, as JSON
      (temper/plan/os_controls.py, C(demanded)). Measured, and nothing else.
    type: str
    default: "[]"
  administrators:
    description: Accounts that may become root. Left out where nobody says who may.
    type: list
    elements: str
author: Temper developers
"""

EXAMPLES = r"""
- name: Compare the node with its plan
  node_compliance:
    roles: "[{{ preflight_plan.roles.os_tuning }}]"
"""

RETURN = r"""
observations:
  description: Role -> its settings; under C(node) what is no setting, under C(demanded) what the profile of
    the hardening relaxes. Each has C(key), the C(controls) that
    ask for it, C(state) (pass, fail, not-applicable, not-checked), C(reason), and C(changes) with C(name),
    C(before), C(after) and C(diff).
  returned: always
  type: dict
self_report:
  description: What the node says of its own ways in, to be compared with what is seen from outside. C(client)
    is the address that this connection comes from, C(listening) are TCP ports, C(accounts) has one of each
    kind that sshd's Match lines tell apart, C(host_keys) are type and key, C(methods) is sshd's
    AuthenticationMethods.
  returned: always
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import node_conditions
from ansible.module_utils.temper.access.self_report import self_report
from ansible.module_utils.temper.access.sshd import other_servers
from ansible.module_utils.temper.driver import gpus
from ansible.module_utils.temper.settings.observe import measured, observe


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            # A long text, of no use in the node's log.
            "roles": {"type": "str", "required": True, "no_log": True},
            "demanded": {"type": "str", "default": "[]", "no_log": True},
            "administrators": {"type": "list", "elements": "str"},
        },
        supports_check_mode=True,
    )
    found = {plan["role"]: observe(plan) for plan in json.loads(module.params["roles"])}
    found["demanded"] = measured(json.loads(module.params["demanded"]))
    found["node"] = node_conditions.conditions(module.params["administrators"], gpus.pending(), other_servers)
    module.exit_json(changed=False, observations=found, self_report=self_report())


if __name__ == "__main__":
    main()
