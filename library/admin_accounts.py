#!/usr/bin/python3
"""Named administrators, their keys and sudo, in one round trip, and Ansible's own account stays in."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: admin_accounts
short_description: Named administrators, their SSH keys and sudo
description:
  - Each present account has exactly the given keys, and sudo by a drop-in that C(visudo) has checked. One
    that is revoked keeps its files and its running sessions, but has no keys and no sudo, and has expired.
  - What could lock Ansible's own account out is refused. A change of its keys, or of sudo, is undone by a
    timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: C(absent) gives accounts back the keys and groups of before, and revokes those it has made.
    type: str
    choices: [present, absent]
    default: present
  users:
    description: The administrators. One that an earlier run has set up and that is not listed stays as it is.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The account's name.
        type: str
        required: true
      keys:
        description: Its public keys, as lines of C(authorized_keys).
        type: list
        elements: str
        default: []
      sudo:
        description: Whether it may do everything as root, without a password, as it has none.
        type: bool
        default: true
      groups:
        description: Groups that it is put into. They must exist.
        type: list
        elements: str
        default: []
      state:
        description: C(absent) revokes its access.
        type: str
        choices: [present, absent]
        default: present
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Let Alice in and Bob no longer
  admin_accounts:
    users:
      - name: alice
        keys: ["ssh-ed25519 AAAAC3Nza... alice@office"]
      - name: bob
        state: absent
"""

RETURN = r"""
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
"""

from ansible.module_utils.access.accounts import Accounts
from ansible.module_utils.access.commit_confirm import ARGUMENTS
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "users": {
                "type": "list",
                "elements": "dict",
                "default": [],
                # Public keys are no secret, but who pastes a private one must not find it in the node's log.
                # Of the options below alone, a value of several lines would get there in spite of no_log.
                "no_log": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
                    "sudo": {"type": "bool", "default": True},
                    "groups": {"type": "list", "elements": "str", "default": []},
                    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
                },
            },
        },
        supports_check_mode=True,
    )
    # Names and groups may be in messages.
    module.no_log_values = {key for user in module.params["users"] for key in user["keys"]}
    settle_one(module, Accounts.from_parameters(module.params))


if __name__ == "__main__":
    main()
