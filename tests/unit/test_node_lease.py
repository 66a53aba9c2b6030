"""One controller a node: who gets the lease, who is refused, and what a reboot and wrong clocks do to it."""

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import node_facts
import node_lease
import pytest
from ansible.module_utils.temper import lease
from ansible.module_utils.temper.lease import Lease, LeaseError, Now, acquire, read, release

Run = Callable[..., dict[str, Any]]

TTL_S = 600.0


class Clock:
    """The node's clocks, to be set."""

    def __init__(self) -> None:
        self.now = Now("boot-1", 10_000.0, "2026-11-22T21:00:00+00:00")

    def read(self) -> Now:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now = replace(self.now, boottime_s=self.now.boottime_s + seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease.Now, "read", clock.read)
    return clock


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lease, "SETTINGS_LOCK", tmp_path / "settings")
    return tmp_path / "temper/lease.json"


def test_a_free_node_is_given_to_whoever_asks_first(path: Path, clock: Clock) -> None:
    taken = acquire("night-1@ctl", TTL_S, path=path)
    assert (taken.owner, taken.fencing) == ("night-1@ctl", 1)
    assert read(path) == taken


def test_a_second_owner_is_refused_and_reads_who_holds_it_and_since_when(path: Path, clock: Clock) -> None:
    acquire("night-1@ctl", TTL_S, path=path)
    clock.pass_s(TTL_S)
    with pytest.raises(LeaseError) as refused:
        acquire("night-2@other", TTL_S, path=path)
    assert "night-1@ctl" in str(refused.value)
    assert "2026-11-22T21:00:00+00:00" in str(refused.value)
    assert read(path).owner == "night-1@ctl"


def test_an_expired_lease_is_taken_over_under_a_higher_number(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    clock.pass_s(TTL_S + 1)
    assert acquire("night-2@other", TTL_S, path=path).fencing > first.fencing


def test_who_slept_through_the_expiry_is_refused_even_when_the_node_is_free_again(
    path: Path, clock: Clock
) -> None:
    slept = acquire("night-1@ctl", TTL_S, path=path)
    clock.pass_s(TTL_S + 1)
    other = acquire("night-2@other", TTL_S, path=path)
    release("night-2@other", other.fencing, path=path)
    with pytest.raises(LeaseError, match="out of date"):
        acquire("night-1@ctl", TTL_S, slept.fencing, path=path)
    assert read(path).owner == ""


def test_a_heartbeat_keeps_the_number_and_since_when(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    for _ in range(3):
        clock.pass_s(TTL_S - 1)
        beat = acquire("night-1@ctl", TTL_S, first.fencing, path=path)
    assert (beat.fencing, beat.since) == (first.fencing, first.since)
    assert not beat.expired(clock.now)


def test_an_owner_who_lost_its_number_goes_on_and_the_old_number_is_refused(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    again = acquire("night-1@ctl", TTL_S, path=path)
    assert again.fencing > first.fencing
    with pytest.raises(LeaseError, match="out of date"):
        acquire("night-1@ctl", TTL_S, first.fencing, path=path)


def test_an_expired_number_is_not_taken_over_by_somebody_else(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    clock.pass_s(TTL_S + 1)
    with pytest.raises(LeaseError, match="night-1@ctl"):
        acquire("night-2@other", TTL_S, first.fencing, path=path)


def test_a_lease_that_was_given_back_has_no_heartbeat(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    assert release("night-1@ctl", first.fencing, path=path)
    with pytest.raises(LeaseError, match="given back"):
        acquire("night-1@ctl", TTL_S, first.fencing, path=path)


def test_only_the_owner_gives_it_back_and_twice_is_once(path: Path, clock: Clock) -> None:
    first = acquire("night-1@ctl", TTL_S, path=path)
    with pytest.raises(LeaseError, match="not its own"):
        release("night-2@other", first.fencing, path=path)
    with pytest.raises(LeaseError, match="not its own"):
        release("night-1@ctl", first.fencing + 1, path=path)
    assert release("night-1@ctl", first.fencing, path=path)
    assert not release("night-1@ctl", first.fencing, path=path)
    assert acquire("night-2@other", TTL_S, path=path).fencing == first.fencing + 1


@pytest.mark.parametrize("utc", ["1970-01-01T00:00:10+00:00", "2106-02-07T00:00:00+00:00"])
def test_a_wrong_clock_after_a_reboot_frees_no_lease(path: Path, clock: Clock, utc: str) -> None:
    acquire("night-1@ctl", TTL_S, path=path)
    clock.now = Now("boot-2", 30.0, utc)
    with pytest.raises(LeaseError, match="night-1@ctl"):
        acquire("night-2@other", TTL_S, path=path)


def test_a_lease_of_a_former_boot_expires_all_the_same(path: Path, clock: Clock) -> None:
    acquire("night-1@ctl", TTL_S, path=path)
    clock.now = Now("boot-2", TTL_S + 1, clock.now.utc)
    assert acquire("night-2@other", TTL_S, path=path).fencing == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"owner": 1}', '{"fencing": "x"}', '{"who": "me"}', '{"ttl_s": null}']
)
def test_a_damaged_lease_lets_nobody_in_and_stays_as_it_is(path: Path, clock: Clock, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(LeaseError, match=str(path)):
        acquire("night-1@ctl", TTL_S, path=path)
    assert path.read_text() == text


@pytest.mark.parametrize(("owner", "ttl_s"), [("", TTL_S), ("me", 0.0)])
def test_a_lease_needs_an_owner_and_an_end(path: Path, clock: Clock, owner: str, ttl_s: float) -> None:
    with pytest.raises(LeaseError):
        acquire(owner, ttl_s, path=path)


def _race(path: Path, owner: str, start: Any, answer: Connection) -> None:
    start.wait()
    try:
        answer.send(acquire(owner, TTL_S, path=path).fencing)
    except LeaseError:
        answer.send(0)


@pytest.mark.component
def test_of_processes_that_race_exactly_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        path, start = tmp_path / str(attempt) / "lease.json", context.Barrier(4)
        pipes = [context.Pipe(duplex=False) for _ in range(4)]
        racers = [
            context.Process(target=_race, args=(path, f"owner-{index}", start, writer))
            for index, (_, writer) in enumerate(pipes)
        ]
        for racer in racers:
            racer.start()
        won = [reader.recv() for reader, _ in pipes]
        for racer in racers:
            racer.join()
        assert sorted(won) == [0, 0, 0, 1]
        assert read(path).owner == f"owner-{won.index(1)}"


@pytest.fixture
def on_node(path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Run:
    monkeypatch.setattr(lease, "PATH", path)

    def run(**parameters: Any) -> dict[str, Any]:
        return run_module(node_lease.main, **parameters)

    return run


def test_the_module_takes_renews_and_gives_back(on_node: Run) -> None:
    taken = on_node(owner="night-1@ctl")
    assert taken["changed"]
    number = taken["lease"]["fencing"]
    # What changes the node later looks at it again.
    assert taken["ansible_facts"] == {"temper_lease": {"owner": "night-1@ctl", "fencing": number}}
    assert not on_node(owner="night-1@ctl", fencing=number)["changed"]
    assert on_node(state="query")["lease"]["owner"] == "night-1@ctl"
    assert "night-1@ctl" in on_node(owner="night-2@other")["msg"]
    given_back = on_node(owner="night-1@ctl", fencing=number, state="free")
    assert given_back["changed"]
    assert given_back["lease"]["owner"] == ""
    assert not on_node(owner="night-1@ctl", fencing=number, state="free")["changed"]


def test_check_mode_tells_the_truth_and_writes_nothing(on_node: Run, path: Path) -> None:
    would = on_node(owner="night-1@ctl", check_mode=True)
    assert would["changed"]
    assert "temper_lease" not in would["ansible_facts"]
    assert not path.parent.exists()
    on_node(owner="night-1@ctl")
    before = json.loads(path.read_text())
    assert on_node(owner="night-1@ctl", fencing=1, state="free", check_mode=True)["changed"]
    assert "night-1@ctl" in on_node(owner="night-2@other", check_mode=True)["msg"]
    assert json.loads(path.read_text()) == before


def test_nobody_holds_a_node_that_was_never_leased(on_node: Run) -> None:
    assert on_node(state="query")["lease"]["owner"] == ""
    assert Lease(**{key: value for key, value in on_node(state="query")["lease"].items() if key != "expired"})


def test_an_earlier_attempt_of_the_same_owner_is_refused(path: Path, clock: Clock) -> None:
    first = acquire("run 1", TTL_S, attempt=1, path=path)
    second = acquire("run 1", TTL_S, attempt=2, path=path)
    assert second.fencing > first.fencing
    with pytest.raises(LeaseError, match="Attempt 1 of run 1 comes too late: attempt 2 works on this node"):
        acquire("run 1", TTL_S, attempt=1, path=path)
    assert not lease.release_attempt("run 1", 1, path=path)
    assert read(path).owner == "run 1"
    assert lease.release_attempt("run 1", 2, path=path)
    assert read(path).owner == ""


def test_an_earlier_attempt_is_refused_also_where_a_later_one_has_given_the_node_back(
    path: Path, clock: Clock
) -> None:
    acquire("run 1", TTL_S, attempt=2, path=path)
    assert lease.release_attempt("run 1", 2, path=path)
    with pytest.raises(LeaseError, match="Attempt 1 of run 1 comes too late: attempt 2 has worked on this"):
        acquire("run 1", TTL_S, attempt=1, path=path)
    assert acquire("run 1", TTL_S, attempt=3, path=path).attempt == 3
    assert lease.release_attempt("run 1", 3, path=path)
    other = acquire("night-1@ctl", TTL_S, path=path)
    assert (other.attempt, other.former) == (0, "")


def test_a_heartbeat_is_known_by_its_number_and_keeps_the_attempt(
    path: Path, clock: Clock, on_node: Run
) -> None:
    """What a role knows of its lease are owner and number."""
    first = acquire("run 1", TTL_S, attempt=1, path=path)
    assert on_node(owner="run 1", fencing=first.fencing)["changed"] is False
    assert read(path).attempt == 1
    second = acquire("run 1", TTL_S, attempt=2, path=path)
    with pytest.raises(LeaseError, match="is out of date"):
        acquire("run 1", TTL_S, first.fencing, path=path)
    assert acquire("run 1", TTL_S, second.fencing, path=path).attempt == 2


def test_a_node_is_not_given_back_while_a_step_is_at_work_on_it(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATH", path)
    monkeypatch.setattr(lease, "SETTINGS_TIMEOUT_S", 0.1)
    taken = acquire("run 1", TTL_S, attempt=1, path=path)
    with lease.working("run 1", taken.fencing), pytest.raises(LeaseError, match=r"has had .* locked"):
        lease.release_attempt("run 1", 1, path=path)
    assert read(path).owner == "run 1"
    assert lease.release_attempt("run 1", 1, path=path)


def test_a_later_attempt_gives_back_what_an_earlier_one_holds_and_keeps_it_out(
    path: Path, clock: Clock
) -> None:
    acquire("run 1", TTL_S, attempt=1, path=path)
    assert lease.release_attempt("run 1", 2, path=path)
    assert read(path).owner == ""
    with pytest.raises(LeaseError, match="Attempt 1 of run 1 comes too late: attempt 2 has worked on this"):
        acquire("run 1", TTL_S, attempt=1, path=path)


def test_a_lease_of_before_attempts_is_read(path: Path, clock: Clock) -> None:
    acquire("run 1", TTL_S, path=path)
    known = json.loads(path.read_text())
    del known["attempt"]
    path.write_text(json.dumps(known))
    assert read(path).attempt == 0


def test_a_run_that_was_given_up_changes_nothing_any_more(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lease, "PATH", path)
    monkeypatch.setattr(lease, "SETTINGS_LOCK", tmp_path / "settings")
    first = acquire("run 1", TTL_S, attempt=1, path=path)
    with lease.working("run 1", first.fencing):
        pass
    acquire("run 1", TTL_S, attempt=2, path=path)
    with pytest.raises(LeaseError, match="out of date"), lease.working("run 1", first.fencing):
        raise AssertionError("it worked on the node")
    with lease.working():  # a run that took no lease waits for others, and is not refused
        pass


def test_two_runs_never_change_a_node_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lease, "SETTINGS_LOCK", tmp_path / "settings")
    monkeypatch.setattr(lease, "SETTINGS_TIMEOUT_S", 0.05)
    with (
        lease.working(),
        pytest.raises(LeaseError, match=r"Another process has had .*settings\.lock locked"),
        lease.working(),
    ):
        raise AssertionError("both worked on the node")


def test_reading_a_node_takes_its_lease_where_it_is_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run
) -> None:
    monkeypatch.setattr(lease, "PATH", path)
    monkeypatch.setattr(node_facts, "gather", lambda payload, image_kernel: {"os": payload})
    asked = {"owner": "run 1", "attempt": 1, "ttl_s": 60}
    facts = run_module(node_facts.main, lease=asked)["ansible_facts"]
    assert facts["temper_lease"] == {"owner": "run 1", "fencing": 1}
    assert facts["temper"]
    refused = run_module(node_facts.main, lease={**asked, "owner": "run 2"})
    assert "This node is held by run 1" in refused["msg"]
    assert "ansible_facts" not in refused
    assert "temper_lease" not in run_module(node_facts.main)["ansible_facts"]
