"""The commands: what a person or a program at a machine asks for. Each returns its exit status."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from validation.autotune import evidence as documents
from validation.autotune.between import BetweenError
from validation.autotune.journal import ChangeError, restore
from validation.autotune.tune import TuneError, Wishes, tune, tune_together
from validation.checks import registry
from validation.checks.node import Node
from validation.checks.registry import CHECKS, HEADLINES, PROVE_A_GPU, TESTS
from validation.cli import archive
from validation.fabric.groups import Order
from validation.fabric.measure import run_part
from validation.findings import catalogue
from validation.jobs import own_function
from validation.jobs.batch import BatchError, largest_batch
from validation.metrics.node_metrics import LAST_SUCCESS, collect
from validation.model import gpu_models
from validation.model.contract import ContractError, UsageError, dumps, loads
from validation.model.expectations import ANY_MODEL, Expectation, ExpectedGpus, References, parse_expectation
from validation.model.not_run import NotRunError
from validation.model.plans import PLANS, REQUIRED, WHOLE, RunOptions
from validation.model.printable import printable
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.processes import files
from validation.report import fleet_report
from validation.report.progress import Progress
from validation.run import burn_in
from validation.run.runner import run_plan
from validation.verdict.cohort import among_its_own
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_PASS, judge_fleet, judge_node

if TYPE_CHECKING:
    import argparse

STDIN = Path("-")


def run(options: argparse.Namespace) -> int:
    """Measure this machine and judge it."""
    expectation = read_expectation(options.expect)
    plan = PLANS[options.plan]
    if options.hours is not None:
        # A plan of its own: what is lowest in many rounds does not compare with one of them.
        name = f"{plan.name}, repeated for {options.hours:g} h"
        plan = dataclasses.replace(plan, name=name, duration_s=options.hours * 3600)
    if options.storage_floor is not None and not options.storage:
        raise UsageError("--storage-floor needs a --storage to read from; name one, or leave it out")
    run_options = RunOptions(
        storage_paths=tuple(dict.fromkeys(options.storage)),
        storage_floor_gb_s=options.storage_floor,
        traces=options.traces,
        tensorflow=options.tensorflow,
        graphics=options.graphics,
    )
    # A plan may be without what is required of this node: what did not run would fail it each time.
    required = [test for test in expectation.required_tests if test in registry.CHECKS]
    named = options.tests or [*registry.in_plan(options.plan, run_options), *required]
    tests = dict.fromkeys([*named, *registry.asked_for(run_options)])
    if options.gpus is not None:
        if expectation.gpus is not None:
            raise UsageError("--gpus and an expectation that names GPUs: leave one of them out")
        expectation = dataclasses.replace(expectation, gpus=(ExpectedGpus("any", ANY_MODEL, options.gpus),))
    to_file = options.output not in {None, STDIN}
    if to_file:
        files.ensure_writable(options.output)
    if options.traces:
        _ensure_writable_folder(options.traces)
    if plan.duration_s:
        say_price(Node(plan, expectation, run_options), options.state)
    with burn_in.locked(options.state), Progress(len(tests)) as progress:
        result = run_plan(
            plan, expectation, options.node, tests, progress, options.state, run_options, progress.say
        )
    by_options = registry.asked_for(run_options, required=True)
    required = [*expectation.required_tests, *(options.tests or ()), *by_options]
    if options.expect is None and not options.tests and result.gpus:
        required += REQUIRED.get(options.plan, PROVE_A_GPU)
    expectation = dataclasses.replace(expectation, required_tests=tuple(dict.fromkeys(required)))
    verdict = judge_node(
        options.node,
        result,
        expectation,
        HEADLINES,
        comparisons=among_its_own(result),
        fail_on_degraded=options.fail_on_degraded,
    )
    written = EXIT_PASS
    if to_file:
        try:
            files.write_atomically(options.output, dumps(result))
        except OSError as error:
            # A disk that filled up meanwhile costs the file, not the verdict.
            with contextlib.suppress(OSError):
                print(printable(f"validation: {error}"), file=sys.stderr)
            written = EXIT_ENVIRONMENT
    if options.output == STDIN:
        print(dumps(result), end="")
    else:
        print(fleet_report.text(judge_fleet([verdict])), end="")
    return verdict.exit_status or written


def say_price(node: Node, state: Path | None) -> None:
    """Say what a plan of hours costs on this node, and whether it goes on after an interruption."""
    with contextlib.closing(node):
        gpus = () if isinstance(node.smi, NvidiaSmiError) else node.smi.gpus
    print(
        burn_in.price(node.plan.duration_s / 3600, [gpu.power_limit_w for gpu in gpus], state),
        file=sys.stderr,
    )


def read_expectation(path: Path | None) -> Expectation:
    """Return what is expected of this machine, with references. Raises ContractError, OSError."""
    if path is None:
        return Expectation(references=gpu_models.available())
    try:
        expectation = parse_expectation(read(path), TESTS)
    except ContractError as error:
        raise ContractError(f"{'standard input' if path == STDIN else path}: {error}") from error
    if expectation.references == References():
        return dataclasses.replace(expectation, references=gpu_models.available())
    return expectation


def _ensure_writable_folder(path: Path) -> None:
    """Make sure before the work that a folder can be written to after it. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(f"{path}: expected a folder to write to, or none yet: {error.strerror}") from error


def read(path: Path) -> bytes:
    """Return what a file holds, or standard input for `-`: undecodable bytes are the reader's to name."""
    return sys.stdin.buffer.read() if path == STDIN else path.read_bytes()


def list_tests(_options: argparse.Namespace) -> int:
    """Say which tests and plans there are."""
    print("Tests:")
    for check in CHECKS.values():
        needs = ", ".join(need.words for need in check.needs) or "nothing"
        print(f"  {check.id:<21} {check.title} ({check.scope}; needs {needs})")
    print("Plans:")
    for plan in PLANS.values():
        whole = plan.name in WHOLE
        told = [check.id for check in CHECKS.values() if (plan.name in check.plans) != whole]
        word = "without" if whole else "only"
        print(f"  {plan.name:<15} {plan.summary}" + (f" ({word} {', '.join(told)})" if told else ""))
    return EXIT_PASS


def explain(options: argparse.Namespace) -> int:
    """Say what a finding means."""
    if options.code is None:
        print(catalogue.overview(), end="")
        return EXIT_PASS
    try:
        print(catalogue.explain(options.code), end="")
    except KeyError as error:
        close = catalogue.closest(options.code)
        hint = f"did you mean {close}?" if close else "`temper explain` lists all"
        raise UsageError(f"no finding has the code {options.code}; {hint}") from error
    return EXIT_PASS


def build(options: argparse.Namespace) -> int:
    """Write the payload as one file."""
    if archive.own_archive() is None and gpu_models.table() is None:
        print("validation: this Python reads no YAML: the build carries no references", file=sys.stderr)
    content = archive.own_archive() or archive.build()
    with contextlib.suppress(FileNotFoundError):
        if options.output.read_bytes() == content:
            return EXIT_PASS
    # Slices on one machine build it at the same time.
    files.write_atomically(options.output, content, 0o755)
    return EXIT_PASS


def take_part(options: argparse.Namespace) -> int:
    """Take part in a collective between nodes."""
    order = loads(Order, read(Path(options.order)))
    if order.plan not in PLANS or order.node not in {member.name for member in order.group}:
        raise UsageError(f"the order names plan {order.plan} and node {order.node}; one of them is unknown")
    with contextlib.closing(Node(PLANS[order.plan], Expectation())) as node:
        print(dumps(run_part(order, node)), end="")
    return EXIT_PASS


def batch(options: argparse.Namespace) -> int:
    """Search the largest and the fastest batch of a step."""
    try:
        found = largest_batch(
            own_function.named(options.step),
            device=options.device,
            most=options.most,
            memory_gb=options.memory,
            minutes=options.minutes,
            say=lambda words: print(words, file=sys.stderr, flush=True),
        )
    except (BatchError, own_function.FunctionError) as error:
        raise UsageError(str(error)) from error
    print(found.text(), end="")
    return EXIT_PASS


def autotune(options: argparse.Namespace) -> int:
    """Try settings on this node, and say which of them are worth it."""
    try:
        if options.restore:
            if options.journal.exists():
                with burn_in.locked(options.journal):
                    print(*restore(options.journal), sep="\n")
            else:  # what is on standard output has been restored
                print(f"Nothing to restore: there is no {options.journal}.", file=sys.stderr)
            return EXIT_PASS
        to_file = options.output not in {None, STDIN}
        if to_file:
            files.ensure_writable(options.output)
        wishes = Wishes(
            options.node,
            options.journal,
            tuple(options.knobs or ()),
            options.storage,
            math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes,
            options.seed,
        )
        if options.order is None:
            found = tune(wishes, _say)
        else:
            found = tune_together(wishes, loads(Order, read(Path(options.order))), _say)
    except (TuneError, BetweenError, ChangeError, NotRunError) as error:
        raise UsageError(str(error)) from error
    if to_file:
        files.write_atomically(options.output, dumps(found))
    print(dumps(found) if options.output == STDIN else documents.text(found), end="")
    return EXIT_PASS


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


#: More than the metrics of any node.
MOST_BYTES = 1 << 20


def metrics(options: argparse.Namespace) -> int:
    """Look at this node and write its metrics; also where it could not be looked at."""
    started = time.monotonic()
    expected = read_expectation(options.expect)
    with contextlib.closing(Node(PLANS["quick"], expected)) as node:
        said = collect(node, maintenance=bool(options.maintenance and options.maintenance.exists()))
        looked_at = node.probe_failure is None
    said.set("temper_metrics_interval_seconds", options.interval)
    said.set("temper_metrics_duration_seconds", round(time.monotonic() - started, 3))
    said.set(LAST_SUCCESS, round(time.time(), 3) if looked_at else _last_success(options.output))
    if options.output == STDIN:
        print(said.text(), end="")
    else:
        files.write_atomically(options.output, said.text())
    return EXIT_PASS


def _last_success(path: Path) -> float | None:
    """Return what the file of an earlier run says; None where there is none, or another file in its place."""
    try:
        with files.open_plain(path) as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{LAST_SUCCESS} ([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)$", text, re.MULTILINE)
    return float(found[1]) if found else None
