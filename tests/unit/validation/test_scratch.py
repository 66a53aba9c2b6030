"""Temporary files of measuring processes that were killed: they go when the run is over."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.validation.samples import expectation, one_test
from validation import runner, scratch
from validation.child import Ending, Request, run_children
from validation.contract import State
from validation.plans import PLANS

if TYPE_CHECKING:
    import pytest


def test_what_a_killed_process_leaves_goes_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Path] = []

    class Killed:
        id = "cpu_copy"

        def run(self, _node: Any) -> Any:
            (outcome,) = run_children(
                [Request("it", "tests.unit.validation.children:leave_a_folder", "cpu")], 60
            )
            assert outcome.ending is Ending.DIED
            left.append(Path(outcome.problem.rpartition(" ")[2]))
            assert left[0].is_dir()
            return one_test("cpu_copy", State.PASS)

    monkeypatch.setattr(runner, "CHECKS", {"cpu_copy": Killed()})
    result = runner.run_plan(PLANS["quick"], expectation(), "here", ["cpu_copy"], lambda *_: None)
    assert [(test.state, test.findings) for test in result.tests] == [(State.PASS, ())]
    assert left[0].parent.name.startswith("temper-validation-")
    assert not left[0].parent.exists()
    assert scratch.environment() == {}


def test_without_room_for_a_folder_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_options: Any) -> None:
        raise OSError

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with scratch.folder():
        assert scratch.environment() == {}
