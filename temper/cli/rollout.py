"""Rolling upgrades of the driver.

temper rollout plan -i inventory/mine --stack NEW     waves, order, times, and why nodes are left out;
                                                          changes nothing
temper rollout run -i inventory/mine --stack NEW      upgrade the nodes, wave by wave
temper rollout plan | run ... --kernel newest         bring them to another kernel, with --stack or alone
temper rollout status                                 how far it is, from another shell
temper rollout hold | abort --reason WHY              no node starts any more; abort also releases those
                                                          on which nothing was changed yet
temper rollout resume -i inventory/mine               go on after a hold, an abort or a crash: pending
                                                          nodes start again
temper rollout resume --finish -i inventory/mine      after a hold or an abort whose controller has died:
                                                          end the nodes on their way, and start no other one
temper rollout schedule -i inventory/mine             print a timer for systemd (or --cron) that goes on
                                                          in each window
temper rollout retry NODE                             have another try on a node, with the next resume
temper rollout rollback -i inventory/mine             bring the nodes of the last roll-out back, wave by
                                                          wave and with its policy, to the stack that they
                                                          came from
temper rollout report                                 the way of every node, with its minutes

The exit status of run, resume and rollback is 0 where every node that took part returned, or where the next
window is awaited, and 1 where a person has to look; that of status is 0, 1, or 3 while it is not over. What
cannot be carried out ends with 2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import os
import shlex
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from temper.base import ROOT
from temper.base.nodes import printable
from temper.cli import json_document
from temper.plan.inventory import NODES, InventoryError, groups_of
from temper.rollout.fleet import candidates, preflight, proposal
from temper.rollout.forecast import plan_dict, plan_text
from temper.rollout.machine import retried
from temper.rollout.model import Mode, Observation, State
from temper.rollout.planner import decide, some
from temper.rollout.policy import Drain, Policy, PolicyError, aim, load, read
from temper.rollout.report import as_dict, status_text, timeline_text, verdict
from temper.rollout.store import HeldError, RolloutStore, StoreError
from temper.rollout.windows import cron_line, systemd_units
from validation.processes.files import own

if TYPE_CHECKING:
    from collections.abc import Callable

    from temper.rollout.drain.base import Drainer
    from temper.rollout.engine import Ending
    from temper.rollout.fleet import Candidate
    from temper.rollout.model import Rollout

USAGE_ERROR = 2
#: As a shell says that Ctrl-C ended a program.
INTERRUPTED = 130
#: Threads that wait for nodes at the same time.
MOST_AT_ONCE = 512
FOLDER = ROOT / "reports" / "rollouts"


def plan(given: argparse.Namespace) -> int:
    """Print what a roll-out would do."""
    now = datetime.now(UTC)
    found, proposed = _proposed(given, given.stack, given.limit, now, _policy(given))
    json_document.show(given, plan_dict(proposed, found, now), printable(plan_text(proposed, found, now)))
    return int(all(node.problems for node in found))


def run(given: argparse.Namespace) -> int:
    """Record a roll-out, and begin it."""
    return _begin(given, given.stack, given.limit, _policy(given))


def rollback(given: argparse.Namespace) -> int:
    """Record a roll-out back to where the last one came from, and begin it."""
    last = _last(_store(given))
    to = aim(last.stack, last.policy.kernel)
    if last.policy.kernel:
        raise StoreError(
            f"roll-out {last.number} has brought nodes to {to}: `rollback` brings stacks "
            "only; the former kernel is still in the boot menu of each node"
        )
    came_from = {
        name: record.facts["former_stack"]
        for name, record in last.records.items()
        if record.state is State.RETURNED and "former_stack" in record.facts
    }
    stacks = sorted(set(came_from.values()))
    if not stacks:
        raise StoreError(f"roll-out {last.number} has brought no node to {last.stack}: nothing to roll back")
    if len(stacks) > 1:
        raise StoreError(
            f"the nodes of roll-out {last.number} came from {' and '.join(stacks)}: bring each group back by "
            "`run --stack STACK --limit NODES`"
        )
    # Whoever took nodes out of service for the way there does so for the way back.
    policy = replace(load(given.policy) if given.policy else last.policy, kernel="")
    whose = str(given.policy) if given.policy else f"that of roll-out {last.number}, which is rolled back"
    return _begin(given, stacks[0], "\n".join(came_from), policy, f"Policy: {whose}.")


def resume(given: argparse.Namespace) -> int:
    """Go on with the roll-out that has not ended."""
    store = _store(given)
    if given.scheduled and not store.path.is_file():
        return 0
    last = _last(store)
    what = f"roll-out {last.number} to {aim(last.stack, last.policy.kernel)}"
    held = last.mode in (Mode.HELD, Mode.STOPPED)
    if given.scheduled and last.mode is not Mode.RUNNING and not (held and _on_the_way(last)):
        return 0
    if last.mode is Mode.DONE:
        raise StoreError(f"{what} has ended: `run` begins another one")
    if given.finish and not held:
        raise StoreError(f"{what} is {last.mode}: `hold` or `abort` it first, so that no other node starts")
    _known(given, last)
    # A timer ends what was left on the way, and never goes on with what a person has held.
    goes_on = held and not (given.finish or given.scheduled)
    if goes_on:
        store.resume(last.number, getpass.getuser(), datetime.now(UTC))
    try:
        return _carry_out(given, store, last.number)
    except HeldError:
        if given.scheduled:
            return 0
        if goes_on and (holder := store.holder()):
            print(
                printable(
                    f"Roll-out {last.number} goes on: the controller of {holder.owner} starts nodes again."
                )
            )
            return 0
        raise


def _known(given: argparse.Namespace, rollout: Rollout) -> None:
    """Raise InventoryError where a node on its way is not in the inventory, or none of those that wait is.

    Ansible would do nothing there, and not always fail: a node would be given up, or counted as changed.
    """
    groups = groups_of(_inventory(given))
    known = {name for name, of in groups.items() if NODES in of}
    missing = [name for name in _on_the_way(rollout) if name not in known]
    left = [name for name, record in rollout.records.items() if not record.ended]
    if missing or (left and known.isdisjoint(left)):
        raise InventoryError(
            f"{' '.join(map(str, given.inventory))}: expected in group {NODES}, as when roll-out "
            f"{rollout.number} began: {some(missing or left)}; nothing was done"
        )


def schedule(given: argparse.Namespace) -> int:
    """Print what has the controller go on with a roll-out in each of its windows."""
    words = [
        sys.executable,
        "-m",
        *("temper", "rollout"),
        "resume",
        "--scheduled",
        *(word for path in _inventory(given) for word in ("-i", path)),
        "--folder",
        str(given.folder.resolve()),
    ]
    if given.cron:
        print(cron_line(shlex.join(words), shlex.quote(str(ROOT)), getpass.getuser()), end="")
        return 0
    for name, text in systemd_units(shlex.join(words), str(ROOT), getpass.getuser()).items():
        print(f"# /etc/systemd/system/{name}\n{text}")
    return 0


def status(given: argparse.Namespace) -> int:
    """Print how far the last roll-out is."""
    store = _store(given)
    last = _last(store)
    now, said = datetime.now(UTC), store.sentence(last.number)
    holder = store.at_work(now)
    document = as_dict(last, store.events(last.number), now) | {
        "sentence": said,
        "controller": str(holder.owner) if holder else "",
    }
    text = "\n".join(filter(None, (status_text(last, now, said), _nobody_at_work(store, last))))
    json_document.show(given, document, printable(text))
    return verdict(last)


def _nobody_at_work(store: RolloutStore, rollout: Rollout) -> str:
    """What goes on with a roll-out that nobody works on, though there is something to do; else nothing."""
    if store.at_work(datetime.now(UTC)):
        return ""
    if rollout.mode is Mode.RUNNING:
        return (
            "No controller is at work: `resume` goes on with it, and so does a timer in each window "
            "(`schedule` prints it)."
        )
    if names := _on_the_way(rollout):
        return f"No controller is at work: {store.finish_command} ends {some(names)}, and starts no other."
    return ""


def report(given: argparse.Namespace) -> int:
    """Print the way of every node."""
    store = _store(given)
    last = _last(store)
    events, now = store.events(last.number), datetime.now(UTC)
    json_document.show(given, as_dict(last, events, now), timeline_text(last, events, now))
    return 0


def hold(given: argparse.Namespace) -> int:
    """Let no node start any more."""
    store = _store(given)
    store.hold(_last(store).number, getpass.getuser(), given.reason, datetime.now(UTC))
    print(printable(_who_ends(store)))
    return 0


def abort(given: argparse.Namespace) -> int:
    """As hold, and nodes on which nothing was changed yet are released."""
    store = _store(given)
    store.stop(_last(store).number, getpass.getuser(), given.reason, datetime.now(UTC))
    print(printable(_who_ends(store)))
    return 0


def _on_the_way(rollout: Rollout) -> list[str]:
    return [name for name, record in rollout.records.items() if record.on_its_way]


def _who_ends(store: RolloutStore) -> str:
    """What becomes of the nodes on their way, now that no other one starts."""
    if not (names := _on_the_way(_last(store))):
        return "No node is on its way, and none starts."
    if holder := store.at_work(datetime.now(UTC)):
        return f"No other node starts. The controller of {holder.owner} ends {some(names)}."
    return (
        f"No other node starts. {some(names)} on the way, and no controller is at work: "
        f"{store.finish_command} ends that, and starts no other."
    )


def retry(given: argparse.Namespace) -> int:
    """Have another try on a node."""
    store = _store(given)
    last, now = _last(store), datetime.now(UTC)
    if obstacle := _never_starts(last, given.node, now):
        raise StoreError(f"{given.node} would not start again: {obstacle}; nothing was changed")
    record = store.retry(last.number, given.node, getpass.getuser(), now)
    print(printable(f"{given.node} is {record.state}; `resume` goes on with it."))
    return 0


def _never_starts(rollout: Rollout, node: str, now: datetime) -> str:
    """Why a node that would wait for its turn again never has it, even if somebody resumes the roll-out.

    Empty where nothing stops it, or where it is on its way at once: one that failed need not start.
    """
    record = rollout.records.get(node)
    if record is None or record.state not in (State.ROLLED_BACK, State.LEFT_OUT):
        return ""
    seen = {name: replace(one, accepted=True) for name, one in rollout.records.items()}
    resumed = replace(rollout, records=seen | {node: retried(record, now)}, mode=Mode.RUNNING, reason="")
    decision = decide(resumed, now, Observation())
    return decision.reason if decision.mode is Mode.STOPPED else ""


def _policy(given: argparse.Namespace) -> Policy:
    """The policy of the command line. Raises PolicyError where it asks for nothing."""
    policy = load(given.policy) if given.policy else Policy()
    if given.kernel:
        policy = replace(policy, kernel=read({"kernel": given.kernel}).kernel)
    if not (given.stack or policy.kernel):
        raise PolicyError(["expected --stack, --kernel, or both: a roll-out brings at least one of them"])
    return policy


def _proposed(
    given: argparse.Namespace, stack: str, limit: str, now: datetime, policy: Policy
) -> tuple[list[Candidate], Rollout]:
    inventory = _inventory(given)
    plans, previews = preflight(inventory, stack, limit, policy.kernel)
    groups = groups_of(inventory)
    found = candidates(plans, groups, previews, only_kernel=not stack)
    return found, proposal(found, policy, stack, now, groups)


def _begin(given: argparse.Namespace, stack: str, limit: str, policy: Policy, said: str = "") -> int:
    store = _store(given)
    now = datetime.now(UTC)
    found, proposed = _proposed(given, stack, limit, now, policy)
    print(printable("\n".join(filter(None, (plan_text(proposed, found, now), said)))))
    if all(node.problems for node in found):
        return 1
    number = store.create(stack, proposed.policy, proposed.nodes, proposed.records, now)
    return _carry_out(given, store, number)


def _carry_out(given: argparse.Namespace, store: RolloutStore, number: int) -> int:
    """Go on until the roll-out has ended, holds, or waits for its window."""
    # Late: a command that only looks needs none of them.
    from temper.rollout.engine import Engine
    from temper.rollout.executor import FleetExecutor
    from temper.rollout.gate import Rules
    from temper.rollout.playbooks import Ansible

    rollout = _last(store)
    folder = given.folder / str(number)
    identity = store.identity(number)
    earlier = [
        found.stack for back in range(number - 1, 0, -1) if (found := store.load(back)) and found.stack
    ]
    executor = FleetExecutor(
        Ansible(folder, _inventory(given)),
        drainer(rollout.policy, identity),
        folder,
        identity,
        rules=Rules(runs=rollout.policy.measure_runs),
        known_stacks=tuple(dict.fromkeys(earlier)),
    )
    engine = Engine(store, executor, say=_progress(folder / "progress.log"))

    async def carry_out() -> Ending:
        task = asyncio.current_task()
        assert task
        # A terminal that closes, or systemd that stops: steps under way end, and the next run repeats them.
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(one) is not signal.SIG_IGN:  # under nohup, a closed terminal ends nothing
                loop.add_signal_handler(one, task.cancel)
        # A node that drains, or is worked on, is a thread that waits; Python's own pool has a few a core.
        loop.set_default_executor(ThreadPoolExecutor(MOST_AT_ONCE))
        return await engine.run(number)

    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        ending = asyncio.run(carry_out())
        with contextlib.suppress(OSError):  # whoever read along may have gone
            last = _last(store)
            text = status_text(last, datetime.now(UTC))
            by_hand = "" if getattr(given, "scheduled", False) else _nobody_at_work(store, last)
            print(printable("\n".join(filter(None, (text, by_hand)))), flush=True)
        return ending.exit_status
    again = "`resume`" if _last(store).mode is Mode.RUNNING else store.finish_command
    print(f"Interrupted. The steps that were under way are repeated by {again}.", file=sys.stderr)
    return 1


def _progress(log: Path) -> Callable[[str], None]:
    """Says what happens on the terminal, and with its time in a log, which outlives the terminal."""
    own(log.parent)

    def say(text: str) -> None:
        line = printable(text)
        # A terminal that is gone, or a full disk, must not end a roll-out: what counts is in its records.
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n")
        with contextlib.suppress(OSError):
            print(line, flush=True)

    return say


def drainer(policy: Policy, identity: str) -> Drainer:
    """What takes nodes out of service, as the policy says."""
    from temper.rollout.drain.commands import Commands, Idle
    from temper.rollout.drain.kubernetes import Kubernetes
    from temper.rollout.drain.slurm import Slurm

    if policy.drain is Drain.COMMANDS:
        words = policy.drain_commands
        return Commands(words["look"], words["drain"], words["empty"], words["give_back"])
    if policy.drain is Drain.SLURM:
        return Slurm(identity)
    if policy.drain is Drain.KUBERNETES:
        return Kubernetes(identity, options=policy.drain_options)
    return Idle()


def _inventory(given: argparse.Namespace) -> list[str]:
    return [str(path.resolve()) for path in given.inventory]


def _store(given: argparse.Namespace) -> RolloutStore:
    return RolloutStore(given.folder / "rollouts.sqlite")


def _last(store: RolloutStore) -> Rollout:
    last = store.load() if store.path.is_file() else None
    if last is None:
        raise StoreError(f"{store.path} has no roll-out: `run` begins one")
    return last


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    whole = argparse.ArgumentParser(
        prog="temper rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        summary = (function.__doc__ or "").rstrip(".")
        made = commands.add_parser(function.__name__, help=summary[0].lower() + summary[1:])
        made.set_defaults(function=function)
        made.add_argument(
            "--folder", type=Path, default=FOLDER, help="records and logs (default: %(default)s)"
        )
        return made

    def with_inventory(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "-i",
            "--inventory",
            type=Path,
            action="append",
            required=True,
            help="inventory of Ansible; may be given again",
        )

    for function in (plan, run):
        made = command(function)
        with_inventory(made)
        made.add_argument("--stack", default="", help="stack of data/stacks.yml to upgrade to")
        made.add_argument(
            "--kernel",
            default="",
            metavar="newest|VERSION",
            help="kernel to upgrade to: the version of its package",
        )
        made.add_argument("--policy", type=Path, help="policy in YAML; without one, the defaults hold")
        made.add_argument("--limit", default="", help="only these nodes, as Ansible takes it")
        if function is plan:
            json_document.add_option(made)
    made = command(rollback)
    with_inventory(made)
    made.add_argument(
        "--policy", type=Path, help="policy in YAML; without one, that of the roll-out that is rolled back"
    )
    made = command(resume)
    with_inventory(made)
    made.add_argument(
        "--scheduled",
        action="store_true",
        help="for a timer: do nothing where nobody has begun, somebody is at work, or a person has to look; "
        "after a hold or an abort, only as --finish",
    )
    made.add_argument(
        "--finish",
        action="store_true",
        help="after a hold or an abort, where no controller is at work: end the nodes on their way, start no "
        "other one",
    )
    made = command(schedule)
    with_inventory(made)
    made.add_argument(
        "--cron", action="store_true", help="a line for /etc/cron.d instead of units of systemd"
    )
    for function in (status, report):
        json_document.add_option(command(function))
    for function in (hold, abort):
        command(function).add_argument("--reason", required=True, help="for whoever reads the status")
    command(retry).add_argument("node", metavar="NODE")
    return whole


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    given = parser().parse_args(arguments)
    exit_status = 1
    try:
        exit_status = int(given.function(given))
        sys.stdout.flush()
    except (InventoryError, PolicyError, StoreError) as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("Interrupted. `status` says whether a roll-out has begun.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has gone, as with "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_status
