"""JSON Schemas of what Temper reads and writes, made from its dataclasses: the two cannot disagree.

    python3 -m tools.schemas    write the files and say what changed

tests/unit/test_schemas.py fails when a file is not what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pull import result
from temper.compliance import model
from temper.plan import schema as plan
from tools.documents import ROOT, write
from validation.report import schema

VALIDATION = ROOT / "validation" / "schemas"
STATEMENT = ROOT / "temper" / "compliance" / "schemas" / "statement.schema.json"
PULL_RESULT = ROOT / "temper" / "fleet" / "schemas" / "pull-result.schema.json"


def documents() -> dict[Path, str]:
    """Return the content of each schema file."""
    statement = "Temper: a statement of compliance", model.Statement, model.SCHEMA_VERSION
    pulled = "Temper: the result of a run of a node that pulls", result.Result, result.SCHEMA_VERSION
    return {
        plan.FILE: plan.node_plan_schema(),
        STATEMENT: schema.document(*statement),
        PULL_RESULT: schema.document(*pulled),
        **{VALIDATION / name: text for name, text in schema.documents().items()},
    }


if __name__ == "__main__":
    sys.exit(write(documents()))
