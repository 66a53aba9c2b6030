#!/usr/bin/python
"""The last step of an image: nothing of its builder stays, and a first boot makes what each machine needs."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_seal
short_description: Take out of an image's tree what belongs to one machine, and check that nothing is left
description:
  - Removes SSH host keys, the machine id (its file stays, empty), host name, seeds, secrets, leases, caches
    of packages, logs, and what Temper has recorded of this machine. Records of what was in the tree before
    Temper changed it stay, because a machine needs them to take a change back.
  - Enables a unit that makes SSH host keys at the first boot.
  - Looks again, and fails with the paths where something is left.
  - Refuses a machine that is no container, a tree whose last run was cut off, and one in which something of
    that lies on a file system that is mounted into the tree. Nothing is changed then.
  - After it the tree is to be stopped. What boots it again makes new keys and a new id, which the next seal
    takes away.
options:
  kernel:
    description: Release of the kernel that the image boots; empty for the newest that is installed.
    type: str
    default: ""
author: Temper developers
"""

EXAMPLES = r"""
- name: Seal the image
  image_seal:
"""

RETURN = r"""
removed:
  description: Subject -> paths that were removed or, of the machine id, emptied.
  returned: always
  type: dict
logs:
  description: Files below /var/log that were emptied.
  returned: always
  type: list
kept:
  description: Records of Temper that stay, because machines need them.
  returned: always
  type: list
kernel:
  description: The kernel that the image boots.
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import image
from ansible.module_utils.temper.process import CommandError


def main() -> None:
    module = AnsibleModule(argument_spec={"kernel": {"type": "str", "default": ""}}, supports_check_mode=True)
    root = Path("/")
    kernel = image.kernel_of(root, module.params["kernel"])
    if refusal := image.refusal(root, kernel):
        module.fail_json(msg=f"Nothing was changed: {refusal}.")
    if roles := image.unfinished(root):
        module.fail_json(
            msg=f"Nothing was sealed, because a run was cut off in {', '.join(roles)}: run "
            "playbooks/image.yml to its end."
        )
    try:
        if others := image.foreign(root):
            module.fail_json(
                msg="Nothing was sealed: expected all that a seal takes away in the tree itself, some is on "
                f"{', '.join(others)}, which is mounted into it and may be the builder's own. Boot the tree "
                "without that (systemd-nspawn --bind, --link-journal), and seal again."
            )
        sealed = image.seal(root, check=module.check_mode)
    except (OSError, CommandError) as error:
        module.fail_json(msg=f"The image is not sealed: {error}. Mend that, and run again.")
    if sealed.left:
        module.fail_json(
            msg=f"The image is not sealed: expected nothing of its builder, found {', '.join(sealed.left)}. "
            "Remove that by hand, and run again."
        )
    module.exit_json(
        changed=sealed.changed, removed=sealed.removed, logs=sealed.logs, kept=sealed.kept, kernel=kernel
    )


if __name__ == "__main__":
    main()
