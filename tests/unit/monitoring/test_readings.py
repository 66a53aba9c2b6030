"""What the payload reads for monitoring, beside what nvidia-smi says in another form."""

from pathlib import Path

import pytest

from tests.unit.gpu_simulator.conftest import SimulatedNode
from validation.probes import nvidia_smi

pytestmark = pytest.mark.component


def test_the_payload_reads_in_the_report_what_a_query_says(tmp_path: Path) -> None:
    """Two ways to the same numbers: what monitoring records of the XML, and nvidia-smi's CSV."""
    h100 = SimulatedNode(tmp_path, "hgx-h100-8")
    h100.install("580.126.09")
    h100.boot()
    h100.fault("ecc-errors")
    report = nvidia_smi.parse(h100.smi("-q", "-x").stdout)
    fields = (
        "temperature.gpu,temperature.memory,power.draw,clocks.sm,clocks.mem,clocks.max.sm,utilization.gpu,"
        "memory.total,ecc.errors.uncorrected.aggregate.total,ecc.errors.corrected.aggregate.total,"
        "remapped_rows.correctable,remapped_rows.uncorrectable"
    )
    said = [
        (
            *(of.temperature_c, of.memory_temperature_c, of.power_w),
            *(of.clocks_mhz["sm"], of.clocks_mhz["memory"], of.clocks_max_mhz["sm"]),
            *((of.utilization or 0) * 100, of.memory_total_mib),
            *(of.ecc_uncorrected_aggregate, of.ecc_corrected_aggregate),
            *(of.remapped_rows["corrected"], of.remapped_rows["uncorrected"]),
        )
        for of in (gpu.readings for gpu in report.gpus)
    ]
    assert said == [tuple(map(float, row)) for row in h100.query(fields)]
    assert {len(gpu.readings.event_reasons) for gpu in report.gpus} == {6}
    assert {len(gpu.readings.slowdown_s) for gpu in report.gpus} == {5}
