"""Carries out a role's part of a node's plan: reads, refuses, notes, makes what differs, reacts, restores.

What is about to change is noted on the node before the first change and struck off after the last one, so
that the next run completes one that was cut off: it makes the settings that still differ, and does what the
files changed before the cut have yet to cause. What was there before is recorded, so that a setting which
nobody asks for any more returns to it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.ssh_login import ssh_login
from ansible.module_utils.temper.engines.busy import containers_with_gpus
from ansible.module_utils.temper.process import MISREAD, CommandError, run, succeeds, which
from ansible.module_utils.temper.records import damaged
from ansible.module_utils.temper.settings import audit, in_place, system
from ansible.module_utils.temper.settings.base import (
    Difference,
    NodeModule,
    RefusedError,
    Setting,
    SettingError,
    State,
    word_on_kept,
)
from ansible.module_utils.temper.settings.files import Access, Keyword, PamProfile, WholeFile
from ansible.module_utils.temper.settings.kinds import BROUGHT, EARLY, RECORDED, build, kind_of, rebuild
from ansible.module_utils.temper.settings.record import Record, check_records, others
from ansible.module_utils.temper.settings.strictness import EXACTLY
from ansible.module_utils.temper.settings.sudoers import known_here
from ansible.module_utils.temper.settings.sysfs import GIVEN, KernelValue, SysfsValue
from ansible.module_utils.temper.settings.system import (
    MountOptions,
    Sysctl,
    Unit,
    of_temper,
    overruled_by,
    overruling,
)
from ansible.module_utils.temper.units import stop_lost, unit_states

UNIT_DIRECTORIES = ("/etc/systemd/system/", "/usr/local/lib/systemd/system/")
REEXECUTE = ["systemctl", "daemon-reexec"]
#: An initramfs for every kernel takes minutes on a slow disk.
REACTION_TIMEOUT_S = 1800
PACKAGES = "package:set"
#: Kinds that tell the site's values from ours.
OF_SITE = (Access, Keyword, KernelValue, MountOptions)
#: A file with a text in no encoding is one of those that cannot be read.
FAILURES = (SettingError, CommandError, OSError, UnicodeDecodeError, subprocess.TimeoutExpired)


@dataclass
class RoleOutcome:
    """What was done for a role, or would be, in the form that the module returns."""

    changed: bool = False
    actions: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    #: In the form that Ansible's --diff prints.
    diff: list[dict[str, str]] = field(default_factory=list)
    #: What single settings have to say beside: a new SSH port, ports that listen for nobody.
    results: dict[str, Any] = field(default_factory=dict)
    #: What the controller must do before the rest can be done: {"confirm": "ssh"}, {"driver": {...}}.
    needs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Planned:
    """What there is to do for a role: by the keys of settings, and the commands that follow."""

    restored: list[str]
    changes: dict[str, list[Difference]]
    #: Of changes that no text shows.
    reasons: dict[str, str]
    commands: list[str]
    #: What an earlier run was changing when it was cut off, or failed.
    left_open: list[str]

    def add(self, other: Planned) -> None:
        """Add what turned out to be due as well."""
        self.restored += [key for key in other.restored if key not in self.restored]
        self.commands += [command for command in other.commands if command not in self.commands]
        for key, found in other.changes.items():
            known = self.changes.setdefault(key, [])
            known += [change for change in found if change not in known]
        self.reasons |= other.reasons

    def leave_out(self, left: Mapping[str, Sequence[Difference]]) -> None:
        """Take out what has not come about: what is still to change, whatever it was before."""
        for key, to_make in left.items():
            names = {change.name for change in to_make}
            kept = [change for change in self.changes.pop(key, []) if change.name not in names]
            if kept:
                self.changes[key] = kept


class Role:
    """The wanted settings of one role beside what is on the node."""

    def __init__(self, node: NodeModule, plan: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self.node = node
        self.name: str = plan["role"]
        self.options: Mapping[str, Any] = {**plan["options"], "check_mode": node.check_mode}
        #: Whether the running system changes, too: not in the tree of an image.
        self.live: bool = self.options.get("live", True)
        self.items = [with_secret(item, secrets) for item in plan["settings"]]
        self.reactions: list[Mapping[str, Any]] = plan["reactions"]
        self.record = Record(self.name)
        self.said: set[str] = set()
        #: What files that sort after this one of /etc/sysctl.d set is theirs.
        self.sysctl_file: str | None = self.options["sysctl_file"]
        self.look()

    def look(self) -> None:
        """Read what is there and set it against what is wanted."""
        self.wanted: dict[str, Setting] = {}
        self.controls: dict[str, list[str]] = {}
        self.overruled: dict[str, str] = {}
        self.given_away: dict[str, str] = {}
        keys = [f"{item['kind']}:{item['key']}" for item in self.items]
        later = overruling(self.sysctl_file, [*keys, *self.record.originals]) if self.sysctl_file else {}
        items, self.unknown = known_here(self.items)
        items, self.left_out = audit.readable_here(items)
        for setting, controls in build(self.name, items, self.options, self.record.originals):
            setting.begin(self.node)
            if kind_of(setting) == "package":
                setting.note = self.note_packages  # type: ignore[attr-defined]  # which is a PackageSet
            if isinstance(setting, Sysctl) and (file := setting.overruled(later)):
                self.overruled[setting.name] = file
                if not setting.settled() and not of_temper(file):
                    self.given_away[setting.name] = f"{setting.name} ({setting.read()} in {file})"
                continue
            self.wanted[setting.key] = setting
            self.controls[setting.key] = controls
        units = self.look_at_units()
        settled = {key for key, setting in self.wanted.items() if key not in units and setting.settled()}
        # A unit whose file differs, or did in a run that was cut off, starts anew.
        changing = {path_of(key) for key in {*self.wanted, *self.record.pending} - settled - {*units}}
        for unit in units.values():
            unit.restart = self.live and bool(changing & set(unit.restart_on))
        settled |= {key for key, unit in units.items() if unit.settled()}
        self.unsettled = [setting for key, setting in self.wanted.items() if key not in settled]
        former = [
            rebuild(key, original["spec"], live=self.live)
            for key, original in reversed(list(self.originals().items()))
            if key not in self.wanted
        ]
        for setting in former:
            setting.recall(self.originals())
            setting.busy_ok = self.options["busy_ok"]
        # Another file's by now, or of a device that is gone: neither to make nor to take back.
        self.given_up = [
            s
            for s in former
            if (isinstance(s, (Sysctl, SysfsValue)) and s.read() is None)
            or (isinstance(s, Sysctl) and overruled_by(s.name, later))
        ]
        # A program that one run has no use for may be in use all the same: packages go with their role alone.
        self.unwanted = [
            setting
            for setting in former
            if setting not in self.given_up and (self.options["absent"] or kind_of(setting) not in BROUGHT)
        ]
        self.left_alone = {
            setting.key: word
            for setting in self.unwanted
            if not (self.cut_off_in(setting) or is_back(setting, self.originals()[setting.key]["state"]))
            and (word := setting.left_alone())
        }
        self.brought = sorted((s for s in self.unwanted if kind_of(s) in BROUGHT), key=kind_of)
        for setting in self.brought:
            setting.begin(self.node)
            setting.heir = bool(self.heirs())

    def cut_off_in(self, setting: Setting) -> bool:
        """Return whether an earlier run may have left a setting half made, or half taken back."""
        return setting.key in self.record.pending and setting.half_made()

    def heirs(self) -> list[Record]:
        """Return records of roles that this run takes back later: what these need is theirs to remove."""
        later = self.options.get("taken_back_later", ())
        return [r for r in others(self.name) if r.path.stem in later and PACKAGES in r.originals]

    def originals(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the record has, with an empty note on packages where holds are to be released."""
        found = self.record.originals
        if self.name != "nvidia_stack" or not self.options["absent"] or PACKAGES in found:
            return found
        # Imported on demand: a node compiles whatever an execution imports.
        from ansible.module_utils.temper.packaging.packages import recorded_holds

        return {**found, PACKAGES: {"spec": {"holds": True}, "state": {}}} if recorded_holds() else found

    def look_at_units(self) -> dict[str, Unit]:
        """Return the wanted units by their keys; systemd is asked for all of them at once."""
        units = {key: setting for key, setting in self.wanted.items() if isinstance(setting, Unit)}
        states = unit_states([unit.name for unit in units.values()])
        for unit in units.values():
            unit.know(states[unit.name])
        return units

    @property
    def settled(self) -> bool:
        """Whether there is nothing to make, to take back or to complete."""
        return not (self.unsettled or self.unwanted or self.record.pending)

    @property
    def left_over(self) -> set[str]:
        """Paths (and other names) of settings that a run which was cut off was changing."""
        return {path_of(key) for key in self.record.pending}

    @property
    def touched(self) -> list[str]:
        """Paths that this run changes, or that one which was cut off has changed."""
        keys = [setting.key for setting in [*self.unsettled, *self.unwanted]]
        return [*self.left_over, *map(path_of, keys)]

    @property
    def tools(self) -> Setting | None:
        """What other settings work with, where it is still to be installed."""
        return next((setting for setting in self.unsettled if setting.first), None)

    def obstacles(self) -> list[str]:
        """Return sentences about settings that cannot be made on this node.

        Where programs are still to be installed, their settings cannot be asked yet.
        """
        without_tools = self.tools is not None
        # A unit that need not run may be masked. Engines are settled where nothing can be planned for them.
        asked = [
            setting
            for setting in self.wanted.values()
            if (setting in self.unsettled if is_recorded(setting) else setting.first or not without_tools)
        ]
        found = [(setting.obstacle(), self.or_waive(setting)) for setting in asked]
        found += [(setting.obstacle(), "") for setting in self.brought]
        return [f"{obstacle.rstrip('.')}{instead}" for obstacle, instead in found if obstacle]

    def or_waive(self, setting: Setting) -> str:
        """Return what may be done instead, for a setting that a control of the hardening asks for."""
        controls = self.controls[setting.key]
        if not controls or not self.options["atomic"]:
            return ""
        return f", or waive the control {', '.join(controls)} (os_hardening_waivers)"

    def reloads_systemd(self) -> bool:
        """Return whether systemd holds something else of a unit than what its files are going to say.

        A unit that it has not met is read when it is started. Nothing is in the tree of an image.
        """
        if not self.live:
            return False
        files = [path for path in self.touched if path.startswith(UNIT_DIRECTORIES)]
        if any(path in self.left_over or Path(path).exists() for path in files):
            return True
        drop_ins = sorted({Path(path).parent.stem for path in files if Path(path).parent.suffix == ".d"})
        return any(
            (state["UnitFileState"], state["ActiveState"]) not in (("", ""), ("", "inactive"))
            for state in unit_states(drop_ins).values()
        )

    def rereads_units(self) -> bool:
        """Return whether systemd reads all units anew as packages come, or as units are switched on or off.

        What installs a package has systemd do so (scripts of Debian's packages, file triggers of systemd's
        RPM). A unit that is only switched on needs it where its own condition may keep it from running
        (Unit.apply), as the hardening's may; one that is taken back, always (Unit.restore). The driver's
        stack, which is held, has a rule of its own for GPUs in use.
        """
        changing = [*self.unsettled, *self.unwanted]
        if self.options["atomic"] and {kind_of(setting) for setting in changing} & {"unit", "package"}:
            return self.live
        installs = any(
            change.name == "packages"
            for setting in self.unsettled
            if kind_of(setting) == "package" and setting.first
            for change in setting.change()
        )
        back = [setting for setting in self.unwanted if isinstance(setting, Unit) or setting in self.brought]
        return self.live and (installs or bool(back))

    def due_commands(self) -> list[list[str]]:
        """Return the commands that are due for what has changed, now or in a run that was cut off."""
        due = [
            reaction
            for reaction in self.reactions
            if any(matches(path, reaction["paths"]) for path in self.touched)
            and which(reaction["command"][0])
        ]
        states = unit_states([reaction["unit"] for reaction in due if reaction["unit"]])
        running = {name for name, state in states.items() if state["ActiveState"] == "active"}
        return [r["command"] for r in due if not r["unit"] or r["unit"] in running]

    def settle(self) -> RoleOutcome:
        """Bring the role's part to the wanted state; in check mode say what would be done.

        Raises:
            RefusedError: nothing was changed, with every reason.
            SettingError, CommandError, OSError: a change failed; the next run completes it.
        """
        tools = self.tools
        if obstacles := self.obstacles():
            raise RefusedError(f"Nothing was changed: {'; '.join(obstacles)}.")
        commands, reload = self.due_commands(), self.reloads_systemd()
        self.refuse_to_disturb(reload or self.rereads_units() or REEXECUTE in commands)
        self.warn()
        if not self.node.check_mode:
            for setting in self.unsettled:
                setting.withdraw()
        planned = self.planned(commands, reload)
        if self.node.check_mode or self.settled:
            return self.outcome(planned, self.results())
        results: dict[str, Any] = {}
        if tools:
            results = self.install(tools)
            commands, reload = self.due_commands(), self.reloads_systemd()
            planned.add(self.planned(commands, reload))
        needs, left = self.make(commands, reload)
        planned.leave_out(left)
        outcome = self.outcome(planned, self.results() | results)
        outcome.needs = needs
        if needs:
            outcome.results["left"] = [setting.key for setting in self.brought]
        self.warn()
        return outcome

    def refuse_to_disturb(self, reload: bool) -> None:
        """Refuse where systemd, as it reads its units anew, can take their GPUs from running containers.

        In check mode it warns. Source: NVIDIA/nvidia-container-toolkit issues 48 and 1227; containers that
        came by their GPUs through CDI keep them, which cannot be told from outside.
        """
        containers = containers_with_gpus() if reload and not self.options["busy_ok"] else ""
        if not containers:
            return
        sentence = f"{containers}, and systemd has to read its units anew, which can take their GPUs away"
        remedy = f"Drain the node, or set {self.name}_busy_ok: true."
        if not self.node.check_mode:
            raise RefusedError(f"{sentence[0].upper()}{sentence[1:]}. Nothing was changed. {remedy}")
        self.node.warn(f"A run would be refused: {sentence}. {remedy}")

    def warn(self) -> None:
        """Say what the operator should know whether or not anything changes."""
        if self.given_away:
            self.say(
                f"Files that sort after {self.sysctl_file} set other values, which stay: "
                f"{', '.join(self.given_away.values())}."
            )
        if not self.options["atomic"]:
            for path in self.replaced:
                self.say(
                    f"{path} was there before and is replaced as a whole; what it said returns when "
                    f"{self.name} is taken back. What of it has to stay in force belongs into the role's "
                    "variables (--check --diff shows it)."
                )
            if contested := self.contested():
                self.say(
                    f"At the next boot files that sort later set {', '.join(contested)} again, and win. "
                    "Take it out there, or out of the role's variables."
                )
            for name in self.unavailable:
                self.say(f"This node's kernel has no parameter {name}; it is left out.")
        for name, reason in self.unknown.items():
            self.say(f"The control {name} does not apply here: {reason}.")
        if self.left_alone:
            self.say(f"left alone: {'; '.join(self.left_alone.values())}.")
        for sentence in self.left_out:
            self.say(f"{sentence}; it is left out.")
        for warning in words_on_kept(self.wanted.values()):
            self.say(warning)
        for setting in [*self.wanted.values(), *self.brought]:
            for warning in setting.warnings():
                self.say(warning)

    def say(self, warning: str) -> None:
        """Warn once: some things are known before a change, some only after it."""
        if warning not in self.said:
            self.node.warn(warning)
        self.said.add(warning)

    @property
    def replaced(self) -> list[str]:
        """Files of somebody else that are about to get our content."""
        return [
            str(setting.path)
            for setting in self.unsettled
            if isinstance(setting, WholeFile)
            and is_recorded(setting)
            and setting.key not in self.record.originals
            and setting.file.content is not None
            and setting.path.is_file()
            and not of_temper(str(setting.path))
        ]

    def contested(self) -> list[str]:
        """Parameters that files of others set at boot after the role's own file of sysctl.d, and which."""
        own = [Path(path_of(key)) for key in self.wanted if key.startswith("file:")]
        named = [path.name for path in own if str(path.parent) in system.SYSCTL_DIRECTORIES[:1]]
        later = overruling(max(named), self.wanted) if named and not self.sysctl_file else {}
        return [
            f"{setting.name} ({file})"
            for setting in self.wanted.values()
            if isinstance(setting, Sysctl)
            if (file := setting.overruled(later)) and not of_temper(file)
        ]

    @property
    def unavailable(self) -> list[str]:
        """Kernel parameters that this kernel does not have."""
        return [s.name for s in self.wanted.values() if isinstance(s, Sysctl) and s.read() is None]

    def planned(self, commands: list[list[str]], reload: bool) -> Planned:
        """Return what there is to do.

        What is already as it was before Temper is only struck off the record.
        """
        changes = {setting.key: setting.change() for setting in self.unsettled}
        back = {
            setting.key: setting.taken_back()
            for setting in self.unwanted
            if setting.key not in self.left_alone
            and not is_back(setting, self.originals()[setting.key]["state"])
        }
        return Planned(
            [key for key, found in back.items() if not found],
            changes | {key: found for key, found in back.items() if found},
            {setting.key: setting.reason() for setting in self.unsettled if not changes[setting.key]},
            [" ".join(command) for command in commands] + (["systemctl daemon-reload"] if reload else []),
            list(self.record.pending),
        )

    def outcome(self, planned: Planned, results: dict[str, Any]) -> RoleOutcome:
        """Return the same in words and as differences."""
        changes = [(key, change) for key, found in planned.changes.items() for change in found]
        shown = [
            Difference(
                " ".join([*self.controls.get(key, []), titled(change.name)]), change.before, change.after
            )
            for key, change in changes
        ]
        shown += [Difference(f"restored {titled(key)}", "set\n", "") for key in planned.restored]
        done = bool(planned.changes or planned.restored or planned.commands)
        return RoleOutcome(
            changed=done or bool(planned.left_open),
            actions=[
                *(f"{titled(key)}: restored" for key in planned.restored),
                *(short(change) for _, change in changes),
                *(
                    f"{titled(key)}: {planned.reasons[key]}"
                    for key, found in planned.changes.items()
                    if not found and planned.reasons.get(key)
                ),
                *planned.commands,
                *(
                    []
                    if done
                    else (f"{titled(key)}: complete after an earlier run" for key in planned.left_open)
                ),
            ],
            controls=sorted({name for key in planned.changes for name in self.controls.get(key, [])}),
            diff=[difference.as_dict() for difference in shown],
            results=results,
        )

    def results(self) -> dict[str, Any]:
        """Return what single settings have to say beside."""
        found: dict[str, Any] = {"overruled": self.overruled, "unavailable": self.unavailable}
        for setting in self.wanted.values():
            found.update(setting.result())
        return found

    def note(self, keys: list[str]) -> None:
        """Write down what is about to change."""
        self.record.pending = sorted({*self.record.pending, *keys})
        self.record.save()

    def install(self, tools: Setting) -> dict[str, Any]:
        """Install what other settings work with, and look again; returns the installation's results.

        Before that, what is not there yet must be known to be taken back, and conditions of units must keep
        their services from starting where they cannot run.
        """
        conditions = [
            setting
            for setting in self.unsettled
            if setting.key.startswith(f"file:{UNIT_DIRECTORIES[0]}") and setting.key.endswith(".conf")
        ]
        for setting in self.wanted.values():
            if isinstance(setting, (Unit, PamProfile, WholeFile)):
                state = setting.read()
                if setting in conditions or not state:
                    self.remember(setting, state)
        self.note([tools.key, *(setting.key for setting in conditions)])
        for setting in [*conditions, tools]:
            setting.apply()
        results = tools.result()
        self.look()
        if obstacles := self.obstacles():
            raise SettingError(f"{'; '.join(obstacles)}.")
        return results

    def remember(self, setting: Setting, state: State) -> None:
        """Record what a setting was, unless that is known, and what becomes of it where that may vary.

        What the site has set since is what it was, from now on.

        A run may fail or be cut off before it makes that: what earlier ones made is kept until one has ended.
        Those with a record of their own have no spec.
        """
        if is_recorded(setting) and not setting.own:
            made = setting.as_made()
            try:
                since = None if self.cut_off_in(setting) else setting.since(state)
            except MISREAD as error:
                raise damaged(self.record.path, f"the state of {setting.key}: {error!r}") from error
            original = self.record.originals.setdefault(setting.key, {"spec": made, "state": state})
            if setting.in_parts:
                # In the order of their first notes, so that the record changes with what it says alone.
                original["state"] = {**original["state"], **state, **original["state"]}
            if since:
                original["state"] = since
            self.remember_made(setting)

    def remember_made(self, setting: Setting) -> bool:
        """Record what becomes of a setting, or has become of it; returns whether that is new."""
        original = self.record.originals.get(setting.key)
        if original is None or original["spec"] == (made := setting.as_made()):
            return False
        original["former"] = [*original.get("former", []), original["spec"]]
        original["spec"] = made
        return True

    def forget_former(self, settings: Iterable[Setting]) -> None:
        """Record of settings that are as wanted only that, and no longer what earlier runs made of them.

        What the site has set since is as wanted, too, and stays the site's. A file keeps directories that one
        which was taken back has brought along.
        """
        for setting in settings:
            original = self.record.originals.get(setting.key, {})
            theirs = "former" in original and isinstance(setting, OF_SITE) and setting.is_of_site()
            if (original.pop("former", None) and not theirs) or (original and isinstance(setting, WholeFile)):
                original["spec"] = setting.as_made()

    def forget_unmade(
        self, before: Mapping[str, State], noted: Mapping[str, dict[str, Any]], pending: Sequence[str]
    ) -> None:
        """Record of settings that a failed run has left as they were only what was `noted` before it.

        What it was to make of them would count as ours, and the site may make just that.
        """
        for setting in self.unsettled:
            key = setting.key
            if isinstance(setting, OF_SITE) and is_back(setting, before[key]):
                if key in noted:
                    self.record.originals[key] = noted[key]
                else:
                    self.record.originals.pop(key, None)
                if setting.in_steps and key not in pending:
                    self.record.pending.remove(key)
        with suppress(OSError):  # what the record has is more than it needs
            self.record.save()

    def note_packages(self, former: Mapping[str, str | None], failed: bool = False) -> None:
        """Record packages before a transaction changes them; of one that failed, what it has not brought."""
        if PACKAGES not in self.record.originals:
            # Imported on demand: a node compiles whatever an execution imports.
            from ansible.module_utils.temper.packaging.node import NODE

            earlier = sorted(name for name, package in NODE.installed().items() if package.installed)
            spec = {"engines": self.name == "container_engines", "holds": self.name == "nvidia_stack"}
            self.record.originals[PACKAGES] = {"spec": {**spec, "earlier": earlier}, "state": {}}
        state = self.record.originals[PACKAGES]["state"]
        for name, version in former.items():
            if failed:
                state.pop(name, None)
            else:
                state.setdefault(name, version)
        self.record.save()

    def take_back(self, settings: Iterable[Setting]) -> None:
        """Return settings to what the record says of them."""
        originals = self.originals()
        for setting in settings:
            if setting.key in self.left_alone:
                continue
            try:
                with self.giving(setting):
                    setting.restore(originals[setting.key]["state"])
            except MISREAD as error:
                raise damaged(self.record.path, f"the state of {setting.key}: {error!r}") from error
            for word in setting.after():
                self.say(word)
            for heir in self.heirs()[:1] if setting.needed else ():
                heir.originals[PACKAGES] = setting.inherited(heir.originals[PACKAGES])
                heir.save()

    def make(
        self, commands: list[list[str]], reload: bool
    ) -> tuple[dict[str, Any], dict[str, list[Difference]]]:
        """Make what differs and take back what nobody wants any more.

        Returns what the controller must do, and by their keys what has not come about for that.
        """
        before = {s.key: s.read() for s in self.unsettled if is_recorded(s)}
        noted, pending = {key: {**one} for key, one in self.record.originals.items()}, self.record.pending
        for setting in self.unsettled:
            self.remember(setting, before.get(setting.key))
        # Once our file says the same as the site, what a later, stricter run replaces would count as ours.
        for setting in self.wanted.values():
            if isinstance(setting, Sysctl) and setting.order != EXACTLY and setting.read() == setting.wanted:
                self.remember(setting, setting.wanted)
        account = administrator() if self.options["atomic"] else None
        self.note([setting.key for setting in [*self.unsettled, *self.unwanted]])
        if self.live:
            stop_lost([setting.name for setting in self.unsettled if isinstance(setting, Unit)])
        early = [setting for setting in self.unwanted if setting not in self.brought]
        made: list[Setting] = []
        needs: dict[str, Any] = {}
        try:
            # Once more for PAM: a profile that was taken out counts as new when the next one is, and returns.
            self.take_back([*early, *(s for s in early if isinstance(s, PamProfile))])
            for setting in self.wanted.values():
                if setting not in self.unsettled:
                    continue
                if kind_of(setting) not in EARLY:  # what the files before it cause comes first
                    self.react([] if self.options["atomic"] else commands, reload)
                    commands, reload = commands if self.options["atomic"] else [], False
                made.append(setting)
                if needs := self.apply(setting):
                    break
                if kind_of(setting) == "package":
                    self.look_behind_packages(made)
            if account and not may_sudo(account):
                raise SettingError(
                    f"After these changes {account} could no longer become root, so they were undone. "
                    "Look at `sudo -l` and at the journal of the node, and run again."
                )
        except FAILURES as error:
            complaints = self.undo(made, before) if self.options["atomic"] else []
            self.forget_unmade(before, noted, pending)
            if not (made and self.options["atomic"]):
                raise
            sentence = told(error, "After the settings were made")
            raise SettingError(" ".join([sentence, *complaints])) from error
        self.react(commands, reload)
        # Until a new connection has confirmed it, a change of a way in may need its programs to go back.
        brought = [] if needs else self.brought
        self.take_back(brought)
        # What the controller is needed for differs as long as it is not done: no note has to say so.
        for setting in [*early, *brought, *self.given_up]:
            self.record.originals.pop(setting.key, None)
        self.forget_former(s for s in self.wanted.values() if s in made or s not in self.unsettled)
        self.record.pending = []
        self.record.save()
        left = {setting.key: setting.change() for setting in self.unsettled if setting not in made}
        left |= {setting.key: setting.taken_back() for setting in self.brought if setting not in brought}
        if "driver" in needs:  # its modules are built, and only a reboot loads it
            left[made[-1].key] = made[-1].change()
        return needs, left

    def look_behind_packages(self, made: Sequence[Setting]) -> None:
        """Look again: packages bring units, stop them, and make the driver one to prove."""
        self.look_at_units()
        new = [
            setting
            for setting in self.wanted.values()
            if setting not in made and setting not in self.unsettled
            if kind_of(setting) in ("driver", "unit") and not setting.settled()
        ]
        for setting in new:
            self.remember(setting, setting.read())
        self.note([setting.key for setting in new])
        self.unsettled += new

    def apply(self, setting: Setting) -> dict[str, Any]:
        """Make one setting; returns what the controller must do before the next one."""
        try:
            with self.giving(setting):
                needs = setting.make()
        except FAILURES as error:
            if not self.options["atomic"]:
                raise
            raise SettingError(
                f"{', '.join(self.controls[setting.key])}: {told(error, setting.key)} What this run had made "
                "was undone: mend it, or waive the control."
            ) from error
        return needs

    @contextmanager
    def giving(self, setting: Setting) -> Iterator[None]:
        """Note a value while the kernel is given it, and what it has made of that: not the site's choice.

        Where values have an order, the kernel takes them as they are, or not at all; so it does below /sys.
        """
        original = self.record.originals.get(setting.key)
        if original is None or not isinstance(setting, KernelValue):
            yield
            return
        exact = setting.order == EXACTLY and isinstance(setting, Sysctl)
        if exact:
            original[GIVEN] = True
            self.record.save()
        yield
        original.pop(GIVEN, None)
        if self.remember_made(setting) or exact:
            self.record.save()

    def react(self, commands: list[list[str]], reload: bool) -> None:
        """Let systemd read unit files that have changed, and tell those who read theirs only when told."""
        if reload:
            run(["systemctl", "daemon-reload"])
        for command in commands:
            run(command, timeout_s=REACTION_TIMEOUT_S)

    def undo(self, made: list[Setting], before: Mapping[str, State]) -> list[str]:
        """Return to `before`, as far as that is possible; returns sentences about what is not."""
        complaints = []
        for setting in reversed(made):
            try:
                setting.restore(before[setting.key])
            except FAILURES as error:
                if not is_back(setting, before[setting.key]):
                    complaints.append(f"{setting.key} could not be undone: {error}")
        if any(setting.key.startswith(f"file:{UNIT_DIRECTORIES[0]}") for setting in made):
            succeeds(["systemctl", "daemon-reload"])
        return complaints


def words_on_kept(settings: Iterable[Setting]) -> list[str]:
    """Return what of the site stays, a sentence for each variable that decides otherwise."""
    clauses: dict[str, list[str]] = {}
    for setting in settings:
        clauses.setdefault(setting.otherwise, []).extend(setting.kept())
    return [word for otherwise, kept in clauses.items() for word in word_on_kept(kept, otherwise)]


def with_secret(item: Mapping[str, Any], secrets: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the item with the content that does not travel in the plan."""
    wanted = item["wanted"]
    if item["kind"] != "file" or not wanted or not wanted.get("secret"):
        return item
    details = {key: value for key, value in wanted.items() if key != "source"}
    # Without a source there is none: the file must not exist.
    content = secrets[item["key"]] if "source" in wanted else None
    return {**item, "wanted": {**details, "content": content}}


def is_recorded(setting: Setting) -> bool:
    """Return whether its state is recorded before it is made.

    Ways in and engines keep records of their own; packages are noted as the transaction is known.
    """
    noted = kind_of(setting) in RECORDED and kind_of(setting) != "package"
    return noted and not (isinstance(setting, WholeFile) and setting.secret)


def path_of(key: str) -> str:
    """Return the path (or other name) in a setting's key: `keyword:/etc/login.defs:UMASK` is about a file."""
    return key.partition(":")[2].partition(":")[0]


def matches(path: str, patterns: list[str]) -> bool:
    """Return whether a path is one of these, or lies in one that ends with a slash."""
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in patterns)


def told(error: BaseException, subject: str) -> str:
    """Return an error as a sentence: of an OSError, what could not be done."""
    return f"{subject}: {error}." if isinstance(error, (OSError, UnicodeDecodeError)) else str(error)


def is_back(setting: Setting, state: State) -> bool:
    """Return whether a setting is in this state, as one is that could not be made in the first place."""
    try:
        return setting.is_at(state)
    except FAILURES:
        return False


def titled(name: str) -> str:
    """Return the name of a setting for people: that of a file is its path, whichever setting writes it."""
    return name.removeprefix("file:")


def short(change: Difference) -> str:
    """Before and after in a line; of a file only whether there was one."""
    name = titled(change.name)
    if change.name in ("packages", "holds"):
        word = "" if change.after else "removed " if change.name == "packages" else "released "
        return f"{name}: {word}{', '.join((change.after or change.before).split())}"
    if "\n" in change.after or "\n" in change.before:
        after = "written" if change.after else "removed"
        return f"{name}: {'other content' if change.before else 'absent'} -> {after}"
    return f"{name}: {change.before or 'unset'} -> {change.after or 'unset'}"


def administrator() -> str | None:
    """Return the account that this run came through, if it may become root without a password."""
    login = ssh_login()
    if login is None or login.account == "root":
        return None
    return login.account if may_sudo(login.account) else None


def may_sudo(account: str) -> bool:
    """Return whether an account can become root without a password, asked of sudo and PAM themselves."""
    return succeeds(["runuser", "-u", account, "--", "sudo", "-n", "true"])


def carry_out(
    node: NodeModule,
    plans: list[Mapping[str, Any]],
    secrets: Mapping[str, str],
    after_boot_s: float = 0,
    ahead: list[Mapping[str, Any]] | None = None,
    taken_back_later: Sequence[str] = (),
) -> dict[str, Any]:
    """Settle roles in their order; returns the module's result. For `after_boot_s` see LoadedDriver.

    Ends behind the first that needs the controller, or fails, which is part of its result. Where nothing had
    to change, the roles in `ahead` are read: what a change makes of them, their own stages see.

    Raises:
        RecordError: what is noted on the node for one of all these roles cannot be read. Nothing was changed.
        RefusedError: the node cannot have one of all these roles. Nothing was changed.
    """
    result: dict[str, Any] = {"changed": False, "roles": {}, "ahead": {}}
    for plan in [*plans, *(ahead or [])]:
        check_records(plan["role"])
    # Not those ahead: this run may leave them out.
    for plan in plans:
        check_system(plan)
        if plan["options"]["absent"]:
            check_packages(plan)
    for number, plan in enumerate(plans, 1):
        try:
            later = [other["role"] for other in plans[number:] if other["options"]["absent"]]
            later += taken_back_later
            options = {**plan["options"], "after_boot_s": after_boot_s, "taken_back_later": later}
            role = Role(node, {**plan, "options": options}, secrets)
            outcome = role.settle()
        except (RefusedError, *FAILURES) as error:
            subject = "A file of this node could not be read or written; mend that and run again"
            result["roles"][plan["role"]] = {
                "failed": True,
                "refused": isinstance(error, RefusedError),
                "changed": False,
                "msg": told(error, subject),
                # What a package manager printed.
                "output": getattr(error, "output", []),
            }
            break
        result["changed"] |= outcome.changed
        result["roles"][plan["role"]] = asdict(outcome)
        # One that waits to be confirmed, too: should it be taken back, the programs have still taken it.
        note_in_place(role, plan)
        if outcome.needs:
            break
    else:
        if not result["changed"]:
            result["ahead"] = read_ahead(node, ahead or [], secrets)
    return result


def note_in_place(role: Role, plan: Mapping[str, Any]) -> None:
    """Note that a role is as planned. Without the note, the next run asks the node's programs once more.

    So it does where a program does not know a control, which each plan has to name as waived.
    """
    if role.live and not role.node.check_mode:
        with suppress(OSError):
            in_place.note(plan, as_a_whole=not role.unknown)


def check_system(plan: Mapping[str, Any]) -> None:
    """Raise RefusedError where the node cannot have a role: others before it would have changed by then."""
    if reason := plan["options"].get("obstacle"):
        raise RefusedError(f"Nothing was changed: {reason}.")


def check_packages(plan: Mapping[str, Any]) -> None:
    """Raise RefusedError where packages of a role cannot go: others before it would have changed by then."""
    originals = Record(plan["role"]).originals
    if PACKAGES not in originals:
        return
    setting = rebuild(PACKAGES, originals[PACKAGES]["spec"], live=plan["options"].get("live", True))
    setting.recall(originals)
    setting.busy_ok = plan["options"]["busy_ok"]
    try:
        reason = setting.obstacle()
    except FAILURES as error:
        reason = told(error, "The packages that would go could not be found")
    if reason:
        raise RefusedError(f"Nothing was changed: {reason.rstrip('.')}.")


def read_ahead(
    node: NodeModule, plans: list[Mapping[str, Any]], secrets: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what `carry_out` would return for each of these roles, up to the first that has something to do.

    Nor is one here that cannot be read or carried out: its own stage comes to it and says why.
    """
    found = {}
    for plan in plans:
        try:
            role = Role(node, plan, secrets)
            if not role.settled:
                break
            found[role.name] = asdict(role.settle())
            note_in_place(role, plan)
        except (RefusedError, *FAILURES):
            break
    return found
