"""Products bit for bit: between nodes, with a node's own past, between two results, and in a burn-in."""

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from temper.judge import cohort, compare, fleet_checksums, history
from temper.judge.history_store import History
from tests.unit.each import each
from tests.unit.validation.samples import DRIVER, expectation, measurement, node_result, one_test
from validation.backends.libraries import UNKNOWN, loaded_version
from validation.model import checksums
from validation.model.contract import Digest, Finding, NodeResult, State
from validation.run import burn_in
from validation.verdict.baseline import Comparison
from validation.verdict.judge import judge_node

CONDITIONS: dict[str, int | str] = {
    "m": 64,
    "n": 64,
    "k": 64,
    "torch": "2.13.0",
    "cublas": "13.1.0",
    "sms": 132,
}
Said = dict[tuple[str, str], Comparison]


def node_of(name: str, values: str, driver: str = DRIVER, day: int = 20, **conditions: Any) -> NodeResult:
    """A node with a GPU for each letter, which is the checksum of its product."""
    digests = tuple(
        Digest("bf16", value, device, CONDITIONS | conditions) for device, value in enumerate(values)
    )
    numbers = tuple(measurement(device=device) for device in range(len(values)))
    result = node_result(one_test("gpu_matmul", State.PASS, *numbers, digests=digests), name=name)
    gpus = tuple(dataclasses.replace(gpu, uuid=f"{name}-{gpu.index}") for gpu in result.gpus)
    machine = dataclasses.replace(result.machine, driver=driver)
    started_at = f"2026-11-{day:02}T12:00:00+00:00"
    return dataclasses.replace(result, machine=machine, gpus=gpus, started_at=started_at)


def fleet(*nodes: str) -> dict[str, NodeResult]:
    return {f"gpu{number:02}": node_of(f"gpu{number:02}", values) for number, values in enumerate(nodes)}


def findings(said: Said) -> dict[tuple[str, int | None], Finding]:
    return {
        (node, finding.device): finding
        for (node, _), comparison in said.items()
        for finding in comparison.findings
    }


def notes(said: Said) -> set[str]:
    return {note for comparison in said.values() for note in comparison.notes}


@each(
    (["aa", "aa", "aa"], [], None),
    (["aa", "ab", "aa"], [("gpu01", 1)], State.DEGRADED),
    (["aaaa", "bb"], [("gpu01", 0), ("gpu01", 1)], State.DEGRADED),
    (["a", "a", "b", "c"], [("gpu00", 0), ("gpu01", 0), ("gpu02", 0), ("gpu03", 0)], State.DEGRADED),
    (["aa", "bb"], [("gpu00", 0), ("gpu00", 1), ("gpu01", 0), ("gpu01", 1)], State.DEGRADED),
    (["a", "b"], [("gpu00", 0), ("gpu01", 0)], State.DEGRADED),
)
def test_who_differs_from_a_majority_of_the_fleet_is_degraded_and_without_one_all_are_named(
    nodes: list[str], named: list[tuple[str, int]], state: State | None
) -> None:
    found = findings(fleet_checksums.compare(fleet(*nodes)))
    assert sorted(found) == named
    assert {(one.code, one.state) for one in found.values()} == (
        {("differs-from-fleet", state)} if state else set()
    )


def test_a_node_that_claims_many_gpus_is_no_majority() -> None:
    found = findings(fleet_checksums.compare(fleet("a" * 8, "a" * 8, "a" * 8, "b" * 64)))
    assert {node for node, _ in found} == {"gpu03"}


def test_the_finding_names_node_gpu_product_and_how_many_agree() -> None:
    (finding,) = findings(fleet_checksums.compare(fleet("aa", "ab", "aa"))).values()
    assert finding.text == (
        "GPU 1 of gpu01: its bf16 product of 64 x 64 x 64 is not bit for bit that of 5 of 6 equal GPUs of "
        "the fleet; rounding may explain it"
    )


def with_finding(result: NodeResult, code: str, gpu: int) -> NodeResult:
    """The same result, in which this test found something about a GPU."""
    found = Finding(code, State.FAIL, f"GPU {gpu}: {code}", device=gpu)
    return dataclasses.replace(result, tests=(dataclasses.replace(result.tests[0], findings=(found,)),))


@each("wrong-result", "not-repeatable")
@each((("aa", "ab", "aa"),), (("ab", "ab"),))
@each(DRIVER, "590.1")
def test_a_gpu_that_differs_by_more_than_rounding_explains_fails(
    driver: str, nodes: tuple[str, ...], code: str
) -> None:
    results = fleet(*nodes)
    results["gpu01"] = with_finding(node_of("gpu01", "ab", driver=driver), code, 1)
    found = findings(fleet_checksums.compare(results))
    assert found["gpu01", 1].state is State.FAIL
    assert found["gpu01", 1].text.endswith("off by more than rounding explains")
    assert {one.state for place, one in found.items() if place != ("gpu01", 1)} <= {State.DEGRADED}


@each(("wrong-result", 0), ("below-floor", 1))
def test_what_is_wrong_with_another_gpu_or_is_no_wrong_product_condemns_none_that_differs(
    code: str, gpu: int
) -> None:
    results = fleet("aa", "ab", "aa")
    results["gpu01"] = with_finding(results["gpu01"], code, gpu)
    assert findings(fleet_checksums.compare(results))["gpu01", 1].state is State.DEGRADED


def test_the_verdict_on_a_node_whose_gpu_differs_is_degraded() -> None:
    results = fleet("aa", "ab", "aa")
    said = cohort.compare(results)["gpu01"]
    found = judge_node("gpu01", results["gpu01"], expectation(2), {}, comparisons=said)
    assert found.state is State.DEGRADED


def test_a_difference_from_gpus_with_another_driver_says_so() -> None:
    results = fleet("a", "a", "a") | {"gpu03": node_of("gpu03", "b", driver="590.1")}
    (finding,) = findings(fleet_checksums.compare(results)).values()
    assert finding.state is State.DEGRADED
    assert finding.text.endswith(f"; driver 590.1 here, {DRIVER} there")


@each(
    (["aaaa"], "no other node has equal GPUs with the same software"),
    (["a", "a"], "fewer than 3 equal GPUs with the same software"),
)
def test_too_few_equals_are_not_compared_and_that_is_said(nodes: list[str], why: str) -> None:
    said = fleet_checksums.compare(fleet(*nodes))
    assert findings(said) == {}
    assert notes(said) == {f"its products were not compared bit for bit with other nodes: {why}"}
    assert len(said) == len(nodes)


@each("torch", "cublas", "sms", "m", "method", "model")
def test_only_equals_must_have_equal_bits_and_a_stranger_is_not_compared(other: str) -> None:
    changes: dict[str, Any] = {other: 1} if other in CONDITIONS else {}
    strange = node_of("gpu03", "b", **changes)
    if other == "method":
        tests = (dataclasses.replace(strange.tests[0], method=7),)
        strange = dataclasses.replace(strange, tests=tests)
    if other == "model":
        gpus = (dataclasses.replace(strange.gpus[0], pci_id="20b2"),)
        strange = dataclasses.replace(strange, gpus=gpus)
    said = fleet_checksums.compare(fleet("a", "a", "a") | {"gpu03": strange})
    assert findings(said) == {}
    assert said["gpu03", "gpu_matmul"].notes
    assert not said["gpu00", "gpu_matmul"].notes


letters = st.text("abc", min_size=1, max_size=4)


@given(st.lists(letters, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(nodes: list[str], random: Any) -> None:
    results = list(fleet(*nodes).items())
    said = fleet_checksums.compare(dict(results))
    random.shuffle(results)
    assert fleet_checksums.compare(dict(results)) == said


@given(st.lists(letters, min_size=1, max_size=6), st.integers(1, 30))
def test_healthy_nodes_more_never_name_a_healthy_one_and_find_the_others(nodes: list[str], more: int) -> None:
    odd = {
        (f"gpu{number:02}", device)
        for number, values in enumerate(nodes)
        for device, value in enumerate(values)
        if value != "a"
    }
    found = findings(fleet_checksums.compare(fleet(*nodes, *(["aaaa"] * (more + len(nodes))))))
    assert set(found) == odd
    assert {one.state for one in found.values()} <= {State.DEGRADED}


@given(st.text("ab", min_size=1, max_size=9))
def test_a_value_of_a_minority_always_stands_against_more_of_another(values: str) -> None:
    found = checksums.standings(values)
    few = [value for value, one in zip(values, found, strict=True) if one is checksums.Standing.MINORITY]
    assert 2 * len(few) < len(values)
    assert (set(found) == {checksums.Standing.USUAL}) == (len(set(values)) == 1)


def past_of(directory: Path, *results: NodeResult) -> history.Past:
    kept = History(directory / "history.sqlite")
    for result in results:
        run = history.run_of(result, judge_node("gpu01", result, expectation(1), {}))
        kept.append([run] if run else [])
    return dict(kept.past(["gpu01"]))["gpu01"]


def test_a_gpu_that_differs_from_its_own_past_fails(tmp_path: Path) -> None:
    past = past_of(tmp_path, node_of("gpu01", "a", day=1), node_of("gpu01", "a", day=2))
    (finding,) = history.compare(node_of("gpu01", "b", day=3), past)["gpu_matmul"].findings
    assert (finding.code, finding.state, finding.device) == ("differs-from-own-past", State.FAIL, 0)
    assert finding.text == (
        "GPU 0: its bf16 product of 64 x 64 x 64 is not bit for bit that of its run of 2026-11-02, with the "
        "same software"
    )


def test_a_gpu_that_computes_as_ever_is_no_fault_and_nothing_is_left_to_say(tmp_path: Path) -> None:
    past = past_of(tmp_path, node_of("gpu01", "a", day=1))
    assert history.compare(node_of("gpu01", "a", day=2), past)["gpu_matmul"] == Comparison()


def test_other_bits_with_another_driver_are_a_note_and_from_then_on_the_measure(tmp_path: Path) -> None:
    upgraded = node_of("gpu01", "b", driver="590.1", day=2)
    past = past_of(tmp_path, node_of("gpu01", "a", day=1))
    said = history.compare(upgraded, past)["gpu_matmul"]
    assert said.findings == ()
    assert said.notes == (
        "other bits than in its run of 2026-11-01, which proves nothing, because the driver was "
        f"{DRIVER} then and is 590.1 now: bf16 product of 64 x 64 x 64",
    )
    past = past_of(tmp_path, upgraded)
    wrong = history.compare(node_of("gpu01", "a", driver="590.1", day=3), past)["gpu_matmul"]
    assert [finding.code for finding in wrong.findings] == ["differs-from-own-past"]


@each({"cublas": "13.2.0"}, {"torch": "2.14.0"}, {"m": 128})
def test_other_software_or_another_shape_is_not_compared_and_that_is_said(
    change: dict[str, Any], tmp_path: Path
) -> None:
    past = past_of(tmp_path, node_of("gpu01", "a", day=1))
    said = history.compare(node_of("gpu01", "b", day=2, **change), past)["gpu_matmul"]
    assert said.findings == ()
    assert said.notes == (
        "products were not compared bit for bit with its own past: no earlier run with the same software",
    )


@each("wrong-result", "not-repeatable")
def test_a_product_that_failed_is_no_measure(code: str, tmp_path: Path) -> None:
    wrong = with_finding(node_of("gpu01", "b", day=1), code, 0)
    failed = (dataclasses.replace(wrong.tests[0], state=State.FAIL),)
    assert past_of(tmp_path, dataclasses.replace(wrong, tests=failed)).runs == ()


def test_a_gpu_that_differs_from_others_is_measured_by_its_own_past(tmp_path: Path) -> None:
    """Another kernel gives the same bits again; a GPU that computes wrong now and then does not."""

    def odd(value: str, day: int) -> NodeResult:
        result = node_of("gpu01", value, day=day)
        found = Finding("gpu-differs", State.DEGRADED, "GPU 0: its product differs", device=0)
        changed = dataclasses.replace(result.tests[0], state=State.DEGRADED, findings=(found,))
        return dataclasses.replace(result, tests=(changed,))

    past = past_of(tmp_path, odd("b", 1))
    assert history.compare(odd("b", 2), past)["gpu_matmul"].findings == ()
    (finding,) = history.compare(odd("c", 2), past)["gpu_matmul"].findings
    assert (finding.code, finding.state) == ("differs-from-own-past", State.FAIL)


def test_a_slow_gpu_still_has_bits_to_be_measured_by(tmp_path: Path) -> None:
    slow = node_of("gpu01", "a", day=1)
    tests = (dataclasses.replace(slow.tests[0], state=State.DEGRADED),)
    (run,) = past_of(tmp_path, dataclasses.replace(slow, tests=tests)).runs
    assert (run.numbers, [one.value for one in run.digests]) == ((), ["a"])


@each(
    (DRIVER, "a", compare.Trend.SAME),
    (DRIVER, "b", compare.Trend.WORSE),
    ("590.1", "b", compare.Trend.UNKNOWN),
)
def test_a_comparison_of_results_tells_of_other_bits(driver: str, value: str, trend: compare.Trend) -> None:
    before, after = node_of("gpu01", "a"), node_of("gpu01", value, driver=driver)
    changes = compare.compare({"gpu01": before}, {"gpu01": after})
    (said,) = [change for change in changes if "the bits of" in change.text]
    assert said.trend is trend
    assert said.text.startswith("gpu_matmul: the bits of the bf16 product of 64 x 64 x 64 on GPU 0 are")


def test_a_comparison_says_which_bits_it_could_not_compare() -> None:
    before, after = node_of("gpu01", "a"), node_of("gpu01", "b", cublas="13.2.0")
    changes = compare.compare({"gpu01": before}, {"gpu01": after})
    (said,) = [change for change in changes if "bit for bit" in change.text]
    assert said.trend is compare.Trend.UNKNOWN


def test_a_round_of_a_burn_in_that_computes_otherwise_fails_it() -> None:
    (first,), (second,) = node_of("gpu01", "aa").tests, node_of("gpu01", "ab").tests
    assert burn_in.merge(first, first).findings == ()
    merged = burn_in.merge(first, second)
    assert [(one.code, one.device) for one in merged.findings] == [("not-repeatable", 1)]
    assert merged.state is State.FAIL


class Library:
    """A library that says its version as NVIDIA's do."""

    def __init__(self, *numbers: int, status: int = 0) -> None:
        self._numbers, self._status = numbers, status

    def cublasGetProperty(self, which: int, value: Any) -> int:  # noqa: N802 - its name
        value._obj.value = self._numbers[which]
        return self._status


@each(
    ("7f00-7f01 r-xp 00000000 00:20 7   /opt/a b/libcublas.so.13\n", Library(13, 1, 4), "13.1.4"),
    ("7f00-7f01 r-xp 00000000 00:20 7   /opt/libcublasLt.so.13\n", Library(13, 1, 4), UNKNOWN),
    ("7f00-7f01 r-xp 00000000 00:20 7   /opt/libcublas.so.13\n", Library(13, 1, 4, status=1), UNKNOWN),
    ("7f00-7f01 r-xp 00000000 00:20 7   /opt/libcublas.so.13\n", object(), UNKNOWN),
    ("7f00-7f01 rw-p 00000000 00:00 0\n", Library(13, 1, 4), UNKNOWN),
)
def test_the_version_of_a_library_is_that_of_the_one_that_is_loaded(
    maps: str, library: Any, version: str, tmp_path: Path
) -> None:
    (tmp_path / "maps").write_text(maps)
    found = loaded_version("libcublas.so", "cublasGetProperty", tmp_path / "maps", lambda _path: library)
    assert found == version


def test_a_real_process_has_maps_and_no_such_library() -> None:
    assert loaded_version("libcublas.so", "cublasGetProperty", load=ctypes.CDLL) == UNKNOWN
