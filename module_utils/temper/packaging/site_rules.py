"""What the node's owner keeps from apt or dnf, as the reason for a transaction that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ansible.module_utils.temper.process import printable

#: Each rule is tried by itself, which takes the package manager a second.
MOST_TRIED = 40
RULES_SHOWN = 4


@dataclass(frozen=True)
class SiteRule:
    """An entry of apt's preferences, or an exclusion or a lock of dnf, and where it stands on the node."""

    place: str
    text: str

    def __str__(self) -> str:
        lines = [line.strip() for line in self.text.splitlines()]
        shown = "; ".join(line for line in lines if line and not line.lower().startswith("explanation:"))
        return f"{self.place} ({printable(shown)})"


def barring(rules: Sequence[SiteRule], works: Callable[[Sequence[SiteRule]], bool]) -> list[SiteRule]:
    """Return the rules that keep a transaction from working; none where it fails without them, too.

    `works` tries the transaction with some of them. Where none of them alone is the reason, all are.
    """
    if not rules or not works(()):
        return []
    return [rule for rule in rules[:MOST_TRIED] if not works((rule,))] or list(rules)


def sentence(rules: Sequence[SiteRule]) -> str:
    """Say which rules keep the packages away, and what to do."""
    rest = len(rules) - RULES_SHOWN
    named = ", ".join(map(str, rules[:RULES_SHOWN])) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"A rule of this node keeps packages away, and without it the transaction works: {named}. Remove it, "
        "or have it leave out these packages, and run again."
    )
