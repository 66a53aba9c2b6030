"""JSON Schemas of what Temper reads and writes, made from its dataclasses: the two cannot disagree.

    python3 -m tools.schemas    write the files and say what changed

tests/unit/test_documentation.py fails when a file is not what this would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pull import result
from temper.compliance import model
from temper.plan import node_plan
from temper.plan.wanted import Kind, parameters_of, type_of
from tools.documents import ROOT, write
from validation.report import schema

PLAN = ROOT / "temper" / "plan" / "schemas" / "node-plan.schema.json"
VALIDATION = ROOT / "validation" / "schemas"
STATEMENT = ROOT / "temper" / "compliance" / "schemas" / "statement.schema.json"
PULL_RESULT = ROOT / "temper" / "fleet" / "schemas" / "pull-result.schema.json"


def wanted_by_kind(definitions: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield what is wanted of a setting, kind by kind, and of a parameter by its key."""
    for kind in Kind:
        keys = parameters_of(kind)
        for key in keys or ("",):
            when: dict[str, object] = {"kind": {"const": str(kind)}}
            if keys:
                when["key"] = {"const": key}
            expected = schema.schema_of(cast("type", type_of(kind, key)) | None, definitions)
            yield {"properties": when | {"wanted": expected}}


def node_plan_schema() -> str:
    """Return the content of the schema file."""
    found = json.loads(
        schema.document("Temper: the plan of one node", node_plan.NodePlan, node_plan.SCHEMA_VERSION)
    )
    # The sentences of the refusals, which are no field of the dataclass.
    found["$defs"]["NodePlan"]["properties"]["problems"] = {"type": "array", "items": {"type": "string"}}
    definitions = found["$defs"]
    definitions["PlannedSetting"]["properties"]["wanted"] = {}
    definitions["PlannedSetting"]["anyOf"] = [*wanted_by_kind(definitions)]
    return json.dumps(found, indent=2) + "\n"


def documents() -> dict[Path, str]:
    """Return the content of each schema file."""
    statement = "Temper: a statement of compliance", model.Statement, model.SCHEMA_VERSION
    pulled = "Temper: the result of a run of a node that pulls", result.Result, result.SCHEMA_VERSION
    return {
        PLAN: node_plan_schema(),
        STATEMENT: schema.document(*statement),
        PULL_RESULT: schema.document(*pulled),
        **{VALIDATION / name: text for name, text in schema.documents().items()},
    }


if __name__ == "__main__":
    sys.exit(write(documents()))
