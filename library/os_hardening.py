#!/usr/bin/python3
"""The hardening of a node's operating system, made, proven and taken back in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: os_hardening
short_description: Make many small settings of a node, and be able to take each of them back
description:
  - Makes the settings that differ. What each was before is recorded on the node first, so a setting that is
    no longer in the list returns to what it was, and an empty list restores the node.
  - Where packages are missing they are named, and nothing is done but to write their units' conditions.
  - When the account that Ansible came through loses its sudo rights by a change, the change is undone.
options:
  settings:
    description: What is wanted, each as its class in module_utils/reversible_*.py takes it.
    type: list
    elements: dict
    required: true
    suboptions:
      control:
        description: The control that asks for it.
        type: str
        required: true
      machine:
        description: The kind of processor that alone needs it, as C(uname -m) says.
        type: str
      kind:
        description: One of file, keyword, pam, access, sysctl, mount, unit.
        type: str
        required: true
      spec:
        description: The setting itself.
        type: dict
        required: true
  packages:
    description: Packages that the settings need. Of a list one is enough; else its first is missing.
    type: list
    elements: raw
    default: []
  on_change:
    description: Commands for what only reads its files anew when told.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Beginning of the paths that matter.
        type: str
        required: true
      unit:
        description: The command is needed only while this unit runs.
        type: str
      command:
        description: The command as a list.
        type: list
        elements: str
        required: true
  busy_ok:
    description: Whether systemd may read its units anew while containers with a GPU run, which can lose it.
    type: bool
    default: false
  sysctl_file:
    description: Name of the file with the kernel parameters. What files that sort after it set is left alone.
    type: str
    required: true
author: Temper developers
"""

EXAMPLES = r"""
- name: Harden the operating system
  os_hardening:
    sysctl_file: 90-temper-hardening.conf
    settings:
      - control: ptrace-scope
        kind: sysctl
        spec: {name: kernel.yama.ptrace_scope, value: "1"}
"""

RETURN = r"""
missing_packages:
  description: Packages to install first; the settings were not made where there are any.
  returned: always
  type: list
  elements: str
controls:
  description: The controls whose settings were made.
  returned: always
  type: list
  elements: str
actions:
  description: What was done, in words.
  returned: always
  type: list
  elements: str
overruled:
  description: Kernel parameter -> file that sorts after ours and sets it; these were left alone.
  returned: always
  type: dict
unavailable:
  description: Kernel parameters that this kernel does not have.
  returned: always
  type: list
  elements: str
"""

import platform
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.engines import busy
from ansible.module_utils.packaging import packages as dpkg
from ansible.module_utils.reversible import Record, Setting, SettingError, available, run
from ansible.module_utils.reversible_files import Access, Keyword, PamProfile, WholeFile, accesses
from ansible.module_utils.reversible_system import (
    MountOptions,
    Sysctl,
    Unit,
    of_temper,
    overruled_by,
    overruling,
    sysctls,
    unit_states,
)
from ansible.module_utils.ssh_login import ssh_login

RECORD = Path("/var/lib/temper/os_hardening.json")
UNIT_FILES = "file:/etc/systemd/system/"


# In the order in which they are made; they are taken back in the opposite one.
KINDS: dict[str, Any] = {
    "file": WholeFile,
    "keyword": Keyword,
    "pam": PamProfile,
    "access": Access,
    "sysctl": Sysctl,
    "mount": MountOptions,
    "unit": Unit,
}
PATTERNS: dict[str, Any] = {"access": accesses, "sysctl": sysctls}


def build(kind: str, spec: dict[str, Any]) -> list[Setting]:
    """The settings that one entry of the wanted list stands for; a pattern stands for several.

    Raises:
        SettingError: there is no such kind.
    """
    if kind not in KINDS:
        raise SettingError(f"Expected a setting of the kinds {', '.join(KINDS)}, found {kind!r}.")
    return list(PATTERNS[kind](**spec)) if kind in PATTERNS else [KINDS[kind](**spec)]


def rebuild(key: str, spec: dict[str, Any]) -> Setting:
    """The one setting of a record's entry, to restore it."""
    setting: Setting = KINDS[key.partition(":")[0]](**spec)
    return setting


class Hardening:
    """The wanted settings beside what is on the node."""

    def __init__(self, parameters: dict[str, Any], record: Record) -> None:
        self.record = record
        self.reloaded = False
        self.on_change: list[dict[str, Any]] = parameters["on_change"]
        self.wanted: dict[str, Setting] = {}
        self.controls: dict[str, str] = {}
        self.overruled: dict[str, str] = {}
        # What others than Temper have set, and weaker or just otherwise.
        self.given_away: dict[str, str] = {}
        later = overruling(parameters["sysctl_file"])
        order = {kind: number for number, kind in enumerate(KINDS)}
        for entry in sorted(parameters["settings"], key=lambda entry: order.get(entry["kind"], 0)):
            if entry["machine"] not in (None, platform.machine()):
                continue
            for setting in build(entry["kind"], entry["spec"]):
                if isinstance(setting, Sysctl) and (file := overruled_by(setting.name, later)):
                    self.overruled[setting.name] = file
                    if not setting.settled() and not of_temper(file):
                        self.given_away[setting.name] = f"{setting.name} ({setting.read()} in {file})"
                    continue
                self.wanted[setting.key] = setting
                self.controls[setting.key] = entry["control"]
        units = [setting for setting in self.wanted.values() if isinstance(setting, Unit)]
        states = unit_states([unit.name for unit in units])
        for unit in units:
            unit.know(states[unit.name])
        self.unsettled = [setting for setting in self.wanted.values() if not setting.settled()]
        # In the opposite order of their making.
        former = [
            rebuild(key, original["spec"])
            for key, original in reversed(record.originals.items())
            if key not in self.wanted
        ]
        # Another file's by now, or of an interface that is gone: neither to make nor to take back.
        self.given_up = [
            s for s in former if isinstance(s, Sysctl) and (overruled_by(s.name, later) or s.read() is None)
        ]
        self.unwanted = [setting for setting in former if setting not in self.given_up]

    @property
    def unavailable(self) -> list[str]:
        """Kernel parameters that this kernel does not have."""
        return [s.name for s in self.wanted.values() if isinstance(s, Sysctl) and s.read() is None]

    def obstacles(self) -> list[str]:
        """Sentences about settings that cannot be made on this node."""
        return [
            f"{obstacle}, or waive the control {self.controls[setting.key]}"
            for setting in self.unsettled
            if (obstacle := setting.obstacle())
        ]

    @property
    def reloads_systemd(self) -> bool:
        """Whether systemd will read all its units anew: for a unit's file, or to switch a unit on or off."""
        keys = [*self.record.pending, *(s.key for s in self.unsettled), *(s.key for s in self.unwanted)]
        return any(key.startswith((UNIT_FILES, "unit:")) for key in keys)

    def make(self) -> None:
        """Make what differs and take back what nobody wants any more.

        Raises:
            SettingError: a setting could not be made, or it took sudo from the account that we came through;
                then what this run changed is undone.
        """
        before = {setting.key: setting.read() for setting in self.unsettled}
        for setting in self.unsettled:
            entry = {"spec": setting.spec, "state": before[setting.key]}
            self.record.originals.setdefault(setting.key, entry)
        changed = {*(s.key for s in self.unsettled), *(s.key for s in self.unwanted)}
        self.record.pending = sorted({*self.record.pending, *changed})
        self.record.save()

        account = administrator()
        # Once more for PAM: a profile that was taken out counts as new when the next one is, and comes back.
        for setting in [*self.unwanted, *(s for s in self.unwanted if isinstance(s, PamProfile))]:
            setting.restore(self.record.originals[setting.key]["state"])
        made: list[Setting] = []
        try:
            for setting in self.unsettled:
                if isinstance(setting, Unit):
                    self.reload_units()
                made.append(setting)
                try:
                    setting.apply()
                except (SettingError, OSError) as error:
                    raise SettingError(
                        f"{self.controls[setting.key]}: {told(error, setting.key)} What this run had made "
                        "was undone: mend it, or waive the control."
                    ) from error
            if account and not may_sudo(account):
                raise SettingError(
                    f"After these changes {account} could no longer become root, so they were undone. "
                    "Look at `sudo -l` and at the journal of the node, and run again."
                )
        except (SettingError, OSError) as error:
            sentence = told(error, "After the settings were made")
            raise SettingError(" ".join([sentence, *self.undo(made, before)])) from error
        self.reload_units()
        self.react()
        for setting in [*self.unwanted, *self.given_up]:
            del self.record.originals[setting.key]
        self.record.pending = []
        self.record.save()

    def undo(self, made: list[Setting], before: dict[str, Any]) -> list[str]:
        """Return to `before`, as far as that is possible; returns sentences about what is not."""
        complaints = []
        for setting in reversed(made):
            try:
                setting.restore(before[setting.key])
            except (SettingError, OSError) as error:
                if not is_back(setting, before[setting.key]):
                    complaints.append(f"{setting.key} could not be undone: {error}")
        if any(setting.key.startswith(UNIT_FILES) for setting in made):
            run(["systemctl", "daemon-reload"], check=False)
        return complaints

    def reload_units(self) -> None:
        """Let systemd read unit files that have changed, once, before the first unit is started."""
        if not self.reloaded and any(key.startswith(UNIT_FILES) for key in self.record.pending):
            run(["systemctl", "daemon-reload"])
        self.reloaded = True

    def prepare(self) -> list[str]:
        """What has to be done before missing packages come; returns the files written.

        What is not there yet must be known to `absent`, and conditions of units must keep their services from
        starting where they cannot run.
        """
        for setting in self.wanted.values():
            if isinstance(setting, (Unit, PamProfile, WholeFile)) and not setting.read():
                entry = {"spec": setting.spec, "state": setting.read()}
                self.record.originals.setdefault(setting.key, entry)
        conditions = [s for s in self.unsettled if s.key.startswith(UNIT_FILES) and s.key.endswith(".conf")]
        self.record.save()
        for setting in conditions:
            setting.apply()
        return [setting.key for setting in conditions]

    def reactions(self) -> list[list[str]]:
        """The commands that are due for what has changed, now or in a run that was cut off."""
        keys = [*self.record.pending, *(s.key for s in self.unsettled), *(s.key for s in self.unwanted)]
        paths = [key.split(":")[1] for key in keys]
        due = [rule for rule in self.on_change if any(path.startswith(rule["path"]) for path in paths)]
        states = unit_states([rule["unit"] for rule in due if rule["unit"]])
        running = {name for name, state in states.items() if state["ActiveState"] == "active"}
        return [rule["command"] for rule in due if not rule["unit"] or rule["unit"] in running]

    def react(self) -> None:
        """Tell those who read their files only when told."""
        for command in self.reactions():
            run(command)

    def actions(self) -> list[str]:
        """What there is to do, in words."""
        made = [f"{setting.key}: {' -> '.join(short(setting))}" for setting in self.unsettled]
        taken_back = [f"{setting.key}: restored" for setting in self.unwanted]
        return taken_back + made + [" ".join(command) for command in self.reactions()]

    def diff(self) -> list[dict[str, str]]:
        """Before and after of all settings, in the form that Ansible's --diff prints."""
        diffs = []
        for setting in self.unsettled:
            before, after = setting.change()
            header = f"{self.controls[setting.key]} {setting.key}"
            diffs.append(
                {
                    "before_header": header,
                    "after_header": header,
                    "before": f"{before.rstrip()}\n" if before else "",
                    "after": f"{after.rstrip()}\n",
                }
            )
        for setting in self.unwanted:
            header = f"restored {setting.key}"
            diffs.append({"before_header": header, "after_header": header, "before": "set\n", "after": ""})
        return diffs


def told(error: SettingError | OSError, subject: str) -> str:
    """An error as a sentence: of an OSError, what could not be done."""
    return str(error) if isinstance(error, SettingError) else f"{subject}: {error}."


def is_back(setting: Setting, state: Any) -> bool:
    """Whether a setting is in this state, as one is that could not be made in the first place."""
    try:
        return bool(setting.read() == state)
    except (SettingError, OSError):
        return False


def short(setting: Setting) -> tuple[str, str]:
    """Before and after, a line each; of a file only whether there was one."""
    before, after = setting.change()
    if "\n" in after:
        return ("other content" if before else "absent"), "written"
    return before or "unset", after


def administrator() -> str | None:
    """The account that this run came through, if it may become root without a password."""
    login = ssh_login()
    if login is None or login.account == "root":
        return None
    return login.account if may_sudo(login.account) else None


def may_sudo(account: str) -> bool:
    """Whether an account can become root without a password, asked of sudo and PAM themselves."""
    return not run(["runuser", "-u", account, "--", "sudo", "-n", "true"], check=False).returncode


def missing(wanted: list[Any]) -> list[str]:
    """Packages that are not installed; of alternatives the first, where there is none of them."""
    known = dpkg.query() if wanted else {}
    lacking = []
    for entry in wanted:
        names = [entry] if isinstance(entry, str) else entry
        if not any(name in known and known[name].installed for name in names):
            lacking.append(names[0])
    return lacking


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "control": {"type": "str", "required": True},
                    "machine": {"type": "str"},
                    "kind": {"type": "str", "required": True},
                    "spec": {"type": "dict", "required": True},
                },
            },
            "packages": {"type": "list", "elements": "raw", "default": []},
            "on_change": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "str", "required": True},
                    "unit": {"type": "str"},
                    "command": {"type": "list", "elements": "str", "required": True},
                },
            },
            "busy_ok": {"type": "bool", "default": False},
            "sysctl_file": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    if not available("dpkg-query"):
        module.fail_json(
            msg="The controls of os_hardening are made for Debian and its kin, and this node has no dpkg. "
            "Leave the role out here: --skip-tags os_hardening."
        )
    try:
        lacking = missing(module.params["packages"])
        hardening = Hardening(module.params, Record(RECORD))
        if obstacles := hardening.obstacles():
            module.fail_json(msg=f"Nothing was changed: {'; '.join(obstacles)}.")
        # A package's installation has systemd read its units, too.
        if (lacking or hardening.reloads_systemd) and not module.params["busy_ok"]:
            busy.refuse_to_reload(module, "os_hardening_busy_ok")
        if hardening.given_away:
            module.warn(
                f"Files that sort after {module.params['sysctl_file']} set other values, which stay: "
                f"{', '.join(hardening.given_away.values())}."
            )
        result = {
            "missing_packages": lacking,
            "controls": sorted({hardening.controls[setting.key] for setting in hardening.unsettled}),
            "actions": hardening.actions(),
            "overruled": hardening.overruled,
            "unavailable": hardening.unavailable,
            "changed": bool(hardening.unsettled or hardening.unwanted or hardening.record.pending),
            "diff": hardening.diff(),
        }
        if lacking and not module.check_mode:
            prepared = hardening.prepare()
            module.exit_json(**result | {"changed": bool(prepared), "diff": [], "actions": prepared})
        if result["changed"] and not module.check_mode:
            hardening.make()
    except (SettingError, OSError) as error:
        subject = "A file of this node could not be read or written; mend that and run again"
        module.fail_json(msg=told(error, subject))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
