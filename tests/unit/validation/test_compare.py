"""Two results side by side: what is better, what worse, and what is only noise."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from temper.cli import main as temper
from temper.judge.compare import Change, Trend, compare, text
from tests.unit.each import each
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import Finding, NodeResult, State, dumps


def result_of(value: float, *findings: Finding, name: str = "gpu01", **changes: Any) -> NodeResult:
    test = one_test("gpu_matmul", State.PASS, measurement(value=value, **changes), findings=findings)
    return node_result(test, name=name)


def between(before: NodeResult, after: NodeResult) -> list[Change]:
    return compare({before.node: before}, {after.node: after})


@each(
    (730.0, 600.0, 0.0, Trend.WORSE),
    (730.0, 800.0, 0.0, Trend.BETTER),
    (730.0, 722.0, 0.0, Trend.SAME),
    (730.0, 738.0, 0.0, Trend.SAME),
    (730.0, 650.0, 0.1, Trend.SAME),
)
def test_a_number_is_better_worse_or_within_its_noise_the_same(
    before: float, after: float, spread: float, trend: Trend
) -> None:
    (change,) = between(result_of(before, spread=spread), result_of(after, spread=spread))
    assert change.trend is trend


def test_a_new_finding_is_worse_and_one_that_went_is_better() -> None:
    worn = Finding("persistence-off", State.DEGRADED, "GPU 0: persistence mode is off", device=0)
    changes = between(result_of(730.0), result_of(730.0, worn))
    assert (Trend.WORSE, f"gpu_matmul: {worn.text}") in [(change.trend, change.text) for change in changes]
    changes = between(result_of(730.0, worn), result_of(730.0))
    assert changes[0] == Change("gpu01", Trend.BETTER, f"gpu_matmul: no longer: {worn.text}")


MATMUL = result_of(730.0)
GONE = node_result(one_test("gpu_matmul", State.NOT_RUN, reason="no driver"))
BY_METHOD_2 = dataclasses.replace(MATMUL, tests=(dataclasses.replace(MATMUL.tests[0], method=2),))
OTHER_DRIVER = dataclasses.replace(MATMUL, machine=dataclasses.replace(MATMUL.machine, driver="590.1"))


@each(
    (result_of(612.0), Trend.WORSE, "gpu_matmul: bf16 on GPU 0 730, now 612 TFLOP/s, -16% (noise 2%)"),
    (GONE, Trend.WORSE, "gpu_matmul: was pass, is not-run (no driver)"),
    (BY_METHOD_2, Trend.UNKNOWN, "gpu_matmul: measured by method 1, now by method 2"),
    (dataclasses.replace(MATMUL, gpus=()), Trend.WORSE, "0 GPUs, were 1"),
    (OTHER_DRIVER, Trend.UNKNOWN, "driver: 580.178.04, now 590.1"),
)
def test_what_changed_is_said_with_both_sides(after: NodeResult, trend: Trend, said: str) -> None:
    found = between(MATMUL, after)
    assert Change("gpu01", trend, said) in found
    assert len(found) == 1 or said.startswith(("0 GPUs", "driver"))


def test_a_gpu_that_changed_its_number_is_found_by_its_uuid() -> None:
    before = result_of(730.0)
    swapped = tuple(dataclasses.replace(gpu, index=1 - gpu.index) for gpu in before.gpus)
    after = dataclasses.replace(result_of(730.0, device=1), gpus=swapped)
    assert [change.trend for change in between(before, after)] == [Trend.SAME]


def test_what_is_on_one_side_only_is_said() -> None:
    changes = compare({"gpu01": result_of(1.0)}, {"gpu01": result_of(1.0), "gpu02": result_of(1.0)})
    assert changes[-1] == Change("gpu02", Trend.UNKNOWN, "only the second has a result of it")


@each("node", "test", "number")
def test_what_is_gone_is_not_as_good_as_before(what: str) -> None:
    before = {"gpu01": result_of(1.0), "gpu02": result_of(1.0)}
    (test,) = before["gpu02"].tests
    after = {
        "node": {"gpu01": before["gpu01"]},
        "test": before | {"gpu02": node_result(name="gpu02", gpus=1)},
        "number": before
        | {"gpu02": node_result(dataclasses.replace(test, measurements=()), name="gpu02", gpus=1)},
    }[what]
    (gone,) = [change for change in compare(before, after) if change.trend is not Trend.SAME]
    assert (gone.node, gone.trend) == ("gpu02", Trend.GONE)
    assert "only the first has" in gone.text


def test_the_number_of_a_shape_that_the_search_no_longer_finds_is_not_gone() -> None:
    first, second = (
        node_result(
            one_test("gpu_matmul", State.PASS, measurement("bf16_found_tflops", conditions={"m": size}))
        )
        for size in (4096, 8192)
    )
    assert {change.trend for change in between(first, second)} == {Trend.UNKNOWN}


def test_a_test_that_another_plan_does_not_have_is_not_gone() -> None:
    quick = dataclasses.replace(node_result(gpus=1), plan="standard")
    assert [change.trend for change in between(result_of(1.0), quick)] == [Trend.UNKNOWN]


def test_a_test_that_never_ran_is_not_gone() -> None:
    before = result_of(730.0)
    idle = one_test("gpu_all_reduce", State.NOT_RUN, reason="one GPU")
    before = dataclasses.replace(before, tests=(*before.tests, idle))
    assert [change.trend for change in between(before, result_of(730.0))] == [Trend.SAME, Trend.UNKNOWN]


def test_two_results_compare_whatever_their_nodes_are_called() -> None:
    (change,) = between(result_of(730.0, name="a"), result_of(612.0, name="b"))
    assert (change.node, change.trend) == ("a and b", Trend.WORSE)


def test_the_text_has_the_worst_first_and_counts_what_is_the_same() -> None:
    changes = [
        Change("gpu01", Trend.SAME, "x"),
        Change("gpu01", Trend.BETTER, "y"),
        Change("gpu01", Trend.WORSE, "z"),
    ]
    assert text(changes).splitlines() == [
        "gpu01:",
        "  worse   z",
        "  better  y",
        "  1 of 3 are the same within their noise",
        "1 worse, 1 better, 1 the same, 0 not comparable.",
    ]
    assert "  same    x" in text(changes, everything=True)


def test_a_node_that_is_gone_is_status_2(tmp_path: Path) -> None:
    for side, names in (("a", ("gpu01", "gpu02")), ("b", ("gpu01",))):
        (tmp_path / side).mkdir()
        for name in names:
            (tmp_path / side / f"{name}.json").write_text(dumps(result_of(730.0, name=name)))
    a, b = (str(tmp_path / side) for side in "ab")
    assert (temper.main(["compare", a, b]), temper.main(["compare", b, a])) == (2, 0)


@each((730.0, 0), (612.0, 1), (900.0, 0))
def test_the_exit_status_says_whether_something_became_worse(
    value: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report" / "results").mkdir(parents=True)
    (tmp_path / "report" / "results" / "gpu01.json").write_text(dumps(result_of(730.0)))
    (tmp_path / "now.json").write_text(dumps(result_of(value)))
    assert temper.main(["compare", str(tmp_path / "report"), str(tmp_path / "now.json")]) == status
    capsys.readouterr()
    words = ["compare", str(tmp_path / "report"), str(tmp_path / "now.json"), "--json"]
    assert temper.main(words) == status
    trends = {change["trend"] for change in json.loads(capsys.readouterr().out)["changes"]}
    assert ("worse" in trends) is (status == 1)


def test_nothing_that_compares_is_status_2(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(dumps(result_of(730.0)))
    (tmp_path / "b.json").write_text(dumps(node_result(one_test("health"))))
    assert temper.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2


@each(
    (None, "No such file"),
    ("{}", "schema_version: missing"),
    ("[", "not JSON"),
    ("folder", "expected results, found no JSON file"),
)
def test_what_cannot_be_compared_is_named(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    assert temper.main(["compare", str(path), str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_bad_result_in_a_folder_costs_the_others_no_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        for name in ("gpu01", "gpu02"):
            result = node_result(one_test("gpu_matmul", State.PASS, measurement()), name=name)
            (tmp_path / side / f"{name}.json").write_text(dumps(result))
    (tmp_path / "after/gpu02.json").write_text("{")
    (tmp_path / "after/folder.json").mkdir()
    os.mkfifo(tmp_path / "after/pipe.json")
    assert temper.main(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 2
    said = capsys.readouterr()
    assert "gpu01:" in said.out
    assert "gpu02.json: not JSON" in said.err
    assert "folder.json: expected a file" in said.err
    assert "pipe.json: expected a file" in said.err


def test_words_of_a_node_make_no_line_of_a_comparison() -> None:
    found = text([Change("gpu01", Trend.WORSE, "x\ngpu02:\x1b[2J")])
    assert "\ngpu02" not in found
    assert "\x1b" not in found
