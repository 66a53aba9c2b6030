"""Matrix multiplication: FLOP/s of fixed shapes, and whether the product is right."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any

from validation.backends.factory import make
from validation.backends.protocol import Backend
from validation.backends.sampling import times
from validation.checks.check import CUDA, TORCH, Check, CostStep, IdleNode, Scope, series
from validation.checks.launch import Recorder, exclusive, on_each_gpu, on_the_cpu
from validation.checks.measured import failures
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model import checksums, shapes
from validation.model.checksums import Standing
from validation.model.contract import Digest, Finding, GpuIdentity, Measured, TestResult
from validation.model.plans import Timing
from validation.model.shapes import MatmulShape
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome

#: The largest deviation that rounding explains, of a row's checksum over its RMS value (Matmul.error says how
#: it is taken). Rounding of operands or result: 2^-24 relative for fp32, 2^-11 for tf32 and fp16, 2^-8 for
#: bf16; averaged over a row, times four. Tensor cores cut fp32 operands off to tf32, which deviates by 0.0026
#: where rounding does by 0.0013 (emulated on a CPU). fp8 products come out in bf16, added less exactly.
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 5e-3, "bf16": 2e-2, "fp8": 5e-2}
#: What stands behind the number format in the name of numbers of the fastest published shape, and of the one
#: that was found to be the fastest here.
BEST, FOUND = "_best", "_found"
#: Shapes that are this much slower than the fastest are as fast: then the first of them is taken, so that
#: GPUs that are alike find the same, and compare.
AS_FAST = 0.01
#: What emptying a cache takes, and some room for libraries.
COLD_BYTES = 512 << 20


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every number format that was asked for and that the device has. Raises NotRunError."""
    backend = make(request.backend, request.device, stage)
    with exclusive(request, stage):
        return multiply(backend, request, stage)


def multiply(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    parameters, supported = request.parameters, backend.dtypes()
    recorder, unit = Recorder(backend, request, stage), parameters["unit"]
    products = {name: MatmulShape(*shape) for name, shape in parameters["products"].items()}
    # Those for one number format: its long measurement, and the fastest shape, which is measured cold.
    wanted = [name for name in products if _dtype(name) in supported]
    skipped = [name for name in products if name not in wanted]
    tried = {
        dtype: [MatmulShape(*shape) for shape in of]
        for dtype, of in parameters.get("search", {}).items()
        if dtype in supported
    }
    cold_bytes = COLD_BYTES if tried or any(name.endswith(BEST) for name in wanted) else 0
    every = [products[name] for name in wanted] + [shape for of in tried.values() for shape in of]
    recorder.need(max((shape.needed_bytes for shape in every), default=0) + cold_bytes)
    digests: dict[str, Digest] = {}
    searched: dict[str, dict[str, float]] = {}
    for name in [*wanted, *(f"{dtype}{FOUND}" for dtype in tried)]:
        dtype, best = _dtype(name), name.endswith((BEST, FOUND))
        if name.endswith(FOUND):
            products[name], searched[dtype] = _fastest(backend, dtype, tried[dtype], parameters, stage)
        shape = products[name]
        stage(f"making the {dtype} matrices of {shape}")
        operation = backend.matmul(dtype, shape, cold=best)
        conditions: dict[str, int | str] = {**shape._asdict(), "dtype": dtype}
        if parameters.get("compare_bits"):
            stage(f"taking the checksum of a {dtype} product of {shape}")
            taken = operation.digest()
            digests[name] = Digest(name, taken, recorder.device, conditions | backend.software())
        recorder.rate(
            f"{name}_{unit}",
            operation,
            doing=f"multiplying {shape} in {dtype}",
            scale=parameters["scale"],
            conditions=conditions | ({"cache": "emptied"} if best else {}),
            peak="" if best else f"{name}_peak_{unit}",
            timing=Timing(**parameters["best_timing"]) if best else None,
        )
        if name in digests and (again := operation.digest()) != digests[name].value:
            recorder.find(
                "not-repeatable",
                "load",
                who=request.name,
                dtype=dtype,
                before=digests[name].value,
                after=again,
            )
        recorder.check(
            operation,
            doing=f"checking the {dtype} product of {shape}",
            case="product",
            tolerance=TOLERANCE[dtype],
            dtype=dtype,
            shape=shape,
            limit=TOLERANCE[dtype],
        )
        del operation  # its memory is for the next one
    details: dict[str, Any] = {"not_supported": skipped} if skipped else {}
    if origin := parameters.get("shapes_of"):
        details["shapes_of"] = origin
    if searched:
        details["searched"] = searched
    return recorder.measured(details, digests=digests.values())


def _dtype(name: str) -> str:
    """Return the number format of a product: `bf16` of `bf16_best`."""
    return name.partition("_")[0]


def _fastest(
    backend: Backend,
    dtype: str,
    tried: list[MatmulShape],
    parameters: dict[str, Any],
    stage: Callable[[str], None],
) -> tuple[MatmulShape, dict[str, float]]:
    """Return the shape that is the fastest on this device, and what each one reached: the evidence."""
    timing, scale = Timing(**parameters["search_timing"]), parameters["scale"]
    rates: dict[MatmulShape, float] = {}
    for shape in tried:
        doing = f"trying {shape} in {dtype}"
        stage(doing)
        operation = backend.matmul(dtype, shape, cold=True)
        seconds, _ = times(backend, operation, timing, partial(stage, doing))
        rates[shape] = shape.flop / statistics.median(seconds) / scale
        del operation  # its memory is for the next one
    enough = (1 - AS_FAST) * max(rates.values())
    found = next(shape for shape, rate in rates.items() if rate >= enough)
    return found, {str(shape): round(rate, 4) for shape, rate in rates.items()}


def multiplied(node: Node, gpu: GpuIdentity, formats: Iterable[str], *, best: bool = False) -> dict[str, Any]:
    """Return what a GPU is to multiply, for the parameters of its request."""
    references = node.expectation.references
    products = {dtype: shapes.sustained(references, gpu.pci_id, dtype) for dtype in formats}
    parameters: dict[str, Any] = {"shapes_of": shapes.origin(references, gpu.pci_id)}
    if best and node.plan.gpu_best:
        found = shapes.best(references, gpu.pci_id)
        products |= {f"{dtype}{BEST}": shape for dtype, shape in found.items()}
        parameters["best_timing"] = dataclasses.asdict(node.plan.gpu_best)
    if best and node.plan.gpu_best and node.plan.gpu_search:
        parameters["search"] = {dtype: shapes.candidates(references, gpu.pci_id, dtype) for dtype in formats}
        parameters["search_timing"] = dataclasses.asdict(node.plan.gpu_search)
    return parameters | {"products": products}


def odd_ones_out(outcomes: list[ProcessOutcome], gpus: tuple[GpuIdentity, ...]) -> list[Finding]:
    """GPUs whose product differs in some bit from that of the others of their model."""
    names = {gpu.index: gpu.name for gpu in gpus}
    equals: dict[Hashable, list[tuple[ProcessOutcome, Digest]]] = {}
    for outcome in outcomes:
        for digest in outcome.measured.digests:
            key = (names.get(outcome.request.device), digest.name, digest.taken)
            equals.setdefault(key, []).append((outcome, digest))
    findings = []
    for members in equals.values():
        found = checksums.standings([digest.value for _, digest in members])
        usual = found.count(Standing.USUAL)
        findings += [
            _differs(outcome, digest, usual)
            for (outcome, digest), one in zip(members, found, strict=True)
            if one is not Standing.USUAL
        ]
    return findings


def _differs(outcome: ProcessOutcome, digest: Digest, usual: int) -> Finding:
    """Return what to say of a GPU whose product differs from that of `usual` others, or of all."""
    gpu, product = outcome.request.device, checksums.product(digest)
    outvoted = usual > 1 and not checksums.rounds(digest)
    if outvoted or checksums.computes_wrong(gpu, outcome.measured.findings):
        return finding("gpu-differs", "wrong", gpu=gpu, product=product)
    if usual:
        return finding("gpu-differs", "minority", gpu=gpu, product=product, others=usual)
    return finding("gpu-differs", "undecided", gpu=gpu, product=product)


class CpuMatmul(Check):
    """fp32, square, 2 n³ operations, all CPUs (or `OMP_NUM_THREADS`)."""

    id = "cpu_matmul"
    title = "fp32 matrix multiplication on the CPU"
    place = 100
    scope = Scope.CPU
    needs = (TORCH,)
    passes = "Freivalds' check in fp64: `C r` equals `A (B r)` for a random `r` of ±1, up to rounding"
    method = 2  # 2: the conditions are m, n and k
    headline = ("fp32_gflops",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield from series(idle.plan.cpu)
        yield CostStep("check", idle.product)

    def perform(self, node: Node) -> TestResult:
        """Multiply on this node."""
        size = node.plan.cpu_matmul_size(node.cpus)
        parameters = {
            "products": {"fp32": (size, size, size)},
            "timing": dataclasses.asdict(node.plan.cpu),
            "unit": "gflops",
            "scale": 1e9,
        }
        return on_the_cpu(self, node, parameters, reuse=True)


class GpuMatmul(Check):
    """fp32, tf32, fp16, bf16, fp8 on all GPUs at the same time, what the chip has of them.

    Sustained (the median) and peak (the fastest tenth). The shape is fixed for each architecture in
    `data/gpu_models.yml` (mostly 8192 x 8192 x 8192, as of published values; that of an unknown GPU, too).
    Beyond `quick` also the fastest shape that is published for the model or its architecture
    (`bf16_best_tflops`, `fp8_best_tflops`), with the cache emptied before each run. In `standard` a dozen
    shapes are tried, and the fastest is measured likewise (`bf16_found_tflops`; the details have all).
    """

    id = "gpu_matmul"
    title = "matrix multiplication on every GPU"
    place = 200
    scope = Scope.EACH_GPU
    needs = (CUDA,)
    passes = (
        "as `cpu_matmul`; the product has the same bits before and after the load, on all GPUs of a model, "
        "on equal GPUs of other nodes, and in earlier runs of the same GPU"
    )
    method = 4  # 2: one warm-up for all; 3: shapes of the architecture; 4: the first call warms nothing
    headline = ("bf16_tflops", "fp16_tflops", "fp32_tflops")
    proves_a_gpu = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield CostStep("contexts", idle.contexts)
        yield from series(idle.plan.gpu, len(shapes.FORMATS))
        yield from series(idle.plan.gpu_best, 2) if idle.plan.gpu_best else ()
        if idle.plan.gpu_best and idle.plan.gpu_search:
            tried = 2 + len(shapes.TILES_OF_AN_SM) * len(shapes.DEPTHS)
            brief = idle.plan.gpu_search.warm_up_s + idle.plan.gpu_search.measure_s
            yield CostStep("try shapes", brief + idle.product / 3, tried * len(shapes.FORMATS))
            yield from series(idle.plan.gpu_best, len(shapes.FORMATS))
        yield CostStep("check", idle.product, len(shapes.FORMATS))
        yield CostStep("counters", idle.nvidia_smi)

    def perform(self, node: Node) -> TestResult:
        """Multiply on this node: in real work, too, GPUs share power and air."""
        return on_each_gpu(
            self,
            node,
            {
                "compare_bits": True,
                "timing": dataclasses.asdict(node.plan.gpu),
                "unit": "tflops",
                "scale": 1e12,
            },
            lambda gpu: multiplied(node, gpu, shapes.FORMATS, best=True),
            lambda outcomes: failures(outcomes) + odd_ones_out(outcomes, node.gpus),
        )


class GpuMatmulAlone(Check):
    """fp16 and bf16, one GPU after the other, when it shares neither power nor air."""

    id = "gpu_matmul_alone"
    title = "matrix multiplication, one GPU at a time"
    place = 210
    scope = Scope.EACH_GPU
    needs = (CUDA,)
    plans = ("standard",)
    passes = "as `cpu_matmul`"
    method = 3  # 2: shapes of the architecture; 3: no turn begins before all GPUs are ready
    headline = ("bf16_alone_tflops", "fp16_alone_tflops")

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes, in the processes of the test before."""
        yield from series(idle.plan.gpu_copy, 2, idle.gpus)
        yield CostStep("check", idle.product, 2 * idle.gpus)

    def perform(self, node: Node) -> TestResult:
        """Multiply on this node."""
        return on_each_gpu(
            self,
            node,
            {"timing": dataclasses.asdict(node.plan.gpu_copy), "unit": "alone_tflops", "scale": 1e12},
            lambda gpu: multiplied(node, gpu, ("fp16", "bf16")),
            one_at_a_time=True,
        )
