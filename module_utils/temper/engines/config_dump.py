"""What containerd and CRI-O print of the configuration that they have read: looked up and compared.

They print TOML in one regular form: one key a line under the full name of its table. That is all that is read
here, because Python knows TOML from 3.11 on and nodes may have 3.9. nvidia-ctk writes it, nothing of ours.
"""

from __future__ import annotations

import re

from ansible.module_utils.temper.process import OutputError, shown

Key = tuple[str, ...]
Dump = dict[Key, str]

STRING = r'"(?:[^"\\]|\\.)*"|' + r"'[^']*'"
WORD = re.compile(rf"{STRING}|[A-Za-z0-9_-]+")
HEADER = re.compile(r"(\[\[?)(.*?)\]\]?$")
ASSIGNMENT = re.compile(rf"({STRING}|[A-Za-z0-9_-]+)\s*=\s*(.*)$")
# Programs print what is empty, false or 0, or leave it out, as they like.
NOTHING = {"", "false", "0", "0.0", "0s", "[]", "{}"}


def read(text: str) -> Dump:
    """Return each key's full path and its value as printed, strings without quotes, zeros left out.

    Raises OutputError.
    """
    dump: Dump = {}
    table: Key = ()
    tables_of_a_list = 0
    lines = iter(text.split("\n"))
    for line in map(str.strip, lines):
        if header := HEADER.match(line):
            table = tuple(map(_bare, WORD.findall(header[2])))
            if header[1] == "[[":
                tables_of_a_list += 1
                table = (*table, f"#{tables_of_a_list}")
        elif assignment := ASSIGNMENT.match(line):
            value = assignment[2]
            depth = _depth(value) if value.startswith("[") else 0
            following = [value]
            while depth > 0:
                if (more := next(lines, None)) is None:
                    raise OutputError(
                        f"the configuration that the engine prints ends within a list: {shown(value)}"
                    )
                if not more.strip().startswith("#"):
                    following.append(more.strip())
                    depth += _depth(more)
            value = "".join(following)
            if _bare(value) not in NOTHING:
                dump[(*table, _bare(assignment[1]))] = _bare(value)
    return dump


def strings(value: str) -> list[str]:
    """Return the strings of a printed list."""
    return [_bare(word) for word in re.findall(STRING, value)]


def below(dump: Dump, path: Key) -> Dump:
    """Return what stands under a table, by the rest of the path."""
    return {key[len(path) :]: value for key, value in dump.items() if key[: len(path)] == path}


def _bare(text: str) -> str:
    quoted = re.fullmatch(STRING, text)
    return text[1:-1] if quoted else text


def _depth(value: str) -> int:
    without_strings = re.sub(STRING, "", value)
    return without_strings.count("[") - without_strings.count("]")
