"""Tune this node: make its knobs, drive the search with trials, restore what trials changed."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from validation.autotune import between
from validation.autotune.between import BetweenError
from validation.autotune.evidence import AUTOTUNE_VERSION, Evidence, LeftOut, as_another
from validation.autotune.journal import ChangeError, Changes, restore
from validation.autotune.knobs import INTERFACE, KINDS, SHARED, STORAGE, Setup
from validation.autotune.search import Decision, Knob, Trial, least_trials, search
from validation.autotune.trials import Bench, readable
from validation.checks.node import Node
from validation.fabric.groups import Order
from validation.model.contract import ContractError, decode, encode
from validation.model.expectations import Expectation
from validation.model.not_run import NotRunError
from validation.model.plans import PLANS
from validation.probes import machine
from validation.probes.nvidia_smi import Report
from validation.processes import scratch
from validation.run import burn_in


class TuneError(Exception):
    """A node, or a wish, that nothing can be tuned with; the message says why. Nothing was changed."""


@dataclass(frozen=True)
class Wishes:
    """What the operator asks for. Without names every knob that the node has is tried.

    `journal` is where changes of the node are noted, `ends_at` (time.monotonic()) when the answer has to be
    there.
    """

    node: str
    journal: Path
    knobs: tuple[str, ...] = ()
    storage: Path | None = None
    ends_at: float = inf
    seed: int | None = None


def tune(wishes: Wishes, say: Callable[[str], None], group: between.Group | None = None) -> Evidence:
    """Tune this node, with the others of a group if it is the one of them that searches.

    `say` hears what is being tried.

    Raises TuneError, ChangeError, NotRunError and OSError.
    """
    started_at, started = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    if wishes.storage is not None and not wishes.storage.exists():
        raise TuneError(
            f"{wishes.storage}: no such file or folder to read from (--storage, autotune_storage_path)"
        )
    seed = random.SystemRandom().randrange(1 << 32) if wishes.seed is None else wishes.seed
    with contextlib.ExitStack() as whole:
        whole.enter_context(burn_in.locked(wishes.journal if _may_note(wishes) else None))
        restored = restore(wishes.journal)
        whole.enter_context(scratch.folder())
        node = whole.enter_context(contextlib.closing(_node(wishes.ends_at)))
        setup = Setup(node, wishes.storage, group=group)
        knobs, left_out = chosen(setup, wishes.knobs)
        refuse_unfit(node, knobs)
        with contextlib.ExitStack() as stack:
            bench = Bench(setup)
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


def tune_together(wishes: Wishes, order: Order, say: Callable[[str], None]) -> Evidence:
    """Return this node's part where several are tuned together: the first searches, the others follow it.

    Raises BetweenError, and what `tune` raises.
    """
    if INTERFACE not in wishes.knobs or not set(wishes.knobs) <= set(SHARED):
        raise TuneError(
            f"{INTERFACE} is tuned by several nodes together, alone or with nccl_sockets; "
            f"found {', '.join(wishes.knobs) or 'no knob'}"
        )
    # Without an end: the others hear what was found, or that time was over.
    with contextlib.closing(_node()) as node:
        between.check(order, node)
        if order.node != order.group[0].name:
            _refuse_busy(node)
            say(f"following {order.group[0].name}, which searches")
            with burn_in.locked(wishes.journal if _may_note(wishes) else None), scratch.folder():
                return _followed(between.follow(order, node), order, node)
        try:
            group = between.survey(order, node)
            found = tune(wishes, say, group)
        except (TuneError, BetweenError, ChangeError, NotRunError, OSError) as error:
            between.end(order, node, {"problem": str(error)})
            raise
        nodes = tuple(member.name for member in order.group)
        found = replace(found, nodes=nodes, library=order.library)
        names = [
            {choice: between.exactly(own[place]) for choice, own in group.choices.items()}
            for place in range(len(nodes))
        ]
        between.end(order, node, {"evidence": encode(found), "names": names})
        return found


def _followed(told: dict[str, Any], order: Order, node: Node) -> Evidence:
    """Return what the node that searched has found, as this one has it."""
    try:
        found = decode(Evidence, told["evidence"])
        names = told["names"][found.nodes.index(order.node)]
    except (ContractError, KeyError, ValueError) as error:
        raise TuneError(f"{order.group[0].name} said something else than what it found: {error}") from error
    described = machine.describe(node.loaded_driver)
    return as_another(replace(found, node=order.node, machine=described, restored=()), INTERFACE, names)


def _node(ends_at: float = inf) -> Node:
    return Node(PLANS["quick"], Expectation(), ends_at=ends_at)


def _may_note(wishes: Wishes) -> bool:
    """Return whether there can be a journal: what changes nothing of the node may be run by anybody.

    Raises TuneError where there must be one.
    """
    place = next(place for place in wishes.journal.absolute().parents if place.exists())
    writable = os.access(place, os.W_OK)
    if not writable and (wishes.storage is not None or "gpu_clocks" in wishes.knobs):
        raise TuneError(
            f"{wishes.journal}: what is changed for reads of storage and for clocks is noted there before, "
            "and this user may not write it; run it as root, or without them"
        )
    return writable


def chosen(setup: Setup, names: Sequence[str]) -> tuple[list[Knob], tuple[LeftOut, ...]]:
    """Return the knobs that were asked for, in their order, and those that this node does not have.

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
    """Carry out the trials that the search asks for, and say before how many and how long they are."""
    say(f"at least {least_trials(knobs)} trials, {_within(bench.setup.node.left_s)}")
    asking = search(knobs, seed)
    trial, said = next(asking), ""
    while True:
        if (words := _words(trial, knobs)) != said:
            say(words)
            said = words
        known = trial.objective in bench.took_s
        try:
            answer = bench.measure(trial)
            if not known and trial.objective in bench.took_s:
                say(_estimate(trial, knobs, bench.typical_s(trial.objective)))
            trial = asking.send(answer)
        except StopIteration as done:
            decision: Decision = done.value
            return decision


def _within(left_s: float) -> str:
    return "without a limit of time" if left_s == inf else f"and an answer within {left_s / 60:.0f} min"


def _estimate(trial: Trial, knobs: Sequence[Knob], trial_s: float) -> str:
    """`a trial of cpu_training takes 15 s: 3 min if no value is better, 13 min or more if one is`."""
    least = least_trials([knob for knob in knobs if knob.objective == trial.objective])
    more = trial.after.get(trial.objective, 0)
    return (
        f"a trial of {trial.objective} takes {trial_s:.0f} s: {least * trial_s / 60:.0f} min or more "
        f"if no value is better, {(least + more) * trial_s / 60:.0f} min or more if one is"
    )


def _words(trial: Trial, knobs: Sequence[Knob]) -> str:
    """`screen: cpu_training`; the values change from trial to trial of a pair."""
    own = ", ".join(knob.name for knob in knobs if knob.objective == trial.objective)
    return f"{trial.stage}: {trial.objective} ({own})"


def refuse_unfit(node: Node, knobs: Sequence[Knob]) -> None:
    """Raise TuneError where trials could not run, or would measure somebody else's work."""
    if any(knob.objective != STORAGE for knob in knobs) and (reason := node.why_no_torch()):
        raise TuneError(f"{reason}; run it with a Python that has torch, such as gpu_validation_python")
    _refuse_busy(node)


def _refuse_busy(node: Node) -> None:
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
