"""One report from what slices have handed over, with the nodes of which nothing came."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from compliance.fleet import elsewhere
from fleet import collected
from fleet.inventory import Inventory
from validation.model.contract import EXPECTATIONS_VERSION

if TYPE_CHECKING:
    from pathlib import Path

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


def test_validation_of_slices_is_judged_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What came is read once, by what judges it, also where the verdict is a bad one.
    monkeypatch.setattr(collected, "documents", None)
    argv = ["-m", "validation", "report", "--fleet", f"--output={tmp_path}/report"]

    def part(node: str) -> dict[str, Any]:
        expectation = {"schema_version": EXPECTATIONS_VERSION, "gpus": None, "not_run": f"{node} is off"}
        nodes = {"schema_version": EXPECTATIONS_VERSION, "nodes": {node: expectation}}
        return {"argv": argv, "document": {"expectations": nodes, "results": {}, "fabric": None}}

    said = collected.validation(folders(tmp_path, "validation", part("gpu01"), part("gpu02")), SILENT)
    assert said
    assert said.status != 0
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert {node["node"]: node["reasons"] for node in summary["nodes"]} == {
        "gpu01": ["gpu01 is off"],
        "gpu02": ["gpu02 is off"],
        "gpu09": ["the helper died"],
    }


def test_a_slice_whose_results_cannot_be_read_is_named(tmp_path: Path) -> None:
    argv = ["-m", "validation", "report", "--fleet", f"--output={tmp_path}/report"]
    nodes = {"schema_version": EXPECTATIONS_VERSION, "nodes": {}}
    part = {"argv": argv, "document": {"expectations": nodes, "results": {}, "fabric": None}}
    given = folders(tmp_path, "validation", part, part)
    (given[1] / "validation.json").write_text('{"argv": [')
    said = collected.validation(given, {})
    assert said
    assert said.status == 2
    assert f"{given[1]}/validation.json: expected what a slice has handed over: not JSON" in said.text
    (given[0] / "validation.json").write_text("{}")
    with pytest.raises(collected.CollectedError, match=r"0/validation\.json: expected"):
        collected.validation(given, {})


def test_a_report_that_was_killed_is_no_success(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    document: dict[str, Any] = {"expectations": {"nodes": {}}, "results": {}}
    given = folders(tmp_path, "validation", {"argv": ["-c", code], "document": document})
    said = collected.validation(given, {})
    assert said
    assert said.status == 2
    assert "-9" in said.text


@pytest.mark.parametrize("text", ['{"nodes": [', "\udcff"])
def test_what_was_cut_off_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text, errors="surrogateescape")
    with pytest.raises(collected.CollectedError, match=r"plan\.json: expected"):
        collected.plans([tmp_path], {})


def test_compliance_of_slices_is_one_statement(tmp_path: Path) -> None:
    arguments = {
        "directory": str(tmp_path / "reports"),
        "validations": str(tmp_path / "reports"),
        "validation_max_age_days": 30,
        "key": "",
        "metrics": "",
    }

    def part(node: str, *waivers: Any) -> dict[str, Any]:
        asked = {
            "name": node,
            "groups": ["gpu_nodes"],
            "answer": {"problem": "off"},
            "waivers": list(waivers),
        }
        return {"arguments": arguments, "answers": [], "nodes": [asked]}

    said = collected.compliance(
        folders(tmp_path, "compliance", part("gpu02"), part("gpu01")), SILENT, ["inventory/mine"], KNOWN
    )
    assert said
    assert said.status == 1
    (statement,) = (tmp_path / "reports").glob("2*/statement.json")
    nodes = json.loads(statement.read_text())["nodes"]
    assert sorted(node["node"] for node in nodes) == ["gpu01", "gpu02", "gpu09"]
    assert "the helper died" in statement.read_text()


def test_nodes_of_the_inventory_that_no_slice_had_are_elsewhere() -> None:
    assert elsewhere(KNOWN.members, {"gpu01"}) == {"gpu02": ["all", "gpu_nodes", "leaf2"]}
    assert elsewhere(KNOWN.members, {"gpu01", "gpu02"}) == {}


def test_a_wrong_waiver_in_any_slice_keeps_the_statement_from_being_written(tmp_path: Path) -> None:
    arguments = {"directory": str(tmp_path), "validations": str(tmp_path), "validation_max_age_days": 30}
    asked = {"name": "gpu01", "groups": [], "answer": {}, "waivers": [{"controls": "x"}]}
    part = {"arguments": {**arguments, "key": "", "metrics": ""}, "answers": [], "nodes": [asked]}
    said = collected.compliance(folders(tmp_path, "compliance", part), {}, [], KNOWN)
    assert said
    assert said.status == 2
    assert "Nothing was written" in said.text
    assert not list(tmp_path.glob("2*/statement.json"))


def test_plans_of_slices_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "ROOT", tmp_path)

    def part(node: str) -> dict[str, Any]:
        return {"nodes": {node: {"problems": ["no GPU"]}}, "settings": {node: {"role": node}}, "waived": {}}

    said = collected.plans(folders(tmp_path, "plan", part("gpu02"), part("gpu01")), SILENT)
    assert said
    assert "3 nodes planned, 3 refused" in said.text
    document = json.loads((tmp_path / "reports" / "plan.json").read_text())
    assert list(document["nodes"]) == ["gpu01", "gpu02", "gpu09"]
    assert document["nodes"]["gpu09"] == {"problems": ["the helper died"]}
    assert set(document["settings"]) == {"gpu01", "gpu02"}


def test_nothing_is_reported_of_what_no_slice_has_handed_over(tmp_path: Path) -> None:
    assert collected.validation([tmp_path], SILENT) is None
    assert collected.compliance([tmp_path], SILENT, [], KNOWN) is None
    assert collected.plans([tmp_path], SILENT) is None
