"""What readers of other programs' output share: one error, and the words of users as one short line."""

from __future__ import annotations

import re

#: The most that a sentence quotes of a word that a user may have chosen.
MOST_CHARACTERS = 300
UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa1-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]+")


class ReadingError(ValueError):
    """The output of a program, or a file of the kernel, is not what it has to be.

    The message names the program, what was expected and the line that was found.
    """


def in_one_line(words: str, most: int = MOST_CHARACTERS) -> str:
    """Return the words without line breaks and control characters, cut to `most` characters."""
    line = " ".join(UNPRINTABLE.sub(" ", words[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
