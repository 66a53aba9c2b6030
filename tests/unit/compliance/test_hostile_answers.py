"""One node answers whatever it likes: that is its problem, and all others have their statement."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from ansible.module_utils.temper import node_conditions
from ansible.module_utils.temper.settings.observe import measured, observe

from temper.base.nodes import printable
from temper.compliance import document, metrics, waivers
from temper.compliance.answers import (
    MOST_BYTES,
    MOST_OBSERVATIONS,
    MOST_PATTERNS,
    SILENT,
    Asked,
    Item,
    answer,
    read,
    unpacked,
)
from temper.compliance.history import History
from temper.compliance.metrics import of_chain
from temper.compliance.model import NodeStatement, State, Statement, Verdict
from temper.compliance.statement import OUTSIDE_TITLES, LastValidation, statement
from temper.plan.os_controls import OPERATOR, demanded
from temper.plan.preflight import preflight_plan
from temper.report import statement as report
from temper.report.compliance import check, checked_nodes, validations
from temper.report.origin import Origin
from tests.unit.compliance.fleets import (
    DRIVER,
    KNOWN,
    MEASURED,
    NOW,
    RULES,
    VARIABLES,
    checked,
    observation,
    observations,
    plan,
)
from tests.unit.each import each
from tests.unit.pages import made_up
from tests.unit.planning_nodes import node
from validation.model.contract import ContractError
from validation.model.contract import State as Measured
from validation.report import fleet_report

if TYPE_CHECKING:
    from pathlib import Path

    from temper.report.compliance import Settings

ESCAPES = "\x1b]0;owned\x07 \x9b31m \u202e \ud800 \ufffe \uffff \x00 \x85 \r\n\nVerdict: compliant."
#: Without what no text of a document may have.
SHOWN = ESCAPES.replace("\ud800", "").replace("\x00", "")
DEEP = "[" * 100_000
SSHD = "sshd:PasswordAuthentication"


@cache
def fact() -> dict[str, Any]:
    return preflight_plan({"ansible_facts": {"temper": node()}}, VARIABLES, KNOWN)


@cache
def said() -> str:
    """The answer of a node that is as it should be."""
    found = observations(plan())
    own = {role: [asdict(one) for one in ones] for role, ones in found.items()}
    return answer(fact(), own, DRIVER, [observation(key) for key in OUTSIDE_TITLES])


def with_role(role: str, *entries: Any) -> str:
    """An answer in which these are the observations of a role."""
    whole = json.loads(said())
    whole["observations"][role] = json.dumps(entries)
    return json.dumps(whole)


def entry(key: str, **changes: Any) -> dict[str, Any]:
    return asdict(observation(key)) | changes


def fleet(evil: object) -> Statement:
    """Five nodes, of which the third answers so."""
    names = [f"gpu{number:02}" for number in range(1, 6)]
    asked = [
        {"name": name, "groups": ["gpu_nodes"], "waivers": [], "answer": {"answer": said()}} for name in names
    ]
    asked[2]["answer"] = evil if isinstance(evil, dict) else {"answer": evil}
    nodes = [replace(one, validation=MEASURED) for one in checked_nodes(asked, names)]
    return statement(nodes, RULES, {})


def others(made: Statement) -> list[NodeStatement]:
    return [one for one in made.nodes if one.node != "gpu03"]


def evil_one(made: Statement) -> NodeStatement:
    return made.nodes[2]


GOOD = others(fleet(said()))


HANDMADE: dict[str, object] = {
    "nothing": "",
    "a number": 5,
    "a list": [said()],
    "another type": {"answer": None},
    "a problem of another type": {"problem": {"x": [1]}},
    "a problem with escapes": {"problem": ESCAPES * 1000},
    "a message with escapes": {"msg": ESCAPES},
    "no JSON": "{",
    "deep": DEEP,
    "a deep role": json.dumps(json.loads(said()) | {"observations": {"os_tuning": DEEP}}),
    "a deep plan": said().replace('"problems": []', f'"problems": {"[" * 600}{"]" * 600}'),
    "observations that are no text": json.dumps(json.loads(said()) | {"observations": {"os_tuning": 5}}),
    "observations that are a list": json.dumps(json.loads(said()) | {"observations": []}),
    "no plan": json.dumps(json.loads(said()) | {"plan": None}),
    "a driver that is no text": json.dumps(json.loads(said()) | {"driver": {"x": 1}}),
    "endless": "x" * (MOST_BYTES + 1),
    "too many": with_role(
        "os_tuning", *[entry(f"file:{n}", state="fail") for n in range(MOST_OBSERVATIONS + 1)]
    ),
}


@each(*HANDMADE)
def test_an_answer_of_any_form_costs_that_node_only(name: str) -> None:
    made = fleet(HANDMADE[name])
    assert others(made) == GOOD
    assert evil_one(made).verdict is Verdict.NOT_CHECKED
    assert printable(evil_one(made).reason) == evil_one(made).reason
    assert len(evil_one(made).reason) < 9000


def assert_whole(folder: Path, made: Statement) -> None:
    """All forms of a report can be written and read, and none has what a terminal acts on."""
    report.write(folder, made, Origin())
    metrics.write(folder / "metrics", made)
    assert document.read((folder / "statement.json").read_bytes()) == made
    ElementTree.parse(folder / "junit.xml")  # noqa: S314 - our own
    for name in ("sarif.json", "oscal.json", "summary.json"):
        json.loads((folder / name).read_bytes())
    text = (folder / "report.txt").read_text()
    assert printable(text) == text
    assert text.rstrip().splitlines()[-1] == made.sentence


def test_hostile_words_are_shown_in_all_forms_and_do_nothing(tmp_path: Path) -> None:
    words = entry(
        SSHD,
        state="fail",
        reason=SHOWN,
        changes=[{"name": SHOWN, "before": "=cmd()", "after": SHOWN, "diff": SHOWN * 5000}],
    )
    unread = entry("sshd:PermitRootLogin", state="not-checked", reason=SHOWN)
    made = fleet(with_role("ssh_hardening", words, unread))
    assert others(made) == GOOD
    assert evil_one(made).verdict is Verdict.NOT_COMPLIANT
    assert_whole(tmp_path, made)
    assert len((tmp_path / "report.txt").read_text().split("\nVerdict: ")) == 2


@each("../../x", "x/y", "a" * 251, "a" * 5000, ".", "x\x1b[2Jy", "\ud800")
def test_no_name_of_a_node_becomes_a_path(name: str, tmp_path: Path) -> None:
    made = statement([checked(), checked(name)], RULES, {})
    metrics.write(tmp_path / "metrics", made)
    assert len(list((tmp_path / "metrics").iterdir())) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]


WORDS = "\x00\x0b\x1b\x7f\x85\ud800\udfff\ufffe\uffff<&>\"'\t\r\n]]>\U0001f600"


def test_junit_is_xml_whatever_a_node_says() -> None:
    evil = observation(SSHD, State.FAIL, reason=WORDS)
    unread = observation("driver:nvidia", State.NOT_CHECKED, reason=WORDS)
    made = statement([checked("gpu01", evil, unread), checked(WORDS)], RULES, {})
    found = ElementTree.fromstring("".join(report.junit(made)))  # noqa: S314 - our own text
    assert len(list(found)) == 2


FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "a setting that no role asks for": ("os_tuning", entry("sysctl:x.y")),
    "a setting of another role": ("os_tuning", entry(SSHD)),
    "a control that the setting is not of": ("os_hardening", entry("audit:rules", controls=["partitions"])),
    "a failure of a control": ("os_tuning", entry("file:/x", state="fail", controls=["audit"])),
    "a condition that there is not": ("node", entry("validation", state="fail")),
    "what no benchmark asks for": ("demanded", entry("sysctl:x.y", state="fail")),
    "a role that there is not": ("validation", entry("last")),
    "what this machine has seen": ("outside", entry("ports")),
    "a key of several lines": ("os_tuning", entry("file:/x\nFAIL", state="fail")),
}  # fmt: skip


@each(*FOREIGN)
def test_a_node_speaks_of_nothing_but_what_its_plan_asks_for(what: str) -> None:
    role, one = FOREIGN[what]
    made = fleet(with_role(role, one))
    assert (evil_one(made).verdict, evil_one(made).controls) == (Verdict.NOT_CHECKED, ())
    assert others(made) == GOOD


@each(["*a" * 900], [f"a*{number}" for number in range(MOST_PATTERNS + 1)])
def test_patterns_that_take_hours_are_none(keys: list[str]) -> None:
    """A helper hands over the plans of its nodes, too."""
    with pytest.raises(ContractError, match="patterns"):
        Asked("os_tuning", [Item("sysctl", key, ()) for key in keys], "")


def test_what_an_earlier_run_has_left_behind_fails() -> None:
    made = fleet(
        with_role("os_tuning", entry("sysctl:x.y", state="fail", reason="an earlier run has set it"))
    )
    (control,) = [one for one in evil_one(made).controls if one.id == "os_tuning/sysctl:x.y"]
    assert control.state is State.FAIL


GROUPED = ("ssh_hardening", "firewall", "nvidia_stack", "gpu_settings", "container_engines")


@each(*sorted(json.loads(said())["observations"]))
def test_what_a_node_does_not_speak_of_is_not_checked(role: str) -> None:
    """Neither absent nor passed, for each control that the whole answer has."""
    whole = {one.id: one for one in evil_one(fleet(said())).controls}
    silent = {one.id: one for one in evil_one(fleet(with_role(role))).controls}
    missing = json.loads(said())
    del missing["observations"][role]
    assert {one.id: one for one in evil_one(fleet(json.dumps(missing))).controls} == silent
    if role == "demanded":
        spoken = [one for one in whole.values() if one.measured is State.PASS]
        assert spoken
        assert all(silent[one.id].measured is State.NOT_CHECKED for one in spoken)
    # What is compared together has one control instead of many.
    elif role not in GROUPED:
        # Of what a pattern matches, a node may have nothing.
        assert {name for name in whole.keys() - silent.keys() if "*" not in name} == set()
    changed = [one for one in silent.values() if one != whole.get(one.id)]
    if json.loads(json.loads(said())["observations"][role]):
        assert changed
    assert all(State.NOT_CHECKED in (one.state, one.measured) for one in changed)


def test_a_node_that_leaves_out_one_setting_of_a_control_has_not_answered_for_that_control() -> None:
    """Not the setting alone, but the control that it is of: or the others would speak for it."""
    found = json.loads(json.loads(said())["observations"]["os_hardening"])
    one = next(
        one
        for one in found
        if one["controls"] and one["key"].startswith(("file:", "unit:")) and "*" not in one["key"]
    )
    made = fleet(with_role("os_hardening", *[other for other in found if other is not one]))
    states = {control.id: control.state for control in evil_one(made).controls}
    assert all(
        states[f"os_hardening/{name}"] in (State.NOT_CHECKED, State.WAIVED) for name in one["controls"]
    )


@pytest.mark.component
def test_what_a_real_node_compares_is_read_whole() -> None:
    """This machine, compared with a plan that it does not have: the oracle for keys and controls."""
    made = fact()
    found = {name: observe(json.loads(text)) for name, text in made["roles"].items()}
    relaxed = [one["id"] for one in made["waived"] if one["by"] != OPERATOR]
    found["demanded"] = measured([*demanded(RULES.os_controls, relaxed, made["system"])])
    found["node"] = node_conditions.conditions([])
    heard = read(answer(made, found, None)).observations
    assert [one.key for ones in heard.values() for one in ones if one.reason == SILENT] == []
    assert {name: len(ones) for name, ones in heard.items()} == {
        name: len(ones) for name, ones in found.items()
    }


@each(["ports"], [*OUTSIDE_TITLES, "ports"], [*OUTSIDE_TITLES][::-1], ["x"] * 5)
def test_what_was_seen_is_all_that_is_looked_at(keys: list[str]) -> None:
    """A helper hands it over."""
    whole = json.loads(said()) | {"outside": [entry(key) for key in keys]}
    with pytest.raises(ContractError, match="outside"):
        read(json.dumps(whole))


@each(-1, 1, True, "0", None, 1.0, [0])
def test_a_node_cannot_take_the_answer_of_another(place: Any) -> None:
    packed = {"answers": [said()], "nodes": [{"name": "gpu01", "answer": {"answer": place}}]}
    (one,) = unpacked(packed)
    assert "answer" not in one["answer"]


# ----------------------------------------------------------------------------- times


def validated(folder: Path, made_at: str, started_at: str = "2026-11-20T12:00:00+00:00") -> None:
    """A report of one validation in a folder of this name, whose node claims to have begun then."""
    made = made_up.validation(1, "quick")
    (name,) = made.results
    results = {"gpu01": replace(made.results[name], node="gpu01")}
    verdict = replace(
        made.verdict, nodes=(replace(made.verdict.nodes[0], node="gpu01", state=Measured.PASS),)
    )
    fleet_report.write_results(folder / made_at, results)
    path = folder / made_at / "results" / "gpu01.json"
    written = json.loads(path.read_text())
    written["started_at"] = started_at
    path.write_text(json.dumps(written))
    fleet_report.conclude(folder / made_at, verdict)


def fault(last: LastValidation) -> str:
    last = replace(last, driver=DRIVER)
    (control,) = statement([checked(validation=last)], RULES, {}).nodes[0].controls[-1:]
    assert control.id == "validation/last"
    return control.reason


CLAIMED = [
    "2026-11-20T00:00:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2036-01-01T00:00:00+00:00",
    "no time",
    "",
]


@each(*CLAIMED)
def test_the_age_of_a_validation_is_by_the_clock_of_the_controller(claimed: str, tmp_path: Path) -> None:
    validated(tmp_path, "2026-11-20T12-00-00Z", claimed)
    last = validations(tmp_path, {"gpu01"}, NOW)["gpu01"]
    assert last.made_at == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert fault(last) == ""


@each(*CLAIMED)
def test_an_old_validation_is_old_whatever_its_node_claims(claimed: str, tmp_path: Path) -> None:
    validated(tmp_path, "2026-09-01T12-00-00Z", claimed)
    assert "82 days ago" in fault(validations(tmp_path, {"gpu01"}, NOW)["gpu01"])


@each("2036-01-01T00-00-00Z", "9999-12-31T23-59-59Z", "2026-11-22T13-00-00Z")
def test_a_validation_of_the_future_is_never_recent(name: str, tmp_path: Path) -> None:
    validated(tmp_path, name)
    assert "yet to come" in fault(validations(tmp_path, {"gpu01"}, NOW)["gpu01"])
    validated(tmp_path, "2026-11-21T12-00-00Z")
    assert fault(validations(tmp_path, {"gpu01"}, NOW)["gpu01"]) == ""


@each("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
def test_an_instant_that_utc_does_not_have_is_no_end_of_a_waiver(given: str) -> None:
    with pytest.raises(waivers.WaiverError, match="years 1 to 9999"):
        waivers.instant(given)


def test_the_metrics_have_the_head_of_the_chain(settings: Settings, tmp_path: Path) -> None:
    check([checked()], replace(settings, metrics=tmp_path / "metrics"), NOW + timedelta(hours=1))
    head = History(settings.validations / "history.sqlite").head()
    assert (tmp_path / "metrics" / "temper-compliance.chain.prom").read_text() == of_chain(head)
    assert head.sha256 in of_chain(head)
