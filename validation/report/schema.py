"""JSON Schema of what this package reads and writes, made from its dataclasses: the two cannot disagree.

    python -m validation.report.schema    write validation/schemas/*.json

A test fails when the files are not what this would write.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Annotated, Any

from validation.autotune.evidence import AUTOTUNE_VERSION, Evidence
from validation.fabric.groups import Fleet
from validation.model import bounds
from validation.model.bounds import Bounds
from validation.model.contract import (
    EXPECTATIONS_VERSION,
    FABRIC_VERSION,
    RESULT_VERSION,
    SUMMARY_VERSION,
    NodeResult,
    StringEnum,
)
from validation.model.expectations import FleetExpectations
from validation.verdict.verdicts import FleetVerdict

#: Each document by the name of its file, and its version.
FILES: dict[str, tuple[type, int]] = {
    "node-result": (NodeResult, RESULT_VERSION),
    "summary": (FleetVerdict, SUMMARY_VERSION),
    "expectations": (FleetExpectations, EXPECTATIONS_VERSION),
    "fabric": (Fleet, FABRIC_VERSION),
    "autotune": (Evidence, AUTOTUNE_VERSION),
}
#: What a schema cannot say of every value in one place.
DEFAULTS = (
    "What has no bounds of its own: "
    f"a text has at most {bounds.MOST_CHARACTERS} characters, none of them NUL or half a surrogate pair; "
    f"a name in an object {bounds.MOST_KEY}; a list or an object {bounds.MOST_ITEMS} items; "
    f"a whole number is at most {bounds.MOST_WHOLE}, another one {bounds.MOST_NUMBER:g}, either way; "
    f"free values are at most {bounds.MOST_DEPTH} deep."
)
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def documents() -> dict[str, str]:
    """Return the content of each schema file by its name."""
    return {
        f"{name}.schema.json": document(f"Temper validation: {name}", kind, version, DEFAULTS)
        for name, (kind, version) in FILES.items()
    }


def document(title: str, kind: type, version: int, comment: str = "") -> str:
    """Return the content of the schema file of a dataclass that has a field `schema_version`."""
    definitions: dict[str, Any] = {}
    reference = schema_of(kind, definitions)
    definitions[kind.__name__]["properties"]["schema_version"] = {"const": version}
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{title}, version {version}",
        **({"$comment": comment} if comment else {}),
        **reference,
        "$defs": definitions,
    }
    return json.dumps(content, indent=2) + "\n"


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; what it refers to is added to the definitions."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        of = next(one for one in arguments[1:] if isinstance(one, Bounds))
        return _bounded(schema_of(arguments[0], definitions), of)
    if kind in (Any, object):
        return {}
    if kind is type(None):
        return {"type": "null"}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(choice, definitions) for choice in arguments]}
    if origin is tuple:
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast("type", kind), definitions)
    if issubclass(kind, StringEnum):
        return {"enum": [str(member) for member in kind]}
    return {"type": SCALARS[kind]}


def _bounded(schema: dict[str, Any], of: Bounds) -> dict[str, Any]:
    words = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}
    found = schema | {words.get(schema["type"], "maximum"): of.most}
    if schema["type"] not in words:
        found["minimum"] = -of.most if of.least is None else of.least
    if of.pattern:
        found["pattern"] = f"^(?:{of.pattern})$"
    return found | {"format": "date-time"} if of.moment else found


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the definition of a dataclass. What is written always has all its fields."""
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # first, in case it contains itself
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = dataclasses.fields(kind)
        definitions[kind.__name__] = {
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": {field.name: schema_of(hints[field.name], definitions) for field in fields},
            "required": [field.name for field in fields if _has_no_default(field)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


if __name__ == "__main__":
    for file_name, content in documents().items():
        (Path(__file__).parents[1] / "schemas" / file_name).write_text(content)
