"""The verdict on each GPU: all four states, and no GPU that passes because nobody looked."""

import dataclasses

from tests.unit.each import each
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model.contract import Finding, State, TestResult
from validation.model.expectations import References
from validation.report import fleet_report
from validation.verdict.gpus import counts, unknown_models
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_FAIL, judge_fleet, judge_node
from validation.verdict.verdicts import GpuVerdict, NodeVerdict

BOTH = (measurement(value=730.0), measurement(value=730.0, device=1))
RIGHT = one_test("gpu_matmul", State.PASS, *BOTH)
BROKEN = Finding("ecc-uncorrected", State.FAIL, "GPU 1: 3 uncorrectable errors", "replace it", 1)
WORN = Finding("persistence-off", State.DEGRADED, "GPU 1: persistence mode is off", "switch it on", 1)
HANGS = Finding("driver-timeout", State.FAIL, "nvidia-smi gave no answer", "reboot the node")
ALL = Finding("wrong-result", State.FAIL, "all_reduce: 1 % of the numbers are wrong")


def judged(*tests: TestResult, required: tuple[str, ...] = ()) -> NodeVerdict:
    wanted = expectation(required_tests=required)
    return judge_node("gpu01", node_result(*tests, gpus=2), wanted, {"gpu_matmul": ("bf16_tflops",)})


def states(node: NodeVerdict) -> list[str]:
    return [str(gpu.state) for gpu in node.gpu_verdicts]


@each(
    ([RIGHT], ["pass", "pass"]),
    ([one_test("health")], ["pass", "pass"]),
    ([RIGHT, one_test("health", State.FAIL, findings=(BROKEN,))], ["pass", "fail"]),
    ([RIGHT, one_test("health", State.DEGRADED, findings=(WORN,))], ["pass", "degraded"]),
    ([one_test("health", State.FAIL, findings=(WORN, BROKEN))], ["pass", "fail"]),
    ([one_test("gpu_matmul", State.PASS, measurement(value=612.0), BOTH[1])], ["fail", "pass"]),
    ([one_test("gpu_matmul", State.PASS, BOTH[0])], ["pass", "fail"]),  # nobody measured GPU 1
    ([one_test("cpu_matmul")], ["not-run", "not-run"]),
    ([one_test("cpu_all_reduce", State.FAIL, findings=(ALL,))], ["not-run", "not-run"]),
    ([one_test("gpu_matmul", State.NOT_RUN, reason="no torch")], ["not-run", "not-run"]),
    ([RIGHT, one_test("gpu_all_reduce", State.FAIL, findings=(ALL,))], ["degraded", "degraded"]),
    ([RIGHT, one_test("gpu_container", State.FAIL, findings=(ALL,))], ["pass", "pass"]),
    ([one_test("gpu_matmul", State.FAIL, *BOTH)], ["degraded", "degraded"]),
    ([one_test("health", State.FAIL, findings=(HANGS,))], ["not-run", "not-run"]),
    ([RIGHT, one_test("health", State.FAIL, findings=(HANGS,))], ["degraded", "degraded"]),
    ([RIGHT, one_test("health", State.FAIL, findings=(HANGS, BROKEN))], ["degraded", "fail"]),
)
def test_a_gpu_is_as_bad_as_what_was_found_on_it(tests: list[TestResult], expected: list[str]) -> None:
    assert states(judged(*tests)) == expected


@each("health", "gpu_transfer")
def test_a_gpu_has_not_passed_without_what_is_required_of_gpus(test: str) -> None:
    assert states(judged(RIGHT, required=(test,))) == ["not-run", "not-run"]


def test_a_gpu_that_could_not_be_measured_takes_no_other_out_of_the_verdict() -> None:
    half = one_test("gpu_matmul", State.NOT_RUN, BOTH[0], reason="GPU 1: busy")
    node = judged(half, one_test("health"), required=("gpu_matmul",))
    assert (states(node), node.exit_status) == (["pass", "not-run"], EXIT_ENVIRONMENT)
    slow = one_test("gpu_matmul", State.NOT_RUN, measurement(value=300.0), reason="GPU 1: busy")
    node = judged(slow, one_test("health"), required=("gpu_matmul",))
    assert (states(node), node.exit_status) == (["fail", "not-run"], EXIT_FAIL)
    impossible = one_test("gpu_matmul", State.NOT_RUN, measurement(value=-1.0), reason="GPU 1: busy")
    assert states(judged(impossible, required=("gpu_matmul",))) == ["fail", "not-run"]


def test_what_is_required_of_the_cpu_is_no_matter_of_a_gpu() -> None:
    assert states(judged(RIGHT, required=("cpu_matmul",))) == ["pass", "pass"]


def test_a_number_of_a_gpu_that_is_not_there_fails_and_blames_none_that_is() -> None:
    node = judged(one_test("gpu_matmul", State.PASS, *BOTH, measurement(device=7)))
    assert states(node) == ["degraded", "degraded"]
    assert "on GPU 7, which this node has not: nvidia-smi lists 2 GPUs" in node.reasons[0]


def test_a_gpu_is_named_with_what_a_ticket_needs() -> None:
    node = judged(RIGHT, one_test("health", State.FAIL, findings=(BROKEN, WORN)))
    (_, broken) = node.gpu_verdicts
    assert broken.findings == ("ecc-uncorrected", "persistence-off")
    fleet = judge_fleet([node])
    line = "gpu01 GPU 1: fail (ecc-uncorrected, persistence-off); H100 SXM 80 GB at 0000:01:00.0, GPU-1"
    text = fleet_report.text(fleet)
    assert line in text
    assert "gpu01 GPU 0" not in text
    assert fleet.sentence.endswith("GPUs: 1 of 2 pass, 1 fail (gpu01: 1).")


def test_the_gpus_of_a_fleet_are_counted_by_state_and_named() -> None:
    def gpus(*states: State) -> list[GpuVerdict]:
        return [GpuVerdict(i, f"GPU-{i}", "X", "0000:00:00.0", "X", state) for i, state in enumerate(states)]

    fleet = [("a", gpus(State.PASS, State.FAIL, State.FAIL)), ("b", gpus(State.FAIL, State.DEGRADED))]
    fleet.append(("c", gpus(State.NOT_RUN)))
    expected = "GPUs: 1 of 6 pass, 1 degraded (b: 1), 3 fail (a: 1, 2; b: 0), 1 not-run (c: 0)."
    assert counts(fleet) == expected
    assert counts([]) == ""
    # It is the last line of a run, also of one over thousands of nodes.
    many = [(f"n{number}", gpus(State.FAIL)) for number in range(9)]
    named = "; ".join(f"n{number}: 0" for number in range(8))
    assert counts(many) == f"GPUs: 0 of 9 pass, 9 fail ({named} and 1 more)."


def test_a_model_that_the_table_does_not_know_is_in_the_verdict_itself() -> None:
    unknown = dataclasses.replace(expectation(), references=References())
    nodes = [
        judge_node(name, dataclasses.replace(node_result(RIGHT), node=name), unknown, {}) for name in "ab"
    ]
    assert judge_fleet(nodes).sentence.endswith(
        "No reference for NVIDIA H100 80GB HBM3 (on a, b): compared only with the fleet and its own past."
    )
    assert unknown_models([("a", judged(RIGHT).gpu_verdicts)]) == ""


@each(("it fell over", "fail: it fell over"), ("", "fail: its result does not say why"))
def test_no_test_fails_without_a_sentence(reason: str, said: str) -> None:
    node = judged(one_test("gpu_matmul", State.FAIL, *BOTH, reason=reason))
    assert node.reasons == (f"gpu_matmul: {said}",)


def test_a_node_that_was_not_measured_is_not_judged_by_a_result_that_lies_around() -> None:
    node = judge_node("gpu01", node_result(RIGHT), expectation(not_run="refused: disk full"), {})
    assert (node.state, node.exit_status, node.reasons) == (State.NOT_RUN, 2, ("refused: disk full",))
