"""Read options that an operator writes in YAML. What is wrong with a file is said all at once."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from validation.model.contract import StringEnum
from validation.processes.files import read_at_most

#: Far more than anybody writes by hand.
MOST_BYTES = 16 << 20

T = TypeVar("T")
Word = TypeVar("Word", bound=StringEnum)


class OptionsError(Exception):
    """Options that cannot be used; `problems` has a sentence for each thing that is wrong with them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Wrong(Exception):  # noqa: N818 - it never leaves `read_fields`
    """What was expected of a value."""


def load(path: Path, what: str, *, secret: bool = False) -> Any:
    """Return what a file of YAML holds; `what` is the file's content for people. Raises OptionsError.

    What is wrong is said without any word of the file if `secret`.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is there twice: YAML takes the last one, and says nothing of the others."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    which = "a key" if secret else f"key {name}"
                    raise yaml.constructor.ConstructorError(
                        None, None, f"found {which} twice", key.start_mark
                    )
                seen.add(name)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(read_at_most(path, MOST_BYTES).decode(), Loader)  # noqa: S506 - a safe one
    # The 30th of February is a ValueError.
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        # Not the line itself: it may have a secret.
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = " ".join(
            str(getattr(error, "problem", "") or getattr(error, "strerror", "") or error).split()
        )
        if secret:
            reason = re.sub(r"\b(alias|anchor|tag|handle) '.*'", r"\1", reason)
        raise OptionsError(
            [f"{path}: expected {what} in YAML, found none that can be read: {place}{reason}"]
        ) from error


def named(text: str) -> Path:
    """Read an option that names a file or folder. Raises ArgumentTypeError.

    An empty one, as a variable that a script has not set leaves it, would be the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file or folder, found an empty one")
    return Path(text)


def told(error: object) -> str:
    """Return an error in words: that of the system with the file in front, and without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror


def read_fields(
    content: Any,
    readers: Mapping[str, Callable[[Any], Any]],
    where: str,
    problems: list[str],
    required: tuple[str, ...] = (),
    *,
    secret: bool = False,
) -> dict[str, Any]:
    """Return every known key, read; what is wrong goes into `problems`, without any value if `secret`.

    `where` is the place in the file that the content has, or for the whole file what people call that,
    with a colon: `policy:`.
    """
    place = where.removesuffix(":")
    if not isinstance(content, dict):
        problems.append(f"{place}: expected a mapping with {', '.join(readers)}, {_found(content, secret)}")
        return {}
    found = {}
    prefix = "" if where.endswith(":") else f"{where}."
    for key, value in content.items():
        name = f"{prefix}{key}"
        if key not in readers:
            close = difflib.get_close_matches(str(key), readers, n=1)
            if secret and not close:  # a value at the place of a key
                name = place
            hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(readers)}"
            problems.append(f"{name}: no such key; {hint}")
            continue
        try:
            found[key] = readers[key](value)
        except OptionsError as error:
            problems += error.problems
        except Wrong as error:
            problems.append(f"{name}: expected {error}, {_found(value, secret)}")
    if missing := [key for key in required if key not in content]:
        there = [str(key) for key in content if key in readers or not secret]
        problems.append(
            f"{place}: expected the keys {', '.join(missing)}, found {', '.join(there) or 'none'}"
        )
    return found


def _found(value: Any, secret: bool) -> str:
    """Return what was found, for people: a secret by its type alone."""
    if not secret:
        return f"found {value!r}"
    kinds = {str: "a text", bool: "true or false", int: "a number", list: "a list", dict: "a mapping"}
    return f"found {kinds.get(type(value), 'nothing' if value is None else 'something else')}"


def read_entry(
    content: Any,
    readers: Mapping[str, Callable[[Any], Any]],
    where: str,
    required: tuple[str, ...],
    *,
    secret: bool = False,
) -> dict[str, Any]:
    """Return the fields of an entry, all required ones among them. Raises OptionsError."""
    problems: list[str] = []
    found = read_fields(content, readers, where, problems, required, secret=secret)
    if problems:
        raise OptionsError(problems)
    return found


def whole(least: int, what: str, most: int | None = None) -> Callable[[Any], int]:
    """Return a reader of a whole number; `what` is counted."""

    def read_it(value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            raise Wrong(f"{what}, {least} or more" if most is None else f"{what}, {least} to {most}")
        return value

    return read_it


def items(what: str, item: Callable[[Any], T], *, some: bool = False) -> Callable[[Any], tuple[T, ...]]:
    """Return a reader of a list of `what`; with `some`, it has at least one entry."""

    def read_it(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list) or (some and not value):
            raise Wrong(f"a list of {what}")
        return tuple(item(child) for child in value)

    return read_it


def text(value: Any) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise Wrong("a text")
    return value


def word(kind: type[Word]) -> Callable[[Any], Word]:
    """Return a reader of one word of an enumeration."""

    def read_it(value: Any) -> Word:
        if value not in list(kind):
            raise Wrong(f"one of {', '.join(kind)}")
        return kind(value)

    return read_it
