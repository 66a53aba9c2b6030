#!/usr/bin/python
"""What a node shall be: the settings of any number of roles, made, proven and taken back in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_settings
short_description: Carry out roles' parts of a node's plan, in one call
description:
  - Reads every setting of the roles, makes those that differ in a stated order, and records what was there
    before, so that a setting which is no longer in the plan returns to what it was.
  - What a change still has to cause (a restart, an initramfs) is noted on the node before the first change,
    and done by the next run where this one is cut off.
  - Stops where only the controller can go on, and says so in the role's C(needs). A new connection must
    confirm a change of a way into the node; a new driver may need a reboot. The same call after that does
    the rest.
options:
  roles:
    description: The roles' parts of the plan in their order, as JSON (temper/plan/node_plan.py, C(RolePlan)).
    type: str
    required: true
  ahead:
    description: The parts of roles that come in later stages, likewise. Where O(roles) needed nothing, these
      are read up to the first that has something to do. None of them is changed.
    type: str
    default: ""
  later:
    description: Names of roles that other calls of this run take back. A role that is taken back in this one
      hands them the packages that have to stay for now.
    type: list
    elements: str
    default: []
  secrets:
    description: Path -> content of files whose content the plan does not hold.
    type: dict
    default: {}
  after_boot_s:
    description: Seconds that the driver has to load and answer, where the node has just been rebooted for
      it. A driver that is still another one fails then.
    type: int
    default: 0
extends_documentation_fragment: temper_lease
author: Temper developers
"""

EXAMPLES = r"""
- name: Set limits and kernel parameters
  node_settings:
    roles: "[{{ preflight_plan.roles.os_tuning }}]"
"""

RETURN = r"""
roles:
  description: Role -> what was done for it (in check mode, would be), C(changed), C(diff), C(actions) in
    words, C(controls) that asked for it, C(results) that single settings have to say. C(needs) is what the
    controller must do before the rest is done, C(confirm) with the name of a change, or C(driver) with what
    is loaded. C(failed) with C(msg) ends the list; C(refused) says that nothing of the
    role was changed.
  returned: always
  type: dict
ahead:
  description: The same for the roles in O(ahead) that have nothing to do.
  returned: always
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.lease import ARGUMENT, LeaseError, working
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.settings.engine import carry_out


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            # A long text, of no use in the node's log.
            "roles": {"type": "str", "required": True, "no_log": True},
            # Not "[]" where there are none: Ansible hides the value of such a parameter wherever it stands.
            "ahead": {"type": "str", "default": "", "no_log": True},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "after_boot_s": {"type": "int", "default": 0},
            "later": {"type": "list", "elements": "str", "default": []},
            "lease": ARGUMENT,
        },
        supports_check_mode=True,
    )
    plans, ahead = (json.loads(module.params[name] or "[]") for name in ("roles", "ahead"))
    try:
        with working(**module.params["lease"] or {}, check=module.check_mode):
            result = carry_out(
                module,
                plans,
                module.params["secrets"],
                module.params["after_boot_s"],
                ahead,
                module.params["later"],
            )
    except (RefusedError, RecordError, LeaseError) as error:
        module.fail_json(msg=str(error), refused=True)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
