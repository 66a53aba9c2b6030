"""Names of nodes in a document are no paths: nothing is written beside the folders of the report."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.validation.samples import node_result, one_test
from validation.model.contract import EXPECTATIONS_VERSION, dumps


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", "a/b", "a\0b", ""])
def test_a_name_that_leads_elsewhere_writes_nothing_there(
    name: str, tmp_path: Path, run_temper: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = json.loads(dumps(node_result(one_test(), name=name)))
    expected = {
        "schema_version": EXPECTATIONS_VERSION,
        "nodes": {name: {"schema_version": EXPECTATIONS_VERSION}},
    }
    folder = tmp_path / "deep" / "in"
    folder.mkdir(parents=True)
    options = [f"--output={folder / 'report'}", f"--metrics={folder / 'metrics'}"]
    (folder / "metrics").mkdir()
    given = json.dumps({"expectations": expected, "results": {name: result}})
    assert "Traceback" not in run_temper("report", "--fleet", *options, given=given).stderr
    there = {path.relative_to(folder).parts[0] for path in folder.rglob("*")}
    assert there <= {"report", "metrics"}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["a\x1bb", "a\nb", "a\0b", "a\u2028b", "a\udc80b"])
def test_a_name_that_nobody_can_print_costs_the_other_nodes_no_report(
    name: str, tmp_path: Path, run_temper: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Preflight has refused that node; the report has it by its name and its reason."""
    empty = {"schema_version": EXPECTATIONS_VERSION}
    refused = {**empty, "not_run": "its name"}
    shown = name.encode("unicode_escape").decode()
    expected = {**empty, "nodes": {"gpu01": empty, name: refused, shown: refused}}
    document = {
        "expectations": expected,
        "results": {"gpu01": json.loads(dumps(node_result(one_test(), name="gpu01")))},
        "groups": {"gpu01": ["gpu_nodes"], name: ["gpu_nodes"]},
    }
    (tmp_path / "metrics").mkdir()
    options = [f"--output={tmp_path / 'report'}", f"--metrics={tmp_path / 'metrics'}"]
    done = run_temper("report", "--fleet", *options, given=json.dumps(document))
    assert done.stderr == ""
    nodes = json.loads((tmp_path / "report" / "summary.json").read_text())["nodes"]
    assert {one["node"]: one["state"] == "not-run" for one in nodes} == {
        "gpu01": False,
        shown: True,
        f"{shown}'": True,
    }
