"""Tune this node: make its knobs, drive the search with trials, restore what trials changed."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.autotune.evidence import AUTOTUNE_VERSION, Evidence, LeftOut
from validation.autotune.journal import Changes, restore
from validation.autotune.knobs import KINDS, STORAGE, Setup
from validation.autotune.search import Knob, search
from validation.autotune.trials import Bench, readable
from validation.checks.node import Node
from validation.model.expectations import Expectation
from validation.model.plans import PLANS
from validation.probes import machine
from validation.probes.nvidia_smi import Report
from validation.processes import scratch
from validation.run import burn_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from validation.autotune.search import Decision, Trial


class TuneError(Exception):
    """A node, or a wish, that nothing can be tuned with; the message says why. Nothing was changed."""


@dataclass(frozen=True)
class Wishes:
    """What the operator asks for. Without names every knob that the node has is tried.

    `journal` is where changes of the node are noted, `minutes` after how long only what was found is proven.
    """

    node: str
    journal: Path
    knobs: tuple[str, ...] = ()
    storage: Path | None = None
    minutes: float | None = None
    seed: int | None = None


def tune(wishes: Wishes, say: Callable[[str], None]) -> Evidence:
    """Tune this node. `say` hears what is being tried.

    Raises TuneError, ChangeError, NotRunError and OSError.
    """
    started_at, started = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    seed = random.SystemRandom().randrange(1 << 32) if wishes.seed is None else wishes.seed
    with contextlib.ExitStack() as whole:
        whole.enter_context(burn_in.locked(wishes.journal if _may_note(wishes) else None))
        restored = restore(wishes.journal)
        whole.enter_context(scratch.folder())
        node = whole.enter_context(contextlib.closing(Node(PLANS["quick"], Expectation())))
        setup = Setup(node, wishes.storage)
        knobs, left_out = chosen(setup, wishes.knobs)
        refuse_unfit(node, knobs)
        with contextlib.ExitStack() as stack:
            bench = Bench(setup)
            if wishes.minutes is not None:
                bench.ends_at = started + 60 * wishes.minutes
            if any(knob.objective == STORAGE for knob in knobs):
                assert wishes.storage is not None
                bench.source = stack.enter_context(readable(wishes.storage, say))
            if any(setup.changed_by(knob.name) for knob in knobs):
                bench.changes = stack.enter_context(Changes(wishes.journal))
                _allow(bench.changes, setup, knobs)
            decision = drive(knobs, seed, bench, say)
        described = machine.describe(node.loaded_driver)
    return Evidence(
        schema_version=AUTOTUNE_VERSION,
        node=wishes.node,
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - started, 3),
        seed=seed,
        machine=described,
        processes=setup.processes,
        decision=decision,
        left_out=left_out,
        restored=tuple(restored),
    )


def _may_note(wishes: Wishes) -> bool:
    """Whether there can be a journal: what changes nothing of the node may be run by anybody."""
    place = next(place for place in wishes.journal.absolute().parents if place.exists())
    return wishes.storage is not None or "gpu_clocks" in wishes.knobs or os.access(place, os.W_OK)


def chosen(setup: Setup, names: Sequence[str]) -> tuple[list[Knob], tuple[LeftOut, ...]]:
    """The knobs that were asked for, in their order, and those that this node does not have.

    Raises TuneError for one that was named and is not there, and where none is left.
    """
    knobs, left_out = [], []
    for kind in KINDS.values():
        if names and kind.name not in names:
            continue
        if kind.only_named and not names:
            left_out.append(LeftOut(kind.name, "it is tried only where it is named"))
            continue
        made = kind.make(setup)
        if isinstance(made, Knob):
            knobs.append(made)
        elif names:
            raise TuneError(f"{kind.name} cannot be tuned here: {made}")
        else:
            left_out.append(LeftOut(kind.name, made))
    if not knobs:
        raise TuneError("this node has nothing to tune")
    return knobs, tuple(left_out)


def drive(knobs: Sequence[Knob], seed: int, bench: Bench, say: Callable[[str], None]) -> Decision:
    """Carry out the trials that the search asks for."""
    asking = search(knobs, seed)
    trial, said = next(asking), ""
    while True:
        if (words := _words(trial, knobs)) != said:
            say(words)
            said = words
        try:
            trial = asking.send(bench.measure(trial))
        except StopIteration as done:
            decision: Decision = done.value
            return decision


def _words(trial: Trial, knobs: Sequence[Knob]) -> str:
    """`screen: cpu_training`; the values change from trial to trial of a pair."""
    own = ", ".join(knob.name for knob in knobs if knob.objective == trial.objective)
    return f"{trial.stage}: {trial.objective} ({own})"


def refuse_unfit(node: Node, knobs: Sequence[Knob]) -> None:
    """Raises TuneError where trials could not run, or would measure somebody else's work."""
    if any(knob.objective != STORAGE for knob in knobs) and (reason := node.why_no_torch()):
        raise TuneError(f"{reason}; run it with a Python that has torch, such as gpu_validation_python")
    reported = node.smi.gpus if isinstance(node.smi, Report) else ()
    for gpu in reported:
        if gpu.processes:
            raise TuneError(
                f"GPU {gpu.index} is in use by {gpu.processes[0]}: end it or wait, as both would be slower"
            )


def _allow(changes: Changes, setup: Setup, knobs: Sequence[Knob]) -> None:
    """Note what trials will change. Raises ChangeError."""
    for knob in knobs:
        if file := setup.changed_by(knob.name):
            changes.allow(file, knob.candidates)
