#!/usr/bin/python3
"""Persistence mode, clocks and power limits: what is set, what should be, and the way from one to the other.

None of these settings survives a reboot or a reload of the driver, so this file serves twice: as a module
utility of Ansible, and, installed on the node, as the program that temper-gpu-settings.service runs at boot.
Standard library only.

nvidia-smi answers status 0 for a setting that a GPU refuses, so every setting is read back. Locked clocks
have no query: what was set is noted under /run, which forgets it at a reboot as the driver does, and the
live clock must agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = Path("/run/temper/gpu-settings.json")
COMMAND_TIMEOUT_S = 120
# How far a live clock may be from a locked one: clocks move in steps of 15 MHz.
CLOCK_STEP_MHZ = 15
POWER_STEP_W = 1.0
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
)


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
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
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
        gpus.append(Gpu(int(index), uuid, name, persistence == "Enabled", *power, *clocks))  # type: ignore[arg-type]
    return gpus


def read_gpus() -> list[Gpu]:
    """All GPUs of the node as they are now."""
    return parse_gpus(nvidia_smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))


def target(gpu: Gpu, settings: dict[str, Any]) -> Target:
    """What a GPU is to have. Raises SettingsError for a value outside what the GPU supports."""
    clocks, power = settings["clocks"], settings["power_limit_w"]
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
    if (
        memory is not None
        and not settings["locked_clocks"]["memory"]
        and settings["locked_clocks"]["graphics"]
    ):
        raise SettingsError(
            f"GPU {gpu.index} ({gpu.name}): its memory clock cannot be locked (Ampere and newer only); "
            "leave `memory` out of gpu_settings_clocks"
        )
    limits = (gpu.power_min_w, gpu.power_max_w)
    if power is not None and None not in limits and not limits[0] <= power <= limits[1]:
        raise SettingsError(
            f"GPU {gpu.index} ({gpu.name}): expected a power limit from {limits[0]:g} to {limits[1]:g} W, "
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
    gpu: Gpu, wanted: Target, locked: bool, record: dict[str, list[int | None]]
) -> dict[str, str]:
    """What has to change on a GPU: setting -> "from -> to"."""
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
        now = record.get(gpu.uuid, [None, None])
        if now[0] != wanted.graphics_mhz:
            found["graphics clock"] = f"{now[0] or 'default'} -> {wanted.graphics_mhz or 'default'} MHz"
        elif (
            wanted.graphics_mhz
            and gpu.graphics_mhz
            and gpu.graphics_mhz > wanted.graphics_mhz + CLOCK_STEP_MHZ
        ):
            # Lower than the lock is power or heat, which the health check judges; higher means that the
            # lock is gone.
            found["graphics clock"] = f"{gpu.graphics_mhz} -> {wanted.graphics_mhz} MHz"
        if now[1] != wanted.memory_mhz:
            found["memory clock"] = f"{now[1] or 'default'} -> {wanted.memory_mhz or 'default'} MHz"
    elif wanted.graphics_mhz and gpu.application_graphics_mhz != wanted.graphics_mhz:
        memory = wanted.memory_mhz or gpu.memory_max_mhz
        found["application clocks"] = f"{gpu.application_graphics_mhz} -> {memory},{wanted.graphics_mhz} MHz"
    return found


def set_gpu(gpu: Gpu, wanted: Target, changes: dict[str, str]) -> None:
    """Carry out the changes on one GPU.

    Persistence comes first: without it the others are forgotten at once.
    """
    one = ("-i", str(gpu.index))
    if "persistence mode" in changes:
        nvidia_smi(*one, "-pm", "1")
    if "power limit" in changes:
        nvidia_smi(*one, "-pl", f"{wanted.power_w:g}")
    if "graphics clock" in changes:
        clock = wanted.graphics_mhz
        nvidia_smi(*one, *(("-lgc", f"{clock},{clock}") if clock else ("-rgc",)))
    if "memory clock" in changes:
        clock = wanted.memory_mhz
        nvidia_smi(*one, *(("-lmc", f"{clock},{clock}") if clock else ("-rmc",)))
    if "application clocks" in changes:
        nvidia_smi(*one, "-ac", f"{wanted.memory_mhz or gpu.memory_max_mhz},{wanted.graphics_mhz}")


def settle(settings: dict[str, Any], only_look: bool = False) -> dict[str, dict[str, str]]:
    """Bring all GPUs of the node to the wanted settings and read them back.

    `settings`: clocks ("max", "default" or {graphics, memory} in MHz), power_limit_w (W or None),
    locked_clocks ({graphics, memory}: whether these GPUs can lock them). Returns what was changed, or with
    `only_look` what would be: "GPU 0 (name)" -> setting -> "from -> to". Raises SettingsError when a value is
    out of range, refused, or read back as another one.
    """
    locked = bool(settings["locked_clocks"]["graphics"])
    record = read_record()
    gpus = read_gpus()
    targets = {gpu.uuid: target(gpu, settings) for gpu in gpus}
    changes = {gpu: found for gpu in gpus if (found := differences(gpu, targets[gpu.uuid], locked, record))}
    named = {f"GPU {gpu.index} ({gpu.name})": found for gpu, found in changes.items()}
    if only_look or not changes:
        return named
    for gpu, found in changes.items():
        set_gpu(gpu, targets[gpu.uuid], found)
    if locked:
        write_record({uuid: [wanted.graphics_mhz, wanted.memory_mhz] for uuid, wanted in targets.items()})
    for gpu in read_gpus():
        left = differences(gpu, targets[gpu.uuid], locked, read_record())
        if left:
            setting, change = next(iter(left.items()))
            raise SettingsError(
                f"GPU {gpu.index} ({gpu.name}): {setting} did not take ({change}); "
                "nvidia-smi reported no error"
            )
    return named


def main() -> int:
    """`gpu_settings.py SETTINGS.json`: apply the settings at boot."""
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} SETTINGS.json", file=sys.stderr)
        return 2
    try:
        changes = settle(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except (SettingsError, OSError, ValueError) as error:
        print(f"GPU settings were not applied: {error}", file=sys.stderr)
        return 1
    for gpu, settings in changes.items():
        print(f"{gpu}: " + ", ".join(f"{setting} {change}" for setting, change in settings.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
