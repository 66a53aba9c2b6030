"""Slurm: a real slurmctld takes our orders, and nodes that others drained stay theirs."""

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.rollout.drain.base import DrainError, Standing
from temper.rollout.drain.slurm import Slurm, parse
from tests.unit.executables import executable
from tests.unit.rollout import slurm_cluster

pytestmark = pytest.mark.component

LINE = (
    "NodeName=gpu01 CoresPerSocket=1 CPUAlloc=0 CPUTot=2 Gres=gpu:h100:8 NodeAddr=127.0.0.1 State={state} "
    "ThreadsPerCore=1 Partitions=all BootTime=None ExtSensorsTemp=n/s"
)
REASON = " Reason=[temper night-7] upgrade to 590 [root@2026-11-22T19:42:55]"


def test_a_node_is_read_as_slurm_22_05_prints_it() -> None:
    node = parse(LINE.format(state="IDLE+DRAIN+NOT_RESPONDING") + REASON)
    assert node.flags == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert (node.reason, node.by) == ("[temper night-7] upgrade to 590", "root")
    assert node.since == "2026-11-22T19:42:55"
    assert node.drained


@pytest.mark.parametrize(
    ("state", "drained", "obstacle"),
    [
        ("IDLE", False, ""),
        ("MIXED", False, ""),
        ("ALLOCATED+COMPLETING", False, ""),
        ("IDLE+RESERVED", False, ""),
        ("IDLE+PLANNED", False, ""),
        ("MIXED+DRAIN", True, ""),
        ("drained", True, ""),
        ("draining@", True, ""),
        ("IDLE*", False, "does not answer"),
        ("DOWN*", False, "DOWN"),
        ("DOWN*+DRAIN", True, "DOWN"),
        ("IDLE+MAINT", False, "maintenance"),
        ("IDLE+POWERED_DOWN", False, "powered down"),
        ("IDLE+POWERING_UP", False, "powered up"),
        ("idle~", False, ""),
        ("UNKNOWN+NOT_RESPONDING", False, "has not registered"),
        ("IDLE+INVALID_REG", False, "another configuration"),
    ],
)
def test_every_state_says_whether_it_is_drained_and_what_is_in_the_way(
    state: str, drained: bool, obstacle: str
) -> None:
    node = parse(LINE.format(state=state))
    assert node.drained is drained
    assert obstacle in node.obstacle
    assert bool(node.obstacle) is bool(obstacle)


@pytest.mark.parametrize(
    ("state", "said"),
    [("IDLE", "is in service (IDLE)"), ("IDLE+NOT_RESPONDING", "does not answer slurmctld yet")],
)
def test_a_node_that_slurm_does_not_reach_yet_is_not_called_in_service(
    state: str, said: str, tmp_path: Path
) -> None:
    scontrol = executable(tmp_path / "scontrol", f"echo '{LINE.format(state=state)}'")
    slurm = Slurm("night-7", scontrol=str(scontrol))
    assert said in slurm.give_back("gpu01", Standing("gpu01", in_service=True))


@pytest.mark.parametrize("reason", ["disk [sda@front]", "who@where", "a [x] b", "it's Comment=no"])
def test_a_reason_may_hold_what_it_likes(reason: str) -> None:
    node = parse(LINE.format(state="IDLE+DRAIN") + f" Reason={reason} [ops@2026-11-22T19:42:55]")
    assert (node.reason, node.by) == (reason, "ops")


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(DrainError, match="Expected a node"):
        parse("slurm_load_node error: Unable to contact slurm controller")


@pytest.mark.parametrize("name", ["gpu[01-09]", "gpu01,gpu02", "-all", "", "a b", "ALL=x"])
def test_only_one_node_can_be_meant(name: str) -> None:
    with pytest.raises(DrainError, match="one node"):
        Slurm("night-7", scontrol="/bin/true").look(name)


def test_a_controller_without_slurm_says_so() -> None:
    with pytest.raises(DrainError, match="install it"):
        Slurm("night-7", scontrol="/nonexistent/scontrol").look("gpu01")


@pytest.fixture(scope="module")
def programs() -> Path:
    if not (found := slurm_cluster.programs()):
        pytest.skip("no Slurm is unpacked: python3 -m tools.bootstrap schedulers")
    return found


@pytest.fixture(scope="module")
def cluster(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_cluster.controller(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


class Operator:
    """Somebody at the cluster, with Slurm's own commands."""

    def __init__(self, programs: Path) -> None:
        self.scontrol = str(programs / "scontrol")

    def update(self, node: str, state: str, *reason: str) -> None:
        command = [self.scontrol, "update", f"NodeName={node}", f"State={state}"]
        subprocess.run([*command, *(f"Reason={text}" for text in reason)], check=True, capture_output=True)


@pytest.fixture
def operator(programs: Path, cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Operator:
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    someone = Operator(programs)
    for node in ("gpu01", "gpu02"):
        # Slurm resumes nothing that is neither drained nor down, nor what has never been seen.
        someone.update(node, "DOWN", "to begin with")
        someone.update(node, "RESUME")
    return someone


@pytest.fixture
def slurm(programs: Path, operator: Operator) -> Slurm:
    return Slurm("night-7", scontrol=str(programs / "scontrol"), squeue=str(programs / "squeue"))


def test_a_node_is_drained_with_our_reason_and_resumed(slurm: Slurm) -> None:
    before = slurm.look("gpu01")
    assert before.in_service
    slurm.drain("gpu01", before, "upgrade to 590 [why not]\nnow")
    now = slurm.look("gpu01")
    assert (now.in_service, now.ours) == (False, True)
    assert now.reason == "[temper night-7] upgrade to 590 [why not] now"
    assert slurm.empty("gpu01", 0) == ()
    # No slurmd runs here, and slurmctld calls the node silent for as long as it has not looked.
    assert "gpu01 is back" in slurm.give_back("gpu01", before)
    assert slurm.look("gpu01").in_service
    assert "is back" not in slurm.give_back("gpu01", before)


def test_one_question_says_how_all_nodes_stand(slurm: Slurm) -> None:
    slurm.drain("gpu02", slurm.look("gpu02"), "upgrade")
    one, two, gone = slurm.survey(["gpu01", "gpu02", "gpu99"])
    assert (one, two) == (slurm.look("gpu01"), slurm.look("gpu02"))
    assert "not known to Slurm" in gone.obstacle


def test_draining_twice_is_draining_once(slurm: Slurm) -> None:
    before = slurm.look("gpu01")
    slurm.drain("gpu01", before, "first")
    slurm.drain("gpu01", before, "second")
    assert slurm.look("gpu01").reason.endswith("first")


def test_after_a_crash_our_drain_is_known_by_its_mark(slurm: Slurm) -> None:
    slurm.drain("gpu01", slurm.look("gpu01"), "upgrade")
    found_again = slurm.look("gpu01")
    slurm.drain("gpu01", found_again, "upgrade")
    assert "is back" in slurm.give_back("gpu01", found_again)


def test_what_somebody_else_drained_stays_drained_with_its_reason(slurm: Slurm, operator: Operator) -> None:
    operator.update("gpu02", "DRAIN", "broken fan")
    before = slurm.look("gpu02")
    assert (before.in_service, before.ours, before.reason) == (False, False, "broken fan")
    slurm.drain("gpu02", before, "upgrade")
    slurm.keep_out("gpu02", before, "failed")
    assert slurm.look("gpu02").reason == "broken fan"
    assert "stays drained" in slurm.give_back("gpu02", before)
    now = slurm.look("gpu02")
    assert (now.in_service, now.ours, now.reason) == (False, False, "broken fan")


def test_a_former_reason_that_was_overwritten_comes_back(slurm: Slurm, operator: Operator) -> None:
    operator.update("gpu02", "DRAIN", "broken fan")
    before = slurm.look("gpu02")
    operator.update("gpu02", "DRAIN", "Node unexpectedly rebooted")
    slurm.give_back("gpu02", before)
    assert slurm.look("gpu02").reason == "broken fan"


def test_who_drains_a_node_while_we_work_keeps_it(slurm: Slurm, operator: Operator) -> None:
    before = slurm.look("gpu01")
    slurm.drain("gpu01", before, "upgrade")
    operator.update("gpu01", "DRAIN", "smoke")
    sentence = slurm.give_back("gpu01", before)
    assert "smoke" in sentence
    assert slurm.look("gpu01").reason == "smoke"


def test_who_drains_a_node_before_we_do_is_not_overwritten(slurm: Slurm, operator: Operator) -> None:
    before = slurm.look("gpu01")
    operator.update("gpu01", "DRAIN", "smoke")
    with pytest.raises(DrainError, match="smoke"):
        slurm.drain("gpu01", before, "upgrade")
    assert slurm.look("gpu01").reason == "smoke"


def test_another_roll_out_does_not_return_our_node(slurm: Slurm) -> None:
    before = slurm.look("gpu01")
    slurm.drain("gpu01", before, "upgrade")
    other = Slurm("night-8", scontrol=slurm._scontrol, squeue=slurm._squeue)
    assert not other.look("gpu01").ours
    assert "stays out of service" in other.give_back("gpu01", dataclasses.replace(before))


def test_a_node_is_kept_out_with_the_reason(slurm: Slurm) -> None:
    before = slurm.look("gpu01")
    slurm.drain("gpu01", before, "upgrade")
    slurm.keep_out("gpu01", before, "the gate failed twice: bf16 fell by 9 %")
    now = slurm.look("gpu01")
    assert now.ours
    assert "bf16 fell by 9 %" in now.reason


def test_a_node_that_is_down_is_no_node_to_begin_with(slurm: Slurm, operator: Operator) -> None:
    operator.update("gpu02", "DOWN", "no power")
    found = slurm.look("gpu02")
    assert not found.in_service
    assert "no power" in found.obstacle


def test_a_node_that_slurm_does_not_know_is_named(slurm: Slurm) -> None:
    with pytest.raises(DrainError, match="gpu99"):
        slurm.look("gpu99")


def test_a_scheduler_that_is_away_is_one_sentence(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configuration = Path(os.environ["SLURM_CONF"]).read_text()
    away = tmp_path / "slurm.conf"
    away.write_text(re.sub("SlurmctldPort=.*", "SlurmctldPort=1\nMessageTimeout=1", configuration))
    monkeypatch.setenv("SLURM_CONF", str(away))
    with pytest.raises(DrainError, match=r"scontrol.*failed"):
        slurm.look("gpu01")
