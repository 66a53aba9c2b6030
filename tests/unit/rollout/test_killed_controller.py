"""Real controllers: killed at random moments and gone on with, and several at once."""

import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from temper.rollout.model import Mode, NodeState
from temper.rollout.policy import Share
from temper.rollout.store import RolloutStore
from tests.rollout.controller import STORE, read
from tests.unit.rollout.fleets import NOW, QUICK, begin, nodes

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[3]
NODES, SLOW = 8, "gpu3"
#: More runs than any seed needs: each gets at least one step further.
MOST_RUNS = 400


def run_and_kill(folder: Path, lines: int) -> tuple[int, list[str]]:
    """Run a controller and kill it after so many lines; returns its status and what it printed."""
    command = [sys.executable, "-m", "tests.rollout.controller", str(folder), SLOW]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        said = []
        for line in child.stdout:
            said.append(line.strip())
            if len(said) == lines:
                child.kill()
                break
        said += [line.strip() for line in child.stdout]
        return child.wait(), said


def test_every_node_ends_as_if_nobody_had_been_killed(tmp_path: Path) -> None:
    store, dice = RolloutStore(tmp_path / STORE), random.Random(1)
    rollout = begin(nodes(NODES), replace(QUICK, failure_budget=Share(1), max_unavailable=Share(3)))
    store.create(rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW)
    killed, said = 0, []
    for _ in range(MOST_RUNS):
        status, lines = run_and_kill(tmp_path, dice.randint(5, 80))
        said += [line.split() for line in lines if line.startswith(("begin", "half", "end"))]
        if status != -signal.SIGKILL:
            break
        killed += 1
    assert status == 1, "a node was rolled back"
    assert killed > 3
    found = store.load(1)
    assert found
    assert found.mode is Mode.DONE
    expected = {name: NodeState.ROLLED_BACK if name == SLOW else NodeState.RETURNED for name in found.nodes}
    assert {name: record.state for name, record in found.records.items()} == expected
    for name in found.nodes:
        driver = "old" if name == SLOW else "new"
        node = read(tmp_path, name)
        assert (node["drained"], node["installed"], node["loaded"], node["proven"]) == (False, *[driver] * 3)
    # Steps were done more than once only where a controller was killed over them.
    ends = Counter((name, step) for what, name, step, _ in said if what == "end")
    assert sum(count - 1 for count in ends.values()) <= killed * 3 + 8


def test_of_controllers_that_go_on_at_once_one_works(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / STORE)
    rollout = begin(nodes(NODES), QUICK)
    store.create(rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW)
    command = [sys.executable, "-m", "tests.rollout.controller", str(tmp_path), "none"]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    said = [child.communicate() for child in children]
    assert [child.returncode for child in children].count(0) >= 1
    # Whoever came too late is told so; or all had ended before it began, and it did nothing.
    refused = [errors for child, (_, errors) in zip(children, said, strict=True) if child.returncode]
    assert [errors for errors in refused if "HeldError" not in errors] == []
    begun = Counter(line for out, _ in said for line in out.splitlines() if line.startswith("begin"))
    assert begun
    assert set(begun.values()) == {1}
    assert len({line.split()[-1] for line in begun}) == 1  # one fencing number
