"""The payload's tests of GPUs, run on the stand-in: whole plans, training steps, injected faults."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cuda.environment import Environment
from tests.lab.cuda.machine import Machine
from validation.backends.libraries import release
from validation.checks.copy import HOST_CACHE_TORCH
from validation.checks.precision import TOLERANCE
from validation.model.contract import FABRIC_VERSION

MakeMachine = Callable[..., Machine]

pytestmark = pytest.mark.cuda

BACKEND_TRIAL = Path(__file__).with_name("backend_trial.py")
CHECKS_TRIAL = Path(__file__).with_name("checks_trial.py")
#: Of each GPU for the model of checks_trial.py: the search of the largest batch comes to an end.
LITTLE_MIB = 300
#: Of each of eight GPUs: what the quick plan needs at least. The host has it eight times, and processes.
QUICK_MIB, HOST_MIB = 2250, 21000
#: Of many GPUs: what a copy between two needs.
PEER_MIB = 1500
#: Of the quick plan: what runs on one GPU and, with one more, what runs on two.
QUICK = ("torch", "gpu_matmul", "gpu_memory", "gpu_transfer")
BETWEEN_GPUS = ("gpu_all_reduce",)


def states(result: dict[str, Any]) -> dict[str, str]:
    return {test["id"]: test["state"] for test in result["tests"]}


def findings(result: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(one["code"], one["device"]) for test in result["tests"] for one in test["findings"]]


def available_mib() -> int:
    """Memory of this host that processes can get."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.parametrize("gpus", [1, 8])
def test_quick_plan_passes(machine: MakeMachine, environment: Environment, gpus: int) -> None:
    if gpus > 1 and available_mib() < HOST_MIB:
        pytest.skip(f"{gpus} GPUs need {HOST_MIB} MiB of the host's memory; {available_mib()} MiB are free")
    result, done = machine(environment, gpus, memory_mib=QUICK_MIB).validate("--plan", "quick")
    assert not findings(result), done.stdout
    wanted = QUICK + (BETWEEN_GPUS if gpus > 1 else ())
    assert {test: states(result)[test] for test in wanted} == dict.fromkeys(wanted, "pass")


def test_products_have_the_same_bits_on_all_gpus(machine: MakeMachine, newest: Environment) -> None:
    result, _ = machine(newest, 4).validate("--test", "gpu_matmul")
    (test,) = result["tests"]
    assert test["state"] == "pass"
    by_name: dict[str, set[str]] = {}
    for digest in test["digests"]:
        by_name.setdefault(digest["name"], set()).add(digest["value"])
    assert len(by_name) == len(("fp32", "tf32", "fp16", "bf16", "fp8"))
    assert all(len(values) == 1 for values in by_name.values())


def test_copies_reach_every_peer(machine: MakeMachine, environment: Environment) -> None:
    result, done = machine(environment, 4).validate("--test", "gpu_peers")
    assert states(result) == {"gpu_peers": "pass"}, done.stdout
    (test,) = result["tests"]
    assert len(test["measurements"]) == 4 * 3


def test_peers_are_all_reached_where_fewer_may_be_mapped(
    machine: MakeMachine, environment: Environment
) -> None:
    result, done = machine(environment, 4, peers=1).validate("--test", "gpu_peers")
    assert states(result) == {"gpu_peers": "pass"}, done.stdout
    (test,) = result["tests"]
    assert len({(one["device"], one["conditions"]["to"]) for one in test["measurements"]}) == 4 * 3
    assert "in_another_process_to" in test["details"]["GPU 0"]


def test_more_gpus_than_can_be_peers_at_once_take_turns(machine: MakeMachine, newest: Environment) -> None:
    """Of ten GPUs without NVSwitches each may map eight others: no process asks for more."""
    result, done = machine(newest, 10, memory_mib=PEER_MIB).validate("--test", "gpu_peers", cpu_s=1800)
    assert states(result) == {"gpu_peers": "pass"}, done.stdout
    (test,) = result["tests"]
    assert len({(one["device"], one["conditions"]["to"]) for one in test["measurements"]}) == 10 * 9
    assert "in_another_process_to" not in json.dumps(test["details"])


def test_all_reduce_over_sixteen_gpus(machine: MakeMachine, newest: Environment) -> None:
    result, done = machine(newest, 16, memory_mib=PEER_MIB).validate("--test", "gpu_all_reduce")
    (test,) = result["tests"]
    assert (test["state"], test["findings"]) == ("pass", []), done.stdout
    (measured,) = test["measurements"]
    assert measured["conditions"]["ranks"] == 16


def test_every_collective_is_exact(machine: MakeMachine, newest: Environment) -> None:
    result, done = machine(newest, 2).validate("--plan", "standard", "--test", "gpu_all_reduce")
    (test,) = result["tests"]
    assert (test["state"], test["findings"]) == ("pass", []), done.stdout
    measured = {one["name"] for one in test["measurements"]}
    kinds = ("all_gather", "reduce_scatter", "all_to_all")
    assert measured == {"busbw_gb_s", *(f"{kind}_busbw_gb_s" for kind in kinds)}


def test_training_steps_are_right(machine: MakeMachine, environment: Environment) -> None:
    """What gpu_amp, gpu_step_memory and gpu_batch ask of a backend, on a model that a host can train."""
    done = machine(environment).start(str(BACKEND_TRIAL), cpu_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["errors"].keys() == {"fp32", "tf32", "bf16", "accumulated", "checkpointed"}
    plain = TOLERANCE["fp32"]
    assert all(error <= TOLERANCE.get(way, plain) for way, error in found["errors"].items()), found
    assert 0 < found["peak_bytes"]["checkpointed"] < found["peak_bytes"]["fp32"]
    assert found["too_large"] is None
    assert found["loading_error"] == 0
    assert found["multicast"] is False
    assert found["keeps_pinned"] == (release(environment.version) < HOST_CACHE_TORCH)
    assert found["copies"] == dict.fromkeys(("both", "h2d_pageable", "d2h_pageable"), 0)


def trained(machine: Machine, folder: Path, *tests: str) -> dict[str, list[dict[str, Any]]]:
    """What the checks that train find on small models, rank by rank; all of it came to an end."""
    done = machine.start(str(CHECKS_TRIAL), str(folder), *tests, cpu_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    parts = [part for parts in found.values() for part in parts]
    assert not [part for part in parts if part["ending"] != "done" or part["not_run"]], found
    return found


def test_checks_that_train(machine: MakeMachine, environment: Environment, tmp_path: Path) -> None:
    """Their code on a GPU, on a small model. No kernel runs, so that the profile has none."""
    tests = ("gpu_amp", "gpu_step_memory", "gpu_batch", "gpu_convolution", "gpu_profile")
    found = trained(machine(environment, memory_mib=LITTLE_MIB), tmp_path, *tests)
    (profile,) = found.pop("gpu_profile")
    assert [finding["code"] for finding in profile["findings"]] == ["profile-empty"]
    assert (tmp_path / "trace-gpu0.json.gz").exists()
    assert not any(one["findings"] for (one,) in found.values()), found
    (amp,), (memory,), (batch,), (convolution,) = found.values()
    assert amp["details"]["bf16_gain_over"].keys() == {"fp32", "tf32"}
    assert all(share < 1 for share in memory["details"]["memory_over_plain"].values())
    values = {one["name"]: one["value"] for one in batch["measurements"]}
    # Larger ones were tried, and had no room.
    assert 0 < values["largest_batch_samples"] < max(batch["details"]["tried"])
    assert convolution["details"]["format"] == "bf16"
    measured = {one["name"] for one in convolution["measurements"]}
    assert {"channels_last_gain_times", "autotune_gain_times"} < measured


def test_a_gpu_without_bf16_trains_in_fp16_with_a_scaled_loss(
    machine: MakeMachine, environment: Environment, tmp_path: Path
) -> None:
    turing = machine(environment, major=7, minor=5)
    (amp,), (convolution,) = trained(turing, tmp_path, "gpu_amp", "gpu_convolution").values()
    assert not amp["findings"] + convolution["findings"]
    assert amp["details"]["fp16_gain_over"].keys() == {"fp32"}
    # The scaler's first scale lets gradients overflow, or never: its steps are counted either way.
    assert 0 <= amp["details"]["skipped_steps"]["skipped"] < amp["details"]["skipped_steps"]["steps"]
    assert convolution["details"]["format"] == "fp16"


def test_gpus_that_train_together_have_the_mean_of_all_gradients(
    machine: MakeMachine, environment: Environment, tmp_path: Path
) -> None:
    (ranks,) = trained(machine(environment, 2), tmp_path, "gpu_parallel_training").values()
    assert [rank["findings"] for rank in ranks] == [[], []]
    assert all(rank["details"]["seconds"] for rank in ranks)


def test_fabric_between_two_nodes(tmp_path: Path, newest: Environment) -> None:
    """Two machines with a GPU each; their ranks meet over TCP, as those of nodes do."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    names = ("left", "right")
    group = [{"name": name, "address": "127.0.0.1", "ranks": 1} for name in names]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    order = {
        "schema_version": FABRIC_VERSION,
        "group": group,
        "port": port,
        "library": "nccl",
        "plan": "quick",
        "run": "a round",
        "nodes_in_round": len(names),
    }

    def take_part(name: str) -> dict[str, Any]:
        node = Machine(tmp_path / name, newest, settings={"meeting": str(meeting)})
        text = json.dumps(order | {"node": name})
        done = node.start("-m", "validation", "fabric", "--order", "-", text=text, cpu_s=300)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(take_part, names))
    ranks = [rank for part in parts for rank in part["ranks"]]
    assert [(rank["ending"], rank["findings"]) for rank in ranks] == [("done", [])] * len(names)
    assert all(rank["seconds"] for rank in ranks)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and what the payload makes of it: a finding with its GPU, or why nothing ran.

    `words` are its own: CUDA's or NCCL's, or those of the reason. `torch` names a fixture.
    """

    test: str
    injected: str = ""
    gpus: int = 1
    settings: dict[str, float] = field(default_factory=dict)
    finding: tuple[str, int | None] | None = None
    words: str = ""
    torch: str = "newest"
    #: Of a test that has a finding.
    state: str = "fail"


NO_MEMORY = ("cuda-out-of-memory", 0)
FAULTS = {
    "an uncorrectable memory error while it copies": Fault(
        "gpu_transfer",
        "cudaMemcpyAsync:20:214",
        finding=("cuda-ecc-error", 0),
        words="uncorrectable ECC error encountered",
    ),
    "an illegal access in a kernel": Fault(
        "gpu_matmul",
        "cudaLaunchKernel:20:700",
        finding=("cuda-launch-error", 0),
        words="an illegal memory access was encountered",
    ),
    "another program has the GPU": Fault(
        "gpu_matmul", "context:1:46", finding=("cuda-busy", 0), words="busy or unavailable", state="not-run"
    ),
    "another program has the GPU, and torch notices late": Fault(
        "gpu_matmul",
        "context:1:46",
        finding=("cuda-busy", 0),
        words="busy or unavailable",
        torch="oldest",
        state="not-run",
    ),
    "a GPU that this torch has no kernels for": Fault(
        "gpu_matmul", settings={"major": 6, "minor": 0}, words="6.0"
    ),
    "the fabric is not ready": Fault("gpu_matmul", "init:1:802", words="system not yet initialized"),
    "a driver that is too old": Fault("gpu_matmul", settings={"driver_cuda": 11080}, words="driver"),
    "no memory for cuBLAS": Fault(
        "gpu_matmul", "cublasCreate:1:3", finding=NO_MEMORY, words="memory", state="not-run"
    ),
    "cuBLAS cannot start on a full GPU": Fault(
        "gpu_matmul",
        "cublasCreate:1:1",
        settings={"memory_mib": 300},
        finding=NO_MEMORY,
        words="memory ran out: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED",
        state="not-run",
    ),
    "cuBLAS cannot start on an empty GPU": Fault(
        "gpu_matmul",
        "cublasCreate:1:1",
        finding=("process-died", 0),
        words="CUBLAS_STATUS_NOT_INITIALIZED",
    ),
    "no page-locked memory": Fault(
        "gpu_transfer", "cudaHostAlloc:1:2", finding=NO_MEMORY, words="memory ran out", state="not-run"
    ),
    "a copy that never ends": Fault(
        "gpu_transfer",
        "cudaMemcpyAsync:5:hang",
        finding=("process-hung", 0),
        words="copying h2d",
    ),
    "a rank that stops": Fault(
        "gpu_all_reduce",
        "ncclAllReduce:5:hang@1",
        gpus=2,
        finding=("rank-hung", None),
        words="rank 1 (GPU 1) (in ",
    ),
    "a rank's collective fails": Fault(
        "gpu_all_reduce",
        "ncclAllReduce:3:2@1",
        gpus=2,
        finding=("process-died", 1),
        words="unhandled system error",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(machine: MakeMachine, request: pytest.FixtureRequest, name: str) -> None:
    fault = FAULTS[name]
    on = machine(request.getfixturevalue(fault.torch), fault.gpus, **fault.settings)
    result, done = on.validate("--test", fault.test, faults=fault.injected)
    (test,) = result["tests"]
    if fault.finding:
        assert (test["state"], findings(result)) == (fault.state, [fault.finding]), done.stdout
        assert fault.words in json.dumps(test["findings"])
    else:
        assert (test["state"], test["findings"]) == ("not-run", []), done.stdout
        assert fault.words in test["reason"]
