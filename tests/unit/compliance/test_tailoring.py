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
from temper.plan.os_controls import concerns, lacking, load_controls, on_system, settings_of, waiver_of
from temper.plan.tables import read_yaml
from tests.unit.each import each

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROLS = load_controls(DATA / "os_controls")
TABLE = read_yaml(DATA / "scap" / "rules.yml") | read_yaml(DATA / "scap" / "streams.yml")
PRODUCTS = tailoring.products(TABLE)
IN_STREAMS = {rule for group in TABLE["streams"] for rule in group["rules"]}
ANSWERED = Counter(
    [rule for control in CONTROLS.values() for rule in control.get("scap", ())]
    + [rule for row in TABLE["roles"].values() for rule in row["rules"]]
)


def rules_in(entries: Iterable[Any]) -> list[str]:
    return [rule for one in entries for rule in one["rules"]]


KEPT = rules_in(TABLE["kept"])


def test_each_rule_of_a_data_stream_has_one_answer() -> None:
    assert {rule for rule in IN_STREAMS if ANSWERED[rule] != 1} == set()
    assert ANSWERED.keys() - IN_STREAMS == set()


def answers(control: Any, profile: str, system: str) -> bool:
    """Whether a control sets something on a system, or says why not."""
    settings = on_system(settings_of(control, profile), system)
    return concerns(control, system) and bool(
        settings or lacking(control, system) or waiver_of(control, profile)
    )


def test_each_profile_sets_or_waives_all_rules_of_the_streams_that_it_is_measured_by() -> None:
    scanner = {*rules_in(TABLE["scanner"])}
    owners = tailoring.owners_of(CONTROLS, TABLE)
    unanswered = {
        (profile, product, rule)
        for product in PRODUCTS
        for profile in PROFILES
        for rule in tailoring.rules_of(TABLE, product, profile)
        if owners[rule] not in TABLE["roles"] and rule not in scanner
        if not answers(CONTROLS[owners[rule]], profile, tailoring.system_of(product))
    }
    assert unanswered == set()


def test_what_is_said_of_a_rule_is_said_once_on_a_system_and_of_one_that_there_is() -> None:
    for product in PRODUCTS:
        rows = [
            row
            for row in (*TABLE["forms"], *TABLE["scanner"], *TABLE["kept"])
            if concerns(row, tailoring.system_of(product))
        ]
        assert {rule for rule, count in Counter(rules_in(rows)).items() if count > 1} == set()
        assert {*rules_in(rows)} - IN_STREAMS == set()
    waivable = [
        rule for control in CONTROLS.values() if control.get("waivers") for rule in control.get("scap", ())
    ]
    assert {*KEPT} - {*waivable} == set()


def test_a_form_is_of_a_rule_that_some_profile_sets() -> None:
    """A rule that every profile waives needs no other excuse."""
    waived = {
        rule
        for control in CONTROLS.values()
        if "every" in control.get("waivers", {})
        for rule in control.get("scap", ())
    }
    assert {*rules_in(TABLE["forms"])} & waived - {*KEPT} == set()


@each(*[(profile, product) for profile in PROFILES for product in ("debian13", "rhel9")])
def test_the_waivers_of_a_profile_and_other_forms_are_left_out_with_their_reasons(
    profile: str, product: str
) -> None:
    system = tailoring.system_of(product)
    known = tailoring.of_profile(CONTROLS, profile, system)
    found = tailoring.exempted(CONTROLS, TABLE, product, profile, known)
    rules = {*tailoring.rules_of(TABLE, product, profile)}
    waived = {rule for name in known.of_profile for rule in CONTROLS[name].get("scap", ())} & rules
    waived -= {*KEPT} if product == "debian13" else set()
    assert {one.rule for one in found if one.control} == waived
    assert all(known.of_profile[one.control] in one.reason for one in found if one.control)
    rows = [row for row in (*TABLE["forms"], *TABLE["scanner"]) if concerns(row, system)]
    assert {one.rule for one in found if not one.control} == {*rules_in(rows)} & rules - waived


def left_out(product: str, profile: str) -> dict[str, str]:
    known = tailoring.of_profile(CONTROLS, profile, tailoring.system_of(product))
    found = tailoring.exempted(CONTROLS, TABLE, product, profile, known)
    return {one.rule: one.reason for one in found}


def test_what_holds_on_one_system_is_no_excuse_on_another() -> None:
    """Debian's stream reads one file of sshd, that of Enterprise Linux 9 drop-ins; 8's sshd reads none."""
    assert "sshd_disable_root_login" in left_out("debian13", "cis-level1")
    assert "sshd_disable_root_login" not in left_out("rhel9", "cis-level1")
    lacking_role = TABLE["roles"]["ssh_hardening"]["lacking"]["rhel-8"]
    assert left_out("rhel8", "cis-level1")["sshd_disable_root_login"] == lacking_role
    # dnf-automatic is left to the operator, whatever the profile.
    assert "dnf-automatic" in left_out("rhel10", "anssi-high")["timer_dnf-automatic_enabled"]


@each(
    ("debian13", "cis-level1", "cis_level1_server"),
    ("rhel8", "gpu", "cis"),
    ("rhel9", "cis-level1", "cis_server_l1"),
    ("rhel10", "anssi-high", "anssi_bp28_high"),
    ("rhel9", "stig", "stig"),
)
def test_the_document_goes_on_from_the_streams_own_profile(product: str, profile: str, extended: str) -> None:
    assert tailoring.rules_of(TABLE, product, profile)
    root = ET.fromstring(tailoring.tailoring(product, profile, "2026-11-27T00:00:00Z", []))  # noqa: S314 - our own
    (own,) = root.findall("x:Profile", {"x": XCCDF})
    assert own.get("extends") == f"{CONTENT}_profile_{extended}"


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
    assert "service_nfs_disabled" in KEPT
    assert f"until {ended}" in reasons["service_nfs_disabled"]
    assert "accounts_password_all_shadowed" not in reasons
    text = tailoring.tailoring("debian13", "cis-level2", ended, found, "gpu01")
    assert ET.fromstring(text) is not None  # noqa: S314 - our own


@each(("ssh_hardening/sshd", True), ("ssh_hardening/file:/etc/ssh/temper_moduli", False))
def test_what_an_operator_accepts_of_one_file_of_a_role_excuses_no_other_rule(
    name: str, excused: bool
) -> None:
    waived = ControlResult(name, "", State.WAIVED, waiver="x", waived_by=WaivedBy.OPERATOR)
    known = tailoring.of_node(NodeStatement("gpu01", Verdict.COMPLIANT, controls=(waived,)))
    found = tailoring.exempted(CONTROLS, TABLE, "debian13", "cis-level2", known)
    assert ("sshd_disable_root_login" in {one.rule for one in found}) == excused


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
    assert profile.findtext("x:select/x:remark", namespaces=names) == (
        "Waived with the control umask: a < b & c"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--product", "debian14"], "debian13"),
        ([], "debian13"),
        (["--product", "debian13", "--profile", "stig"], "anssi-high"),
        (["--product", "ubuntu2404", "--profile", "anssi-high"], "stig"),
    ],
)
def test_a_stream_or_profile_that_there_is_not_is_refused_with_those_that_there_are(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tailoring", *arguments]) == 2
    assert named in capsys.readouterr().err
