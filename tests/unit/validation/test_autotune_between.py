"""Autotune between nodes: which interfaces they share, what a trial measures, and what each node proposes."""

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import gpu_validation
import pytest
import yaml

from temper.judge import proposal
from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.test_autotune import Answers, evidence_of, node_of
from tests.unit.validation.test_autotune_playbook import failed
from tests.unit.validation.test_torch import there
from validation.autotune import between, tune
from validation.autotune.between import BetweenError, Survey, choices_of, group_of
from validation.autotune.evidence import as_another
from validation.autotune.knobs import FABRIC, INTERFACE, Setup
from validation.autotune.search import Failed, SearchStage, Trial
from validation.autotune.trials import Bench
from validation.autotune.tune import TuneError, chosen, drive
from validation.checks.check import LEAST_PATIENCE_S
from validation.checks.node import MOST_PATIENCE
from validation.cli import main
from validation.fabric.groups import Member, Order
from validation.fabric.measure import MEETING_S, MEETING_S_PER_NODE
from validation.model.contract import FABRIC_VERSION, Measured, decode, encode
from validation.processes.child import Request
from validation.processes.pool import ROOT, Ending, ProcessOutcome

MEMBERS = (Member("gpu01", "10.0.0.1", 1), Member("gpu02", "10.0.0.2", 1))
BRIDGE = {"docker0": "172.17.0.1"}


def order_of(node: str = "gpu01", library: str = "gloo", members: tuple[Member, ...] = MEMBERS) -> Order:
    return Order(FABRIC_VERSION, node, members, 29511, library, "quick", "search", len(members))


#: eth0 and a faster network, which has other names on the two nodes, and storage, which one of them has.
FIRST = Survey(
    "=eth0",
    {"eth0": "10.0.0.1", **BRIDGE, "ens5": "10.1.0.1", "ens6": "10.2.0.1"},
    {"10.0.0.2": "eth0", "10.1.0.2": "ens5"},
)
SECOND = Survey(
    "=eth0",
    {"eth0": "10.0.0.2", **BRIDGE, "fast0": "10.1.0.2"},
    # The default route leads to what it has no network with.
    {"10.0.0.1": "eth0", "10.1.0.1": "fast0", "10.2.0.1": "eth0"},
)


def test_a_choice_is_an_interface_of_each_node_by_which_all_reach_all() -> None:
    assert choices_of([FIRST, SECOND]) == {"=eth0": ("eth0", "eth0"), "=ens5": ("ens5", "fast0")}


def test_networks_that_are_routed_are_a_choice_too() -> None:
    """Each node has a network of its own, as with routes to the host."""
    nodes = [
        Survey("=eth0", {"eth0": f"10.0.{number}.1"}, {f"10.0.{3 - number}.1": "eth0"}) for number in (1, 2)
    ]
    assert choices_of(nodes) == {"=eth0": ("eth0", "eth0")}


def test_what_leads_to_a_node_and_not_back_is_no_choice() -> None:
    one_way = dataclasses.replace(FIRST, ways=FIRST.ways | {"10.1.0.2": "eth0"})
    assert choices_of([one_way, SECOND]) == {"=eth0": ("eth0", "eth0")}


def test_a_third_node_without_it_or_that_only_the_first_reaches_is_no_choice() -> None:
    without = Survey(
        "=eth0", {"eth0": "10.0.0.3"}, {"10.0.0.1": "eth0", "10.0.0.2": "eth0", "10.1.0.1": "eth0"}
    )
    first = dataclasses.replace(FIRST, ways=FIRST.ways | {"10.0.0.3": "eth0"})
    second = dataclasses.replace(SECOND, ways=SECOND.ways | {"10.0.0.3": "eth0"})
    assert choices_of([first, second, without]) == {"=eth0": ("eth0", "eth0", "eth0")}
    assert choices_of([first, SECOND, without]) == {}


def test_the_start_is_what_jobs_of_each_node_have_now_even_where_that_is_no_choice() -> None:
    group = group_of(order_of(), [FIRST, dataclasses.replace(SECOND, now="fast")])
    assert (group.start, group.choices["=eth0"]) == ("=eth0", ("eth0", "fast0"))


@each("=", "=eth7", "^docker", "e")
def test_a_start_that_is_not_one_interface_is_refused_with_those_that_there_are(now: str) -> None:
    with pytest.raises(BetweenError, match=r"gpu01 is .*: expected one of .*=eth0.*=ens5"):
        group_of(order_of(), [dataclasses.replace(FIRST, now=now), SECOND])


def setup_of(order: Order | None = None) -> Setup:
    return Setup(node_of(), None, {}, group=group_of(order or order_of(), [FIRST, SECOND]))


def test_the_interface_is_a_knob_only_between_nodes_and_only_where_it_is_named() -> None:
    (knob,), _ = chosen(setup_of(), (INTERFACE,))
    assert (knob.objective, knob.start, knob.candidates) == (FABRIC, "=eth0", ("=ens5",))
    _, left_out = chosen(setup_of(), ())
    assert INTERFACE in {one.name for one in left_out}
    with pytest.raises(TuneError, match="between nodes"):
        chosen(Setup(node_of(), None, {}), (INTERFACE,))


def test_nodes_with_one_network_have_nothing_to_try() -> None:
    alone = [dataclasses.replace(one, addresses={"eth0": one.addresses["eth0"]}) for one in (FIRST, SECOND)]
    setup = Setup(node_of(), None, {}, group=group_of(order_of(), alone))
    with pytest.raises(TuneError, match="nothing to try beside =eth0"):
        chosen(setup, (INTERFACE,))


class Ranks(Answers):
    """Stands for this node's ranks: what each time that the nodes meet comes to."""

    def __init__(self, *answers: Measured | str, stage: str = "leaving") -> None:
        super().__init__(*answers)
        self.stage = stage

    def __call__(self, requests: list[Request], _budget_s: float, **more: Any) -> list[ProcessOutcome]:
        return [dataclasses.replace(one, stage=self.stage) for one in super().__call__(requests, 1.0, **more)]


def seconds(value: float) -> Measured:
    return Measured(details={"seconds": {"all_reduce 8388608": [value, value, value]}})


def test_each_node_is_told_its_own_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Ranks(seconds(0.008388608))
    monkeypatch.setattr(between, "run_children", answers)
    rate = Bench(setup_of()).measure(Trial(SearchStage.SCREEN, FABRIC, {INTERFACE: "=ens5"}))
    assert rate == pytest.approx(1.0)
    (request,) = answers.requests
    assert request.parameters["told"] == {
        "kind": "trial",
        "environment": [{"GLOO_SOCKET_IFNAME": "ens5"}, {"GLOO_SOCKET_IFNAME": "fast0"}],
    }
    assert request.parameters["store"] == "tcp://10.0.0.1:29511/search"


def test_nccl_is_told_names_that_match_exactly_and_its_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Ranks(seconds(1.0))
    monkeypatch.setattr(between, "run_children", answers)
    settings = {INTERFACE: "=ens5", "nccl_sockets": "4x2"}
    Bench(setup_of(order_of(library="nccl"))).measure(Trial(SearchStage.SCREEN, FABRIC, settings))
    told = answers.requests[0].parameters["told"]["environment"][1]
    assert told == {
        "NCCL_SOCKET_IFNAME": "=fast0",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "2",
    }
    assert told.keys() <= set(between.VARIABLES)


@each("gpu01 rank 0 hung", Measured(not_run="gpu01 rank 0 hung"))
def test_interfaces_that_carry_nothing_are_named(
    answer: Measured | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between, "run_children", Ranks(answer))
    found = Bench(setup_of()).measure(Trial(SearchStage.SCREEN, FABRIC, {INTERFACE: "=ens5"}))
    assert isinstance(found, Failed)
    assert found.reason.startswith("no collective over ens5, fast0: gpu01 rank 0 hung")


def test_a_trial_between_nodes_takes_no_longer_than_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it wait to the end of its own time for nodes to meet."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    budgets = []

    def run(requests: list[Request], budget_s: float, **_: Any) -> list[ProcessOutcome]:
        budgets.append(budget_s)
        return Ranks(seconds(0.008))(requests, 1.0)

    monkeypatch.setattr(between, "run_children", run)
    setup = setup_of()
    bench = Bench(dataclasses.replace(setup, node=node_of(ends_at=107.0)))
    bench.measure(Trial(SearchStage.SCREEN, FABRIC, {INTERFACE: "=ens5"}))
    assert budgets == [7.0]


@each((0.004, "=ens5"), (0.00805, None), (0.016, None))
def test_an_interface_is_kept_where_it_is_worth_it(
    fast_s: float, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.00805 s in place of 0.008: they are the same."""

    def run(requests: list[Request], _budget_s: float, **_: Any) -> list[ProcessOutcome]:
        name = requests[0].parameters["told"]["environment"][0]["GLOO_SOCKET_IFNAME"]
        return Ranks(seconds(fast_s if name == "ens5" else 0.008))(requests, 1.0)

    monkeypatch.setattr(between, "run_children", run)
    setup = setup_of()
    knobs, _ = chosen(setup, (INTERFACE,))
    (verdict,) = drive(knobs, 1, Bench(setup), lambda _: None).knobs
    assert verdict.kept == kept


def test_who_follows_takes_part_until_it_hears_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"kind": "end", "evidence": {}, "names": []}
    answers = Ranks(Measured(), "a trial that broke", seconds(1.0), Measured(details={"told": told}))
    monkeypatch.setattr(between, "run_children", answers)
    assert between.follow(order_of("gpu02"), node_of()) == told
    assert len(answers.requests) == 4
    assert {request.parameters["told"] for request in answers.requests} == {None}


def test_who_follows_hears_why_there_was_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"kind": "end", "problem": "there is nothing to try"}
    monkeypatch.setattr(between, "run_children", Ranks(Measured(details={"told": told})))
    with pytest.raises(BetweenError, match="gpu01 ended the search: there is nothing to try"):
        between.follow(order_of("gpu02"), node_of())


def test_who_follows_a_node_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "run_children", Ranks("nobody came", stage=between.WAITING))
    monkeypatch.setattr(between, "MEETINGS_MISSED", 0)
    with pytest.raises(BetweenError, match="gpu01, which searches, was not heard of any more: nobody came"):
        between.follow(order_of("gpu02"), node_of())


@each(
    (order_of(members=MEMBERS[:1]), "expected 2 to 64 nodes to measure with each other, found 1"),
    (order_of("gpu03"), "the order names gpu03"),
    (order_of(library="mpi"), "mpi"),
    (order_of(library="nccl"), "nccl cannot run here"),
    (order_of(members=(MEMBERS[0], Member("gpu02", "10.0.0.2", 0))), "gpu02 has none"),
)
def test_an_order_that_cannot_be_carried_out_is_refused(order: Order, words: str) -> None:
    with pytest.raises(BetweenError, match=words):
        between.check(order, node_of())


def test_the_others_hear_of_a_search_that_cannot_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else they would wait for it."""
    said = []

    def run(requests: list[Request], _budget_s: float, **_: Any) -> list[ProcessOutcome]:
        told = requests[0].parameters["told"]
        said.append(told)
        alone = [
            {"now": "=eth0", "addresses": {"eth0": address}, "ways": {}}
            for address in ("10.0.0.1", "10.0.0.2")
        ]
        answer = Measured(details={"nodes": alone})
        return [ProcessOutcome(one, Ending.DONE, answer, "", "", 0.0) for one in requests]

    monkeypatch.setattr(between, "run_children", run)
    monkeypatch.setattr(tune, "Node", lambda *_, **__: node_of())
    wishes = tune.Wishes("gpu01", tmp_path / "journal.json", (INTERFACE,))
    with pytest.raises(TuneError, match="nothing to try"):
        tune.tune_together(wishes, order_of(), lambda _: None)
    assert [one["kind"] for one in said] == ["survey", "end"]
    assert "nothing to try" in said[1]["problem"]


@each(((),), (("nccl_sockets",),), ((INTERFACE, "omp_num_threads"),))
def test_knobs_of_one_node_are_not_tuned_by_several(
    knobs: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tmp_path / "order.json"
    order.write_text(json.dumps(encode(order_of())))
    command = [
        "autotune",
        f"--order={order}",
        f"--journal={tmp_path / 'journal'}",
        *(f"--knob={one}" for one in knobs),
    ]
    assert main.main(command) == 2
    assert f"{INTERFACE} is tuned by several nodes together" in capsys.readouterr().err


def test_every_node_proposes_its_own_name_for_what_was_found() -> None:
    found = dataclasses.replace(
        evidence_of((INTERFACE, "=ens5"), start="=eth0"), nodes=("gpu01", "gpu02"), library="gloo"
    )
    variable = "compute_environment_nccl_socket_ifname"
    assert yaml.safe_load(proposal.text(found)) == {variable: "=ens5"}
    other = as_another(found, INTERFACE, {"=eth0": "=eth0", "=ens5": "=fast0"})
    content = proposal.text(other)
    assert yaml.safe_load(content) == {variable: "=fast0"}
    # That it was measured again at the end is told of it as of the first.
    assert "+50.0%" in content
    assert "gloo between gpu01, gpu02" in content
    assert "ens5" not in content


def test_the_playbook_orders_what_the_program_reads() -> None:
    plan = {"gpus": [{"count": 8}], "unknown_gpus": []}
    hostvars = {
        "gpu01": {"preflight_plan": plan, "ansible_host": "10.0.0.1"},
        "gpu02": {"preflight_plan": plan},
    }
    settings = {"library": "nccl", "port": 29511, "run": "ab"}
    order = decode(Order, gpu_validation.autotune_order(hostvars, hostvars, "gpu02", settings))
    assert (order.node, order.library, order.port, order.run) == ("gpu02", "nccl", 29511, "ab")
    assert order.group == (Member("gpu01", "10.0.0.1", 8), Member("gpu02", "gpu02", 8))


@pytest.mark.component
@pytest.mark.parametrize(("together", "refused"), [(True, True), (False, False)])
def test_a_search_between_nodes_with_one_node_is_refused(
    tmp_path: Path, together: bool, refused: bool
) -> None:
    nodes = {"node01": {"__gpu_validation_together": together}}
    found = failed(tmp_path, "Refuse a search between nodes with one node", nodes)
    assert bool(found) is refused
    assert ("expected two or more in this run, found node01" in found.get("node01", "")) is refused


TOGETHER = """
    import dataclasses, socket
    from concurrent.futures import ThreadPoolExecutor
    from validation.autotune import between
    from validation.autotune.between import Group
    from validation.checks.node import Node
    from validation.fabric.groups import Member, Order
    from validation.model.contract import FABRIC_VERSION
    from validation.model.expectations import Expectation
    from validation.model.plans import PLANS

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = tuple(Member(name, "127.0.0.1", 1) for name in ("a", "b"))
    rest = (members, port, "gloo", "quick", "now", 2)
    first, other = [Order(FABRIC_VERSION, one.name, *rest) for one in members]
    group = Group(first, {"=lo": ("lo", "lo"), "=gone": ("lo", "gone")}, "=lo")
    node = Node(PLANS["quick"], Expectation())
    with ThreadPoolExecutor(1) as threads:
        told = threads.submit(between.follow, other, node)
        rates = [between.all_reduce(group, node, one, {}) for one in ("=lo", "=gone", "=lo")]
        between.end(first, node, {"evidence": "what was found"})
        answer = [rates[0], rates[1].reason, rates[2], told.result()["evidence"]]
"""


def test_the_playbook_waits_for_as_many_nodes_as_there_may_be_to_meet_once_more() -> None:
    """Else a search that ends in time is ended by it, and its evidence lost."""
    tasks = (ROOT / "roles/gpu_validation/tasks/autotune.yml").read_text()
    (more_s,) = re.findall(r"\* 60 \+ (\d+)\)", tasks)
    meeting_s = LEAST_PATIENCE_S + MEETING_S + MEETING_S_PER_NODE * between.MOST_NODES
    assert int(more_s) >= MOST_PATIENCE * meeting_s


@pytest.mark.nightly
@pytest.mark.component
@needs_torch
def test_real_ranks_measure_together_and_go_on_after_a_trial_that_fails() -> None:
    """Two nodes over loopback; an interface that is not there breaks the trial, and no more."""
    good, reason, again, told = there(TOGETHER)
    assert good > 0
    assert "no collective over lo, gone" in reason
    assert again > 0
    assert told == "what was found"
