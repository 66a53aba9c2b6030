"""What readers of other programs' output share: one error, and the words of users as one short line."""

from __future__ import annotations

#: The most that a sentence quotes of a word that a user may have chosen.
MOST_CHARACTERS = 300


class ReadingError(ValueError):
    """The output of a program, or a file of the kernel, is not what it has to be.

    The message names the program, what was expected and the line that was found.
    """


def in_one_line(words: str, most: int = MOST_CHARACTERS) -> str:
    """Return the words without line breaks and what cannot be printed, cut to `most` characters."""
    line = " ".join("".join(one if one.isprintable() else " " for one in words[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
