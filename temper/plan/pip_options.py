"""Options of pip as its configuration file has them: in a process list, all would read their passwords."""

from __future__ import annotations

import re
import shlex

SHORT = {"-i": "index-url", "-f": "find-links", "-c": "constraint"}
LONG = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?", re.DOTALL)
# They would let in what has no hash, or have code run that a package brings along.
REFUSED = ("editable", "no-binary", "only-binary", "requirement", "require-hashes")


def configuration(arguments: str) -> str:
    """Return the file for these arguments of `pip install`. Raises ValueError, without repeating a value."""
    found: dict[str, list[str]] = {}
    words = shlex.split(arguments)
    while words:
        word = words.pop(0)
        match = LONG.fullmatch(word)
        name, value = (match[1], match[2]) if match else (SHORT.get(word, ""), None)
        if not name:
            raise ValueError(
                "expected options of pip, such as --index-url ADDRESS, found something else: write options "
                "in their long form"
            )
        if name in REFUSED:
            raise ValueError(
                f"--{name} has no place here: torch comes as wheels, with the hashes of a requirements file "
                "(gpu_validation_torch_requirements)"
            )
        if value is None:
            value = words.pop(0) if words and not words[0].startswith("-") else "true"
        if not value.isprintable():
            raise ValueError(f"the value of --{name} has characters that cannot be printed")
        found.setdefault(name, []).append(value)
    lines = [
        f"{name} =\n{''.join(f'    {value}{chr(10)}' for value in each)}" for name, each in found.items()
    ]
    return f"[install]\n{''.join(lines)}" if found else ""
