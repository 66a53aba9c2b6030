#!/usr/bin/python3
"""A table of our own that drops what may not reach the node, now and after a reboot, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nftables_table
short_description: An input filter in a table of its own, kept over reboots
description:
  - Renders C(table inet temper), loads it in one transaction, and installs a unit that loads it at boot
    before the network is up. No other table is touched, so the rules of Docker, Kubernetes and libvirt stay.
    Only input is filtered.
  - What the kernel holds is compared with what it should hold, so that a rule changed by hand is put right.
  - A change is undone by a timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: Whether the table, its file and its unit exist.
    type: str
    choices: [present, absent]
    default: present
  management_networks:
    description: Networks and addresses that may use SSH.
    type: list
    elements: str
    default: []
  ssh_ports:
    description:
      - Ports of SSH; without any, those on which sshd listens. The port of this connection always is one.
    type: list
    elements: int
    default: []
  peers:
    description: Addresses and networks of the fleet's nodes. Everything that comes from them is accepted.
    type: list
    elements: str
    default: []
  trusted_interfaces:
    description: Interfaces from which everything is accepted. A name that ends with * stands for several.
    type: list
    elements: str
    default: []
  unknown_peers:
    description: Names of nodes of the fleet whose addresses nobody knows. With any, nothing is changed.
    type: list
    elements: str
    default: []
  rules:
    description: Further things to accept.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What the rule is for; it becomes the rule's comment.
        type: str
        required: true
      protocol:
        description: The protocol.
        type: str
        choices: [tcp, udp]
        default: tcp
      ports:
        description: Ports (9100) and ranges ("6000-6100").
        type: list
        elements: str
        required: true
      sources:
        description: Networks and addresses that it is open to.
        type: list
        elements: str
        required: true
  services:
    description:
      - Services that have a name, and the networks and addresses that they are open to. Known are slurmctld,
        slurmd, slurmdbd, srun, node_exporter and dcgm_exporter.
    type: dict
    default: {}
  ssh_new_per_minute:
    description: New SSH connections that one source may make in a minute; 0 for no limit.
    type: int
    default: 0
  ssh_connections:
    description: SSH connections that one source may have open; 0 for no limit.
    type: int
    default: 0
  new_per_second:
    description: Like O(ssh_new_per_minute), in a second, for rules that are open to everybody.
    type: int
    default: 0
  connections:
    description: Like O(ssh_connections), for rules that are open to everybody.
    type: int
    default: 0
  log_per_minute:
    description: How many dropped packets a minute go to the kernel's log at most; 0 for none.
    type: int
    default: 0
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Allow SSH from the office and Prometheus from its server
  nftables_table:
    management_networks: [192.0.2.0/24, "2001:db8::/48"]
    rules:
      - name: node exporter
        ports: [9100]
        sources: [198.51.100.7]
"""

RETURN = r"""
report:
  description: Ports that listen and are open to nobody, and ports that are open and where nothing listens.
  returned: always
  type: list
  elements: str
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
nftables_missing:
  description: Whether nothing was done because the package nftables is not installed.
  returned: always
  type: bool
"""

from ansible.module_utils.access.commit_confirm import ARGUMENTS
from ansible.module_utils.access.firewall import LIMITS, Firewall
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "management_networks": {"type": "list", "elements": "str", "default": []},
            "ssh_ports": {"type": "list", "elements": "int", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "trusted_interfaces": {"type": "list", "elements": "str", "default": []},
            "unknown_peers": {"type": "list", "elements": "str", "default": []},
            "services": {"type": "dict", "default": {}},
            "rules": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "protocol": {"type": "str", "choices": ["tcp", "udp"], "default": "tcp"},
                    "ports": {"type": "list", "elements": "str", "required": True},
                    "sources": {"type": "list", "elements": "str", "required": True},
                },
            },
            **{name: {"type": "int", "default": 0} for name in LIMITS},
        },
        supports_check_mode=True,
    )
    settle_one(module, Firewall.from_parameters(module.params))


if __name__ == "__main__":
    main()
