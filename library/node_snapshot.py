#!/usr/bin/python
"""Take, check or remove a snapshot of a node's file system."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_snapshot
short_description: Take a read-only snapshot of a file system before it is changed, check it, and remove it
description:
  - Finds the subvolume, the logical volume or the dataset from the mount point, and refuses where it is of
    another kind.
  - A snapshot that is there is found, and not taken again. One without Temper's mark is neither used nor
    removed.
  - Refuses where C(/usr) or the packages' database would be outside of the snapshot, because it would be no
    way back then, where room is missing, and where an LVM snapshot has run full, which makes it void.
  - Nothing is ever restored.
options:
  state:
    description: Take it where it is missing (C(present)), only check it (C(checked)), or remove it
      (C(absent)).
    type: str
    choices: [present, checked, absent]
    default: present
  kind:
    description: What the file system is expected to be.
    type: str
    choices: [btrfs, lvm, zfs]
    required: true
  name:
    description: Its name, which begins with C(temper-).
    type: str
    required: true
  mount:
    description: Where the file system is mounted.
    type: path
    default: /
  room_gib:
    description: How much may change while the snapshot exists. So much has to be free; an LVM snapshot that
      is not thin gets it as its size.
    type: float
    default: 20
  max_age_s:
    description: How old it may be. An older one is replaced by C(present) and refused by C(checked).
    type: float
author: Temper developers
"""

EXAMPLES = r"""
- name: Take a snapshot
  node_snapshot:
    kind: btrfs
    name: temper-7

- name: Remove it
  node_snapshot:
    kind: btrfs
    name: temper-7
    state: absent
"""

RETURN = r"""
place:
  description: What btrfs, LVM or ZFS call the snapshot.
  returned: when there is one
  type: str
taken:
  description: When it was taken, in UTC.
  returned: when there is one
  type: str
outside:
  description: Mount points below that are not in it; C(/boot), often.
  returned: when there is one
  type: list
sentence:
  description: The same for people.
  returned: when there is one
  type: str
refused:
  description: Nothing was changed.
  returned: failure
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import snapshots


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "checked", "absent"], "default": "present"},
            "kind": {"type": "str", "choices": ["btrfs", "lvm", "zfs"], "required": True},
            "name": {"type": "str", "required": True},
            "mount": {"type": "path", "default": "/"},
            "room_gib": {"type": "float", "default": 20},
            "max_age_s": {"type": "float"},
        },
        supports_check_mode=True,
    )
    given, check = module.params, module.check_mode
    name, changed = given["name"], False
    try:
        root = snapshots.Root(given["kind"], given["mount"])
        if given["state"] == "absent":
            module.exit_json(changed=snapshots.remove(root, name, check=check))
        if given["state"] == "present":
            room_bytes = int(given["room_gib"] * snapshots.GIB)
            found, changed = snapshots.take(root, name, room_bytes, given["max_age_s"], check=check)
        else:
            found = snapshots.verify(root, name, given["max_age_s"])
        if found:
            outside = root.outside()
            module.exit_json(
                changed=changed,
                place=found.place,
                taken=found.taken,
                outside=outside,
                sentence=snapshots.sentence(found, outside),
            )
        module.exit_json(changed=changed)
    except snapshots.OtherKindError as error:
        if given["state"] == "absent":
            module.exit_json(changed=False)
        module.fail_json(msg=str(error), refused=True)
    except snapshots.SnapshotError as error:
        module.fail_json(msg=str(error), refused=True)


if __name__ == "__main__":
    main()
