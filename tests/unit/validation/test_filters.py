"""What passes between plan, payload and report: nothing is lost on the way, and every node has a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_validation
import pytest
import yaml

from tests.unit.validation.samples import node_result, one_test
from validation.cli import TESTS
from validation.contract import dumps, encode
from validation.expectations import fleet_from, parse_expectation

MODELS = yaml.safe_load((Path(__file__).parents[3] / "data" / "gpu_models.yml").read_text())
PLAN = {
    "gpus": [{"model": "h100_sxm_80gb", "name": "H100 SXM 80 GB", "architecture": "hopper", "count": 8}],
    "unknown_gpus": [],
    "driver": {"version": "580.178.04"},
    "nvswitch": True,
    "problems": [],
}


def test_the_payload_reads_what_the_plan_expects() -> None:
    value = gpu_validation.validation_expectation(PLAN, ["health"], MODELS)
    expected = parse_expectation(json.dumps(value), TESTS)
    assert (expected.required_tests, expected.gpu_count, expected.driver_version) == (
        ("health",),
        8,
        "580.178.04",
    )
    model = expected.references.model_of("2330")
    assert model is not None
    assert model["name"] == "H100 SXM 80 GB"
    assert expected.references.pcie_x16["5"]["floor"]["h2d_pinned_gb_s"]["value"] == 48


def test_a_gpu_that_no_table_knows_is_still_counted() -> None:
    value = gpu_validation.validation_expectation(PLAN | {"unknown_gpus": ["abcd"]}, [], MODELS)
    assert parse_expectation(json.dumps(value), TESTS).gpu_count == 9


def test_a_result_is_passed_on_as_it_is() -> None:
    text = dumps(node_result(one_test("health")))
    assert gpu_validation.validation_outcome({"stdout": text, "rc": 1}) == {"result": json.loads(text)}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"unreachable": True, "msg": "Connection\nclosed."}, ["connection broke", "Connection closed"]),
        (
            {"rc": 1, "stdout": "", "stderr": "Traceback\nKeyError: 'x'\n"},
            ["exit status 1", "said last: KeyError: 'x'"],
        ),
        (
            {"rc": 127, "stdout": "{", "msg": "non-zero return code"},
            ["exit status 127", "non-zero return code"],
        ),
        ({"msg": "async task did not complete within the requested time - 60s"}, ["no exit status", "60s"]),
        ({}, ["nothing"]),
    ],
)
def test_a_run_without_a_result_has_a_reason(run: dict[str, Any], words: list[str]) -> None:
    outcome = gpu_validation.validation_outcome(run)
    assert outcome.keys() == {"problem"}
    for word in words:
        assert word in outcome["problem"]


def test_every_node_of_the_run_is_in_the_fleet_with_its_result_or_its_reason() -> None:
    result = encode(node_result(one_test("health")))
    expectation = gpu_validation.validation_expectation(PLAN, ["health"], MODELS)
    hostvars = {
        "measured": {
            "preflight_plan": PLAN,
            "__gpu_validation_outcome": {"result": result, "expectation": expectation},
        },
        "broken": {"preflight_plan": PLAN, "__gpu_validation_outcome": {"problem": "it hung"}},
        "refused": {"preflight_plan": {"problems": ["the disk is full.", "Secure Boot\nis enabled"]}},
        "lost": {"preflight_plan": PLAN},
        "silent": {},
    }
    fleet = json.loads(json.dumps(gpu_validation.validation_fleet(hostvars, hostvars)))
    expectations = fleet_from(fleet["expectations"], TESTS)
    assert fleet["results"].keys() == {"measured"}
    assert {name: node.not_run for name, node in expectations.nodes.items()} == {
        "measured": None,
        "broken": "it hung",
        "refused": "refused before anything was changed: the disk is full; Secure Boot is enabled",
        "lost": gpu_validation.NO_TRACE,
        "silent": gpu_validation.NO_TRACE,
    }
    assert expectations.nodes["lost"].gpu_count == 8
    assert expectations.nodes["measured"].required_tests == ("health",)
