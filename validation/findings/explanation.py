"""What is known of one finding: the form of the entries in explanations.py and its like."""

from __future__ import annotations

from dataclasses import dataclass

PROJECT = "docs/validation.md"


@dataclass(frozen=True)
class Explanation:
    """One code: what it says, why it happens, and what to do, in sentences without a full stop."""

    title: str
    meaning: str
    causes: tuple[str, ...]
    actions: tuple[str, ...]
    source: str = PROJECT
