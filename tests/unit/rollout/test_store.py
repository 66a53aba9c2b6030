"""The store: a lease with a fencing number, and a file that is whole whatever happens to its writer."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from temper.rollout.machine import leave_out
from temper.rollout.model import Mode, NodeState, Observation, Outcome, Record, Step, StepResult
from temper.rollout.planner import Decision, decide
from temper.rollout.store import LEASE_TTL, HeldError, Lease, LostLeaseError, Owner, RolloutStore, StoreError
from tests.unit.rollout.fleets import DONE, ME, NOW, OTHER, QUICK, begin, nodes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(tmp_path: Path) -> RolloutStore:
    """A store with a roll-out of three nodes."""
    store = RolloutStore(tmp_path / "reports" / "rollout.sqlite")
    rollout = begin(nodes(3))
    store.create(rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW)
    return store


def go_on(store: RolloutStore, lease: Lease) -> Decision:
    """Have the planner decide, and record that."""
    rollout = store.load()
    assert rollout
    decision = decide(rollout, NOW, Observation())
    assert store.apply(lease, rollout, decision, NOW) is not None
    return decision


def record_of(store: RolloutStore, name: str) -> Record:
    rollout = store.load()
    assert rollout
    return rollout.records[name]


# The lease


def test_a_second_controller_is_told_who_has_the_lease(store: RolloutStore) -> None:
    store.acquire(OTHER, NOW)
    with pytest.raises(HeldError) as raised:
        store.acquire(ME, NOW + LEASE_TTL)
    assert str(OTHER) in str(raised.value)
    assert str(store.path) in str(raised.value)


def test_a_lease_that_was_given_back_or_has_expired_is_free_and_its_number_grows(store: RolloutStore) -> None:
    first = store.acquire(OTHER, NOW)
    store.give_back(first)
    second = store.acquire(OTHER, NOW)
    third = store.acquire(ME, NOW + LEASE_TTL + timedelta(seconds=1))
    assert [lease.fence for lease in (first, second, third)] == [1, 2, 3]


def test_a_heartbeat_keeps_the_lease(store: RolloutStore) -> None:
    lease = store.acquire(OTHER, NOW)
    store.heartbeat(lease, NOW + LEASE_TTL)
    with pytest.raises(HeldError):
        store.acquire(ME, NOW + LEASE_TTL * 2)


def test_a_heartbeat_far_in_the_future_does_not_block_for_ever(store: RolloutStore) -> None:
    store.acquire(OTHER, NOW + timedelta(days=365))
    assert store.acquire(ME, NOW).fence == 2


@pytest.mark.component
def test_the_lease_of_a_process_that_is_gone_is_free_at_once(store: RolloutStore) -> None:
    here = Owner.of_this_process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    store.acquire(replace(here, pid=child.pid, started=stat[19]), NOW)
    with pytest.raises(HeldError):
        store.acquire(here, NOW)
    child.communicate(b"\n")
    assert store.acquire(here, NOW).fence == 2


def test_a_process_with_the_number_of_one_that_is_gone_is_another(store: RolloutStore) -> None:
    here = Owner.of_this_process()
    store.acquire(replace(here, started="1"), NOW)
    assert store.acquire(here, NOW).fence == 2


def test_every_write_of_a_stale_owner_is_refused(store: RolloutStore) -> None:
    stale = store.acquire(OTHER, NOW)
    rollout = store.load()
    assert rollout
    decision = decide(rollout, NOW, Observation())
    assert store.apply(stale, rollout, decision, NOW)
    late = NOW + LEASE_TTL * 2
    store.acquire(ME, late)
    before = store.load()
    for write in (
        lambda: store.heartbeat(stale, late),
        lambda: store.give_back(stale),
        lambda: store.recover(stale, 1, late),
        lambda: store.apply(stale, rollout, decision, late),
        lambda: store.finish(stale, 1, "gpu0", Step.LEASE, DONE, late),
    ):
        with pytest.raises(LostLeaseError, match=ME.host):
            write()
    assert store.load() == before


# What is recorded


def test_what_was_recorded_is_read_back(store: RolloutStore) -> None:
    lease = store.acquire(ME, NOW)
    go_on(store, lease)
    result = StepResult(Outcome.DONE, "", {"boot_id": "b"}, {"minutes": 1.5})
    record = store.finish(lease, 1, "gpu0", Step.LEASE, result, NOW)
    assert RolloutStore(store.path).load() == store.load()
    assert record_of(store, "gpu0") == record
    assert record.facts == {"boot_id": "b"}
    told = [(event.node, event.step, event.outcome, event.who) for event in store.events(1)]
    assert told == [("gpu0", "lease", "begun", str(ME)), ("gpu0", "lease", "done", str(ME))]


def test_a_step_is_recorded_before_it_begins_and_never_twice(store: RolloutStore) -> None:
    lease = store.acquire(ME, NOW)
    rollout = store.load()
    decision = go_on(store, lease)
    assert record_of(store, "gpu0").step is Step.LEASE
    assert rollout
    with pytest.raises(StoreError, match="gpu0"):
        store.apply(lease, rollout, decision, NOW)


def test_a_result_counts_once(store: RolloutStore) -> None:
    lease = store.acquire(ME, NOW)
    go_on(store, lease)
    store.finish(lease, 1, "gpu0", Step.LEASE, DONE, NOW)
    with pytest.raises(StoreError, match="gpu0"):
        store.finish(lease, 1, "gpu0", Step.LEASE, DONE, NOW)
    assert record_of(store, "gpu0").state is NodeState.LEASED


def test_a_state_that_does_not_follow_is_refused_and_nothing_is_written(store: RolloutStore) -> None:
    lease, rollout = store.acquire(ME, NOW), store.load()
    assert rollout
    skipped = replace(rollout.records["gpu1"], state=NodeState.PROVEN)
    moves = {"gpu0": leave_out(rollout.records["gpu0"], "why", NOW), "gpu1": skipped}
    with pytest.raises(StoreError, match="gpu1"):
        store.apply(lease, rollout, Decision(moves=moves), NOW)
    assert store.load() == rollout


def test_a_decision_on_a_mode_that_somebody_has_changed_is_dropped(store: RolloutStore) -> None:
    lease, rollout = store.acquire(ME, NOW), store.load()
    assert rollout
    store.hold(1, "alice", "the network is being repaired", NOW)
    assert store.apply(lease, rollout, decide(rollout, NOW, Observation()), NOW) is None
    held = store.load()
    assert held
    assert (held.mode, "alice" in held.reason) == (Mode.HELD, True)
    assert held.records == rollout.records


def test_steps_of_a_controller_that_has_gone_are_due_again(store: RolloutStore) -> None:
    go_on(store, store.acquire(OTHER, NOW))
    lease = store.acquire(ME, NOW + LEASE_TTL * 2)
    assert store.recover(lease, 1, NOW) == ["gpu0"]
    assert record_of(store, "gpu0").step is None
    assert go_on(store, lease).starts[0].node == "gpu0"


def test_only_one_rollout_runs_at_a_time(store: RolloutStore) -> None:
    rollout = begin(nodes(1))
    with pytest.raises(StoreError, match="roll-out 1"):
        store.create("newer", QUICK, rollout.nodes, rollout.records, NOW)


def test_a_rollout_that_stopped_gives_way_to_another_one(store: RolloutStore) -> None:
    rollout = begin(nodes(1))
    store.stop(1, "alice", "the budget was too small", NOW)
    assert store.create("newer", QUICK, rollout.nodes, rollout.records, NOW) == 2
    assert store.mode(1) == (Mode.DONE, "by alice: the budget was too small")
    with pytest.raises(StoreError, match="is done"):
        store.resume(1, "alice", NOW)


def test_a_rollout_that_stopped_with_a_node_on_its_way_is_ended_first(store: RolloutStore) -> None:
    rollout = begin(nodes(1))
    go_on(store, store.acquire(ME, NOW))
    store.stop(1, "alice", "why", NOW)
    with pytest.raises(StoreError, match="gpu0"):
        store.create("newer", QUICK, rollout.nodes, rollout.records, NOW)
    assert store.mode(1)[0] is Mode.STOPPED


def test_a_roll_out_keeps_its_name_on_another_host_and_in_another_spelling(
    store: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drains and leases would be somebody else's."""
    before = store.identity(1)
    assert before == f"{socket.gethostname()}:{store.path.parent}/1"
    monkeypatch.setattr(socket, "gethostname", lambda: "standby.example")
    monkeypatch.chdir(store.path.parent)
    elsewhere = RolloutStore(Path(store.path.name))
    assert elsewhere.identity(1) == before
    elsewhere.stop(1, "alice", "why", NOW)
    newer = begin(nodes(1))
    elsewhere.create("newer", QUICK, newer.nodes, newer.records, NOW)
    assert elsewhere.identity(2) == f"standby.example:{store.path.parent}/2"


def test_a_roll_out_of_an_older_temper_keeps_the_name_that_it_had(
    store: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(store.path) as connection:
        for column in ("origin", "inventory"):
            connection.execute(f"ALTER TABLE rollout DROP COLUMN {column}")
    monkeypatch.chdir(store.path.parent.parent)
    as_given = RolloutStore(Path("reports") / store.path.name)
    assert as_given.identity(1) == f"{socket.gethostname()}:reports/1"
    rollout = as_given.load(1)
    assert rollout
    assert len(rollout.nodes) == 3
    assert as_given.inventory(1) == []


# By hand


def test_resuming_accepts_what_failed_and_nothing_that_fails_later(store: RolloutStore) -> None:
    lease = store.acquire(ME, NOW)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE node SET state = 'failed', failures = 1 WHERE name = 'gpu1'")
    go_on(store, lease)
    assert store.mode(1)[0] is Mode.STOPPED
    store.resume(1, "alice", NOW)
    accepted = {name: record_of(store, name).accepted for name in ("gpu0", "gpu1")}
    assert accepted == {"gpu0": False, "gpu1": True}
    assert [event.who for event in store.events(1)][-1] == "alice"


@pytest.mark.parametrize("twice", ["hold", "stop"])
def test_what_is_so_already_is_said(store: RolloutStore, twice: str) -> None:
    getattr(store, twice)(1, "alice", "why", NOW)
    with pytest.raises(StoreError, match="alice"):
        getattr(store, twice)(1, "bob", "why", NOW)
    store.resume(1, "bob", NOW)
    with pytest.raises(StoreError, match="running"):
        store.resume(1, "bob", NOW)


def test_another_try_is_for_nodes_that_need_one(store: RolloutStore) -> None:
    with pytest.raises(StoreError, match="pending"):
        store.retry(1, "gpu0", "alice", NOW)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE node SET state = 'left-out' WHERE name = 'gpu0'")
    assert store.retry(1, "gpu0", "alice", NOW).state is NodeState.PENDING


# The file


def test_a_file_of_a_newer_version_is_refused_and_left_alone(store: RolloutStore) -> None:
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    for use in (store.load, store.holder, lambda: store.acquire(ME, NOW)):
        with pytest.raises(StoreError, match="version 99"):
            use()


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rollout.sqlite"
    path.write_text("something else, and long enough not to be taken for an empty database\n" * 20)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=str(path)):
        RolloutStore(path).load()
    assert path.read_bytes() == before


@pytest.mark.component
def test_a_writer_that_is_killed_within_a_write_has_written_nothing(store: RolloutStore) -> None:
    go_on(store, store.acquire(OTHER, NOW))
    before = store.load()
    writer = (
        "import os, signal, sys; from pathlib import Path; from temper.rollout import store as module;"
        "from tests.unit.rollout.fleets import *;"
        "module._note = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "store = module.RolloutStore(Path(sys.argv[1]));"
        "store.finish(module.Lease(OTHER, 1), 1, 'gpu0', Step.LEASE, DONE, NOW)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", writer, str(store.path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert killed.returncode == -signal.SIGKILL
    assert store.load() == before


def test_starts_are_only_what_follows(store: RolloutStore) -> None:
    lease, rollout = store.acquire(ME, NOW), store.load()
    assert rollout
    ahead = replace(rollout, records={**rollout.records, "gpu0": Record(NodeState.LEASED, NOW)})
    with pytest.raises(StoreError, match="stage does not follow"):
        store.apply(lease, rollout, decide(ahead, NOW, Observation()), NOW)


def test_a_folder_that_cannot_be_written_to_is_told_from_a_file_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_text("no database" * 100)
    for name, remedy in (("damaged", False), ("damaged/rollouts.sqlite", True)):
        with pytest.raises(StoreError) as error:
            RolloutStore(tmp_path / name).load()
        assert (f"{(tmp_path / name).parent} can be written to" in str(error.value)) is remedy
