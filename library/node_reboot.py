#!/usr/bin/python
"""Begin the reboot of a node, where it is still this run's."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_reboot
short_description: Begin the reboot of a node, unless somebody has taken it or uses its GPUs since
description:
  - What reboots is C(shutdown). The action C(reboot_node) runs this, and waits for the next boot.
  - A run that was given up by its controller may still be under way. So the reboot begins under the lock of
    whoever changes the node, never in the middle of another run's change, and with O(lease) only where that
    is still the node's.
  - What was looked at before a reboot may be minutes old, so it asks again who uses a GPU.
options:
  busy_ok:
    description: Reboot although processes, containers or virtual machines use GPUs.
    type: bool
    default: false
  message:
    description: What logged-in users are told.
    type: str
    required: true
extends_documentation_fragment: temper_lease
author: Temper developers
"""

EXAMPLES = r"""
- name: Reboot the node, and wait for it
  reboot_node:
    msg: A new driver is to be loaded.
    reboot_timeout: 1800
"""

RETURN = r"""
refused:
  description: The node is somebody else's by now, or its GPUs are in use; it was not rebooted.
  returned: failure
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import holders
from ansible.module_utils.temper.lease import ARGUMENT, LeaseError, working


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "busy_ok": {"type": "bool", "default": False},
            "message": {"type": "str", "required": True},
            "lease": ARGUMENT,
        },
        supports_check_mode=True,
    )
    try:
        with working(**module.params["lease"] or {}, check=module.check_mode):
            users = (
                [] if module.params["busy_ok"] else holders.holders(ignore=holders.SERVICES, computing=True)
            )
            if users and not module.check_mode:
                module.fail_json(
                    msg=f"The node was not rebooted: {users[0]} ({len(users)} in all). Drain it, or set "
                    "nvidia_stack_busy_ok: true.",
                    refused=True,
                )
            if not module.check_mode:
                process.run(["shutdown", "-r", "now", module.params["message"]])
    except LeaseError as error:
        module.fail_json(msg=str(error), refused=True)
    except process.CommandError as error:
        module.fail_json(msg=f"The node was not rebooted: {error}.")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
