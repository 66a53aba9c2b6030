"""What nodes that are alike share is what each of them would have alone, in all forms of a report."""

import gzip
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5
from xml.etree import ElementTree

import jsonschema
import pytest

from temper.compliance import document
from temper.compliance.alike import uuid_of
from temper.compliance.answers import answer, packed, unpacked
from temper.compliance.history import Known
from temper.compliance.model import Change, State, Statement
from temper.compliance.statement import CheckedNode, LastValidation, statement
from temper.plan.preflight import preflight_plan
from temper.report import compliance as fleet
from temper.report import statement as report
from temper.report.compliance import checked_node, validations
from tests.unit.compliance.fleets import (
    DRIVER,
    KNOWN,
    MEASURED,
    RULES,
    VARIABLES,
    checked,
    observation,
    observations,
    plan,
    waiver,
)
from tests.unit.each import each
from tests.unit.pages import made_up
from tests.unit.planning_nodes import node
from tools.schemas import STATEMENT as SCHEMA
from validation.model.contract import ContractError, loads
from validation.report import fleet_report

SSHD = "sshd:PasswordAuthentication"
CONTROL = f"ssh_hardening/{SSHD}"
DRIFTED = replace(
    observation(SSHD, State.FAIL, reason='yes <is> "in force"\n\x1b'),
    changes=(Change("PasswordAuthentication", "yes", "no"),),
)
REBOOT = observation("reboot", State.FAIL, reason="a kernel waits")
UPDATES = observation("security-updates", State.NOT_CHECKED, reason="apt hangs")


@cache
def said(*differing: Any) -> str:
    """The answer of a node."""
    fact = preflight_plan({"ansible_facts": {"temper": node()}}, VARIABLES, KNOWN)
    found = observations(plan(), *differing)
    return answer(fact, {role: [asdict(one) for one in ones] for role, ones in found.items()}, DRIVER)


def asked(name: str, *differing: Any, **changes: Any) -> CheckedNode:
    """A node whose answer came from elsewhere: another text with the same words."""
    text = "".join(list(said(*differing)))
    found = checked_node(name, ("gpu_nodes",), {"answer": text}, ())
    assert not found.problem
    return replace(found, validation=MEASURED, **changes)


NODES = [
    asked("gpu01"),
    asked("gpu02"),
    asked("gpu03", DRIFTED),
    asked("gpu04", DRIFTED, waivers=(waiver(CONTROL),)),
    asked("gpu05", DRIFTED, REBOOT, UPDATES),
    replace(asked("gpu06"), validation=None),
    replace(asked("gpu07"), validation=None, waivers=(waiver("validation/last"),)),
    CheckedNode("gpu08", problem="unreachable: no route to host"),
    asked("gpu09"),
    checked("gpu10"),
]
BEFORE = {
    "gpu02": {CONTROL: Known(State.PASS, "2026-11-01T00:00:00Z")},
    "gpu03": {CONTROL: Known(State.PASS, "2026-11-01T00:00:00Z")},
    "gpu04": {CONTROL: Known(State.WAIVED, "2026-11-02T00:00:00Z")},
    "gpu09": {CONTROL: Known(State.FAIL, "2026-11-03T00:00:00Z")},
}
FLEET = statement(NODES, RULES, BEFORE)


def test_every_node_is_stated_as_it_is_alone() -> None:
    alone = [statement([one], replace(RULES), {one.name: BEFORE.get(one.name, {})}) for one in NODES]
    assert FLEET.nodes == tuple(found.nodes[0] for found in alone)
    assert FLEET.changed == tuple(change for found in alone for change in found.changed)
    assert {one.node for one in FLEET.changed} == {"gpu03", "gpu09"}


def test_a_remedy_names_the_node_that_it_is_for() -> None:
    remedies = [(told.node, one.remedy) for told in FLEET.nodes for one in told.controls if one.remedy]
    assert len(remedies) >= 6
    assert [remedy for name, remedy in remedies if name not in remedy] == []


def test_nodes_that_are_alike_share_their_controls() -> None:
    first, second = statement([asked("gpu01"), asked("gpu02")], RULES, {}).nodes
    assert first.controls is second.controls


def test_what_is_not_known_is_said_once_with_its_nodes() -> None:
    away = [CheckedNode(name, problem="unreachable: no route to host") for name in ("gpu02", "gpu03")]
    text = report.text(statement([checked("gpu01", UPDATES), *away], RULES, {}))
    for reason, nodes in (("apt hangs", "gpu01"), ("no route to host", "gpu02, gpu03")):
        (line,) = [line for line in text.splitlines() if reason in line]
        assert line.endswith(f"(on {nodes})")


def test_the_document_is_read_back_as_the_statement_that_was_written() -> None:
    assert document.read("".join(document.text(FLEET))) == FLEET


def test_the_document_has_the_form_of_its_schema_and_each_node_all_of_its_controls() -> None:
    written = json.loads("".join(document.text(FLEET)))
    jsonschema.validate(written, json.loads(SCHEMA.read_text()))
    assert written["nodes"] == [json.loads(json.dumps(asdict(one))) for one in FLEET.nodes]


def test_the_document_of_a_large_fleet_is_compressed_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document.write(tmp_path, FLEET)
    monkeypatch.setattr(document, "MOST_PLAIN", len(FLEET.nodes) - 1)
    document.write(tmp_path / "large", FLEET)
    (path,) = (tmp_path / "large").iterdir()
    assert gzip.decompress(path.read_bytes()) == (tmp_path / "statement.json").read_bytes()
    assert document.of_report(tmp_path / "large") == document.of_report(tmp_path) == FLEET
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ContractError, match=r"statement\.json\.gz: it cannot be decompressed"):
        document.of_report(tmp_path / "large")


def as_version_2(*nodes: dict[str, Any]) -> str:
    """A document in which nodes may be like another one."""
    written = json.loads("".join(document.text(replace(FLEET, nodes=()))))
    return json.dumps(written | {"schema_version": 2, "nodes": nodes})


def test_a_statement_of_version_2_is_read_with_all_controls_of_each_node() -> None:
    first, second, third = (json.loads(json.dumps(asdict(one))) for one in FLEET.nodes[:3])
    own = [one for one in third["controls"] if one not in first["controls"]]
    assert 0 < len(own) < len(first["controls"])
    given = as_version_2(
        first | {"like": ""}, second | {"like": ""}, third | {"like": "gpu01", "controls": own}
    )
    assert document.read(given) == replace(FLEET, schema_version=2, nodes=FLEET.nodes[:3])


def test_a_statement_of_version_1_is_read() -> None:
    old = json.loads("".join(document.text(replace(FLEET, nodes=FLEET.nodes[:1]))))
    assert document.read(json.dumps(old | {"schema_version": 1})).nodes == FLEET.nodes[:1]


def test_a_node_that_is_like_one_that_is_not_there_is_refused() -> None:
    told = json.loads(json.dumps(asdict(FLEET.nodes[0])))
    with pytest.raises(ContractError, match="is like gpu99: expected that node before it"):
        document.read(as_version_2(told | {"like": "gpu99"}))


@each("", "temper:gpu01:os_tuning/x", "ä\0ö")
def test_a_uuid_is_that_of_the_standard_library(name: str) -> None:
    assert uuid_of(name) == str(uuid5(NAMESPACE_URL, name))


def test_answers_are_handed_over_once_and_come_back_whole() -> None:
    given: list[dict[str, Any]] = [
        {"name": "gpu01", "groups": ["a"], "answer": {"answer": said()}, "waivers": []},
        {"name": "gpu02", "groups": [], "answer": {"problem": "off"}, "waivers": [{}]},
        {"name": "gpu03", "groups": [], "answer": {"answer": said(DRIFTED)}, "waivers": []},
        {"name": "gpu04", "groups": [], "answer": {"answer": said()}, "waivers": []},
    ]
    document = packed(given)
    assert document["answers"] == [said(), said(DRIFTED)]
    assert unpacked(json.loads(json.dumps(document))) == given


def junit_by_element_tree(whole: Statement) -> ElementTree.Element:
    """Each case an element of its own, as the standard library builds and escapes it."""
    suites = ElementTree.Element("testsuites", name="Temper compliance")
    for told in whole.nodes:
        suite = ElementTree.SubElement(suites, "testsuite", name=told.node, timestamp=whole.made_at)
        if not told.controls:
            case = ElementTree.SubElement(suite, "testcase", classname=told.node, name="the node")
            ElementTree.SubElement(case, "error", message=report.clean(told.reason))
        for one in told.controls:
            case = ElementTree.SubElement(suite, "testcase", classname=told.node, name=one.id)
            if one.state is State.FAIL:
                words = "\n".join(filter(None, [one.title, report.found_and_wanted(one), one.remedy]))
                failure = ElementTree.SubElement(case, "failure", message=report.clean(one.why or one.title))
                failure.text = report.clean(words)
            elif one.state is State.NOT_CHECKED:
                ElementTree.SubElement(case, "error", message=report.clean(one.reason))
            elif one.state is not State.PASS:
                words = report.clean(f"{one.state}: {one.waiver or one.reason}")
                ElementTree.SubElement(case, "skipped", message=words)
        for attribute, tag in (
            ("tests", "testcase"),
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            suite.set(attribute, str(len(list(suite.iter(tag)))))
    return suites


def test_junit_is_what_the_standard_library_would_write() -> None:
    found = ElementTree.fromstring("".join(report.junit(FLEET)))  # noqa: S314 - our own text
    assert ElementTree.canonicalize(ElementTree.tostring(found)) == ElementTree.canonicalize(
        ElementTree.tostring(junit_by_element_tree(FLEET))
    )


def test_each_result_of_sarif_names_its_own_node_and_fingerprint() -> None:
    results = json.loads("".join(report.sarif(FLEET)))["runs"][0]["results"]
    shown = [(told, one) for told in FLEET.nodes for one in told.shown]
    assert len(results) == len(shown) + 1  # and a node of which nothing is known
    for (told, one), result in zip(shown, results, strict=False):
        assert result["ruleId"] == one.id
        assert result["locations"] == [{"logicalLocations": [{"name": told.node, "kind": "resource"}]}]
        assert result["partialFingerprints"] == {
            # As it was when controls of the hardening had no role in front of them.
            "temper/v1": str(
                uuid5(NAMESPACE_URL, f"temper:{told.node}:{one.id.removeprefix('os_hardening/')}")
            )
        }
        assert ("suppressions" in result) == (one.state is State.WAIVED)


def test_for_a_node_that_was_never_measured_no_verdict_on_others_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (21, 22):
        folder = tmp_path / f"2026-11-{day}T09-14-00Z"
        made = made_up.validation(3, "quick")
        names = sorted(made.results)
        fleet_report.write_results(folder, made.results)
        fleet_report.conclude(folder, made.verdict)
    (tmp_path / "2026-11-23T09-14-00Z").mkdir()
    read: list[bytes] = []

    def reading(kind: type[Any], text: bytes) -> object:
        read.append(text)
        return loads(kind, text)

    monkeypatch.setattr(fleet, "loads", reading)
    assert validations(tmp_path, {*names, "new01"}).keys() == {*names}
    assert len(read) == 1


def test_of_a_validation_state_moment_and_driver_are_known_and_a_damaged_result_is_passed_over(
    tmp_path: Path,
) -> None:
    made = made_up.validation(3, "quick")
    names = sorted(made.results)
    folder = tmp_path / "2026-11-22T09-14-00Z"
    fleet_report.write_results(folder, made.results)
    fleet_report.conclude(folder, made.verdict)
    (folder / "results" / f"{names[1]}.json").write_text('{"started_at": ')
    (folder / "results" / f"{names[2]}.json").write_text("{}")
    result = made.results[names[0]]
    (state,) = (node.state for node in made.verdict.nodes if node.node == names[0])
    assert validations(tmp_path, set(names)) == {
        names[0]: LastValidation(
            datetime(2026, 11, 22, 9, 14, tzinfo=UTC), state, result.machine.driver, folder.name
        )
    }
