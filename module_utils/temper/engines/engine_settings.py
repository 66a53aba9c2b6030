"""NVIDIA's runtime and CDI for all container engines of a node, as one setting.

Everything is checked for all engines before the first file is written. What is to be done is noted in a state
file before that, so that the next run completes one that was cut off.
"""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible.module_utils.temper import records
from ansible.module_utils.temper.engines import busy, cdi, toolkit_config
from ansible.module_utils.temper.engines.base import (
    RESTART_TIMEOUT_S,
    RUNTIME,
    Engine,
    EngineOptions,
    EnginePlan,
    Unit,
    journal_of,
    read_units,
)
from ansible.module_utils.temper.engines.containerd import Containerd, serves_docker_alone
from ansible.module_utils.temper.engines.crio import Crio
from ansible.module_utils.temper.engines.daemon_json import parse, size_bytes
from ansible.module_utils.temper.engines.docker import Docker, snap_refusal
from ansible.module_utils.temper.engines.others import OtherEngine, other_engines
from ansible.module_utils.temper.engines.podman import Podman
from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.process import CommandError, run, which
from ansible.module_utils.temper.settings.base import Difference, Fault, RefusedError, Setting, SettingError

STATE = Path("/var/lib/temper/container_engines.json")
ENGINES: tuple[Engine, ...] = (Docker(), Containerd(), Crio(), Podman())
NOTED = {"managed": (bool, ...), "created": (bool, ...)}
STATE_FORM = {
    "records": {
        **{engine.name: (NOTED, ...) for engine in ENGINES},
        Docker.name: ({**NOTED, "keys": ([[[str], object]], ...), "objects": ([[str]], ...)}, ...),
        Containerd.name: ({**NOTED, "config": ({"before": (str, None), "after": str}, ...)}, ...),
        toolkit_config.NAME: ({**NOTED, "keys": ({str: [(str, None), str]}, ...)}, ...),
    },
    "pending": [str],
    "cdi_units": [str],
}


@dataclass
class _Findings:
    """What one look at the node has found."""

    plans: list[EnginePlan] = field(default_factory=list)
    specification: cdi.CdiPlan = field(default_factory=cdi.CdiPlan)
    state: dict[str, typing.Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # Commands for the node that take away what somebody else has put in the way.
    repair: list[typing.Sequence[str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # Engines that are not set up here.
    others: list[OtherEngine] = field(default_factory=list)
    # Units of the CDI specification that no engine of ours needs any more.
    switch_off: list[str] = field(default_factory=list)
    # Whether an engine uses what we have switched on, and the state file does not say so.
    unrecorded: bool = False

    @property
    def due(self) -> list[EnginePlan]:
        """The engines with something to do."""
        return [plan for plan in self.plans if plan.due]


class ContainerEngines(Setting):
    """All container engines of a node. An object looks at the node once; `read` and `restore` look anew.

    `parameters` are `engines` (none: all that are installed), `exclude`, `default_runtime`, `cdi`,
    `shm_size`, `ulimits` (-1 is no limit), `toolkit` (its own file), `toolkit_expected` (whether a missing
    toolkit is an error), `busy_ok` and `state`: "absent" takes out what is ours. With `check_mode`, what an
    installation before this would bring may be missing: the toolkit, an engine that is named.
    """

    key = "container_engines"

    def __init__(self, parameters: typing.Mapping[str, typing.Any], *, check_mode: bool = False) -> None:
        self.spec = dict(parameters)
        self.check_mode = check_mode
        self.named: list[str] = parameters.get("engines") or []
        self.excluded: list[str] = parameters.get("exclude") or []
        self.toolkit_expected = bool(parameters.get("toolkit_expected", True))
        self.toolkit: dict[str, typing.Any] = parameters.get("toolkit") or {}
        self.busy_ok = bool(parameters.get("busy_ok", False))
        ulimits = parameters.get("ulimits") or {}
        self.options = EngineOptions(
            present=parameters.get("state", "present") == "present",
            default_runtime=bool(parameters.get("default_runtime", False)),
            cdi=bool(parameters.get("cdi", True)),
            shm_size=parameters.get("shm_size") or "",
            ulimits={name: limit for name, limit in ulimits.items() if limit is not None},
        )
        self.actions: list[str] = []

    @classmethod
    def from_items(
        cls, items: typing.Mapping[str, typing.Any], options: typing.Mapping[str, typing.Any]
    ) -> ContainerEngines:
        """From the items of a plan, which are parameters. `options` are the role's, and `check_mode`."""
        state = "absent" if options["absent"] else "present"
        parameters = {"state": state, "busy_ok": options["busy_ok"], **items}
        return cls(parameters, check_mode=bool(options.get("check_mode", False)))

    @functools.cached_property
    def _found(self) -> _Findings:
        found = _Findings(problems=_wrong_values(self.options))
        engines = [] if found.problems else self._engines(found)
        toolkit = Path(RUNTIME).exists()
        if engines and self.options.present and not toolkit:
            if not self.toolkit_expected:
                names = ", ".join(engine.name for engine in engines)
                found.warnings.append(
                    f"{names}: left without GPUs, because the plan has no container toolkit "
                    "(nvidia_stack_distro_container_toolkit: false)."
                )
                return found
            if not self.check_mode:
                found.problems.append(
                    f"{RUNTIME} is missing: the container toolkit comes with the stack, so run "
                    "playbooks/provision.yml, which installs it first."
                )
        found.others = [one for one in other_engines() if one.name not in self.excluded]
        if not (engines or found.others) or found.problems:
            return found
        found.state = load_state()
        self._plan(engines, found)
        self._plan_toolkit(engines, found)
        if self.options.present and toolkit and any(plan.cdi for plan in found.plans):
            try:
                found.specification = cdi.plan(live=self.live)
            except (RefusedError, CommandError) as error:
                found.problems.append(str(error))
        self._compare_state(found)
        if self.live and not found.problems and not self.busy_ok and not self.check_mode:
            self._refuse_to_disturb(found)
        return found

    def _engines(self, found: _Findings) -> list[Engine]:
        """Return the engines to look at. One that is named has to be there, but for check mode and absent."""
        ours = [engine for engine in ENGINES if engine.name not in self.excluded]
        installed = [engine for engine in ours if which(engine.program)]
        concerned = self.named or [engine.name for engine in ours]
        if self.options.present and "docker" in concerned and (refusal := snap_refusal()):
            found.problems.append(refusal)
        if not self.named:
            return [
                engine for engine in installed if engine.name != "containerd" or not serves_docker_alone()
            ]
        found.problems += [
            f"container_engines_manage names {engine.name}, but there is no program {engine.program} on "
            "this node: install the engine (container_engines_install), or take it out of the list."
            for engine in ours
            if engine.name in self.named and engine not in installed
            if self.options.present and not self.check_mode
        ]
        return [engine for engine in installed if engine.name in self.named]

    def _plan(self, engines: list[Engine], found: _Findings) -> None:
        """Make the plans of all engines, and collect every reason to refuse."""
        try:
            units = read_units([engine.unit for engine in engines if engine.unit])
        except RefusedError as error:
            found.problems.append(str(error))
            return
        for engine in engines:
            unit = units.get(engine.unit, Unit("", exists=False, active=False, command=()))
            if not self.live:
                unit = replace(unit, active=False)
            try:
                plan = engine.plan(self.options, unit, found.state.get("records", {}).get(engine.name, {}))
                if engine.name in found.state.get("pending", []):
                    plan.action, plan.daemon_reload = "restart", isinstance(engine, Containerd)
                elif unit.active and not plan.action:
                    plan.disagreement = engine.disagreement(self.options, plan)
                    plan.action = "restart" if plan.disagreement else ""
            except (RefusedError, SettingError, CommandError) as error:
                found.problems.append(str(error))
                found.repair += getattr(error, "repair", [])
                continue
            if not unit.active:
                plan.action = ""
            plan.daemon_reload = plan.daemon_reload and self.live
            found.plans.append(plan)
            found.warnings += plan.warnings

    def _plan_toolkit(self, engines: list[Engine], found: _Findings) -> None:
        """Make the plan of the toolkit's own file, which all engines share: the last one takes it back."""
        records_kept = found.state.get("records", {})
        if not self.options.present and records_kept.keys() - {
            toolkit_config.NAME,
            *(engine.name for engine in engines),
        }:
            return
        # Podman's containers get GPUs through CDI alone.
        rootful = any(engine.name != Podman.name for engine in engines)
        node = toolkit_config.Situation(
            rootful=rootful or any(one.of_root for one in found.others),
            rootless=not all(one.of_root for one in found.others),
            cdi=any(plan.cdi for plan in found.plans),
        )
        record = records_kept.get(toolkit_config.NAME, {})
        try:
            plan = toolkit_config.plan(self.toolkit, node, record, present=self.options.present)
        except RefusedError as error:
            # A file that nothing is asked of refuses no node.
            (found.problems if self.toolkit or record else found.warnings).append(str(error))
            return
        found.warnings += plan.warnings
        if plan.due or record:
            found.plans.append(plan)

    def _compare_state(self, found: _Findings) -> None:
        noted = found.state.get("records", {})
        switched_on = found.state.get("cdi_units", [])
        if self.options.present:
            found.unrecorded = bool(switched_on) and any(
                plan.cdi and plan.engine not in noted for plan in found.plans
            )
        elif not noted.keys() - {plan.engine for plan in found.plans}:
            found.switch_off = switched_on

    def _refuse_to_disturb(self, found: _Findings) -> None:
        try:
            reason = _disturbed(found.due)
        except SettingError as error:
            reason = str(error)
        if reason:
            found.problems.append(
                f"{', '.join(plan.engine for plan in found.due)} must be restarted for a changed "
                f"configuration, and {reason}. Nothing was changed. Drain the node, or set "
                "container_engines_busy_ok: true."
            )

    def obstacle(self) -> str | None:
        """Return every reason to refuse, of all engines."""
        return " ".join(self._found.problems) or None

    def warnings(self) -> list[str]:
        """Engines that stay without GPUs or without CDI."""
        return self._found.warnings

    def settled(self) -> bool:
        """Return whether all engines have what is asked."""
        found = self._found
        return not (found.due or found.specification.actions or found.switch_off or found.unrecorded)

    def change(self) -> list[Difference]:
        """Return the files that would change."""
        return [
            Difference(path, _read(path) or "", content or "")
            for plan in self._found.due
            for path, content in plan.files.items()
        ]

    def reason(self) -> str:
        """Return what differs beside files: running engines, and the CDI specification."""
        found = self._found
        lines = [
            f"{plan.engine} runs with other settings than its files: {plan.disagreement or 'restart it'}"
            for plan in found.due
            if plan.action == "restart" and not plan.files
        ]
        lines += found.specification.actions
        lines += [f"{unit} is no longer needed" for unit in found.switch_off]
        if found.unrecorded:
            lines.append("an engine uses CDI, and the node's record of that is gone")
        return "; ".join(lines)

    def fault(self) -> Fault | None:
        """Return why nothing could be planned for an engine: somebody else's configuration."""
        found = self._found
        return Fault(" ".join(found.problems), found.repair) if found.problems else None

    def result(self) -> dict[str, typing.Any]:
        """Return the engines, the files that change, and what else is done, or in check mode would be."""
        found = self._found
        planned = [f"{plan.action} {plan.unit.name}" for plan in found.due if plan.action]
        return {
            "engines": {
                plan.engine: {"version": plan.version, "cdi": plan.cdi}
                for plan in found.plans
                if plan.engine != toolkit_config.NAME
            },
            "others": [one._asdict() for one in found.others],
            "changed_files": sorted(path for plan in found.due for path in plan.files),
            "actions": (planned if self.check_mode else self.actions) + found.specification.actions,
        }

    def read(self) -> dict[str, typing.Any]:
        """Return the files that a change would touch, and what the state file says is ours."""
        due = self._found.due
        return {
            "engines": [plan.engine for plan in due],
            "files": {path: _read(path) for plan in due for path in plan.files},
            "state": load_state(),
        }

    def apply(self) -> None:
        """Write, restart and read back, engine by engine; one that refuses gets its former files back."""
        found, state = self._found, self._found.state
        noted: dict[str, typing.Any] = state.setdefault("records", {})
        state["pending"] = [plan.engine for plan in found.due]
        for plan in found.plans:
            # A record is the next run's only way to tell ours from somebody else's, so it is stored first.
            before = noted.get(plan.engine, {})
            if self.options.present:
                noted[plan.engine] = {**plan.record, "managed": True}
            else:
                noted.pop(plan.engine, None)
            if not plan.due:
                continue
            _store_state({**state, "records": {plan.engine: before, **noted}})
            try:
                self._carry_out(plan)
            except SettingError:
                noted[plan.engine] = before
                _store_state({**state, "pending": [name for name in state["pending"] if name != plan.engine]})
                raise
            state["pending"].remove(plan.engine)
        _store_state(state)
        if found.specification.actions:
            cdi.apply(found.specification, live=self.live)
            state["cdi_units"] = sorted({*state.get("cdi_units", []), *found.specification.enable})
        if found.switch_off:
            cdi.switch_off(state.pop("cdi_units"), live=self.live)
        _store_state(state)

    def restore(self, state: dict[str, typing.Any]) -> None:
        """Take out what is ours, where nothing was ours at that time; else the files as they were."""
        if not state["state"].get("records"):
            taking_out = ContainerEngines({**self.spec, "state": "absent"})
            taking_out.live = self.live
            if obstacle := taking_out.obstacle():
                raise SettingError(obstacle)
            taking_out.apply()
            for path, text in state["files"].items():
                # Taken out of somebody's file key by key: where only its layout differs, that too.
                if text and path.endswith(".json") and parse(text, path) == parse(_read(path) or "", path):
                    _write({path: text})
            return
        _store_state({**state["state"], "pending": state["engines"]})
        _write(state["files"])
        by_unit = {
            engine.unit: engine.name for engine in ENGINES if engine.unit and engine.name in state["engines"]
        }
        for unit in read_units(list(by_unit)).values():
            plan = EnginePlan(by_unit[unit.name], unit, "", action="restart")
            plan.daemon_reload = plan.engine == Containerd.name
            self._settle(plan)
        _store_state(state["state"])

    def _carry_out(self, plan: EnginePlan) -> None:
        """Raise SettingError after everything is as it was."""
        former = {path: _read(path) for path in plan.files}
        _write(plan.files)
        try:
            self._settle(plan)
            engine = next((engine for engine in ENGINES if engine.name == plan.engine), None)
            problem = engine.disagreement(self.options, plan) if engine and plan.unit.active else ""
            if problem:
                raise SettingError(problem)
        except (SettingError, CommandError) as error:
            _write(former)
            note = "its former configuration is back"
            try:
                if plan.files:
                    self._settle(plan)
            except SettingError as again:
                note = f"its former configuration is back, but {again}"
            raise SettingError(
                f"{plan.engine} does not work with its new configuration: {error}; {note}."
            ) from error

    def _settle(self, plan: EnginePlan) -> None:
        steps = [["systemctl", "daemon-reload"]] if plan.daemon_reload else []
        if plan.unit.active and plan.action:
            # Else systemd counts our attempts with those that failed before.
            steps += [["systemctl", "reset-failed", plan.unit.name]] if plan.action == "restart" else []
            steps.append(["systemctl", plan.action, plan.unit.name])
        for command in steps:
            try:
                run(command, RESTART_TIMEOUT_S)
            except CommandError as error:
                raise SettingError(f"{error}.{journal_of(plan.unit.name)}") from error
            if command[1] != "reset-failed":
                self.actions.append(" ".join(command[1:]))


def _wrong_values(options: EngineOptions) -> list[str]:
    """Return values that no engine would take."""
    problems = []
    if options.shm_size and not size_bytes(options.shm_size):
        problems.append(
            f"container_engines_shm_size: expected a size such as 1G or 512M, found {options.shm_size!r}."
        )
    for name, limit in options.ulimits.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1:
            problems.append(
                f"container_engines_ulimits: expected a whole number from -1 (no limit) on for {name}, "
                f"found {limit!r}."
            )
    return problems


def _disturbed(due: list[EnginePlan]) -> str:
    """Whom the planned restarts would disturb, in words; empty where nobody."""
    restarts = [plan for plan in due if plan.action == "restart" or plan.daemon_reload]
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


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _write(contents: typing.Mapping[str, str | None]) -> None:
    """Write files with the mode and the owner that they have; content None removes one."""
    for path, content in contents.items():
        target = Path(path)
        if content is None:
            target.unlink(missing_ok=True)
            continue
        mode, uid, gid = 0o644, 0, 0
        if target.exists():
            status = target.stat()
            mode, uid, gid = status.st_mode & 0o7777, status.st_uid, status.st_gid
        replace_file(target, content.encode(), mode, uid, gid)


def load_state() -> dict[str, typing.Any]:
    """Return what earlier runs have put in, and what one that was cut off has left to do."""
    return records.load(STATE, STATE_FORM)[1]


def _store_state(state: dict[str, typing.Any]) -> None:
    """Replace the state file where it differs; an empty state needs none."""
    kept = {key: value for key, value in state.items() if value}
    if not kept:
        STATE.unlink(missing_ok=True)
    elif kept != load_state():
        records.store(STATE, kept)
