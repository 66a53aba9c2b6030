"""Data loading: the sweep on a scripted loader, and real workers that are fast, die, hang or are wrong."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.samples import node
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from tests.waiting import wait_until
from validation.backends.protocol import WORKER_PATIENCE_S
from validation.checks import loading
from validation.model.contract import Measured, State
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

TIMING = {"warm_up_s": 0, "measure_s": 1.0, "least": 5, "most": 100}
#: Seconds of a batch by workers: from 4 on no faster.
BATCHES = {0: 0.8, 1: 0.8, 2: 0.4, 4: 0.2, 8: 0.196}


def sweep(backend: ScriptedBackend, cpus: int = 8, shared_bytes: int = 10_000) -> Any:
    request = Request("the loader", "", backend.name, parameters={"cpus": cpus, "timing": TIMING})
    return loading.sweep(backend, request, lambda _stage: None, shared_bytes)


@each((1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6]), (8, [0, 1, 2, 4, 8]), (200, [0, 1, 2, 4, 8, 16, 32]))
def test_the_sweep_stays_within_the_cpus(cpus: int, counts: list[int]) -> None:
    assert loading.worker_counts(cpus) == counts


def test_the_fewest_workers_that_bring_nearly_the_most_are_advised() -> None:
    measured = sweep(ScriptedBackend("cpu", batches=BATCHES))
    rates = {m.conditions["workers"]: m.value for m in measured.measurements if m.name == "loading_samples_s"}
    assert rates == {0: 40.0, 1: 40.0, 2: 80.0, 4: 160.0, 8: 163.2653}
    assert measured.measurements[-1].name == "best_loading_samples_s"
    assert measured.measurements[-1].value == 160.0
    assert measured.details["advice"]["DataLoader"][0].startswith(
        "num_workers=4 is enough here: 160 samples/s; pinned memory needs"
    )
    assert measured.findings == ()


def test_with_a_gpu_pinned_memory_is_tried_and_advised_where_it_is_faster() -> None:
    measured = sweep(ScriptedBackend("cuda", batches=BATCHES))
    pins = [m.conditions["pin_memory"] for m in measured.measurements if m.name == "loading_samples_s"]
    assert pins == [0] * 5 + [1] * 5
    assert measured.details["advice"]["DataLoader"] == [
        "num_workers=4, pin_memory=True is enough here: 320 samples/s"
    ]


def test_shared_memory_that_is_too_small_bounds_the_sweep_and_is_said_with_its_remedy() -> None:
    measured = sweep(ScriptedBackend("cpu", batches=BATCHES), shared_bytes=250)
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("shm-too-small", State.DEGRADED)
    assert "no more than 2 were tried" in finding.text
    assert "--shm-size" in finding.action
    assert max(m.conditions.get("workers", 0) for m in measured.measurements) == 2


@each(
    ("DataLoader worker (pid 7) is killed by signal: Killed.", "loader-worker-died"),
    ("DataLoader timed out after 60 seconds", "loader-worker-died"),
    ("Caught RuntimeError in DataLoader worker process 1. No space left on device (28)", "shm-too-small"),
    ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that", "shm-too-small"),
)
def test_a_worker_that_dies_fails_and_the_others_are_still_measured(words: str, code: str) -> None:
    backend = ScriptedBackend("cpu", batches=BATCHES, deaths={4: 12}, last_words=words)
    measured = sweep(backend)
    assert [(f.code, f.state) for f in measured.findings] == [(code, State.FAIL)]
    assert words in measured.findings[0].text
    assert {m.conditions.get("workers") for m in measured.measurements} == {0, 1, 2, 8, None}
    assert all(one.closed for one in backend.loadings)


def test_a_limit_of_the_environment_is_degraded_and_the_sweep_ends_below_it() -> None:
    measured = sweep(ScriptedBackend("cuda", batches=BATCHES, most_workers=2))
    (finding,) = measured.findings
    assert (finding.code, finding.state) == ("loader-limited", State.DEGRADED)
    assert "4 workers are more than this environment allows" in finding.text
    assert "--pids-limit" in finding.action
    assert [m.conditions.get("workers") for m in measured.measurements] == [0, 1, 2, 0, 1, 2, None]
    assert measured.details["advice"]["DataLoader"][0].startswith("num_workers=2")


def test_what_limits_or_ends_workers_is_no_fault_of_a_gpu() -> None:
    full = sweep(ScriptedBackend("cuda", batches=BATCHES, deaths={2: 6}), shared_bytes=250)
    limited = sweep(ScriptedBackend("cuda", batches=BATCHES, most_workers=2))
    found = [(finding.code, finding.device) for finding in (*full.findings, *limited.findings)]
    assert {code for code, _ in found} == {"shm-too-small", "loader-worker-died", "loader-limited"}
    assert {device for _, device in found} == {None}


@each(Ending.HUNG, Ending.DIED)
def test_a_loader_that_gives_no_result_is_no_fault_of_a_gpu(ending: Ending) -> None:
    request = Request("the loader", "", "cuda")
    outcome = ProcessOutcome(request, ending, Measured(), "the loader gave no result", "loading", 1.0)
    (finding,) = loading.conclude(loading.DataLoading(), [outcome]).findings
    assert (finding.state, finding.device) == (State.FAIL, None)


def test_every_take_of_batches_is_progress() -> None:
    told: list[str] = []
    request = Request("the loader", "", "cpu", parameters={"cpus": 1, "timing": TIMING | {"least": 7}})
    loading.sweep(ScriptedBackend("cpu", batches={0: 1.0, 1: 1.0}), request, told.append, 10_000)
    # To begin with, what is ready, and each sample.
    assert told == ["loading with 0 workers"] * 9 + ["loading with 1 workers"] * 9


def test_the_loader_is_heard_on_a_worker_that_hangs_before_it_is_said_to_hang_itself() -> None:
    assert loading.DataLoading().patience_s(node()) >= 2 * WORKER_PATIENCE_S


def test_a_loader_without_progress_ends_before_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def start(requests: list[Request], budget_s: float, *, patience_s: float) -> list[ProcessOutcome]:
        given.append((patience_s, budget_s))
        return [ProcessOutcome(requests[0], Ending.HUNG, Measured(), "the loader hung", "loading", 1.0)]

    monkeypatch.setattr(loading, "run_children", start)
    loading.DataLoading().run(node())
    ((patience_s, budget_s),) = given
    assert patience_s < budget_s


@each(math.nan, 1 / 32)
def test_one_wrong_sample_fails(wrong: float) -> None:
    measured = sweep(ScriptedBackend("cpu", batches=BATCHES, wrong=wrong), cpus=1)
    assert [finding.code for finding in measured.findings] == ["wrong-result"] * 2


def test_when_every_worker_dies_there_is_no_advice() -> None:
    measured = sweep(ScriptedBackend("cpu", batches=BATCHES, deaths=dict.fromkeys(BATCHES, 0)))
    assert (measured.measurements, measured.details) == ((), {})
    assert len(measured.findings) == 5


def test_without_shared_memory_there_is_none_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "SHARED_MEMORY", str(tmp_path / "missing"))
    assert loading.free_shared_memory() == 0


@pytest.mark.component
@needs_torch
def test_real_workers_load_for_real_and_none_is_left() -> None:
    found, left = there("""
        import dataclasses, multiprocessing
        from validation.checks.node import Node
        from validation.checks.registry import CHECKS
        from validation.model.contract import encode
        from validation.model.expectations import Expectation
        from validation.model.plans import Timing
        from validation.model.plans import PLANS

        plan = dataclasses.replace(PLANS["quick"], cpu=Timing(0, 0, least=2))
        found = CHECKS["data_loading"].run(Node(plan, Expectation(), cpus=2))
        answer = [encode(found), len(multiprocessing.active_children())]
    """)
    assert (found["state"], found["findings"]) == ("pass", [])
    workers = [m["conditions"]["workers"] for m in found["measurements"] if m["name"] == "loading_samples_s"]
    assert workers == [0, 1, 2]
    assert found["details"]["the loader"]["advice"]["DataLoader"][0].startswith("num_workers=")
    assert left == 0


@pytest.mark.component
@needs_torch
def test_workers_that_are_wrong_die_or_hang_are_found_and_none_is_left() -> None:
    said = there("""
        import multiprocessing, os, signal, time
        from validation.backends import loading
        from validation.backends.protocol import WorkerError

        here = os.getpid()

        class Data(loading.Images):
            def __getitem__(self, number):
                image, number = super().__getitem__(number)
                if number == 37 and os.getpid() != here:
                    image = spoil(image)
                return image, number

        def try_it():
            one = loading.Loading(1, pinned=False, device=None, data=Data())
            processes = [worker.pid for worker in multiprocessing.active_children()]
            while spoil is stop_early and not loading.halted(processes[0]):
                time.sleep(0.05)
            try:
                one.take(1, lambda: None)
                return [one.error(), processes]
            except WorkerError as error:
                return [str(error), processes]
            finally:
                one.close()

        def no_space(image):
            raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

        def hang(image):
            time.sleep(600)

        def stop(image):
            os.kill(os.getpid(), signal.SIGSTOP)

        def stop_early(image):
            os.kill(os.getpid(), signal.SIGSTOP)

        answer = []
        for spoil in (
            lambda image: image,
            lambda image: image + 1,
            lambda image: image * float("nan"),
            lambda image: os.kill(os.getpid(), signal.SIGKILL),
            hang,
            no_space,
            stop,
            stop_early,
        ):
            # A worker takes seconds to start on a busy machine; of one that hangs nothing is awaited.
            loading.WORKER_PATIENCE_S = 2 if spoil in (hang, stop, stop_early) else 120
            answer.append(try_it())
    """)
    errors = [error for error, _ in said]
    assert errors[:3] == [0, 1 / 32, 1 / 32]
    assert "DataLoader worker" in errors[3]
    assert "DataLoader timed out" in errors[4]
    assert "No space left on device" in errors[5]
    # In the second of them, the first batch was announced, and nobody is left to hand it over.
    for error, (stopped,) in said[6:]:
        assert "DataLoader timed out" in error
        assert error.endswith(f"; worker {stopped} is stopped by a signal")
    for _, processes in said:
        assert len(processes) == 1
        assert not Path(f"/proc/{processes[0]}").exists()


@pytest.mark.component
@needs_torch
def test_a_worker_that_is_killed_while_nobody_waits_for_it_is_named_at_the_next_batch() -> None:
    """Torch says so in a signal handler, in the middle of whatever this process is doing."""
    said, done = there("""
        import multiprocessing, os, signal
        from validation.backends import loading
        from validation.backends.protocol import WorkerError

        done = []

        def kill():
            (worker,) = multiprocessing.active_children()
            os.kill(worker.pid, signal.SIGKILL)
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
            done.append("what it was doing")

        one = loading.Loading(1, pinned=False, device=None)
        try:
            one.take(9, kill)
            said = "nothing"
        except WorkerError as error:
            said = str(error)
        finally:
            one.close()
        answer = [said, done]
    """)
    assert "DataLoader worker" in said
    assert "killed by signal" in said
    assert done == ["what it was doing"]


@pytest.mark.component
@needs_torch
def test_limits_on_files_and_processes_are_told_from_workers_that_die() -> None:
    """Of open files some are left, so that workers start or not, and batches come or not."""
    said, left = there("""
        import multiprocessing, os, resource
        from validation.backends import loading
        from validation.backends.protocol import LimitError

        answer, left = [], 0
        here, (_, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
        for more in (1, 4, 8, 12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (here + more, hard))
            one = None
            try:
                one = loading.Loading(2, pinned=False, device=None)
                one.take(20, lambda: None)
                answer.append("no limit")
            except LimitError as reason:
                answer.append(str(reason))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                if one:
                    one.close()
            left += len(multiprocessing.active_children())

        def none():
            raise BlockingIOError(11, "Resource temporarily unavailable")

        fork, os.fork = os.fork, none
        try:
            loading.Loading(1, pinned=False, device=None)
        except LimitError as reason:
            answer.append(str(reason))
        os.fork = fork
        answer = [answer, left + len(multiprocessing.active_children())]
    """)
    assert "no more can be started: Too many open files" in said
    assert said[-1] == "no more can be started: Resource temporarily unavailable"
    assert len(said) == 5
    assert left == 0


@pytest.mark.component
@needs_torch
def test_a_worker_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (ended,) = there(f"""
        import multiprocessing, os, pathlib, signal
        from validation.backends import loading

        parent = os.fork()
        if parent == 0:
            one = loading.Loading(1, pinned=False, device=None)
            one.take(1, lambda: None)
            pathlib.Path({str(note)!r}).write_text(str(multiprocessing.active_children()[0].pid))
            os.kill(os.getpid(), signal.SIGKILL)
        answer = [os.waitpid(parent, 0)[1]]
    """)
    assert ended == 9
    worker = int(note.read_text())
    wait_until(lambda: not is_alive(worker), "the worker ends")


def is_alive(pid: int) -> bool:
    """Whether the process runs: what nobody has reaped yet is dead all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
