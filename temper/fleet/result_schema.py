"""JSON Schema of what a node that pulls hands back, made from its dataclass: the two cannot disagree.

    python -m temper.fleet.result_schema    write temper/fleet/schemas/pull-result.schema.json

A test fails when the file is not what this would write.
"""

from __future__ import annotations

from pathlib import Path

from pull.result import SCHEMA_VERSION, Result
from validation.report.schema import document

FILE = Path(__file__).parent / "schemas" / "pull-result.schema.json"


def result_schema() -> str:
    """The content of the schema file."""
    return document("Temper: what a run of a node that pulls came to", Result, SCHEMA_VERSION)


if __name__ == "__main__":
    FILE.write_text(result_schema(), encoding="utf-8")
