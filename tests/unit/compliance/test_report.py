"""The forms of a report: the same statement in all of them, and what was not checked a pass in none."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
from markupsafe import escape

from temper.compliance import metrics
from temper.compliance.history import Known
from temper.compliance.model import Change, ControlResult, NodeStatement, State, Statement, Verdict
from temper.compliance.statement import CheckedNode, statement
from temper.report import statement as report
from temper.report.origin import Origin
from tests.unit.compliance.fleets import RULES, checked, observation, waiver
from tools.schemas import STATEMENT as SCHEMA
from validation.model.contract import dumps, loads

SSHD = "ssh_hardening/sshd:PasswordAuthentication"
FIREWALL = "firewall/firewall:state"
LOGIN = replace(
    observation("sshd:PasswordAuthentication", State.FAIL, reason="<script>alert(1)</script> \x1b[31m"),
    changes=(Change("PasswordAuthentication", "yes", "no"),),
)
UNREAD = observation("driver:nvidia", State.NOT_CHECKED, reason="nvidia-smi hangs")
NODES = [
    checked("gpu01", LOGIN, UNREAD),
    checked("gpu02", LOGIN, waivers=(waiver(SSHD),)),
    CheckedNode("gpu03", problem="unreachable: no route to host"),
    checked("gpu04"),
]
STATEMENT = statement(NODES, RULES, {"gpu04": {SSHD: Known(State.FAIL, "2026-11-01T00:00:00Z")}})


def test_the_json_is_read_back_whole_and_has_the_form_of_its_schema() -> None:
    assert loads(Statement, dumps(STATEMENT)) == STATEMENT
    jsonschema.validate(json.loads(dumps(STATEMENT)), json.loads(SCHEMA.read_text()))


def test_the_text_ends_with_the_verdict_and_names_every_node_that_is_not_good() -> None:
    text = report.text(STATEMENT)
    assert text.rstrip().endswith(STATEMENT.sentence)
    assert all(name in text for name in ("gpu01", "gpu03", "nvidia-smi hangs", "no route to host", "OPS-7"))
    assert text.index("Changed since") < text.index("FAIL ")
    assert "found yes, wanted no" in text


def test_a_failure_of_many_nodes_stands_once() -> None:
    many = statement([checked(f"gpu{number:02}", LOGIN) for number in range(40)], RULES, {})
    assert report.text(many).count(f"FAIL {SSHD}") == 1


def test_a_terminal_gets_the_first_failures_and_their_first_lines_and_all_else() -> None:
    long = Change("/etc/x", "", "", "\n".join(f"+line {number}" for number in range(40)))
    failing = [
        ControlResult(f"x/{number:02}", "The goal", State.FAIL, changes=(long,), remedy=f"repair {number}")
        for number in range(40)
    ]
    node = NodeStatement("gpu01", Verdict.NOT_COMPLIANT, controls=tuple(failing))
    made = replace(STATEMENT, nodes=(node,))
    whole, short = report.text(made), report.text(made, short=True)
    assert (whole.count("FAIL "), whole.count("+line 39")) == (40, 40)
    assert (short.count("FAIL "), short.count("+line 39")) == (report.MOST_FAILURES, 0)
    assert "30 more failures: report.txt" in short
    assert short.count("repair 39") == 1  # among all repairs of the node, in their order
    assert short.rstrip().endswith(made.sentence)


def suites() -> ElementTree.Element:
    return ElementTree.fromstring("".join(report.junit(STATEMENT)))  # noqa: S314 - our own text


def cases() -> dict[tuple[str, str], str]:
    found = {}
    for case in suites().iter("testcase"):
        kinds = [child.tag for child in case]
        found[case.attrib["classname"], case.attrib["name"]] = kinds[0] if kinds else "passed"
    return found


def test_junit_has_each_control_as_what_it_is() -> None:
    found = cases()
    assert found["gpu01", SSHD] == "failure"
    assert found["gpu01", "nvidia_stack/driver:nvidia"] == "error"
    assert found["gpu02", SSHD] == "skipped"
    assert found["gpu03", "the node"] == "error"
    assert found["gpu04", SSHD] == "passed"
    expected = {State.PASS: "passed", State.FAIL: "failure", State.NOT_CHECKED: "error"}
    for node in STATEMENT.nodes:
        for control in node.controls:
            assert found[node.node, control.id] == expected.get(control.state, "skipped")


def test_junit_counts_what_it_holds() -> None:
    for suite in suites():
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))


def test_sarif_has_failures_open_questions_and_accepted_ones() -> None:
    (run,) = json.loads("".join(report.sarif(STATEMENT)))["runs"]
    found = {
        (entry["locations"][0]["logicalLocations"][0]["name"], entry["ruleId"]): entry
        for entry in run["results"]
    }
    assert found["gpu01", SSHD]["kind"] == "fail"
    assert found["gpu01", "nvidia_stack/driver:nvidia"]["kind"] == "open"
    assert found["gpu02", SSHD]["suppressions"][0]["status"] == "accepted"
    assert found["gpu03", "node/answers"]["kind"] == "open"
    assert not any(node == "gpu04" and entry["kind"] == "fail" for (node, _), entry in found.items())
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {entry["ruleId"] for entry in run["results"]} <= known | {"node/answers"}


def test_sarifs_fingerprints_are_the_same_in_the_next_run() -> None:
    first, second = (json.loads("".join(report.sarif(statement(NODES, RULES, {})))) for _ in range(2))
    assert first == second


def test_metrics_count_the_controls_of_each_node_that_answered(tmp_path: Path) -> None:
    metrics.write(tmp_path, STATEMENT)
    for node in STATEMENT.nodes:
        lines = (tmp_path / f"temper-compliance-{node.node}.prom").read_text().splitlines()
        for state in State:
            line = f'temper_compliance_controls{{node="{node.node}",state="{state}"}} {node.count(state)}'
            assert (line in lines) == bool(node.controls)
        assert f'temper_compliance_verdict{{node="{node.node}",verdict="{node.verdict}"}} 1' in lines
        assert len([line for line in lines if line.startswith("temper_compliance_verdict")]) == len(Verdict)


def test_waivers_are_counted_by_what_is_wrong_with_them(tmp_path: Path) -> None:
    made = statement([checked(waivers=(waiver(SSHD, expires=RULES.now), waiver("no/such")))], RULES, {})
    metrics.write(tmp_path, made)
    lines = (tmp_path / "temper-compliance.prom").read_text().splitlines()
    assert 'temper_compliance_waivers{code="waiver-expired"} 1' in lines
    assert 'temper_compliance_waivers{code="waiver-unmatched"} 1' in lines
    assert 'temper_compliance_waivers{code="waiver-ending"} 0' in lines


def test_a_check_of_some_nodes_leaves_what_is_known_of_waivers(tmp_path: Path) -> None:
    """An alert on a waiver that has expired would end with a look at a node that it is not for."""
    metrics.write(tmp_path, statement([checked(waivers=(waiver(SSHD, expires=RULES.now),))], RULES, {}))
    metrics.write(tmp_path, statement([checked("gpu02")], RULES, {}), whole=False)
    lines = (tmp_path / "temper-compliance.prom").read_text().splitlines()
    assert 'temper_compliance_waivers{code="waiver-expired"} 1' in lines
    assert (tmp_path / "temper-compliance-gpu02.prom").exists()


def test_the_page_is_written_with_the_other_forms(tmp_path: Path) -> None:
    report.write(tmp_path, STATEMENT, Origin())
    page = (tmp_path / "report.html").read_text()
    assert str(escape(STATEMENT.sentence.partition(". ")[2])) in page
    assert "<script>alert(1)</script>" not in page
    assert all(f'href="#node-{node.node}"' in page for node in STATEMENT.nodes)
