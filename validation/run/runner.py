"""Run a plan's tests on this node, one after the other, once or for hours, and put the results together."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from validation.checks.check import Check, not_run
from validation.checks.measured import failures
from validation.checks.node import Node
from validation.checks.registry import CHECKS
from validation.findings.catalogue import finding
from validation.model.contract import RESULT_VERSION, NodeResult, State, TestResult
from validation.model.expectations import Expectation
from validation.model.plans import NO_OPTIONS, Plan, RunOptions
from validation.probes import machine
from validation.processes import scratch
from validation.processes.pool import ProcessOutcome
from validation.run import burn_in


def run_plan(
    plan: Plan,
    expectation: Expectation,
    name: str,
    tests: Iterable[str],
    progress: Callable[[str, TestResult | None], None],
    state: Path | None = None,
    run_options: RunOptions = NO_OPTIONS,
    say: Callable[[str], None] = lambda _: None,
) -> NodeResult:
    """Run `tests` in the order of the registry; a plan with a duration again and again.

    `progress` hears of each test when it starts (None) and when it ends. The file `state` keeps the rounds of
    a plan with a duration, from which the next run goes on if this one is interrupted; `say` hears whether it
    does. Raises OSError, but not for a disk that fills up meanwhile: hours of load cost more than rounds.
    """
    wanted = set(tests)
    started_at, started = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    rounds: burn_in.Rounds | None = None
    said_so = False
    while True:
        # A new node each time: what was asked once is not asked again, and a round is to see what changed.
        with scratch.folder(), contextlib.closing(Node(plan, expectation, run_options)) as node:
            if rounds is None:
                rounds, taken_up = _rounds(node, name, wanted, state)
                say(taken_up)
            round_started = time.monotonic()
            results = _round(node, wanted, progress)
            machine_now, gpus = machine.describe(node.loaded_driver), node.gpus
        results = _with_stuck(results, node.stuck)
        rounds = rounds.plus(results, time.monotonic() - round_started)
        if not plan.duration_s or rounds.ended_early or rounds.elapsed_s >= plan.duration_s:
            break
        unsaved = _not_kept(burn_in.save, state, rounds)
        if unsaved and not said_so:
            say(f"{unsaved}. It goes on; rounds from now on are lost if it is interrupted.")
        said_so = said_so or bool(unsaved)
    if state is not None and plan.duration_s and (unremoved := _not_kept(state.unlink, True)):
        say(f"{state}: cannot be removed: {unremoved}")
    return NodeResult(
        schema_version=RESULT_VERSION,
        node=name,
        plan=plan.name,
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - started, 3),
        machine=machine_now,
        gpus=gpus,
        tests=rounds.tests,
    )


def _rounds(node: Node, name: str, tests: Iterable[str], state: Path | None) -> tuple[burn_in.Rounds, str]:
    """Return what an interrupted burn-in left, else a fresh start, and a sentence that says which.

    Raises OSError.
    """
    rounds, taken_up = burn_in.Rounds(RESULT_VERSION, name, node.plan.name), ""
    if node.plan.duration_s:
        rounds, taken_up = burn_in.load(state, dataclasses.replace(rounds, kind=_kind(node, tests)))
        burn_in.save(state, rounds)  # a place that cannot be written costs no hours
    return rounds, taken_up


def _not_kept(write: Callable[..., None], *arguments: Any) -> str:
    """Return why the disk did not take something; empty where it did."""
    try:
        write(*arguments)
    except OSError as error:
        return str(error)
    return ""


def _round(
    node: Node, wanted: set[str], progress: Callable[[str, TestResult | None], None]
) -> list[TestResult]:
    """Return every test once; in a burn-in up to the first that fails."""
    results = []
    if "health" not in wanted:
        node.probe_now()
    for check in CHECKS.values():
        if check.id in wanted:
            progress(check.id, None)
            results.append(_run(check, node))
            progress(check.id, results[-1])
            if node.plan.duration_s and results[-1].state is State.FAIL:
                break
    return results


def _with_stuck(results: list[TestResult], stuck: list[ProcessOutcome]) -> list[TestResult]:
    """Tell of processes that only the end of the round found stuck in the kernel, with its last test."""
    if not (results and stuck):
        return results
    last = results[-1]
    findings = (*last.findings, *failures(stuck))
    return [*results[:-1], dataclasses.replace(last, state=State.FAIL, reason="", findings=findings)]


def _kind(node: Node, tests: Iterable[str]) -> str:
    """Return what rounds must have in common to be rounds of one burn-in."""
    gpus = ", ".join(gpu.uuid or gpu.pci_address for gpu in node.gpus)
    torch = node.torch.version if node.torch else "none"
    methods = ", ".join(f"{test} {CHECKS[test].method}" for test in sorted(tests))
    return f"driver {node.loaded_driver}, torch {torch}, GPUs {gpus}, tests {methods}"


def _run(check: Check, node: Node) -> TestResult:
    """Return one test's result.

    A test that breaks by its own fault has not passed, and takes no other along.
    """
    started = time.monotonic()
    try:
        return check.run(node)
    except (OSError, MemoryError) as error:
        # No disk space, no process, no memory: what the machine did not give says nothing about its hardware.
        reason = f"the system did not let it run: {type(error).__name__}: {error}"
        duration_s = round(time.monotonic() - started, 3)
        return dataclasses.replace(not_run(check, reason), duration_s=duration_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other tests go on and this one failed
        place = traceback.extract_tb(error.__traceback__)[-1]
        broke = finding(
            "test-broke",
            error=f"{type(error).__name__}: {error}",
            place=f"{place.filename}, line {place.lineno}",
        )
        duration_s = round(time.monotonic() - started, 3)
        return TestResult(check.id, State.FAIL, check.method, duration_s, findings=(broke,))
