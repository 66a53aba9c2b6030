"""Settings of a node that can be taken back: each knows its present state, and how to return to one.

`Record` keeps on the node, before anything is changed, what each setting was. So the empty list of wanted
settings restores the node, and a setting that is no longer wanted returns to what it was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from ansible.module_utils.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# What a state is on disk: JSON. None means "was not there".
State = Any


class SettingError(Exception):
    """A setting could not be made; the message is a sentence for the operator."""


def run(command: Sequence[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program; raise SettingError with its own words where `check` is set and it fails."""
    environment = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin",
    }
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError as error:
        raise SettingError(f"`{command[0]}` is not installed on this node.") from error
    if check and completed.returncode:
        output = " ".join((completed.stderr + completed.stdout).split())
        raise SettingError(f"`{' '.join(command)}` failed with status {completed.returncode}: {output}")
    return completed


class Setting:
    """One setting. `key` names it in the record and in what the operator reads."""

    key: str
    # What `rebuild` needs to make this object again, only to restore it.
    spec: dict[str, Any]

    def read(self) -> State:
        """The present state, enough to restore it."""
        raise NotImplementedError

    def settled(self) -> bool:
        """Whether nothing is left to do."""
        raise NotImplementedError

    def apply(self) -> None:
        """Make the setting."""
        raise NotImplementedError

    def restore(self, state: State) -> None:
        """Return to a state that `read` has returned."""
        raise NotImplementedError

    def obstacle(self) -> str | None:
        """Why it cannot be made here, known before anything is changed, or None."""
        return None

    def change(self) -> tuple[str, str]:
        """Before and after, for people: what `apply` would change."""
        raise NotImplementedError


class Record:
    """What settings were before Temper made them, and what a run that was cut off has still to do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        # Key -> {"spec", "state"}: enough to restore a setting that nobody asks for any more.
        self.originals: dict[str, dict[str, Any]] = data.get("originals", {})
        self.pending: list[str] = data.get("pending", [])

    def save(self) -> None:
        """Write it, or remove it where it is empty."""
        if not self.originals and not self.pending:
            self.path.unlink(missing_ok=True)
            return
        data = {"originals": self.originals, "pending": self.pending}
        replace_file(self.path, json.dumps(data, indent=1).encode(), 0o600)


def available(program: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(program) is not None
