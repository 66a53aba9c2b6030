"""What all engines share: what is asked of them, the plan of one, and how a unit's command line is read."""

from __future__ import annotations

import re
import shlex
import tempfile
import typing
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper.process import CommandError, parsed, printable, run
from ansible.module_utils.temper.settings.base import RefusedError

RUNTIME = "/usr/bin/nvidia-container-runtime"
HEADER = "# Managed by Temper."
PROC = Path("/proc")
MOST_OF_JOURNAL = 2000
RESTART_TIMEOUT_S = 300  # Docker may wait for containers that do not want to end


@dataclass(frozen=True)
class EngineOptions:
    """What the operator asks of every engine."""

    present: bool
    default_runtime: bool
    cdi: bool
    shm_size: str
    ulimits: dict[str, int]  # bytes or counts; -1 is no limit


@dataclass(frozen=True)
class Unit:
    """A systemd unit: whether it is there, whether it runs, and the command line of its daemon."""

    name: str
    exists: bool
    active: bool
    command: tuple[str, ...]

    def flags(self) -> dict[str, list[str]]:
        """Return values of the command line's long options; one without a value has an empty text."""
        values: dict[str, list[str]] = {}
        words = list(self.command[1:])
        for position, word in enumerate(words):
            if not word.startswith("-"):
                continue
            name, has_value, value = word.partition("=")
            following = words[position + 1] if position + 1 < len(words) else ""
            if not has_value and not following.startswith("-"):
                value = following
            values.setdefault(name.lstrip("-"), []).append(value)
        return values


@dataclass
class EnginePlan:
    """What one engine needs."""

    engine: str
    unit: Unit
    version: str
    # Path -> the whole new content, None to remove the file. Only what differs from the disk.
    files: dict[str, str | None] = field(default_factory=dict)
    action: str = ""  # "", "reload" or "restart"
    daemon_reload: bool = False
    warnings: list[str] = field(default_factory=list)
    disagreement: str = ""  # what the running engine has not taken over
    cdi: bool = False  # whether this engine reads CDI specifications
    record: dict[str, typing.Any] = field(default_factory=dict)  # what is to be known to undo it

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files or self.action or self.daemon_reload)


class Engine(typing.Protocol):
    """One engine: what it would change, whether the engine accepts that, and what is in effect.

    `cdi_since` is the first version that reads what the toolkit writes (CDI 0.7.0, NVIDIA's documentation),
    and `without_cdi` what that means for containers where the engine is older.
    """

    name: str
    title: str
    unit: str
    program: str
    cdi_since: str
    without_cdi: str

    def plan(self, options: EngineOptions, unit: Unit, record: dict[str, typing.Any], /) -> EnginePlan:
        """Compare what is asked with the files. Raises RefusedError."""

    def disagreement(self, options: EngineOptions, plan: EnginePlan, /) -> str:
        """Return what the running engine has not taken over, in words; empty where it has all."""


def begin(
    engine: Engine, unit: Unit, version: str, options: EngineOptions, record: dict[str, typing.Any]
) -> EnginePlan:
    """Return the part of a plan in which all engines are alike.

    It says whether CDI is used, and warns where it cannot be.
    """
    plan = EnginePlan(engine.name, unit, version, record=dict(record))
    plan.cdi = options.cdi and at_least(version, engine.cdi_since)
    if options.present and options.cdi and not plan.cdi:
        plan.warnings.append(
            f"{engine.title} {version} does not read CDI specifications of the toolkit's version (expected "
            f"{engine.cdi_since} or newer){engine.without_cdi}."
        )
    return plan


def ours(text: str | None) -> bool:
    """Return whether a drop-in is there to be written: ours, or none at all."""
    return text is None or text.startswith(HEADER)


def refuse_foreign(path: Path, text: str | None, engine: Engine) -> None:
    """Refuse a drop-in of somebody else in our place."""
    if not ours(text):
        raise RefusedError(
            f"{path} was written by somebody else (nvidia-ctk, the GPU operator): remove it, or name "
            f"{engine.name} in container_engines_exclude."
        )


def version_printed(engine: Engine) -> str:
    """Return the version that an engine's program prints. Raises CommandError."""
    return version_of(run([engine.program, "--version"]))


def say(engine: Engine, *arguments: str) -> str:
    """Return what an engine prints of its configuration. Raises RefusedError with its complaint about it."""
    try:
        return run([engine.program, *arguments])
    except CommandError as error:
        raise RefusedError(
            f"{engine.title} does not accept its configuration: {error}. Correct it and run again."
        ) from error


def journal_of(unit: str) -> str:
    """Return the last lines of a unit's journal as a sentence, to explain why it failed."""
    try:
        lines = run(["journalctl", "--no-pager", "--output=cat", "--lines=8", f"--unit={unit}"]).split()
    except CommandError:
        return ""
    # A daemon's journal has words of those who use it.
    return f" Its journal: {printable(' '.join(lines), MOST_OF_JOURNAL)}" if lines else ""


def read_units(names: list[str]) -> dict[str, Unit]:
    """Return the state of several units, asked in one call."""
    if not names:
        return {}
    properties = "LoadState,ActiveState,MainPID,ExecStart"
    try:
        blocks = run(["systemctl", "show", f"--property={properties}", "--", *names]).strip().split("\n\n")
    except CommandError as error:
        raise RefusedError(f"systemctl does not say how {', '.join(names)} are: {error}") from error
    if len(blocks) != len(names):
        raise RefusedError(f"systemctl does not say how {', '.join(names)} are: found {len(blocks)} answers")
    units = {}
    for name, block in zip(names, blocks):  # noqa: B905  (strict= is not in Python 3.9)
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        active = values.get("ActiveState") in ("active", "reloading", "activating")
        units[name] = Unit(name, values.get("LoadState") == "loaded", active, _command(values))
    return units


def _command(values: dict[str, str]) -> tuple[str, ...]:
    """Return the daemon's arguments: with variables expanded where it runs; else as the unit has them."""
    try:
        raw = (PROC / values.get("MainPID", "0") / "cmdline").read_bytes()
    except OSError:
        match = re.search(r"argv\[\]=(.*?) ; ", values.get("ExecStart", ""))
        words = parsed("systemctl show", match[1] if match else "", shlex.split)
        return tuple(word for word in words if not word.startswith("$"))
    return tuple(word.decode(errors="replace") for word in raw.split(b"\0") if word)


def version_of(text: str) -> str:
    """Return the first version number in a program's --version."""
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    return match[0] if match else ""


def at_least(version: str, minimum: str) -> bool:
    """Return whether a dotted version is the minimum or newer; an unknown one is not."""
    return bool(version) and _numbers(version) >= _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def read_text(path: Path) -> str | None:
    """Return a file's content, or None where there is none; a link or anything else is refused."""
    if path.is_symlink():
        raise RefusedError(
            f"{path} is a link to {path.resolve()}: expected a regular file, because a link is somebody "
            "else's to manage. Replace it by its content, or name the engine in "
            "container_engines_exclude."
        )
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path} is no UTF-8 text ({error}): correct it and run again.") from error


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for copies that programs may read and write."""
    return tempfile.TemporaryDirectory(prefix="temper-")
