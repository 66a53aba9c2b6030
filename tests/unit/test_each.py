"""A table that is one test names every row that fails, and nothing that a row leaves reaches the next."""

import os
from pathlib import Path

import pytest

from tests.unit.each import each

NAME = "TEMPER_TEST_OF_EACH"


def test_every_row_that_fails_is_named_with_what_it_says() -> None:
    @each((1, 2), (3, 3), (5, 6), ("a", "b"))
    def equal(one: object, other: object) -> None:
        if one == "a":
            raise KeyError("no such row")
        assert one == other

    with pytest.raises(pytest.fail.Exception) as failure:
        equal()
    told = str(failure.value)
    assert told.startswith("3 of 4 rows:")
    assert [
        row for row in ("one=1, other=2", "one=5, other=6", "one='a', other='b'") if row not in told
    ] == []
    assert "one=3" not in told
    assert "KeyError: 'no such row'" in told
    assert f"{Path(__file__).name}:" in told


def test_of_two_tables_every_row_meets_every_row() -> None:
    seen: list[tuple[object, ...]] = []

    @each("x", "y")
    @each((1, 2), (3, 4))
    def pairs(first: int, second: int, letter: str) -> None:
        seen.append((first, second, letter))
        assert (first, letter) != (3, "y")

    with pytest.raises(pytest.fail.Exception, match=r"letter=.y.\n(?s:.*)first=3, second=4"):
        pairs()
    assert seen == [(1, 2, "x"), (3, 4, "x"), (1, 2, "y"), (3, 4, "y")]


def test_a_row_that_is_skipped_is_said_and_stops_no_other() -> None:
    @each(1, 2)
    def skipping(number: int) -> None:
        if number == 1:
            pytest.skip("no program")
        assert number != 2

    with pytest.raises(pytest.fail.Exception, match="number=2"):
        skipping()
    with pytest.raises(pytest.skip.Exception, match="number=1: no program"):
        each(1)(skipping.__wrapped__)()  # type: ignore[attr-defined]


def test_a_row_of_another_length_and_an_empty_table_are_errors() -> None:
    with pytest.raises(ValueError, match="proves nothing"):
        each()
    with pytest.raises(ValueError, match="argument"):
        each((1, 2), (1, 2, 3))(lambda _one, _other: None)()


@each(1, 2)
def test_each_row_has_a_folder_an_environment_and_an_output_of_its_own(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NAME not in os.environ
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
    monkeypatch.setenv(NAME, str(number))
    (tmp_path / "file").touch()
    print(number)
