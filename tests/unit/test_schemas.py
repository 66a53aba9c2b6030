"""The JSON Schemas are those of the dataclasses."""

from pathlib import Path

from tests.unit.each import each
from tools import schemas

DOCUMENTS = schemas.documents()


@each(*DOCUMENTS)
def test_a_schema_is_what_make_docs_writes(path: Path) -> None:
    assert path.read_text() == DOCUMENTS[path], "out of date: run `make docs`"


def test_no_other_schema_of_the_payload_is_left() -> None:
    assert set(schemas.VALIDATION.iterdir()) <= set(DOCUMENTS)
