"""Between nodes: orders and parts as nodes get and give them; and real ranks over TCP."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from temper.judge.fabric import judge_fabric
from temper.judge.fabric_search import next_rounds
from tests.unit.each import each
from tests.unit.validation.fabric_rounds import NAMES, SIZE, attempts, bad_rank, fleet, states
from tests.unit.validation.samples import node
from validation.backends.sampling import MOST_ATTEMPTS
from validation.checks.check import LEAST_PATIENCE_S
from validation.checks.collectives import UNMET
from validation.fabric import measure
from validation.fabric.groups import Attempt, Fleet, Member, Order, make_orders, read_rounds
from validation.fabric.measure import run_part
from validation.model.contract import FABRIC_VERSION, Measured, dumps, encode, loads
from validation.model.plans import PLANS, Plan
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome


class Started:
    """What `run_part` asked of its processes; `answer` says how each of them ended."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        answer: Callable[[Request], ProcessOutcome | None] = lambda _request: None,
    ) -> None:
        self.answer = answer
        self.runs: list[tuple[list[Request], float, dict[str, Any]]] = []
        monkeypatch.setattr(measure, "run_children", self)

    def __call__(self, requests: list[Request], budget_s: float, **options: Any) -> list[ProcessOutcome]:
        self.runs.append((requests, budget_s, options))
        return [ended for ended in map(self.answer, requests) if ended]

    def in_groups_of(self, *counts: int) -> Started:
        for count in counts:
            members = tuple(Member(f"n{number}", "192.0.2.8", 1) for number in range(count))
            group = tuple(member.name for member in members)
            run_part(make_orders(fleet(nodes=members), [group], "5c1a")["n1"], node())
        return self


def test_an_order_names_the_group_and_where_to_meet() -> None:
    order = make_orders(fleet(), [("a", "d"), ("b", "c")], "5c1a")["c"]
    assert order == Order(
        FABRIC_VERSION,
        "c",
        (Member("b", "192.0.2.1", 8), Member("c", "192.0.2.2", 8)),
        29511,
        "nccl",
        "quick",
        "5c1a-1",
        4,
    )


def test_no_group_meets_another_by_mistake() -> None:
    given = make_orders(fleet(), [("a", "d"), ("b", "c")], "5c1a")
    assert given["a"].run == given["d"].run != given["b"].run == given["c"].run


@each(("192.0.2.7", "tcp://192.0.2.7:29511/5c1a-0"), ("2001:db8::7", "tcp://[2001:db8::7]:29511/5c1a-0"))
def test_ranks_are_told_where_to_meet_and_by_which_name(
    address: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch)
    members = (Member("a", address, 2), Member("b", "192.0.2.8", 2))
    order = make_orders(fleet(nodes=members), [("a", "b")], "5c1a")["b"]
    run_part(order, node())
    ((asked, _budget_s, _options),) = started.runs
    assert [(one.parameters["rank"], one.parameters["store"]) for one in asked] == [(2, place), (3, place)]


def test_rounds_are_written_and_read_back_the_same() -> None:
    whole = fleet(attempts(("a", "b"), b=bad_rank("b")), attempts(("c", "d")))
    assert loads(Fleet, dumps(whole)) == whole


def test_a_node_without_torch_says_that_it_cannot_take_part() -> None:
    order = make_orders(fleet(library="gloo"), [("a", "b")], "5c1a")["a"]
    assert "torch is not installed" in run_part(order, node(torch=None)).not_run


def test_a_rank_that_could_not_run_is_no_rank_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Measured(not_run="memory ran out: CUDA out of memory")

    def ended(request: Request) -> ProcessOutcome | None:
        if request.parameters["rank"] == 16:
            return ProcessOutcome(request, Ending.STOPPED, Measured(), "it was stopped", "measuring", 100.0)
        if request.parameters["rank"] == 17:
            return ProcessOutcome(request, Ending.DONE, short, "", "measuring", 99.0)
        return None

    Started(monkeypatch, ended)
    order = make_orders(fleet(), [NAMES], "5c1a")["c"]
    given = run_part(order, node())
    assert given.not_run == "c rank 17: memory ran out: CUDA out of memory"
    whole = attempts(NAMES, **{name: bad_rank(name) for name in NAMES})
    whole["c"] = Attempt(NAMES, given)
    found = fleet(whole)
    while rounds := next_rounds(found):
        found = dataclasses.replace(found, rounds=(*found.rounds, *(attempts(*pairs) for pairs in rounds)))
    assert states(found) == {name: "not-run" if name == "c" else "pass" for name in NAMES}


@each(("127.0.0.1", "lo"), ("::1", "lo"), ("not an address", None))
def test_the_interface_towards_a_peer_is_found(address: str, name: str | None) -> None:
    assert measure.interface_towards(address) == name


def test_a_large_group_has_more_time_to_meet_and_as_much_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    ((two, *_), two_s, _), ((many, *_), many_s, _) = Started(monkeypatch).in_groups_of(2, 1000).runs
    assert two.parameters["measure_s"] == many.parameters["measure_s"] < two_s
    assert many_s - two_s > 150  # what Ansible may take to start a thousand
    assert two.parameters["timeout_s"] > two_s
    assert many.parameters["timeout_s"] > many_s


def test_ranks_without_progress_end_before_the_budget_and_those_that_meet_may_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    runs = Started(monkeypatch).in_groups_of(2, 1000).runs
    for _requests, budget_s, options in runs:
        assert LEAST_PATIENCE_S <= options["patience_s"] < budget_s / 2
        assert set(options["longer_s"]) == set(UNMET)
        # Who is there first waits for what Ansible takes to start the others.
        assert min(options["longer_s"].values()) > budget_s - node().plan.fabric_budget_s
    assert len({options["patience_s"] for _requests, _budget_s, options in runs}) == 1


def test_where_a_rank_stood_when_it_was_given_up_is_brought_home(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = "measuring all-reduce of 1 MiB"
    hung = (Ending.HUNG, Measured(), "it hung in stage: measuring", stage, 9.0, 60.0, "stopped", 22)
    Started(monkeypatch, lambda request: ProcessOutcome(request, *hung))
    rank = run_part(make_orders(fleet(), [("a", "b")], "5c1a")["a"], node()).ranks[0]
    assert (rank.steps, rank.halted) == (22, "stopped")
    assert rank.problem == "it hung in stage: measuring, after run 11"


@each(*PLANS.values())
def test_the_runs_between_nodes_fit_the_budget_on_a_slow_network(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch)
    order = make_orders(fleet(), [("a", "b")], "5c1a")["a"]
    run_part(order, node(plan=plan))
    parameters = started.runs[0][0][0].parameters
    steps = len(parameters["collectives"]) * len(parameters["sizes_bytes"])
    assert 0 < parameters["at_most_s"] * MOST_ATTEMPTS * steps <= plan.fabric_budget_s / 2 + 0.001
    assert parameters["at_most_s"] <= plan.all_reduce_s
    assert 0 < parameters["measure_s"] < plan.fabric_budget_s
    assert parameters["sizes_bytes"][0] == 1 << 20  # small enough for any network


def with_part(part: object) -> Fleet:
    found = encode(fleet(attempts(NAMES)))
    found["rounds"][0]["a"]["part"] = part
    return read_rounds(json.loads(json.dumps(found)))


PART: dict[str, Any] = encode(attempts(NAMES)["a"].part)


@each(
    ({"node": "b"}, "it is one of node b"),
    ({"schema_version": 1}, "in schema version 1"),
    ({"ranks": 7}, "ranks: expected a list"),
    ({"ranks": [encode(bad_rank("a"))] * 300}, "ranks: expected at most 256 items"),
    ({"link_gb_s": -1.0}, "link_gb_s: expected a number"),
    ({"sizes_bytes": [0]}, "expected a number from 1"),
    ({"evil": 1}, "no such field in Part"),
)
def test_a_part_that_cannot_be_read_is_the_problem_of_its_node(change: dict[str, Any], why: str) -> None:
    read = with_part(PART | change)
    assert read.rounds[0]["a"].part is None
    assert why in read.rounds[0]["a"].problem
    assert {name: one for name, one in read.rounds[0].items() if name != "a"} == {
        name: one for name, one in attempts(NAMES).items() if name != "a"
    }
    assert why in judge_fabric(read)["a"].reason


def with_seconds(**seconds: list[float]) -> dict[str, Any]:
    first, *others = PART["ranks"]
    return PART | {"ranks": [first | {"seconds": seconds}, *others]}


# Nothing in the place of a part, and times that no runs took.
@each(
    *(0, "", {}, [], False),
    *(with_seconds(**{name: [0.1]}) for name in ("all_reduce", "all_reduce 007", "all_reduce 1e9")),
    *(with_seconds(**{name: [0.1]}) for name in (f"all_reduce {'9' * 30}", f"broadcast {SIZE}")),
    *(with_seconds(**{f"all_reduce {SIZE}": times}) for times in ([], [0.0], [-1.0])),
)
def test_what_is_no_part_is_the_problem_of_its_node(part: object) -> None:
    read = with_part(part)
    assert read.rounds[0]["a"].problem.startswith("its part cannot be read: ")
    assert judge_fabric(read).keys() == set(NAMES)
