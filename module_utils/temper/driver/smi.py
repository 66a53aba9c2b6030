"""Runs nvidia-smi and reads the values that it prints.

Installed on the node, too, beside gpu_settings.py, which temper-gpu-settings.service runs at boot.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper import process
else:
    # Beside the program of the boot unit: the node needs no Ansible.
    import process

COMMAND_TIMEOUT_S = 120
NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")
# nvidia-smi's words, with status 0, where a GPU refuses; the second ones in machines of some clouds.
REFUSALS = ("Treating as warning", "not supported in current scope")


class SettingsError(ValueError):
    """A setting cannot be read, or did not take.

    The message says which GPU, what was expected and what was found.
    """


def nvidia_smi(*arguments: str, nothing: str = "") -> str:
    """Return what nvidia-smi prints; empty where it fails with the words `nothing`, which say so.

    Raises SettingsError with its own words when it fails otherwise.
    """
    command = ["nvidia-smi", *arguments]
    try:
        completed = process.complete(command, COMMAND_TIMEOUT_S)
    except FileNotFoundError:
        raise SettingsError(
            "nvidia-smi is not installed; install the driver first (playbooks/provision.yml)"
        ) from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"`{' '.join(command)}` did not answer within {COMMAND_TIMEOUT_S} s") from None
    words = " ".join((completed.stdout + completed.stderr).split())
    if nothing and nothing in words:
        return ""
    if completed.returncode:
        raise SettingsError(f"`{' '.join(command)}` failed with status {completed.returncode}: {words}")
    return completed.stdout


def set_one(label: str, index: int, *arguments: str) -> str:
    """Run a setter for one GPU, `label` in words. Raises SettingsError where the GPU refuses."""
    words = " ".join(nvidia_smi("-i", str(index), *arguments).split())
    if any(refusal in words for refusal in REFUSALS):
        raise SettingsError(f"{label}: `nvidia-smi {' '.join(arguments)}`: {words}")
    return words


def number(text: str) -> float | None:
    """Return a value of nvidia-smi's CSV; "[N/A]" and its kin are None."""
    return float(text) if NUMBER.fullmatch(text) else None


def integer(text: str) -> int | None:
    """Return a clock of nvidia-smi's CSV, in MHz."""
    value = number(text)
    return None if value is None else round(value)
