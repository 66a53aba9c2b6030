"""Compatibility as frameworks see it: does torch work with this driver on these GPUs, and if not, why."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from validation.backends.factory import clear_environment
from validation.backends.libraries import runs_on
from validation.checks.check import CUDA, Check, CostStep, IdleNode, Scope
from validation.checks.measured import CUDA_ENVIRONMENT, failures, result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import ContractError, Finding, Measured, TestResult, decode, encode
from validation.model.not_run import NotRunError, cause, out_of_memory
from validation.model.plans import PLANS
from validation.processes.child import LOADING, Request
from validation.processes.pool import ProcessOutcome, run_children

#: How a child's stage begins while a GPU computes; its index follows.
COMPUTING = "computing on GPU "
#: What CUDA says (cudaErrorDevicesUnavailable) where another process has a GPU that serves one at a time.
TAKEN = "busy or unavailable"
#: Of sums up to 108. Half of what a wrong whole number would be off by at least.
CONVOLUTION_TOLERANCE = 0.5


@dataclass(frozen=True)
class Device:
    """A GPU as torch sees it; `error` says how a small computation on it went wrong, empty if it did not."""

    index: int
    name: str
    capability: tuple[int, ...]
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """What torch says of itself and of the GPUs. CUDA versions as (major, minor)."""

    torch: str
    built_for_cuda: tuple[int, ...]
    driver_cuda: tuple[int, ...] | None
    available: bool
    problem: str
    architectures: tuple[str, ...]
    devices: tuple[Device, ...]
    cudnn: int | None
    cudnn_error: str
    nccl: str | None
    visible_devices: str | None


def gather(_request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: ask torch everything, and let each GPU compute something. Raises NotRunError."""
    stage(LOADING)
    clear_environment()
    import torch

    stage("asking torch for its GPUs")
    problem = ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        problem = cause(error)
    available = torch.cuda.is_available()
    devices = []
    for index in range(torch.cuda.device_count() if available else 0):
        stage(f"{COMPUTING}{index}")
        devices.append(
            Device(
                index,
                torch.cuda.get_device_name(index),
                torch.cuda.get_device_capability(index),
                error_of(index, lambda index=index: _compute(f"cuda:{index}")),  # type: ignore[misc]  # a default
            )
        )
    stage("loading cuDNN")
    cudnn, cudnn_error = cudnn_version()
    if available and cudnn and devices and not devices[0].error:
        cudnn_error = error_of(0, lambda: _convolve("cuda:0"))
    stage("loading NCCL")
    facts = Facts(
        torch=torch.__version__,
        built_for_cuda=_version(torch.version.cuda),
        driver_cuda=driver_cuda(),
        available=available,
        problem=problem,
        architectures=tuple(torch.cuda.get_arch_list()),
        devices=tuple(devices),
        cudnn=cudnn,
        cudnn_error=cudnn_error,
        nccl=_nccl_version(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    return Measured(details={"facts": encode(facts)})


def error_of(gpu: int, compute: Callable[[], str]) -> str:
    """Return what went wrong: the first line of an exception, or what the function itself says.

    Raises NotRunError where somebody else has this GPU.
    """
    try:
        return compute()
    except RuntimeError as error:
        words = cause(error)
        if taken := out_of_memory(error):
            raise NotRunError(f"GPU {gpu}: {taken}") from error
        if TAKEN in words:
            raise NotRunError(f"GPU {gpu} is taken: {words}") from error
        return words


def _compute(device: str) -> str:
    """Sum the numbers from 1 to 1000 on a device: exact in fp32 in every order."""
    import torch

    total = float(torch.arange(1, 1001, device=device, dtype=torch.float32).sum())
    return "" if total == 500500.0 else f"the sum of 1 to 1000 is {total}, not 500500"


def cudnn_version() -> tuple[int | None, str]:
    """Return the version of cuDNN.

    None without one, or with one that this torch refuses, and then its words.
    """
    import torch

    if not torch.backends.cudnn.is_available():
        return None, ""
    try:
        return torch.backends.cudnn.version(), ""
    except RuntimeError as error:
        return None, cause(error)


def _convolve(device: str) -> str:
    """Return a small convolution with whole numbers, against the same on the CPU.

    Up to rounding: some of cuDNN's ways to convolve (Winograd) divide in between.
    """
    import torch

    image = torch.arange(64, dtype=torch.float32).reshape(1, 1, 8, 8) % 7
    kernel = torch.arange(9, dtype=torch.float32).reshape(1, 1, 3, 3) % 3
    expected = torch.nn.functional.conv2d(image, kernel)
    found = torch.nn.functional.conv2d(image.to(device), kernel.to(device)).cpu()
    largest = float((found - expected).abs().max())
    return (
        "" if largest <= CONVOLUTION_TOLERANCE else f"a convolution of whole numbers is wrong by {largest:g}"
    )


def _nccl_version() -> str | None:
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def driver_cuda(library: str = "libcuda.so.1") -> tuple[int, int] | None:
    """Return the newest CUDA that the driver's library knows, None where there is none."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(".")[:2] if part.isdigit())


def examine(facts: Facts, gpus: int) -> Iterator[Finding]:
    """Yield what does not fit, cause first: what follows from it is not reported again."""
    built, driver = facts.built_for_cuda, facts.driver_cuda
    if driver and built and built[0] > driver[0]:
        yield finding("torch-cuda-too-new", torch=facts.torch, built=_dotted(built), known=_dotted(driver))
        return
    if not facts.available:
        yield finding(
            "torch-no-gpu",
            "unusable" if facts.visible_devices is None else "hidden",
            torch=facts.torch,
            problem=facts.problem or "it says that none is available",
        )
        return
    if len(facts.devices) != gpus:
        yield (
            finding("torch-gpu-count", "unusable", seen=len(facts.devices), listed=gpus)
            if facts.visible_devices is None
            else finding(
                "torch-gpu-count",
                "hidden",
                seen=len(facts.devices),
                listed=gpus,
                variable=facts.visible_devices,
            )
        )
    for device in facts.devices:
        yield from _device(facts, device)
    if facts.cudnn is None or facts.cudnn_error:
        yield finding("torch-cudnn", error=facts.cudnn_error or "this torch has none")
    if facts.nccl is None and gpus > 1:
        yield finding("torch-nccl", torch=facts.torch, gpus=gpus)


def _device(facts: Facts, device: Device) -> Iterator[Finding]:
    if not runs_on(device.capability, facts.architectures):
        yield finding(
            "torch-architecture",
            gpu=device.index,
            name=device.name,
            capability=_dotted(device.capability),
            torch=facts.torch,
            architectures=", ".join(facts.architectures) or "none",
        )
    elif device.error:
        yield finding("torch-compute", gpu=device.index, name=device.name, error=device.error)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class Frameworks(Check):
    """In a process of its own: whether torch fits this driver and these GPUs.

    The CUDA that torch is built for against the driver, whether torch sees every GPU, a computation on each,
    its compute capability in the build's list, cuDNN (a convolution), NCCL.
    """

    id = "torch"
    title = "torch works with driver and GPUs"
    plans = tuple(PLANS)
    place = 30
    scope = Scope.NODE
    needs = (CUDA,)
    passes = "all of it works; what does not is said with its cause and remedy"

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("first start", idle.first_start)
        yield CostStep("contexts", idle.contexts)
        yield CostStep("libraries", idle.libraries)

    def perform(self, node: Node) -> TestResult:
        """Ask torch on this node."""
        request = Request("torch", f"{__name__}:gather", "cuda", environment=CUDA_ENVIRONMENT)
        (outcome,) = run_children([request], node.budget_s, patience_s=self.patience_s(node))
        return conclude(self, node, outcome)


def conclude(check: Frameworks, node: Node, outcome: ProcessOutcome) -> TestResult:
    """From what the child said, or did not, to the result."""
    # Of which GPU it died, if of any, its stage says, and not the device of its request.
    _, computing, index = outcome.stage.partition(COMPUTING)
    gpu = int(index) if computing else None
    findings = [dataclasses.replace(finding, device=gpu) for finding in failures([outcome])]
    details: dict[str, Any] = {}
    if not findings and outcome.measured.not_run is None:
        try:
            facts = decode(Facts, outcome.measured.details.get("facts"))
        except ContractError as error:
            findings = [finding("result-unreadable", problem=f"torch's answer makes no sense: {error}")]
        else:
            findings, details = list(examine(facts, len(node.gpus))), encode(facts)
    return result(check, [outcome], findings=findings, details=details)
