#!/usr/bin/python3
"""sshd's settings in a drop-in that wins, proven against the effective configuration, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sshd_drop_in
short_description: A drop-in of sshd that wins, checked against what sshd makes of it
description:
  - Writes C(/etc/ssh/sshd_config.d/00-temper.conf), whose name sorts before cloud-init's, and reloads sshd.
  - Nothing is written before C(sshd -T) on the whole candidate configuration has shown every setting to be in
    effect for the account and address that Ansible comes from, and that account able to log in under it.
  - A change is undone by a timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: Whether the drop-in exists.
    type: str
    choices: [present, absent]
    default: present
  settings:
    description: Keywords of C(sshd_config) and values. A list becomes a line per item, an empty one none.
    type: dict
    default: {}
  settings_if_known:
    description: Like O(settings), for keywords that some OpenSSH do not have; there they are left out.
    type: dict
    default: {}
  algorithms:
    description: Keywords that hold algorithms, best first. Those that this OpenSSH lacks are left out.
    type: dict
    default: {}
  blocks:
    description: Criteria of a C(Match) block, as in C(Group data), and the settings that apply there.
    type: dict
    default: {}
  host_key_types:
    description:
      - Kinds of host keys to offer, of those that sshd has now. Keys of other kinds stay on the disk. RSA
        keys below 3072 bits are not offered. Without any, sshd's other settings decide.
    type: list
    elements: str
    choices: [ed25519, rsa, ecdsa]
    default: []
  minimum_modulus_bits:
    description: Groups of C(/etc/ssh/moduli) below this size are not used; 0 leaves them all.
    type: int
    default: 0
  banner:
    description: Text shown before a login.
    type: str
    default: ""
  user_ca_keys:
    description: Public keys of authorities whose certificates let users in.
    type: list
    elements: str
    default: []
  revoked_keys:
    description: Public keys that let nobody in, wherever else they are listed.
    type: list
    elements: str
    default: []
  overrides:
    description: Like O(settings), and stronger than all of the above. A keyword's case does not matter.
    type: dict
    default: {}
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Allow keys only
  sshd_drop_in:
    settings:
      PasswordAuthentication: false
      AllowGroups: [sudo, users]
    algorithms:
      Ciphers: [aes256-gcm@openssh.com, aes128-gcm@openssh.com]
"""

RETURN = r"""
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
port:
  description: The port to connect to from now on, where sshd leaves the one of this connection.
  returned: always
  type: int
"""

from ansible.module_utils.access.commit_confirm import ARGUMENTS
from ansible.module_utils.access.sshd_settings import SshdSettings
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "settings": {"type": "dict", "default": {}},
            "settings_if_known": {"type": "dict", "default": {}},
            "algorithms": {"type": "dict", "default": {}},
            "blocks": {"type": "dict", "default": {}},
            "host_key_types": {
                "type": "list",
                "elements": "str",
                "choices": ["ed25519", "rsa", "ecdsa"],
                "default": [],
            },
            "minimum_modulus_bits": {"type": "int", "default": 0},
            "banner": {"type": "str", "default": ""},
            # Public keys are no secret, but who pastes a private one must not find it in the node's log.
            "user_ca_keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "revoked_keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "overrides": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    settle_one(module, SshdSettings.from_parameters(module.params))


if __name__ == "__main__":
    main()
