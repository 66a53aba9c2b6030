"""Every finding is explained: the codes in the source, literal or computed, and no others."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import validation
from validation.checks import driver_health, measured
from validation.cli import main
from validation.fabric.verdict import ACTIONS
from validation.findings import xids
from validation.findings.explanations import EXPLANATIONS
from validation.verdict import cohort, history

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(validation.__file__).parent
#: Where a code is computed: the file, and all that can come of it.
COMPUTED = {
    ("checks/driver_health.py", "f'driver-{error.kind}'"): {
        f"driver-{kind}" for kind in driver_health.DRIVER_ACTIONS
    },
    ("checks/driver_health.py", "f'xid-{number}' if number in xids.REPORTED else 'xid-unknown'"): {
        f"xid-{number}" for number in xids.REPORTED
    }
    | {"xid-unknown"},
    ("checks/health.py", "reason.replace('_', '-')"): {name.replace("_", "-") for name in measured.SLOWDOWNS},
    ("checks/measured.py", "code"): {
        name.replace("_", "-") for name in (*measured.SLOWDOWNS, measured.HW_SLOWDOWN)
    },
    ("checks/measured.py", "_CODES[outcome.ending]"): set(measured._CODES.values()),
    ("verdict/baseline.py", "self.code"): {cohort.JUDGE.code, history.JUDGE.code},
    ("fabric/verdict.py", "code"): set(ACTIONS),
    ("checks/recorder.py", "code"): set(),  # handed on: its callers are looked at
}


def emitted() -> Iterator[tuple[str, ast.expr]]:
    """The file and the first argument of every call that makes a finding."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (
                (isinstance(node.func, ast.Name) and node.func.id == "Finding")
                or (isinstance(node.func, ast.Attribute) and node.func.attr == "find" and len(node.args) > 1)
            ):
                yield path.relative_to(PACKAGE).as_posix(), node.args[0]


def codes() -> set[str]:
    found: set[str] = set()
    for file, argument in emitted():
        if isinstance(argument, ast.Constant):
            found.add(str(argument.value))
        else:
            key = file, ast.unparse(argument)
            assert key in COMPUTED, f"{file} computes a code this test does not know: {ast.unparse(argument)}"
            found |= COMPUTED[key]
    return found


def test_every_code_that_can_be_emitted_is_explained() -> None:
    assert codes() - EXPLANATIONS.keys() == set()


def test_every_explanation_is_of_a_code_that_can_be_emitted() -> None:
    assert EXPLANATIONS.keys() - codes() == set()


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_an_explanation_is_whole(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    explanation = EXPLANATIONS[code]
    assert explanation.causes
    assert explanation.actions
    for sentence in (explanation.title, explanation.meaning, *explanation.causes, *explanation.actions):
        assert not sentence.endswith(".")
    assert main.main(["explain", code]) == 0
    said = capsys.readouterr().out
    for word in (code, explanation.title, explanation.causes[0], explanation.actions[0], explanation.source):
        assert word in said


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPLANATIONS)


@pytest.mark.parametrize(
    ("code", "hint"),
    [("below-flor", "did you mean below-floor?"), ("zzzz", "`validation explain` lists all")],
)
def test_an_unknown_code_is_an_error_with_a_hint(
    code: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["explain", code]) == 2
    assert hint in capsys.readouterr().err
