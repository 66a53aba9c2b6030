"""JSON Schema of the plan, made from its dataclasses: the two cannot disagree.

    python -m temper.plan.schema    write temper/plan/schemas/node-plan.schema.json

A test fails when the file is not what this would write.
"""

from __future__ import annotations

from pathlib import Path

from temper.plan.node_plan import SCHEMA_VERSION, NodePlan
from validation.report.schema import document

FILE = Path(__file__).parent / "schemas" / "node-plan.schema.json"


def node_plan_schema() -> str:
    """The content of the schema file."""
    return document("Temper: the plan of one node", NodePlan, SCHEMA_VERSION)


if __name__ == "__main__":
    FILE.write_text(node_plan_schema(), encoding="utf-8")
