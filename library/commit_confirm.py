#!/usr/bin/python
"""Confirm a change of sshd or the firewall through the connection that runs this."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: commit_confirm
short_description: Make a pending change permanent
description:
  - Disarms the timer that would undo what M(node_settings) has changed about accounts, sshd or the firewall.
  - To run it proves that the new rules let a connection in. So it refuses the one that made the change.
options:
  name:
    description: Which change to confirm.
    type: str
    choices: [accounts, ssh, firewall]
    required: true
author: Temper developers
"""

EXAMPLES = r"""
- name: Confirm the new settings of sshd
  commit_confirm:
    name: ssh
  vars:
    ansible_ssh_extra_args: -o ControlPath=none
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.access.commit_confirm import Change, NotConfirmedError
from ansible.module_utils.temper.access.nftables_rules import END_PROOF
from ansible.module_utils.temper.access.ssh_login import ssh_login
from ansible.module_utils.temper.process import CommandError

SUBJECTS = {"accounts": "the accounts", "ssh": "sshd's settings", "firewall": "the firewall"}
END_PROOFS = {"firewall": ("nft", END_PROOF)}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={"name": {"type": "str", "choices": list(SUBJECTS), "required": True}}
    )
    name = module.params["name"]
    try:
        Change(name, SUBJECTS[name]).confirm(ssh_login(), END_PROOFS.get(name, ()))
    except (NotConfirmedError, CommandError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
