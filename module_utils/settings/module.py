"""Carry out one setting as an Ansible module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible.module_utils.process import CommandError
from ansible.module_utils.settings.base import SettingError

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule
    from ansible.module_utils.settings.base import Setting


def settle_one(module: AnsibleModule, setting: Setting) -> None:
    """Make the setting, or in check mode say what it would change; ends the module."""
    try:
        obstacle = setting.obstacle()
        if obstacle:
            module.fail_json(msg=obstacle)
        settled = setting.settled()
        changes = [] if settled else setting.change()
        if not settled and not module.check_mode:
            setting.apply()
        for warning in setting.warnings():
            module.warn(warning)
        result = setting.result()
    except (SettingError, CommandError) as error:
        module.fail_json(msg=str(error), output=getattr(error, "output", []))
    module.exit_json(changed=not settled, diff=[each.as_dict() for each in changes], **result)
