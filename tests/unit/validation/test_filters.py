"""What passes between plan, payload and report: nothing is lost on the way, and every node has a reason."""

import json
from typing import Any

import gpu_validation

from tests.unit.each import each
from tests.unit.validation.samples import node_result, one_test
from validation.checks.registry import TESTS
from validation.fabric.groups import Attempt, Fleet, Pairs
from validation.model import bounds, contract
from validation.model.contract import dumps, encode, loads
from validation.model.expectations import Expectation, fleet_from

FABRIC = {
    "library": "nccl",
    "plan": "quick",
    "port": 29511,
    "pairs": "always",
    "pair_rounds": 3,
    "floor_gb_s": 1.5,
}
PLAN = {
    "gpus": [{"model": "h100_sxm_80gb", "name": "H100 SXM 80 GB", "architecture": "hopper", "count": 8}],
    "unknown_gpus": [],
    "driver": {"version": "580.178.04"},
    "fabric": "nvswitch",
    "problems": [],
}


def test_a_result_is_passed_on_as_it_is() -> None:
    text = dumps(node_result(one_test("health")))
    assert gpu_validation.validation_outcome({"stdout": text, "rc": 1}) == {"result": json.loads(text)}


@each(
    '{"a": ' + "[" * 17 + "]" * 17 + "}",
    "[" * 100_000,
    '{"a": "\\ud800"}',
    '{"a": "\\u0000"}',
    '{"a": NaN}',
    '{"a": 1e400}',
    f'{{"a": {"9" * 5000}}}',
    f'{{"a": "{"x" * (bounds.MOST_CHARACTERS + 1)}"}}',
    f'{{"{"x" * 5000}": 1}}',
    '{"a": 1, "a": 2}',
    " " * (contract.MOST_RESULT_BYTES + 1),
)
def test_a_result_beyond_all_bounds_does_not_get_into_the_document_of_the_fleet(stdout: str) -> None:
    outcome = gpu_validation.validation_outcome({"stdout": stdout, "rc": 0})
    assert outcome.keys() == {"problem"}
    assert outcome["problem"].startswith("its result cannot be read: ")


def test_the_reason_of_a_node_is_short_and_printable() -> None:
    problem = "no route\x1b[2J\ud800\0\n" * 10_000
    variables = {gpu_validation.STARTED: {}, "__gpu_validation_outcome": {"problem": problem}}
    fleet = gpu_validation.validation_fleet({"gpu01": variables}, ["gpu01"])
    reason = fleet["expectations"]["nodes"]["gpu01"]["not_run"]
    assert reason.isprintable()
    assert len(reason) < 10_000
    assert fleet_from(fleet["expectations"], TESTS).nodes["gpu01"].not_run == reason


@each(
    ({"unreachable": True, "msg": "Connection\nclosed."}, ["connection broke", "Connection closed"]),
    (
        {"rc": 1, "stdout": "", "stderr": "Traceback\nKeyError: 'x'\n"},
        ["exit status 1", "KeyError: 'x'"],
    ),
    (
        {"rc": 127, "stdout": "{", "msg": "non-zero return code"},
        ["exit status 127", "non-zero return code"],
    ),
    ({"msg": "async task did not complete within the requested time - 60s"}, ["no exit status", "60s"]),
    ({"msg": "could not find job", "finished": 1}, ["the node booted while it was measured"]),
    ({"msg": "Timeout exceeded"}, ["ended after gpu_validation_timeout_s"]),
    ({"rc": 124, "stderr": "interrupted"}, ["ended after gpu_validation_timeout_s"]),
    ({}, ["nothing"]),
)
def test_a_run_without_a_result_has_a_reason(run: dict[str, Any], words: list[str]) -> None:
    outcome = gpu_validation.validation_outcome(run)
    assert outcome.keys() == {"problem"}
    for word in words:
        assert word in outcome["problem"]


RETRYING = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'Network is unreachable': /simple/torch/"
)


@each(
    (
        {"msg": "No repository of this node offers\na package x."},
        ["No repository of this node offers a package x"],
    ),
    ({"rc": 1, "msg": "non-zero return code"}, ["non-zero return code"]),
    (
        {"rc": 1, "stdout": "one\nensurepip is not available\n", "stderr": ""},
        ["status 1", "ensurepip is not"],
    ),
    (
        {"rc": 1, "stderr": f"{RETRYING}\nERROR: No matching distribution found for torch==2.11.0\n"},
        ["No matching distribution", "Network is unreachable", "gpu_validation_pip_args"],
    ),
    ({}, ["failed"]),
)
def test_a_task_that_failed_has_a_reason_in_one_line(result: dict[str, Any], words: list[str]) -> None:
    found = gpu_validation.why_failed(result)
    assert [word for word in words if word not in found] == []
    assert "\n" not in found


def test_what_pip_prints_of_its_proxy_is_in_no_report() -> None:
    lines = f"{RETRYING}\nERROR: Failed to parse: http://u:SEC#RET@proxy/TOKEN\n"
    found = gpu_validation.why_failed({"rc": 1, "stderr": lines, "_ansible_no_log": True})
    assert "SEC" not in found
    assert "TOKEN" not in found
    assert "status 1" in found
    assert "gpu_validation_pip_args" in found


def test_every_node_of_the_run_is_in_the_fleet_with_its_result_or_its_reason() -> None:
    result = encode(node_result(one_test("health")))
    expectation = encode(Expectation(required_tests=("health",)))
    hostvars: dict[str, dict[str, Any]] = {
        "measured": {
            "preflight_plan": PLAN,
            "__gpu_validation_outcome": {"result": result, "expectation": expectation},
        },
        "broken": {"preflight_plan": PLAN, "__gpu_validation_outcome": {"problem": "it hung"}},
        "refused": {"preflight_plan": {"problems": ["the disk is full.", "Secure Boot\nis enabled"]}},
        "lost": {"preflight_plan": PLAN},
        "silent": {},
    }
    hostvars = {name: known | {"__preflight_ways": {}} for name, known in hostvars.items()}
    hostvars["of the next batch"] = {}
    hostvars["silent"]["group_names"] = ["gpu_nodes", "rack1"]
    hostvars["lost"]["rack"] = "r12"
    fleet = json.loads(json.dumps(gpu_validation.validation_fleet(hostvars, hostvars)))
    expectations = fleet_from(fleet["expectations"], TESTS)
    assert fleet["results"].keys() == {"measured"}
    assert (fleet["groups"]["silent"], fleet["groups"]["lost"]) == (["gpu_nodes", "rack1"], ["rack_r12"])
    assert {name: node.not_run for name, node in expectations.nodes.items()} == {
        "measured": None,
        "broken": "it hung",
        "refused": "refused before anything was changed: the disk is full; Secure Boot is enabled",
        "lost": gpu_validation.NO_TRACE,
        "silent": gpu_validation.NO_TRACE,
    }
    assert expectations.nodes["lost"].gpu_count == 8
    assert expectations.nodes["measured"].required_tests == ("health",)


def test_the_fleet_of_a_collective_has_the_nodes_that_were_measured_and_their_rounds() -> None:
    attempt = {"group": ["a", "b"], "part": None, "problem": "the connection broke"}
    measured = {
        "gpu_validation_fabric": "yes",
        "preflight_plan": PLAN,
        "__gpu_validation_outcome": {"result": {}, "batch": "a"},
    }
    hostvars = {
        "a": measured | {"ansible_host": "192.0.2.1", "__gpu_validation_rounds": [attempt, {}]},
        "b": measured | {"__gpu_validation_rounds": [{}, {}]},
        "refused": measured | {"__gpu_validation_outcome": {"problem": "it hung"}},
        "of another group": measured | {"gpu_validation_fabric": False},
        "of another batch": measured | {"__gpu_validation_outcome": {"result": {}, "batch": "c"}},
        "liar": measured | {"preflight_plan": PLAN | {"unknown_gpus": ["abcd"] * 600}},
    }
    value = gpu_validation.validation_fabric(hostvars, hostvars, ["a", "b", "refused", "liar"], FABRIC)
    fleet = loads(Fleet, json.dumps(value))
    assert (fleet.pairs, fleet.pair_rounds, fleet.floor_gb_s) == (Pairs.ALWAYS, 3, 1.5)
    assert [(node.name, node.address, node.ranks) for node in fleet.nodes] == [
        ("a", "192.0.2.1", 8),
        ("b", "b", 8),
    ]
    assert fleet.rounds == ({"a": Attempt(("a", "b"), None, "the connection broke")},)


def test_without_a_node_that_is_to_be_measured_with_others_there_is_no_fabric() -> None:
    hostvars = {"a": {"preflight_plan": PLAN, "__gpu_validation_outcome": {"result": {}}}}
    assert gpu_validation.validation_fabric(hostvars, hostvars, ["a"], FABRIC) == {}


@each(("gloo", 1), ("nccl", 9))
def test_each_gpu_is_a_rank_also_one_that_no_table_knows_and_with_gloo_each_node(
    library: str, ranks: int
) -> None:
    plan = PLAN | {"unknown_gpus": ["abcd"]}
    node = {"preflight_plan": plan, "gpu_validation_fabric": True, "__gpu_validation_outcome": {"result": {}}}
    value = gpu_validation.validation_fabric({"a": node}, ["a"], ["a"], FABRIC | {"library": library})
    assert [node["ranks"] for node in value["nodes"]] == [ranks]


def test_a_node_gets_the_order_of_its_group_with_its_own_name() -> None:
    groups = [{"node": "", "run": run, "group": [{"name": one} for one in run]} for run in ("ab", "cd")]
    assert gpu_validation.validation_order(groups, "d") == groups[1] | {"node": "d"}
    assert gpu_validation.validation_order(groups, "e") == {}


def test_what_came_of_a_part_is_kept_with_its_group() -> None:
    order = {"group": [{"name": "a"}, {"name": "b"}]}
    pool = gpu_validation.validation_attempt({"stdout": '{"node": "a"}', "rc": 0}, order)
    assert pool == {"group": ["a", "b"], "part": {"node": "a"}, "problem": ""}
    lost = gpu_validation.validation_attempt({"unreachable": True, "msg": "gone"}, order)
    assert lost["part"] is None
    assert "connection broke" in lost["problem"]
    assert gpu_validation.validation_attempt({}, {}) == {}
