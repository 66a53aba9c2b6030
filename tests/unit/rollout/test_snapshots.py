"""Snapshots before a change: what is taken when, what is refused, and what stays. Ansible stands in."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible.module_utils.temper.snapshots import NAME as NAME_ON_NODES

from temper.rollout.forecast import plan_text
from temper.rollout.machine import begun, fresh, interrupted
from temper.rollout.model import FORWARD, Course, NodeState, Outcome, Step
from temper.rollout.playbooks import Played
from temper.rollout.policy import Policy, Snapshot, read
from temper.rollout.report import as_dict, sentence, status_text
from temper.rollout.snapshots import name_of
from tests.unit.each import each
from tests.unit.rollout.fleets import NOW, begin, having, nodes
from tests.unit.rollout.test_executor import StandInAnsible, World, played, ticket

BTRFS = Policy(snapshot=Snapshot.BTRFS, snapshot_gib=5, snapshot_max_age_minutes=60)
NAME = "temper-1-20261122T000000Z"
SAID = f"btrfs snapshot /.temper-snapshots/{NAME} of 2026-11-22T22:49:35Z, without /boot"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(
        tmp_path, StandInAnsible({"snapshot": played(snapshot=SAID), "install": played(boot_id="one")})
    )


def asked(world: World) -> list[tuple[str, object, object]]:
    """State, name and age of each snapshot that the node was asked for."""
    wanted = [variables["upgrade_snapshot"] for step, variables in world.ansible.asked if step == "snapshot"]
    return [(one["state"], one["name"], one.get("max_age_s")) for one in wanted]


def test_the_snapshot_comes_before_the_change(world: World) -> None:
    result = world.step(Step.INSTALL, policy=BTRFS)
    assert (result.outcome, result.facts) == (Outcome.DONE, {"snapshot": SAID, "boot_id": "one"})
    assert world.ansible.steps == ["snapshot", "install"]
    _, variables = world.ansible.asked[0]
    assert variables["upgrade_snapshot"] == {
        "kind": "btrfs", "state": "present", "name": NAME, "room_gib": 5, "max_age_s": 3600.0,
    }  # fmt: skip


def test_without_a_wanted_one_nothing_is_asked(world: World) -> None:
    world.step(Step.INSTALL)
    world.step(Step.KEEP_OUT)
    world.step(Step.RETURN)
    assert "snapshot" not in world.ansible.steps


@pytest.mark.parametrize("unreachable", [True, False])
def test_a_node_without_one_is_refused_and_not_changed(unreachable: bool, world: World) -> None:
    world.ansible.answers["snapshot"] = Played(ok=False, said="the disk is full", unreachable=unreachable)
    result = world.step(Step.INSTALL, policy=BTRFS)
    assert (result.outcome, result.reason) == (Outcome.REFUSED, "no snapshot: the disk is full")
    assert "install" not in world.ansible.steps


def test_after_the_change_has_begun_it_is_only_checked(world: World) -> None:
    world.ansible.answers["install"] = Played(ok=False, said="dpkg broke")
    result = world.step(Step.INSTALL, policy=BTRFS)
    assert (result.outcome, result.facts["snapshot"]) == (Outcome.FAILED, SAID)
    world.step(Step.INSTALL, policy=BTRFS)
    # However old: a new one would show a node that is changed half-way.
    assert asked(world) == [("present", NAME, 3600.0), ("checked", NAME, None)]


def test_one_that_was_cut_off_is_asked_for_again(world: World) -> None:
    world.ansible.answers["snapshot"] = Played(ok=False, said="gone", unreachable=True)
    world.step(Step.INSTALL, policy=BTRFS)
    world.ansible.answers["snapshot"] = played(snapshot=SAID)
    world.step(Step.INSTALL, policy=BTRFS)
    assert [state for state, *_ in asked(world)] == ["present", "present"]


@pytest.mark.parametrize(("step", "course"), [(Step.RETURN, Course.BACK), (Step.RELEASE, Course.RELEASE)])
def test_it_is_removed_where_the_node_ends_well(
    step: Step, course: Course, world: World, tmp_path: Path
) -> None:
    world.step(Step.INSTALL, policy=BTRFS)
    result = world.step(step, course=course, policy=BTRFS)
    assert (result.outcome, result.facts) == (Outcome.DONE, {"snapshot": ""})
    assert asked(world)[-1] == ("absent", NAME, None)
    # With the lease, which is given back last.
    assert world.ansible.steps.index("free") > len(world.ansible.steps) - 2
    assert not (tmp_path / "gpu01/snapshot.json").exists()


def test_one_that_cannot_be_removed_keeps_no_node_out(world: World) -> None:
    world.step(Step.INSTALL, policy=BTRFS)
    world.ansible.answers["snapshot"] = Played(ok=False, said="it is busy")
    result = world.step(Step.RETURN, policy=BTRFS)
    assert result.outcome is Outcome.DONE
    assert f"its snapshot {NAME} was not removed: it is busy" in result.reason
    assert "snapshot" not in result.facts  # the record goes on naming it


def test_a_failed_node_keeps_it_and_says_whether_it_still_holds(world: World) -> None:
    world.step(Step.INSTALL, policy=BTRFS)
    assert world.step(Step.KEEP_OUT, policy=BTRFS).facts == {"snapshot": SAID}
    world.ansible.answers["snapshot"] = Played(ok=False, said="it has run full")
    found = world.step(Step.KEEP_OUT, policy=BTRFS).facts["snapshot"]
    assert found == f"{SAID}; checked since: it has run full"
    assert "absent" not in [state for state, *_ in asked(world)]


def platform(folder: Path, *, take: bool, age: int = 10) -> Policy:
    """A platform whose snapshots are files with the time of each; it takes them where it is asked to."""

    def script(text: str) -> list[str]:
        return ["sh", "-c", f"cd {folder}; {text}", "-", "{node}", "{name}"]

    commands = {"check": script('test -e "$1" || exit 1; cat "$1"')}
    if take:
        commands |= {"take": script('date +%s >"$1"'), "remove": script('rm -f "$1"')}
    return read({"snapshot": "commands", "snapshot_commands": commands, "snapshot_max_age_minutes": age})


@pytest.mark.component
def test_the_platforms_own_is_taken_and_removed(world: World, tmp_path: Path) -> None:
    policy = platform(site := tmp_path / "site", take=True)
    site.mkdir()
    result = world.step(Step.INSTALL, policy=policy)
    assert result.facts["snapshot"] == f"the platform's snapshot of {(site / 'gpu01').read_text().strip()}"
    world.step(Step.RETURN, policy=policy)
    assert list(site.iterdir()) == []
    assert "snapshot" not in world.ansible.steps


@pytest.mark.component
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "finds none"),
        ("2026-11-01T00:00:00+00:00", "was taken 2026-11-01T00:00:00+00:00, and may be 10 min old"),
        ("2099-11-01T00:00:00+00:00", "was taken 2099-11-01T00:00:00+00:00, and may be 10 min old"),
        ("9" * 400, "and may be 10 min old"),
        ("2026-11-22T22:00:00", "has to print when it was taken"),
        ("yesterday", "found 'yesterday'"),
    ],
)
def test_a_missing_or_stale_one_of_the_platform_is_refused(
    content: str | None, reason: str, world: World, tmp_path: Path
) -> None:
    policy = platform(site := tmp_path / "site", take=False)
    site.mkdir()
    if content:
        (site / "gpu01").write_text(content)
    result = world.step(Step.INSTALL, policy=policy)
    assert result.outcome is Outcome.REFUSED
    assert reason in result.reason
    assert world.ansible.steps == []


@pytest.mark.component
def test_a_fresh_one_of_the_platform_is_enough_and_never_removed(world: World, tmp_path: Path) -> None:
    policy = platform(site := tmp_path / "site", take=False)
    site.mkdir()
    (site / "gpu01").write_text(datetime.now(UTC).isoformat())
    assert world.step(Step.INSTALL, policy=policy).outcome is Outcome.DONE
    world.step(Step.RETURN, policy=policy)
    assert (site / "gpu01").exists()


@pytest.mark.component
def test_a_stale_one_is_taken_anew_where_we_may(world: World, tmp_path: Path) -> None:
    policy = platform(site := tmp_path / "site", take=True)
    site.mkdir()
    (site / "gpu01").write_text("1000000000")
    assert world.step(Step.INSTALL, policy=policy).outcome is Outcome.DONE
    assert (site / "gpu01").read_text() != "1000000000"


def test_the_plan_says_what_is_taken() -> None:
    rollout = begin(nodes(2), BTRFS)
    assert "Snapshot before each node is changed: btrfs, of /, with 5 GiB" in plan_text(rollout, [], NOW)
    assert "Snapshot" not in plan_text(begin(nodes(2)), [], NOW)


@each(NodeState.FAILED, NodeState.RETURNED)
def test_status_and_report_name_one_that_is_still_there(state: NodeState) -> None:
    rollout = having(begin(nodes(2)), gpu1={"state": state, "facts": {"snapshot": SAID}})
    later = NOW + timedelta(hours=1)
    assert SAID in sentence(rollout.records["gpu1"])
    assert SAID in status_text(rollout, later)
    assert json.loads(json.dumps(as_dict(rollout, [], later)))["nodes"]["gpu1"]["snapshot"] == SAID


def test_one_that_is_gone_is_not_named() -> None:
    rollout = having(begin(nodes(2)), gpu1={"state": NodeState.RETURNED, "facts": {"snapshot": ""}})
    assert "Its former state" not in sentence(rollout.records["gpu1"])
    assert "gpu1 (" not in status_text(rollout, NOW)


def test_a_crash_keeps_its_name_and_another_try_gets_another() -> None:
    one = ticket(Step.INSTALL)
    record = replace(one.record, started_at=NOW)
    again = replace(one, record=interrupted(begun(interrupted(record), FORWARD[4], NOW + timedelta(hours=5))))
    assert name_of(again) == name_of(replace(one, record=record))
    other = replace(one, record=begun(fresh(record, NOW), FORWARD[0], NOW + timedelta(hours=5)))
    assert name_of(other) != name_of(again)
    assert NAME_ON_NODES.fullmatch(name_of(other))
