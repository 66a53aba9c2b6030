"""What an auditor's scanner is told to leave out, and that each of its rules has an answer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from temper.cli import compliance as cli
from temper.compliance import tailoring
from temper.compliance.model import ControlResult, NodeStatement, State, Verdict
from temper.compliance.tailoring import CONTENT, PROFILES, XCCDF
from temper.plan.os_controls import load_controls
from temper.plan.tables import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROLS = load_controls(cli.DATA / "os_controls")
TABLE = read_yaml(cli.DATA / "scap" / "rules.yml") | read_yaml(cli.DATA / "scap" / "streams.yml")
IN_STREAMS = {rule for group in TABLE["streams"] for rule in group["rules"]}
ANSWERED = Counter(
    [rule for control in CONTROLS.values() for rule in control.get("scap", ())]
    + [rule for rules in TABLE["roles"].values() for rule in rules]
)


def rules_in(entries: Iterable[Any]) -> list[str]:
    return [rule for one in entries for rule in one["rules"]]


def test_each_rule_of_a_data_stream_has_one_answer() -> None:
    assert {rule for rule in IN_STREAMS if ANSWERED[rule] != 1} == set()
    assert ANSWERED.keys() - IN_STREAMS == set()


def test_what_is_said_of_a_rule_is_said_once_and_of_one_that_there_is() -> None:
    said = Counter([*rules_in(TABLE["forms"]), *rules_in(TABLE["scanner"]), *TABLE["kept"]])
    assert {rule for rule, count in said.items() if count > 1} == set()
    assert said.keys() - IN_STREAMS == set()
    waivable = [
        rule for control in CONTROLS.values() if control.get("waivers") for rule in control.get("scap", ())
    ]
    assert {*TABLE["kept"]} - {*waivable} == set()


def test_a_form_is_of_a_rule_that_some_profile_sets() -> None:
    """A rule that every profile waives needs no other excuse."""
    waived = {
        rule
        for control in CONTROLS.values()
        if "every" in control.get("waivers", {})
        for rule in control.get("scap", ())
    }
    assert {*rules_in(TABLE["forms"])} & waived - {*TABLE["kept"]} == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_waivers_of_a_profile_and_other_forms_are_left_out_with_their_reasons(profile: str) -> None:
    waivers = tailoring.waivers_of_profile(CONTROLS, profile)
    found = tailoring.exempted(CONTROLS, TABLE, "debian13", profile, waivers)
    expected = {
        rule
        for name in waivers
        for rule in CONTROLS[name].get("scap", ())
        if rule not in TABLE["kept"] and rule in tailoring.rules_of(TABLE, "debian13", profile)
    }
    assert {one.rule for one in found if one.control} == expected
    assert all(waivers[one.control] in one.reason for one in found if one.control)
    assert {one.rule for one in found if not one.control} == {
        *rules_in(TABLE["forms"]),
        *rules_in(TABLE["scanner"]),
    } & {*tailoring.rules_of(TABLE, "debian13", profile)} - expected


def test_the_document_is_what_xccdf_asks_for() -> None:
    rules = [tailoring.Exempted("a_rule", "a < b & c", "umask"), tailoring.Exempted("other", "x")]
    text = tailoring.tailoring("debian13", "gpu", "2026-11-26T00:00:00Z", rules)
    root = ET.fromstring(text)  # noqa: S314 - our own
    names = {"x": XCCDF}
    (profile,) = root.findall("x:Profile", names)
    assert [child.tag.removeprefix(f"{{{XCCDF}}}") for child in root] == ["benchmark", "version", "Profile"]
    assert profile.get("extends") == f"{CONTENT}_profile_cis_level2_server"
    assert [(one.get("idref"), one.get("selected")) for one in profile.findall("x:select", names)] == [
        (f"{CONTENT}_rule_a_rule", "false"),
        (f"{CONTENT}_rule_other", "false"),
    ]
    assert profile.findtext("x:select/x:remark", namespaces=names) == "a < b & c"


def test_a_node_is_measured_by_the_waivers_of_its_statement_and_their_end() -> None:
    node = NodeStatement(
        "gpu01",
        Verdict.COMPLIANT,
        controls=(
            ControlResult("umask", "", State.WAIVED, waiver="a lab", waived_until="2027-01-01T00:00:00Z"),
            ControlResult("su", "", State.WAIVED, waiver="by profile"),
            ControlResult("aslr", "", State.PASS),
        ),
    )
    assert tailoring.waivers_of_node(node) == {
        "umask": "a lab (until 2027-01-01T00:00:00Z)",
        "su": "by profile",
    }


@pytest.mark.parametrize(("arguments", "named"), [(["--product", "debian14"], "debian13"), ([], "debian13")])
def test_an_unknown_stream_is_refused_with_those_that_are_known(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tailoring", *arguments]) == 2
    assert named in capsys.readouterr().err
