#!/usr/bin/python3
"""Persistence mode, clocks and power limits: what is set, what should be, and the way from one to the other.

None of these settings survives a reboot or a reload of the driver, so this file serves twice: as a module
utility of Ansible, and, installed on the node, as the program that temper-gpu-settings.service runs at boot.
Standard library only.

nvidia-smi answers status 0 for a setting that a GPU refuses, so its words are read, and every setting is read
back. Locked clocks have no query: what was set is noted under /run, which forgets it at a reboot as the
driver does, and the live clock must agree.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":
    from ansible.module_utils import process
else:
    # The program of the boot unit: process.py is installed beside it, and the node needs no Ansible.
    import process

RECORD = Path("/run/temper/gpu-settings.json")
COMMAND_TIMEOUT_S = 120
# How far a live clock may be from a locked one: clocks move in steps of 15 MHz.
CLOCK_STEP_MHZ = 15
POWER_STEP_W = 1.0
# nvidia-smi's words, with status 0, after it has said what a GPU refuses.
REFUSAL = "Treating as warning"
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
)


# "GPU 0 (name)" -> setting -> "from -> to".
Changes = dict[str, dict[str, str]]


class SettingsError(Exception):
    """A setting cannot be read, or did not take.

    The message says which GPU, what was expected and what was found.
    """


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


@dataclass(frozen=True)
class Target:
    """What one GPU is to have. None: leave at the driver's default."""

    graphics_mhz: int | None
    memory_mhz: int | None
    power_w: float | None


def nvidia_smi(*arguments: str) -> str:
    """Standard output of nvidia-smi. Raises SettingsError with its own words when it fails."""
    command = ["nvidia-smi", *arguments]
    try:
        completed = process.complete(command, COMMAND_TIMEOUT_S)
    except FileNotFoundError:
        raise SettingsError(
            "nvidia-smi is not installed; install the driver first (playbooks/provision.yml)"
        ) from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"`{' '.join(command)}` did not answer within {COMMAND_TIMEOUT_S} s") from None
    if completed.returncode:
        words = " ".join((completed.stdout + completed.stderr).split())
        raise SettingsError(f"`{' '.join(command)}` failed with status {completed.returncode}: {words}")
    return completed.stdout


def number(text: str) -> float | None:
    """A value of nvidia-smi's CSV; "[N/A]" and its kin are None."""
    try:
        return float(text)
    except ValueError:
        return None


def integer(text: str) -> int | None:
    """A clock of nvidia-smi's CSV, in MHz."""
    value = number(text)
    return None if value is None else round(value)


def parse_gpus(text: str) -> list[Gpu]:
    """GPUs from `--query-gpu=FIELDS --format=csv,noheader,nounits`."""
    gpus = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS):
            raise SettingsError(
                f"nvidia-smi answered {len(values)} values where {len(FIELDS)} were asked for: {line!r}"
            )
        index, uuid, name, persistence, *rest = values
        power = [number(value) for value in rest[:4]]
        clocks = [integer(value) for value in rest[4:]]
        told = (*power, *clocks)
        gpus.append(
            Gpu(int(index), uuid, name, persistence == "Enabled", *told)  # type: ignore[arg-type]  # not counted
        )
    return gpus


def read_gpus() -> list[Gpu]:
    """All GPUs of the node as they are now."""
    return parse_gpus(nvidia_smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))


def check_clocks(clocks: Any) -> None:
    """Raises SettingsError for a wish that cannot be understood: a typo must not mean "default"."""
    if clocks in ("max", "default"):
        return
    if (
        isinstance(clocks, dict)
        and clocks
        and clocks.keys() <= {"graphics", "memory"}
        and all(type(clock) is int and clock > 0 for clock in clocks.values())
    ):
        return
    raise SettingsError(
        f"gpu_settings_clocks: expected max, default, or graphics and memory in MHz, found {clocks!r}"
    )


def target(gpu: Gpu, settings: dict[str, Any]) -> Target:
    """What a GPU is to have. Raises SettingsError for a value outside what the GPU supports."""
    clocks, lockable = settings["clocks"], settings["locked_clocks"]
    power = None if settings["power_limit_w"] is None else float(settings["power_limit_w"])
    graphics = memory = None
    if clocks == "max":
        graphics = gpu.graphics_max_mhz
    elif isinstance(clocks, dict):
        graphics, memory = clocks.get("graphics"), clocks.get("memory")
    for kind, wanted, highest in (
        ("graphics", graphics, gpu.graphics_max_mhz),
        ("memory", memory, gpu.memory_max_mhz),
    ):
        if wanted is not None and highest is not None and wanted > highest:
            raise SettingsError(
                f"GPU {gpu.index} ({gpu.name}): expected a {kind} clock up to {highest} MHz, "
                f"found {wanted} MHz"
            )
    if memory is not None and lockable["graphics"] and not lockable["memory"]:
        raise SettingsError(
            f"GPU {gpu.index} ({gpu.name}): its memory clock cannot be locked (Ampere and newer only); "
            "leave `memory` out of gpu_settings_clocks"
        )
    if memory is not None and graphics is None and not lockable["graphics"]:
        raise SettingsError(
            f"GPU {gpu.index} ({gpu.name}): its application clocks are set in pairs; "
            "add `graphics` to gpu_settings_clocks"
        )
    lowest_w, highest_w = gpu.power_min_w or 0.0, gpu.power_max_w or math.inf
    if power is not None and not lowest_w <= power <= highest_w:
        raise SettingsError(
            f"GPU {gpu.index} ({gpu.name}): expected a power limit from {lowest_w:g} to {highest_w:g} W, "
            f"found {power:g} W"
        )
    return Target(graphics, memory, power if power is not None else gpu.power_default_w)


def read_record() -> dict[str, list[int | None]]:
    """Clocks locked since the driver was loaded: UUID -> [graphics MHz, memory MHz]."""
    try:
        record: dict[str, list[int | None]] = json.loads(RECORD.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record


def write_record(record: dict[str, list[int | None]]) -> None:
    """Replace the record in one step."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    temporary = RECORD.with_suffix(".new")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(RECORD)


def differences(
    gpu: Gpu, wanted: Target, locked: bool, record: dict[str, list[int | None]], again: bool = False
) -> dict[str, str]:
    """What has to change on a GPU: setting -> "from -> to".

    Without persistence the driver has forgotten what the record says; with `again` it may have, and clocks
    are locked once more.
    """
    found: dict[str, str] = {}
    if not gpu.persistence:
        found["persistence mode"] = "Disabled -> Enabled"
    if (
        wanted.power_w is not None
        and gpu.power_w is not None
        and abs(gpu.power_w - wanted.power_w) >= POWER_STEP_W
    ):
        found["power limit"] = f"{gpu.power_w:g} -> {wanted.power_w:g} W"
    if locked:
        now = record.get(gpu.uuid, [None, None]) if gpu.persistence else [None, None]
        if now[0] != wanted.graphics_mhz or (again and wanted.graphics_mhz):
            found["graphics clock"] = f"{now[0] or 'default'} -> {wanted.graphics_mhz or 'default'} MHz"
        elif (
            wanted.graphics_mhz
            and gpu.graphics_mhz
            and gpu.graphics_mhz > wanted.graphics_mhz + CLOCK_STEP_MHZ
        ):
            # Lower than the lock is power or heat, which the health check judges; higher means that the
            # lock is gone.
            found["graphics clock"] = f"{gpu.graphics_mhz} -> {wanted.graphics_mhz} MHz"
        if now[1] != wanted.memory_mhz or (again and wanted.memory_mhz):
            found["memory clock"] = f"{now[1] or 'default'} -> {wanted.memory_mhz or 'default'} MHz"
    else:
        is_now = (gpu.application_memory_mhz, gpu.application_graphics_mhz)
        if application_clocks(gpu, wanted) != is_now:
            memory, graphics = application_clocks(gpu, wanted)
            found["application clocks"] = f"{is_now[0]},{is_now[1]} -> {memory},{graphics} MHz"
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
    if "persistence mode" in changes:
        set_one(gpu, "-pm", "1")
    if "power limit" in changes:
        set_one(gpu, "-pl", f"{wanted.power_w:g}")
    if "graphics clock" in changes:
        clock = wanted.graphics_mhz
        set_one(gpu, *(("-lgc", f"{clock},{clock}") if clock else ("-rgc",)))
    if "memory clock" in changes:
        clock = wanted.memory_mhz
        set_one(gpu, *(("-lmc", f"{clock},{clock}") if clock else ("-rmc",)))
    if "application clocks" in changes:
        memory, graphics = application_clocks(gpu, wanted)
        set_one(gpu, *(("-ac", f"{memory},{graphics}") if wanted.graphics_mhz else ("-rac",)))


def set_one(gpu: Gpu, *arguments: str) -> None:
    """Run a setter for one GPU. Raises SettingsError where nvidia-smi says that the GPU refuses."""
    words = " ".join(nvidia_smi("-i", str(gpu.index), *arguments).split())
    if REFUSAL in words:
        raise SettingsError(f"GPU {gpu.index} ({gpu.name}): `nvidia-smi {' '.join(arguments)}`: {words}")


def settle(settings: dict[str, Any], only_look: bool = False, again: bool = False) -> Changes:
    """Bring all GPUs of the node to the wanted settings and read them back.

    `settings`: clocks ("max", "default" or {graphics, memory} in MHz), power_limit_w (W or None),
    locked_clocks ({graphics, memory}: whether these GPUs can lock them). Returns what was changed, or with
    `only_look` what would be. With `again` clocks are locked whatever was noted. Raises SettingsError when a
    value is out of range, refused, or read back as another one.
    """
    check_clocks(settings["clocks"])
    gpus = read_gpus()
    targets = {gpu.uuid: target(gpu, settings) for gpu in gpus}
    return reach(gpus, targets, bool(settings["locked_clocks"]["graphics"]), only_look, again)


def reach(
    gpus: list[Gpu], targets: dict[str, Target], locked: bool, only_look: bool = False, again: bool = False
) -> Changes:
    """Bring GPUs to their targets, by UUID: see `settle`."""
    record = read_record()
    changes = {
        gpu: found for gpu in gpus if (found := differences(gpu, targets[gpu.uuid], locked, record, again))
    }
    named = {f"GPU {gpu.index} ({gpu.name})": found for gpu, found in changes.items()}
    if only_look or not changes:
        return named
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
            raise SettingsError(
                f"GPU {gpu.index} ({gpu.name}): {setting} did not take ({change}); "
                "nvidia-smi reported no error"
            )
    return named


def present(locked: bool) -> dict[str, dict[str, Any]]:
    """The target that each GPU has now, by UUID: what `settle_back` returns to."""
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
        changes = settle(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), again=True)
    except (SettingsError, OSError, ValueError) as error:
        print(f"GPU settings were not applied: {error}", file=sys.stderr)
        return 1
    for gpu, settings in changes.items():
        print(f"{gpu}: " + ", ".join(f"{setting} {change}" for setting, change in settings.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
