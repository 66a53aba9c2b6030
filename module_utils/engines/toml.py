"""TOML as far as the engines' configuration needs it: read, compare, write, and edit one list in a text."""

from __future__ import annotations

import json
import re
import sys
import typing

from ansible.module_utils.engines.base import RefusedError

try:
    import tomllib
except ImportError:  # Python before 3.11: RHEL 9 and Ubuntu 22.04
    _loads = None
else:
    _loads = tomllib.loads

Table = dict[str, typing.Any]
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str, where: str) -> Table:
    """Read a document; `where` names it in the message of a failure."""
    if _loads is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise RefusedError(
            f"{where} is TOML, which Python {version} of this node cannot read: expected Python 3.11 or "
            "newer (Debian 12). Set ansible_python_interpreter to one, or leave the engines that use it "
            "alone: container_engines_exclude: [containerd, crio]."
        )
    try:
        table: Table = _loads(text)
    except ValueError as error:
        raise RefusedError(f"{where} is not valid TOML ({error}). Correct it and run again.") from error
    return table


def render(table: Table, path: tuple[str, ...] = ()) -> str:
    """A document with one header for each table that has keys of its own, or nothing at all."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    parts = []
    if path and (lines or not tables):
        parts.append("\n".join([f"[{'.'.join(map(_key, path))}]", *lines]) + "\n")
    elif lines:
        parts.append("\n".join(lines) + "\n")
    parts += [render(value, (*path, key)) for key, value in tables.items()]
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: typing.Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a basic string of TOML
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return str(value)  # dates and times


def at(table: Table, path: tuple[str, ...]) -> typing.Any:
    """What stands at a path, or None."""
    place: typing.Any = table
    for key in path:
        place = place.get(key) if isinstance(place, dict) else None
    return place


def combined(below: Table, above: Table) -> Table:
    """Both, tables merged; `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = combined(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def without_zeros(value: typing.Any) -> typing.Any:
    """A value without what is empty, false or 0: programs print these or leave them out as they like."""
    if isinstance(value, dict):
        small = {key: without_zeros(item) for key, item in value.items()}
        return {key: item for key, item in small.items() if item not in ({}, [], "", "0s", 0, False, None)}
    return value


def contains(table: Table, part: Table) -> bool:
    """Whether all of `part` stands in `table`."""
    return all(
        contains(table[key], value)
        if isinstance(value, dict) and isinstance(table.get(key), dict)
        else key in table and table[key] == value
        for key, value in part.items()
    )


IMPORTS = re.compile(r"^(imports[ \t]*=[ \t]*)\[(.*?)\]", re.MULTILINE | re.DOTALL)


def with_import(text: str, path: str, where: str) -> str:
    """A containerd configuration that also imports `path`; nothing else of the text changes."""
    document = parse(text, where)
    imports = document.get("imports", [])
    if "imports" not in document:
        # First, because a key after a table's header would belong to that table.
        changed = f'imports = ["{path}"]\n{text}'
    else:
        separator = ", " if imports else ""
        changed = IMPORTS.sub(
            lambda found: f'{found[1]}[{found[2].rstrip().rstrip(",")}{separator}"{path}"]', text, 1
        )
    if parse(changed, where) != {**document, "imports": [*imports, path]}:
        raise RefusedError(
            f'{where}: its list `imports` cannot be extended safely. Add "{path}" to it and run again.'
        )
    return changed


def without_import(text: str, path: str, where: str) -> str:
    """The text without the import of `path`, the line that we added included."""
    document = parse(text, where)
    if path not in document.get("imports", []):
        return text
    line = f'imports = ["{path}"]\n'
    left = [item for item in document["imports"] if item != path]
    if text.startswith(line):
        changed, expected = (
            text[len(line) :],
            {key: value for key, value in document.items() if key != "imports"},
        )
    else:
        items = ", ".join(json.dumps(item) for item in left)
        changed, expected = (
            IMPORTS.sub(lambda found: f"{found[1]}[{items}]", text, 1),
            {**document, "imports": left},
        )
    if parse(changed, where) != expected:
        raise RefusedError(f'{where}: take "{path}" out of its list `imports` and run again.')
    return changed
