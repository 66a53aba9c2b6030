"""JSON Schema of the plan, made from its dataclasses: the two cannot disagree.

`make docs` writes it; a test fails when the file is not what this returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from temper.plan.node_plan import SCHEMA_VERSION, NodePlan
from temper.plan.wanted import Kind, parameters_of, type_of
from validation.report.schema import document, schema_of

FILE = Path(__file__).parent / "schemas" / "node-plan.schema.json"


def wanted_by_kind(definitions: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield what is wanted of a setting, kind by kind, and of a parameter by its key."""
    for kind in Kind:
        keys = parameters_of(kind)
        for key in keys or ("",):
            when: dict[str, object] = {"kind": {"const": str(kind)}}
            if keys:
                when["key"] = {"const": key}
            expected = schema_of(cast("type", type_of(kind, key)) | None, definitions)
            yield {"properties": when | {"wanted": expected}}


def node_plan_schema() -> str:
    """Return the content of the schema file."""
    schema = json.loads(document("Temper: the plan of one node", NodePlan, SCHEMA_VERSION))
    # The sentences of the refusals, which are no field of the dataclass.
    schema["$defs"]["NodePlan"]["properties"]["problems"] = {"type": "array", "items": {"type": "string"}}
    definitions = schema["$defs"]
    definitions["PlannedSetting"]["properties"]["wanted"] = {}
    definitions["PlannedSetting"]["anyOf"] = [*wanted_by_kind(definitions)]
    return json.dumps(schema, indent=2) + "\n"
