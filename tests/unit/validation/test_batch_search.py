"""The batch of somebody's own training step: the search on scripted processes, and real ones with torch."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import TORCH_PYTHON, needs_torch
from validation.checks.batch import PARTS
from validation.cli import main
from validation.jobs import batch, own_function
from validation.jobs.batch import BatchError, Tried, largest_batch
from validation.jobs.own_function import FunctionError, OwnFunction
from validation.model.contract import Measured, Measurement
from validation.processes import child
from validation.processes.child import Request
from validation.processes.pool import ROOT, Ending, ProcessOutcome

BUDGET = 8_000_000_000
STEP = OwnFunction("make_step", module="train")


def timed(batch: int, samples_s: float) -> ProcessOutcome:
    """What a process says in which a batch fits."""
    rate = Measurement("samples_s", samples_s, 5, 0.0, None, {})
    return ended(measured=Measured((rate,), details={"budget_bytes": BUDGET, "peak_gb": batch / 100}))


def full() -> ProcessOutcome:
    """What one says in which memory ran out."""
    return ended(measured=Measured(details={"budget_bytes": BUDGET, "why": "memory ran out: CUDA"}))


def ended(
    ending: Ending = Ending.DONE, problem: str = "", measured: Measured | None = None
) -> ProcessOutcome:
    return ProcessOutcome(child.Request("", "", "cuda"), ending, measured or Measured(), problem, "", 1.0)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], ProcessOutcome]], list[Request]]:
    """A function that has each batch come out as it is told; it returns the requests that follow."""

    def script(answer: Callable[[int], ProcessOutcome]) -> list[Request]:
        asked: list[Request] = []

        def run(requests: list[Request], _budget_s: float) -> list[ProcessOutcome]:
            asked.extend(requests)
            return [answer(request.parameters["batch"]) for request in requests]

        monkeypatch.setattr(batch, "run_children", run)
        return asked

    return script


def test_the_largest_the_fastest_and_the_smallest_that_is_as_fast_are_found(processes: Any) -> None:
    rates = {1: 10.0, 2: 20.0, 4: 39.5, 8: 40.0}
    processes(lambda size: timed(size, rates.get(size, 30.0)) if size <= 37 else full())
    found = largest_batch(STEP)
    assert (found.largest.batch, found.fastest.batch, found.enough.batch) == (37, 8, 4)
    assert (found.budget_gb, found.stopped) == (8.0, "")
    lines = found.text().splitlines()
    assert [one.batch for one in found.tried] == sorted(one.batch for one in found.tried)
    assert any(line.split()[:4] == ["64", "does", "not", "fit:"] for line in lines)
    facts = ["8 GB", "37", "0.37 GB"], ["8", "40.0 samples/s"], ["4", "39.5 samples/s"]
    assert [
        fact for line, its in zip(lines[-3:], facts, strict=True) for fact in its if fact not in line
    ] == []


def test_a_scattering_rate_is_as_good_as_one_that_lies_within_it() -> None:
    tried = tuple(Tried(size, rate, 0.3) for size, rate in ((1, 50.0), (2, 80.0), (4, 100.0)))
    assert batch.Batches("cuda", 1.0, tried).enough.batch == 2


def test_every_batch_after_the_first_has_the_memory_of_the_first(processes: Any) -> None:
    asked = processes(lambda size: timed(size, 1.0) if size <= 3 else full())
    largest_batch(STEP, device="cuda:2")
    assert [request.parameters["budget_bytes"] for request in asked] == [None, *[BUDGET] * (len(asked) - 1)]
    assert {(request.backend, request.device, request.reuse) for request in asked} == {("cuda", 2, False)}


def test_no_batch_above_the_most_is_tried_and_the_most_is_reached(processes: Any) -> None:
    asked = processes(lambda size: timed(size, 1.0))
    found = largest_batch(STEP, most=100)
    sizes = [request.parameters["batch"] for request in asked]
    assert max(sizes) <= 100
    assert found.largest.batch + found.largest.batch // PARTS >= 100


def test_a_batch_that_dies_or_hangs_ends_the_search_and_what_was_found_stands(processes: Any) -> None:
    processes(lambda size: timed(size, 1.0) if size < 8 else ended(Ending.DIED, "a batch of 8 was killed"))
    found = largest_batch(STEP)
    assert (found.largest.batch, found.stopped) == (4, "a batch of 8 was killed")
    assert "a batch of 8 was killed" in found.text()


def test_after_its_minutes_no_batch_is_begun(processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("validation.jobs.batch.time.monotonic", lambda: now[0])

    def slow(size: int) -> ProcessOutcome:
        now[0] += 50
        return timed(size, 1.0)

    asked = processes(slow)
    found = largest_batch(STEP, minutes=2)
    assert [request.parameters["batch"] for request in asked] == [1, 2, 4]
    assert "minutes" in found.stopped


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (full(), "not even one sample could be trained with: memory ran out: CUDA"),
        (ended(Ending.DIED, "KeyError: 3"), "KeyError: 3"),
        (ended(measured=Measured(not_run="torch cannot be imported")), "^torch cannot be imported"),
    ],
)
def test_without_a_single_sample_it_says_why(processes: Any, outcome: ProcessOutcome, words: str) -> None:
    processes(lambda _size: outcome)
    with pytest.raises(BatchError, match=words):
        largest_batch(STEP)


@each(
    ({"device": "gpu"}, "cuda:N"),
    ({"most": 0}, "1 or more"),
    ({"memory_gb": 0}, "memory_gb of a byte .* found 0"),
    # Less than a byte.
    ({"memory_gb": 1e-10}, "memory_gb of a byte"),
    ({"memory_gb": float("nan")}, "memory_gb of a byte"),
)
def test_settings_that_make_no_sense_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        largest_batch(STEP, **settings)


def test_a_search_within_a_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "is_child", lambda: True)
    with pytest.raises(BatchError, match="__main__"):
        largest_batch(STEP)


def test_a_function_of_a_file_or_of_a_module_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def make_step(batch):\n    return batch + 1\n")
    by_file = own_function.named("train.py:make_step")
    assert by_file.file == str(tmp_path / "train.py")
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert by_file.load()(1) == 2
    own = own_function.of(own_function.named)
    assert (own.module, own.name) == ("validation.jobs.own_function", "named")
    assert own.load() is own_function.named


@each("train", "train.py", ":make_step", "train.py:", "gone.py:make", "m:a.b")
def test_a_name_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["batch", text]) == 2
    assert "expected" in capsys.readouterr().err


def test_a_function_that_no_other_process_finds_is_refused() -> None:
    with pytest.raises(FunctionError, match="at the top of a module"):
        largest_batch(lambda batch: batch)
    with pytest.raises(FunctionError, match="no function gone"):
        OwnFunction("gone", module="json").load()


def run(tmp_path: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Write train.py, and run it, or `validation batch` with it, in the Python with torch."""
    (tmp_path / "train.py").write_text(program)
    command = ["-m", "validation", "batch", *arguments] if arguments else [str(tmp_path / "train.py")]
    return subprocess.run(
        [TORCH_PYTHON, *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.component
@needs_torch
def test_a_real_step_runs_out_of_memory_in_processes_of_its_own(tmp_path: Path) -> None:
    """As a program of the user's calls it."""
    done = run(
        tmp_path,
        """
import json, os, torch
from validation.jobs.batch import largest_batch
from validation.model.plans import Timing

def make_step(batch):
    weight = torch.ones(8, requires_grad=True)
    def step():
        if batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if os.getpid() == PARENT:
            raise AssertionError("not in the caller's own process")
        (torch.ones(batch, 8) * weight).sum().backward()
    return step

PARENT = int(os.environ.setdefault("PARENT", str(os.getpid())))
if __name__ == "__main__":
    found = largest_batch(make_step, device="cpu", memory_gb=1, timing=Timing(0.0, 0.01, least=2))
    tried = [one.batch for one in found.tried]
    print(json.dumps([found.largest.batch, tried, found.budget_gb, found.tried[-1].why_not]))
""",
    )
    assert done.returncode == 0, done.stderr
    largest, tried, budget_gb, why = json.loads(done.stdout)
    assert (largest, tried, budget_gb) == (1, [1, 2], 1.0)
    assert "out of memory" in why


@pytest.mark.component
@needs_torch
def test_the_command_line_searches_within_the_memory_that_it_is_given(tmp_path: Path) -> None:
    """600 kB a sample, and a megabyte: memory is really counted."""
    program = """
import torch
def make_step(batch):
    data = torch.zeros(batch, 150_000)
    return lambda: data.add_(1)
"""
    done = run(tmp_path, program, "train.py:make_step", "--device=cpu", "--memory=0.001", "--most=64")
    assert done.returncode == 0, done.stderr
    assert "Largest batch on cpu within 0.001 GB (to 1 part in 32): 1, " in done.stdout


@pytest.mark.component
@needs_torch
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("def make_step(batch):\n    return batch\n", "returned int; expected a function"),
        ("def make_step(batch):\n    raise KeyError('weights.pt')\n", "weights.pt"),
        pytest.param("import nowhere_to_be_found\n", "nowhere_to_be_found", marks=pytest.mark.nightly),
        pytest.param("", "no function make_step", marks=pytest.mark.nightly),
    ],
)
def test_a_step_that_is_wrong_is_named_with_its_error(tmp_path: Path, program: str, words: str) -> None:
    done = run(tmp_path, program, "train.py:make_step", "--device=cpu")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
