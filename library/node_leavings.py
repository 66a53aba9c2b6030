#!/usr/bin/python
"""Remove what Temper has on a node beside its settings, once these are taken back."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_leavings
short_description: Remove programs, results and empty folders of Temper from a node
description:
  - Comes last, after all roles that are to be taken back. Removes the payload and its Python environment,
    results of validation, notes of who worked on the node, and folders that are empty then.
  - What a role that stays needs, and every record of the time before Temper, stays. So does the lease's
    number, as long as anything else stays, or its last holder has not given the node back.
  - Refuses while a change of a way into the node is not confirmed, and while somebody holds the node's lease.
options:
  before:
    description: Remove nothing. Refuse where a run must not begin, because somebody holds the node's lease,
      or because the account that Ansible uses would lose its keys.
    type: bool
    default: false
  only:
    description: The roles that the run is of. Only what is theirs goes. An empty list stands for all.
    type: list
    elements: str
    default: []
  keeps:
    description: The tags that the run leaves out. With O(before), an account that stays forbids nothing.
    type: list
    elements: str
    default: []
author: Temper developers
"""

EXAMPLES = r"""
- name: Remove what is left
  node_leavings:
"""

RETURN = r"""
removed:
  description: What was removed, or would be.
  returned: success
  type: list
  elements: str
stays:
  description: Sentences about what stays, and why.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.lease import LeaseError, working
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.settings.leavings import Leavings, text


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "before": {"type": "bool", "default": False},
            "only": {"type": "list", "elements": "str", "default": []},
            "keeps": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    leavings = Leavings(only=module.params["only"])
    try:
        if module.params["before"]:
            leavings.check_before(module.params["keeps"])
            module.exit_json(changed=False)
        with working(check=module.check_mode):
            # In check mode, a run that was cut off may have left a change that a real run would undo.
            if not module.check_mode:
                leavings.check()
            paths = [*leavings.going(), *leavings.empty()]
            # In check mode, roles have taken nothing back.
            stays = [] if module.check_mode else leavings.stays()
            if paths and not module.check_mode:
                leavings.remove()
    except (RefusedError, RecordError, LeaseError) as error:
        module.fail_json(msg=str(error), refused=True)
    except (OSError, UnicodeDecodeError, CommandError) as error:
        module.fail_json(
            msg=f"What Temper has left could not be read or removed: {error}; mend that, run again."
        )
    for sentence in stays:
        module.warn(sentence)
    difference = {"before_header": "left by Temper", "after_header": "left by Temper"}
    module.exit_json(
        changed=bool(paths),
        removed=[str(path) for path in paths],
        stays=stays,
        diff={**difference, "before": text(paths), "after": ""} if paths else {},
    )


if __name__ == "__main__":
    main()
