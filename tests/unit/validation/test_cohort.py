"""The fleet as a judge: who stands out among equals, who has none, and what holds for every fleet."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.each import each
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import Finding, NodeResult, State
from validation.verdict import cohort
from validation.verdict.baseline import Comparison

Said = dict[tuple[str, str], Comparison]


def fleet_of(*values: float, test: str = "gpu_matmul", metric: str = "bf16_tflops") -> dict[str, NodeResult]:
    """One node with one GPU for each value."""
    device = 0 if test.startswith("gpu_") else None
    return {
        f"gpu{number:02}": node_result(
            one_test(test, State.PASS, measurement(metric, value, device=device)),
            name=f"gpu{number:02}",
            gpus=1,
        )
        for number, value in enumerate(values)
    }


def changed(result: NodeResult, **changes: Any) -> NodeResult:
    """The result with its only measurement changed."""
    (test,) = result.tests
    (one,) = test.measurements
    return dataclasses.replace(
        result,
        tests=(dataclasses.replace(test, measurements=(dataclasses.replace(one, **changes),)),),
    )


def compared(results: dict[str, NodeResult]) -> Said:
    """What is said of each test of a fleet."""
    return {
        (node, test): comparison
        for node, tests in cohort.compare(results).items()
        for test, comparison in tests.items()
    }


def findings(said: Said) -> dict[str, Finding]:
    """The only finding of each node that has one."""
    return {node: comparison.findings[0] for (node, _), comparison in said.items() if comparison.findings}


@each((612.0, State.FAIL), (690.0, State.DEGRADED))
def test_a_gpu_below_its_equals_is_named_with_the_reason(value: float, state: State) -> None:
    found = findings(compared(fleet_of(730, 731, 728, 735, value)))
    assert found.keys() == {"gpu04"}
    assert (found["gpu04"].code, found["gpu04"].state) == ("below-fleet", state)
    assert found["gpu04"].text == (
        f"bf16 {value:.0f} TFLOP/s on GPU 0, {(730 - value) / 730:.0%} below the median of 5 equal GPUs "
        "(730 TFLOP/s)"
    )


def test_what_telemetry_saw_stands_beside_a_low_number() -> None:
    results = fleet_of(730, 731, 728, 735, 612)
    (test,) = results["gpu04"].tests
    telemetry = [{"device": 0, "event_reason_shares": {"sw_power_cap": 0.38}}]
    test = dataclasses.replace(test, details={"telemetry": telemetry})
    results["gpu04"] = dataclasses.replace(results["gpu04"], tests=(test,))
    (finding,) = findings(compared(results)).values()
    assert finding.text.endswith("; sw power cap was active 38% of the time")


def test_a_node_that_claims_many_gpus_is_not_the_fleet() -> None:
    results = fleet_of(*[730] * 20)
    numbers = [measurement("bf16_tflops", 2000, device=gpu) for gpu in range(64)]
    results["evil"] = node_result(one_test("gpu_matmul", State.PASS, *numbers), name="evil", gpus=64)
    assert findings(compared(results)) == {}


def test_a_fast_gpu_is_no_fault() -> None:
    assert findings(compared(fleet_of(730, 731, 728, 735, 990))) == {}


def test_a_hair_below_equals_that_are_all_alike_is_no_fault() -> None:
    assert findings(compared(fleet_of(730, 730, 730, 730, 712))) == {}


def test_a_wide_scatter_excuses_what_a_narrow_one_does_not() -> None:
    said = compared(fleet_of(640, 690, 730, 770, 820, 660))
    assert findings(said) == {}
    assert all("told from chance" in " ".join(comparison.notes) for comparison in said.values())
    assert findings(compared(fleet_of(728, 729, 730, 731, 732, 660))).keys() == {"gpu05"}


def test_a_noisy_number_blames_nobody() -> None:
    results = fleet_of(730, 731, 728, 735, 660)
    results["gpu04"] = changed(results["gpu04"], spread=0.3)
    said = compared(results)
    assert findings(said) == {}
    (note,) = said["gpu04", "gpu_matmul"].notes
    assert note.startswith("bf16 660 TFLOP/s on GPU 0, 10% below the median of 5 equal GPUs")
    assert note.endswith("; excused by its own noise")


@each((600.0, State.DEGRADED), (250.0, State.FAIL))
def test_the_noise_of_a_number_that_would_fail_excuses_it_only_to_degraded(
    value: float, state: State
) -> None:
    results = fleet_of(730, 731, 728, 735, value)
    results["gpu04"] = changed(results["gpu04"], spread=0.3, attempts=3)
    (finding,) = findings(compared(results)).values()
    assert finding.state is state
    assert finding.text.endswith("; its runs spread by 30%, measured 3 times")


def test_a_lower_power_limit_is_another_kind_of_gpu() -> None:
    results = fleet_of(730, 731, 728, 735, 500)
    for name, result in results.items():
        limit = 500.0 if name == "gpu04" else 700.0
        health = one_test("health", details={"gpus": [{"device": 0, "power_limit_w": limit}]})
        results[name] = dataclasses.replace(result, tests=(health, *result.tests))
    assert findings(compared(results)) == {}


def test_fewer_than_four_are_not_compared_and_that_is_said() -> None:
    said = compared(fleet_of(730, 731, 100))
    assert findings(said) == {}
    assert {note for comparison in said.values() for note in comparison.notes} == {
        "not compared with the fleet: fewer than 4 GPUs of the same kind"
    }


def test_gpus_of_one_node_are_equals_too() -> None:
    values = [730, 731, 728, 735, 731, 612, 729, 733]
    numbers = (measurement(value=value, device=device) for device, value in enumerate(values))
    result = node_result(one_test("gpu_matmul", State.PASS, *numbers), gpus=8)
    (finding,) = compared({"gpu01": result})["gpu01", "gpu_matmul"].findings
    assert finding.device == 5
    # Also where there is no fleet, and then of the rest nothing is said.
    of_cpu = one_test("cpu_matmul", State.PASS, measurement("fp32_gflops", 100.0, device=None))
    alone = cohort.among_its_own(dataclasses.replace(result, tests=(*result.tests, of_cpu)))
    assert alone == {"gpu_matmul": Comparison((finding,)), "cpu_matmul": Comparison()}


@each("model", "link", "driver", "torch", "method", "plan", "conditions")
def test_only_equals_compare(other: str) -> None:
    results = fleet_of(730, 731, 728, 735, 300)
    result = results["gpu04"]
    (gpu,), (test,) = result.gpus, result.tests
    results["gpu04"] = {
        "model": dataclasses.replace(result, gpus=(dataclasses.replace(gpu, pci_id="20b2"),)),
        "link": dataclasses.replace(result, gpus=(dataclasses.replace(gpu, pcie_width_max=8),)),
        "driver": dataclasses.replace(
            result, machine=dataclasses.replace(result.machine, driver="570.124.06")
        ),
        "torch": dataclasses.replace(result, machine=dataclasses.replace(result.machine, torch="2.9.0")),
        "method": dataclasses.replace(result, tests=(dataclasses.replace(test, method=2),)),
        "plan": dataclasses.replace(result, plan="standard"),
        "conditions": changed(result, conditions={"m": 4096}),
    }[other]
    said = compared(results)
    assert findings(said) == {}
    assert said["gpu04", "gpu_matmul"].notes
    assert not said["gpu00", "gpu_matmul"].notes


def test_a_slow_cpu_is_noted_and_blamed_on_nobody() -> None:
    said = compared(fleet_of(100, 101, 99, 102, 40, test="cpu_matmul", metric="fp32_gflops"))
    assert findings(said) == {}
    assert said["gpu04", "cpu_matmul"].notes == (
        "fp32 40.0 GFLOP/s, 60% below the median of 5 equal nodes (100 GFLOP/s)",
    )


healthy = st.floats(min_value=720, max_value=740)
anything = st.floats(min_value=1, max_value=2000)


@given(st.lists(anything, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(values: list[float], random: Any) -> None:
    results = list(fleet_of(*values).items())
    said = compared(dict(results))
    random.shuffle(results)
    assert compared(dict(results)) == said


@given(st.lists(healthy, min_size=1, max_size=12), st.lists(healthy, max_size=12))
def test_more_healthy_nodes_make_no_healthy_one_bad(values: list[float], more: list[float]) -> None:
    assert findings(compared(fleet_of(*values))) == {}
    assert findings(compared(fleet_of(*values, *more))) == {}


@given(st.lists(healthy, min_size=5, max_size=15), st.lists(st.floats(1, 500), max_size=7))
def test_while_broken_ones_are_a_minority_they_are_found_and_only_they(
    values: list[float], broken: list[float]
) -> None:
    broken = broken[: (len(values) - 1) // 3]
    found = findings(compared(fleet_of(*values, *broken)))
    assert found.keys() == {f"gpu{number:02}" for number in range(len(values), len(values) + len(broken))}


@given(st.lists(anything, min_size=4, max_size=12), st.sampled_from([1e-3, 0.5, 8.0, 1e3]))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    states = {node: finding.state for node, finding in findings(compared(fleet_of(*values))).items()}
    scaled = fleet_of(*(value * factor for value in values))
    # Values at a limit may fall to either side of it when they are rounded.
    near = any(
        abs(deficit - limit) < 1e-9
        for value in values
        for deficit in [(sorted(values)[len(values) // 2] - value) / sorted(values)[len(values) // 2]]
        for limit in (cohort.JUDGE.gpu.degraded, cohort.JUDGE.gpu.fail)
        if limit is not None
    )
    if not near:
        assert {node: f.state for node, f in findings(compared(scaled)).items()} == states
