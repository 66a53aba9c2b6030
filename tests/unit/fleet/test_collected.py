"""One report from what slices have handed over, with the nodes of which nothing came."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from temper.compliance.answers import packed
from temper.fleet import collected
from temper.plan.fleet import FleetPlan, digest
from temper.plan.inventory import Inventory
from temper.plan.node_plan import NodePlan
from temper.report.compliance import elsewhere
from tests.unit.compliance.fleets import plan
from tests.unit.each import each
from validation.model.contract import EXPECTATIONS_VERSION

SILENT = {"gpu09": "the helper died"}
KNOWN = Inventory(
    {
        "all": {"children": ["gpu_nodes"]},
        "gpu_nodes": {"hosts": ["gpu01"], "children": ["leaf2"]},
        "leaf2": {"hosts": ["gpu02"]},
    },
    {"gpu01": {}, "gpu02": {}},
)


def folders(tmp_path: Path, name: str, *parts: Any) -> list[Path]:
    made = []
    for number, part in enumerate(parts):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / f"{name}.json").write_text(json.dumps(part))
        made.append(folder)
    return [*made, tmp_path / "nothing"]


def chosen(folder: Path) -> dict[str, Any]:
    """How reports are made: below a folder of the test."""
    below = {
        "compliance_reports_directory": str(folder / "compliance"),
        "gpu_validation_reports_directory": str(folder),
    }
    return collected.defaults() | below


@pytest.mark.component
def test_nothing_that_a_slice_hands_over_says_what_runs_here(tmp_path: Path) -> None:
    """Nor where reports go, or which key signs them."""
    aim = tmp_path / "aim"
    nodes = {"schema_version": EXPECTATIONS_VERSION, "nodes": {}}
    document = {"expectations": nodes, "results": {}, "fabric": None}
    evil = ["-c", f"import pathlib; pathlib.Path({str(aim)!r}).touch()"]
    given = folders(tmp_path, "validation", {"argv": evil, "document": document})
    assert collected.validation(given, SILENT, [], chosen(tmp_path))
    arguments = {"directory": str(aim), "validations": str(aim), "validation_max_age_days": 1, "key": "/k"}
    part = {"arguments": {**arguments, "metrics": str(aim)}, "answers": [], "nodes": []}
    (given[0] / "compliance.json").write_text(json.dumps(part))
    assert collected.compliance(given, SILENT, [], KNOWN, chosen(tmp_path))
    assert not aim.exists()
    assert (tmp_path / "compliance" / "latest" / "statement.json").is_file()


def test_the_command_of_the_report_is_the_roles() -> None:
    given = {
        "gpu_validation_reports_directory": "/r",
        "gpu_validation_fail_on_degraded": "yes",
        "gpu_validation_metrics_directory": "/m",
    }
    role = yaml.safe_load((collected.ROOT / "roles/gpu_validation/vars/main.yml").read_text())
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    environment = Environment(autoescape=True)
    environment.filters["bool"] = lambda text: text == "yes"
    template = role["__gpu_validation_report"].strip().removeprefix("{{").removesuffix("}}")
    environment.filters["regex_replace"] = lambda text, pattern, words: re.sub(pattern, words, text)
    made = environment.compile_expression(template)(
        **given, ansible_inventory_sources=["/i", "/j"], now=lambda utc, fmt: moment.strftime(fmt)
    )
    assert collected.report_command(given, ["/i", "/j"], moment) == made


@pytest.mark.component
def test_validation_of_slices_is_judged_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What came is read once, by what judges it, also where the verdict is a bad one.
    monkeypatch.setattr(collected, "documents", None)

    def part(node: str) -> dict[str, Any]:
        expectation = {"schema_version": EXPECTATIONS_VERSION, "gpus": None, "not_run": f"{node} is off"}
        nodes = {"schema_version": EXPECTATIONS_VERSION, "nodes": {node: expectation}}
        return {"document": {"expectations": nodes, "results": {}, "fabric": None}}

    given = folders(tmp_path, "validation", part("gpu01"), part("gpu02"))
    said = collected.validation(given, SILENT, [], chosen(tmp_path))
    assert said
    assert said.status != 0
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert {node["node"]: node["reasons"] for node in summary["nodes"]} == {
        "gpu01": ["gpu01 is off"],
        "gpu02": ["gpu02 is off"],
        "gpu09": ["the helper died"],
    }
    assert said.states == dict.fromkeys(["gpu01", "gpu02", "gpu09"], "not checked")


@pytest.mark.component
def test_a_slice_whose_results_cannot_be_read_is_named(tmp_path: Path) -> None:
    nodes = {"schema_version": EXPECTATIONS_VERSION, "nodes": {}}
    part = {"document": {"expectations": nodes, "results": {}, "fabric": None}}
    given = folders(tmp_path, "validation", part, part)
    (given[1] / "validation.json").write_text('{"document": [')
    said = collected.validation(given, {}, [], chosen(tmp_path))
    assert said
    assert said.status == 2
    assert f"{given[1]}/validation.json: expected what a slice has handed over: not JSON" in said.text


@pytest.mark.component
def test_a_report_that_was_killed_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(collected, "report_command", lambda *_: ["-c", code])
    document: dict[str, Any] = {"expectations": {"nodes": {}}, "results": {}}
    given = folders(tmp_path, "validation", {"document": document})
    said = collected.validation(given, {}, [], chosen(tmp_path))
    assert said
    assert said.status == 2
    assert "-9" in said.text


@each('{"nodes": [', "\udcff")
def test_what_was_cut_off_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, errors="surrogateescape")
    with pytest.raises(collected.CollectedError, match=r"plan\.json: expected"):
        collected.plans([tmp_path], {})


def test_compliance_of_slices_is_one_statement(tmp_path: Path) -> None:

    def part(node: str, *waivers: Any) -> dict[str, Any]:
        asked = {
            "name": node,
            "groups": ["gpu_nodes"],
            "answer": {"problem": "off"},
            "waivers": list(waivers),
        }
        return {"answers": [], "nodes": [asked]}

    said = collected.compliance(
        folders(tmp_path, "compliance", part("gpu02"), part("gpu01")),
        SILENT,
        ["inventory/mine"],
        KNOWN,
        chosen(tmp_path),
    )
    assert said
    assert said.status == 1
    (statement,) = (tmp_path / "compliance").glob("2*/statement.json")
    nodes = json.loads(statement.read_text())["nodes"]
    assert sorted(node["node"] for node in nodes) == ["gpu01", "gpu02", "gpu09"]
    assert said.states == dict.fromkeys(["gpu01", "gpu02", "gpu09"], "not checked")
    assert "the helper died" in statement.read_text()


def test_nodes_of_the_inventory_that_no_slice_had_are_elsewhere() -> None:
    assert elsewhere(KNOWN.members, {"gpu01"}) == {"gpu02": ["all", "gpu_nodes", "leaf2"]}
    assert elsewhere(KNOWN.members, {"gpu01", "gpu02"}) == {}


def test_a_wrong_waiver_in_any_slice_keeps_the_statement_from_being_written(tmp_path: Path) -> None:
    asked = {"name": "gpu01", "groups": [], "answer": {}, "waivers": [{"controls": "x"}]}
    part = {"answers": [], "nodes": [asked]}
    said = collected.compliance(folders(tmp_path, "compliance", part), {}, [], KNOWN, chosen(tmp_path))
    assert said
    assert said.status == 2
    assert "Nothing was written" in said.text
    assert not list(tmp_path.rglob("2*/statement.json"))


def test_a_slice_whose_plans_or_answers_have_another_form_costs_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "ROOT", tmp_path)
    good = {"nodes": {"gpu01": {"problems": ["no GPU"]}}, "settings": {}, "waived": {}}
    bad = {"nodes": {"gpu02": {"problems": 5}}, "settings": {}, "waived": {}}
    other = {
        "nodes": {"gpu03": {"architecture": "x", "gpus": 5, "problems": []}},
        "settings": {},
        "waived": {},
    }
    # Settings that nodes of another slice have, too.
    foreign = {"nodes": {"gpu04": {"problems": []}}, "settings": {"0123456789abcdef": {}}, "waived": {}}
    given = folders(tmp_path, "plan", good, bad, other, foreign)
    assert collected.plans(given, {})
    document = json.loads((tmp_path / "reports" / "plan.json").read_text())
    assert document["nodes"]["gpu01"] == {"problems": ["no GPU"]}
    assert document["settings"] == {}
    for node in ("gpu02", "gpu03", "gpu04"):
        assert "cannot be read" in document["nodes"][node]["problems"][0]
    strange = {"nodes": [{"name": "gpu02", "answer": 5}], "answers": []}
    assert [node["name"] for node in collected.answers(strange)] == ["gpu02"]


@each({"groups": 5}, {"groups": [{}]}, {"answer": []}, {"other": 1})
def test_what_a_slice_says_of_its_nodes_costs_others_no_statement(
    strange: dict[str, Any], tmp_path: Path
) -> None:
    asked = {"groups": ["gpu_nodes"], "answer": {"problem": "off"}, "waivers": []}
    evil = (asked if "other" not in strange else {}) | strange | {"name": "gpu02"}
    parts = [{"answers": [], "nodes": [one]} for one in (evil, asked | {"name": "gpu01"})]
    given = folders(tmp_path, "compliance", *parts)
    assert collected.compliance(given, {}, ["inventory/mine"], KNOWN, chosen(tmp_path))
    (statement,) = (tmp_path / "compliance").glob("2*/statement.json")
    nodes = json.loads(statement.read_text())["nodes"]
    assert sorted(node["node"] for node in nodes) == ["gpu01", "gpu02"]


def test_plans_of_slices_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "ROOT", tmp_path)

    def part(node: str) -> dict[str, Any]:
        settings = {digest(json.dumps({"role": node})): {"role": node}}
        return {"nodes": {node: {"problems": ["no GPU"]}}, "settings": settings, "waived": {}}

    said = collected.plans(folders(tmp_path, "plan", part("gpu02"), part("gpu01")), SILENT)
    assert said
    assert "0 of 3 nodes planned, 3 not" in said.text
    document = json.loads((tmp_path / "reports" / "plan.json").read_text())
    assert list(document["nodes"]) == ["gpu01", "gpu02", "gpu09"]
    assert document["nodes"]["gpu09"]["problems"] == ["the helper died"]
    assert list(document["settings"].values()) == [{"role": "gpu02"}, {"role": "gpu01"}]


def test_the_digests_of_a_real_plan_are_those_of_its_settings() -> None:
    part = json.loads(json.dumps(FleetPlan.from_dict({"gpu01": plan().as_fact()}).part()))
    assert part["settings"]
    assert part["waived"]
    assert collected.readable(part) == part


def test_one_machine_in_two_slices_is_refused_under_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "ROOT", tmp_path)
    ids = {"gpu01": ("a", "b"), "gpu02": ("b", "c"), "gpu03": ("d",)}
    parts = [
        FleetPlan.from_dict({name: NodePlan(architecture="x86_64", machine=one).as_fact()}).part()
        for name, one in ids.items()
    ]
    said = collected.plans(folders(tmp_path, "plan", *parts), {})
    assert said
    assert said.status == 1
    nodes = json.loads((tmp_path / "reports" / "plan.json").read_text())["nodes"]
    assert {name: len(node["problems"]) for name, node in nodes.items()} == {
        "gpu01": 1,
        "gpu02": 1,
        "gpu03": 0,
    }
    assert "gpu01 and gpu02 are one machine" in said.text


def test_one_machine_in_two_slices_is_compliant_under_no_name(tmp_path: Path) -> None:
    bare = {"groups": ["gpu_nodes"], "waivers": []}
    parts = [
        {"answers": [], "nodes": [{**bare, "name": name, "answer": {"machine": ["a"], "problem": "off"}}]}
        for name in ("gpu01", "gpu02")
    ]
    given = folders(tmp_path, "compliance", *parts)
    said = collected.compliance(given, {}, ["inventory/mine"], KNOWN, chosen(tmp_path))
    assert said
    assert said.status == 1
    (statement,) = (tmp_path / "compliance").glob("2*/statement.json")
    assert statement.read_text().count("are one machine") >= 2


#: What two slices have seen of nodes that say the same of themselves, and said another time.
CLAIMED = {"gpu01": ("ssh-ed25519 a",), "gpu02": ("ssh-ed25519 b", "ssh-rsa b")}


def test_a_node_that_claims_to_be_one_of_another_slice_costs_it_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "ROOT", tmp_path)
    parts = [
        FleetPlan.from_dict(
            {name: NodePlan(architecture="x86_64", machine=("a", "b"), host_keys=keys).as_fact()}
        ).part()
        for name, keys in CLAIMED.items()
    ]
    said = collected.plans(folders(tmp_path, "plan", *parts), {})
    assert said
    assert (said.status, said.text.count("gpu01, gpu02 say that")) == (0, 1)
    nodes = json.loads((tmp_path / "reports" / "plan.json").read_text())["nodes"]
    assert [node["problems"] for node in nodes.values()] == [[], []]


def test_a_node_that_claims_to_be_one_of_another_slice_costs_it_no_answer(tmp_path: Path) -> None:
    bare = {"groups": ["gpu_nodes"], "waivers": []}
    parts = [
        packed([{**bare, "name": name, "answer": {"machine": ["a"], "host_keys": [*keys], "problem": "off"}}])
        for name, keys in CLAIMED.items()
    ]
    given = folders(tmp_path, "compliance", *parts)
    said = collected.compliance(given, {}, ["inventory/mine"], KNOWN, chosen(tmp_path))
    assert said
    assert said.text.count("gpu01, gpu02 say that") == 1
    (statement,) = (tmp_path / "compliance").glob("2*/statement.json")
    assert "are one machine, by" not in statement.read_text()


def test_a_machine_of_another_form_costs_the_fleet_no_report(tmp_path: Path) -> None:
    bare = {"groups": ["gpu_nodes"], "waivers": []}
    parts = [
        packed([{**bare, "name": name, "answer": {"machine": machine, "problem": "off"}}])
        for name, machine in {"gpu01": 5, "gpu02": "ab", "gpu03": "ab"}.items()
    ]
    given = folders(tmp_path, "compliance", *parts)
    said = collected.compliance(given, {}, ["inventory/mine"], KNOWN, chosen(tmp_path))
    assert said
    assert said.text.count("off") >= 1
    assert "are one machine" not in said.text


def test_nothing_is_reported_of_what_no_slice_has_handed_over(tmp_path: Path) -> None:
    assert collected.validation([tmp_path], SILENT, [], {}) is None
    assert collected.compliance([tmp_path], SILENT, [], KNOWN, {}) is None
    assert collected.plans([tmp_path], SILENT) is None
