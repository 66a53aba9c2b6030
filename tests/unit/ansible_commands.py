"""Ansible's commands as processes, for tests of what it makes of our files."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def ansible(
    command: str, *arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of them to its end, with the checkout's ansible.cfg unless told otherwise."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(f"ansible-{command}")), *arguments],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
