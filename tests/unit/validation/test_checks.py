"""The checks on a scripted backend: rates, wrong results, what a device lacks, and which rank is to blame."""

import contextlib
import dataclasses
import fcntl
import itertools
import math
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.each import each
from tests.unit.validation.samples import H100, collective_request, expectation, gpu_xml, node, smi_xml
from tests.unit.validation.scripted import ScriptedBackend, ScriptedOperation
from validation.backends import sampling
from validation.checks import collectives, copy, launch, loading, matmul, memory
from validation.checks.check import not_run
from validation.checks.measured import Telemetry, failures, result, watch
from validation.checks.node import Node
from validation.checks.registry import CHECKS
from validation.model import shapes
from validation.model.contract import Digest, Finding, GpuIdentity, MachineAction, Measured, State
from validation.model.cuda_errors import finding_of
from validation.model.expectations import References
from validation.model.not_run import NotRunError, out_of_memory
from validation.model.plans import PLANS, Timing
from validation.model.quantities import NOISY_SPREAD
from validation.model.shapes import MatmulShape
from validation.probes.gpu_samples import Sample, parse_samples, summary
from validation.probes.machine import PciGpu, Torch
from validation.probes.nvidia_smi import NvidiaSmiError, Report
from validation.probes.topology import PciePort
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome, run_children

TIMING = {"warm_up_s": 1.0, "measure_s": 5.0, "least": 5, "most": 1000}
STAGES: list[str] = []


def matmul_request(**changes: Any) -> Request:
    """As a request comes out of a pipe: a shape is a list."""
    products = {dtype: [1000, 500, 2000] for dtype in changes.pop("dtypes", ["fp32", "bf16"])}
    parameters = {"products": products, "timing": TIMING, "unit": "gflops", "scale": 1e9}
    return Request("GPU 3", "", "cuda", device=3, parameters=parameters | changes)


def copy_request(**changes: Any) -> Request:
    parameters = {"size_bytes": 1_000_000_000, "directions": ["h2d", "d2h"], "timing": TIMING}
    return Request("GPU 3", "", "cuda", device=3, parameters=parameters | changes)


def outcome(
    name: str = "rank 0", ending: Ending = Ending.DONE, stage: str = "leaving", **more: Any
) -> ProcessOutcome:
    asked = Request(name, "", "cuda", parameters={"collectives": ["all_reduce"], "sizes_bytes": [1 << 20]})
    problem = "" if ending is Ending.DONE else f"{name} {ending}"
    usual: dict[str, Any] = {"measured": Measured(), "problem": problem, "ended_at": 1.0, "silent_s": 60.0}
    return ProcessOutcome(asked, ending, stage=stage, **usual | more)


def test_a_matmul_rate_is_two_m_n_k_over_the_median_time() -> None:
    measured = matmul.multiply(ScriptedBackend(run_seconds=[0.5]), matmul_request(), STAGES.append)
    assert [(m.name, m.value, m.device) for m in measured.measurements] == [
        ("fp32_gflops", 4.0, 3),
        ("fp32_peak_gflops", 4.0, 3),
        ("bf16_gflops", 4.0, 3),
        ("bf16_peak_gflops", 4.0, 3),
    ]
    assert measured.measurements[0].conditions == {"m": 1000, "n": 500, "k": 2000, "dtype": "fp32"}
    assert measured.findings == ()


@each(math.nan, math.inf, 0.1)
def test_a_wrong_product_is_a_failure_that_names_the_gpu(wrong: float) -> None:
    measured = matmul.multiply(ScriptedBackend(wrong=wrong), matmul_request(dtypes=["fp32"]), STAGES.append)
    (finding,) = measured.findings
    assert (finding.code, finding.state, finding.device) == ("wrong-result", State.FAIL, 3)
    assert finding.text.startswith("GPU 3: the fp32 product")


def test_the_fastest_shape_is_measured_cold_beside_the_long_one_and_for_its_own_time() -> None:
    backend = ScriptedBackend(run_seconds=[0.5])
    products = {"bf16": [8, 8, 8], "bf16_best": [16, 16, 32], "fp8_best": [16, 16, 16]}
    brief = TIMING | {"warm_up_s": 0.5, "measure_s": 1.0}
    found = matmul.multiply(backend, matmul_request(products=products, best_timing=brief), STAGES.append)
    assert [call for call in backend.calls if "matmul" in call] == [
        "matmul bf16 8 x 8 x 8",
        "matmul bf16 16 x 16 x 32 cold",
    ]
    assert [(m.name, m.samples) for m in found.measurements] == [
        ("bf16_gflops", 10),
        ("bf16_peak_gflops", 1),
        ("bf16_best_gflops", 5),
    ]
    assert found.measurements[2].conditions == {
        "m": 16,
        "n": 16,
        "k": 32,
        "dtype": "bf16",
        "cache": "emptied",
    }
    assert found.details == {"not_supported": ["fp8_best"]}


class ByShape(ScriptedBackend):
    """A device that is the faster the wider a product is, up to a limit."""

    def matmul(self, dtype: str, shape: MatmulShape, *, cold: bool = False) -> ScriptedOperation:
        made = super().matmul(dtype, shape, cold=cold)
        return dataclasses.replace(made, takes=shape.flop / min(shape.n, 64) / 1e9)


def test_the_fastest_of_some_shapes_is_found_measured_and_kept_with_what_each_one_reached() -> None:
    backend = ByShape()
    tried = [[16, 16, 16], [16, 64, 16], [16, 128, 16], [16, 32, 16]]
    asked = matmul_request(
        products={"bf16": [8, 8, 8]},
        search={"bf16": tried, "fp8": tried},
        search_timing=TIMING,
        best_timing=TIMING,
        compare_bits=True,
    )
    found = matmul.multiply(backend, asked, STAGES.append)
    # Two are as fast: the first of them. A format that the device lacks is not searched.
    assert [m.name for m in found.measurements] == ["bf16_gflops", "bf16_peak_gflops", "bf16_found_gflops"]
    assert found.measurements[2].conditions == {
        **{"m": 16, "n": 64, "k": 16},
        **{"dtype": "bf16", "cache": "emptied"},
    }
    assert found.details["searched"] == {
        "bf16": {"16 x 16 x 16": 16.0, "16 x 64 x 16": 64.0, "16 x 128 x 16": 64.0, "16 x 32 x 16": 32.0}
    }
    # Bits are compared of the same shape only.
    assert [(one.name, one.conditions["n"]) for one in found.digests] == [("bf16", 8), ("bf16_found", 64)]


def test_a_search_needs_the_memory_of_its_largest_shape() -> None:
    asked = matmul_request(products={"bf16": [8, 8, 8]}, search={"bf16": [[4096, 4096, 4096]]})
    with pytest.raises(NotRunError, match="free memory needed"):
        matmul.multiply(ScriptedBackend(free=matmul.COLD_BYTES), asked, STAGES.append)


@each(20, 46, 113, 114, 132, 148, None)
def test_shapes_that_are_tried_are_few_suit_every_format_and_fill_the_chip(sms: int | None) -> None:
    row = H100 | {"sm_count": {"value": sms}} if sms else {k: v for k, v in H100.items() if k != "sm_count"}
    tried = shapes.candidates(References({"h100": row}, {}, SHAPES), "2330", "bf16")
    assert tried[:2] == [(64, 64, 64), (1024, 2048, 512)]
    assert len(tried) <= 11
    assert all(edge % 16 == 0 for shape in tried for edge in shape)
    waves = [shape.m // 128 * (shape.n // 256) / (sms or 128) for shape in tried[2:]]
    # No wave leaves more than a tenth of the SMs idle, and none begins another wave for a few tiles.
    assert all(0.9 <= wave / math.ceil(wave) <= 1 for wave in waves), waves
    assert all(1 / 16 <= shape.m / shape.n <= 1 for shape in tried[2:]), tried


SHAPES = {
    "hopper": {
        "matmul": {
            "sustained": {"any": {"shape": [1024, 2048, 512]}, "fp32": {"shape": [512, 512, 512]}},
            "best": {"bf16": {"shape": [64, 64, 64]}, "fp8": {"shape": [32, 32, 32]}},
        }
    }
}


def multiplied(plan: str, references: References, pci_id: str = "2330") -> dict[str, Any]:
    gpu = GpuIdentity(0, "a GPU", "GPU-1", "", pci_id)
    asked = node(plan=PLANS[plan], expectation=expectation(references=references))
    return matmul.multiplied(asked, gpu, ("fp32", "bf16"), best=True)


def test_a_gpu_multiplies_the_shapes_of_its_architecture_and_the_fastest_only_beyond_quick() -> None:
    references = References({"h100": H100}, {}, SHAPES)
    long = {"fp32": (512, 512, 512), "bf16": (1024, 2048, 512)}
    quick = multiplied("quick", references)
    assert (quick["products"], quick["shapes_of"]) == (long, "architecture hopper")
    best = {"bf16_best": (64, 64, 64), "fp8_best": (32, 32, 32)}
    assert multiplied("standard", references)["products"] == long | best


def test_a_model_with_a_best_value_of_its_own_is_measured_with_its_shape() -> None:
    own = H100 | {"measured": {"bf16_best_tflops": {"value": 1, "source": "a", "shape": [16, 32, 48]}}}
    products = multiplied("standard", References({"h100": own}, {}, SHAPES))["products"]
    assert (products["bf16_best"], products["fp8_best"]) == ((16, 32, 48), (32, 32, 32))


@each(("abcd", SHAPES), ("2330", {}), ("2330", {"ada": SHAPES["hopper"]}))
def test_a_gpu_without_an_architecture_in_the_table_multiplies_the_default_and_says_so(
    pci_id: str, architectures: dict[str, Any]
) -> None:
    found = multiplied("standard", References({"h100": H100}, {}, architectures), pci_id)
    assert found["products"] == {"fp32": (8192, 8192, 8192), "bf16": (8192, 8192, 8192)}
    assert found["shapes_of"].startswith("the default")


def test_rounding_of_a_format_is_no_failure_in_that_format() -> None:
    backend = ScriptedBackend(wrong=4e-3)
    measured = matmul.multiply(backend, matmul_request(), STAGES.append)
    assert ["fp32" in finding.text for finding in measured.findings] == [True]


def test_a_format_that_the_device_does_not_have_is_left_out_and_said() -> None:
    backend = ScriptedBackend(formats=("fp32",))
    measured = matmul.multiply(backend, matmul_request(), STAGES.append)
    assert [m.name for m in measured.measurements] == ["fp32_gflops", "fp32_peak_gflops"]
    assert measured.details == {"not_supported": ["bf16"]}


@each(
    lambda b: matmul.multiply(b, matmul_request(), STAGES.append),
    lambda b: copy.transfer(b, copy_request(), STAGES.append),
    lambda b: memory.stream(b, memory_request(), STAGES.append),
    lambda b: memory.send(b, memory_request(), STAGES.append),
)
def test_too_little_memory_is_not_run_with_both_numbers(run: Any) -> None:
    with pytest.raises(NotRunError, match=r"GB of free memory needed, 0\.0 GB found"):
        run(ScriptedBackend(free=1000))


def test_a_transfer_counts_each_byte_once_and_a_local_copy_reads_and_writes() -> None:
    backend = ScriptedBackend(run_seconds=[0.25])
    transferred = copy.transfer(backend, copy_request(), STAGES.append)
    assert [(m.name, m.value) for m in transferred.measurements] == [
        ("h2d_pinned_gb_s", 4.0),
        ("d2h_pinned_gb_s", 4.0),
    ]
    local = copy.transfer(backend, copy_request(directions=["local"]), STAGES.append)
    assert [(m.name, m.value) for m in local.measurements] == [("copy_gb_s", 8.0)]


@each(math.nan, 1e-9)
def test_a_single_changed_element_of_a_copy_is_a_failure(wrong: float) -> None:
    measured = copy.transfer(ScriptedBackend(wrong=wrong), copy_request(directions=["h2d"]), STAGES.append)
    assert [finding.code for finding in measured.findings] == ["wrong-result"]


def test_a_gpu_that_waited_for_one_that_hung_is_not_to_blame_unless_all_only_waited() -> None:
    waiting = outcome("GPU 2", Ending.HUNG, launch.WAITING)
    outcomes = [outcome("GPU 0"), outcome("GPU 1", Ending.HUNG, "copying h2d"), waiting]
    assert [finding.text for finding in failures(launch.without_waiting(outcomes))] == ["GPU 1 hung"]
    assert launch.without_waiting([waiting]) == [waiting]


def alone(lock: Path, turns: int, gpu: int = 0) -> Request:
    """A process that measures once it has the lock; the file has a byte for each thing that one has done."""
    measure = "tests.unit.validation.children:measure_alone"
    return Request(f"GPU {gpu}", measure, "cpu", device=gpu, parameters={"lock": str(lock), "turns": turns})


@pytest.mark.component
@pytest.mark.parametrize(("turns", "ending", "marks"), [(2, Ending.DONE, 4), (3, Ending.HUNG, 2)])
def test_no_gpu_measures_before_all_are_ready(turns: int, ending: Ending, marks: int, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    asked = [alone(lock, turns, gpu) for gpu in range(2)]
    found = run_children(asked, 60.0 if ending is Ending.DONE else 5.0)
    assert {one.ending for one in found} == {ending}
    assert lock.stat().st_size == marks


@pytest.mark.component
@pytest.mark.parametrize(
    ("of_another", "ending"), [("ready", Ending.HUNG), ("ready, has measured", Ending.DONE)]
)
def test_no_result_is_checked_while_another_gpu_measures(
    of_another: str, ending: Ending, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    lock.write_bytes(b"." * len(of_another.split(",")))
    (found,) = run_children([alone(lock, 2)], 60.0 if ending is Ending.DONE else 10.0)
    assert (found.ending, found.stage) == (ending, launch.WAITING)


@pytest.mark.component
def test_gpus_measure_one_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (waiting,) = run_children([alone(lock, 1)], 5.0)
    assert (waiting.ending, waiting.stage) == (Ending.HUNG, launch.WAITING)
    (done,) = run_children([alone(lock, 1)], 60.0)
    assert done.ending is Ending.DONE


def test_all_ranks_run_a_collective_equally_often() -> None:
    class Agreed(ScriptedBackend):
        def highest(self, value: float) -> float:
            return 0.001 if value > 0 else value

    slow, fast = Agreed(run_seconds=[9.0]), Agreed(run_seconds=[0.001])
    for rank, backend in enumerate((slow, fast)):
        kinds = ["all_reduce", "all_gather"]
        asked = collective_request(rank=rank, collectives=kinds, sizes_bytes=[64], runs=7, measure_s=1000.0)
        collectives.reduce(backend, asked, STAGES.append)
    assert slow.calls[1:] == fast.calls[1:]
    assert fast.calls == [
        "join 1 of 2 at s for 9 s",
        *("all_reduce 64", *["seconds 1"] * 3, "seconds 7"),
        *("all_gather 64", *["seconds 1"] * 3, "seconds 7"),
        "barrier",
    ]


def test_a_slow_collective_tells_between_its_runs_that_it_goes_on() -> None:
    asked = collective_request(sizes_bytes=[64], runs=6, measure_s=1000.0)
    told: list[str] = []
    collectives.reduce(ScriptedBackend(run_seconds=[2.4]), asked, told.append)
    measuring = [stage for stage in told if stage.startswith("measuring")]
    assert len(measuring) > 6 * 2.4 / (collectives.PIECE_S + 2.4)


def test_sizes_for_which_a_slow_way_between_ranks_leaves_no_time_are_left_out() -> None:
    asked = collective_request(sizes_bytes=[64, 640], runs=6, measure_s=100.0)
    slow = collectives.reduce(ScriptedBackend(run_seconds=[5.0]), asked, STAGES.append)
    assert (list(slow.details["seconds"]), len(slow.details["left_out"])) == (["all_reduce 64"], 1)
    fast = collectives.reduce(ScriptedBackend(run_seconds=[0.001]), asked, STAGES.append)
    assert list(fast.details["seconds"]) == ["all_reduce 64", "all_reduce 640"]


def test_sizes_that_were_left_out_are_a_finding_beside_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    details = {
        "seconds": {"all_reduce 64": [0.5] * 5},
        "attempts": {"all_reduce 64": 1},
        "left_out": ["a", "b"],
    }

    def slow(requests: list[Request], *_: Any, **__: Any) -> list[ProcessOutcome]:
        return [
            ProcessOutcome(one, Ending.DONE, Measured(details=details), "", "leaving", 1.0)
            for one in requests
        ]

    monkeypatch.setattr(collectives, "run_children", slow)
    found = CHECKS["cpu_all_reduce"].run(node())
    assert [(one.code, one.state) for one in found.findings] == [("collective-too-slow", State.DEGRADED)]
    assert found.findings[0].text.endswith("left out: a, b")
    assert [one.name for one in found.measurements] == ["busbw_gb_s"]


@each(
    ("quick", "gpu_all_reduce", 0.0, 60.0),
    ("quick", "gpu_all_reduce", 6.0, 180.0),
    ("burn-in", "gpu_matmul", 0.0, 360.0),
)
def test_a_process_may_be_silent_for_three_times_its_longest_step(
    plan: str, test: str, load: float, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert CHECKS[test].patience_s(node(plan=PLANS[plan])) == patience_s


@each(
    (0.001, 20, 1.0, 20),
    (0.1, 20, 1.0, 10),
    (9.0, 20, 1.0, 5),
    (9.0, 20, None, 20),
    (0.0, 20, 1.0, 20),
    (9.0, 3, 1.0, 3),
)
def test_a_slow_fabric_runs_less_often_but_enough_for_a_median(
    typical_s: float, asked: int, at_most_s: float | None, runs: int
) -> None:
    assert collectives.affordable_runs(typical_s, asked, at_most_s) == runs


@each(
    ("all_reduce", 2, 1.0),
    ("all_reduce", 4, 1.5),
    ("all_reduce", 8, 1.75),
    ("all_gather", 8, 0.875),
    ("reduce_scatter", 8, 0.875),
    ("all_to_all", 8, 0.875),
)
def test_the_bus_bandwidth_factor_is_that_of_nccl_tests(kind: str, ranks: int, factor: float) -> None:
    assert collectives.bus_bandwidth_factor(kind, ranks) == factor


def test_a_collective_is_as_fast_as_its_slowest_rank() -> None:
    seconds = ([1.0, 1.0, 1.0], [1.0, 2.0, 2.0])
    (measurement,), medians = collectives.combine([{"all_reduce 1000000000": runs} for runs in seconds])
    assert (measurement.name, measurement.value) == ("busbw_gb_s", 0.5)
    assert measurement.conditions == {"size_bytes": 1_000_000_000, "ranks": 2}
    assert medians == {"all_reduce 1000000000": [1.0, 2.0]}


@each(("", "busbw_gb_s", "all_gather_busbw_gb_s"), ("ring_", "ring_busbw_gb_s", "ring_all_gather_busbw_gb_s"))
def test_each_collective_and_algorithm_has_a_number_of_its_own(prefix: str, reduce: str, gather: str) -> None:
    seconds = {"all_reduce 1000000000": [1.0], "all_gather 1000000000": [1.0]}
    measurements, _ = collectives.combine([seconds, seconds], prefix=prefix)
    assert [(m.name, m.value) for m in measurements] == [(reduce, 1.0), (gather, 0.5)]


def test_a_noisy_collective_is_measured_again_by_all_ranks() -> None:
    asked = collective_request(sizes_bytes=[64], runs=8, measure_s=1000.0)
    calm = collectives.reduce(ScriptedBackend(run_seconds=[0.5]), asked, STAGES.append)
    assert calm.details["attempts"] == {"all_reduce 64": 1}
    noisy = collectives.reduce(ScriptedBackend(run_seconds=[0.1, 0.9] * 40), asked, STAGES.append)
    assert noisy.details["attempts"] == {"all_reduce 64": sampling.MOST_ATTEMPTS}
    assert len(noisy.details["seconds"]["all_reduce 64"]) == 8
    seconds = [one.details["seconds"] for one in (noisy, noisy)]
    (measurement,), _ = collectives.combine(seconds, noisy.details["attempts"])
    assert measurement.attempts == sampling.MOST_ATTEMPTS


def nvls_request() -> Request:
    asked = collective_request(collectives=["x"], sizes_bytes=[64], runs=7, measure_s=1000.0, nvls=True)
    return dataclasses.replace(asked, backend="cuda")


def test_nvls_is_not_run_where_no_switch_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "make", lambda *_: ScriptedBackend(multicast=False))
    with pytest.raises(NotRunError, match="the GPUs have no NVLS"):
        collectives.measure(nvls_request(), STAGES.append)


@each(
    ("Error : no algorithm/protocol available for function AllReduce", NotRunError),
    ("NCCL error: unhandled system error", RuntimeError),
)
def test_nvls_that_nccl_does_not_offer_is_not_run_and_any_other_error_is_one(
    said: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(ScriptedBackend):
        def collective(self, kind: str, size_bytes: int) -> ScriptedOperation:
            raise RuntimeError(said)

    monkeypatch.setattr(collectives, "make", lambda *_: Refusing())
    with pytest.raises(kind):
        collectives.measure(nvls_request(), STAGES.append)


PREPARING, WARMING, MEASURING = (
    f"{stage} all-reduce of 1 MiB" for stage in ("preparing", "warming up with", "measuring")
)
SILENT = "and made no progress for 60 s"


def died(*moments: float) -> list[ProcessOutcome]:
    return [outcome(f"rank {rank}", Ending.DIED, ended_at=at) for rank, at in enumerate(moments)]


def hung(*ranks: tuple[str, int] | tuple[str, int, str]) -> list[ProcessOutcome]:
    """Each rank's stage, how many steps it has counted, and why it does not run, if that is known."""
    return [
        outcome(f"rank {rank}", Ending.HUNG, stage, steps=steps, halted="".join(halted))
        for rank, (stage, steps, *halted) in enumerate(ranks)
    ]


@each(
    ([outcome(), outcome("rank 1")], []),
    ([*died(9.5, 9.0), outcome("rank 2", Ending.STOPPED, ended_at=14.0)], ["rank 1 died"]),
    (died(9.0, 9.0, 9.5), ["rank 0 died", "rank 1 died"]),
    (
        hung((MEASURING, 0), (PREPARING, 0), (MEASURING, 0)),
        [f"rank 1 hung in stage: {PREPARING}, {SILENT}; the others waited in stage: {MEASURING}"],
    ),
    (hung((MEASURING, 0), (MEASURING, 0)), [f"all 2 ranks hung in stage: {MEASURING}"]),
    # In one stage, the rank with the fewest runs is to blame.
    (
        hung((MEASURING, 23), (MEASURING, 22), (MEASURING, 23)),
        [f"rank 1 hung in stage: {MEASURING}, after run 11, {SILENT}; the others waited in run 12"],
    ),
    (
        hung((MEASURING, 24), (MEASURING, 23), (MEASURING, 24)),
        [f"rank 1 hung in stage: {MEASURING}, in run 12, {SILENT}; the others waited after run 12"],
    ),
    (
        hung((MEASURING, 1), (MEASURING, 0), (MEASURING, 1)),
        [f"rank 1 hung in stage: {MEASURING}, before the first run, {SILENT}; the others waited in run 1"],
    ),
    (
        hung((MEASURING, 23), (MEASURING, 23)),
        [f"all 2 ranks hung in stage: {MEASURING}, in run 12, {SILENT}; which of them the others waited for"],
    ),
    # A rank that takes part again counts on; what its stage says is not undone by that.
    (hung((MEASURING, 20), (WARMING, 21)), ["rank 1 hung in stage: warming up"]),
    (
        hung((MEASURING, 0), (MEASURING, 0, "stopped by a signal"), (MEASURING, 0)),
        [f"rank 1 (stopped by a signal) hung in stage: {MEASURING}"],
    ),
)
def test_the_rank_that_the_others_waited_for_is_to_blame(
    outcomes: list[ProcessOutcome], said: list[str]
) -> None:
    found = collectives.name_the_culprit(outcomes)
    assert [one.text[: len(text)] for one, text in zip(found, said, strict=True)] == said
    # Of several, no GPU is named.
    assert len(found) < 2 or {one.device for one in found} == {None}


def test_the_rank_that_did_not_enter_a_collective_is_named() -> None:
    """By its calls; where all are in one, by who sleeps while the others poll."""
    stage = "warming up with all-reduce of 1 MiB"
    for calls, busy, named in (
        ((10, 9, 10), (None, None, None), "rank 1"),
        ((10, 8, 8), (None, None, None), "rank 1 (in run, operations.py line 9) and rank 2"),
        ((9, 9, 9), (0.99, 0.01, 0.97), "rank 1"),
        ((9, 9, 9), (0.0, 0.01, 0.0), "all 3 ranks"),  # as gloo waits
        ((9, 9, 9), (0.99, 0.3, 0.97), "all 3 ranks"),
        ((10, 9, 10), (0.01, 0.99, 0.01), "rank 1"),
    ):
        ranks = [
            outcome(
                f"rank {rank}",
                Ending.HUNG,
                stage,
                steps=7,
                calls=calls[rank],
                busy=busy[rank],
                where="in run, operations.py line 9" if rank == 1 else "",
            )
            for rank in range(3)
        ]
        (finding,) = collectives.name_the_culprit(ranks)
        assert finding.text.startswith(named), (calls, busy)
        assert ("in run, operations.py line 9" in finding.text) == (not named.startswith("all"))


def test_a_collective_on_gpus_is_waited_for_by_what_it_takes_and_not_by_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (64.0, 64.0, 64.0))
    tested, check = node(), CHECKS["gpu_all_reduce"]
    found = collectives.patience(check, tested, "cuda")
    assert found["patience_s"] == 3 * check.longest_s(tested) + 10
    assert found["longer_s"][collectives.CONNECTING] == 60
    assert found["longer_s"]["starting"] == collectives.patience(check, tested, "cpu")["patience_s"] == 240


def test_a_number_of_a_collective_is_one_of_the_size_that_was_measured_whatever_was_asked_for() -> None:
    """Numbers compare under equal conditions only, and the size in bytes is one of them."""

    class Rounding(ScriptedBackend):
        def collective(self, kind: str, size_bytes: int) -> ScriptedOperation:
            return super().collective(kind, max(size_bytes, 4 << 20))

    asked = nvls_request()
    asked.parameters.update(collectives=["all_reduce"], sizes_bytes=[1 << 20])
    found = [
        collectives.combine([collectives.reduce(backend, asked, STAGES.append).details["seconds"]] * 2)[0][0]
        for backend in (ScriptedBackend(run_seconds=[0.1]), Rounding(run_seconds=[0.1]))
    ]
    assert [one.conditions["size_bytes"] for one in found] == [1 << 20, 4 << 20]
    assert found[0].taken != found[1].taken


def test_every_run_is_counted_at_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(collectives, "count_step", lambda: steps.append(1))
    backend = ScriptedBackend(run_seconds=[0.1])
    collectives.reduce(backend, nvls_request(), STAGES.append)
    assert len(steps) == 2 * (collectives.WARM_UP_RUNS + 7)


def test_ranks_that_are_slow_have_not_hung_and_no_gpu_is_to_blame() -> None:
    slow = [outcome(f"rank {rank}", Ending.SLOW, stage) for rank, stage in enumerate((MEASURING, PREPARING))]
    (finding,) = collectives.name_the_culprit(slow)
    assert (finding.code, finding.device) == ("process-slow", None)


CHECK = CHECKS["gpu_matmul"]
WRONG = Finding("wrong-result", State.FAIL, "GPU 1: wrong")


@each(
    ([outcome(), outcome()], State.PASS, ""),
    ([outcome(), outcome(measured=Measured(findings=(WRONG,)))], State.FAIL, ""),
    ([outcome(), outcome("GPU 1", Ending.DIED)], State.FAIL, ""),
    ([outcome("GPU 0"), outcome("GPU 1", measured=Measured(not_run="busy"))], State.NOT_RUN, "GPU 1: busy"),
    ([outcome("GPU 0", measured=Measured(not_run="busy"))], State.NOT_RUN, "busy"),
    (
        [outcome("GPU 0", measured=Measured(not_run="busy")), outcome("GPU 1", Ending.UNKILLABLE)],
        State.FAIL,
        "",
    ),
)
def test_a_test_that_left_out_a_gpu_has_not_passed(
    outcomes: list[ProcessOutcome], state: State, reason: str
) -> None:
    found = result(CHECK, outcomes)
    assert (found.state, found.reason) == (state, reason)


def test_an_error_of_cuda_has_a_finding_and_an_action_of_its_own() -> None:
    for words, code, action in (
        ("CUDA error: uncorrectable ECC error encountered", "cuda-ecc-error", MachineAction.RESET_GPU),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", "cuda-ecc-error", MachineAction.RESET_GPU),
        (
            "CUDA error: uncorrectable NVLink error detected during the execution",
            "cuda-nvlink-error",
            MachineAction.RESET_GPU,
        ),
        (
            "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            "cuda-nvlink-error",
            MachineAction.RESET_GPU,
        ),
        ("CUDA error: unspecified launch failure", "cuda-launch-error", MachineAction.RESET_GPU),
        (
            "CUDA error: an illegal memory access was encountered",
            "cuda-launch-error",
            MachineAction.RESET_GPU,
        ),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cuda-busy", MachineAction.RERUN),
        ("the MPS server is not ready to accept new MPS client requests", "cuda-busy", MachineAction.RERUN),
        ("exclusive-thread device already in use by a different thread", "cuda-busy", MachineAction.RERUN),
        ("failed call: CUDA_ERROR_ECC_UNCORRECTABLE", "cuda-ecc-error", MachineAction.RESET_GPU),
        ("cudaErrorNvlinkUncorrectable", "cuda-nvlink-error", MachineAction.RESET_GPU),
        ("OutOfMemoryError: CUDA out of memory. Tried to", "cuda-out-of-memory", MachineAction.RERUN),
        ("RuntimeError: something else", "process-died", MachineAction.RERUN),
    ):
        died = dataclasses.replace(
            outcome("GPU 1", Ending.DIED), problem=f"GPU 1 ended; it said last: {words}"
        )
        (found,) = result(CHECK, [outcome("GPU 0"), died]).findings
        assert (found.code, found.state, found.machine_action) == (code, State.FAIL, action), words


def test_a_long_message_is_judged_at_once_by_its_beginning() -> None:
    began = time.process_time()
    for words, reason in (
        ("CUDA out of memory. " + "Tried to allocate 1 MiB" * 20_000, "memory ran out: "),
        ("unable to open " * 20_000, None),
        ("CUDNN_STATUS_" + "ALLOC" * 20_000, None),
    ):
        said = out_of_memory(RuntimeError(words))
        assert said is None if reason is None else said and said.startswith(reason), words[:40]
        finding_of(words)
    assert time.process_time() - began < 1


def died_of(rank: int, words: str, ended_at: float = 1.0) -> ProcessOutcome:
    ended = outcome(f"rank {rank}", Ending.DIED, ended_at=ended_at)
    return dataclasses.replace(ended, request=dataclasses.replace(ended.request, device=rank), problem=words)


def test_an_error_of_a_link_names_no_gpu() -> None:
    ecc, launch = "uncorrectable ECC error", "unspecified launch failure"
    peer = "Invalid access of peer GPU memory over nvlink or a hardware error"
    link = "uncorrectable NVLink error detected during the execution"
    for ranks, said in (
        ([died_of(0, "peer gone"), died_of(1, ecc)], [(ecc, 1)]),
        ([died_of(0, peer), died_of(1, ecc)], [(ecc, 1)]),
        ([died_of(0, "peer gone"), died_of(1, launch)], [(launch, 1)]),
        ([died_of(0, "peer gone"), died_of(1, peer)], [("peer gone", None), (peer, None)]),
        ([died_of(0, "peer gone"), died_of(1, link)], [("peer gone", None), (link, None)]),
        ([died_of(0, "peer gone", 2.0), died_of(1, peer)], [(peer, None)]),
        ([died_of(0, "peer gone", 2.0), died_of(1, ecc)], [(ecc, 1)]),
    ):
        found = collectives.name_the_culprit(ranks)
        assert [(one.text, one.device) for one in found] == said


def test_a_gpu_that_cannot_run_is_named_and_the_others_count() -> None:
    for why, code in (
        (
            "CUDA cannot be initialised: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "cuda-busy",
        ),
        ("memory ran out: CUDA out of memory. Tried to allocate 2.00 GiB", "cuda-out-of-memory"),
        ("4.0 GB of free memory needed, 0.0 GB found", "gpu-left-out"),
    ):
        kept = outcome("GPU 1", measured=Measured(not_run=why))
        kept = dataclasses.replace(kept, request=dataclasses.replace(kept.request, device=1))
        found = result(CHECK, [outcome("GPU 0"), kept])
        (left_out,) = found.findings
        assert (left_out.code, left_out.state, left_out.device) == (code, State.DEGRADED, 1)
        assert left_out.machine_action is MachineAction.RERUN
        assert (found.state, found.reason) == (State.NOT_RUN, f"GPU 1: {why}")


def test_every_way_to_bring_no_result_says_what_to_do() -> None:
    endings = [ending for ending in Ending if ending not in {Ending.DONE, Ending.STOPPED}]
    found = result(CHECK, [outcome(ending, ending) for ending in endings])
    assert [bool(finding.action) for finding in found.findings] == [True] * len(endings)


GPU_TESTS = ["torch", *(test for test in CHECKS if test.startswith("gpu_") and test != "gpu_container")]


@each(*GPU_TESTS)
@each(
    ({"pci_gpus": ()}, "no NVIDIA GPU on the PCI bus"),
    ({"loaded_driver": None}, "the NVIDIA driver is not loaded"),
    ({"torch": None}, "torch is not installed for"),
    ({"torch": Torch("2.13.0+cpu", None)}, "torch 2.13.0+cpu is built without CUDA"),
)
def test_a_gpu_test_that_cannot_run_says_why(facts: dict[str, Any], reason: str, test: str) -> None:
    found = CHECKS[test].run(node(**facts))
    assert (found.state, found.measurements) == (State.NOT_RUN, ())
    assert reason in found.reason


@each(*GPU_TESTS)
def test_a_gpu_test_passes_on_what_nvidia_smi_says(test: str) -> None:
    found = CHECKS[test].run(node(NvidiaSmiError("mismatch", "nvidia-smi: Driver/library version mismatch")))
    assert (found.state, found.reason) == (State.NOT_RUN, "nvidia-smi: Driver/library version mismatch")


@each((None, False), ("0,1", False), ("GPU-1,GPU-2", False), ("1,0", True), ("0", True), ("", True))
def test_gpus_that_the_environment_hides_or_renumbers_are_not_measured(
    visible: str | None, hidden: bool
) -> None:
    reason = node(visible_devices=visible).why_no_cuda()
    assert (reason or "").startswith("CUDA_VISIBLE_DEVICES is") == hidden


def in_compute_mode(mode: str, **facts: Any) -> Node:
    return node(smi_xml(gpu_xml(), gpu_xml(compute_mode=mode)), **facts)


PROHIBITED = "GPU 1 is in compute mode Prohibited, in which no program can use it"
ONE_GPU = node(smi_xml(gpu_xml()), pci_gpus=(PciGpu("0000:1b:00.0", "2330"),))


@each(
    (
        "gpu_matmul",
        node(smi_xml(gpu_xml(), gpu_xml(current_mig="Enabled"))),
        "MIG is on for GPU 1, and slices",
    ),
    ("gpu_matmul", in_compute_mode("Prohibited"), PROHIBITED),
    ("gpu_all_reduce", ONE_GPU, "needs two"),
    ("gpu_peers", ONE_GPU, "two"),
    ("gpu_transfer_together", ONE_GPU, "two"),
    (
        "gpu_all_reduce",
        node(smi_xml(gpu_xml(), gpu_xml(free="100 MiB"))),
        "a GPU has only 100 MiB of free memory",
    ),
)
def test_gpus_that_cannot_be_measured_are_not_run_with_the_reason(test: str, tested: Node, said: str) -> None:
    found = CHECKS[test].run(tested)
    assert (found.state, found.measurements) == (State.NOT_RUN, ())
    assert said in found.reason


@pytest.mark.component
@pytest.mark.parametrize(("mode", "waits"), [("Exclusive_Process", False), ("Default", True)])
@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("gpu_transfer_remote", launch),
        ("gpu_peers", memory),
        ("gpu_all_reduce_ring", collectives),
        ("data_loading", loading),
    ],
)
def test_no_process_waits_on_an_exclusive_gpu_when_new_ones_start(
    test: str, module: ModuleType, mode: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedError(Exception):
        pass

    def start(*_: Any, **__: Any) -> None:
        raise StartedError

    tested = in_compute_mode(mode)
    with contextlib.closing(tested.pool) as pool:
        waiting = Request("GPU 0", "tests.unit.validation.children:who", "cuda", reuse=True)
        run_children([waiting], 60, pool=pool)
        monkeypatch.setattr(module, "run_children", start)
        with pytest.raises(StartedError):
            CHECKS[test].run(tested)
        child = pool.take(waiting)
        if child:
            pool.put(child)
    assert bool(child) == waits


@pytest.mark.component
@pytest.mark.parametrize(("torch", "kept"), [("2.4.1+cu121", False), ("2.5.0a0", True), ("2.15.0", True)])
def test_a_torch_that_keeps_page_locked_memory_loses_its_processes_after_the_copies(
    torch: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = node(torch=Torch(torch, "12.1"))
    waiting = Request("GPU 0", "tests.unit.validation.children:who", "cuda", reuse=True)
    monkeypatch.setattr(launch, "run_children", lambda requests, *_, **__: [outcome() for _ in requests])
    with contextlib.closing(tested.pool) as pool:
        run_children([waiting], 60, pool=pool)
        CHECKS["gpu_transfer"].run(tested)
        child = pool.take(waiting)
        if child:
            pool.put(child)
    assert bool(child) == kept


def test_the_first_call_which_loads_code_neither_warms_up_nor_sizes_batches() -> None:
    backend = ScriptedBackend(run_seconds=[5.0, 0.01])
    seconds, _ = sampling.times(backend, ScriptedOperation(1.0, 0.0), Timing(1.0, 1.0), lambda: None)
    assert set(seconds) == {0.01}
    runs = [int(call.split()[1]) for call in backend.calls]
    assert sum(runs) - len(seconds) >= 1 + 100
    assert max(runs) == sampling.LARGEST_BATCH


def test_the_peak_is_what_the_fastest_tenth_reached() -> None:
    backend = ScriptedBackend(run_seconds=[9.0, 1.0, *([0.5] * 3), *([1.0] * 27), 1.0])
    timing = TIMING | {"warm_up_s": 0.5, "measure_s": 30.0}
    found = matmul.multiply(backend, matmul_request(dtypes=["fp32"], timing=timing), STAGES.append)
    assert [(m.name, m.value) for m in found.measurements] == [
        ("fp32_gflops", 2.0),
        ("fp32_peak_gflops", 4.0),
    ]


def test_a_product_that_changes_under_load_is_found() -> None:
    backend = ScriptedBackend(digests=["aa", "ab"])
    found = matmul.multiply(backend, matmul_request(dtypes=["fp32"], compare_bits=True), STAGES.append)
    (finding,) = found.findings
    assert (finding.code, finding.device) == ("not-repeatable", 3)
    assert "had checksum aa, and after the load ab" in finding.text


def gpu_with_digest(device: int, digest: str, cublas: str = "13.1.0") -> ProcessOutcome:
    asked = Request(f"GPU {device}", "", "cuda", device=device)
    measured = Measured(digests=(Digest("bf16", digest, device, {"m": 64, "cublas": cublas}),))
    return ProcessOutcome(asked, Ending.DONE, measured, "", "", 1.0)


@each(
    ("aaaa", [], None),
    ("aaba", [2], State.DEGRADED),
    ("aaabc", [3, 4], State.DEGRADED),
    ("ab", [0, 1], State.DEGRADED),
    ("a", [], None),
    ("aabb", [0, 1, 2, 3], State.DEGRADED),
)
def test_the_gpu_whose_bits_differ_is_named_and_condemned_by_no_node_alone(
    digests: str, devices: list[int], state: State | None
) -> None:
    gpus = tuple(GpuIdentity(index, "H100", f"GPU-{index}", "", "2330") for index in range(len(digests)))
    found = matmul.odd_ones_out([gpu_with_digest(*pair) for pair in enumerate(digests)], gpus)
    assert [finding.device for finding in found] == devices
    assert {(finding.code, finding.state) for finding in found} == (
        {("gpu-differs", state)} if state else set()
    )


def test_a_gpu_that_differs_by_more_than_rounding_explains_fails_on_its_node() -> None:
    gpus = tuple(GpuIdentity(index, "H100", f"GPU-{index}", "", "2330") for index in range(3))
    outcomes = [gpu_with_digest(*pair) for pair in enumerate("aba")]
    wrong = Finding("wrong-result", State.FAIL, "GPU 1: wrong", device=1)
    measured = dataclasses.replace(outcomes[1].measured, findings=(wrong,))
    outcomes[1] = dataclasses.replace(outcomes[1], measured=measured)
    (found,) = matmul.odd_ones_out(outcomes, gpus)
    assert (found.code, found.state, found.device) == ("gpu-differs", State.FAIL, 1)


@each(
    ("exp", "aab", State.FAIL),  # torch's own kernel: no library chooses another one
    ("exp", "ab", State.DEGRADED),
    ("product_bf16_2048", "aab", State.DEGRADED),
)
def test_bits_that_no_rounding_explains_fail_the_gpu_that_differs(
    kernel: str, digests: str, state: State
) -> None:
    gpus = tuple(GpuIdentity(index, "H100", f"GPU-{index}", "", "2330") for index in range(len(digests)))
    taken = [Digest(kernel, value, gpu, {"pattern": "normal"}) for gpu, value in enumerate(digests)]
    outcomes = [
        dataclasses.replace(gpu_with_digest(gpu, "a"), measured=Measured(digests=(digest,)))
        for gpu, digest in enumerate(taken)
    ]
    assert {finding.state for finding in matmul.odd_ones_out(outcomes, gpus)} == {state}


def test_gpus_of_different_models_may_differ() -> None:
    gpus = (GpuIdentity(0, "H100", "", "", ""), GpuIdentity(1, "L4", "", "", ""))
    assert matmul.odd_ones_out([gpu_with_digest(0, "a"), gpu_with_digest(1, "b")], gpus) == []


def test_a_checksum_says_all_that_the_bits_depend_on() -> None:
    asked = matmul_request(products={"bf16": [8, 16, 32]}, compare_bits=True)
    (digest,) = matmul.multiply(ScriptedBackend(), asked, STAGES.append).digests
    edges = {"m": 8, "n": 16, "k": 32}
    assert digest == Digest(
        "bf16", "same", 3, edges | {"dtype": "bf16", "torch": "2.13.0", "cublas": "13.1.0"}
    )


def memory_request(**changes: Any) -> Request:
    parameters = {"size_bytes": 1_000_000_000, "timing": TIMING, "pattern_bytes": 8 << 30, "peers": [0, 1]}
    return Request("GPU 3", "", "cuda", device=3, parameters=parameters | changes)


def test_memory_bandwidth_counts_what_is_read_and_written() -> None:
    backend = ScriptedBackend(run_seconds=[0.5])
    found = memory.stream(backend, memory_request(), STAGES.append)
    assert [(m.name, m.value) for m in found.measurements] == [
        ("memory_copy_gb_s", 4.0),
        ("memory_triad_gb_s", 6.0),
    ]
    assert found.details == {"pattern_bytes": 8 << 30}


def test_the_pattern_test_leaves_some_memory_free() -> None:
    backend = ScriptedBackend(free=5_000_000_000)
    assert memory.stream(backend, memory_request(), STAGES.append).details == {"pattern_bytes": 4_500_000_000}


def test_memory_that_does_not_keep_data_is_found() -> None:
    found = memory.stream(ScriptedBackend(wrong=2.0), memory_request(), STAGES.append)
    assert found.findings[-1].text == "GPU 3: 2 words of 8.6 GB did not keep what was written"


def test_copies_to_each_other_gpu_are_measured_and_checked() -> None:
    backend = ScriptedBackend(run_seconds=[0.5])
    found = memory.send(backend, memory_request(), STAGES.append)
    assert [(m.name, m.value, m.conditions["to"]) for m in found.measurements] == [
        ("peer_gb_s", 2.0, 0),
        ("peer_gb_s", 2.0, 1),
    ]
    wrong = memory.send(ScriptedBackend(wrong=1e-9), memory_request(), STAGES.append)
    assert [finding.code for finding in wrong.findings] == ["wrong-result"] * 2


def peers_request() -> Request:
    rows = [[0, [1, 2]], [1, [0, 2]], [2, [0, 1]]]
    parameters = {"size_bytes": 1_000_000_000, "timing": TIMING, "rows": rows}
    return Request("all", "", "cuda", parameters=parameters)


def test_one_process_copies_between_all_pairs_of_gpus() -> None:
    backends = {
        gpu: ScriptedBackend(run_seconds=[0.5 * (gpu + 1)], beyond=(2,) if gpu == 0 else ())
        for gpu in range(3)
    }
    found = memory.exchange(backends.__getitem__, peers_request(), STAGES.append)
    assert [(m.device, m.conditions["to"], m.value) for m in found.measurements] == [
        *((0, 1, 2.0), (0, 2, 2.0)),
        *((1, 0, 1.0), (1, 2, 1.0)),
        *((2, 0, 0.6667), (2, 1, 0.6667)),
    ]
    assert (found.not_run, found.details) == (None, {"GPU 0": {"through_host_memory_to": [2]}})
    assert STAGES[-1] == "checking the copy from GPU 2 to GPU 1"


def test_a_gpu_without_room_for_its_copies_is_named_and_the_others_are_measured() -> None:
    backends = {gpu: ScriptedBackend(free=1000 if gpu == 1 else 80 << 30) for gpu in range(3)}
    found = memory.exchange(backends.__getitem__, peers_request(), STAGES.append)
    assert {m.device for m in found.measurements} == {0, 2}
    assert found.not_run == "GPU 1: 4.0 GB of free memory needed, 0.0 GB found"


def test_wrong_data_between_two_gpus_names_the_one_that_sent_it() -> None:
    backends = {gpu: ScriptedBackend(wrong=1.0 if gpu == 2 else 0.0) for gpu in range(3)}
    found = memory.exchange(backends.__getitem__, peers_request(), STAGES.append)
    assert [(finding.code, finding.device) for finding in found.findings] == [("wrong-result", 2)] * 2


def test_a_process_of_all_gpus_that_hangs_blames_none_of_them_but_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang(requests: list[Request], *_: Any, **__: Any) -> list[ProcessOutcome]:
        return [
            ProcessOutcome(
                requests[0], Ending.HUNG, Measured(), "it hung", "copying from GPU 1 to GPU 0", 1.0
            )
        ]

    monkeypatch.setattr(memory, "run_children", hang)
    found = CHECKS["gpu_peers"].run(node())
    (finding,) = [finding for finding in found.findings if finding.code == "process-hung"]
    assert (found.state, finding.device) == (State.FAIL, None)


@each(2, 8, 9, 10, 16, 20)
def test_every_pair_of_gpus_is_measured_once_and_none_has_too_many_peers(count: int) -> None:
    found = memory.rounds(list(range(count)), memory.MOST_PEERS)
    pairs = [(gpu, peer) for rows in found for gpu, peers in rows.items() for peer in peers]
    assert sorted(pairs) == sorted(itertools.permutations(range(count), 2))
    assert (len(found) == 1) == (count <= memory.MOST_PEERS + 1)
    for rows in found:
        together = {*rows, *(peer for peers in rows.values() for peer in peers)}
        assert len(together) <= memory.MOST_PEERS + 1


@each((True, 1), (False, 3))
def test_more_gpus_than_may_be_peers_take_turns_unless_a_switch_joins_them(
    nvswitch: bool, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(requests: list[Request], *_: Any, **__: Any) -> list[ProcessOutcome]:
        (asked,) = requests
        started.append(asked)
        beyond = {f"GPU {gpu}": {memory.BEYOND: peers} for gpu, peers in asked.parameters["rows"]}
        return [ProcessOutcome(asked, Ending.DONE, Measured(details=beyond), "", "checking", 1.0)]

    started: list[Request] = []
    monkeypatch.setattr(memory, "run_children", copied)
    gpus = [gpu_xml(pci_bus_id=f"00000000:{bus:02X}:00.0", uuid=f"GPU-{bus}") for bus in range(16, 26)]
    ten = node(smi_xml(*gpus), nvswitch=nvswitch, expectation=expectation(count=10, nvswitch=nvswitch))
    found = CHECKS["gpu_peers"].run(ten)
    assert len(started) == processes
    assert found.details["GPU 3"] == {memory.BEYOND: [peer for peer in range(10) if peer != 3]}


def test_a_peer_that_cannot_be_mapped_is_named_and_the_others_are_measured() -> None:
    found = memory.send(ScriptedBackend(most_peers=1), memory_request(peers=[1, 2, 4]), STAGES.append)
    assert [one.conditions["to"] for one in found.measurements] == [1]
    assert found.details == {memory.REFUSED: [2, 4]}


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1])))
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_pairs_that_take_another_process_are_in_one_round_each(
    at_once: int, pairs: set[tuple[int, int]]
) -> None:
    found = memory.disjoint(pairs, at_once)
    assert sorted((gpu, peer) for rows in found for gpu, (peer,) in rows.items()) == sorted(pairs)
    for rows in found:
        together = {frozenset((gpu, peer)) for gpu, (peer,) in rows.items()}
        assert 1 <= len(together) <= at_once
        assert len(frozenset().union(*together)) == 2 * len(together)


def exchanged_here(most_peers: int, most_in_all: int = 1000) -> tuple[Any, list[Request]]:
    """A run_children() that does the copies here, each process on four new GPUs; and what it was asked.

    A GPU may have so many peers, and the process so many pairs in all.
    """
    asked: list[Request] = []

    def run(requests: list[Request], *_: Any, **__: Any) -> list[ProcessOutcome]:
        (request,) = requests
        asked.append(request)
        mapped = sum(len(peers) for _, peers in request.parameters["rows"])
        limit = most_peers if mapped <= most_in_all else 0
        backends = {gpu: ScriptedBackend(most_peers=limit) for gpu in range(4)}
        found = memory.exchange(backends.__getitem__, request, STAGES.append)
        return [ProcessOutcome(request, Ending.DONE, found, "", "checking", 1.0)]

    return run, asked


def four_gpus() -> Node:
    gpus = [gpu_xml(pci_bus_id=f"00000000:{bus:02X}:00.0", uuid=f"GPU-{bus}") for bus in range(16, 20)]
    return node(smi_xml(*gpus), nvswitch=False, expectation=expectation(count=4, nvswitch=False))


@each((3, 1000, 1), (2, 1000, 4), (1, 1000, 4), (1, 2, 10))
def test_where_fewer_peers_may_be_mapped_every_pair_is_measured_all_the_same(
    most_peers: int, most_in_all: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = exchanged_here(most_peers, most_in_all)
    monkeypatch.setattr(memory, "run_children", run)
    found = CHECKS["gpu_peers"].run(four_gpus())
    measured = [(one.device, one.conditions["to"]) for one in found.measurements]
    assert sorted(measured) == sorted(itertools.permutations(range(4), 2))
    assert (found.state, len(asked)) == (State.PASS, processes)
    first = {(one.device, one.conditions["to"]) for one in found.measurements[: 4 * most_peers]}
    named = {
        (gpu, peer) for gpu in range(4) for peer in found.details.get(f"GPU {gpu}", {}).get(memory.APART, ())
    }
    assert named == set(measured) - (first if most_in_all > 12 else set())


def test_a_pair_that_cannot_be_mapped_at_all_is_not_run_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = exchanged_here(0)
    monkeypatch.setattr(memory, "run_children", run)
    found = CHECKS["gpu_peers"].run(four_gpus())
    assert (found.state, found.measurements, found.findings) == (State.NOT_RUN, (), ())
    for one, other in itertools.permutations(range(4), 2):
        assert f"GPU {one} to GPU {other}" in found.reason
    assert not any(memory.APART in said for said in found.details.values() if isinstance(said, dict))


def test_all_gpus_at_once_have_numbers_of_their_own() -> None:
    found = copy.transfer(ScriptedBackend(), copy_request(how="together"), STAGES.append)
    assert [m.name for m in found.measurements] == ["h2d_together_gb_s", "d2h_together_gb_s"]


@each("cpu_matmul", "cpu_copy", "cpu_all_reduce", "cpu_amp", "cpu_step_memory", "cpu_batch", "data_loading")
def test_a_cpu_test_without_torch_is_not_run(test: str) -> None:
    found = CHECKS[test].run(node(torch=None))
    assert found.state is State.NOT_RUN
    assert found.reason.startswith("torch is not installed for")


def test_nvidia_smi_is_asked_once_a_run() -> None:
    calls = []

    def query() -> Report:
        calls.append(1)
        return Report("580", ())

    asked = node(query=query)
    assert asked.smi is asked.smi
    assert len(calls) == 1


@each((0.1, 1.0), (2.0, 1.0), (6.0, 3.0), (500.0, 4.0))
def test_a_busy_machine_gets_more_time(load: float, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    busy = node()
    assert busy.cpus == 2
    assert busy.budget_s == busy.plan.budget_s * factor


def test_the_registry_knows_each_test_by_its_own_id() -> None:
    assert {name: check.id for name, check in CHECKS.items()} == {name: name for name in CHECKS}
    for check in CHECKS.values():
        assert check.title
        assert check.method >= 1


def test_a_test_that_was_not_run_has_no_number() -> None:
    found = not_run(CHECK, "because")
    assert (found.state, found.reason, found.measurements) == (State.NOT_RUN, "because", ())


def test_telemetry_stops_asking_a_nvidia_smi_that_fails() -> None:
    calls = []

    def sample() -> tuple[Sample, ...]:
        calls.append(1)
        raise NvidiaSmiError("timeout", "no answer")

    telemetry = Telemetry(node().gpus, sample, dict)
    telemetry.tick()
    telemetry.tick()
    assert len(calls) == 1
    assert telemetry.details() == {"telemetry": [], "telemetry_problem": "no answer"}
    (finding,) = telemetry.findings()
    assert (finding.code, finding.state) == ("telemetry-lost", State.DEGRADED)


@each((2.0, False), (12.0, True))
def test_a_nvidia_smi_that_is_slow_is_said_to_be_and_not_lost(
    seconds: float, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("validation.checks.measured.time", SimpleNamespace(monotonic=lambda: now[0]))

    def sample() -> tuple[Sample, ...]:
        now[0] += seconds
        return parse_samples(BOTH)

    telemetry = Telemetry(node().gpus, sample, dict)
    telemetry.tick()
    assert telemetry.findings() == []
    assert ("telemetry_slow" in telemetry.details()) == is_slow


def scripted_telemetry(*rounds: str | NvidiaSmiError) -> Telemetry:
    """Telemetry that has seen these rounds of two GPUs."""
    script = list(rounds)

    def sample() -> tuple[Sample, ...]:
        said = script.pop(0)
        if isinstance(said, NvidiaSmiError):
            raise said
        return parse_samples(said)

    telemetry = Telemetry(node().gpus, sample, dict)
    for _ in rounds:
        telemetry.tick()
    return telemetry


def sampled(index: int, reasons: str = "0x0") -> str:
    return f"{index}, 1980, 700, 70, 5, 16, {reasons}, P0, 0\n"


BOTH = sampled(0) + sampled(1)


@each(
    ([BOTH, BOTH.replace("70, 5", "[GPU is lost], 5")], "telemetry-lost", "GPU is lost"),
    ([BOTH, sampled(0)], "gpu-vanished", "GPU 1"),
    # It lost lanes; its generation is not known.
    (["0, 1980, 700, 70, [N/A], 8, 0x0, P0, 0\n"], "pcie-link-slow-under-load", "GPU 0"),
)
def test_a_gpu_that_is_lost_or_slow_under_load_fails_the_test(
    rounds: list[str], code: str, said: str
) -> None:
    (finding,) = scripted_telemetry(*rounds).findings()
    assert (finding.code, finding.state) == (code, State.FAIL)
    assert said in finding.text


def test_a_driver_that_does_not_know_a_field_is_no_fault_and_is_said() -> None:
    telemetry = scripted_telemetry(NvidiaSmiError("other", "Field is not a valid field to query"))
    assert telemetry.findings() == []
    assert "not a valid field" in telemetry.details()["telemetry_problem"]


@each(
    ("0x40", 1, 10, []),
    ("0x40", 4, 10, ["hw-thermal-slowdown"]),
    # Of few samples, all have to show it.
    ("0x40", 3, 3, ["hw-thermal-slowdown"]),
    ("0x40", 4, 4, ["hw-thermal-slowdown"]),
    ("0x40", 3, 4, []),
    ("0x40", 2, 2, []),
    ("0x40", 1, 1, []),
    ("0x80", 3, 3, ["hw-power-brake-slowdown"]),
    # A slowdown of the hardware without a cause.
    ("0x8", 6, 6, ["hw-slowdown"]),
    ("0x8", 3, 6, ["hw-slowdown"]),
    ("0x8", 2, 6, []),
    ("0x48", 6, 6, ["hw-thermal-slowdown"]),
    ("0x88", 6, 6, ["hw-power-brake-slowdown"]),
)
def test_a_slowdown_under_load_counts_when_it_lasts(
    reasons: str, slow: int, samples: int, codes: list[str]
) -> None:
    hot = sampled(0, reasons) + sampled(1)
    found = scripted_telemetry(*[hot] * slow, *[BOTH] * (samples - slow)).findings()
    assert [(one.code, one.state, one.device) for one in found] == [(code, State.FAIL, 0) for code in codes]


@given(
    seconds=st.floats(min_value=1e-6, max_value=100),
    warm_up_s=st.floats(min_value=0, max_value=5),
    measure_s=st.floats(min_value=0, max_value=5),
    least=st.integers(min_value=1, max_value=20),
)
def test_sampling_takes_enough_and_never_too_much(
    seconds: float, warm_up_s: float, measure_s: float, least: int
) -> None:
    backend = ScriptedBackend(run_seconds=[seconds])
    timing = Timing(warm_up_s, measure_s, least=least, most=200)
    samples, _ = sampling.times(backend, ScriptedOperation(1.0, 0.0), timing, lambda: None)
    assert least <= len(samples) <= 200
    assert len(samples) >= min(200, measure_s / seconds * 0.99 - 1)
    assert len(samples) == least or sum(samples) <= measure_s + seconds * sampling.LARGEST_BATCH


def test_the_first_runs_are_not_counted() -> None:
    backend = ScriptedBackend(run_seconds=[30.0, 1.0])
    timing = Timing(warm_up_s=1.0, measure_s=3.0, least=3)
    assert sampling.times(backend, ScriptedOperation(1.0, 0.0), timing, lambda: None) == ([1.0, 1.0, 1.0], 1)


@each(([[1.0, 2.0, 3.0], [1.0, 1.5, 2.0], [1.0, 1.01, 1.02]], 3), ([[1.0, 1.01, 1.02]], 1))
def test_noisy_runs_are_measured_again_and_the_calmest_attempt_counts(
    attempts: list[list[float]], made: int
) -> None:
    remaining = iter(attempts)
    assert sampling.calm(lambda: next(remaining)) == ([1.0, 1.01, 1.02], made)


def test_runs_that_stay_noisy_are_given_up_and_the_number_says_so() -> None:
    backend = ScriptedBackend(run_seconds=[0.1, 0.9] * 200)
    request = matmul_request(dtypes=["fp32"], timing=TIMING | {"warm_up_s": 0.1})
    measurement, _ = matmul.multiply(backend, request, STAGES.append).measurements
    assert measurement.attempts == sampling.MOST_ATTEMPTS
    assert measurement.spread > NOISY_SPREAD


@each(([1.0], 0.0), ([1.0, 1.0, 1.0], 0.0), ([1.0, 2.0, 3.0], 0.5))
def test_spread_is_the_interquartile_range_over_the_median(samples: list[float], spread: float) -> None:
    assert sampling.spread(samples) == spread


def test_an_expectation_without_gpus_counts_none() -> None:
    found = [one.gpu_count for one in (expectation(gpus=None), expectation(gpus=()), expectation())]
    assert found == [None, 0, 2]


@each((1200.0, ["clocks-not-locked"]), (1395.0, []), (1980.0, []), (None, []))
def test_a_clock_above_that_which_was_locked_is_found(locked_mhz: float | None, codes: list[str]) -> None:
    telemetry = Telemetry(node().gpus, lambda: parse_samples(WORKING), dict, locked_mhz)
    telemetry.tick()
    assert [finding.code for finding in telemetry.findings()] == codes
    assert telemetry.details()["counters_problem"] == "nvidia-smi does not say them"


def test_the_clock_that_is_expected_is_that_which_is_watched() -> None:
    watched = node(expectation=expectation(graphics_clock_mhz=1200.0))
    assert [code for code, _ in under_load(watched, WORKING)] == ["clocks-not-locked"]


@each(
    ("0, 1980, 700, 60, 3, 16, 0x0, P0, 0", "PCIe link generation 3 of 5"),
    ("0, 1980, 700, 60, 5, 8, 0x0, P0, 0", "PCIe link x8 of x16"),
    ("0, 1980, 700, 60, 4, 8, 0x0, P0, 0", "PCIe link generation 4 of 5, x8 of x16"),
    ("0, 1980, 700, 60, 5, 16, 0x0, P0, 0", None),
)
def test_a_slow_link_is_noted_beside_the_numbers_that_it_explains(line: str, words: str | None) -> None:
    (seen,) = scripted_telemetry(f"{line}\n").details()["telemetry"]
    assert seen.get("slow_link") == words


IDLE = "0, 300, 90, 30, 5, 16, 0x1, P0, 0"
WORKING = "0, 1400, 700, 60, 5, 16, 0x4, P0, 0"


def under_load(tested: Node, sample: str) -> list[tuple[str, State]]:
    """What telemetry finds on a node of which a GPU says this while it works."""
    tested.probe.sample = lambda: parse_samples(sample)  # type: ignore[method-assign]
    telemetry = watch(tested)
    telemetry.tick()
    return [(finding.code, finding.state) for finding in telemetry.findings()]


SLOW_LINK = "0, 1980, 700, 60, 3, 16, 0x0, P0, 0"


@each(("sxm", "Disabled", True), ("superchip", "Enabled", False), ("superchip", "Disabled", True))
def test_the_pcie_link_is_looked_at_under_load_where_a_gpu_copies_over_it(
    form_factor: str, c2c: str, found: bool
) -> None:
    references = References({"h100": H100 | {"form_factor": form_factor}})
    xml = smi_xml(gpu_xml().replace("<mig_mode>", f"<c2c_mode>{c2c}</c2c_mode><mig_mode>"))
    tested = node(xml, expectation=expectation(references=references))
    assert [code for code, _ in under_load(tested, SLOW_LINK)] == ["pcie-link-slow-under-load"] * found


def test_a_chip_of_cpu_and_gpu_has_no_link_to_be_looked_at_under_load() -> None:
    memory = "<fb_memory_usage><total>Not Supported</total>"
    tested = node(smi_xml(gpu_xml().replace("<fb_memory_usage>", memory)))
    assert under_load(tested, "0, 1980, 7, 60, 1, 1, 0x0, P0, 0") == []


@each(
    ("None", {"0000:1b:00.0": PciePort(16, 5)}, State.FAIL),
    ("Pass-Through", {"0000:1b:00.0": PciePort(16, 5)}, State.DEGRADED),
    ("None", {}, State.DEGRADED),
)
def test_a_slow_link_whose_port_nobody_sees_may_be_what_a_host_gives(
    mode: str, ports: dict[str, PciePort], state: State
) -> None:
    tested = node(smi_xml(gpu_xml(virtualization_mode=mode)), pcie_ports=lambda _: ports)
    assert under_load(tested, SLOW_LINK) == [("pcie-link-slow-under-load", state)]


def test_errors_between_the_last_sample_and_the_end_are_seen() -> None:
    samples = iter(["0, 1980, 700, 60, 5, 16, 0x0, P0, 0", "0, 1980, 700, 60, 5, 16, 0x0, P0, 1"])
    telemetry = Telemetry(node().gpus, lambda: parse_samples(next(samples)), dict)
    telemetry.tick()
    found = result(CHECK, [outcome()], telemetry=telemetry)
    assert [finding.code for finding in found.findings] == ["ecc-under-load"]


def test_counters_that_nobody_says_at_the_end_are_said_to_be_unknown() -> None:
    counts = iter([{0: {"pcie_replays": 5}}, {}])
    telemetry = Telemetry(node().gpus, lambda: parse_samples(WORKING), lambda: next(counts))
    telemetry.tick()
    telemetry.close()
    assert telemetry.details()["counters_problem"] == "nvidia-smi does not say them"


def test_a_counter_that_grew_during_a_test_is_a_finding_and_one_that_stood_before_is_not() -> None:
    counts = iter(
        [{0: {"pcie_replays": 5}, 1: {"pcie_replays": 9}}, {0: {"pcie_replays": 7}, 1: {"pcie_replays": 9}}]
    )
    telemetry = Telemetry(node().gpus, lambda: parse_samples(WORKING), lambda: next(counts))
    telemetry.tick()
    telemetry.tick()
    found = result(CHECK, [outcome()], telemetry=telemetry)
    assert [(finding.code, finding.state, finding.device) for finding in found.findings] == [
        ("pcie-replay-under-load", State.DEGRADED, 0)
    ]
    assert found.details["counters"] == {"GPU 0": {"pcie_replays": 2}}


@each(([IDLE, IDLE, WORKING], 1.0), ([IDLE], None))
def test_clocks_and_reasons_are_those_of_a_gpu_that_works(lines: list[str], share: float | None) -> None:
    (seen,) = summary([parse_samples(line) for line in lines])
    assert seen["event_reason_shares"].get("sw_power_cap") == share
    assert seen["sm_clock_mhz_median"] == (1400 if share else 300)


@each(((), {}), ((2,), {"through_host_memory_to": [2]}))
def test_a_pair_of_gpus_without_peer_access_is_named(beyond: tuple[int, ...], said: dict[str, Any]) -> None:
    asked = memory_request(peers=[1, 2])
    assert memory.send(ScriptedBackend(beyond=beyond), asked, STAGES.append).details == said
