"""Measuring processes, real ones: each way to end is reported as what it is, and none outlives the call."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.validation.children import FOREVER_S
from tests.unit.validation.samples import is_running
from tests.waiting import wait_until
from validation.checks import collectives
from validation.processes import child, pool
from validation.processes.child import Request
from validation.processes.pool import ROOT, Ending, ProcessOutcome, WorkerPool, run_children

pytestmark = pytest.mark.component

BUDGET_S = 60.0
SHORT_S = 1.5


def request(function: str, name: str = "GPU 0", **parameters: Any) -> Request:
    return Request(name, f"tests.unit.validation.children:{function}", "cpu", parameters=parameters)


def interrupt_once_exists(note: Path) -> Callable[[], None]:
    """A tick that does what Ctrl-C would, as soon as a child has written its note."""

    def tick() -> None:
        if note.exists():
            raise KeyboardInterrupt

    return tick


def test_a_child_gets_its_request_and_its_answer_comes_back() -> None:
    (outcome,) = run_children([request("answer", name="GPU 7", size=3)], BUDGET_S)
    assert (outcome.ending, outcome.problem, outcome.stage) == (Ending.DONE, "", "answering")
    assert outcome.measured.details == {"parameters": {"size": 3}, "name": "GPU 7"}


def test_of_children_that_end_while_nobody_looks_none_is_said_to_have_ended_first() -> None:
    def children() -> set[int]:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}

    def look_away() -> None:
        # Other tests leave helpers of Python's own (multiprocessing's resource tracker) to this process.
        started = children() - others
        wait_until(lambda: not any(map(is_running, started)), "the end of both")

    others = children()
    first, second = run_children([request("die"), request("die")], BUDGET_S, tick=look_away)
    assert first.ended_at == second.ended_at


def test_an_answer_larger_than_a_pipe_comes_back_whole() -> None:
    (outcome,) = run_children([request("large_answer")], BUDGET_S)
    assert len(outcome.measured.details["seconds"]) == 100_000


def test_when_memory_runs_out_the_child_goes_before_its_parent() -> None:
    (outcome,) = run_children([request("out_of_memory_score")], BUDGET_S)
    assert outcome.measured.details["score"] == 500


def test_a_child_that_talks_much_is_heard_out() -> None:
    (outcome,) = run_children([request("noise")], BUDGET_S)
    assert (outcome.ending, outcome.measured.details) == (Ending.DONE, {"said": "enough"})


def test_a_request_can_set_the_environment() -> None:
    asked = Request(
        "GPU 0", "tests.unit.validation.children:environment", "cpu", environment={"COLOUR": "blue"}
    )
    (outcome,) = run_children([asked], BUDGET_S)
    assert outcome.measured.details["environment"]["COLOUR"] == "blue"


@pytest.mark.parametrize("safe_path", [True, False])
def test_nothing_is_imported_from_the_current_folder(
    safe_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.10 does not know PYTHONSAFEPATH; without a value 3.11 does as if it did not."""
    for name in ("validation", "torch", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')\n")
    monkeypatch.chdir(tmp_path)
    asked = request("search_path")
    if not safe_path:
        asked = dataclasses.replace(asked, environment={"PYTHONSAFEPATH": ""})
    (outcome,) = run_children([asked], BUDGET_S)
    folders = outcome.measured.details["folders"]
    assert str(tmp_path.resolve()) not in folders
    assert str(ROOT) in folders


def test_a_reason_not_to_run_comes_back_as_one() -> None:
    (outcome,) = run_children([request("not_run")], BUDGET_S)
    assert (outcome.ending, outcome.measured.not_run) == (Ending.DONE, "no such device")


def test_a_child_that_hangs_in_a_call_is_found_there_with_what_it_counted() -> None:
    """What the third says makes its parent look at the first ever again, in the moment in which it works."""
    functions = ["hang_in_a_collective", "poll_in_a_collective", "talk_and_hang"]
    asked = [request(function, name=f"GPU {index}") for index, function in enumerate(functions)]
    hung, polling, _talked = run_children(asked, 600, patience_s=4 * SHORT_S)
    assert (hung.ending, hung.calls, polling.calls) == (Ending.HUNG, 3, 4)
    assert hung.where.startswith("in hang_in_a_collective, children.py line ")
    assert hung.where in hung.problem
    assert hung.busy is not None
    assert polling.busy is not None
    assert hung.busy < collectives.IDLE < collectives.BUSY < polling.busy


def test_a_child_that_knows_that_its_next_step_takes_longer_is_waited_for() -> None:
    """Three times what it expects, and ten seconds."""
    for seconds, said in ((1000.0, "gave no result within"), (0.0, "made no progress for")):
        asked = [request("expect_and_hang", seconds=seconds)]
        (outcome,) = run_children(asked, 12.0, patience_s=SHORT_S, longer_s={"starting": BUDGET_S})
        assert said in outcome.problem


def test_work_at_imports_is_progress() -> None:
    # The first works to its end, at the cost of a core; the second is ended before.
    for stage, times, ending in ((child.LOADING, 2, Ending.DONE), ("warming up", 5, Ending.HUNG)):
        asked = [request("work_in", stage=stage, seconds=times * SHORT_S)]
        (outcome,) = run_children(asked, BUDGET_S, patience_s=SHORT_S)
        assert outcome.ending is ending


@pytest.mark.parametrize("function", ["gpu_memory_taken", "host_memory_taken", "no_memory_for_an_object"])
def test_memory_that_somebody_else_has_is_not_run(function: str) -> None:
    (outcome,) = run_children([request(function)], BUDGET_S)
    assert (outcome.ending, outcome.problem) == (Ending.DONE, "")
    assert (outcome.measured.not_run or "").startswith("memory ran out: ")


def asked_for(asked: str, free: str) -> str:
    """What torch says where a GPU gives no memory."""
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.25 GiB of which "
        f"{free} is free. Process 7 has 1.00 GiB memory in use. Of the allocated memory 0 bytes is ..."
    )


NO_HANDLE = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
FULL = "shared memory (/dev/shm) ran out: "


@pytest.mark.parametrize(
    ("words", "free_bytes", "reason"),
    [
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None, "memory ran out: "),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", None, "memory ran out: "),
        (NO_HANDLE, 12 << 20, "memory ran out: "),
        # The GPU has room: something broke.
        (NO_HANDLE, 40 << 30, None),
        (NO_HANDLE, None, None),
        (asked_for("20.00 MiB", "9.31 MiB"), None, "memory ran out: "),
        # Another process has given its memory back meanwhile, or the host has none.
        (asked_for("2.00 GiB", "78.00 GiB"), None, "memory ran out: "),
        ("unable to write to file </torch_77_1>: No space left on device (28)", None, FULL),
        ("unable to open shared memory object </torch_1_2_3> in read-write mode: ...", None, FULL),
        # github.com/NVIDIA/nccl-tests/issues/166, with torch's words around it
        (
            "NCCL error in: ../NCCLUtils.hpp:317, unhandled system error, NCCL version 2.21.5\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
            "error. \nLast error:\n"
            "Error while creating shared memory segment /dev/shm/nccl-KWfVyt (size 5967872)",
            None,
            FULL,
        ),
        ("CUDA error: an illegal memory access was encountered", None, None),
    ],
)
def test_libraries_have_words_of_their_own_for_memory_that_ran_out(
    words: str, free_bytes: int | None, reason: str | None
) -> None:
    (outcome,) = run_children([request("raise_words", words=words, free_bytes=free_bytes)], BUDGET_S)
    assert (outcome.ending is Ending.DONE) == (reason is not None)
    assert (outcome.measured.not_run or "").startswith(reason or "")


def test_a_child_that_the_kernel_ended_for_lack_of_memory_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(pool, "oom_kills", lambda: next(counts))
    (outcome,) = run_children([request("kill_itself")], BUDGET_S)
    assert outcome.ending is Ending.DONE
    assert outcome.measured.not_run == "memory ran out, and the kernel ended GPU 0 in stage: starting"


def test_the_kernel_says_how_many_it_has_ended() -> None:
    assert pool.oom_kills() >= 0
    assert "oom_kill " in Path("/proc/vmstat").read_text()


@pytest.mark.parametrize(
    ("function", "ending", "words"),
    [
        ("die", Ending.DIED, ["exit status 1", "stage: dividing", "ZeroDivisionError: division by zero"]),
        ("crash", Ending.DIED, ["killed by SIGSEGV", "stage: reading nothing"]),
        ("answer_and_crash", Ending.DIED, ["killed by SIGKILL"]),
        ("kill_itself", Ending.DIED, ["killed by SIGKILL"]),
        ("no_such_function", Ending.DIED, ["no_such_function"]),
        ("not_a_number", Ending.UNREADABLE, ["measurements[0].value: expected a finite number, found nan"]),
        ("nonsense", Ending.UNREADABLE, ["measurements: expected a list, found 'many'"]),
    ],
)
def test_a_child_without_a_result_is_reported_as_what_it_is(
    function: str, ending: Ending, words: list[str]
) -> None:
    (outcome,) = run_children([request(function)], BUDGET_S)
    assert outcome.ending is ending
    assert outcome.problem.startswith("GPU 0 ")
    for word in words:
        assert word in outcome.problem


CUDA_ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
SEARCH = (
    "\nSearch for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information."
)
NCCL = "NCCL error in: {}, internal error - please report this issue to the NCCL developers, NCCL version {}"
PLACE = "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        # github.com/zai-org/ChatGLM3/issues/681
        (
            f"CUDA error: uncorrectable ECC error encountered{CUDA_ADVICE}",
            "uncorrectable ECC error encountered",
        ),
        # github.com/Comfy-Org/ComfyUI/issues/10468
        (
            "CUDA error: no kernel image is available for execution on the device"
            + SEARCH.format("cudaErrorNoKernelImageForDevice")
            + CUDA_ADVICE,
            "no kernel image is available for execution on the device",
        ),
        # github.com/NVIDIA/nccl/issues/1247
        (
            NCCL.format(PLACE, "2.18.6")
            + "\nncclInternalError: Internal check failed."
            + "\nLast error:\nAttribute busid of node nic not found",
            "NCCL version 2.18.6; Attribute busid of node nic not found",
        ),
        # github.com/vllm-project/vllm/issues/10453
        (
            NCCL.format("../torch/csrc/distributed/c10d/NCCLUtils.hpp:317", "2.21.5")
            + "\nncclInternalError: Internal check failed.\nLast error:\n",
            "NCCL version 2.21.5; ncclInternalError: Internal check failed.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_an_error_is_told_by_its_cause_and_nothing_of_python_that_hangs_delays_it(
    message: str, words: str
) -> None:
    (outcome,) = run_children([request("fail_with", message=message)], BUDGET_S)
    assert outcome.ending is Ending.DIED
    said = outcome.problem.partition("; it said last: ")[2]
    assert said.startswith("RuntimeError: ")
    assert said.endswith(words)


def test_an_error_that_nobody_caught_is_told_by_its_cause() -> None:
    # github.com/sgl-project/sglang/issues/9151
    frames = "\n".join(f"frame #{number}: <unknown function> + 0x111c7 (libtorch.so)" for number in range(60))
    message = (
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
        f"  what():  CUDA error: uncorrectable ECC error encountered{CUDA_ADVICE}\n{frames}\n"
    )
    (outcome,) = run_children([request("abort_with", message=message)], BUDGET_S)
    assert outcome.problem == (
        "GPU 0 was killed by SIGABRT in stage: starting; it said last: "
        "CUDA error: uncorrectable ECC error encountered"
    )


def test_what_a_library_prints_is_no_stage() -> None:
    (outcome,) = run_children([request("abort_with", message="stage: none of ours")], BUDGET_S)
    assert outcome.stage == "starting"


def test_when_nobody_makes_progress_those_that_have_not_ended_hang() -> None:
    asked = [request("answer"), request("hang", name="GPU 1"), request("stop", name="GPU 2")]
    done, hung, stopped = run_children(asked, 600, patience_s=SHORT_S)
    assert (done.ending, hung.ending, stopped.ending) == (Ending.DONE, Ending.HUNG, Ending.HUNG)
    assert hung.problem.startswith("GPU 1 made no progress for 2 s; it hung in stage: waiting (in hang, ")
    assert stopped.problem.endswith("it hung in stage: measuring (stopped by a signal)")


def test_one_that_goes_on_is_slow_and_does_not_hang() -> None:
    (outcome,) = run_children([request("go_on")], 4 * SHORT_S, patience_s=2 * SHORT_S)
    assert outcome.ending is Ending.SLOW
    assert outcome.problem.startswith(
        "GPU 0 gave no result within 6 s; it was still at work in stage: going on (in go_on, children.py "
    )


def test_one_whose_libraries_come_from_a_slow_disk_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = itertools.count()
    stat = pool._stat
    monkeypatch.setattr(
        pool,
        "_stat",
        lambda pid: [
            str(next(faults)) if field == pool.MAJFLT else value for field, value in enumerate(stat(pid))
        ],
    )
    (outcome,) = run_children([request("hang")], 4 * SHORT_S, patience_s=SHORT_S)
    assert "gave no result within 6 s" in outcome.problem


def test_one_that_waits_for_others_does_not_hang_while_they_go_on() -> None:
    waiting, _ = run_children(
        [request("hang"), request("go_on", name="GPU 1")], 4 * SHORT_S, patience_s=SHORT_S
    )
    assert waiting.ending is Ending.HUNG
    assert waiting.problem.startswith("GPU 0 gave no result within 6 s; it hung in stage: waiting (in hang, ")


def test_steps_are_known_of_a_process_that_hangs_however_fast_it_counted_them() -> None:
    asked = [request("count_and_hang", steps=5000), request("count_and_hang", name="GPU 1", steps=0)]
    # Time enough for the first to have counted them on a busy machine.
    outcomes = run_children(asked, 600, patience_s=10 * SHORT_S)
    assert [(one.ending, one.steps) for one in outcomes] == [(Ending.HUNG, 5000), (Ending.HUNG, 0)]


def test_steps_count_from_when_they_were_made_for_a_whole_group() -> None:
    """Noticed only once a rank is overdue, those of each rank would cost the group its patience again."""
    ranks = [request("take_a_step_and_hang", name=f"rank {rank}") for rank in range(7)]
    outcomes = run_children(ranks, 7 * 2 * SHORT_S, patience_s=2 * SHORT_S, together=True)
    assert {one.problem.partition(" made")[2].partition(" (")[0] for one in outcomes} == {
        " no progress for 3 s; it hung in stage: counting"
    }


def test_steps_are_counted_where_python_knows_no_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert [one.steps for one in run_children([request("count", steps=3)], BUDGET_S)] == [3]


def test_one_that_counts_steps_makes_progress() -> None:
    (outcome,) = run_children([request("count_on")], 4 * SHORT_S, patience_s=2 * SHORT_S)
    assert (outcome.ending, outcome.stage) == (Ending.SLOW, "counting")


def test_a_stage_that_may_take_longer_does_and_the_others_do_not() -> None:
    for stage, waited in (("waiting", 2 * SHORT_S), ("another", SHORT_S)):
        (outcome,) = run_children([request("hang")], 600, patience_s=SHORT_S, longer_s={stage: 2 * SHORT_S})
        assert outcome.problem.startswith(f"GPU 0 made no progress for {waited:.0f} s")


@pytest.mark.parametrize("function", ["hang", "hang_deaf"])
def test_a_child_that_hangs_is_killed_and_its_last_stage_named(function: str) -> None:
    started = time.monotonic()
    (outcome,) = run_children([request(function)], SHORT_S)
    assert outcome.ending is Ending.HUNG
    assert "gave no result within 2 s; it hung in stage:" in outcome.problem
    assert time.monotonic() - started < FOREVER_S / 2


def test_a_process_that_a_child_leaves_behind_holds_up_nobody_and_is_killed() -> None:
    (outcome,) = run_children([request("answer_and_leave_a_grandchild")], BUDGET_S)
    assert (outcome.ending, outcome.problem) == (Ending.DONE, "")
    wait_until(lambda: not is_running(outcome.measured.details["pid"]), "the grandchild ends")


def test_what_a_child_started_is_killed_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        run_children(
            [request("leave_a_grandchild", note=str(note))], BUDGET_S, tick=interrupt_once_exists(note)
        )
    pid = int(note.read_text())
    wait_until(lambda: not is_running(pid), "the grandchild ends")


@pytest.mark.parametrize("function", ["die", "kill_itself", "not_run", "nonsense"])
def test_when_one_of_a_group_fails_the_others_are_stopped_and_say_why(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.2)
    others = [request("hang", name=f"rank {rank}") for rank in (0, 2)]
    first, failed, last = run_children(
        [others[0], request(function, name="rank 1"), others[1]], BUDGET_S, together=True
    )
    assert (first.ending, last.ending) == (Ending.STOPPED, Ending.STOPPED)
    assert first.problem == "rank 0 was stopped because rank 1 failed"
    assert failed.ending is not Ending.STOPPED


def test_no_child_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "from validation.processes.child import Request\n"
        "from validation.processes.pool import run_children\n"
        f"parameters = {{'note': {str(note)!r}}}\n"
        "function = 'tests.unit.validation.children:note_and_hang'\n"
        "run_children([Request('GPU 0', function, 'cpu', parameters=parameters)], 600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait_until(note.exists, "the child starts")
    pid = int(note.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not is_running(pid), "the child ends")


@pytest.fixture
def workers() -> Iterator[WorkerPool]:
    processes = WorkerPool()
    yield processes
    processes.close()


def ask(workers: WorkerPool, function: str, **changes: Any) -> ProcessOutcome:
    asked = dataclasses.replace(request(function), reuse=True, **changes)
    (outcome,) = run_children([asked], BUDGET_S, pool=workers)
    return outcome


def test_a_kept_process_serves_the_next_request_of_its_kind(workers: WorkerPool) -> None:
    first, second = (ask(workers, "who").measured.details["pid"] for _ in range(2))
    assert first == second


def test_a_kept_process_counts_each_request_anew(workers: WorkerPool) -> None:
    counted = [ask(workers, "count", parameters={"steps": steps}).steps for steps in (7, 2)]
    assert counted == [7, 2]


def test_an_answer_of_a_kept_process_is_that_to_the_last_request(workers: WorkerPool) -> None:
    ask(workers, "who")
    outcome = ask(workers, "answer", parameters={"size": 3})
    assert outcome.measured.details["parameters"] == {"size": 3}
    assert outcome.stage == "answering"


@pytest.mark.parametrize("changes", [{"device": 1}, {"environment": {"COLOUR": "blue"}}, {"reuse": False}])
def test_a_request_of_another_kind_gets_a_process_of_its_own(
    workers: WorkerPool, changes: dict[str, Any]
) -> None:
    first = ask(workers, "who").measured.details["pid"]
    asked = dataclasses.replace(request("who"), **{"reuse": True} | changes)
    (outcome,) = run_children([asked], BUDGET_S, pool=workers)
    assert outcome.measured.details["pid"] != first


@pytest.mark.parametrize("function", ["die", "kill_itself", "nonsense", "not_run"])
def test_a_process_that_did_not_end_well_is_not_kept(workers: WorkerPool, function: str) -> None:
    first = ask(workers, "who").measured.details["pid"]
    ask(workers, function)
    assert ask(workers, "who").measured.details["pid"] != first


def test_a_kept_process_that_hangs_is_killed(workers: WorkerPool) -> None:
    pid = ask(workers, "who").measured.details["pid"]
    asked = dataclasses.replace(request("hang"), reuse=True)
    (outcome,) = run_children([asked], SHORT_S, pool=workers)
    assert outcome.ending is Ending.HUNG
    assert not is_running(pid)


def test_a_kept_process_that_died_while_it_waited_is_replaced(workers: WorkerPool) -> None:
    pid = ask(workers, "who").measured.details["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the process ends")
    assert ask(workers, "who").ending is Ending.DONE


def test_a_kept_process_that_dies_after_its_answer_has_answered(workers: WorkerPool, tmp_path: Path) -> None:
    note, calls = tmp_path / "pid", []

    def until_it_is_dead() -> None:
        calls.append(time.monotonic())
        wait_until(note.exists, "the child answers")
        wait_until(lambda: not is_running(int(note.read_text())), "the child dies")

    asked = dataclasses.replace(request("answer_and_die", note=str(note)), reuse=True)
    (outcome,) = run_children([asked], BUDGET_S, tick=until_it_is_dead, pool=workers)
    assert (outcome.ending, outcome.problem, outcome.stage) == (Ending.DONE, "", "answering")
    # It is called once a second: nothing more was waited for.
    assert len(calls) == 1


def test_all_processes_are_signalled_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[float | None] = []
    killpg, wait = os.killpg, subprocess.Popen.wait

    def noted_killpg(group: int, number: int) -> None:
        events.append(None)
        killpg(group, number)

    def noted_wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        events.append(timeout)
        return wait(process, timeout)

    monkeypatch.setattr(os, "killpg", noted_killpg)
    monkeypatch.setattr(subprocess.Popen, "wait", noted_wait)
    outcomes = run_children([request("hang", name=f"GPU {index}") for index in range(3)], SHORT_S)
    assert {outcome.ending for outcome in outcomes} == {Ending.HUNG}
    assert events[:3] == [None, None, None]
    waits = [event for event in events if event is not None]
    # They share what time a process may take to go.
    assert pool.REAP_S >= waits[0] > waits[1] > waits[2]


def test_processes_for_which_the_kernel_still_works_are_not_called_stuck(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of ranks whose memory is freed: they go later than one may take to go."""
    waiting = workers.take(ask(workers, "who").request)
    assert waiting
    workers.put(waiting)
    signals, ticks, kill = itertools.count(), itertools.count(), os.killpg

    def slow_kill(group: int, number: int) -> None:
        if next(signals) > 2:
            kill(group, number)

    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", slow_kill)
        patched.setattr(pool, "REAP_S", 1.0)
        patched.setattr(type(waiting), "kernel_time", lambda _: next(ticks))
        workers.close()
    assert workers.stuck == []


def test_no_kept_process_outlives_its_keeper(workers: WorkerPool) -> None:
    pid = ask(workers, "who").measured.details["pid"]
    workers.close()
    assert not is_running(pid)


def test_a_kept_process_that_cannot_be_killed_is_remembered(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that sleeps in the kernel: the signal is sent, and nothing happens."""
    waiting = workers.take(ask(workers, "who").request)
    assert waiting
    workers.put(waiting)
    os.kill(waiting.process.pid, signal.SIGSTOP)  # else it ends by itself when its input does
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        patched.setattr(pool, "REAP_S", 0.1)
        workers.close()
    (stuck,) = workers.stuck
    assert (stuck.ending, stuck.request.name) == (Ending.UNKILLABLE, "GPU 0")
    assert "stuck in the kernel" in stuck.problem
    waiting.kill()


def test_no_kept_process_outlives_an_interrupted_call(workers: WorkerPool, tmp_path: Path) -> None:
    pid = ask(workers, "who").measured.details["pid"]
    note = tmp_path / "pid"
    asked = dataclasses.replace(request("note_and_hang", note=str(note)), reuse=True)
    with pytest.raises(KeyboardInterrupt):
        run_children([asked], BUDGET_S, tick=interrupt_once_exists(note), pool=workers)
    assert not is_running(pid)


def test_a_kept_process_may_run_on_all_cpus_again(workers: WorkerPool) -> None:
    everywhere = ask(workers, "who").measured.details["cpus"]
    ask(workers, "stay_on_one_cpu")
    assert ask(workers, "who").measured.details["cpus"] == everywhere


def test_a_kept_process_gives_page_locked_memory_back(workers: WorkerPool) -> None:
    counts = [ask(workers, "keep_pinned_memory").measured.details["given_back"] for _ in range(2)]
    assert counts == [0, 1]


def test_a_process_to_keep_ends_where_nobody_keeps_it() -> None:
    asked = dataclasses.replace(request("who"), reuse=True)
    (outcome,) = run_children([asked], BUDGET_S)
    assert outcome.ending is Ending.DONE
    assert not is_running(outcome.measured.details["pid"])
