"""What a scanner found beside what Temper says: foreign XML is bounded, and disagreements come first."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from temper.cli import compliance as cli
from temper.compliance import document, scans
from temper.compliance.model import ControlResult, NodeStatement, State, Statement, Verdict, WaivedBy
from temper.compliance.scans import Compared, Relation, Scan, ScanError
from temper.compliance.tailoring import CONTENT, XCCDF, Known, of_node
from tests.unit.each import each

if TYPE_CHECKING:
    from pathlib import Path

RULE = '<rule-result idref="{content}_rule_{name}"><result>{result}</result></rule-result>'
ARF = '<a:asset-report-collection xmlns:a="http://scap.nist.gov/schema/asset-reporting-format/1.1">'


def results(**rules: str) -> str:
    """A TestResult as OpenSCAP writes it."""
    judged = "".join(RULE.format(content=CONTENT, name=name, result=said) for name, said in rules.items())
    return (
        f'<TestResult xmlns="{XCCDF}" id="x"><target>gpu01</target>'
        f'<profile idref="{CONTENT}_profile_x"/>{judged}</TestResult>'
    )


def read(text: str) -> Scan:
    return scans.read(io.BytesIO(text.encode()))


def test_results_are_read_alone_and_within_an_arf() -> None:
    alone = results(one="pass", two="fail")
    assert read(alone) == Scan("gpu01", f"{CONTENT}_profile_x", {"one": "pass", "two": "fail"})
    benchmark = f'<Benchmark xmlns="{XCCDF}"><Rule id="{CONTENT}_rule_three"/></Benchmark>'
    assert read(f"{ARF}{benchmark}{alone}</a:asset-report-collection>") == read(alone)


def test_a_rule_that_is_judged_several_times_has_the_worst_result() -> None:
    text = results(one="pass", other="notapplicable")
    more = RULE.format(content=CONTENT, name="one", result="fail")
    assert read(text.replace("</TestResult>", f"{more}</TestResult>")).results["one"] == "fail"


ENTITY = f'<!DOCTYPE x [<!ENTITY a "b">]>{results(one="pass").replace("gpu01", "&a;")}'
EXTERNAL = f'<!DOCTYPE x SYSTEM "file:///etc/passwd">{results(one="pass")}'
# What Python cannot have expat read: no encoding of texts, of several bytes, none that it knows.
ENCODINGS = ("rot13", "utf-7", "big5", "no-such-encoding")


@each(
    (ENTITY, "DOCTYPE"),
    (EXTERNAL, "DOCTYPE"),
    ("", "found what is none"),
    ("no XML", "found what is none"),
    *((f'<?xml version="1.0" encoding="{name}"?><a/>', "found what is none") for name in ENCODINGS),
    (results(one="pass")[:-5], "found what is none"),
    ("<a/>", "one TestResult"),
    (results(), "one TestResult"),
    (f"<a>{results(one='pass') * 2}</a>", "one TestResult"),
    (results(one="good"), "found good"),
    ("<a>" * 300, "within each other"),
    (results(**{f"rule{number}": "pass" for number in range(scans.MOST_RULES + 1)}), "rules"),
)
def test_what_is_no_result_of_a_scan_is_refused(text: str, named: str) -> None:
    with pytest.raises(ScanError, match=named):
        read(text)


def test_a_document_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MOST_BYTES", 1000)
    read(results(one="pass"))
    with pytest.raises(ScanError, match="MiB"):
        read(results(one="pass") + " " * 1000)


@each("<", "<!--", "<?a ", *(f"<b>{token}" for token in ("<a x='", "<!--", "<?a ", "</")))
def test_a_tag_that_does_not_end_costs_no_more_than_its_beginning(token: str) -> None:
    stream = io.BytesIO((token + "x" * (8 << 20)).encode())
    with pytest.raises(ScanError, match="within 2 MiB"):
        scans.read(stream)
    assert stream.tell() <= scans.MOST_UNPARSED + scans.PIECE


def test_long_texts_and_many_comments_are_no_tag_that_does_not_end() -> None:
    much = 5 << 19
    every = [
        " " * much,
        f"<a>{'x' * much}</a>",
        f"<a><![CDATA[{'x' * much}]]></a>",
        "<!-- x -->" * (much // 10),
    ]
    for text in (*every, f"<a>{'<b/>    ' * (much // 8)}</a>", f"<a x='{'y' * (1 << 20)}'/>"):
        assert read(f"<arf>{text}{results(one='pass')}</arf>").results == {"one": "pass"}


CONTROLS: dict[str, Any] = {"umask": {"scap": ["mask"]}, "su": {"scap": ["su_group", "su_kept"]}}
TABLE: dict[str, Any] = {
    "roles": {"ssh_hardening": {"rules": ["root_login"]}},
    "forms": [{"rules": ["mask"], "reason": "PAM does it."}],
    "scanner": [],
    "kept": [{"rules": ["su_kept"]}],
    "streams": [],
}


@each(
    ("root_login", "fail", {"ssh_hardening": State.PASS}, Relation.SCANNER_FAILS),
    ("root_login", "pass", {"ssh_hardening": State.FAIL}, Relation.TEMPER_FAILS),
    ("root_login", "fail", {"ssh_hardening": State.FAIL}, Relation.BOTH_FAIL),
    ("root_login", "pass", {"ssh_hardening": State.PASS}, Relation.AGREE),
    ("root_login", "notapplicable", {"ssh_hardening": State.FAIL}, Relation.NOT_JUDGED),
    ("root_login", "fail", {"ssh_hardening": State.NOT_CHECKED}, Relation.UNKNOWN),
    ("root_login", "fail", {}, Relation.UNKNOWN),
    ("new_rule", "fail", {}, Relation.UNKNOWN),
    ("mask", "fail", {"umask": State.PASS}, Relation.EXPLAINED),
    # Another form is no excuse where it is not in force.
    ("mask", "fail", {"umask": State.FAIL}, Relation.BOTH_FAIL),
    ("su_group", "fail", {"su": State.WAIVED}, Relation.EXPLAINED),
    # A bare system fulfils it, so somebody has changed it.
    ("su_kept", "fail", {"su": State.WAIVED}, Relation.SCANNER_FAILS),
)
def test_each_rule_stands_beside_the_word_of_temper(
    rule: str, result: str, states: dict[str, State], relation: Relation
) -> None:
    known = Known({"su": "nobody has a password"}, states=states)
    (row,) = scans.compared(Scan("gpu01", "", {rule: result}), CONTROLS, TABLE, known)
    assert (row.relation, bool(row.reason)) == (relation, relation is Relation.EXPLAINED)


def test_disagreements_come_first() -> None:
    scan = Scan("gpu01", "", {"mask": "pass", "root_login": "fail", "su_group": "fail"})
    known = Known({"su": "nobody has a password"}, states={"ssh_hardening": State.PASS})
    found = [row.rule for row in scans.compared(scan, CONTROLS, TABLE, known)]
    assert found == ["root_login", "su_group", "mask"]


def report(folder: Path, *controls: ControlResult) -> None:
    node = NodeStatement("gpu01", Verdict.COMPLIANT, system="debian-13", controls=controls)
    (folder / "latest").mkdir()
    document.write(folder / "latest", Statement(4, "2026-11-26T00:00:00Z", Verdict.COMPLIANT, "", (node,)))


def test_the_command_shows_a_disagreement_and_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(
        tmp_path,
        ControlResult("os_hardening/dmesg", "", State.PASS),
        ControlResult(
            "os_hardening/su", "", State.WAIVED, waiver="nobody has a password", waived_by=WaivedBy.OPERATOR
        ),
    )
    file = tmp_path / "results.xml"
    command = ["scan", "--reports", str(tmp_path), "--results", str(file)]
    rules = ("ensure_pam_wheel_group_empty", "use_pam_wheel_group_for_su")
    passed = {"sysctl_kernel_randomize_va_space": "pass", "package_at_removed": "notapplicable"}
    file.write_text(results(**dict.fromkeys(rules, "fail"), sysctl_kernel_dmesg_restrict="error", **passed))
    assert cli.main(command) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    heads = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert heads == ["1 scanner-fails", "2 explained", "1 agree", "1 not-judged"]
    assert [line.strip() for line in lines if line.startswith(" ")] == [
        "dmesg (pass): sysctl_kernel_dmesg_restrict (error)",
        f"su (waived): {', '.join(rules)}",
        "nobody has a password",
    ]
    assert "1 disagreement" in total
    file.write_text(results(sysctl_kernel_dmesg_restrict="pass"))
    assert cli.main(command) == 0
    file.write_text(ENTITY)
    assert cli.main(command) == 2
    assert cli.main([*command, "--node", "gpu09"]) == 2


@each(
    ("gpu01", False),
    ("GPU01", False),
    ("gpu01.example.org", False),
    ("gpu02", True),
    ("gpu011", True),
    ("", True),
)
def test_results_of_another_machine_are_compared_with_a_warning(
    target: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path, ControlResult("os_hardening/dmesg", "", State.PASS))
    file = tmp_path / "results.xml"
    file.write_text(results(sysctl_kernel_dmesg_restrict="pass").replace(">gpu01<", f">{target}<"))
    command = ["scan", "--reports", str(tmp_path), "--results", str(file), "--node", "gpu01"]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert f"results of {target or 'no machine'}" in said.out
    assert ("warning" in said.err, "gpu01" in said.err) == (warned, warned)


def test_what_is_compared_is_one_row_a_rule() -> None:
    node = NodeStatement(
        "gpu01", Verdict.COMPLIANT, controls=(ControlResult("os_hardening/umask", "", State.PASS),)
    )
    rows = scans.compared(Scan("gpu01", "", {"mask": "pass"}), CONTROLS, TABLE, of_node(node))
    assert rows == [Compared("mask", "pass", "umask", "pass", Relation.AGREE)]
