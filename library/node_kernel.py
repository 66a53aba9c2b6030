#!/usr/bin/python
"""Bring a node to another kernel, step by step, with a way back."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_kernel
short_description: One step on a node's way to another kernel, or back from it
description:
  - Installs a kernel beside the one that runs, with the driver's module, and has GRUB boot it once. Whatever
    happens in that one boot, the next one is of the former kernel, until O(step=keep).
  - What the steps have to know of each other is noted in F(/var/lib/temper/kernel-upgrade.json). Where
    nothing is noted, O(step=keep), O(step=leave), O(step=remove) and O(step=release) do nothing.
  - Each step may be repeated. Debian and Ubuntu, with GRUB, only.
options:
  step:
    description:
      - C(look) says which kernel the node would get, or why none; it changes nothing and does not fail.
        C(stage) fetches its packages.
      - C(install) installs it and proves that its module is built for it; the former one stays the default.
      - C(arm) has the new kernel boot once. C(confirm) fails where another kernel than C(side) says runs.
      - C(keep) makes it the default for good.
      - C(leave) chooses the former kernel and says whether the node must boot for that; C(remove) then
        removes the new one. C(release) does that as well, and forgets the upgrade.
    type: str
    choices: [look, stage, install, arm, confirm, keep, leave, remove, release]
    required: true
  wish:
    description: C(newest), or the version of the package of the kernel's image. For C(look) and C(stage).
    type: str
    default: newest
  side:
    description: Of C(confirm), which kernel has to run.
    type: str
    choices: [new, former]
    default: new
  driver:
    description: The version of the driver whose module a kernel needs.
    type: str
    default: ""
  dkms:
    description: The module's name in DKMS. Empty where packages bring it.
    type: str
    default: ""
extends_documentation_fragment: temper_repositories
author: Temper developers
"""

EXAMPLES = r"""
- name: Look which kernel the node would get
  node_kernel:
    step: look
    wish: newest
    driver: "{{ preflight_plan.driver.version }}"
    dkms: "{{ preflight_plan.driver.dkms }}"
  register: found
"""

RETURN = r"""
kernel:
  description: Of C(look) and C(stage), C(running), C(release), C(version), the packages C(install) and
    C(upgrade), C(download_bytes), and a C(warning). C(settled) says that the node has the kernel, C(problem)
    why it gets none.
  returned: always
  type: dict
boots:
  description: Whether the node must boot for the former kernel, after C(leave).
  returned: always
  type: bool
said:
  description: What is left on the node for a reason.
  returned: always
  type: str
refused:
  description: Nothing was changed.
  returned: failure
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import process
from ansible.module_utils.temper.kernel import upgrade
from ansible.module_utils.temper.packaging import repositories
from ansible.module_utils.temper.packaging.packages import PackageError
from ansible.module_utils.temper.settings.base import SettingError

#: Steps for which it is no error that nothing is noted: they may be repeated after the last of them.
ENDING = ("keep", "leave", "remove", "release")
STEPS = ["look", "stage", "install", "arm", "confirm", "keep", "leave", "remove", "release"]


def begin(module: AnsibleModule, driver: upgrade.Driver) -> None:
    """Look, or stage, and end the module."""
    given = (module.params["wish"], driver, module.params["repositories"], module.params["pins"])
    only_look = module.params["step"] == "look" or module.check_mode
    try:
        if not process.which("apt-get"):
            raise upgrade.RefusedError("Temper upgrades kernels with apt only; this node has dnf")
        found = upgrade.look(*given)[1] if only_look else upgrade.stage(*given)
    except upgrade.SettledError as error:
        found = {"settled": str(error)}
    except (SettingError, process.CommandError) as error:
        if not only_look:
            refused = isinstance(error, upgrade.RefusedError)
            module.fail_json(msg=str(error), refused=refused, output=getattr(error, "output", []))
        found = {"problem": str(error)}
    module.exit_json(changed=False, kernel=found, boots=False, said="")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": STEPS, "required": True},
            "wish": {"type": "str", "default": "newest"},
            "side": {"type": "str", "choices": ["new", "former"], "default": "new"},
            "driver": {"type": "str", "default": ""},
            "dkms": {"type": "str", "default": ""},
            **repositories.ARGUMENTS,
        },
        supports_check_mode=True,
    )
    step = module.params["step"]
    driver = upgrade.Driver(module.params["driver"], module.params["dkms"])
    boots, said = False, ""
    try:
        if step in ("look", "stage"):
            begin(module, driver)
        noted = upgrade.noted()
        if noted is None and step not in ENDING:
            module.fail_json(
                msg=f"Expected an upgrade of the kernel under way, found none ({upgrade.RECORD})."
            )
        elif noted and not module.check_mode:
            boots, said = carry_out(step, noted, driver, module.params["side"])
    except PackageError as error:
        module.fail_json(msg=str(error), output=error.output)
    except (SettingError, process.CommandError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=noted is not None and step != "confirm", kernel={}, boots=boots, said=said)


def carry_out(step: str, noted: upgrade.Upgrade, driver: upgrade.Driver, side: str) -> tuple[bool, str]:
    """Return one step; whether the node must boot, and what is left on it."""
    if step == "install":
        upgrade.install(noted, driver)
    elif step == "arm":
        upgrade.arm(noted, driver)
    elif step == "confirm":
        upgrade.confirm(noted, noted.release if side == "new" else noted.former)
    elif step == "keep":
        return False, upgrade.keep(noted)
    elif step == "leave":
        return upgrade.leave(noted), ""
    else:
        said = upgrade.remove(noted)
        if step == "release":
            upgrade.close(noted)
        return False, said
    return False, ""


if __name__ == "__main__":
    main()
