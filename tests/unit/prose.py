"""The prose of the documentation: its words and sentences, without what `make docs` generates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What programs write into a page: `make docs`, and the table of `make fuzz`.
GENERATED = re.compile(
    r"<!-- ([\w -]+): (?:made by `make docs`|begin\. `make fuzz`).*?<!-- (?:end of \1|\1: end) -->", re.DOTALL
)
WHOLE_PAGE = re.compile(r"<!-- made by `make docs`", re.IGNORECASE)
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TARGET = re.compile(r"^\[[^]]+\]: \S+$", re.MULTILINE)
LINK = re.compile(r"!?\[((?:[^][]|\[[^]]*\])*)\](?:\([^)]*\)|\[[^]]*\])?")
CODE = re.compile(r"`[^`]*`")
#: A paragraph, a list's item, a heading, a definition and a row of a table each begin anew.
START = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+] |\d+\. |#+ |\||: ))")
END = re.compile(r"[.!?][\"')*]*(?=\s|$)")


def text(page: Path) -> str:
    """Return what somebody wrote by hand: no generated tables, code blocks, comments and addresses."""
    written = page.read_text(encoding="utf-8")
    if WHOLE_PAGE.search(written):
        return ""
    for unread in (GENERATED, BLOCK, COMMENT, TARGET):
        written = unread.sub("", written)
    return written


def words(written: str) -> int:
    """Return how many words a reader reads, as `wc -w` counts them, without marks of tables and lists."""
    return sum(any(map(str.isalnum, word)) for word in written.split())


def sentences(written: str) -> Iterator[str]:
    """Yield each sentence; inline code is one word, and each cell of a table stands alone."""
    # One word for code, so that a dot or a bar in it ends nothing.
    written = LINK.sub(r"\1", CODE.sub("CODE", written))
    for block in START.split(written):
        for cell in block.split("|"):
            yield from (sentence.strip() for sentence in END.split(cell) if sentence.strip())
