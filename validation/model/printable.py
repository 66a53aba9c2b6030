"""Text for people from words that somebody else has chosen: a node, a driver, a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Control characters would let a node's words move the cursor, and bidirectional ones reorder them; separators
# of lines begin one. Half of a surrogate pair, which JSON and file names may have, cannot be written at all.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return the text without what a terminal would act on; lines and tabs stay."""
    # Faster than to look for what is not, and true of nearly all texts.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = re.sub("\r\n?", "\n", text)
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return the text as one printable line: a node's words must not look like the line of another node."""
    return text if text.isprintable() else " ".join(printable(text).split())


def first_of(items: Iterable[object], most: int = 8, between: str = ", ") -> str:
    """Return the first of some names, and how many more there are: `gpu01, gpu02 and 30 more`."""
    names = [*map(str, items)]
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def number_of(count: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `3 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines in which each column has the width of its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
