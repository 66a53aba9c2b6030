"""Bring one setting of a node to what is wanted, as an Ansible module of its own does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.process import CommandError
from ansible.module_utils.settings.base import RefusedError, SettingError

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule
    from ansible.module_utils.settings.base import Node, Setting


def settle(node: Node, setting: Setting) -> dict[str, Any]:
    """Read, refuse, compare and make one setting; in check mode, say what would be made.

    Returns `changed`, `diff`, `confirm` (a change waits for its confirmation), and the setting's own result.
    Raises RefusedError before anything is touched; SettingError, CommandError, OSError after that.
    """
    setting.begin(node)
    missing = setting.missing_packages
    result: dict[str, Any] = {"changed": True, "confirm": False, "diff": []}
    if obstacle := setting.obstacle():
        if node.check_mode and missing:  # it may be what an earlier task would have installed
            return {**result, **setting.result()}
        raise RefusedError(obstacle)
    said = set(setting.warnings())
    for warning in sorted(said):
        node.warn(warning)
    result.update(setting.result())
    if missing and not node.check_mode:
        return {**result, "changed": False}
    if setting.settled():
        return {**result, "changed": False}
    result["diff"] = [difference.as_dict() for difference in setting.change()]
    if not node.check_mode:
        result["confirm"] = "confirm" in setting.make()
        result.update(setting.result())
        for warning in set(setting.warnings()) - said:
            node.warn(warning)
    return result


def settle_one(module: AnsibleModule, setting: Setting) -> None:
    """Settle and end the module, with the result or with the reason why not."""
    try:
        module.exit_json(**settle(module, setting))
    except (RefusedError, SettingError, CommandError) as error:
        # What a package manager printed is beside its sentence.
        module.fail_json(msg=str(error), output=getattr(error, "output", []))
    except OSError as error:
        module.fail_json(
            msg=f"A file of this node could not be read or written; mend that and run again: {error}."
        )
