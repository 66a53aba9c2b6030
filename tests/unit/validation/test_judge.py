"""The verdict: floors, required tests, exit statuses, and properties that hold for every fleet."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.each import each
from tests.unit.validation.samples import H100, expectation, measurement, node_result, one_test
from validation.model.contract import Finding, Measurement, NodeResult, State, TestResult
from validation.model.expectations import Expectation, References
from validation.model.quantities import number
from validation.verdict.baseline import Comparison
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_FAIL, EXIT_PASS, judge_fleet, judge_node
from validation.verdict.verdicts import NodeVerdict

HEADLINES = {"gpu_matmul": ("bf16_tflops", "fp16_tflops"), "gpu_all_reduce": ("busbw_gb_s",)}
BROKEN = Finding(
    "ecc-uncorrected", State.FAIL, "GPU 0 has had 2 uncorrectable memory errors", "replace it", 0
)
WORN = Finding("persistence-off", State.DEGRADED, "GPU 0: persistence mode is off")


def verdict(
    *tests: TestResult, required: tuple[str, ...] = (), strict: bool = False, gpus: int | None = None
) -> NodeVerdict:
    result = node_result(*tests, gpus=gpus)
    wanted = expectation(len(result.gpus), required_tests=required)
    return judge_node("gpu01", result, wanted, HEADLINES, fail_on_degraded=strict)


def not_run(test_id: str, reason: str = "no driver") -> TestResult:
    return one_test(test_id, State.NOT_RUN, reason=reason)


HEALTHY, UNHEALTHY = one_test("health"), one_test("health", State.FAIL, findings=(BROKEN,))
MATMUL = not_run("gpu_matmul")
HALF = one_test("gpu_matmul", State.NOT_RUN, measurement(value=300.0), reason="GPU 1: no free memory")


@each(
    ([HEALTHY, one_test("gpu_matmul", State.PASS, measurement())], ["health", "gpu_matmul"], "pass", 0, ""),
    ([one_test("gpu_matmul", State.PASS, measurement(value=672.0))], [], "pass", 0, ""),  # at its floor
    ([UNHEALTHY], [], "fail", 1, f"health: {BROKEN.text}. What to do: replace it"),
    ([HEALTHY, MATMUL], [], "pass", 0, ""),
    ([HEALTHY, MATMUL], ["gpu_matmul"], "fail", 2, "gpu_matmul is required and was not run: no driver"),
    ([HEALTHY], ["health", "gpu_matmul"], "fail", 2, "gpu_matmul is required and was not run"),
    ([UNHEALTHY, MATMUL], ["gpu_matmul"], "fail", 1, "health: "),
    ([not_run("health"), MATMUL], [], "not-run", 2, ""),
    ([HALF], [], "fail", 1, "gpu_matmul: bf16 300"),
)
def test_a_node_is_as_good_as_its_tests(
    tests: list[TestResult], required: list[str], state: str, exit_status: int, reason: str
) -> None:
    node = verdict(*tests, required=tuple(required))
    exits = (EXIT_PASS, EXIT_FAIL, EXIT_ENVIRONMENT)
    assert (node.state, node.exit_status) == (state, exits[exit_status])
    assert "".join(node.reasons[:1]).startswith(reason)
    assert not (node.reasons and node.state is State.PASS)
    assert {one.id for one in node.tests} == {one.id for one in tests} | set(required)


def test_the_same_finding_on_several_gpus_is_one_sentence() -> None:
    findings = [
        Finding("fabric", State.FAIL, f"GPU {n} is not part of the fabric", "look", n) for n in range(3)
    ]
    node = verdict(one_test("health", State.FAIL, findings=(*findings, BROKEN)))
    assert node.reasons == (
        "health: GPU 0 is not part of the fabric; the same on GPU 1, 2. What to do: look",
        "health: GPU 0 has had 2 uncorrectable memory errors. What to do: replace it",
    )


@each((False, EXIT_PASS), (True, EXIT_FAIL))
def test_a_degraded_node_is_visible_and_fails_only_where_that_is_asked(
    strict: bool, exit_status: int
) -> None:
    node = verdict(one_test("health", State.DEGRADED, findings=(WORN,)), strict=strict)
    assert (node.state, node.exit_status) == (State.DEGRADED, exit_status)
    assert node.reasons


def test_a_node_without_a_result_is_there_with_its_reason() -> None:
    node = judge_node("gpu07", None, Expectation(not_run="it cannot be reached"), HEADLINES)
    assert (node.state, node.exit_status) == (State.NOT_RUN, EXIT_ENVIRONMENT)
    assert node.reasons == ("it cannot be reached",)


def below_floor(node: NodeVerdict) -> list[str]:
    return [finding.text for test in node.tests for finding in test.findings if finding.code == "below-floor"]


@each(
    (640.0, 0.3, "noisy-below-floor", State.DEGRADED),
    (640.0, 0.02, "below-floor", State.FAIL),
    (400.0, 0.3, "below-floor", State.FAIL),
)
def test_a_number_is_blamed_only_when_its_noise_does_not_reach_the_floor(
    value: float, spread: float, code: str, state: State
) -> None:
    noisy = measurement(value=value, spread=spread, attempts=3)
    node = verdict(one_test("gpu_matmul", State.PASS, noisy))
    assert [finding.code for finding in node.tests[0].findings] == [code]
    assert node.state is state


def test_what_fleet_and_history_say_counts() -> None:
    slow = Finding("below-fleet", State.DEGRADED, "slow", "look", 0)
    result = node_result(one_test("gpu_matmul", State.PASS, measurement()))
    said = {"gpu_matmul": Comparison((slow,), ("not compared",))}
    node = judge_node("gpu01", result, expectation(1), HEADLINES, comparisons=said)
    assert (node.state, node.tests[0].notes) == (State.DEGRADED, ("not compared",))
    assert node.reasons == ("gpu_matmul: slow. What to do: look",)


def codes(node: NodeVerdict) -> list[str]:
    return [finding.code for test in node.tests for finding in test.findings]


def test_a_test_that_measured_nothing_has_not_passed() -> None:
    node = verdict(one_test("gpu_matmul"))
    assert (node.state, node.exit_status, codes(node)) == (State.FAIL, EXIT_FAIL, ["no-number"])


@each(0.0, -3.0, 5000.0)
def test_a_number_that_cannot_be_has_not_passed(value: float) -> None:
    peaks = H100 | {"peak": {"bf16_tflops": {"value": 989, "source": "a"}}}
    wanted = expectation(1, references=References({"h100_sxm_80gb": peaks}))
    result = node_result(one_test("gpu_matmul", State.PASS, measurement(value=value)))
    node = judge_node("gpu01", result, wanted, HEADLINES)
    assert "impossible-number" in codes(node)
    assert node.state is State.FAIL


def test_a_number_without_runs_has_not_passed() -> None:
    node = verdict(one_test("gpu_matmul", State.PASS, measurement(samples=0)))
    assert codes(node) == ["impossible-number"]


@each(
    ("memory_triad_gb_s", 4500.0, "impossible-number"),  # it fitted into a cache
    ("memory_triad_gb_s", 2970.0, None),
    ("h2d_pinned_gb_s", 550.0, "impossible-number"),  # Gb/s for GB/s
    ("h2d_pinned_gb_s", 56.0, None),
    ("bf16_peak_tflops", 5000.0, "impossible-number"),
    ("bf16_best_tflops", 5000.0, "impossible-number"),
    ("bf16_alone_tflops", 5000.0, "impossible-number"),
    ("bf16_best_tflops", 794.5, None),
    ("both_pinned_gb_s", 110.0, None),
)
def test_nothing_is_faster_than_its_peak_allows(name: str, value: float, code: str | None) -> None:
    peak = {"bf16_tflops": {"value": 989, "source": "a"}, "memory_gb_s": {"value": 3350, "source": "a"}}
    link = {"5": {"peak": {"h2d_pinned_gb_s": {"value": 63, "source": "a"}}}}
    wanted = expectation(1, references=References({"h100_sxm_80gb": H100 | {"peak": peak}}, link))
    result = node_result(one_test("gpu_memory", State.PASS, measurement(name, value)))
    assert codes(judge_node("gpu01", result, wanted, HEADLINES)) == ([code] if code else [])


@each(30.0, 346.0)
def test_pcie_neither_bounds_nor_judges_the_copies_of_a_superchip(value: float) -> None:
    number = {"h2d_pinned_gb_s": {"value": 63, "source": "a"}}
    model = {key: H100[key] for key in ("name", "pci_ids")} | {"form_factor": "superchip"}
    wanted = expectation(1, references=References({"gh200": model}, {"5": {"peak": number, "floor": number}}))
    copied = measurement("h2d_pinned_gb_s", value)
    node = judge_node("gpu01", node_result(one_test("gpu_transfer", State.PASS, copied)), wanted, HEADLINES)
    assert codes(node) == []
    assert any("no reference" in note for note in node.tests[0].notes)


def test_a_gpu_without_a_number_is_missed() -> None:
    node = verdict(one_test("gpu_matmul", State.PASS, measurement()), gpus=2)
    assert node.state is State.FAIL
    (finding,) = node.tests[0].findings
    assert (finding.code, finding.device) == ("gpu-not-measured", 1)
    assert finding.text == "GPU 1: no number for bf16, which other GPUs have"


def test_a_gpu_of_another_model_need_not_have_the_same_numbers() -> None:
    numbers = (measurement(), measurement("fp16_tflops"), measurement("fp16_tflops", device=1))
    result = node_result(one_test("gpu_matmul", State.PASS, *numbers))
    old = dataclasses.replace(result.gpus[1], pci_id="1eb8")
    node = judge_node(
        "gpu01", dataclasses.replace(result, gpus=(result.gpus[0], old)), Expectation(), HEADLINES
    )
    assert codes(node) == []


def test_a_node_with_fewer_gpus_than_expected_fails_although_no_test_says_so() -> None:
    result = node_result(one_test("gpu_matmul", State.PASS, measurement()), gpus=1)
    node = judge_node("gpu01", result, expectation(2), HEADLINES)
    assert (node.state, node.exit_status) == (State.FAIL, EXIT_FAIL)
    assert node.reasons[0].startswith("1 GPUs were found on this node, expected 2")


def test_a_low_number_says_what_held_the_gpu_back() -> None:
    telemetry = [
        {
            "device": 0,
            "event_reason_shares": {"sw_power_cap": 0.38},
            "slow_link": "PCIe link generation 3 of 5",
        },
        {"device": 1, "event_reason_shares": {"hw_slowdown": 1.0}},
    ]
    test = one_test("gpu_matmul", State.PASS, measurement(value=612.0), details={"telemetry": telemetry})
    (text,) = below_floor(verdict(test))
    assert text.endswith("; sw power cap was active 38% of the time; PCIe link generation 3 of 5")


@each(
    ("gpu_matmul", measurement("fp16_tflops", 1.0), ("fp16: no reference for H100 SXM 80 GB",)),  # unverified
    ("gpu_matmul", measurement("fp32_tflops", 1.0), ("fp32: no reference for H100 SXM 80 GB",)),
    ("cpu_matmul", measurement("fp32_gflops", 1.0, device=None), ()),
)
def test_a_number_without_a_floor_is_not_judged_and_that_is_said(
    test: str, one: Measurement, notes: tuple[str, ...]
) -> None:
    node = verdict(one_test(test, State.PASS, one))
    said = tuple(f"{note}, so not compared with one" for note in notes)
    assert (node.state, node.tests[0].notes) == (State.PASS, said)


SHAPED = {
    "floor": {"bf16_tflops": {"value": 672, "source": "a", "shape": [8192, 8192, 8192]}},
    "measured": {
        "fp8_tflops": {"value": 1290.1, "source": "a", "shape": [8192, 8192, 8192]},
        "fp16_tflops": {"value": 700, "source": "a", "shape": [8192, 8192, 8192], "verified": False},
    },
}


def shaped(name: str, edge: int, value: float = 1.0) -> NodeVerdict:
    one = measurement(name, value, conditions={"m": edge, "n": edge, "k": edge, "dtype": "x"})
    wanted = expectation(1, references=References({"h100": H100 | SHAPED}))
    return judge_node("gpu01", node_result(one_test("gpu_matmul", State.PASS, one)), wanted, HEADLINES)


@each("bf16_tflops", "bf16_alone_tflops")
def test_a_floor_judges_the_shape_that_it_was_measured_with(name: str) -> None:
    assert codes(shaped(name, 8192)) == ["below-floor"]


@each(
    (
        "bf16_tflops",
        4096,
        "the reference for H100 SXM 80 GB holds for 8192 x 8192 x 8192, so not compared",
    ),
    (
        "fp8_tflops",
        4096,
        "the reference for H100 SXM 80 GB holds for 8192 x 8192 x 8192, so not compared",
    ),
    ("fp8_tflops", 8192, "no floor for H100 SXM 80 GB, so not judged by one; published are 1290 TFLOP/s"),
    ("fp16_tflops", 8192, "no reference for H100 SXM 80 GB, so not compared"),
    ("bf16_best_tflops", 8192, "no reference for H100 SXM 80 GB, so not compared"),
)
def test_what_has_no_floor_at_its_shape_is_not_judged_and_that_is_said(
    name: str, edge: int, why: str
) -> None:
    node = shaped(name, edge)
    assert codes(node) == []
    (note,) = node.tests[0].notes
    assert why in note


def test_a_product_without_a_shape_in_its_conditions_meets_no_floor_of_one() -> None:
    wanted = expectation(1, references=References({"h100": H100 | SHAPED}))
    old = node_result(one_test("gpu_matmul", State.PASS, measurement(value=1.0, conditions={"size": 8192})))
    node = judge_node("gpu01", old, wanted, HEADLINES)
    assert (codes(node), len(node.tests[0].notes)) == ([], 1)


def test_numbers_of_gpus_that_the_result_does_not_name_are_not_compared_and_that_is_said() -> None:
    result = node_result(one_test("gpu_all_reduce", State.PASS, busbw(1.0, 17179869184, 8)), gpus=0)
    node = judge_node("gpu01", result, expectation(gpus=None), HEADLINES)
    assert node.tests[0].notes == (
        "busbw: no reference for GPUs that nobody named, so not compared with one",
    )


def test_a_gpu_that_no_table_knows_is_not_compared_and_that_is_said() -> None:
    result = node_result(one_test("gpu_matmul", State.PASS, measurement()))
    node = judge_node("gpu01", result, Expectation(), HEADLINES)
    assert node.state is State.PASS
    assert node.tests[0].notes == ("bf16: no reference for NVIDIA H100 80GB HBM3, so not compared with one",)


def test_the_floor_of_a_transfer_is_that_of_the_link_and_its_width() -> None:
    slow = measurement("h2d_pinned_gb_s", 30.0)
    result = node_result(one_test("gpu_transfer", State.PASS, slow))
    wanted = expectation(1)  # of both: what was looked up for the one link must not be taken for the other
    assert below_floor(judge_node("gpu01", result, wanted, HEADLINES)) == [
        "h2d pinned 30.0 GB/s on GPU 0, floor 48.0 (PCIe generation 5 x16)"
    ]
    narrow = dataclasses.replace(
        result, gpus=tuple(dataclasses.replace(gpu, pcie_width_max=8) for gpu in result.gpus)
    )
    assert judge_node("gpu01", narrow, wanted, HEADLINES).state is State.PASS


def test_numbers_of_one_name_have_the_floor_of_their_own_conditions() -> None:
    node = verdict(
        one_test("gpu_all_reduce", State.PASS, *(busbw(400.0, size, 8) for size in (1 << 30, 16 << 30)))
    )
    assert below_floor(node) == ["busbw 400 GB/s, floor 460 (H100 SXM 80 GB)"]


def test_each_gpu_that_nobody_named_is_said_by_its_index() -> None:
    found = one_test("gpu_matmul", State.PASS, measurement(device=7), measurement(device=8))
    (notes,) = (
        test.notes for test in judge_node("gpu01", node_result(found, gpus=1), Expectation(), {}).tests
    )
    assert [note.partition(", so")[0] for note in notes] == [
        "bf16: no reference for GPU 7",
        "bf16: no reference for GPU 8",
    ]


def busbw(value: float, size_bytes: int, ranks: int) -> Measurement:
    conditions: dict[str, int | str] = {"size_bytes": size_bytes, "ranks": ranks}
    return measurement("busbw_gb_s", value, device=None, conditions=conditions)


@each((16 << 30, 8, State.FAIL), (1 << 30, 8, State.PASS), (16 << 30, 4, State.PASS))
def test_the_floor_of_a_collective_holds_for_its_number_of_gpus_and_size(
    size_bytes: int, ranks: int, state: State
) -> None:
    assert verdict(one_test("gpu_all_reduce", State.PASS, busbw(400.0, size_bytes, ranks))).state is state


def test_a_floor_that_only_a_switch_that_adds_can_reach_says_so() -> None:
    entry = H100["floor"]["busbw_gb_s"][0] | {"algorithm": "nvls"}  # type: ignore[index]
    model = H100 | {"floor": {"busbw_gb_s": [entry]}}
    result = node_result(one_test("gpu_all_reduce", State.PASS, busbw(365.0, 16 << 30, 8)), gpus=8)
    wanted = expectation(8, references=References({"h100": model}))
    (text,) = below_floor(judge_node("gpu01", result, wanted, HEADLINES))
    assert text == "busbw 365 GB/s, floor 460 (H100 SXM 80 GB with NVLS)"


def test_a_floor_of_gpus_that_are_held_below_their_clock_says_so() -> None:
    entry = H100["floor"]["bf16_tflops"] | {"value": 470.4, "limit": "at 70% of its clock"}  # type: ignore[index]
    wanted = expectation(1, references=References({"h100": H100 | {"floor": {"bf16_tflops": entry}}}))
    result = node_result(one_test("gpu_matmul", State.PASS, measurement(value=460.0)))
    (text,) = below_floor(judge_node("gpu01", result, wanted, HEADLINES))
    assert text == "bf16 460 TFLOP/s on GPU 0, floor 470 (H100 SXM 80 GB at 70% of its clock)"


def test_gpus_of_one_model_with_two_pci_ids_have_its_reference() -> None:
    result = node_result(one_test("gpu_all_reduce", State.PASS, busbw(300.0, 16 << 30, 8)), gpus=8)
    gpus = (dataclasses.replace(result.gpus[0], pci_id="2331"), *result.gpus[1:])
    model = H100 | {"pci_ids": ["2330", "2331"]}
    wanted = expectation(8, references=References({"h100": model}))
    node = judge_node("gpu01", dataclasses.replace(result, gpus=gpus), wanted, HEADLINES)
    assert codes(node) == ["below-floor"]


@each(
    ([measurement(value=735.0), measurement(value=731.4, device=1)], "gpu_matmul", "731 TFLOP/s"),
    ([busbw(20.0, 64, 8), busbw(481.2, 1 << 30, 8)], "gpu_all_reduce", "481 GB/s"),
    ([], "gpu_matmul", ""),
)
def test_the_headline_is_the_worst_gpu_or_the_largest_size(
    numbers: list[Measurement], test: str, headline: str
) -> None:
    assert verdict(one_test(test, State.PASS, *numbers)).tests[0].headline == headline


@each((612.4, "612"), (25.94, "25.9"), (0.554, "0.55"))
def test_a_number_is_shown_with_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_gpus_of_a_node_are_named_as_in_the_table() -> None:
    assert verdict(one_test("health")).gpus == "2x H100 SXM 80 GB"


def test_an_empty_fleet_has_not_passed() -> None:
    fleet = judge_fleet([])
    assert (fleet.state, fleet.exit_status) == (State.NOT_RUN, EXIT_ENVIRONMENT)


def test_the_sentence_names_the_nodes_that_did_not_pass_and_what_ran_nowhere() -> None:
    fleet = judge_fleet(
        [
            verdict(one_test("health"), not_run("gpu_matmul")),
            judge_node("gpu02", None, Expectation(not_run="unreachable"), HEADLINES),
        ]
    )
    assert fleet.sentence == (
        "Verdict: not-run. 1 of 2 nodes passed; 1 of 2 nodes not run (gpu02). GPUs: 2 of 2 pass (without "
        "one computation on those of gpu01). Not run on any node: gpu_matmul."
    )


def test_gpus_that_have_computed_pass_without_a_remark() -> None:
    fleet = judge_fleet([verdict(one_test("health"), one_test("gpu_matmul"))])
    assert "computation" not in fleet.sentence


def nodes(name: str = "gpu01") -> st.SearchStrategy[NodeVerdict]:
    """Verdicts on nodes of every kind, by way of judge_node."""
    tests = st.lists(
        st.builds(
            one_test,
            st.sampled_from(["health", "cpu_matmul", "gpu_matmul"]),
            st.sampled_from(State),
        ),
        unique_by=lambda test: test.id,
    )
    required = st.lists(st.sampled_from(["health", "gpu_matmul"]), unique=True).map(tuple)
    results: st.SearchStrategy[NodeResult | None] = st.none() | tests.map(
        lambda t: node_result(*t, name=name)
    )
    return st.builds(
        lambda result, wanted, strict: judge_node(
            name, result, expectation(required_tests=wanted), HEADLINES, fail_on_degraded=strict
        ),
        results,
        required,
        st.booleans(),
    )


fleets = st.lists(st.integers(0, 99), unique=True, max_size=6).flatmap(
    lambda numbers: st.tuples(*(nodes(f"gpu{number:02}") for number in numbers))
)


@given(fleets, st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(fleet: tuple[NodeVerdict, ...], random: Any) -> None:
    shuffled = list(fleet)
    random.shuffle(shuffled)
    assert judge_fleet(shuffled) == judge_fleet(fleet)


@given(fleets)
def test_one_more_healthy_node_changes_no_verdict(
    fleet: tuple[NodeVerdict, ...],
) -> None:
    healthy = dataclasses.replace(verdict(one_test("health")), node="gpu-healthy")
    more = judge_fleet([*fleet, healthy])
    if fleet:
        assert (more.state, more.exit_status) == (judge_fleet(fleet).state, judge_fleet(fleet).exit_status)
    else:
        assert (more.state, more.exit_status) == (State.PASS, EXIT_PASS)


@given(fleets)
def test_a_fleet_passes_only_if_every_node_did(fleet: tuple[NodeVerdict, ...]) -> None:
    judged = judge_fleet(fleet)
    assert (judged.state is State.PASS) == (bool(fleet) and all(node.state is State.PASS for node in fleet))
    if judged.exit_status == EXIT_PASS:
        assert fleet
        assert {node.state for node in fleet} <= {State.PASS, State.DEGRADED}


@given(nodes())
def test_a_node_that_passes_ran_something_and_everything_required(node: NodeVerdict) -> None:
    if node.exit_status == EXIT_PASS:
        assert any(test.state is not State.NOT_RUN for test in node.tests)
        assert all(test.state is not State.NOT_RUN for test in node.tests if test.required)
    else:
        assert node.state in {State.FAIL, State.NOT_RUN, State.DEGRADED}


@given(st.floats(min_value=1, max_value=2000), st.floats(min_value=0, max_value=2000))
def test_a_faster_gpu_is_never_judged_worse(value: float, more: float) -> None:
    states = [
        verdict(one_test("gpu_matmul", State.PASS, measurement(value=number))).state
        for number in (value, value + more)
    ]
    assert not (states[0] is State.PASS and states[1] is State.FAIL)
