"""JSON Schema of the statement, made from its dataclasses: the two cannot disagree.

    python -m temper.compliance.schema    write temper/compliance/schemas/statement.schema.json

A test fails when the file is not what this would write.
"""

from __future__ import annotations

from pathlib import Path

from temper.compliance.model import SCHEMA_VERSION, Statement
from validation.report.schema import document

FILE = Path(__file__).parent / "schemas" / "statement.schema.json"


def statement_schema() -> str:
    """The content of the schema file."""
    return document("Temper: a statement of compliance", Statement, SCHEMA_VERSION)


if __name__ == "__main__":
    FILE.write_text(statement_schema(), encoding="utf-8")
