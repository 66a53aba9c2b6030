"""Whether a role has anything to do in this run: see temper/plan/quiet.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.quiet import QUIET, in_fact


def has_nothing_to_do(role: str, facts: Mapping[str, Any], stage: Iterable[str]) -> bool:
    """Return whether the stage's first task has found that a role has nothing to do and nothing to say.

    `stage`: the roles that the present play carries out together (`settle_together`).
    """
    return in_fact(str(role), [*map(str, stage)], facts.get(QUIET))


class FilterModule:
    """Gives the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return it by its name."""
        return {"has_nothing_to_do": has_nothing_to_do}
