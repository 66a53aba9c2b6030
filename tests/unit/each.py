"""One test for a table: `each` calls it with every row and names those that it fails for."""

import functools
import inspect
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]
#: So many characters of a row's value are shown.
SHOWN = 300


def each(*rows: Any) -> Callable[[Test], Test]:
    """Return a decorator that makes one test of a function and a table.

    A row's values are the function's first parameters: a tuple has several, anything else is the only one.
    The other parameters are fixtures. They are shared by all rows, but for `tmp_path` (a folder for each row)
    and `monkeypatch` (undone after each row); what a row has left in `capsys` is dropped.
    Of two tables, the lower one has the first parameters, and every row meets every row.
    """
    if not rows:
        raise ValueError("a table without rows proves nothing")
    table = [row if type(row) is tuple else (row,) for row in rows]

    def decorate(test: Test) -> Test:
        parameters = list(inspect.signature(test).parameters.values())
        names = [parameter.name for parameter in parameters[: len(table[0])]]

        @functools.wraps(test)
        def run(*given: Any, **fixtures: Any) -> None:
            violations, skipped = [], []
            for number, row in enumerate(table):
                named = ", ".join(f"{name}={_shown(value)}" for name, value in zip(names, row, strict=True))
                try:
                    with ExitStack() as stack:
                        test(*row, *given, **_own(fixtures, number, stack))
                except pytest.skip.Exception as reason:
                    skipped.append(f"{named}: {reason}")
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (whatever a row fails with)
                    violations.append(f"{named}\n{_told(error)}")
            if violations:
                summary = f"{len(violations)} of {len(table)} rows:"
                pytest.fail("\n".join([summary, *violations]), pytrace=False)
            if skipped:
                pytest.skip("; ".join(skipped))

        # pytest asks the signature for the fixtures.
        run.__signature__ = inspect.Signature(parameters[len(names) :])  # type: ignore[attr-defined]
        return run

    return decorate


def _own(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """Return the fixtures for one row."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / str(number)
        own["tmp_path"].mkdir()
    if "monkeypatch" in own:
        own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
    if "capsys" in own:
        own["capsys"].readouterr()
    return own


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return type(value).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _told(error: BaseException) -> str:
    """Return what an error says, and the places outside of this file and of pytest that it came through."""
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}: "
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "/_pytest/" not in frame.filename
    ]
    nearest = frames if len(frames) <= 3 else [frames[0], *frames[-2:]]
    kind = "" if isinstance(error, (AssertionError, pytest.fail.Exception)) else f"{type(error).__name__}: "
    return f"    {''.join(nearest)}{kind}{error}".replace("\n", "\n    ")
