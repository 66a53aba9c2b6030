"""OSCAL: valid by NIST's own schema, and what was not checked is nowhere satisfied."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from temper.compliance import oscal
from temper.compliance.model import State, Statement
from temper.compliance.statement import CheckedNode, statement
from tests.unit.compliance.fleets import RULES, checked, observation, waiver
from tests.unit.compliance.test_report import LOGIN, NODES, SSHD, STATEMENT
from tests.unit.each import each

SCHEMA = Path(__file__).parent / "schemas" / "oscal_assessment-results_schema.json"
#: Python's `re` has no classes of Unicode; these are as wide as the schema means them.
CLASSES = {r"\p{L}": r"[^\W\d_]", r"\p{N}": r"\d"}


def pattern(_validator: Any, wanted: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    for name, members in CLASSES.items():
        wanted = wanted.replace(name, members)
    if isinstance(value, str) and not re.search(wanted.replace("$", r"\Z"), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {wanted}")


extend: Any = jsonschema.validators.extend  # it has no types
VALIDATOR = extend(jsonschema.Draft7Validator, {"pattern": pattern})(json.loads(SCHEMA.read_text()))


def results(made: Statement) -> dict[str, Any]:
    """The one result of a statement, after NIST's schema has passed it."""
    document = json.loads("".join(oscal.document(made)))
    VALIDATOR.validate(document)
    (found,) = document["assessment-results"]["results"]
    return dict(found)


def properties(item: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in item["props"]}


def by_place(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Observations by node and control."""
    return {
        (subject["title"], properties(one)["control"]): one
        for one in found["observations"]
        for subject in one["subjects"]
    }


def test_the_schema_is_nists_own() -> None:
    assert hashlib.sha256(SCHEMA.read_bytes()).hexdigest() in (SCHEMA.parent / "README.md").read_text()
    assert f"/oscal/{oscal.OSCAL_VERSION}/" in json.loads(SCHEMA.read_text())["$id"]


@each("a space", "9 first", "a:colon", "", "line\n")
def test_the_schemas_patterns_are_looked_at(wrong: str) -> None:
    document = json.loads("".join(oscal.document(STATEMENT)))
    document["assessment-results"]["results"][0]["findings"][0]["target"]["target-id"] = wrong
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


@each(NODES, [checked()], [CheckedNode("gpu03", problem="unreachable:\nno route")], [])
def test_every_statement_is_valid(nodes: list[CheckedNode]) -> None:
    results(statement(nodes, RULES, {}))


def test_there_is_an_observation_for_every_control_of_every_node_and_a_finding_for_each_failure() -> None:
    found = results(STATEMENT)
    observed = by_place(found)
    expected = {(node.node, control.id): control for node in STATEMENT.nodes for control in node.controls}
    assert observed.keys() == {*expected, ("gpu03", "node/answers")}
    assert all(properties(observed[place])["state"] == control.state for place, control in expected.items())
    failing = {observed[place]["uuid"] for place, control in expected.items() if control.state is State.FAIL}
    assert {one["related-observations"][0]["observation-uuid"] for one in found["findings"]} == failing
    (login,) = [
        one
        for one in found["findings"]
        if one["related-observations"][0]["observation-uuid"] == observed["gpu01", SSHD]["uuid"]
    ]
    assert "playbooks/harden.yml --limit gpu01" in login["remarks"]
    assert "found yes, wanted no" in observed["gpu01", SSHD]["description"]


def test_what_was_not_checked_was_done_by_no_method_and_is_nowhere_satisfied() -> None:
    found = results(STATEMENT)
    unknown = {
        (node.node, control.id)
        for node in STATEMENT.nodes
        for control in node.controls
        # What a profile relaxes and nobody can measure is accepted, and still not known.
        if State.NOT_CHECKED in (control.state, control.measured)
    } | {("gpu03", "node/answers")}
    assert ("gpu01", "nvidia_stack/driver:nvidia") in unknown
    for place, one in by_place(found).items():
        assert one["methods"] == (["UNKNOWN"] if place in unknown else ["TEST"])
    assert {one["target"]["status"]["state"] for one in found["findings"]} == {"not-satisfied"}


def test_a_waiver_is_an_approved_deviation_with_its_end_and_no_finding() -> None:
    ends = RULES.now + timedelta(days=90)
    given = waiver(SSHD, expires=ends)
    found = results(
        statement([checked(name, LOGIN, waivers=(given,)) for name in ("gpu01", "gpu02")], RULES, {})
    )
    (risk,) = [one for one in found["risks"] if properties(one)["control"] == SSHD]
    assert (risk["status"], risk["deadline"]) == ("deviation-approved", "2027-02-20T12:00:00Z")
    assert "OPS-7" in risk["statement"]
    observed = by_place(found)
    on = {one["observation-uuid"] for one in risk["related-observations"]}
    assert on == {observed[name, SSHD]["uuid"] for name in ("gpu01", "gpu02")}
    assert properties(observed["gpu01", SSHD])["measured"] == "fail"
    assert not any(one["target"]["target-id"] == oscal.token(SSHD) for one in found.get("findings", ()))


def test_nodes_on_which_a_control_came_out_alike_share_an_observation() -> None:
    def observed(count: int) -> list[dict[str, Any]]:
        nodes = [checked(f"gpu{number:02}", *([LOGIN] if number % 2 else [])) for number in range(count)]
        return list(results(statement(nodes, RULES, {}))["observations"])

    few, many = observed(2), observed(6)
    assert [one["uuid"] for one in few] == [one["uuid"] for one in many]
    shared = {properties(one)["state"]: one for one in many if properties(one)["control"] == SSHD}
    assert {state: [where["title"] for where in one["subjects"]] for state, one in shared.items()} == {
        "pass": ["gpu00", "gpu02", "gpu04"],
        "fail": ["gpu01", "gpu03", "gpu05"],
    }
    assert all(properties(where)["since"] for where in shared["fail"]["subjects"])


def test_two_runs_name_the_same_things_alike() -> None:
    later = statement(NODES, replace(RULES, now=RULES.now + timedelta(days=1)), {})
    first, second = results(STATEMENT), results(later)
    assert [one["uuid"] for one in first["observations"]] == [one["uuid"] for one in second["observations"]]
    assert [one["uuid"] for one in first["risks"]] == [one["uuid"] for one in second["risks"]]
    assert first["uuid"] != second["uuid"]


def test_every_uuid_that_is_named_is_there_once() -> None:
    found = results(STATEMENT)
    local = found["local-definitions"]
    made = [
        one["uuid"]
        for kind in (*(found[name] for name in ("observations", "risks", "findings")), *local.values())
        for one in kind
    ]
    assert len(made) == len(set(made))
    text = json.dumps(found)
    named = re.findall(r'"(?:observation|subject|actor)-uuid": "([^"]+)"', text)
    assert set(named) <= set(made)


def test_ids_that_differ_only_where_tokens_cannot_stay_two() -> None:
    assert oscal.token("sshd-root") == "sshd-root"
    assert len({oscal.token("os_tuning/file:/a/b"), oscal.token("os_tuning/file:/a:b")}) == 2


def test_words_of_a_node_stay_on_their_line() -> None:
    odd = observation("sshd:PasswordAuthentication", State.FAIL, reason=" \n\t a\nb \x1b[31m ")
    results(statement([checked("gpu01", odd)], RULES, {}))
