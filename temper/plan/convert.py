"""The border of this package: YAML and JSON in, typed and checked; typed rows out, as plain JSON.

It takes Ansible's own types, and leaves out what no field is for. Documents of Temper have a strict reader
(validation/model/contract.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from validation.model.printable import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Of what a node reports: characters of a text and of a key, items of one list, lists inside each other, and
#: the first number that is too large. A node has 3,000 packages.
MOST_CHARACTERS = 64 << 10
MOST_KEY = 256
MOST_ITEMS = 20_000
MOST_DEPTH = 8
MOST_NUMBER = 2**63

Row = TypeVar("Row", bound="DataclassInstance")


@cache
def hints_of(kind: object) -> dict[str, object]:
    """Return the types of a dataclass's fields."""
    return dict(get_type_hints(kind))


def build(kind: type[Row], data: Mapping[str, object], where: str) -> Row:
    """Return a dataclass from a mapping; what it has no field for is left out.

    A field `from_` takes the key `from`.

    `where` names the data for messages. Raises ValueError where a key is missing or a value has another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected a mapping, found {data!r:.100}")  # noqa: TRY004 - as any other form
    found, hints = {}, hints_of(kind)
    for field in fields(kind):
        key = field.name.rstrip("_")
        if key in data:
            found[field.name] = checked(hints[field.name], data[key], f"{where}.{key}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}: expected the key {key}, found {list(data)!r:.200}")
    make: Callable[..., Row] = kind
    return make(**found)


def checked(hint: object, value: object, where: str) -> object:
    """Return the value as its type hint wants it: lists as tuples, mappings as dataclasses or dictionaries.

    Texts and numbers of Ansible's own types, which know where they come from, become plain ones.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return plain(value)
    if origin in (UnionType, Union):  # `Literal[...] | None` is the second one
        return None if value is None else checked(arguments[0], value, where)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(checked(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {str(key): checked(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in arguments:
        return arguments[arguments.index(value)]
    if isinstance(value, bool):
        if hint is bool:
            return value
    elif hint is float and isinstance(value, int | float):
        return float(value)
    elif isinstance(hint, type) and isinstance(value, hint):
        convert: Callable[[object], object] = hint
        return convert(value)
    raise ValueError(f"{where}: expected {getattr(hint, '__name__', hint)}, found {value!r:.100}")


def from_node(values: Mapping[str, object], where: str) -> dict[str, object]:
    """Return what a node reports, with bounds: text printable, numbers of 64 bits, no endless list.

    A user of the node may choose words in it, such as the name of a process, and must not have the node
    refused by them. Raises ValueError.
    """
    return {label(str(key)): bounded(value, f"{where}.{label(str(key))}") for key, value in values.items()}


def bounded(value: object, where: str, depth: int = MOST_DEPTH) -> object:
    """Return one value of it. Raises ValueError."""
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise ValueError(f"{where}: expected at most {MOST_CHARACTERS} characters, found {len(value)}")
        return printable(value)
    if isinstance(value, Mapping | list | tuple):
        if len(value) > MOST_ITEMS or not depth:
            raise ValueError(
                f"{where}: expected at most {MOST_ITEMS} items, and {MOST_DEPTH} lists inside each other, "
                f"found {len(value)} items"
            )
        if not isinstance(value, Mapping):
            return [bounded(item, f"{where}[{place}]", depth - 1) for place, item in enumerate(value)]
        return {
            label(str(key)): bounded(item, f"{where}.{label(str(key))}", depth - 1)
            for key, item in value.items()
        }
    if (
        isinstance(value, int | float) and not abs(value) < MOST_NUMBER
    ):  # also NaN, which is less than nothing
        raise ValueError(f"{where}: expected a number of 64 bits, found a larger one")
    return value


def label(key: str) -> str:
    """Return a key of a node's as one short line."""
    return printable(key[:MOST_KEY]).replace("\n", " ")


def plain(value: object) -> Any:
    """Dataclasses as mappings, tuples as lists. Not asdict: it copies, which Ansible's values refuse."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
