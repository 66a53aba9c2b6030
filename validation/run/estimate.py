"""How long the quick plan takes on an idle node, as a sum of the plan's own numbers and of what things cost.

The costs are assumptions for a server with eight GPUs and persistence mode: none was at hand to measure them.
The rest is arithmetic. docs/validation.md shows the sum; a test keeps it there, and under a minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.checks.recorder import LATER_WARM_UP

if TYPE_CHECKING:
    from validation.model.plans import Plan, Timing

MATMUL_FORMATS = 5  # what Hopper and newer have of them


@dataclass(frozen=True)
class Costs:
    """Seconds that something takes, whatever the plan says."""

    first_start: float = 6.0  # Python and torch, from disk
    start: float = 3.0  # the same from the page cache, on all GPUs at once
    contexts: float = 2.0  # one on each GPU, at once
    nvidia_smi: float = 1.0  # nvidia-smi -q -x, on all GPUs
    libraries: float = 1.8  # cuDNN, NCCL, and a computation on each GPU, one after the other
    container: float = 5.0  # start one and ask nvidia-smi there
    product: float = 0.3  # make matrices, checksums and the check of a product
    buffers: float = 2.0  # page-locked memory filled with a pattern, and compared at the end
    pattern: float = 0.5  # write and read the memory that the quick plan tests
    communicator: float = 4.0  # NCCL finds its ways
    gloo: float = 1.0  # ranks meet, sum, and check


def rows(plan: Plan, gpus: int = 8, costs: Costs | None = None) -> dict[str, tuple[float, str]]:
    """Seconds of each test of the quick plan, and how they come about."""
    c, cpu, gpu, copy = costs or Costs(), plan.cpu, plan.gpu, plan.gpu_copy
    turn = _series(copy, len(plan.gpu_directions))
    sizes = len(plan.gpu_all_reduce_bytes) if plan.sweep else 2
    return {
        "health": (2 * c.nvidia_smi, "nvidia-smi twice"),
        "platform": (0.1, "reads sysfs"),
        "torch": (
            c.first_start + c.contexts + c.libraries,
            f"first start {c.first_start:g}, contexts {c.contexts:g}, libraries {c.libraries:g}",
        ),
        "gpu_container": (c.container, "one container"),
        "cpu_matmul": (
            c.start + _series(cpu, 1) + c.product,
            f"start {c.start:g}, warm up {cpu.warm_up_s:g}, measure {cpu.measure_s:g}, check {c.product:g}",
        ),
        "cpu_copy": (
            _series(cpu, 1) + c.product,
            f"same process: warm up {cpu.warm_up_s:g}, measure {cpu.measure_s:g}, check {c.product:g}",
        ),
        "cpu_all_reduce": (c.start + c.gloo, f"start {c.start:g}, ranks {c.gloo:g}"),
        "gpu_matmul": (
            c.start + c.contexts + _series(gpu, MATMUL_FORMATS) + MATMUL_FORMATS * c.product + c.nvidia_smi,
            f"start {c.start:g}, contexts {c.contexts:g}, warm up {gpu.warm_up_s:g} and "
            f"{MATMUL_FORMATS - 1} x {LATER_WARM_UP * gpu.warm_up_s:g}, {MATMUL_FORMATS} formats x "
            f"({gpu.measure_s:g} + check {c.product:g}), counters {c.nvidia_smi:g}",
        ),
        "gpu_memory": (
            _series(copy, 2) + c.pattern + c.nvidia_smi,
            f"same processes: 2 x {copy.measure_s:g} after {copy.warm_up_s:g}, pattern {c.pattern:g}, "
            f"counters {c.nvidia_smi:g}",
        ),
        "gpu_transfer": (
            c.buffers + gpus * turn + c.nvidia_smi,
            f"same processes: buffers {c.buffers:g}, {gpus} GPUs in turn x {turn:.2f}, "
            f"counters {c.nvidia_smi:g}",
        ),
        "gpu_all_reduce": (
            c.communicator + sizes * plan.all_reduce_s * 1.3 + c.nvidia_smi,
            f"same processes: NCCL {c.communicator:g}, {sizes} sizes x {plan.all_reduce_s:g} and 30 % "
            f"for warm-up and check, counters {c.nvidia_smi:g}",
        ),
        "health_after": (2 * c.nvidia_smi, "nvidia-smi twice"),
    }


def table(plan: Plan, gpus: int = 8) -> str:
    """The sum as docs/validation.md shows it."""
    lines = [f"| Test | Seconds on {gpus} GPUs | Made of |", "|---|---|---|"]
    found = rows(plan, gpus)
    lines += [f"| `{test}` | {seconds:.1f} | {words} |" for test, (seconds, words) in found.items()]
    lines.append(f"| all | {sum(seconds for seconds, _ in found.values()):.1f} | |")
    return "\n".join(lines) + "\n"


def _series(timing: Timing, count: int) -> float:
    """Seconds for `count` numbers of one process: it is warm after the first."""
    return timing.warm_up_s * (1 + LATER_WARM_UP * (count - 1)) + timing.measure_s * count
