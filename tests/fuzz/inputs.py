"""Ways to hand an input to a reader, and the samples that are in a file."""

import json
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tests.fuzz import mutations

#: What a terminal acts on, and what cannot be written: lines and tabs are neither.
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def folder() -> Path:
    """Return a new folder; the guard removes it."""
    return Path(tempfile.mkdtemp())


def said(
    module: Any, name: str, read: Callable[[], object], make: Callable[[str], Any] = str
) -> Callable[[Any], object]:
    """Return a reader that has the program behind `module.name` print its input."""

    def ask(given: Any) -> object:
        text = given if isinstance(given, str) else mutations.as_text(given)
        with patch.object(module, name, lambda *_, **__: make(text)):
            return read()

    return ask


def written(read: Callable[[Path], object]) -> Callable[[Any], object]:
    """Return a reader of a file that has its input."""

    def ask(given: Any) -> object:
        path = folder() / "gpu01.json"
        text = given if isinstance(given, str) else mutations.as_text(given)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read(path)

    return ask


def at(module: Any, name: str, read: Callable[[], object]) -> Callable[[Any], object]:
    """Return a reader of the file whose path is the constant `module.name`."""

    def ask(path: Path) -> object:
        with patch.object(module, name, path):
            return read()

    return written(ask)


def on_tree(*reads: Callable[[Path], object]) -> Callable[[dict[str, Any]], object]:
    """Return a reader of a tree of files: their content by path."""

    def ask(files: Any) -> object:
        root = folder()
        for name, text in files.items() if isinstance(files, dict) else ():
            path = root / name.replace("\0", "").encode("ascii", "replace").decode()
            if path.is_relative_to(root) and ".." not in name:
                with suppress(OSError):  # a name that is too long
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(str(text).encode("utf-8", "surrogatepass"))
        return [read(root) for read in reads]

    return ask


def each_line(read: Callable[[str], object]) -> Callable[[str], object]:
    """Return a reader of a text's lines."""
    return lambda text: [read(line) for line in text.splitlines()]


def json_of(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value, default=str))


@cache
def recorded() -> dict[str, list[Any]]:
    """Return the samples by name."""
    found: dict[str, list[Any]] = yaml.safe_load(
        Path(__file__).with_name("samples.yml").read_text(encoding="utf-8")
    )
    return found


def of(*names: str) -> Callable[[], list[Any]]:
    """Return the samples of these names."""
    return lambda: [sample for name in names for sample in recorded()[name]]


def these(*samples: Any) -> Callable[[], list[Any]]:
    """Return these samples."""
    return lambda: list(samples)
