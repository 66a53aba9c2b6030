"""The operator's own commands in place of a scheduler: in a folder, a file takes a node out of service."""

import math
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from temper.rollout import engine
from temper.rollout.drain import base, commands, programs
from temper.rollout.drain.base import Drainer, DrainError, Standing, wait_until_idle
from temper.rollout.drain.commands import Commands, Idle
from tests.unit.validation.samples import is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.component


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
def drainer(site: Path) -> Commands:
    def script(text: str) -> tuple[str, ...]:
        return ("sh", "-c", f"cd {site}; node=$1; reason=$2; {text}", "-", "{node}", "{reason}")

    return Commands(
        look_command=script('if test -e "out/$node"; then cat "out/$node"; exit 1; fi'),
        drain_command=script('printf %s "$reason" >"out/$node"'),
        empty_command=script('if test -e "work/$node"; then cat "work/$node"; exit 1; fi'),
        give_back_command=script('rm -f "out/$node"'),
    )


def test_a_node_goes_out_and_comes_back(drainer: Commands, site: Path) -> None:
    as_drainer: Drainer = drainer
    before = as_drainer.look("gpu01")
    as_drainer.drain("gpu01", before, "upgrade to r595-cuda13.2, 80 % done")
    assert (site / "out/gpu01").read_text() == "upgrade to r595-cuda13.2, 80 % done"
    assert as_drainer.empty("gpu01", 0) == ()
    assert "back in service" in as_drainer.give_back("gpu01", before)
    assert as_drainer.look("gpu01") == before


@pytest.mark.parametrize(
    "reason",
    ["x'; touch {0}; '", "$(touch {0})", "`touch {0}`", "x\ntouch {0}", "a & touch {0}", "> {0}", "\0"],
)
def test_a_reason_runs_nothing_where_the_operators_command_is_a_shell(site: Path, reason: str) -> None:
    mark = site / "ran"
    shell = ("sh", "-c", "test {node}; echo '{reason}' {reason}")
    before = Standing("gpu01", in_service=True)
    Commands(shell, shell, shell, shell).drain("gpu01", before, reason.format(mark))
    assert not mark.exists()


def test_what_was_out_before_stays_out(drainer: Commands, site: Path) -> None:
    (site / "out/gpu01").write_text("fan")
    before = drainer.look("gpu01")
    drainer.drain("gpu01", before, "upgrade")
    assert "fan" in drainer.give_back("gpu01", before)
    assert (site / "out/gpu01").read_text() == "fan"


def test_work_that_does_not_end_is_named(drainer: Commands, site: Path) -> None:
    (site / "work/gpu01").write_text("job 7 of ann\njob 8 of bob\n")
    assert drainer.empty("gpu01", 0) == ("job 7 of ann", "job 8 of bob")
    with pytest.raises(DrainError, match="job 7 of ann; job 8 of bob"):
        wait_until_idle(drainer, "gpu01", 0)


def test_work_that_ends_is_waited_for(drainer: Commands, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = site / "work/gpu01"
    work.write_text("job 7")
    # In this module alone: the one that runs programs sleeps, too.
    waiting = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: work.unlink())
    monkeypatch.setattr("temper.rollout.drain.commands.time", waiting)
    wait_until_idle(drainer, "gpu01", 60)


def test_a_command_that_fails_is_an_error_and_no_answer(site: Path) -> None:
    failing = ("sh", "-c", "echo no route to the database >&2; exit 3")
    drainer = Commands(failing, failing, failing, failing)
    for call in (lambda: drainer.look("gpu01"), lambda: drainer.empty("gpu01", 0)):
        with pytest.raises(DrainError, match="no route to the database"):
            call()


def test_one_node_that_cannot_be_looked_at_does_not_hide_the_others(drainer: Commands) -> None:
    look = ("sh", "-c", "test {node} != gpu02 || { echo no such row >&2; exit 3; }")
    picky = replace(drainer, look_command=look)
    one, two = picky.survey(["gpu01", "gpu02"])
    assert one.in_service
    assert "no such row" in two.obstacle
    with pytest.raises(DrainError, match="no such row"):
        picky.survey(["gpu02"])


def test_a_thousand_nodes_can_be_looked_at_within_the_limit_of_a_look_as_documented() -> None:
    rounds, look_s = math.ceil(1000 / commands.AT_ONCE), 7
    assert rounds * look_s <= engine.OBSERVATION_LIMIT_S


def test_a_node_that_does_not_come_back_is_said(drainer: Commands, site: Path) -> None:
    before = drainer.look("gpu01")
    drainer.drain("gpu01", before, "upgrade")
    stuck = Commands(drainer.look_command, ("true",), ("true",), ("true",))
    with pytest.raises(DrainError, match="still out of service"):
        stuck.give_back("gpu01", before)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    hangs = ("sh", "-c", f"sleep 1000 & echo $! >{child}; wait")
    with pytest.raises(DrainError, match="no answer within 1 s"):
        programs.ask(hangs, 1.0)
    wait_until(lambda: not is_running(int(child.read_text())), "the child has ended")


def test_a_command_that_prints_without_end_is_ended_before_the_memory_is_full() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DrainError, match="`yes` gave more than 64 MiB of text"):
        programs.ask(("yes",), 60.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10  # KiB


def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    """An ssh with ControlPersist leaves one that holds its pipes."""
    child = tmp_path / "child"
    leaves = ("sh", "-c", f"sleep 1000 & echo $! >{child}; echo done")
    try:
        assert programs.output_of(leaves, 60.0) == "done\n"
        assert is_running(int(child.read_text()))
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


def test_without_a_scheduler_there_is_nothing_to_do() -> None:
    drainer: Drainer = Idle()
    before = drainer.look("gpu01")
    assert before.in_service
    drainer.drain("gpu01", before, "upgrade")
    wait_until_idle(drainer, "gpu01", 0)
    assert "no scheduler" in drainer.give_back("gpu01", before)


def test_much_work_is_shortened() -> None:
    assert base.named(tuple("abcdefg")) == "a; b; c; d; e and 2 more"
