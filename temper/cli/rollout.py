"""Rolling upgrades of the driver.

temper rollout plan -i inventory/mine --stack NEW     waves, order, times, and why nodes are left out;
                                                          changes nothing
temper rollout run -i inventory/mine --stack NEW      show the plan, ask, and upgrade the nodes, wave by
                                                          wave; with --yes it does not ask
temper rollout plan | run ... --kernel newest         bring them to another kernel, with --stack or alone
temper rollout status                                 how far it is, and what to type where a node failed
temper rollout hold | abort --reason WHY              no node starts any more; abort also releases those
                                                          on which nothing was changed yet
temper rollout resume                                 go on after a hold, an abort or a crash: pending
                                                          nodes start again
temper rollout resume --finish                        after a hold or an abort whose controller has died:
                                                          end the nodes on their way, and start no other one
temper rollout schedule                               print a timer for systemd (or --cron) that goes on
                                                          in each window
temper rollout retry NODE                             have another try on a node, with the next resume
temper rollout measure-again NODE --reason WHY        the same for a failed node whose baseline was bad: it
                                                          gets a new one
temper rollout accept NODE --reason WHY               you have looked: return a failed node to service as
                                                          it is; try another one whatever its speed
temper rollout rollback                               bring the nodes of the last roll-out back, wave by
                                                          wave and with its policy, to the stack that they
                                                          came from
temper rollout report                                 the way of every node, with its times

plan and run take the inventory from -i or ANSIBLE_INVENTORY; the others go by that of the roll-out.

The exit status of run, resume and rollback is 0 where every node that took part returned, or where the next
window is awaited, and 1 where a person has to look; that of status is 0, 1, or 3 while it is not over. What
cannot be carried out ends with 2.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from temper.base import ROOT
from temper.base.nodes import READING, printable, utc
from temper.base.options import named, told
from temper.cli import json_document, playbook
from temper.cli.main import BAD, NOT_CARRIED_OUT, refused
from temper.plan.inventory import NODES, InventoryError, groups_of
from temper.rollout.drain.base import Drainer
from temper.rollout.fleet import Candidate, candidates, preflight, proposal
from temper.rollout.forecast import expected_end, plan_dict, plan_text
from temper.rollout.machine import tried_again
from temper.rollout.model import Mode, NodeState, Observation, Rollout, Try
from temper.rollout.planner import decide, some
from temper.rollout.policy import Drain, Policy, PolicyError, aim, load, read
from temper.rollout.report import as_dict, longest_steps, status_text, timeline_text, verdict, what_to_do
from temper.rollout.store import FOLDER, HeldError, LostLeaseError, RolloutStore, StoreError
from temper.rollout.windows import cron_line, systemd_units
from validation.processes.files import own

if TYPE_CHECKING:
    from temper.rollout.engine import Ending

#: Threads that wait for nodes at the same time.
MOST_AT_ONCE = 512


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
    store = _store(given)
    last = _last(store)
    _take_inventory(given, store, last.number)
    to = aim(last.stack, last.policy.kernel)
    if last.policy.kernel:
        raise StoreError(
            f"roll-out {last.number} has brought nodes to {to}: `rollback` brings stacks "
            "only; the former kernel is still in the boot menu of each node"
        )
    came_from = {
        name: record.facts["former_stack"]
        for name, record in last.records.items()
        if record.state is NodeState.RETURNED and "former_stack" in record.facts
    }
    stacks = sorted(set(came_from.values()))
    if not stacks:
        raise StoreError(f"roll-out {last.number} has brought no node to {last.stack}: nothing to roll back")
    if len(stacks) > 1:
        raise StoreError(
            f"the nodes of roll-out {last.number} came from {' and '.join(stacks)}: bring each group back by "
            "`temper rollout run --stack STACK --limit NODES`"
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
        raise StoreError(f"{what} has ended: `temper rollout run` begins another one")
    if given.finish and not held:
        raise StoreError(
            f"{what} is {last.mode}: first {store.command('hold --reason WHY')}, so that no other node starts"
        )
    _take_inventory(given, store, last.number)
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
    store = _store(given)
    _take_inventory(given, store, _last(store).number if not given.inventory else 0)
    words = [
        sys.executable,
        "-m",
        *("temper", "rollout"),
        "resume",
        "--scheduled",
        *(word for path in _inventory(given) for word in ("-i", path)),
        "--folder",
        os.path.realpath(given.folder),
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
    events = store.events(last.number)
    # Nobody brings a roll-out to an end that no controller works on.
    end = expected_end(last, now, longest_steps(events)) if holder else None
    document = as_dict(last, events, now) | {
        "sentence": said,
        "end": utc(end) if end else "",
        "controller": str(holder.owner) if holder else "",
        "what_to_do": what_to_do(last, now, store.command),
    }
    text = "\n".join(
        filter(None, (status_text(last, now, said, store.command, end), _nobody_at_work(store, last)))
    )
    json_document.show(given, document, printable(text))
    return verdict(last)


def _nobody_at_work(store: RolloutStore, rollout: Rollout) -> str:
    """Say what goes on with a roll-out that nobody works on though something is left; empty otherwise."""
    if store.at_work(datetime.now(UTC)):
        return ""
    if rollout.mode is Mode.RUNNING:
        return (
            f"No controller is at work: {store.command('resume')} goes on with it, and so does a timer in "
            f"each window ({store.command('schedule')} prints it)."
        )
    if names := _on_the_way(rollout):
        finish = store.command("resume --finish")
        return f"No controller is at work: {finish} ends {some(names)}, and starts no other."
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
    """Return what becomes of the nodes on their way, now that no other one starts."""
    if not (names := _on_the_way(_last(store))):
        return "No node is on its way, and none starts."
    if holder := store.at_work(datetime.now(UTC)):
        return f"No other node starts. The controller of {holder.owner} ends {some(names)}."
    return (
        f"No other node starts. {some(names)} on the way, and no controller is at work: "
        f"{store.command('resume --finish')} ends that, and starts no other."
    )


def retry(given: argparse.Namespace) -> int:
    """Have another try on a node."""
    return _try_again(given, Try.RETRY)


def measure_again(given: argparse.Namespace) -> int:
    """Have another try on a node that failed, with a new baseline."""
    return _try_again(given, Try.MEASURE_AGAIN, given.reason)


def accept(given: argparse.Namespace) -> int:
    """Return a failed node to service as it is, because you have looked, or try one whatever its speed."""
    return _try_again(given, Try.ACCEPT, given.reason)


def _try_again(given: argparse.Namespace, verb: Try, reason: str = "") -> int:
    store = _store(given)
    last, now = _last(store), datetime.now(UTC)
    if obstacle := _never_starts(last, given.node, verb, now):
        raise StoreError(f"{given.node} would not start again: {obstacle}; nothing was changed")
    record = store.retry(last.number, given.node, getpass.getuser(), now, verb, reason)
    # One that runs takes it up by itself.
    holder = store.at_work(now) if store.mode(last.number)[0] is Mode.RUNNING else None
    who = f"the controller of {holder.owner}" if holder else store.command("resume")
    print(printable(f"{given.node} is {record.state}; {who} goes on with it."))
    return 0


def _never_starts(rollout: Rollout, node: str, verb: Try, now: datetime) -> str:
    """Return why a node that would wait for its turn again never has it, even after a `resume`.

    Empty where nothing stops it, or where it is on its way at once: one that failed need not start.
    """
    record = rollout.records.get(node)
    if record is None or record.state not in (NodeState.ROLLED_BACK, NodeState.LEFT_OUT):
        return ""
    seen = {name: replace(one, accepted=True) for name, one in rollout.records.items()}
    try:
        again = tried_again(record, verb, "", now)
    except ValueError:
        return ""  # the store refuses it, and says why
    resumed = replace(rollout, records=seen | {node: again}, mode=Mode.RUNNING, reason="")
    decision = decide(resumed, now, Observation())
    return decision.reason if decision.mode is Mode.STOPPED else ""


def _policy(given: argparse.Namespace) -> Policy:
    """Return the policy of the command line. Raises PolicyError where it asks for nothing."""
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
    if sys.stderr.isatty():  # playbooks/upgrade.yml takes the last line of another one for the reason
        print(READING, file=sys.stderr, flush=True)
    plans, previews = preflight(inventory, stack, limit, policy.kernel)
    groups = groups_of(inventory)
    found = candidates(plans, groups, previews, only_kernel=not stack)
    return found, proposal(found, policy, stack, now, groups)


def _begin(given: argparse.Namespace, stack: str, limit: str, policy: Policy, said: str = "") -> int:
    store = _store(given)
    now = datetime.now(UTC)
    if not given.yes and not sys.stdin.isatty():
        raise StoreError(f"{given.command} {playbook.ASKS}")
    found, proposed = _proposed(given, stack, limit, now, policy)
    print(printable("\n".join(filter(None, (plan_text(proposed, found, now), said)))))
    if all(node.problems for node in found):
        return 1
    names = [node.name for node in found if not node.problems]
    if not given.yes and not playbook.confirmed(f"Upgrade and reboot {some(names)}, as above?"):
        print("Nothing was changed.")
        return NOT_CARRIED_OUT
    now = datetime.now(UTC)  # the question may have stood for hours
    records = {name: replace(record, since=now) for name, record in proposed.records.items()}
    number = store.create(stack, proposed.policy, proposed.nodes, records, now, _inventory(given))
    return _carry_out(given, store, number)


def _carry_out(given: argparse.Namespace, store: RolloutStore, number: int) -> int:
    """Go on with a recorded roll-out, and say what follows where something ends this controller.

    Raises KeyboardInterrupt, StoreError where another controller goes on.
    """
    try:
        return _go_on(given, store, number)
    except (HeldError, LostLeaseError):
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_repeated_by(store)) from None
    except (StoreError, OSError) as error:
        refused("rollout", f"{told(error)}; {_repeated_by(store)}")
        return BAD


def _repeated_by(store: RolloutStore) -> str:
    running = True
    with contextlib.suppress(StoreError):
        running = _last(store).mode is Mode.RUNNING
    again = store.command("resume" if running else "resume --finish")
    return f"the steps that were under way are repeated by {again}"


def _go_on(given: argparse.Namespace, store: RolloutStore, number: int) -> int:
    """Go on until the roll-out has ended, holds, or waits for its window."""
    # Late: a command that only looks needs none of them.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from temper.output.rollout import Terminal
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
        rules=Rules(
            runs=rollout.policy.measure_runs,
            numbers=rollout.policy.gate_numbers,
            accepted=frozenset(rollout.policy.gate_accepted),
        ),
        known_stacks=tuple(dict.fromkeys(earlier)),
    )
    terminal = Terminal(lambda: longest_steps(store.events(number)))
    engine = Engine(store, executor, say=_logged(folder / "progress.log", terminal.say), show=terminal.show)

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

    try:
        ending = asyncio.run(carry_out())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        with contextlib.suppress(OSError):
            terminal.clear()
    with contextlib.suppress(OSError):  # the reader may have gone
        last = _last(store)
        text = status_text(last, datetime.now(UTC), command=store.command)
        by_hand = "" if getattr(given, "scheduled", False) else _nobody_at_work(store, last)
        print(printable("\n".join(filter(None, (text, by_hand)))), flush=True)
    return ending.exit_status


def _logged(log: Path, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that tells a sentence, and logs it with its time; the log outlives the terminal."""
    own(log.parent)

    def say(text: str) -> None:
        line = printable(text)
        # A terminal that is gone, or a full disk, must not end a roll-out: what counts is in its records.
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n")
        tell(line)

    return say


def drainer(policy: Policy, identity: str) -> Drainer:
    """Return what takes nodes out of service, as the policy says."""
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
    """Return the inventory of the command line, or of Ansible's own variable. Raises InventoryError."""
    if not given.inventory:
        given.inventory = [Path(one) for one in os.environ.get("ANSIBLE_INVENTORY", "").split(",") if one]
    if not given.inventory:
        raise InventoryError("expected -i INVENTORY, or its name in ANSIBLE_INVENTORY, found none")
    return [os.path.realpath(path) for path in given.inventory]


def _take_inventory(given: argparse.Namespace, store: RolloutStore, number: int) -> None:
    """Use the roll-out's inventory where the command line names none; earlier versions recorded none."""
    given.inventory = given.inventory or [Path(one) for one in store.inventory(number)]


def _store(given: argparse.Namespace) -> RolloutStore:
    return RolloutStore(given.folder / "rollouts.sqlite")


def _last(store: RolloutStore) -> Rollout:
    last = store.load() if store.path.is_file() else None
    if last is None:
        raise StoreError(f"{store.path} has no roll-out: `temper rollout run` begins one")
    return last


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    whole = argparse.ArgumentParser(
        prog="temper rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        summary = (function.__doc__ or "").rstrip(".")
        name = function.__name__.replace("_", "-")
        made = commands.add_parser(name, help=summary[0].lower() + summary[1:])
        made.set_defaults(function=function)
        made.add_argument(
            "--folder", type=named, default=FOLDER, help="records and logs (default: %(default)s)"
        )
        return made

    def with_inventory(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "-i",
            "--inventory",
            type=named,
            action="append",
            default=[],
            help="inventory of Ansible; may be given again",
        )

    def that_asks(made: argparse.ArgumentParser) -> None:
        made.add_argument("--yes", action="store_true", help="begin without a question, for programs")

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
        made.add_argument("--policy", type=named, help="policy in YAML; without one, the defaults hold")
        made.add_argument("--limit", default="", help="only these nodes, as Ansible takes it")
        if function is plan:
            json_document.add_option(made)
        else:
            that_asks(made)
    made = command(rollback)
    with_inventory(made)
    that_asks(made)
    made.add_argument(
        "--policy", type=named, help="policy in YAML; without one, that of the roll-out that is rolled back"
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
    for function in (measure_again, accept):
        made = command(function)
        made.add_argument("node", metavar="NODE")
        made.add_argument("--reason", required=True, help="what you have seen; it is recorded with your name")
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = parser().parse_args(arguments)
    exit_status = NOT_CARRIED_OUT
    try:
        exit_status = int(given.function(given))
        sys.stdout.flush()
    except (InventoryError, PolicyError, StoreError) as error:
        return refused("rollout", error)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            *stop.args or ["no node was changed; `temper rollout status` shows whether a roll-out has begun"]
        ) from None
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_status
