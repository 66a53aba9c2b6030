#!/usr/bin/python3
"""Persistence, clocks, power limits, modes: what is set, what should be, and the way from one to the other.

Few of these settings survive a reboot or a reload of the driver, so this file serves twice: as a module
utility of Ansible, and, installed on the node, as the program that temper-gpu-settings.service runs at boot.
Standard library only. MIG layouts are in mig.py.

nvidia-smi answers status 0 for a setting that a GPU refuses, so its words are read, and every setting is read
back. Locked clocks have no query: what was set is noted under /run, which forgets it at a reboot as the
driver does, and the live clock must agree.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper.driver import mig
    from ansible.module_utils.temper.driver.holders import DAEMONS, holders
    from ansible.module_utils.temper.driver.smi import (
        REFUSALS,
        SettingsError,
        integer,
        number,
        nvidia_smi,
        set_one,
    )
else:
    # The program of the boot unit: what it needs is installed beside it, and the node needs no Ansible.
    import mig
    from holders import DAEMONS, holders
    from smi import REFUSALS, SettingsError, integer, number, nvidia_smi, set_one

RECORD = Path("/run/temper/gpu-settings.json")
# How far a live clock may be from a locked one: clocks move in steps of 15 MHz.
CLOCK_STEP_MHZ = 15
POWER_STEP_W = 1.0
# The share of the highest graphics clock that `efficient` locks: docs/operate/tuning.md says why.
EFFICIENT_SHARE = 0.7
# clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons*): power cap 0x4, slowdown 0x8, sync boost 0x10,
# heat 0x20 and 0x40, power brake 0x80. Its older name is known to every driver.
SLOWED = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
# What nvidia-smi says where the driver leaves clocks to the host of a machine or container: with status 4,
# "The current user does not have permission to change clocks for GPU 00000000:0F:00.0."
FORBIDDEN = ("permission", "Permission", *REFUSALS)
CLOCK_SETTERS = ("-lgc", "-lmc", "-ac")
# Compute modes: nvidia-smi's words for them, and its numbers.
COMPUTE_MODES = {"default": ("Default", "0"), "exclusive_process": ("Exclusive_Process", "3")}
PERSISTENCE, POWER_LIMIT = "persistence mode", "power limit"
GRAPHICS_CLOCK, MEMORY_CLOCK, APPLICATION_CLOCKS = "graphics clock", "memory clock", "application clocks"
COMPUTE_MODE, ECC_MODE, MIG_LAYOUT = "compute mode", "ECC mode at the next boot", "MIG layout"
ECC_MODES = {True: ("Enabled", "1"), False: ("Disabled", "0")}
# The settings of a node, each of them optional but locked_clocks.
NAMES = (
    "clocks",
    "power_limit_w",
    "power_limit_percent",
    "compute_mode",
    "ecc",
    "mig",
    "mig_change_ok",
    "locked_clocks",
)
FIELDS = (
    "index",
    "uuid",
    "name",
    "persistence_mode",
    "power.limit",
    "power.min_limit",
    "power.max_limit",
    "power.default_limit",
    "clocks.current.graphics",
    "clocks.max.graphics",
    "clocks.max.memory",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "clocks.default_applications.graphics",
    "clocks.default_applications.memory",
    "clocks_throttle_reasons.active",
    "compute_mode",
    "ecc.mode.current",
    "ecc.mode.pending",
    "mig.mode.current",
    "mig.mode.pending",
)
CLOCK_FIELDS = ("gpu_uuid", "memory", "graphics")
INDEX = re.compile("[0-9]{1,4}")
MASK = re.compile("(?:0x)?[0-9a-fA-F]{1,16}")


# "GPU 0 (name)" -> setting -> "from -> to".
Changes = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi reports it. Clocks in MHz, power in W; None where the GPU has no such value."""

    index: int
    uuid: str
    name: str
    persistence: bool
    power_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    power_default_w: float | None
    graphics_mhz: int | None
    graphics_max_mhz: int | None
    memory_max_mhz: int | None
    application_graphics_mhz: int | None
    application_memory_mhz: int | None
    default_application_graphics_mhz: int | None
    default_application_memory_mhz: int | None
    #: What slows it down, as NVML's bit mask; None where it does not say.
    slowed_by: int | None
    #: Modes in nvidia-smi's words, "[N/A]" where there is none. `pending` is in force from the next boot on.
    compute_mode: str
    ecc: str
    ecc_pending: str
    mig_mode: str
    mig_pending: str

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"

    @property
    def card(self) -> mig.Card:
        """What matters of it for MIG."""
        return mig.Card(self.index, self.name, self.uuid, self.mig_mode, self.mig_pending)


@dataclass(frozen=True)
class Target:
    """What one GPU is to have. None: clocks and power at the driver's default, modes as they are."""

    graphics_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    compute_mode: str | None = None
    ecc: bool | None = None


def parse_gpus(text: str) -> list[Gpu]:
    """GPUs from `--query-gpu=FIELDS --format=csv,noheader,nounits`."""
    gpus = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS):
            raise SettingsError(
                f"nvidia-smi answered {len(values)} values where {len(FIELDS)} were asked for: {line[:200]!r}"
            )
        if not INDEX.fullmatch(values[0]):
            raise SettingsError(f"nvidia-smi answered no number of a GPU: {line[:200]!r}")
        index, uuid, name, persistence, *rest = values
        power = [number(value) for value in rest[:4]]
        clocks = [integer(value) for value in rest[4:11]]
        told = (*power, *clocks, mask(rest[11]), *rest[12:])
        gpus.append(
            Gpu(int(index), uuid, name, persistence == "Enabled", *told)  # type: ignore[arg-type]  # not counted
        )
    return gpus


def mask(text: str) -> int | None:
    """Return a bit mask of nvidia-smi's CSV."""
    return int(text, 16) if MASK.fullmatch(text) else None


def read_gpus() -> list[Gpu]:
    """Return all GPUs of the node as they are now."""
    return parse_gpus(nvidia_smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))


def read_supported() -> dict[str, dict[int, list[int]]]:
    """UUID -> memory clock -> graphics clocks that go with it, in MHz; without GPUs that list none."""
    found: dict[str, dict[int, list[int]]] = {}
    query = (f"--query-supported-clocks={','.join(CLOCK_FIELDS)}", "--format=csv,noheader,nounits")
    for line in nvidia_smi(*query).splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(CLOCK_FIELDS):
            raise SettingsError(f"nvidia-smi answered no UUID and two clocks: {line[:200]!r}")
        uuid, memory, graphics = values[0], integer(values[1]), integer(values[2])
        if memory is not None and graphics is not None:
            found.setdefault(uuid, {}).setdefault(memory, []).append(graphics)
    return found


def check_clocks(clocks: Any) -> None:
    """Raise SettingsError for a wish that cannot be understood: a typo must not mean "default"."""
    if clocks in ("max", "default", "efficient"):
        return
    if (
        isinstance(clocks, dict)
        and clocks
        and clocks.keys() <= {"graphics", "memory"}
        # Ansible's numbers are of a subclass of int; so is True, which is none.
        and all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in clocks.values())
    ):
        return
    raise SettingsError(
        "gpu_settings_clocks: expected max, default, efficient, or graphics and memory in MHz, "
        f"found {clocks!r}"
    )


def target(gpu: Gpu, settings: dict[str, Any], supported: dict[int, list[int]]) -> Target:
    """Return what a GPU is to have. Raises SettingsError for a value outside what the GPU supports."""
    return Target(
        *clocks_wanted(gpu, settings["clocks"], settings["locked_clocks"], supported),
        power_wanted(gpu, settings),
        compute_mode_wanted(gpu, settings.get("compute_mode")),
        ecc_wanted(gpu, settings.get("ecc")),
    )


def clocks_wanted(
    gpu: Gpu, clocks: Any, lockable: dict[str, bool], supported: dict[int, list[int]]
) -> tuple[int | None, int | None]:
    """Graphics and memory clock in MHz. Raises SettingsError for one that the GPU does not have."""
    graphics = memory = None
    if not settable(gpu, lockable):
        if clocks not in ("max", "default"):
            raise SettingsError(
                f"{gpu}: its clocks can neither be locked nor set as application clocks; expected "
                f"gpu_settings_clocks max or default, found {clocks}"
            )
    elif clocks == "max":
        graphics = gpu.graphics_max_mhz
    elif clocks == "efficient":
        graphics = efficient(gpu, supported)
    elif isinstance(clocks, dict):
        graphics, memory = clocks.get("graphics"), clocks.get("memory")
        check_supported(gpu, "memory", memory, list(supported), gpu.memory_max_mhz)
        beside = supported.get(memory or max(supported, default=0), [])
        check_supported(gpu, "graphics", graphics, beside, gpu.graphics_max_mhz)
    if memory is not None and lockable["graphics"] and not lockable["memory"]:
        raise SettingsError(
            f"{gpu}: its memory clock cannot be locked (Ampere and newer only); "
            "leave `memory` out of gpu_settings_clocks"
        )
    if memory is not None and graphics is None and not lockable["graphics"]:
        raise SettingsError(
            f"{gpu}: its application clocks are set in pairs; add `graphics` to gpu_settings_clocks"
        )
    return graphics, memory


def settable(gpu: Gpu, lockable: dict[str, bool]) -> bool:
    """Return whether its clocks can be set: GeForce boards before Volta have not even application clocks."""
    return lockable["graphics"] or gpu.application_graphics_mhz is not None


def efficient(gpu: Gpu, supported: dict[int, list[int]]) -> int:
    """Return the highest graphics clock in MHz that is supported up to EFFICIENT_SHARE of the highest."""
    clocks = supported.get(max(supported, default=0), [])
    if not clocks:
        raise SettingsError(
            f"{gpu}: it lists no supported clocks to choose an efficient one from; "
            "give gpu_settings_clocks in MHz"
        )
    below = [clock for clock in clocks if clock <= EFFICIENT_SHARE * max(clocks)]
    return max(below, default=min(clocks))


def check_supported(gpu: Gpu, kind: str, wanted: int | None, clocks: list[int], highest: int | None) -> None:
    """Raise SettingsError for a clock (MHz) that is not among those of the GPU, naming the nearest ones."""
    if wanted is None or wanted in clocks:
        return
    below, above = ([c for c in clocks if c < wanted], [c for c in clocks if c > wanted])
    if nearest := [*([max(below)] if below else []), *([min(above)] if above else [])]:
        raise SettingsError(
            f"{gpu}: expected a {kind} clock that it has, found {wanted} MHz; "
            f"nearest: {' and '.join(map(str, nearest))} MHz"
        )
    if highest is not None and wanted > highest:  # a GPU that lists none
        raise SettingsError(f"{gpu}: expected a {kind} clock up to {highest} MHz, found {wanted} MHz")


def power_wanted(gpu: Gpu, settings: dict[str, Any]) -> float | None:
    """Return the power limit in W. Raises SettingsError for one outside what the GPU takes."""
    percent, given = settings.get("power_limit_percent"), settings.get("power_limit_w")
    if percent is None and given is None:
        return gpu.power_default_w
    if gpu.power_w is None:
        raise SettingsError(f"{gpu}: it has no power limit to set; leave the power limit out for this node")
    lowest, highest = gpu.power_min_w or 0.0, gpu.power_max_w or math.inf
    if percent is None:
        power = float(given)  # type: ignore[arg-type]  # one of them is given
        if not lowest <= power <= highest:
            raise SettingsError(
                f"{gpu}: expected a power limit from {lowest:g} to {highest:g} W, found {power:g} W"
            )
        return power
    if not gpu.power_default_w:
        raise SettingsError(f"{gpu}: it has no default power limit to take {percent:g} % of")
    power = float(round(gpu.power_default_w * float(percent) / 100))
    if not lowest <= power <= highest:
        least, most = (100 * limit / gpu.power_default_w for limit in (lowest, highest))
        raise SettingsError(
            f"{gpu}: expected a power limit from {math.ceil(least)} to {math.floor(most)} % of "
            f"{gpu.power_default_w:g} W ({lowest:g} to {highest:g} W), found {percent:g} %"
        )
    return power


def check_compute_mode(wanted: Any) -> None:
    """Raise SettingsError for a mode that there is not, or that would keep every program from the GPUs."""
    if wanted is not None and wanted not in COMPUTE_MODES:
        why = "; prohibited would let no program use the GPUs" if wanted == "prohibited" else ""
        raise SettingsError(
            f"gpu_settings_compute_mode: expected default or exclusive_process, found {wanted}{why}"
        )


def compute_mode_wanted(gpu: Gpu, wanted: str | None) -> str | None:
    """Return the compute mode. Raises SettingsError for one that the GPU cannot have."""
    if wanted == "exclusive_process" and gpu.mig_mode == mig.ON:
        # nvml.h, nvmlDeviceSetComputeMode: always default on a GPU in MIG mode.
        raise SettingsError(
            f"{gpu}: expected the compute mode default, as it always is in MIG mode, found {wanted}"
        )
    return wanted


def ecc_wanted(gpu: Gpu, wanted: Any) -> bool | None:
    """Return the ECC mode. Raises SettingsError where the GPU has none."""
    if wanted is not None and gpu.ecc_pending not in ("Enabled", "Disabled"):
        raise SettingsError(f"{gpu}: it has no ECC mode to set; leave gpu_settings_ecc out")
    return wanted  # type: ignore[no-any-return]  # bool, as the inventory was checked


def read_record() -> dict[str, list[int | None]]:
    """Clocks locked since the driver was loaded: UUID -> [graphics MHz, memory MHz].

    Of a note that is damaged nothing: then they are locked anew.
    """
    try:
        record: dict[str, list[int | None]] = json.loads(RECORD.read_text(encoding="utf-8"))
        clocks = [one for graphics, memory in record.values() for one in (graphics, memory)]
    except (FileNotFoundError, AttributeError, TypeError, ValueError, RecursionError):
        return {}
    return record if {*map(type, clocks)} <= {int, type(None)} else {}


def write_record(record: dict[str, list[int | None]]) -> None:
    """Replace the record in one step. At boot, files.py is not there."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    temporary = RECORD.with_suffix(".new")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(RECORD)


def differences(
    gpu: Gpu, wanted: Target, locked: bool, record: dict[str, list[int | None]], again: bool = False
) -> dict[str, str]:
    """Return what has to change on a GPU: setting -> "from -> to".

    Without persistence the driver has forgotten what the record says; with `again` it may have, and clocks
    are locked once more.
    """
    found: dict[str, str] = {}
    if not gpu.persistence:
        found[PERSISTENCE] = "Disabled -> Enabled"
    if (
        wanted.power_w is not None
        and gpu.power_w is not None
        and abs(gpu.power_w - wanted.power_w) >= POWER_STEP_W
    ):
        found[POWER_LIMIT] = f"{gpu.power_w:g} -> {wanted.power_w:g} W"
    if locked:
        now = record.get(gpu.uuid, [None, None]) if gpu.persistence else [None, None]
        if now[0] != wanted.graphics_mhz or (again and wanted.graphics_mhz):
            found[GRAPHICS_CLOCK] = f"{now[0] or 'default'} -> {wanted.graphics_mhz or 'default'} MHz"
        elif (
            wanted.graphics_mhz
            and gpu.graphics_mhz
            and gpu.graphics_mhz > wanted.graphics_mhz + CLOCK_STEP_MHZ
        ):
            # Lower than the lock is power or heat, which the health check judges; higher means that the
            # lock is gone.
            found[GRAPHICS_CLOCK] = f"{gpu.graphics_mhz} -> {wanted.graphics_mhz} MHz"
        if now[1] != wanted.memory_mhz or (again and wanted.memory_mhz):
            found[MEMORY_CLOCK] = f"{now[1] or 'default'} -> {wanted.memory_mhz or 'default'} MHz"
    else:
        is_now = (gpu.application_memory_mhz, gpu.application_graphics_mhz)
        if application_clocks(gpu, wanted) != is_now:
            memory, graphics = application_clocks(gpu, wanted)
            found[APPLICATION_CLOCKS] = f"{is_now[0]},{is_now[1]} -> {memory},{graphics} MHz"
    if wanted.compute_mode and (word := COMPUTE_MODES[wanted.compute_mode][0]) != gpu.compute_mode:
        found[COMPUTE_MODE] = f"{gpu.compute_mode} -> {word}"
    if wanted.ecc is not None and (word := ECC_MODES[wanted.ecc][0]) != gpu.ecc_pending:
        found[ECC_MODE] = f"{gpu.ecc_pending} -> {word}"
    return found


def application_clocks(gpu: Gpu, wanted: Target) -> tuple[int | None, int | None]:
    """Memory and graphics clock in MHz, in nvidia-smi's order; without a memory clock the highest."""
    if wanted.graphics_mhz is None:
        return gpu.default_application_memory_mhz, gpu.default_application_graphics_mhz
    return wanted.memory_mhz or gpu.memory_max_mhz, wanted.graphics_mhz


def set_gpu(gpu: Gpu, wanted: Target, changes: dict[str, str]) -> None:
    """Carry out the changes on one GPU.

    Persistence comes first: without it the others are forgotten at once.
    """

    def run(*arguments: str) -> None:
        try:
            set_one(str(gpu), gpu.index, *arguments)
        except SettingsError as error:
            if arguments[0] not in CLOCK_SETTERS or not any(words in str(error) for words in FORBIDDEN):
                raise
            raise SettingsError(
                f"{str(error).rstrip('.')}; where a cloud, hypervisor or container lets nobody set clocks, "
                "set gpu_settings_clocks: default for the node"
            ) from error

    if PERSISTENCE in changes:
        run("-pm", "1")
    if POWER_LIMIT in changes:
        run("-pl", f"{wanted.power_w:g}")
    if GRAPHICS_CLOCK in changes:
        clock = wanted.graphics_mhz
        run(*(("-lgc", f"{clock},{clock}") if clock else ("-rgc",)))
    if MEMORY_CLOCK in changes:
        clock = wanted.memory_mhz
        run(*(("-lmc", f"{clock},{clock}") if clock else ("-rmc",)))
    if APPLICATION_CLOCKS in changes:
        memory, graphics = application_clocks(gpu, wanted)
        run(*(("-ac", f"{memory},{graphics}") if wanted.graphics_mhz else ("-rac",)))
    if COMPUTE_MODE in changes and wanted.compute_mode:
        run("-c", COMPUTE_MODES[wanted.compute_mode][1])
    if ECC_MODE in changes and wanted.ecc is not None:
        run("-e", ECC_MODES[wanted.ecc][1])


class Found(NamedTuple):
    """The GPUs beside what they are to have, by UUID; what differs; and what the operator should know."""

    gpus: list[Gpu]
    targets: dict[str, Target]
    changes: dict[Gpu, dict[str, str]]
    layouts: list[mig.Change]
    notes: list[str]

    @property
    def named(self) -> Changes:
        """What differs, for people."""
        found = {str(gpu): dict(changes) for gpu, changes in self.changes.items()}
        for change in self.layouts:
            found.setdefault(str(change.card), {})[MIG_LAYOUT] = str(change)
        return found


def look(settings: dict[str, Any], again: bool = False) -> Found:
    """Set the GPUs against their settings; changes nothing. Raises SettingsError as `settle` does."""
    clocks = settings["clocks"]
    check_clocks(clocks)
    check_compute_mode(settings.get("compute_mode"))
    wish = settings.get("mig")
    mig.check(wish)
    gpus = read_gpus()
    supported = read_supported() if clocks not in ("max", "default") else {}
    targets = {gpu.uuid: target(gpu, settings, supported.get(gpu.uuid, {})) for gpu in gpus}
    layouts = mig.differences(wish, [gpu.card for gpu in gpus]) if wish else []
    if settings.get("compute_mode") == "exclusive_process" and any(change.layout for change in layouts):
        raise SettingsError(
            "gpu_settings_compute_mode: expected default beside gpu_settings_mig, as MIG mode has no other, "
            "found exclusive_process"
        )
    locked = bool(settings["locked_clocks"]["graphics"])
    changes = compared(gpus, targets, locked, read_record(), again)
    notes = [*pending(gpus), *held_back(gpus, targets)]
    if clocks == "max":
        left = [gpu for gpu in gpus if not settable(gpu, settings["locked_clocks"])]
        notes += [f"{gpu}: its clocks cannot be set; the driver chooses them" for gpu in left]
    return Found(gpus, targets, changes, layouts, notes)


def pending(gpus: list[Gpu]) -> list[str]:
    """Return sentences about modes that wait for a reboot, or a reset, which is the operator's to choose."""
    return [
        f"{gpu}: {mode} mode is {now} until the next reboot, then {then}"
        for gpu in gpus
        for mode, now, then in (("ECC", gpu.ecc, gpu.ecc_pending), ("MIG", gpu.mig_mode, gpu.mig_pending))
        if now != then
    ]


def held_back(gpus: list[Gpu], targets: dict[str, Target]) -> list[str]:
    """Return sentences about GPUs that power or heat keeps below the clock that was set."""
    return [
        f"{gpu}: power or heat keeps it at {gpu.graphics_mhz} MHz, below its clock of {wanted} MHz"
        for gpu in gpus
        if (wanted := targets[gpu.uuid].graphics_mhz)
        and gpu.graphics_mhz
        and gpu.graphics_mhz < wanted - CLOCK_STEP_MHZ
        and (gpu.slowed_by or 0) & SLOWED
    ]


def refusal(found: Found, settings: dict[str, Any], busy_ok: bool) -> str | None:
    """Return why the changes are not made, known before anything is touched; None where they can be."""
    if reason := mig.refusal(found.layouts, bool(settings.get("mig_change_ok"))):
        return reason
    for gpu, changes in found.changes.items():
        modes = [mode for mode in (COMPUTE_MODE, ECC_MODE) if mode in changes]
        # Who only watches a GPU is not touched by its modes.
        users = holders(uuid=gpu.uuid, ignore=DAEMONS, computing=True) if modes and not busy_ok else []
        if users:
            return (
                f"{gpu}: {users[0]}, so its {modes[0]} stays {changes[modes[0]].split(' -> ')[0]}; "
                "drain the node, or set gpu_settings_busy_ok: true"
            )
    return None


def settle(
    settings: dict[str, Any], only_look: bool = False, again: bool = False, busy_ok: bool = False
) -> Changes:
    """Bring all GPUs of the node to the wanted settings and read them back.

    `settings`: clocks ("max", "default", "efficient" or {graphics, memory} in MHz), locked_clocks ({graphics,
    memory}: whether these GPUs can lock them), and if they are wanted power_limit_w (W) or
    power_limit_percent (of the GPU's default), compute_mode, ecc, mig and mig_change_ok. Returns what was
    changed, or with `only_look` what would be. `again` is for the boot unit: clocks are locked whatever was
    noted, and of MIG only instances are made that a reboot has taken. Raises SettingsError when a value is
    out of range, refused or read back as another one, or when it would disturb somebody who uses a GPU.
    """
    found = look(settings, again)
    if again:
        gone = [change for change in found.layouts if change.layout and change.found == []]
        found = found._replace(layouts=gone)
    elif not only_look and (reason := refusal(found, settings, busy_ok)):
        raise SettingsError(reason)
    if only_look:
        return found.named
    divide(found.layouts)
    gpus = read_gpus() if found.layouts else found.gpus
    reach(gpus, found.targets, bool(settings["locked_clocks"]["graphics"]), again)
    return found.named


def settle_at_boot(settings: dict[str, Any]) -> Changes:
    """`settle` as the boot unit does it: what is wrong with a MIG layout keeps no GPU from its clocks."""
    try:
        return settle(settings, again=True)
    except SettingsError:
        if settings.get("mig"):
            settle({**settings, "mig": None}, again=True)
        raise


def divide(changes: list[mig.Change]) -> None:
    """Make MIG layouts. Instances go when persistence does; a change of the mode resets the GPU's clocks."""
    for change in changes:
        set_one(str(change.card), change.card.index, "-pm", "1")
    mig.carry_out(changes)
    if reset := [one.card.uuid for one in changes if (one.card.mode == mig.ON) != bool(one.layout)]:
        write_record({uuid: clocks for uuid, clocks in read_record().items() if uuid not in reset})


def compared(
    gpus: list[Gpu],
    targets: dict[str, Target],
    locked: bool,
    record: dict[str, list[int | None]],
    again: bool = False,
) -> dict[Gpu, dict[str, str]]:
    """Return what differs, of those GPUs where something does."""
    return {
        gpu: found for gpu in gpus if (found := differences(gpu, targets[gpu.uuid], locked, record, again))
    }


def reach(gpus: list[Gpu], targets: dict[str, Target], locked: bool, again: bool = False) -> Changes:
    """Bring GPUs to their targets, by UUID, and read them back: see `settle`."""
    record = read_record()
    changes = compared(gpus, targets, locked, record, again)
    if not changes:
        return {}
    for gpu, found in changes.items():
        wanted = targets[gpu.uuid]
        set_gpu(gpu, wanted, found)
        if locked:
            record[gpu.uuid] = [wanted.graphics_mhz, wanted.memory_mhz]
            write_record(record)
    for gpu in read_gpus():
        left = differences(gpu, targets[gpu.uuid], locked, record) if gpu.uuid in targets else {}
        if left:
            setting, change = next(iter(left.items()))
            raise SettingsError(f"{gpu}: {setting} did not take ({change}); nvidia-smi reported no error")
    return {str(gpu): found for gpu, found in changes.items()}


def present(locked: bool) -> dict[str, dict[str, Any]]:
    """Return the target that each GPU has now, by UUID: what `settle_back` returns to."""
    record, found = read_record(), {}
    for gpu in read_gpus():
        if locked:
            graphics, memory = record.get(gpu.uuid, [None, None]) if gpu.persistence else [None, None]
        else:
            graphics, memory = gpu.application_graphics_mhz, gpu.application_memory_mhz
            if (memory, graphics) == application_clocks(gpu, Target(None, None, None)):
                graphics = memory = None
        found[gpu.uuid] = asdict(Target(graphics, memory, gpu.power_w))
    return found


def settle_back(state: dict[str, dict[str, Any]], locked: bool) -> Changes:
    """Return to what `present` has said. A GPU that was not there then is left alone."""
    gpus = [gpu for gpu in read_gpus() if gpu.uuid in state]
    return reach(gpus, {gpu.uuid: Target(**state[gpu.uuid]) for gpu in gpus}, locked)


def main() -> int:
    """`gpu_settings.py SETTINGS.json`: apply the settings, at boot or after a restart of the daemon."""
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} SETTINGS.json", file=sys.stderr)
        return 2
    try:
        settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        changes = settle_at_boot(settings)
        left = look(settings)
    except (OSError, ValueError) as error:
        print(f"GPU settings were not applied: {error}", file=sys.stderr)
        return 1
    for gpu, settings in changes.items():
        print(f"{gpu}: " + ", ".join(f"{setting} {change}" for setting, change in settings.items()))
    for note in left.notes:
        print(note, file=sys.stderr)
    for change in left.layouts:
        print(f"{change.card}: its MIG layout is left as it is ({change})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
