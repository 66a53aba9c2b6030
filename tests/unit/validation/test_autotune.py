"""Autotune on a node: its knobs, its trials, what it changes and restores, and what it proposes."""

import contextlib
import dataclasses
import io
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from temper.cli import main as temper
from temper.judge import proposal
from temper.judge.proposal import ProposalError
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.needs import TORCH_PYTHON, needs_torch
from tests.unit.validation.samples import gpu_xml, measurement, smi_xml
from tests.unit.validation.scripted import ScriptedBackend
from tests.waiting import wait_until
from tools.schemas import VALIDATION
from validation.autotune import clocks, trials
from validation.autotune import evidence as documents
from validation.autotune import journal as journals
from validation.autotune.evidence import AUTOTUNE_VERSION, Evidence, LeftOut
from validation.autotune.journal import ChangeError, Changes, Journal, restore
from validation.autotune.knobs import KINDS, TRAINING, Setup, environment_of, read_ahead_file
from validation.autotune.search import (
    Answer,
    Compared,
    Decision,
    Failed,
    KnobVerdict,
    Pair,
    SearchStage,
    Trial,
)
from validation.autotune.trials import METRIC, Bench
from validation.autotune.tune import TuneError, Wishes, chosen, drive, refuse_unfit, tune
from validation.backends import storage
from validation.backends.protocol import Shape
from validation.checks.node import Node
from validation.cli import main
from validation.findings.catalogue import finding
from validation.model.contract import ContractError, Machine, Measured, dumps, encode, loads
from validation.model.expectations import Expectation
from validation.model.plans import PLANS, Timing
from validation.probes import nvidia_smi
from validation.probes.machine import Torch
from validation.probes.node_probe import Facts
from validation.processes.child import Request
from validation.processes.pool import ROOT, Ending, ProcessOutcome
from validation.run import burn_in

#: A Python with torch, which the tests' own has not.
TORCH = Torch("2.13.0+cpu", None)


def node_of(
    cpus: int = 8, torch: Torch | None = TORCH, facts: Facts | None = None, ends_at: float = math.inf
) -> Node:
    """A node without GPUs, unless `facts` has them, of which nothing is read."""
    node = Node(PLANS["quick"], Expectation(), cpus=cpus, torch=torch, ends_at=ends_at)
    node.__dict__["_probed"] = facts or Facts()
    return node


def setup_of(environment: dict[str, str] | None = None, storage: Path | None = None, **node: Any) -> Setup:
    return Setup(node_of(**node), storage, environment or {})


def test_knobs_of_a_node_without_gpus_and_why_it_has_no_others() -> None:
    knobs, left_out = chosen(setup_of({"OMP_NUM_THREADS": "64"}), ())
    assert [(knob.name, knob.start, knob.candidates) for knob in knobs] == [
        ("omp_num_threads", "64", ("1", "2", "4", "8")),
        ("omp_proc_bind", "", ("close", "spread")),
        ("loader_workers", "0", ("1", "2", "4", "8")),
    ]
    assert {one.name for one in left_out} == {
        "gpu_clocks",
        "loader_pin_memory",
        "nccl_socket_ifname",
        "nccl_sockets",
        "read_ahead_kb",
    }
    assert all(one.reason for one in left_out)


def test_the_start_is_no_candidate() -> None:
    (knob,), _ = chosen(setup_of({"OMP_NUM_THREADS": "4"}), ("omp_num_threads",))
    assert "4" not in knob.candidates


@each("gpu_clocks", "loader_pin_memory", "nccl_sockets", "read_ahead_kb")
def test_a_knob_that_was_named_and_is_not_there_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(TuneError, match=f"^{name} cannot be tuned here: .{{20}}"):
        chosen(setup_of(), (name,))


def test_variables_of_a_trial_are_those_of_its_settings() -> None:
    settings = {
        "omp_num_threads": "4",
        "omp_proc_bind": "close",
        "nccl_sockets": "4x2",
        "loader_workers": "2",
    }
    assert environment_of(settings) == {
        "OMP_NUM_THREADS": "4",
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": "cores",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "2",
    }
    assert environment_of(dict.fromkeys(settings, "")) == {}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A tree in which the device of `tmp_path` is a partition whose disk has a read-ahead."""
    root = tmp_path / "root"
    device = tmp_path.stat().st_dev
    queue = root / "sys/devices/sda/queue"
    (root / "sys/devices/sda/sda1").mkdir(parents=True)
    queue.mkdir()
    (queue / "read_ahead_kb").write_text("128\n")
    number = f"{os.major(device)}:{os.minor(device)}"
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block" / number).symlink_to(root / "sys/devices/sda/sda1")
    return root


@pytest.fixture
def ahead(disk: Path) -> Path:
    """The read-ahead of that disk."""
    return disk / "sys/devices/sda/queue/read_ahead_kb"


def test_read_ahead_of_a_partition_is_that_of_its_disk(disk: Path, ahead: Path, tmp_path: Path) -> None:
    assert read_ahead_file(tmp_path, disk) == ahead


def test_a_file_system_with_a_number_of_its_own_has_its_own_read_ahead(disk: Path, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    own = disk / "sys/class/bdi" / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb"
    own.parent.mkdir(parents=True)
    own.write_text("4096\n")
    assert read_ahead_file(tmp_path, disk) == own
    assert read_ahead_file(tmp_path / "gone", disk) is None


def test_the_read_ahead_of_now_is_the_start(disk: Path, tmp_path: Path) -> None:
    setup = dataclasses.replace(setup_of(storage=tmp_path), root=disk)
    (knob,), _ = chosen(setup, ("read_ahead_kb",))
    assert knob.start == "128"
    assert knob.candidates == ("512", "1024", "4096", "16384")


class Answers:
    """Stands for the measuring processes: what each request is answered."""

    def __init__(self, *answers: Measured | str) -> None:
        self.answers, self.requests = list(answers), list[Request]()

    def __call__(self, requests: list[Request], _budget_s: float, **_: Any) -> list[ProcessOutcome]:
        self.requests += requests
        answers = [self.answers.pop(0) if len(self.answers) > 1 else self.answers[0] for _ in requests]
        return [
            ProcessOutcome(request, Ending.DIED, Measured(), answer, "", 0.0)
            if isinstance(answer, str)
            else ProcessOutcome(request, Ending.DONE, answer, "", "", 0.0)
            for request, answer in zip(requests, answers, strict=True)
        ]


def measured(value: float, name: str = METRIC, **conditions: int | str) -> Measured:
    return Measured((measurement(name, value, conditions=conditions),))


def trial_of(objective: str = TRAINING, stage: SearchStage = SearchStage.SCREEN, **settings: str) -> Trial:
    return Trial(stage, objective, settings)


def test_a_trial_runs_as_many_processes_as_a_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(measured(30.0), measured(31.0))
    monkeypatch.setattr(trials, "run_children", answers)
    monkeypatch.setattr(Setup, "processes", 2)
    rate = Bench(setup_of()).measure(trial_of(omp_num_threads="4"))
    assert rate == 61.0
    assert [request.environment["OMP_NUM_THREADS"] for request in answers.requests] == ["4", "4"]
    assert not any(request.reuse for request in answers.requests)
    assert {request.function for request in answers.requests} == {"validation.autotune.trials:measure"}


def test_a_loading_trial_measures_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(measured(900.0, "loading_samples_s"))
    monkeypatch.setattr(trials, "run_children", answers)
    assert Bench(setup_of()).measure(trial_of("data_loading", loader_workers="4")) == 900.0
    (request,) = answers.requests
    assert (request.parameters["counts"], request.parameters["pins"]) == ([4], [False])


@each(
    ("it died", "it died"),
    (Measured(not_run="no memory"), "no memory"),
    (Measured(), f"measured no {METRIC}"),
    (
        dataclasses.replace(
            measured(1.0),
            findings=(finding("wrong-result", "samples", error=0.5, workers=1),),
        ),
        "wrong",
    ),
    (measured(1.0, cache="unknown"), "cache"),
)
def test_a_trial_without_a_right_number_says_why(
    answer: Measured | str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run_children", Answers(answer))
    found = Bench(setup_of()).measure(trial_of())
    assert isinstance(found, Failed)
    assert words in found.reason


def test_no_trial_begins_or_goes_on_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is cut off is said to be so, whatever the processes say of it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budgets = []

    def run(requests: list[Request], budget_s: float, **_: Any) -> list[ProcessOutcome]:
        budgets.append(budget_s)
        now[0] += 20
        return Answers(measured(30.0) if now[0] <= 150 else "process 0 hung")(requests, budget_s)

    monkeypatch.setattr(trials, "run_children", run)
    bench = Bench(setup_of(ends_at=150.0))
    final = trial_of(stage=SearchStage.FINAL)
    assert [bench.measure(final) for _ in range(4)] == [30.0, 30.0, Failed(trials.OVER), Failed(trials.OVER)]
    assert budgets == [50.0, 30.0, 10.0]


def test_a_search_leaves_time_to_prove_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how long trials take: 10 s of one objective and 30 s of another."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(trials, "run_children", Answers(measured(30.0)))
    after = {"cpu_training": 20, "data_loading": 10, "storage_read": 9}

    def at(moment_s: float, trial: Trial) -> Answer:
        now[0] = moment_s
        took_s = {"cpu_training": [5.0, 15.0], "data_loading": [30.0]}
        return Bench(setup_of(ends_at=1000.0), took_s=took_s).measure(trial)

    assert at(499.0, dataclasses.replace(trial_of(), after=after)) == 30.0
    assert at(501.0, dataclasses.replace(trial_of(), after=after)) == Failed(trials.TOO_SHORT)
    assert at(501.0, trial_of(stage=SearchStage.FINAL)) == 30.0


@each((600, None), (1600, "2"), (9000, "2"))
def test_a_search_with_a_limit_has_its_answer_by_then(
    limit_s: float, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are better, workers only scatter, which takes hours to see. A trial takes 10 or 20 s."""
    now, chance = [0.0], random.Random(1)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def run(requests: list[Request], budget_s: float, **_: Any) -> list[ProcessOutcome]:
        loading = "counts" in requests[0].parameters
        now[0] += min(20 if loading else 10, budget_s)
        if loading:
            return Answers(measured(chance.uniform(10, 30), "loading_samples_s"))(requests, 1.0)
        rates = {"64": 10.0, "1": 30.0, "2": 60.0}
        return Answers(measured(rates[requests[0].environment["OMP_NUM_THREADS"]]))(requests, 1.0)

    monkeypatch.setattr(trials, "run_children", run)
    setup = setup_of({"OMP_NUM_THREADS": "64"}, cpus=2, ends_at=limit_s)
    knobs, _ = chosen(setup, ("omp_num_threads", "loader_workers"))
    decision = drive(knobs, 1, Bench(setup), lambda _: None)
    assert now[0] <= limit_s
    threads, workers = decision.knobs
    assert threads.kept == kept, threads.reason
    assert workers.kept is None
    assert (trials.TOO_SHORT in workers.reason) is (limit_s < 9000)


def test_how_long_a_search_takes_is_said_before_and_after_the_first_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def run(requests: list[Request], _budget_s: float, **_: Any) -> list[ProcessOutcome]:
        now[0] += 30
        return Answers(measured(30.0))(requests, 1.0)

    monkeypatch.setattr(trials, "run_children", run)
    setup = setup_of({"OMP_NUM_THREADS": "64"}, cpus=2, ends_at=2400.0)
    knobs, _ = chosen(setup, ("omp_num_threads",))
    said: list[str] = []
    drive(knobs, 1, Bench(setup), said.append)
    # Two candidates of six pairs each; for one that is better ten to confirm it and ten to prove it.
    assert [re.findall(r"\d+", one) for one in said] == [["24", "40"], [], ["30", "12", "32"]]


@pytest.mark.component
def test_trials_of_a_search_set_what_they_try_and_end_with_what_was_there(
    monkeypatch: pytest.MonkeyPatch, disk: Path, ahead: Path, tmp_path: Path
) -> None:
    """The faster disk of this test is the one whose read-ahead is 1024."""
    setup = dataclasses.replace(setup_of(storage=tmp_path), root=disk)
    knobs, _ = chosen(setup, ("read_ahead_kb",))

    def run(requests: list[Request], _budget_s: float, **_: Any) -> list[ProcessOutcome]:
        rate = 2.0 if ahead.read_text() == "1024" else 1.0
        return Answers(measured(rate, "storage_read_one_thread_gb_s"))(requests, 1.0)

    monkeypatch.setattr(trials, "run_children", run)
    journal = tmp_path / "journal.json"
    with Changes(journal) as changes:
        changes.allow(ahead, knobs[0].candidates)
        decision = drive(knobs, 1, Bench(setup, changes, tmp_path), lambda _: None)
        assert journal.exists()
    assert decision.knobs[0].kept == "1024"
    assert ahead.read_text() == "128"
    assert not journal.exists()


@pytest.mark.component
def test_what_is_changed_is_on_disk_before(ahead: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    with Changes(journal) as changes:
        changes.allow(ahead, ("512",))
        noted = loads(Journal, journal.read_bytes())
        assert [(one.path, one.before, one.ours) for one in noted.changes] == [(str(ahead), "128", ("512",))]
        assert ahead.read_text().strip() == "128"
        with pytest.raises(ChangeError, match="not noted"):
            changes.set(ahead, "777")


def test_a_gpu_at_work_is_refused_and_its_user_named() -> None:
    process = "<process_info><pid>42</pid><process_name>train</process_name><type>C</type></process_info>"
    facts = Facts(smi=nvidia_smi.parse(smi_xml(gpu_xml(processes=process))))
    with pytest.raises(TuneError, match=r"GPU 0 is in use by train \(pid 42\)"):
        refuse_unfit(node_of(facts=facts), ())


def test_who_may_note_no_changes_is_told_what_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(TuneError, match=r"journal\.json: .* run it as root, or without them"):
        tune(Wishes("gpu01", tmp_path / "journal.json", storage=tmp_path), print)


def test_a_value_that_may_not_be_written_is_refused_before_anything_is_noted(tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    with Changes(journal) as changes, pytest.raises(ChangeError, match=r"gone: expected a value"):
        changes.allow(tmp_path / "gone", ("512",))
    assert not journal.exists()


HOLDER = """\
import os, sys
from pathlib import Path
from validation.autotune.journal import Changes
from validation.run.burn_in import locked
with locked(Path(sys.argv[1])), Changes(Path(sys.argv[1])) as changes:
    changes.allow(Path(sys.argv[2]), ["512"])
    changes.set(Path(sys.argv[2]), "512")
    print(changes._guard.pid, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(journal: Path, file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has set a value and waits, and the pid of its guard."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, journal, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    guard = int(process.stdout.readline())
    try:
        yield process, guard
    finally:
        process.kill()
        process.communicate()


@pytest.mark.component
def test_kill_9_restores_what_trials_have_set(ahead: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    with holder(journal, ahead) as (process, _guard):
        assert ahead.read_text() == "512"
        process.kill()
        process.wait()
        wait_until(lambda: not journal.exists(), "the guard restores")
        assert ahead.read_text() == "128"


@pytest.mark.component
def test_the_guard_waits_for_the_lock_of_the_program_that_was_killed(
    ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = noted(tmp_path, ahead)
    ahead.write_text("512")
    holding = contextlib.ExitStack()
    holding.enter_context(burn_in.locked(path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: holding.close())
    journals.guard(str(path))
    assert ahead.read_text() == "128"
    assert not path.exists()


@pytest.mark.component
def test_the_next_start_restores_where_the_guard_was_killed_too(ahead: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    with holder(journal, ahead) as (process, guard):
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
    assert ahead.read_text() == "512"
    assert main.main(["autotune", "--restore", "--journal", str(journal)]) == 0
    assert ahead.read_text() == "128"
    assert not journal.exists()


def noted(tmp_path: Path, file: Path, **changes: Any) -> Path:
    """A journal of this boot which says that 512 was set in place of 128."""
    with Changes(tmp_path / "journal.json") as notes:
        notes.allow(file, ("512",))
        content = json.loads((tmp_path / "journal.json").read_text()) | changes
    path = tmp_path / "left.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.component
def test_after_a_reboot_there_is_nothing_to_restore(ahead: Path, tmp_path: Path) -> None:
    journal = noted(tmp_path, ahead, boot="another")
    ahead.write_text("512")
    assert restore(journal) == []
    assert ahead.read_text() == "512"
    assert not journal.exists()


@pytest.mark.component
def test_what_somebody_has_set_since_is_left(ahead: Path, tmp_path: Path) -> None:
    journal = noted(tmp_path, ahead)
    ahead.write_text("2048")
    (said,) = restore(journal)
    assert "2048" in said
    assert ahead.read_text() == "2048"


@pytest.mark.component
def test_a_value_of_a_disk_that_is_gone_needs_nothing(ahead: Path, tmp_path: Path) -> None:
    journal = noted(tmp_path, ahead)
    ahead.unlink()
    (said,) = restore(journal)
    assert "gone" in said
    assert not journal.exists()


@pytest.mark.component
def test_a_value_that_cannot_be_restored_keeps_no_other_from_it(ahead: Path, tmp_path: Path) -> None:
    second = ahead.with_name("nr_requests")
    second.write_text("128")
    journal = tmp_path / "journal.json"
    with Changes(journal) as notes:
        for file in (ahead, second):
            notes.allow(file, ["512"])
        text = journal.read_bytes()
    journal.write_bytes(text)
    ahead.unlink()
    ahead.mkdir()
    second.write_text("512")
    with pytest.raises(ChangeError, match="read_ahead_kb: expected 128"):
        restore(journal)
    assert second.read_text() == "128"
    assert journal.exists()


def test_a_journal_that_cannot_be_read_stays_and_is_named(tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    journal.write_text("{")
    with pytest.raises(ChangeError, match=r"journal\.json"):
        restore(journal)
    assert journal.exists()


@pytest.mark.component
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--knob", "omp_num_threads"], "torch is not installed"),
        (["--knob", "read_ahead_kb"], "no folder or file"),
        (["--storage", "/nowhere/at/all"], "/nowhere/at/all: no such file"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    """The Python of these tests has no torch."""
    command = ["autotune", *options, "--journal", str(tmp_path / "journal.json")]
    assert main.main(command) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_knob_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["autotune", "--knob", "warp_factor"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in KINDS)


def compared(stage: SearchStage, value: str, gain: float = 0.5) -> Compared:
    return Compared(
        *(stage, TRAINING, value, (Pair(60.0, 60 * (1 + gain), True),) * 10),
        gain=gain,
        low=gain - 0.02,
        high=gain + 0.02,
        better=True,
    )


def evidence_of(*kept: tuple[str, str], start: str = "64") -> Evidence:
    """Evidence for these values of knobs; without any, nothing was better."""
    value = ", ".join(f"{name}={one}" for name, one in kept)
    verdicts = tuple(
        KnobVerdict(name, TRAINING, start, one, "", (compared(SearchStage.CONFIRM, one),))
        for name, one in kept
    )
    nothing = (KnobVerdict("omp_num_threads", TRAINING, "2", None, "no candidate is better", ()),)
    machine = Machine("n", "Debian", "6.1", "A CPU", 2, 1, "3.11", "2.13.0", None)
    final = (compared(SearchStage.FINAL, value),) if kept else ()
    decision = Decision(verdicts or nothing, final)
    return Evidence(
        *(AUTOTUNE_VERSION, "node01", "2026-11-23T07:00:00+00:00", 60.0, 1, machine, 1, decision),
        left_out=(LeftOut("read_ahead_kb", "no folder was named"),),
    )


def test_evidence_has_the_form_of_its_schema_and_is_read_as_it_was_written() -> None:
    evidence = evidence_of(("omp_num_threads", "2"))
    jsonschema.validate(
        json.loads(dumps(evidence)), json.loads((VALIDATION / "autotune.schema.json").read_text())
    )
    assert documents.read(dumps(evidence)) == evidence


def without_trials() -> Any:
    found = encode(evidence_of(("omp_num_threads", "2")))
    found["decision"]["final"][0]["pairs"] = []
    return found


@each(
    *(
        (encode(evidence_of(("omp_num_threads", value))), r"decision\.knobs\[0\]\.kept: expected ")
        for value in ("{{ lookup('pipe', 'id') }}", "2\nansible_connection: local", "$(id)", "2;id", "x" * 65)
    ),
    (encode(evidence_of(("ansible_connection", "local"))), "ansible_connection is no setting"),
    (without_trials(), "expected the pairs of trials"),
)
def test_evidence_that_nobody_should_act_on_is_refused(evidence: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        documents.read(json.dumps(evidence))


def test_no_word_of_a_node_is_a_variable_of_the_inventory() -> None:
    words = "a CPU\n---\nansible_connection: local\u2028x: y"
    evidence = evidence_of(("omp_num_threads", "2"))
    machine = dataclasses.replace(evidence.machine, cpu_model=words, torch=words, driver=words)
    left_out = (LeftOut("read_ahead_kb", words),)
    hostile = dataclasses.replace(evidence, node=words, machine=machine, left_out=left_out)
    assert yaml.safe_load(proposal.text(hostile)) == {"compute_environment_omp_num_threads": 2}


def test_a_proposal_sets_the_role_variable_and_gives_its_evidence() -> None:
    content = proposal.text(evidence_of(("omp_num_threads", "2"), ("loader_workers", "4")))
    assert yaml.safe_load(content) == {"compute_environment_omp_num_threads": 2}
    assert "+50.0% (+48.0% to +52.0%, 10 pairs)" in content
    assert "DataLoader(num_workers=4)" in content


def test_the_role_variable_for_nvme_drives_is_named_and_not_set() -> None:
    """It is for every drive of the node, and one was measured."""
    content = proposal.text(evidence_of(("read_ahead_kb", "1024"), start="128"))
    assert yaml.safe_load(content) is None
    assert "os_tuning_nvme_read_ahead_kb: 1024" in content
    specs = yaml.safe_load((ROOT / "roles/os_tuning/meta/argument_specs.yml").read_text())
    assert "os_tuning_nvme_read_ahead_kb" in specs["argument_specs"]["main"]["options"]


def test_variables_of_a_proposal_are_ones_that_the_roles_know() -> None:
    known: set[str] = set()
    for role in ("compute_environment", "gpu_settings"):
        specs = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())
        known |= specs["argument_specs"]["main"]["options"].keys()
    assert {kind.variable for kind in KINDS.values() if kind.variable} <= known


def test_a_proposal_is_replaced_by_the_next_one_and_stays_where_nothing_better_was_found(
    tmp_path: Path,
) -> None:
    path = tmp_path / "host_vars/node01/temper-autotune.yml"
    for value in ("2", "4"):
        assert proposal.write(path, evidence_of(("omp_num_threads", value)))
    before = path.read_text()
    assert yaml.safe_load(before) == {"compute_environment_omp_num_threads": 4}
    assert not proposal.write(path, evidence_of())
    assert path.read_text() == before
    proposal.write(path, evidence_of(("omp_proc_bind", "close"), start=""))
    assert yaml.safe_load(path.read_text()) == {"compute_environment_omp_num_threads": 4}


@each("mine: 1\n", "\xff")
def test_a_file_of_the_operator_is_never_replaced(content: str, tmp_path: Path) -> None:
    path = tmp_path / "temper-autotune.yml"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ProposalError, match="stays as it is"):
        proposal.write(path, evidence_of(("omp_num_threads", "2")))
    assert path.read_text(encoding="latin-1") == content


def test_the_proposal_of_another_node_is_not_replaced(tmp_path: Path) -> None:
    """Else what one node was measured to need would be carried over to the other."""
    path = tmp_path / "temper-autotune.yml"
    proposal.write(path, evidence_of(("omp_num_threads", "2")))
    other = dataclasses.replace(evidence_of(("omp_proc_bind", "close"), start=""), node="node02")
    with pytest.raises(ProposalError, match="the proposal of node01"):
        proposal.write(path, other)
    assert "node01" in path.read_text()


def test_a_proposal_that_was_changed_by_hand_is_the_operators(tmp_path: Path) -> None:
    path = tmp_path / "temper-autotune.yml"
    proposal.write(path, evidence_of(("omp_num_threads", "2")))
    path.write_text(path.read_text().replace("threads: 2", "threads: 3"))
    with pytest.raises(ProposalError, match="stays as it is"):
        proposal.write(path, evidence_of(("omp_num_threads", "4")))
    assert yaml.safe_load(path.read_text()) == {"compute_environment_omp_num_threads": 3}


def test_no_folder_is_made_that_hides_a_file_of_the_inventory(tmp_path: Path) -> None:
    own = tmp_path / "host_vars/node01.yml"
    own.parent.mkdir()
    own.write_text("mine: 1\n")
    with pytest.raises(ProposalError, match=r"node01/main\.yml first"):
        proposal.write(
            tmp_path / "host_vars/node01/temper-autotune.yml", evidence_of(("omp_num_threads", "2"))
        )
    assert [path.name for path in own.parent.iterdir()] == ["node01.yml"]


def test_propose_reads_evidence_and_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence, target = tmp_path / "evidence.json", tmp_path / "temper-autotune.yml"
    evidence.write_text(dumps(evidence_of(("omp_num_threads", "2"))))
    assert temper.main(["propose", "--evidence", str(evidence), "--output", str(target)]) == 0
    assert "written" in capsys.readouterr().out
    assert target.is_file()
    target.write_text("mine: 1\n")
    assert temper.main(["propose", "--evidence", str(evidence), "--output", str(target)]) == 2
    assert "stays as it is" in capsys.readouterr().err


@pytest.mark.component
def test_a_storage_trial_really_reads_a_file_of_our_own_that_has_no_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trials, "STORAGE_BYTES", storage.LEAST_BYTES)
    monkeypatch.setattr(trials, "STORAGE_TIMING", Timing(0.0, 0.0, least=1))
    with trials.readable(tmp_path, lambda _: None) as source:
        assert list(tmp_path.iterdir()) == []
        found = Bench(setup_of(storage=tmp_path), source=source).measure(trial_of("storage_read"))
        with storage.opened(source, storage.LEAST_BYTES, 60, lambda: None, through_cache=True) as plain:
            own_cache = plain.how == storage.UNKNOWN  # as some file systems have
    if own_cache:
        assert found == Failed(trials.OWN_CACHE)
    else:
        assert isinstance(found, float), found
        assert found > 0


REAL_TRIALS = """\
import json
from validation.autotune.knobs import Setup
from validation.autotune.search import SearchStage, Trial
from validation.autotune.trials import Bench
from validation.backends.protocol import Shape
from validation.checks.node import Node
from validation.model.expectations import Expectation
from validation.model.plans import PLANS

bench = Bench(Setup(Node(PLANS["quick"], Expectation())), shape=Shape(1, 64, 2, 16, 2))
settings = {"omp_num_threads": "64", "omp_proc_bind": "close", "loader_workers": "1"}
found = [bench.measure(Trial(SearchStage.SCREEN, one, settings)) for one in ("cpu_training", "data_loading")]
print(json.dumps([one if isinstance(one, float) else one.reason for one in found]))
bench.setup.node.close()
"""


@pytest.mark.nightly
@pytest.mark.component
@needs_torch
def test_real_trials_measure_with_far_too_many_threads_and_with_workers() -> None:
    done = subprocess.run(
        [TORCH_PYTHON, "-c", REAL_TRIALS], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout)
    assert all(isinstance(rate, float) and rate > 0 for rate in rates), rates


def test_threads_are_tuned_by_a_training_step_of_the_asked_shape() -> None:
    """A scripted backend with steps of half a second, and two samples in each."""
    shape = Shape(layers=1, width=64, heads=2, tokens=16, batch=2)
    request = Request(
        "process 0",
        "validation.autotune.trials:measure",
        "cpu",
        parameters={"shape": dataclasses.asdict(shape), "timing": dataclasses.asdict(Timing(0.0, 0.0))},
    )
    found = trials.train(ScriptedBackend("cpu", steps={"fp32": 0.5}), request, lambda _: None)
    (one,) = found.measurements
    assert (one.name, one.value) == (METRIC, shape.batch / 0.5)


#: What role gpu_settings installs: takes settings, and fails for clocks that no GPU has.
CLOCKS_PROGRAM = """\
#!/bin/sh
cat "$1" >>"{root}/given"; echo >>"{root}/given"
if grep -q 9999 "$1"; then echo 'GPU settings were not applied: GPU 0: no such clock' >&2; exit 1; fi
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """The root of a node whose GPUs role gpu_settings has locked at their highest clock."""
    root = tmp_path / "node"
    executable(root / clocks.PROGRAM, CLOCKS_PROGRAM.format(root=root))
    settings = clocks.settings_file(root)
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"clocks": "max", "power_limit_w": 300, "mig": {"all": "disabled"}}))
    return root


def given(root: Path) -> list[dict[str, Any]]:
    """What the program was given, one after the other."""
    return [json.loads(line) for line in (root / "given").read_text().splitlines()]


@pytest.mark.component
def test_clocks_of_gpus_are_tried_with_the_rest_of_their_settings_and_set_back(
    gpus: Path, tmp_path: Path
) -> None:
    file, journal = clocks.settings_file(gpus), tmp_path / "journal.json"
    before = file.read_text()
    with Changes(journal) as changes:
        assert changes.allow(file, ("default",)) == "max"
        for value in ("max", "default", "default", "max", "default"):
            changes.set(file, value)
            assert clocks.in_force(file) == value
    rest = {"power_limit_w": 300}
    assert given(gpus) == [rest | {"clocks": value} for value in ("default", "max", "default", "max")]
    assert file.read_text() == before
    assert not (gpus / clocks.TRIED).exists()
    assert not journal.exists()


@pytest.mark.component
def test_clocks_that_a_run_has_left_are_set_back_by_the_next(gpus: Path, tmp_path: Path) -> None:
    file = clocks.settings_file(gpus)
    journal = tmp_path / "journal.json"
    with Changes(journal) as changes:
        changes.allow(file, ("default",))
        text = journal.read_bytes()
    journal.write_bytes(text)
    clocks.lock(file, "default")
    (said,) = restore(journal)
    assert "max" in said
    assert given(gpus)[-1]["clocks"] == "max"
    assert not (gpus / clocks.TRIED).exists()


@pytest.mark.component
def test_clocks_that_no_gpu_takes_are_said_and_set_back(gpus: Path, tmp_path: Path) -> None:
    file, value = clocks.settings_file(gpus), '{"graphics": 9999}'
    with Changes(tmp_path / "journal.json") as changes:
        changes.allow(file, (value,))
        with pytest.raises(ChangeError, match="no such clock"):
            changes.set(file, value)
    assert given(gpus)[-1]["clocks"] == "max"


def test_clocks_are_a_knob_only_where_they_are_named(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "why_no_cuda", lambda _: None)
    setup = dataclasses.replace(setup_of(), root=gpus)
    named, _ = chosen(setup, ("gpu_clocks",))
    assert [(knob.start, knob.candidates) for knob in named] == [("max", ("default",))]
    knobs, left_out = chosen(setup, ())
    assert "gpu_clocks" not in {knob.name for knob in knobs}
    assert "named" in next(one.reason for one in left_out if one.name == "gpu_clocks")


def test_clocks_are_refused_where_no_role_has_set_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "why_no_cuda", lambda _: None)
    with pytest.raises(TuneError, match="role gpu_settings"):
        chosen(dataclasses.replace(setup_of(), root=tmp_path), ("gpu_clocks",))


def test_a_proposal_sets_the_clocks_that_won() -> None:
    content = proposal.text(evidence_of(("gpu_clocks", "default"), start="max"))
    assert yaml.safe_load(content) == {"gpu_settings_clocks": "default"}
