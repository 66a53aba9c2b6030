"""The report of five nodes, of which one hands over a result that no payload would write.

tests/fuzz changes such a result at random.
"""

import copy
import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from temper.cli import main as temper
from temper.report import write as pages
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model import contract
from validation.model.contract import Digest, Finding, MachineAction, NodeResult, State, dumps

NAMES = ("gpu01", "gpu02", "gpu03", "gpu04", "gpu05")
EVIL = "gpu03"
OTHERS = tuple(name for name in NAMES if name != EVIL)
#: A place in a JSON document.
Path_ = tuple[str | int, ...]
REMOVED: Any = object()


def good(name: str) -> NodeResult:
    """A result that has one of everything that a report reads."""
    number = NAMES.index(name)
    telemetry = {
        "telemetry": [
            {
                "device": gpu,
                "samples": 3,
                "sm_clock_mhz_median": 1755.0,
                "power_w_max": 600.0,
                "temperature_c_max": 60,
                "event_reason_shares": {"sw_power_cap": 0.5},
                "slow_link": "PCIe link generation 3 of 5",
            }
            for gpu in range(2)
        ],
        "telemetry_series": [
            {
                "device": gpu,
                "seconds": [0.0, 1.0],
                "sm_clock_mhz": [1755.0, None],
                "power_w": [500.0, 600.0],
                "temperature_c": [50, 60],
                "event_reasons": [[], ["sw_power_cap"]],
            }
            for gpu in range(2)
        ],
    }
    pairs = {"GPU 0": {"staged_over_the_host": [1], "advice": {"DataLoader": ["use workers"]}}}
    tests = (
        one_test("health", details={"gpus": [{"device": 0, "power_limit_w": 700.0}, {"device": 1}]}),
        one_test(
            "gpu_matmul",
            State.DEGRADED,
            *(measurement(value=730.0 + number / 10, device=gpu, conditions={"m": 8192}) for gpu in range(2)),
            digests=(Digest("bf16", "00ff", 0, {"m": 8192}),),
            findings=(
                Finding(
                    "hw-thermal-slowdown", State.DEGRADED, "GPU 0 is hot", "Clean it", 0, MachineAction.NONE
                ),
            ),
            details=telemetry,
        ),
        one_test(
            "gpu_peers",
            State.PASS,
            measurement("peer_gb_s", 300.0, conditions={"to": 1}),
            measurement("peer_gb_s", 300.0, device=1, conditions={"to": 0}),
            details=pairs,
        ),
        one_test(
            "gpu_all_reduce",
            State.PASS,
            *(
                measurement("busbw_gb_s", 400.0, device=None, conditions={"size_bytes": size, "ranks": 2})
                for size in (1 << 20, 1 << 30)
            ),
        ),
        one_test("gpu_profile", State.PASS, measurement("computing_share", 0.8, conditions={})),
        one_test("cpu_copy", State.NOT_RUN, reason="torch is not installed"),
    )
    result = node_result(*tests, name=name, gpus=2)
    gpus = tuple(dataclasses.replace(gpu, uuid=f"GPU-{name}-{gpu.index}") for gpu in result.gpus)
    return dataclasses.replace(result, gpus=gpus)


def as_json(result: NodeResult) -> Any:
    """What a payload hands over."""
    return json.loads(dumps(result))


def changed(value: Any, place: Path_, new: Any) -> Any:
    """A document with another value at a place."""
    found = copy.deepcopy(value)
    within = found
    for step in place[:-1]:
        within = within[step]
    if new is REMOVED:
        del within[place[-1]]
    else:
        within[place[-1]] = new
    return found


@dataclass(frozen=True)
class Made:
    """What became of a report: status, what it printed, its files by name, and the verdicts by node."""

    status: int
    out: str
    files: dict[str, str]
    verdicts: dict[str, Any]

    def of(self, node: str) -> dict[str, str]:
        """The files of one node."""
        return {name: text for name, text in self.files.items() if node in name}


def report(folder: Path, evil: Any, *, one_page: bool = False) -> Made:
    """Make the whole report of five nodes, with pages, metrics and history, in this process."""
    results = {name: as_json(good(name)) for name in OTHERS} | {EVIL: evil}
    document = {
        "expectations": {
            "schema_version": contract.EXPECTATIONS_VERSION,
            "nodes": {name: json.loads(dumps(expectation())) for name in NAMES},
        },
        "results": {name: results[name] for name in NAMES if results[name] is not REMOVED},
    }
    options = [f"--output={folder / 'report'}", f"--metrics={folder / 'metrics'}"]
    options.append(f"--history={folder / 'history.sqlite'}")
    stdin = SimpleNamespace(buffer=io.BytesIO(json.dumps(document).encode()))
    out = io.StringIO()
    with (
        mock.patch("sys.stdin", stdin),
        mock.patch("sys.stdout", out),
        mock.patch("sys.stderr", out),
        mock.patch.object(pages, "MOST_IN_ONE_FILE", 30 if one_page else 0),
    ):
        status = temper.main(["report", "--fleet", *options])
    files = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in {".sqlite"} and not path.name.endswith(("-wal", "-shm"))
    }
    summary = json.loads(files.get("report/summary.json", '{"nodes": []}'))
    return Made(status, out.getvalue(), files, {one["node"]: one for one in summary["nodes"]})
