"""Profiles: shares of the time from a trace, on a scripted backend and with real steps, and what is kept."""

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from tests.unit.validation.test_training import ignore, request
from validation.backends import traces
from validation.backends.traces import LOADING, STEP
from validation.checks import profile
from validation.checks.registry import asked_for, in_plan
from validation.cli import commands, main
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.model.plans import RunOptions


def event(name: str, start: float, length: float, kind: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length}


#: 100 us: 10 of loading, kernels from 20 to 60 in two streams, a copy from 60 to 70.
EVENTS = [
    event(LOADING, 1000, 10),
    event(STEP, 1010, 90),
    event("gemm", 1020, 30, "kernel"),
    event("gemm", 1040, 20, "kernel"),
    event("copy", 1060, 10, "gpu_memcpy"),
    event("aten::mm", 1015, 20, "cpu_op"),
    event("before", 0, 500, "kernel"),
    {"ph": "M", "name": "process_name"},
]


ON_A_GPU = traces.Shares(
    computing=0.4,
    loading=0.1,
    idle=0.5,
    seconds=1e-4,
    transfers=0.1,
    only_transfers=0.1,
    awaiting_data=0.1,
)


@each(
    (EVENTS, True, ON_A_GPU),
    # A copy beside a kernel holds nothing up.
    (
        [*EVENTS, event("copy", 1030, 20, "gpu_memcpy")],
        True,
        dataclasses.replace(ON_A_GPU, transfers=0.3, only_transfers=0.1),
    ),
    # On a CPU, operators are the work.
    (EVENTS, False, traces.Shares(computing=0.2, loading=0.1, idle=0.8, seconds=1e-4)),
    ([event("gemm", 0, 1, "kernel")], True, None),
)
def test_time_in_kernels_counts_once_and_copies_are_no_idle_time(
    events: list[dict[str, Any]], on_gpu: bool, shares: traces.Shares | None
) -> None:
    assert traces.shares(events, on_gpu=on_gpu) == shares


def busy(kernels: float, copies: float, loading: float) -> list[dict[str, Any]]:
    """100 us of a step: loading at first, then copies, then kernels, then nothing."""
    return [
        event(STEP, 1000, 100),
        event(LOADING, 1000, loading),
        event("copy", 1000 + loading, copies, "gpu_memcpy"),
        event("gemm", 1000 + loading + copies, kernels, "kernel"),
    ]


@each(
    (50, 30, 10, ("kernels run 50%", "far below 80%", "for 30% the GPU only copies", "pinned")),
    (75, 5, 15, ("kernels run 75%", "for 15% the GPU waits while the host loads", "num_workers")),
    (60, 10, 5, ("for 25% the GPU waits for the host", "torch.compile", "copies run 10% of the time")),
)
def test_a_gpu_that_is_not_busy_is_told_the_largest_cause_with_numbers_and_remedy(
    kernels: float, copies: float, loading: float, words: tuple[str, ...]
) -> None:
    backend = ScriptedBackend(events=busy(kernels, copies, loading))
    (text,) = profile.profile(backend, request(), ignore).details["advice"]["Time of a training step"]
    assert [word for word in words if word not in text] == []
    assert ("far below" in text) == (kernels < 70)


@each((80, "cuda"), (95, "cuda"), (0, "cuda"), (10, "cpu"))
def test_a_busy_gpu_a_cpu_and_one_of_which_nothing_is_known_get_no_advice(kernels: float, name: str) -> None:
    events = [one for one in busy(kernels, 1, 1) if one["dur"]]
    backend = ScriptedBackend(name, events=events)
    assert "advice" not in profile.profile(backend, request(name), ignore).details


def test_the_shares_are_numbers_of_the_test() -> None:
    measured = profile.profile(ScriptedBackend(events=EVENTS), request(), ignore)
    shares = {m.name: m.value for m in measured.measurements}
    assert shares == {
        "computing_share": 0.4,
        "loading_share": 0.1,
        "idle_share": 0.5,
        "transfer_share": 0.1,
    }
    assert measured.findings == ()
    assert "trace" not in measured.details


@each([], [event(LOADING, 0, 1), event(STEP, 1, 9)])
def test_a_trace_without_kernels_is_degraded(events: list[dict[str, Any]]) -> None:
    measured = profile.profile(ScriptedBackend(events=events), request(), ignore)
    assert [(f.code, f.state, f.device) for f in measured.findings] == [("profile-empty", State.DEGRADED, 3)]


@each(b"", b'{"traceEvents": [{"ph": "X", "dur"', b"{}", b"\xff\xfe{}")
def test_a_trace_that_cannot_be_read_is_not_run(written: bytes) -> None:
    with pytest.raises(NotRunError, match="wrote a trace that cannot be read"):
        profile.profile(ScriptedBackend(written=written), request(), ignore)


def test_a_trace_is_kept_where_the_operator_wants_it(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    backend = ScriptedBackend(events=EVENTS)
    measured = profile.profile(backend, request(traces=str(folder)), ignore)
    # What is measured has no details: to note them takes the host longer.
    assert [call for call in backend.calls if "trace" in call] == [
        "trace 3 in bf16",
        "detailed trace 3 in bf16",
    ]
    assert measured.details["trace"] == str(folder / "trace-gpu3.json.gz")
    assert list(folder.iterdir()) == [folder / "trace-gpu3.json.gz"]
    assert json.loads(gzip.decompress((folder / "trace-gpu3.json.gz").read_bytes()))["traceEvents"] == EVENTS


def test_a_trace_that_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_TRACE_BYTES", 10)
    assert profile.keep(os.urandom(100), tmp_path / "trace").startswith("not kept: ")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_costs_the_trace_and_not_the_test(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert profile.keep(b"{}", tmp_path / "file" / "trace").startswith("not kept: ")


def test_nothing_is_written_through_a_link_that_waits_in_the_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("trace", ".trace.new"):
        (tmp_path / "traces" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "traces" / name).symlink_to(precious)
    assert profile.keep(b"{}", tmp_path / "traces" / "trace") == str(tmp_path / "traces" / "trace")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "traces" / "trace").is_symlink()


def test_a_trace_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    assert profile.keep(b"{}", tmp_path / "trace").startswith("not kept: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "trace"]


def test_options_for_traces_or_storage_add_their_tests_to_every_plan(tmp_path: Path) -> None:
    assert asked_for(RunOptions()) == ()
    asked = RunOptions((tmp_path,), traces=tmp_path)
    assert asked_for(asked) == ("storage_read", "cpu_profile", "gpu_profile")
    assert asked_for(asked, required=True) == ("storage_read",)
    assert set(in_plan("quick", asked)) == {*in_plan("quick", RunOptions()), *asked_for(asked)}


def asked_of(monkeypatch: pytest.MonkeyPatch, *options: str) -> list[Any]:
    """What the command line asks of the runner, which is stopped there."""
    asked: list[Any] = []

    def stop(*arguments: Any) -> None:
        asked.extend(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_plan", stop)
    assert main.main(["run", *options]) == main.INTERRUPTED
    return asked


@each(("--storage", {"storage_read"}), ("--traces", {"cpu_profile", "gpu_profile"}))
def test_the_command_line_runs_them_in_the_quick_plan_and_beside_a_named_test(
    option: str, tests: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = asked_of(monkeypatch, option, str(tmp_path))
    assert tests & {"storage_read", "cpu_profile"} <= set(quick[3])
    assert quick[-1] != RunOptions()
    assert "data_loading" not in quick[3]
    assert set(asked_of(monkeypatch, "--test=health", option, str(tmp_path))[3]) == {"health"} | tests


@pytest.mark.component
@needs_torch
def test_real_steps_are_profiled(tmp_path: Path) -> None:
    found = there(f"""
        import dataclasses, pathlib
        from validation.backends.protocol import Shape
        from validation.checks import training
        from validation.checks.node import Node
        from validation.checks.registry import CHECKS
        from validation.model.contract import encode
        from validation.model.expectations import Expectation
        from validation.model.plans import PLANS
        from validation.model.plans import RunOptions

        training.CPU_SHAPE = Shape(layers=2, width=64, heads=2, tokens=32, batch=8)
        run_options = RunOptions(traces=pathlib.Path({str(tmp_path)!r}))
        answer = encode(CHECKS["cpu_profile"].run(Node(PLANS["quick"], Expectation(), run_options)))
    """)
    assert (found["state"], found["findings"]) == ("pass", [])
    shares = {m["name"]: m["value"] for m in found["measurements"]}
    assert 0 < shares["computing_share"] <= 1
    assert 0 < shares["loading_share"] < 1
    trace = json.loads(gzip.decompress((tmp_path / "trace-cpu.json.gz").read_bytes()))
    names = [one.get("name") for one in trace["traceEvents"]]
    assert names.count(STEP) == names.count(LOADING) == profile.STEPS
    # For whoever reads it: how much memory is taken where, and by tensors of which shapes.
    assert "[memory]" in names
    assert any(one.get("args", {}).get("Input Dims") for one in trace["traceEvents"])
    # A DataLoader's batch is ready: making numbers on one CPU would be nearly all of a GPU's profile.
    assert not {"aten::randn", "aten::normal_"} & {*names}


@pytest.mark.component
@needs_torch
def test_without_room_for_the_trace_the_profile_is_not_run() -> None:
    (said,) = there("""
        import errno, tempfile
        from validation.backends.protocol import Shape
        from validation.model.not_run import NotRunError
        from validation.backends.cpu import CpuBackend

        def full(**_options):
            raise OSError(errno.ENOSPC, "No space left on device")

        tempfile.TemporaryDirectory, answer = full, []
        try:
            CpuBackend().trace(Shape(layers=1, width=64, heads=2, tokens=32, batch=4), "fp32", 1)
        except NotRunError as reason:
            answer.append(str(reason))
    """)
    assert said == "there is no room for the profiler's trace: [Errno 28] No space left on device"


@pytest.mark.component
@needs_torch
def test_a_profile_of_the_cpu_leaves_the_gpus_of_the_node_alone() -> None:
    asked = there("""
        import torch
        from validation.backends.protocol import Shape
        from validation.backends.cpu import CpuBackend

        answer, profile = [], torch.profiler.profile

        def watched(*, activities, schedule):
            answer.extend(activity.name for activity in activities)
            return profile(activities=activities, schedule=schedule)

        torch.profiler.profile = watched
        torch.cuda.is_available = lambda: True
        torch.cuda.synchronize = lambda *_: answer.append("synchronize")
        shape = Shape(layers=2, width=64, heads=2, tokens=32, batch=8)
        CpuBackend().trace(shape, "fp32", 1)
    """)
    assert asked == ["CPU"]
