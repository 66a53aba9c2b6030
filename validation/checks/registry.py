"""All tests, in the order in which they run: what only reads, the CPU, the GPUs, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.checks.aftermath import HealthAfter
from validation.checks.batch import CpuBatch, GpuBatch
from validation.checks.collectives import CpuAllReduce, GpuAllReduce, GpuAllReduceNvls, GpuAllReduceRing
from validation.checks.container import GpuContainer
from validation.checks.copy import CpuCopy, GpuTransfer, GpuTransferRemote, GpuTransferTogether
from validation.checks.frameworks import Frameworks
from validation.checks.health import Health
from validation.checks.loading import DataLoading
from validation.checks.matmul import CpuMatmul, GpuMatmul, GpuMatmulAlone
from validation.checks.memory import GpuMemory, GpuPeers
from validation.checks.platform import Platform
from validation.checks.precision import CpuAmp, GpuAmp
from validation.checks.profile import CpuProfile, GpuProfile
from validation.checks.step_memory import CpuStepMemory, GpuStepMemory
from validation.checks.storage import StorageRead

if TYPE_CHECKING:
    from validation.checks.check import Check

CHECKS: dict[str, Check] = {
    check.id: check
    for check in (
        Health(),
        Platform(),
        Frameworks(),
        GpuContainer(),
        CpuMatmul(),
        CpuCopy(),
        CpuAllReduce(),
        GpuMatmul(),
        GpuMatmulAlone(),
        GpuMemory(),
        GpuTransfer(),
        GpuTransferTogether(),
        GpuTransferRemote(),
        GpuPeers(),
        GpuAllReduce(),
        GpuAllReduceRing(),
        GpuAllReduceNvls(),
        DataLoading(),
        StorageRead(),
        CpuAmp(),
        GpuAmp(),
        CpuStepMemory(),
        GpuStepMemory(),
        CpuBatch(),
        GpuBatch(),
        CpuProfile(),
        GpuProfile(),
        HealthAfter(),
    )
}

TESTS = tuple(CHECKS)
#: The measurements that stand for each test, the best first.
HEADLINES = {check.id: check.headline for check in CHECKS.values()}
