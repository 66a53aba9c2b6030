"""The pages without a browser: what is on them, what is not, how large they are, and what they survive."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from temper.cli import pages as command
from temper.judge import history
from temper.report import advice, changes, origin, svg
from temper.report.inputs import MOST_VALUES, PastValue, Report, Validation, metric_of, of_runs
from temper.report.metrics import Hardware
from temper.report.words import conditions, difference, duration, kind, number, quantity, size, slug
from temper.report.write import MOST_BYTES, MOST_IN_ONE_FILE, Pages, write
from tests.unit.each import each
from tests.unit.pages import made_up
from validation.checks.registry import CHECKS
from validation.model.contract import Measurement, State, TestResult, dumps
from validation.report import fleet_report
from validation.verdict.judge import judge_fleet, judge_node
from validation.verdict.verdicts import TestVerdict

if TYPE_CHECKING:
    from pathlib import Path

    from validation.verdict.verdicts import NodeVerdict

MARKS = svg.Marks(floor=672.0, published=730.0, median=728.0)


@pytest.fixture(scope="module")
def report() -> Report:
    return made_up.report(12)


@pytest.fixture(scope="module")
def pages(report: Report) -> Pages:
    return Pages(report)


@pytest.fixture(scope="module")
def index(pages: Pages) -> str:
    return pages.index()


def texts(pages: Pages, *names: str) -> dict[str, str]:
    """The pages of nodes by the names of their files: of all that have one, unless named."""
    return dict(pages.nodes.texts(names or pages.with_page, "../report.html"))


def page(pages: Pages, name: str) -> str:
    return texts(pages, name)[f"{name}.html"]


def test_the_command_to_validate_again_has_the_plan_of_the_result(pages: Pages, index: str) -> None:
    for text in (index, page(pages, "gpu-003")):
        assert "playbooks/validate.yml --limit gpu-003 -e gpu_validation_plan=standard<" in text


def test_what_changed_stands_before_all_else(index: str) -> None:
    order = [index.index(f'id="{part}"') for part in ("verdict", "changed", "attention", "failing", "nodes")]
    assert order == sorted(order)
    changed = index[order[1] : order[2]]
    assert changed.index(made_up.SLOW) < changed.index("gpu-012"), "what became worse comes first"


def test_a_change_says_what_is_found_now_and_was_not(report: Report) -> None:
    assert report.validation
    assert report.validation.before
    found = {
        one.node: one for one in changes.of_validation(report.validation.before, report.validation.verdict)
    }
    assert (found[made_up.SLOW].before, found[made_up.SLOW].now) == ("pass", "fail")
    assert "GPU 5" in found[made_up.SLOW].why
    assert (found["gpu-012"].before, found["gpu-012"].now) == (changes.NEW, "pass")


def test_a_node_that_is_gone_has_changed() -> None:
    verdict = made_up.validation(3, "quick").verdict
    (gone,) = changes.of_validation(verdict, dataclasses.replace(verdict, nodes=verdict.nodes[:-1]))
    last = verdict.nodes[-1]
    assert (gone.node, gone.before, gone.now) == (last.node, last.state, changes.GONE)


def test_a_test_that_fails_for_another_reason_has_changed() -> None:
    verdict = made_up.validation(3, "quick").verdict
    assert changes.of_validation(verdict, verdict) == []
    node = next(node for node in verdict.nodes if node.node == made_up.SLOW)
    floor = tuple(
        dataclasses.replace(
            one, findings=tuple(found for found in one.findings if found.code == "below-floor")
        )
        for one in node.tests
    )
    others = tuple(one for one in verdict.nodes if one is not node)
    before = dataclasses.replace(verdict, nodes=(*others, dataclasses.replace(node, tests=floor)))
    (changed,) = changes.of_validation(before, dataclasses.replace(verdict, nodes=(*others, node)))
    assert (changed.before, changed.now) == ("fail", "fail")
    assert "below the median" in changed.why


def test_a_node_has_its_findings_with_remedy_its_gpus_and_advice(pages: Pages) -> None:
    text = page(pages, made_up.THROTTLING)
    for words in (
        "check fans, air flow and heat sink",
        "hw thermal slowdown between 13 and 23 s on GPU 2",
        "num_workers=32, pin_memory=True is enough here",
        "a step in bf16 is 8.14 times as fast as in fp32",
        "31 % of the memory of a plain step, at 76 % of its speed",
        "the largest batch of the test&#39;s model that fits is 212",
        "computing 91.4 %, loading data 4.2 %, idle 6.1 %",
    ):
        assert words in text, words


def test_what_an_operator_waives_stands_apart_from_what_the_profile_relaxes(pages: Pages, index: str) -> None:
    text = page(pages, "gpu-004")
    waived, relaxed = text.index("OPS-1234"), text.index("Relaxed by Temper")
    assert waived < relaxed < text.index("containers reach their network") < text.index("All 1")
    matrix = index[index.index('id="all-nodes"') :]
    rows = {
        name: matrix[matrix.index(f"{name}</bdi>") :].partition("<tr")[0] for name in ("gpu-003", "gpu-004")
    }
    assert ["~" in row for row in rows.values()] == [False, True]


def test_a_number_below_its_floor_says_so_in_words(pages: Pages) -> None:
    assert "below floor" in page(pages, made_up.SLOW)
    assert "below floor" not in page(pages, "gpu-001")


def test_a_bad_link_stands_out_in_the_matrix(pages: Pages) -> None:
    text = page(pages, made_up.BAD_LINK)
    shades = dict(re.findall(r'<td class="(q\d)"><data value="[\d.]+">(\d+)', text))
    assert set(re.findall(r'<td class="q0"><data value="2[34]\.', text))
    assert "q8" in shades


@pytest.mark.parametrize("part", ["validation", "compliance"])
def test_one_part_is_enough(report: Report, part: str, tmp_path: Path) -> None:
    (file,) = write(tmp_path, Report(**{part: getattr(report, part)}))
    text = file.read_text()
    assert "gpu-002" in text
    assert ("Fleet median" in text or "fleet median" in text) == (part == "validation")


def test_an_empty_fleet_has_a_page(tmp_path: Path) -> None:
    (file,) = write(tmp_path, Report(Validation(judge_fleet([]), {})))
    assert "There is no node in this report" in file.read_text()


def test_a_node_without_a_result_is_there_with_its_reason() -> None:
    verdict = judge_fleet([judge_node("gpu-001", None, made_up.expectation(not_run="disk full"), {})])
    text = Pages(Report(Validation(verdict, {}))).whole() or ""
    assert "disk full" in text
    assert 'class="state not-run"' in text


def test_hostile_words_are_escaped_everywhere() -> None:
    made = Pages(made_up.hostile())
    pages = texts(made)
    for text in (made.whole() or "", *pages.values()):
        assert text.count("<script") == 1, "our own"
        assert "<img" not in text
    assert len(pages) == len(made_up.HOSTILE)
    assert all(len(name) < 128 and "/" not in name for name in pages)


def test_the_same_report_gives_the_same_bytes(report: Report) -> None:
    assert Pages(report).index() == Pages(report).index()


def test_few_nodes_are_one_file_and_many_are_not(tmp_path: Path) -> None:
    small = made_up.validation(2, "quick")
    (file,) = write(tmp_path / "few", Report(small))
    assert file.stat().st_size < MOST_BYTES
    result, node = made_up.result("gpu-001", "quick"), small.verdict.nodes[0]
    names = made_up.names(MOST_IN_ONE_FILE + 1)
    many = dataclasses.replace(
        small,
        verdict=judge_fleet(dataclasses.replace(node, node=name) for name in names),
        results={name: dataclasses.replace(result, node=name) for name in names},
    )
    files = write(tmp_path / "many", Report(many))
    assert [file.name for file in files] == [*(f"{name}.html" for name in names), "report.html"]


def test_of_a_large_fleet_good_nodes_have_a_page_where_somebody_asks(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.report.write.MOST_IN_ONE_FILE", 1)
    monkeypatch.setattr("temper.report.write.MOST_WITH_PAGES", 1)
    alone = Report(compliance=report.compliance)
    bad, good = "gpu-002", "gpu-001"

    def found(folder: Path, *wanted: str) -> tuple[set[str], str]:
        index = write(folder, alone, wanted=wanted)[-1].read_text()
        return {path.stem for path in (folder / "nodes").iterdir()}, index

    written, index = found(tmp_path / "plain")
    assert bad in written
    assert good not in written
    assert written == set(re.findall(r'href="nodes/([^"]+)\.html"', index))
    assert f"<bdi>{good}</bdi>" in index
    assert good in found(tmp_path / "asked", good)[0]


def test_an_index_of_10000_nodes_fits_by_what_one_node_adds(report: Report) -> None:
    """Of nodes with every test that there is. Lists of what needs somebody have an end; rows have none."""
    validation, statement = report.validation, report.compliance
    assert validation
    assert statement

    def every_test(node: NodeVerdict) -> tuple[TestVerdict, ...]:
        found = {test.id: test for test in node.tests}
        left = TestVerdict("", State.NOT_RUN, False, "", "no torch here", (), ())
        return tuple(found.get(test) or dataclasses.replace(left, id=test) for test in CHECKS)

    def length(times: int) -> int:
        nodes = [
            dataclasses.replace(node, node=f"{node.node}-{copy:04}", tests=every_test(node))
            for node in validation.verdict.nodes
            for copy in range(times)
        ]
        stated = tuple(
            dataclasses.replace(node, node=f"{node.node}-{copy:04}")
            for node in statement.nodes
            for copy in range(times)
        )
        made = dataclasses.replace(validation, verdict=judge_fleet(nodes), before=None)
        return len(Pages(Report(made, dataclasses.replace(statement, nodes=stated))).index().encode())

    few, many = length(20), length(40)  # already more than have words in every cell
    each = (many - few) / (20 * len(validation.verdict.nodes))
    assert few + 10_000 * each < MOST_BYTES


def test_own_past_is_of_the_same_plan_and_torch_and_earlier() -> None:
    result = made_up.result("gpu-001", "quick")
    test = next(test for test in result.tests if test.id == "gpu_matmul")
    one = test.measurements[0]
    past = history.PastNumber(test.id, test.method, one.name, result.gpus[0].uuid, 50.0, one.conditions)
    run = history.PastRun(result.node, "2026-10-01", "quick", result.machine.torch, "580", (past,))
    runs = [dataclasses.replace(run, started_at=f"2026-10-{day:02}") for day in range(1, 29)]
    others = [
        dataclasses.replace(run, plan="standard"),
        dataclasses.replace(run, torch="2.0"),
        dataclasses.replace(run, started_at=result.started_at),
    ]
    found = of_runs([*others, *runs[::-1]], result)
    values = found[metric_of(test, one), result.gpus[0].uuid]
    assert len(values) == MOST_VALUES
    assert values[-1] == PastValue("2026-10-28", 50.0)


def test_a_median_is_over_equal_hardware_only() -> None:
    one, other = made_up.result("gpu-001", "quick"), made_up.result("gpu-002", "quick")
    other = dataclasses.replace(
        other, gpus=tuple(dataclasses.replace(gpu, pci_id="20b2") for gpu in other.gpus)
    )
    results = {"gpu-001": one, "gpu-002": other}
    hardware = Hardware(dict.fromkeys(results, made_up.references()))
    numbers = hardware.distributions(results)
    found = {key[0].name: len(one.values) for key, one in numbers.items() if key[1].name == "bf16_tflops"}
    assert found == {"H100 SXM 80 GB": 8, "A100 SXM 80 GB": 8}


NOT_NUMBERS = [float("nan"), float("inf"), None]


@each(*NOT_NUMBERS)
def test_what_is_no_number_is_drawn_and_written_as_none(value: float) -> None:
    assert number(value) == "–"
    assert svg.bar(value, 0.1, MARKS, 800) == ""
    drawings = [
        svg.histogram([1.0, value], svg.Marks(floor=value), "t", "GB/s"),
        svg.lines([svg.Line("a", ((1.0, value), (2.0, 3.0)))], svg.Axis("x"), svg.Axis("y"), "t"),
        svg.sparkline([1.0, value, 2.0], 3.0),
    ]
    for drawn in drawings:
        ElementTree.fromstring(drawn.replace("preserveAspectRatio=none", ""))  # noqa: S314 - our own text
        assert not re.search(r"nan|inf\b", drawn)


@each([0.0], [5.0, 5.0], [-1.0, 1.0], [1e-12, 1e12])
def test_charts_hold_whatever_range(values: list[float]) -> None:
    points = tuple((2.0**place, value) for place, value in enumerate(values))
    for drawn in (
        svg.histogram(values, svg.Marks(), "t", ""),
        svg.lines([svg.Line("<a>", points)], svg.SIZES, svg.Axis("y"), "<t>"),
    ):
        ElementTree.fromstring(drawn)  # noqa: S314 - our own text
        assert "<t>" not in drawn


def test_an_empty_chart_is_nothing() -> None:
    assert svg.histogram([], svg.Marks(), "t", "") == ""
    assert svg.lines([], svg.Axis("x"), svg.Axis("y"), "t") == ""
    assert svg.sparkline([], 1.0) == ""


FP16 = {"fp16_gain_over": {"fp32": 2.5}, "skipped_steps": {"steps": 340, "skipped": 3}}


def loader(advised: Any) -> dict[str, Any]:
    return {"the loader": {"advice": advised}}


@each(
    (
        "gpu_amp",
        {"GPU 0": FP16},
        ["a step in fp16 is 2.50 times as fast as in fp32", "3 of 340 steps in fp16 were skipped"],
    ),
    ("data_loading", loader({"DataLoader": ["num_workers=8"]}), ["num_workers=8"]),
    ("data_loading", loader("num_workers=8"), ["num_workers=8"]),  # of earlier results
    # In no known form.
    ("gpu_amp", {"GPU 0": {"bf16_gain_over": "?"}, "GPU 1": None}, []),
    *(("data_loading", loader(said), []) for said in (7, ["x"], {"DataLoader": "x"}, {"DataLoader": [7]})),
)
def test_advice_is_read_in_every_known_form(test: str, details: Any, said: list[str]) -> None:
    tests = (TestResult(test, State.PASS, 1, 1.0, details=details),)
    found = advice.of_node(dataclasses.replace(made_up.result("gpu-001", "quick"), tests=tests))
    assert [one.text[: len(text)] for one, text in zip(found, said, strict=True)] == said
    assert test != "data_loading" or {one.subject for one in found} <= {"DataLoader"}


def test_words() -> None:
    assert (quantity(730.04, "bf16_tflops"), quantity(0.914, "computing_share")) == ("730 TFLOP/s", "91.4 %")
    assert (size(64 << 20), size(1536), size(3)) == ("64 MiB", "1.5 KiB", "3 B")
    assert (difference(98, 100), difference(100, 100), difference(1, None)) == ("−2.0 %", "±0.0 %", "")
    assert conditions({"m": 2, "n": 3, "k": 4, "dtype": "bf16"}) == "2 × 3 × 4, bf16"
    assert (duration(0.5), duration(600), duration(14400)) == ("0.5 s", "10 min", "4.0 h")
    assert (kind("pass", "not-checked"), kind("fail", "not-run"), kind()) == ("unknown", "fail", "unknown")


def test_names_of_nodes_are_names_of_files() -> None:
    names = ["gpu01", "a/b", "a_b", "A" * 300, "A" * 301, ".", "..", "ü"]
    assert slug("gpu01") == "gpu01"
    assert len({slug(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", slug(name)) for name in names)


def test_pages_are_made_again_from_the_folders_of_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, statement = made_up.validation(3, "quick"), made_up.statement(3)
    expectations = {node.node: made_up.expectation() for node in made.verdict.nodes}
    fleet_report.write_results(tmp_path / "reports/now", made.results)
    fleet_report.write(tmp_path / "reports/now", made.verdict, expectations)
    fleet_report.conclude(tmp_path / "reports/now", made.verdict)
    (tmp_path / "compliance").mkdir()
    (tmp_path / "compliance/statement.json").write_text(dumps(statement))
    origin.write(tmp_path / "compliance", made_up.origin(3))
    folders = [f"--validation={tmp_path / 'reports/now'}", f"--compliance={tmp_path / 'compliance'}"]
    assert command.main([*folders, f"--output={tmp_path / 'both'}"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "both/index.html")
    text = (tmp_path / "both/index.html").read_text()
    assert "not-compliant" in text
    assert 'id="numbers"' in text
    assert "deploy01" in text
    assert command.main([*folders, f"--output={tmp_path / 'x'}", "--node=nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert command.main([f"--validation={tmp_path / 'none'}", f"--output={tmp_path / 'x'}"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_numbers_without_samples_or_unit_are_written() -> None:
    one = Measurement("largest_batch_samples", 212.0, 1, 0.0, 0)
    assert quantity(one.value, one.name) == "212 samples"
    assert quantity(3.0, "odd") == "3"


@each(0.0, -1.0)
def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm(at: float) -> None:
    good = ((1.0, 2.0), (1024.0, 4.0))
    line = svg.Line("a", good)
    found = svg.lines([svg.Line("a", ((at, 9.0), *good))], svg.SIZES, svg.Axis("y"), "t", [(at, 3.0)])
    assert found == svg.lines([line], svg.SIZES, svg.Axis("y"), "t")


def test_rates_between_gpus_that_the_node_does_not_have_make_no_matrix(tmp_path: Path) -> None:
    evil = made_up.report(1)
    assert evil.validation is not None
    (name,) = evil.validation.results
    result = evil.validation.results[name]
    pairs = [Measurement("peer_gb_s", 1.0, 9, 0.0, 0, {"to": to}) for to in range(4000)]
    tests = tuple(
        dataclasses.replace(test, measurements=tuple(pairs)) if test.id == "gpu_peers" else test
        for test in result.tests
    )
    validation = dataclasses.replace(
        evil.validation, results={name: dataclasses.replace(result, tests=tests)}
    )
    (page,) = write(tmp_path, dataclasses.replace(evil, validation=validation))
    assert page.stat().st_size < MOST_BYTES
