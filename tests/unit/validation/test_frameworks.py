"""torch as frameworks see it: each thing that does not fit has its own finding, with cause and remedy."""

import dataclasses
import json
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import node
from validation.backends.libraries import runs_on
from validation.checks.frameworks import (
    Device,
    Facts,
    Frameworks,
    conclude,
    driver_cuda,
    error_of,
    examine,
)
from validation.model.contract import Measured, State, dumps
from validation.model.not_run import NotRunError
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

H100 = Device(0, "NVIDIA H100 80GB HBM3", (9, 0))
GOOD = Facts(
    torch="2.13.0+cu130",
    built_for_cuda=(13, 0),
    driver_cuda=(13, 0),
    available=True,
    problem="",
    architectures=("sm_80", "sm_90", "sm_100", "compute_120"),
    devices=(H100, dataclasses.replace(H100, index=1)),
    cudnn=91900,
    cudnn_error="",
    nccl="2.28.9",
    visible_devices=None,
)


def facts(**changes: Any) -> Facts:
    return dataclasses.replace(GOOD, **changes)


@each(
    (
        facts(driver_cuda=(12, 9), available=False, devices=()),
        "torch-cuda-too-new",
        "torch 2.13.0+cu130 is built for CUDA 13.0, the driver knows CUDA up to 12.9",
    ),
    (
        facts(available=False, problem="CUDA error 802: system not yet initialized", devices=()),
        "torch-no-gpu",
        "CUDA error 802",
    ),
    (
        facts(devices=(H100,), visible_devices="0"),
        "torch-gpu-count",
        "torch sees 1 GPUs, nvidia-smi 2; CUDA_VISIBLE_DEVICES is '0'",
    ),
    (
        facts(devices=(H100, Device(1, "Tesla V100", (7, 0)))),
        "torch-architecture",
        "GPU 1 (Tesla V100) has compute capability 7.0, torch 2.13.0+cu130 is built for sm_80, sm_90",
    ),
    (
        facts(devices=(H100, dataclasses.replace(H100, index=1, error="CUDA error: ECC"))),
        "torch-compute",
        "GPU 1 (NVIDIA H100 80GB HBM3) does not compute: CUDA error: ECC",
    ),
    (facts(cudnn=None), "torch-cudnn", "this torch has none"),
    (facts(cudnn_error="CUDNN_STATUS_NOT_INITIALIZED"), "torch-cudnn", "CUDNN_STATUS_NOT_INITIALIZED"),
    (facts(nccl=None), "torch-nccl", "has no NCCL, and the node has 2 GPUs"),
)
def test_what_does_not_fit_is_named_with_cause_and_remedy(found: Facts, code: str, words: str) -> None:
    (finding,) = examine(found, 2)
    assert (finding.code, finding.state) == (code, State.FAIL)
    assert words in finding.text
    assert finding.action


@each(
    (GOOD, 2),
    (facts(built_for_cuda=(12, 9), driver_cuda=(12, 4)), 2),  # an older minor version of CUDA
    (facts(nccl=None, devices=(H100,)), 1),
)
def test_what_fits_has_no_finding(found: Facts, gpus: int) -> None:
    assert list(examine(found, gpus)) == []


@each(
    ((8, 0), ("sm_80",), True),
    ((8, 9), ("sm_80",), True),
    ((8, 0), ("sm_86",), False),
    ((9, 0), ("sm_80",), False),
    ((9, 0), ("sm_90a",), True),
    ((9, 1), ("sm_90a",), False),
    ((10, 3), ("sm_100f",), True),
    ((7, 0), ("sm_75", "sm_80", "compute_120"), False),
    ((12, 0), ("sm_100",), False),
    ((12, 0), ("sm_120",), True),
    ((12, 0), ("compute_90",), True),
    ((8, 0), ("compute_90",), False),
    ((9, 0), ("strange", "sm_x"), False),
    ((9, 0), (), False),
)
def test_which_code_runs_on_which_gpu(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    assert runs_on(capability, architectures) is runs


def outcome(ending: Ending = Ending.DONE, details: dict[str, Any] | None = None) -> ProcessOutcome:
    request = Request("torch", "", "cuda")
    return ProcessOutcome(
        request, ending, Measured(details=details or {}), f"torch {ending}", "computing", 1.0
    )


@each(
    (outcome(details={"facts": json.loads(dumps(GOOD))}), State.PASS, []),
    (outcome(details={"facts": json.loads(dumps(facts(cudnn=None)))}), State.FAIL, ["torch-cudnn"]),
    (outcome(details={"facts": {"torch": 2}}), State.FAIL, ["result-unreadable"]),
    (outcome(Ending.HUNG), State.FAIL, ["process-hung"]),
    (outcome(Ending.DIED), State.FAIL, ["process-died"]),
)
def test_what_the_child_says_or_does_not_say_is_judged(
    came: ProcessOutcome, state: State, codes: list[str]
) -> None:
    result = conclude(Frameworks(), node(), came)
    assert (result.state, [finding.code for finding in result.findings]) == (state, codes)


def test_a_gpu_without_room_is_no_fault_of_torch() -> None:
    reason = "memory ran out, and the kernel ended torch in stage: loading torch"
    came = dataclasses.replace(outcome(), measured=Measured(not_run=reason))
    result = conclude(Frameworks(), node(), came)
    assert (result.state, result.reason, result.findings) == (State.NOT_RUN, reason, ())


@each(("computing on GPU 5", 5), ("computing on GPU 12", 12), ("loading NCCL", None))
@each(Ending.HUNG, Ending.DIED)
def test_only_the_gpu_that_torch_was_computing_on_is_named(
    ending: Ending, stage: str, device: int | None
) -> None:
    came = dataclasses.replace(outcome(ending), stage=stage)
    (finding,) = conclude(Frameworks(), node(), came).findings
    assert finding.device == device


@each(
    ("CUDA error: out of memory\nCUDA kernel errors might", "memory ran out: CUDA error: out of memory"),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", "all CUDA-capable devices are busy"),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "is/are busy or unavailable"),
)
def test_a_gpu_that_somebody_else_has_is_not_judged(words: str, reason: str) -> None:
    with pytest.raises(NotRunError, match=r"^GPU 3\b") as caught:
        error_of(3, lambda: fails(words))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_other_error_of_a_computation_is_its_first_line() -> None:
    assert error_of(3, lambda: fails("CUDA error: uncorrectable ECC error\nmore")) == (
        "CUDA error: uncorrectable ECC error"
    )


def fails(words: str) -> str:
    raise RuntimeError(words)


def test_without_the_drivers_library_there_is_no_cuda() -> None:
    assert driver_cuda("libno-such-library.so.1") is None
