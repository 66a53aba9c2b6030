#!/usr/bin/python
"""Take, renew, look at or give back the lease of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_lease
short_description: Let at most one controller work on a node
description:
  - The lease is kept on the node, in C(/var/lib/temper/lease.json), and outlives the controller and a reboot.
  - It ends when its owner gives it back, or when no heartbeat has come for O(ttl_s). Only then another owner
    gets it.
  - Every lease has a fencing number, which never becomes lower. Whoever comes with a lower one is refused.
  - A lease of a former boot lasts for O(ttl_s) of this boot, whatever the clocks of the day say.
  - The fact C(temper_lease) is what M(node_settings) and M(node_reboot) look at before they change anything.
options:
  state:
    description: Take it or give a sign of life (C(held)), give it back (C(free)), or only look (C(query)).
    type: str
    choices: [held, free, query]
    default: held
  owner:
    description: Who asks, as an operator would know it. Required unless the state is C(query).
    type: str
  fencing:
    description: The number that the owner was given, for a heartbeat and to give it back. Left out to take it
      anew.
    type: int
  attempt:
    description: How often the owner has come to this node anew. A lower one than the holder's is refused;
      what is given back without O(fencing) is that of this attempt, if any.
    type: int
    default: 0
  ttl_s:
    description: For how many seconds the lease lasts after a heartbeat; longer than a reboot takes.
    type: float
    default: 3600
author: Temper developers
"""

EXAMPLES = r"""
- name: Take the node
  node_lease:
    owner: "{{ rollout_owner }}"
  register: lease

- name: Say that we are still at work
  node_lease:
    owner: "{{ rollout_owner }}"
    fencing: "{{ lease.lease.fencing }}"

- name: Give the node back
  node_lease:
    owner: "{{ rollout_owner }}"
    fencing: "{{ lease.lease.fencing }}"
    state: free
"""

RETURN = r"""
lease:
  description: The lease as it is now; C(owner) is empty where nobody holds it. C(fencing) is its number,
    C(since) and C(heartbeat) are in UTC, C(expired) says whether somebody else may take it.
  returned: success
  type: dict
ansible_facts:
  description: C(temper_lease) with C(owner) and C(fencing) of the lease that was taken or renewed.
  returned: success
  type: dict
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import lease


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "free", "query"], "default": "held"},
            "owner": {"type": "str"},
            "fencing": {"type": "int"},
            "attempt": {"type": "int", "default": 0},
            "ttl_s": {"type": "float", "default": 3600},
        },
        required_if=[("state", "held", ["owner"]), ("state", "free", ["owner"])],
        supports_check_mode=True,
    )
    given, check = module.params, module.check_mode
    try:
        before = lease.read(lease.PATH)
        changed = False
        if given["state"] == "held":
            after = lease.acquire(
                given["owner"],
                given["ttl_s"],
                given["fencing"],
                attempt=given["attempt"],
                path=lease.PATH,
                check=check,
            )
            # A heartbeat is none: the same holder goes on.
            changed = (before.owner, before.fencing) != (after.owner, after.fencing)
        elif given["state"] == "free":
            if given["fencing"] is None:
                owner, attempt = given["owner"], given["attempt"]
                changed = lease.release_attempt(owner, attempt, path=lease.PATH, check=check)
            else:
                changed = lease.release(given["owner"], given["fencing"], path=lease.PATH, check=check)
            after = before.given_back if changed else lease.read(lease.PATH)
        else:
            after = before
    except lease.LeaseError as error:
        module.fail_json(msg=str(error))
    expired = bool(after.owner) and after.expired(lease.Now.read())
    # In check mode it was not taken, and nothing could be done under it.
    taken = given["state"] == "held" and not check
    own = {"temper_lease": {"owner": after.owner, "fencing": after.fencing}} if taken else {}
    module.exit_json(changed=changed, lease={**asdict(after), "expired": expired}, ansible_facts=own)


if __name__ == "__main__":
    main()
