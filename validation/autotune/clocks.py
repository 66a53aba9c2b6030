"""The clocks of a node's GPUs, set by the program with which role gpu_settings sets them at every boot.

In the journal they stand under the file that says what the role wants. What is tried is in a file under /run,
which is gone with the next boot, as the clocks are.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from validation.processes.files import write_atomically

#: What role gpu_settings wants, the program that brings it about, and what is tried in its place.
SETTINGS = Path("etc/temper/gpu-settings.json")
PROGRAM = Path("usr/local/lib/temper/gpu_settings.py")
TRIED = Path("run/temper/autotune-gpu-settings.json")
#: nvidia-smi sets one GPU after the other, each in seconds.
PATIENCE_S = 300.0


class ClocksError(Exception):
    """Clocks that cannot be read or set; the message says why."""


def settings_file(root: Path) -> Path:
    """Return where the role's settings are, which stands for the clocks in a journal."""
    return root / SETTINGS


def are_clocks(path: Path) -> bool:
    """Return whether a path of a journal stands for the clocks."""
    return path.name == SETTINGS.name


def in_force(settings: Path) -> str:
    """Return what is tried, else what the role wants: a word, or JSON with MHz.

    Raises OSError and ClocksError.
    """
    try:
        text = _tried(settings).read_text(encoding="utf-8")
    except FileNotFoundError:
        text = settings.read_text(encoding="utf-8")
    try:
        clocks = json.loads(text)["clocks"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClocksError(f"{settings}: expected the settings of role gpu_settings") from error
    return clocks if isinstance(clocks, str) else json.dumps(clocks, sort_keys=True)


def lock(settings: Path, value: str) -> None:
    """Have all GPUs run at these clocks. Raises OSError and ClocksError.

    That something is tried stays noted until what the role wants is in force again.
    """
    if in_force(settings) == value:
        return
    wanted = json.loads(settings.read_text(encoding="utf-8"))
    clocks = json.loads(value) if value.startswith("{") else value
    tried = _tried(settings)
    back = clocks == wanted["clocks"]
    given = tried.with_suffix(".back") if back else tried
    # Layouts of MIG are no part of a trial.
    text = json.dumps({name: one for name, one in wanted.items() if name != "mig"} | {"clocks": clocks})
    given.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given, text)
    command = [str(settings.parents[2] / PROGRAM), str(given)]
    try:
        done = subprocess.run(  # noqa: S603 - a program of Temper's with a clock as a number
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClocksError(f"clocks {value}: they were not set in {PATIENCE_S:.0f} s") from error
    if done.returncode:
        raise ClocksError(f"clocks {value}: {done.stderr.strip() or 'they could not be set'}")
    if back:
        tried.unlink(missing_ok=True)
        given.unlink()


def _tried(settings: Path) -> Path:
    """Return the path; the root of the system is two folders above the settings' folder."""
    return settings.parents[2] / TRIED
