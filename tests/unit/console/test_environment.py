"""A command that another Python than ours starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("command", ["fleet", "rollout"])
def test_a_command_without_its_environment_says_what_to_type(command: str) -> None:
    """As in a new shell, or in cron. `-S` leaves packages out."""
    words = [sys.executable, "-S", "-m", command, "status"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f".venv/bin/python3 -m {command}" in done.stderr
