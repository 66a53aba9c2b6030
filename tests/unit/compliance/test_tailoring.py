"""What an auditor's scanner is told to leave out, and that each of its rules has an answer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from temper.base import DATA
from temper.cli import compliance as cli
from temper.compliance import tailoring
from temper.compliance.model import ControlResult, NodeStatement, State, Verdict, WaivedBy
from temper.compliance.tailoring import CONTENT, PROFILES, XCCDF
from temper.plan.os_controls import load_controls, settings_of, waiver_of
from temper.plan.tables import read_yaml
from tests.unit.each import each

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROLS = load_controls(DATA / "os_controls")
TABLE = read_yaml(DATA / "scap" / "rules.yml") | read_yaml(DATA / "scap" / "streams.yml")
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


def test_each_profile_sets_or_waives_all_rules_of_the_streams_that_it_is_measured_by() -> None:
    scanner = {*rules_in(TABLE["scanner"])}
    unanswered = {
        (profile, product, rule)
        for control in CONTROLS.values()
        for rule in control.get("scap", ())
        for profile in PROFILES
        if not (settings_of(control, profile) or waiver_of(control, profile))
        for product in tailoring.products(TABLE)
        if rule in tailoring.rules_of(TABLE, product, profile) and rule not in scanner
    }
    assert unanswered == set()


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


@each(*PROFILES)
def test_the_waivers_of_a_profile_and_other_forms_are_left_out_with_their_reasons(profile: str) -> None:
    known = tailoring.of_profile(CONTROLS, profile)
    found = tailoring.exempted(CONTROLS, TABLE, "debian13", profile, known)
    rules = {*tailoring.rules_of(TABLE, "debian13", profile)}
    waived = {rule for name in known.of_profile for rule in CONTROLS[name].get("scap", ())} & rules
    assert {one.rule for one in found if one.control} == waived - {*TABLE["kept"]}
    assert all(known.of_profile[one.control] in one.reason for one in found if one.control)
    excused = {*rules_in(TABLE["forms"]), *rules_in(TABLE["scanner"])} & rules
    assert {one.rule for one in found if not one.control} == excused - (waived - {*TABLE["kept"]})


ROOT_LOGIN, OTHER = "ssh_hardening/sshd:PermitRootLogin", "ssh_hardening/sshd:Port"


@each(
    ({ROOT_LOGIN: State.PASS, OTHER: State.NOT_APPLICABLE}, True),
    ({ROOT_LOGIN: State.FAIL, OTHER: State.PASS}, False),
    ({ROOT_LOGIN: State.NOT_CHECKED}, False),
    # The role has been taken back, or its answer is missing.
    ({}, False),
)
def test_another_form_is_no_excuse_where_it_is_not_in_force(states: dict[str, State], excused: bool) -> None:
    controls = tuple(ControlResult(name, "", state) for name, state in states.items())
    known = tailoring.of_node(NodeStatement("gpu01", Verdict.COMPLIANT, controls=controls))
    found = tailoring.exempted(CONTROLS, TABLE, "debian13", "cis-level2", known)
    assert ("sshd_disable_root_login" in {one.rule for one in found}) == excused


def test_a_node_is_measured_by_the_waivers_of_its_statement_and_their_end() -> None:
    ended = "2027-01-01T00:00:00Z"
    by = WaivedBy
    controls = (
        ControlResult(
            "os_hardening/other-services", "", State.WAIVED,
            waiver="NFS\x0b", waived_until=ended, waived_by=by.OPERATOR,
        ),
        ControlResult("os_hardening/accounts", "", State.WAIVED, waiver="profile", waived_by=by.PROFILE),
    )  # fmt: skip
    known = tailoring.of_node(NodeStatement("gpu01", Verdict.COMPLIANT, controls=controls))
    found = tailoring.exempted(CONTROLS, TABLE, "debian13", "cis-level2", known)
    reasons = {one.rule: one.reason for one in found}
    # Rules that a bare system fulfils stay where a profile waives them, and go where an operator does.
    assert "service_nfs_disabled" in TABLE["kept"]
    assert f"until {ended}" in reasons["service_nfs_disabled"]
    assert "accounts_password_all_shadowed" not in reasons
    text = tailoring.tailoring("debian13", "cis-level2", ended, found, "gpu01")
    assert ET.fromstring(text) is not None  # noqa: S314 - our own


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


@pytest.mark.parametrize(("arguments", "named"), [(["--product", "debian14"], "debian13"), ([], "debian13")])
def test_an_unknown_stream_is_refused_with_those_that_are_known(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tailoring", *arguments]) == 2
    assert named in capsys.readouterr().err
