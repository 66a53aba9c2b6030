"""A result's form: what is written is read back, all else is refused with its place, the schemas agree."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.each import each
from tests.unit.validation import samples
from validation.model import contract
from validation.model.bounds import MOST_NUMBER, MOST_WHOLE
from validation.model.contract import (
    EXPECTATIONS_VERSION,
    ContractError,
    Digest,
    Finding,
    Measured,
    Measurement,
    NodeResult,
    State,
)
from validation.model.expectations import FleetExpectations, fleet_from
from validation.report import schema
from validation.verdict.judge import judge_fleet, judge_node

SCHEMAS = Path(schema.__file__).parents[1] / "schemas"

finite = st.floats(-MOST_NUMBER, MOST_NUMBER)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
index = st.none() | st.integers(0, 255)
measurements = st.builds(
    Measurement,
    name=text,
    value=finite,
    samples=st.integers(-MOST_WHOLE, MOST_WHOLE),
    spread=finite,
    device=index,
    conditions=st.dictionaries(text, st.integers(-MOST_WHOLE, MOST_WHOLE) | text),
)
findings = st.builds(Finding, code=text, state=st.sampled_from(State), text=text, action=text, device=index)


@given(
    st.builds(
        Measured, measurements=st.lists(measurements).map(tuple), findings=st.lists(findings).map(tuple)
    )
)
def test_what_is_written_is_read_back_the_same(measured: Measured) -> None:
    assert contract.loads(Measured, contract.dumps(measured)) == measured


def whole_result() -> NodeResult:
    """A result that has one of everything."""
    test = samples.one_test(
        "gpu_matmul",
        State.FAIL,
        samples.measurement(conditions={"size": 8192, "dtype": "bf16"}),
        findings=(Finding("wrong-result", State.FAIL, "it is wrong", "take it out", 0),),
        details={"telemetry": [{"device": 0, "event_reason_shares": {}}]},
        digests=(Digest("bf16", "00ff", 0, {"m": 8192, "torch": "2.13.0"}),),
    )
    return samples.node_result(test)


def changed(path: list[str | int], value: Any) -> Any:
    """A whole result as JSON gives it, with the value at `path` replaced, or removed where it is `...`."""
    result: Any = json.loads(contract.dumps(whole_result()))
    place = result
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


WRONG = [
    (["tests", 0, "state"], "ok", r"\.state: expected one of pass, degraded, fail, not-run, found 'ok'"),
    (["tests", 0, "state"], ..., r"tests\[0\]\.state: missing"),
    (["tests", 0, "measurements", 0, "value"], "612", r"\[0\]\.value: expected a finite number, found '612'"),
    (["tests", 0, "measurements", 0, "value"], True, r"value: expected a finite number, found True"),
    (["tests", 0, "method"], 1.5, r"tests\[0\]\.method: expected int, found 1\.5"),
    (["tests", 0, "findings"], {}, r"tests\[0\]\.findings: expected a list, found {}"),
    (["tests", 0, "verdict"], "pass", r"tests\[0\]\.verdict: no such field in TestResult"),
    (["machine"], [], r"machine: expected an object, found \[\]"),
    (["gpus", 0, "index"], None, r"gpus\[0\]\.index: expected int, found None"),
    (["node"], 7, r"node: expected str, found 7"),
]  # fmt: skip


@each(*WRONG)
def test_reader_and_schema_refuse_a_result_of_another_form(
    path: list[str | int], value: Any, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        contract.node_result(changed(path, value))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), load("node-result"))


@each(math.nan, math.inf)
def test_a_number_that_is_none_is_never_written(value: float) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        contract.dumps(Measured((samples.measurement(value=value),)))
    for document in ({"a": value}, {"a": [value]}, {"a": [{"b": value}]}):
        with pytest.raises(ValueError, match="JSON"):
            "".join(contract.json_text(document))


@each("NaN", "Infinity")
def test_a_number_that_is_none_is_never_read(text: str) -> None:
    written = contract.dumps(Measured((samples.measurement(value=612.5),))).replace("612.5", text)
    with pytest.raises(ContractError, match=r"measurements\[0\]\.value: expected a finite number"):
        contract.loads(Measured, written)
    with pytest.raises(ContractError, match=r"details\.seconds\[1\]: expected a finite number"):
        contract.loads(Measured, f'{{"details": {{"seconds": [1.0, {text}]}}}}')


def test_a_result_of_another_schema_version_is_refused() -> None:
    with pytest.raises(ContractError, match="schema version 1; this program reads 3 and 4"):
        contract.node_result(changed(["schema_version"], 1))


def test_a_result_of_version_3_is_read_and_says_no_machine_action() -> None:
    value = changed(["schema_version"], 3)
    for test in value["tests"]:
        for finding in test["findings"]:
            del finding["machine_action"]
    found = contract.node_result(value)
    assert found.schema_version == contract.RESULT_VERSION
    assert {finding.machine_action for test in found.tests for finding in test.findings} == {None}


def test_states_have_one_order() -> None:
    assert sorted(State, key=lambda state: state.severity) == ["pass", "degraded", "not-run", "fail"]
    assert contract.worst([State.DEGRADED, State.NOT_RUN, State.PASS]) is State.NOT_RUN
    assert contract.worst([]) is State.PASS


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ContractError, match="not JSON"):
        contract.loads(Measured, "Traceback (most recent call last):")


def load(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


def test_the_schema_files_are_what_the_code_says() -> None:
    assert {path.name: path.read_text() for path in SCHEMAS.iterdir()} == schema.documents(), (
        "run: python -m validation.report.schema"
    )


def test_documents_fit_their_schemas() -> None:
    verdict = judge_fleet([judge_node("gpu01", whole_result(), samples.expectation(), {})])
    fleet = FleetExpectations(contract.EXPECTATIONS_VERSION, {"gpu01": samples.expectation()})
    for name, value in (("node-result", whole_result()), ("summary", verdict), ("expectations", fleet)):
        jsonschema.validate(json.loads(contract.dumps(value)), load(name))


def test_every_field_of_a_result_is_in_its_schema() -> None:
    fields = {field.name for field in dataclasses.fields(NodeResult)}
    assert set(load("node-result")["$defs"]["NodeResult"]["properties"]) == fields


def test_a_document_in_pieces_is_the_same_document() -> None:
    value = {"empty": [], "none": {}, "rows": iter([{"a": [1, "ä"]}, {"b": (None, True)}]), "one": 0.5}
    text = "".join(contract.json_text(value, lists=1))
    assert json.loads(text) == {
        "empty": [],
        "none": {},
        "rows": [{"a": [1, "ä"]}, {"b": [None, True]}],
        "one": 0.5,
    }
    assert '    {"a": [1,' in text, "a row stands on a line of its own"


def test_what_is_expected_of_several_nodes_is_one_object_and_true_is_no_number() -> None:
    one = {"gpus": [{"model": "h100", "name": "NVIDIA H100", "count": 1}]}
    other = {"gpus": [{"model": "h100", "name": "NVIDIA H100", "count": True}]}

    def fleet(**nodes: Any) -> FleetExpectations:
        return fleet_from({"schema_version": EXPECTATIONS_VERSION, "nodes": nodes}, ())

    nodes = fleet(gpu01=one, gpu02=one, gpu03={}).nodes
    assert nodes["gpu01"] is nodes["gpu02"]
    assert nodes["gpu01"].gpu_count == 1
    assert nodes["gpu03"].gpu_count is None
    with pytest.raises(ContractError, match=r"expectations\.nodes\.gpu02\.gpus\[0\]\.count: expected int"):
        fleet(gpu01=one, gpu02=other)
