#!/usr/bin/python3
"""NVIDIA's runtime and CDI for all container engines of a node, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: container_engine
short_description: Give the container engines of a node its GPUs
description:
  - Registers NVIDIA's runtime with Docker, containerd and CRI-O, switches CDI on where the engine reads the
    toolkit's specification, and has that specification written for the loaded driver.
  - Settings of others are kept, and a conflict with them is refused. Everything is checked for all engines
    before the first file is written. An engine that refuses its new configuration gets the former one back.
  - An engine is restarted only when its configuration changed, and not under containers with a GPU.
options:
  state:
    description: V(absent) takes out what this module has put in, and nothing else.
    type: str
    choices: [present, absent]
    default: present
  engines:
    description: The engines. Empty for those that are installed.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  exclude:
    description: Engines to leave as they are, whether they are installed, named or neither.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  default_runtime:
    description: Whether containers that name no runtime get NVIDIA's.
    type: bool
    default: false
  cdi:
    description: Whether CDI is used where the engine is new enough.
    type: bool
    default: true
  shm_size:
    description: Docker's size of /dev/shm for containers that name none. Empty leaves it alone.
    type: str
    default: ""
  ulimits:
    description: Limits of containers, in bytes or counts; V(-1) is no limit.
    type: dict
    default: {}
  toolkit_expected:
    description: Whether a missing container toolkit is an error. If not, engines are left as they are.
    type: bool
    default: true
  busy_ok:
    description: Restart an engine although containers that this disturbs are running.
    type: bool
    default: false
author: Temper developers
"""

EXAMPLES = r"""
- name: Give the engines the GPUs
  container_engine:
    shm_size: 1G
    ulimits: {memlock: -1, stack: 67108864}
"""

RETURN = r"""
engines:
  description: The engines that were looked at, with their versions, and whether they use CDI.
  returned: success
  type: dict
changed_files:
  description: The files that changed.
  returned: success
  type: list
  elements: str
actions:
  description: What was done besides writing files, in words.
  returned: success
  type: list
  elements: str
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.engines import busy, cdi
from ansible.module_utils.engines.base import (
    RUNTIME,
    Engine,
    EngineError,
    Plan,
    RefusedError,
    Unit,
    Wish,
    read_units,
    run,
    which,
    words,
)
from ansible.module_utils.engines.containerd import Containerd, serves_docker_alone
from ansible.module_utils.engines.crio import Crio
from ansible.module_utils.engines.daemon_json import size_bytes
from ansible.module_utils.engines.docker import Docker
from ansible.module_utils.engines.podman import Podman
from ansible.module_utils.files import File

STATE = Path("/var/lib/temper/container_engines.json")
ENGINES: tuple[Engine, ...] = (Docker(), Containerd(), Crio(), Podman())


def select(named: list[str], excluded: list[str], *, check_mode: bool) -> list[Engine]:
    """The engines to look at. One that is named has to be there, but in check mode, which installs none."""
    ours = [engine for engine in ENGINES if engine.name not in excluded]
    installed = [engine for engine in ours if which(engine.program)]
    if not named:
        return [engine for engine in installed if engine.name != "containerd" or not serves_docker_alone()]
    for engine in ours:
        if engine.name in named and engine not in installed and not check_mode:
            raise RefusedError(
                f"container_engines_manage names {engine.name}, but there is no program {engine.program} on "
                "this node: install the engine (container_engines_install), or take it out of the list."
            )
    return [engine for engine in installed if engine.name in named]


def refuse_wish(wish: Wish) -> None:
    """Values that no engine would take."""
    if wish.shm_size and not size_bytes(wish.shm_size):
        raise RefusedError(
            f"container_engines_shm_size: expected a size such as 1G or 512M, found {wish.shm_size!r}."
        )
    for name, limit in wish.ulimits.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1:
            raise RefusedError(
                f"container_engines_ulimits: expected a whole number from -1 (no limit) on for {name}, "
                f"found {limit!r}."
            )


def disturbed(plans: list[Plan]) -> str:
    """Whom the planned restarts would disturb, in words; empty where nobody."""
    restarts = [plan for plan in plans if plan.action == "restart" or plan.daemon_reload]
    if not restarts:
        return ""
    if containers := busy.containers_with_gpus():
        return containers
    for plan in restarts:
        if plan.engine == "docker":
            count, survive = Docker().running_containers(plan.unit)
            if count and not survive:
                return f"a restart of Docker would end its {count} running containers (live-restore is off)"
    return ""


class Node:
    """Carries plans out, and takes back what an engine refuses."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def write(self, contents: dict[str, str | None]) -> None:
        """Write files with the mode they have; content None removes one."""
        for path, content in contents.items():
            mode = f"{Path(path).stat().st_mode & 0o7777:04o}" if Path(path).exists() else "0644"
            File(path, content, mode).write()

    def carry_out(self, engine: Engine, wish: Wish, plan: Plan) -> None:
        """Write, restart, read back. Raises EngineError after everything is as it was."""
        former = {path: _read(path) for path in plan.files}
        self.write(plan.files)
        try:
            self._settle(plan)
            problem = engine.disagreement(wish, plan) if plan.unit.active else ""
            if problem:
                raise EngineError(problem)
        except EngineError as error:
            self.write(former)
            note = "its former configuration is back"
            try:
                if plan.files:
                    self._settle(plan)
            except EngineError as again:
                note = f"its former configuration is back, but {again}"
            raise EngineError(
                f"{plan.engine} does not work with its new configuration: {error}; {note}."
            ) from error

    def _settle(self, plan: Plan) -> None:
        steps = [["systemctl", "daemon-reload"]] if plan.daemon_reload else []
        if plan.unit.active and plan.action:
            # Else systemd counts our attempts with those that failed before.
            steps += [["systemctl", "reset-failed", plan.unit.name]] if plan.action == "restart" else []
            steps.append(["systemctl", plan.action, plan.unit.name])
        for command in steps:
            completed = run(command)
            if completed.returncode:
                lines = run(
                    ["journalctl", "--no-pager", "--output=cat", "--lines=5", f"--unit={plan.unit.name}"]
                ).stdout
                raise EngineError(
                    f"`{' '.join(command)}` failed: {words(completed)} {' '.join(lines.split())}"
                )
            if command[1] != "reset-failed":
                self.actions.append(" ".join(command[1:]))


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def load_state() -> dict[str, Any]:
    """What earlier runs have put in, and what one that was cut off has left to do."""
    try:
        state: dict[str, Any] = json.loads(STATE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return state


def store_state(state: dict[str, Any]) -> None:
    """Replace the state file; an empty state needs none."""
    kept = {key: value for key, value in state.items() if value}
    file = File(str(STATE), json.dumps(kept, indent=1) + "\n" if kept else None, "0600")
    if file.differs():
        file.write()


def make_plans(engines: list[Engine], wish: Wish, state: dict[str, Any]) -> list[Plan]:
    """The plans of all engines, or every reason to refuse. Raises RefusedError."""
    units = read_units([engine.unit for engine in engines if engine.unit])
    plans, problems = [], []
    for engine in engines:
        unit = units.get(engine.unit, Unit("", exists=False, active=False, command=()))
        try:
            plan = engine.plan(wish, unit, state.get("records", {}).get(engine.name, {}))
            if engine.name in state.get("pending", []):
                plan.action, plan.daemon_reload = "restart", isinstance(engine, Containerd)
            elif unit.active and not plan.action and engine.disagreement(wish, plan):
                plan.action = "restart"
        except (RefusedError, EngineError) as error:
            problems.append(str(error))
            continue
        if not unit.active:
            plan.action = ""
        plans.append(plan)
    if problems:
        raise RefusedError(" ".join(problems))
    return plans


def settle(module: AnsibleModule) -> dict[str, Any]:
    """All of it. Raises RefusedError, EngineError."""
    values = module.params
    wish = Wish(
        present=values["state"] == "present",
        default_runtime=values["default_runtime"],
        cdi=values["cdi"],
        shm_size=values["shm_size"],
        ulimits={name: limit for name, limit in values["ulimits"].items() if limit is not None},
    )
    refuse_wish(wish)
    engines = select(values["engines"], values["exclude"], check_mode=module.check_mode)
    if not engines:
        return {"changed": False, "engines": {}, "changed_files": [], "actions": []}
    toolkit = Path(RUNTIME).exists()
    if wish.present and not toolkit and not values["toolkit_expected"]:
        module.warn(
            f"{', '.join(engine.name for engine in engines)}: left without GPUs, because the plan has no "
            "container toolkit (nvidia_stack_distro_container_toolkit: false)."
        )
        return {"changed": False, "engines": {}, "changed_files": [], "actions": []}
    if wish.present and not toolkit and not module.check_mode:
        raise RefusedError(
            f"{RUNTIME} is missing: the container toolkit comes with the stack, so run "
            "playbooks/provision.yml, which installs it first."
        )
    state = load_state()
    plans = make_plans(engines, wish, state)
    specification = cdi.CdiPlan()
    if wish.present and toolkit and any(plan.cdi for plan in plans):
        specification = cdi.plan()
    due = [plan for plan in plans if plan.due]
    reason = disturbed(due)
    if reason and not values["busy_ok"] and not module.check_mode:
        raise RefusedError(
            f"{', '.join(plan.engine for plan in due)} must be restarted for a changed configuration, and "
            f"{reason}. Nothing was changed. Drain the node, or set container_engines_busy_ok: true."
        )
    for plan in plans:
        for warning in plan.warnings:
            module.warn(warning)
    node = Node()
    result = {
        "changed": bool(due or specification.actions),
        "engines": {plan.engine: {"version": plan.version, "cdi": plan.cdi} for plan in plans},
        "changed_files": sorted(path for plan in due for path in plan.files),
        "diff": [difference(path, content) for plan in due for path, content in plan.files.items()],
    }
    if module.check_mode:
        planned = [f"{plan.action} {plan.unit.name}" for plan in due if plan.action]
        return {**result, "actions": planned + specification.actions}
    carry_out_all(node, engines, wish, plans, state)
    if specification.actions:
        cdi.apply(specification)
        state["cdi_units"] = sorted({*state.get("cdi_units", []), *specification.enable})
    if not wish.present and state.get("cdi_units") and not state.get("records"):
        cdi.switch_off(state.pop("cdi_units"))
        result["changed"] = True
    store_state(state)
    return {**result, "actions": node.actions + specification.actions}


def carry_out_all(
    node: Node, engines: list[Engine], wish: Wish, plans: list[Plan], state: dict[str, Any]
) -> None:
    """Engine by engine. What a cut-off run leaves to do is in the state before the first file is written."""
    records: dict[str, Any] = state.setdefault("records", {})
    by_name = {engine.name: engine for engine in engines}
    state["pending"] = [plan.engine for plan in plans if plan.due]
    for plan in plans:
        # A record is the next run's only way to tell ours from somebody else's, so it is stored first.
        before = records.get(plan.engine, {})
        if wish.present:
            records[plan.engine] = {**plan.record, "managed": True}
        else:
            records.pop(plan.engine, None)
        if not plan.due:
            continue
        store_state({**state, "records": {plan.engine: before, **records}})
        try:
            node.carry_out(by_name[plan.engine], wish, plan)
        except EngineError:
            records[plan.engine] = before
            store_state({**state, "pending": [p for p in state["pending"] if p != plan.engine]})
            raise
        state["pending"].remove(plan.engine)


def difference(path: str, content: str | None) -> dict[str, str]:
    """Before and after, for --diff."""
    return {"before_header": path, "after_header": path, "before": _read(path) or "", "after": content or ""}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "engines": {
                "type": "list",
                "elements": "str",
                "choices": [engine.name for engine in ENGINES],
                "default": [],
            },
            "exclude": {
                "type": "list",
                "elements": "str",
                "choices": [engine.name for engine in ENGINES],
                "default": [],
            },
            "default_runtime": {"type": "bool", "default": False},
            "cdi": {"type": "bool", "default": True},
            "shm_size": {"type": "str", "default": ""},
            "ulimits": {"type": "dict", "default": {}},
            "toolkit_expected": {"type": "bool", "default": True},
            "busy_ok": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = settle(module)
    except (RefusedError, EngineError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
