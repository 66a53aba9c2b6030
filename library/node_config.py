#!/usr/bin/python3
"""A role's configuration on a node, in one round trip: its files, sysctls and the units that use them."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_config
short_description: Files, sysctls, commands and units of one role, in one call
description:
  - Writes the files that differ, applies kernel parameters whose live value differs, runs the commands whose
    files changed, and brings units to the wanted state.
  - What a change still has to do is noted on the node before the first file is written, and done by the next
    run when this one is cut off in between.
options:
  name:
    description: Name of the configuration, usually that of the role.
    type: str
    required: true
  files:
    description: Files as they should be, owned by root. A file without O(files[].content) is removed.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      content:
        description: The whole content.
        type: str
      mode:
        description: Permissions.
        type: str
        default: "0644"
      encoding:
        description: V(der) writes a certificate that is given as PEM in its binary form.
        type: str
        choices: [text, der]
        default: text
  sysctls:
    description: Kernel parameters and the live values that they must have. One that this kernel does not
      know is reported and left out.
    type: dict
    default: {}
  on_change:
    description: Commands to run when one of their files changed.
    type: list
    elements: dict
    default: []
    suboptions:
      paths:
        description: The files that matter.
        type: list
        elements: path
        required: true
      command:
        description: The command as a list. It is left out where its program is not installed.
        type: list
        elements: str
        required: true
  services:
    description: Names of units that are enabled and running, and that no file of this configuration restarts.
    type: list
    elements: str
    default: []
  units:
    description: Units that are enabled and running.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit.
        type: str
        required: true
      restart_on:
        description: Restart it when one of these files changed.
        type: list
        elements: path
        default: []
  busy_ok:
    description: Whether systemd may read its units anew while containers with a GPU run, which can take their
      GPUs away. The role's variable for it is O(name) with C(_busy_ok). New units need no reading anew.
    type: bool
    default: false
author: Temper developers
"""

EXAMPLES = r"""
- name: Configure NCCL
  node_config:
    name: compute_environment
    files:
      - path: /etc/nccl.conf
        content: "NCCL_SOCKET_IFNAME==eth0\n"
"""

RETURN = r"""
changed_files:
  description: The files that changed.
  returned: always
  type: list
  elements: str
actions:
  description: What was done besides writing files, in words.
  returned: always
  type: list
  elements: str
"""

import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.engines import busy
from ansible.module_utils.files import File, write_all

PENDING = Path("/var/lib/temper/pending")
PROC_SYS = Path("/proc/sys")
REEXECUTE = ["systemctl", "daemon-reexec"]
UNIT_DIRECTORIES = ("/etc/systemd/system/", "/usr/local/lib/systemd/system/")


class Pending:
    """The files of a change that has not been carried through yet, kept on disk while it is."""

    def __init__(self, name: str) -> None:
        self.path = PENDING / f"{name}.json"

    def read(self) -> list[str]:
        """Paths that changed in a run that was cut off."""
        try:
            paths: list[str] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return paths

    def note(self, paths: list[str]) -> None:
        """Remember these paths until `clear`. On disk in one step: an earlier note must not get lost."""
        File(str(self.path), json.dumps(paths)).write()

    def clear(self) -> None:
        """Forget the note: everything was done."""
        self.path.unlink(missing_ok=True)


def as_file(path: str, content: str | None, mode: str, encoding: str) -> File:
    """The file of one entry of `files`."""
    if content is not None and encoding == "der":
        return File(path, ssl.PEM_cert_to_DER_cert(content.strip()), mode)
    return File(path, content, mode)


def live_sysctl(key: str) -> str | None:
    """The live value with single blanks, or None where this kernel has no such parameter."""
    try:
        return " ".join((PROC_SYS / key.replace(".", "/")).read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return None


def write_sysctl(module: AnsibleModule, key: str, value: str) -> None:
    try:
        (PROC_SYS / key.replace(".", "/")).write_text(value, encoding="utf-8")
    except OSError as error:
        module.fail_json(msg=f"The kernel does not take {value!r} for its parameter {key}: {error.strerror}.")


def run(module: AnsibleModule, command: list[str]) -> str:
    """Standard output of a command; one that fails ends the module with its own words."""
    completed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if completed.returncode:
        output = " ".join((completed.stdout + completed.stderr).split())
        module.fail_json(msg=f"`{' '.join(command)}` failed with status {completed.returncode}: {output}")
    return completed.stdout


def apply_sysctls(module: AnsibleModule, sysctls: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Set live values that differ. Returns what was set and which parameters the kernel does not know."""
    done, unknown = [], []
    for key, value in sysctls.items():
        live, wanted = live_sysctl(key), " ".join(str(value).split())
        if live is None:
            unknown.append(key)
        elif live != wanted:
            done.append(f"sysctl {key}: {live} -> {wanted}")
            if not module.check_mode:
                write_sysctl(module, key, wanted)
    return done, unknown


def unit_states(module: AnsibleModule, names: list[str]) -> dict[str, tuple[str, str]]:
    """(enablement, activity) of each unit, asked in one call.

    A unit that does not exist has no enablement.
    """
    if not names:
        return {}
    command = ["systemctl", "show", "--property=UnitFileState,ActiveState", "--", *names]
    output = run(module, command)
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines()) for block in output.strip().split("\n\n")
    ]
    return {
        name: (block["UnitFileState"], block["ActiveState"])
        for name, block in zip(names, blocks)  # noqa: B905 - strict= is not in Python 3.9
    }


def needs_reload(module: AnsibleModule, left_over: list[str], differing: list[str]) -> bool:
    """Whether systemd holds something else of a unit than what these files are going to say.

    A unit that it has not met is read when it is started.
    """
    units = [path for path in {*left_over, *differing} if path.startswith(UNIT_DIRECTORIES)]
    if any(path in left_over or Path(path).exists() for path in units):
        return True
    drop_ins = sorted({Path(path).parent.stem for path in units if Path(path).parent.suffix == ".d"})
    return any(
        any(states) and states != ("", "inactive") for states in unit_states(module, drop_ins).values()
    )


def settle_units(module: AnsibleModule, units: list[dict[str, Any]], changed: set[str]) -> list[str]:
    """Enable, start or restart units; returns what was done."""
    names = [unit["name"] if "." in unit["name"] else f"{unit['name']}.service" for unit in units]
    states = unit_states(module, names)
    done = []
    for name, unit in zip(names, units):  # noqa: B905 - strict= is not in Python 3.9
        enablement, activity = states[name]
        steps = []
        if enablement not in ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated"):
            steps.append("enable")
        if changed & set(unit["restart_on"]):
            steps.append("restart")
        elif activity not in ("active", "reloading"):
            steps.append("start")
        for step in steps:
            done.append(f"{step} {name}")
            if not module.check_mode:
                # Enabling would have systemd read all units anew, which can cost containers their GPUs.
                run(module, ["systemctl", step, *(["--no-reload"] if step == "enable" else []), name])
    return done


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "mode": {"type": "str", "default": "0644"},
                    "encoding": {"type": "str", "choices": ["text", "der"], "default": "text"},
                },
            },
            "sysctls": {"type": "dict", "default": {}},
            "on_change": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "paths": {"type": "list", "elements": "path", "required": True},
                    "command": {"type": "list", "elements": "str", "required": True},
                },
            },
            "services": {"type": "list", "elements": "str", "default": []},
            "busy_ok": {"type": "bool", "default": False},
            "units": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "restart_on": {"type": "list", "elements": "path", "default": []},
                },
            },
        },
        supports_check_mode=True,
    )
    files = [as_file(**file) for file in module.params["files"]]
    pending = Pending(module.params["name"])
    left_over = pending.read()
    differing = [file.path for file in files if file.differs()]
    reloads = needs_reload(module, left_over, differing)
    due = [
        reaction["command"]
        for reaction in module.params["on_change"]
        if {*differing, *left_over} & set(reaction["paths"]) and shutil.which(reaction["command"][0])
    ]
    if (reloads or REEXECUTE in due) and not module.params["busy_ok"]:
        busy.refuse_to_reload(module, f"{module.params['name']}_busy_ok")
    if differing and not module.check_mode:
        pending.note(sorted({*differing, *left_over}))
    result = write_all(files, check_mode=module.check_mode)
    changed = {*result.changed_files, *left_over}

    actions, unknown = apply_sysctls(module, module.params["sysctls"])
    if reloads:
        actions.append("systemctl daemon-reload")
        if not module.check_mode:
            run(module, ["systemctl", "daemon-reload"])
    for command in due:
        actions.append(" ".join(command))
        if not module.check_mode:
            run(module, command)
    services = [{"name": name, "restart_on": []} for name in module.params["services"]]
    actions += settle_units(module, services + module.params["units"], changed)
    if not module.check_mode:
        pending.clear()
    for key in unknown:
        module.warn(f"This node's kernel has no parameter {key}; it is left out.")
    result.changed = result.changed or bool(actions)
    module.exit_json(**result.as_dict(), actions=actions)


if __name__ == "__main__":
    main()
