"""Whole reports of five nodes, one of them hostile: it may cost no other node anything."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from unittest.mock import patch

from gpu_validation import validation_outcome

from temper.base import DATA
from temper.cli import judging
from temper.compliance.answers import answer
from temper.fleet import collected, pulled, stream
from temper.plan.preflight import preflight_plan
from temper.report import compliance as compliance_fleet
from tests.fuzz import mutations
from tests.fuzz.inputs import CONTROL, folder
from tests.unit.compliance.fleets import KNOWN, VARIABLES, observations, plan
from tests.unit.fleet import test_pulled, test_stream
from tests.unit.pages import made_up
from tests.unit.planning_nodes import node
from validation.model.contract import EXPECTATIONS_VERSION, dumps, encode, parse

NOW = test_pulled.NOW

CHECKED = datetime(2026, 11, 22, 12, tzinfo=UTC)
#: A report of validation that is too old by this machine's clock, whatever its results say.
OLD = "2026-09-20T12-00-00Z"
NAMES = ("bad", "gpu-002", "gpu-004", "gpu-005", "gpu-006")


@cache
def good_results() -> dict[str, Any]:
    """The results of a made-up fleet by node, as JSON has them."""
    sources = ("gpu-003", *NAMES[1:])  # the one with most to show is to be the hostile one
    return {
        name: parse(dumps(dataclasses.replace(made_up.result(source), node=name)))
        for name, source in zip(NAMES, sources, strict=True)
    }


def validated(result: Any) -> dict[str, Any]:
    """Write the report of five nodes; return what it says of each."""
    expected = {
        "schema_version": EXPECTATIONS_VERSION,
        "nodes": {name: encode(made_up.expectation()) for name in NAMES},
    }
    try:
        outcome = validation_outcome({"stdout": mutations.as_text(result)})
    except Exception:  # noqa: BLE001 - another reader's row
        outcome = {}
    results = {**good_results(), "bad": outcome.get("result")}
    text = json.dumps({"expectations": expected, "results": results}, default=str)
    output = folder()
    command = ["report", "--fleet", f"--output={output / 'report'}", f"--metrics={output / 'metrics'}"]
    (output / "metrics").mkdir()
    options = judging.parser().parse_args([*command, f"--history={output / 'history.sqlite'}"])
    with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))):
        options.function(options)
    summary = json.loads((output / "report" / "summary.json").read_bytes())
    metrics = {path.stem.removeprefix("temper-validation-") for path in (output / "metrics").iterdir()}
    text = (output / "report" / "report.txt").read_text()
    shutil.rmtree(output)
    return {"nodes": {one["node"]: one for one in summary["nodes"]}, "metrics": metrics, "text": text}


def others_differ(_given: Any, found: dict[str, Any]) -> str:
    """Say whether a hostile node has cost another one its verdict, page or metrics."""
    for name in NAMES[1:]:
        if name not in found["nodes"] or name not in found["metrics"]:
            return f"{name} has lost its verdict or metrics"
        # The fleet's median may have moved; what it says of the others has not.
        if found["nodes"][name] | {"tests": []} != verdicts()[name] | {"tests": []}:
            return f"{name} has another verdict"
    if CONTROL.search(found["text"]):
        return "a control character in report.txt"
    return ""


@cache
def verdicts() -> dict[str, Any]:
    """Return the verdicts where the fifth node is as it should be, too."""
    nodes: dict[str, Any] = validated(good_results()["bad"])["nodes"]
    return nodes


def stated(given: Any) -> dict[str, Any]:
    """State the compliance of five nodes: one has a hostile answer and a hostile last validation."""
    parts = given if isinstance(given, dict) else {}
    root = folder()
    results = root / "validations" / OLD / "results"
    results.mkdir(parents=True)
    (results / "bad.json").write_bytes(
        mutations.as_text(parts.get("result")).encode("utf-8", "surrogatepass")
    )
    (results.parent / "summary.json").write_text(json.dumps(passed_summary()))
    answer = mutations.as_text(parts.get("answer"))
    asked = [
        {
            "name": name,
            "groups": ["gpu_nodes"],
            "answer": {"answer": answer if name == "bad" else good_answer()},
            "waivers": [],
        }
        for name in NAMES
    ]
    settings = compliance_fleet.Settings(
        root / "compliance",
        root / "validations",
        DATA,
        (),
        timedelta(days=30),
        metrics=root / "metrics",
    )
    (root / "metrics").mkdir()
    statement, report = compliance_fleet.check(
        compliance_fleet.checked_nodes(asked, set(NAMES)), settings, CHECKED
    )
    text = (report / "report.txt").read_text()
    shutil.rmtree(root)
    return {"nodes": {one.node: one for one in statement.nodes}, "text": text}


@cache
def passed_summary() -> Any:
    """The summary of a validation that the hostile node has passed."""
    return json.loads(
        dumps(
            made_up.judged(
                {"bad": made_up.healthy(dataclasses.replace(made_up.result("gpu-002"), node="bad"))}, ["bad"]
            )
        )
    )


@cache
def good_answer() -> str:
    """What a node answers that is as it should be."""
    made = plan()
    found = {role: [encode(one) for one in ones] for role, ones in observations(made).items()}
    fact = preflight_plan({"ansible_facts": {"temper": node()}}, VARIABLES, KNOWN)
    return answer(fact, found, "580.95.05")


@cache
def undisturbed() -> dict[str, Any]:
    """Return the other nodes' statements where the fifth one is as it should be, too."""
    return {name: one for name, one in stated(hostile_sample())["nodes"].items() if name != "bad"}


def hostile_sample() -> dict[str, Any]:
    """Return an answer and a last validation as they should be."""
    return {"answer": json.loads(good_answer()), "result": good_results()["bad"]}


def other_statements(_given: Any, found: dict[str, Any]) -> str:
    """Say whether another node's statement differs, or a time to come counts as one that was."""
    if any(found["nodes"].get(name) != one for name, one in undisturbed().items()):
        return "another node's statement differs"
    if CONTROL.search(found["text"]):
        return "a control character in report.txt"
    last = {one.id: one for one in found["nodes"]["bad"].controls}.get("validation/last")
    if last and last.state.value == "pass":
        return "a validation counts that this machine has judged too long ago"
    return ""


def pulled_fleet(given: Any) -> pulled.Judgement:
    """Judge five nodes that pull, one of which hands back something else."""
    results = folder()
    for name in NAMES:
        result = test_pulled.GOOD.__class__(**{**vars(test_pulled.GOOD), "node": name})
        (results / f"{name}.json").write_text(result.text())
    (results / "bad.json").write_bytes(mutations.as_text(given).encode("utf-8", "surrogatepass"))
    for path in results.iterdir():
        os.utime(path, (NOW.timestamp() - 60,) * 2)
    found = pulled.judge(results, NAMES, 3, NOW)
    pulled.as_json(found)
    shutil.rmtree(results)
    return found


def others_pulled(_given: Any, found: pulled.Judgement) -> str:
    """Say whether another node has another standing, or the text a character that no terminal should get."""
    standings = {one.standing for one in found.nodes if one.name != "bad"}
    if standings - {pulled.Standing.COMPLIANT}:
        return f"another node is {', '.join(sorted(standings))}"
    return "a control character" if CONTROL.search(pulled.text(found)) else ""


def slices(given: Any) -> object:
    """Merge the plans of a slice that a helper has changed with those of another one."""
    root = folder()
    plan = mutations.as_text(given).encode("utf-8", "surrogatepass")
    received = stream.Received(root, test_stream.NODES, lambda _: None)
    for line in test_stream.sent(test_stream.packed(("collected/plan.json", plan))):
        received.line(line)
    (root / "other").mkdir()
    (root / "other" / "plan.json").write_text('{"nodes": {}, "settings": {}, "waived": {}}')
    with patch.object(collected, "ROOT", root):
        return collected.plans([root / "collected", root / "other"], {"gpu09": "unreachable"})


def helper_lines(given: bytes) -> object:
    """Take a stream of a helper, line by line."""
    root = folder()
    received = stream.Received(root, test_stream.NODES, lambda _: None)
    for line in given.split(b"\n"):
        received.line(line)
    return [path.relative_to(root) for path in root.rglob("*")]


def helper_archive(given: bytes) -> object:
    """Take a whole stream with this archive."""
    return helper_lines(b"\n".join(test_stream.sent(given)))


def archives() -> list[bytes]:
    """Return archives as slices send them."""
    plan = ("collected/plan.json", json.dumps(test_stream.PLAN).encode())
    return [test_stream.packed(("stdout", b"ok"), plan), test_stream.packed(plan)]


def streams() -> list[bytes]:
    """Return whole streams."""
    event = json.dumps({"event": "runner_on_ok", "event_data": {"host": "gpu01"}}).encode()
    return [b"\n".join([event, *test_stream.sent(archive)]) for archive in archives()]


def elsewhere(_given: bytes, written: Any) -> str:
    """Say whether a file was written that no role hands over."""
    allowed = re.compile(r"stdout|collected(/\w[\w.-]*)?", re.ASCII)
    return "" if all(allowed.fullmatch(str(path)) for path in written) else "a file that no role hands over"
