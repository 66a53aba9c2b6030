"""Gives the settings of the hardening controls (planning/os_controls.py) to Ansible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning.os_controls import os_hardening


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {"os_hardening": os_hardening}
