"""Every query of every dashboard has an answer in a real Prometheus that holds what nodes have written."""

import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.judge.fleet_metrics import METRICS
from tests.unit.each import each
from tests.unit.gpu_simulator.conftest import SimulatedNode
from tests.unit.monitoring import programs
from tests.unit.monitoring.samples import instance, scraped
from tests.unit.validation.samples import node
from tools import dashboards
from validation.metrics.exposition import Exposition
from validation.probes.kernel_log import KernelLog, events
from validation.probes.machine import PciGpu
from validation.probes.nvidia_smi import parse
from validation.probes.nvlink import Links

START_S, MINUTES = 1_790_000_000, 180


@each(*dashboards.DASHBOARDS)
def test_a_dashboard_can_be_provisioned_anywhere(name: str) -> None:
    text = dashboards.documents()[dashboards.FOLDER / f"{name}.json"]
    found = json.loads(text)
    assert found["uid"] == f"temper-{name}"
    assert "id" not in found
    assert not any("id" in panel for panel in found["panels"])
    sources = re.findall(r'"datasource": \{\s*"type": "prometheus",\s*"uid": "([^"]*)"', text)
    assert set(sources) == {"${datasource}"}
    assert len(sources) == text.count('"datasource": {')
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]}
    assert len(places) == len(found["panels"])


def samples(folder: Path) -> dict[str, float]:
    """What Prometheus has of a node with eight GPUs that has faults, of the controller, and of alerts."""
    simulated = SimulatedNode(folder, "hgx-h100-8")
    simulated.install("580.126.09")
    simulated.boot()
    simulated.fault("ecc-errors")
    printed = simulated.smi("-q", "-x").stdout
    gpus = parse(printed).gpus
    log = events([f"NVRM: Xid (PCI:{gpus[0].pci_address[:-2]}): 48, pid=1, DBE"])
    tested = node(
        printed,
        pci_gpus=tuple(PciGpu(gpu.pci_address, gpu.pci_id) for gpu in gpus),
        kernel_log=lambda: KernelLog(log),
        nvlinks=lambda: {gpu.index: Links(18, ()) for gpu in gpus},
    )
    counts = {gpu.index: {"nvlink 3 Replay Errors": 2} for gpu in gpus}
    tested.probe.counts = lambda: counts  # type: ignore[method-assign]
    controller = Exposition(METRICS)
    controller.set("temper_validation_timestamp_seconds", START_S, node="gpu01")
    controller.set("temper_validation_state", 1, node="gpu01", state="pass")
    labels = instance("gpu01")
    return {
        **scraped(tested),
        **{
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in controller.text().splitlines()
            if not line.startswith("#")
        },
        f"temper_maintenance{{{labels}}}": 1,
        f"temper_metrics_last_success_timestamp_seconds{{{labels}}}": START_S,
        f"temper_metrics_duration_seconds{{{labels}}}": 2.5,
        f'ALERTS{{{labels},alertname="TemperXid48",alertstate="firing"}}': 1,
    }


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped the samples for hours."""
    folder = tmp_path_factory.mktemp("prometheus")
    recorded = samples(folder / "node")
    lines = [
        f"{series} {value:g} {START_S + 60 * minute}"
        for series, value in recorded.items()
        for minute in range(MINUTES)
    ]
    (folder / "samples").write_text("\n".join([*lines, "# EOF", ""]))
    created = programs.run(
        "promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data"
    )
    assert created.returncode == 0, created.stderr
    (folder / "prometheus.yml").write_text("{}\n")
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with programs.server("prometheus", [*options, "--storage.tsdb.retention.time=100y"], "/-/ready") as url:
        yield url


def ask(prometheus: str, path: str, **query: object) -> Any:
    """What Prometheus' API answers."""
    found = json.loads(programs.get(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
    assert found["status"] == "success"
    return found["data"]


@pytest.mark.component
def test_each_query_has_an_answer(prometheus: str) -> None:
    asked = [
        (name, panel.title, expr.replace("$node", "gpu01:9100").replace("$gpu", "0"))
        for name, (_, panels, _) in dashboards.DASHBOARDS.items()
        for panel in panels
        for expr in panel.queries.values()
    ]
    assert asked

    def silent(query: str) -> bool:
        at = START_S + 60 * (MINUTES - 1)
        return "$" in query or not ask(prometheus, "query", query=query, time=at)["result"]

    assert [one for one in asked if silent(one[2])] == []


@pytest.mark.component
def test_a_variable_has_values_to_choose_from(prometheus: str) -> None:
    for one in (dashboards.OF_NODE, dashboards.OF_GPU):
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
        assert match
        selector = match[1].replace("$node", "gpu01:9100")
        times = {"start": START_S, "end": START_S + 60 * MINUTES}
        assert ask(prometheus, f"label/{match[2]}/values", **{"match[]": selector}, **times)
