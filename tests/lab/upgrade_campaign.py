"""Upgrade a fleet of lab nodes, and meet a fault at every step: what a roll-out makes of it.

    python -m tests.lab.upgrade_campaign fleet [--count 30]
    python -m tests.lab.upgrade_campaign faults [--only WORD ...]
    python -m tests.lab.upgrade_campaign list

Leases, packages, reboots, drivers and settings are those of the nodes. The lab has no GPU to measure, so
the numbers that the gate judges are made up here: the recorded scatter of runs, and what a fault takes away.

`fleet` boots a lab of its own (LAB_NAME=upfleet), makes two nodes with the former stack, copies their disks
to the others, and upgrades all: canaries, two waves. `faults` (LAB_NAME=upfault, one node) goes through
`FAULTS`: each must end in its state with its reason; then the cause is taken away, and the next run must end
as it says. The pauses between attempts are skipped: the engine's clock is moved on by them.

Prints tables in Markdown on standard output, progress on standard error; logs are in
reports/upgrade-campaign/.
Exit status: 0 all ended as expected, 1 not, 2 the nodes did not come up.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temper.plan.inventory import groups_of
from temper.rollout.drain.commands import Idle
from temper.rollout.fleet import candidates, preflight, proposal
from temper.rollout.forecast import plan_text
from temper.rollout.model import Course, NodeState, Record, Rollout, Step
from temper.rollout.policy import Policy
from temper.rollout.report import overhead, timeline_text
from temper.rollout.store import RolloutStore
from tests.lab import many_nodes
from tests.lab import node as machine
from tests.lab import repositories as shared_repositories
from tests.lab.cutoff import CampaignError, failure, lab_command, note
from tests.lab.fleet import Fleet, loaded_driver
from tests.lab.repository_faults import Repositories
from tests.lab.rollouts import DRIVERS, NEW, OLD, LabExecutor, Numbers, carry_out, kept_inventory
from tests.lab.settings import CHECKOUT, Lab, Node
from tests.lab.upgrade_faults import BACK, FAULTS, FORWARD, POLICY, Fault, Scheduler, Trial

LOGS = CHECKOUT / "reports" / "upgrade-campaign"
TIMEOUT_S = 3600.0
SOAK_MINUTES = 10  # which nobody waits for: see SkippingClock


def propose(store: RolloutStore, stack: str, policy: Policy) -> tuple[int, str]:
    """Record a roll-out of all nodes to a stack; its number, and what `plan` says."""
    now = datetime.now(UTC)
    plans, _ = preflight([], stack)
    found = candidates(plans, groups_of([]))
    proposed = proposal(found, policy, stack, now)
    number = store.create(stack, policy, proposed.nodes, proposed.records, now)
    return number, plan_text(proposed, found, now)


def make(fleet: Fleet, nodes: Sequence[Node]) -> None:
    """Bring nodes to the former stack, with the payload. Raises CampaignError."""
    limit = ["--limit", ",".join(node.name for node in nodes)]
    for playbook in ("provision", "tune", "validate"):
        run = fleet.run(["ansible-playbook", f"playbooks/{playbook}.yml", *limit])
        # Of the payload, only that it is there: what CPUs reach beside each other is no verdict.
        if playbook != "validate" and (reason := failure(run)):
            raise CampaignError(f"{playbook} failed: {reason}")
        note(f"{playbook} of {len(nodes)} nodes: status {run.status}")


# ---------------------------------------------------------------- a whole fleet


def upgrade_fleet(count: int) -> bool:
    """Upgrade many nodes in waves; whether all returned, in order and within the limits."""
    fleet = Fleet(Lab(name=os.environ.get("LAB_NAME") or "upfleet"), count, TIMEOUT_S)
    os.environ.update(fleet.environment)
    try:
        lab_command(fleet, "down")
        many_nodes.boot(fleet)
        nodes = fleet.lab.nodes(count)
        make(fleet, nodes[:2])
        many_nodes.copy(fleet, 2)
        folder = LOGS / "fleet"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        store = RolloutStore(folder / "rollouts.sqlite")
        number, planned = propose(store, NEW, POLICY)
        note(planned)
        executor = LabExecutor(folder, numbers=Numbers(), inject={}, drainer=Idle())
        ending = carry_out(store, number, executor)
        rollout = store.load(number)
        assert rollout
        events = store.events(number)
        print(f"```\n{planned}\n\n{timeline_text(rollout, events, datetime.now(UTC))}\n```")
        problems = [
            f"{node.name}: {rollout.records[node.name].state}, driver {loaded_driver(node)} is loaded"
            for node in nodes
            if rollout.records[node.name].state is not NodeState.RETURNED
            or loaded_driver(node) != DRIVERS[NEW]
        ]
        problems += _order(rollout, events)
        spent = overhead(events)
        print(
            f"\n{ending.sentence}. {count} nodes, at most {POLICY.max_unavailable} at a time: "
            f"{spent.elapsed:.0f} min; the nodes' own time {spent.node_minutes:.0f} min."
        )
        for problem in problems:
            print(f"**{problem}**")
        return not problems
    finally:
        lab_command(fleet, "down")


def _order(rollout: Rollout, events: Sequence[Any]) -> list[str]:
    """What was not in order: a wave before the one before it had ended, too many nodes out at a time."""
    problems: list[str] = []
    ended: set[str] = set()
    out: set[str] = set()
    for event in (event for event in events if event.node):
        if event.step == Step.LEASE and event.outcome == "begun":
            wave = rollout.records[event.node].wave
            earlier = [name for name, record in rollout.records.items() if record.wave < wave]
            if early := [name for name in earlier if name not in ended]:
                problems.append(f"{event.node} of wave {wave} began before {', '.join(early)} had ended")
        if event.step == Step.DRAIN and event.outcome == "begun":
            out.add(event.node)
        if event.state in (NodeState.RETURNED, NodeState.ROLLED_BACK, NodeState.LEFT_OUT):
            ended.add(event.node)
            out.discard(event.node)
        most = POLICY.max_unavailable.of(len(rollout.nodes), 1)
        if len(out) > most:
            problems.append(f"{len(out)} nodes were out of service, {most} are allowed")
    return problems


# ---------------------------------------------------------------- faults


def meet_faults(chosen: Sequence[Fault], *, keep: bool) -> bool:
    """Go through faults, those without a soak on one node; whether each ended as it must, twice."""
    logs = LOGS / Lab(name=os.environ.get("LAB_NAME") or "upfault").name
    shutil.rmtree(logs, ignore_errors=True)
    print("| Fault | Ends as | Because | Then | |\n|---|---|---|---|---|", flush=True)
    alone = [fault for fault in chosen if not fault.soaks]
    bad = _meet_all(alone, 1, logs, keep=keep) if alone else 0
    for fault in chosen:
        if fault.soaks:
            # All come from the former stack. The second is of another kind, and a canary of its own.
            bad += _meet_all([fault], 3, logs, keep=False)
    print(f"\n{len(chosen) - bad} of {len(chosen)} faults ended as they must.")
    return not bad


def _meet_all(faults: Sequence[Fault], size: int, logs: Path, *, keep: bool) -> int:
    """Faults of the first of so many nodes, one after the other; how many did not end as they must."""
    fleet = Fleet(Lab(name=logs.name), size, TIMEOUT_S)
    os.environ.update(fleet.environment)
    nodes = fleet.lab.nodes(size)
    node, bad = nodes[0], 0
    try:
        if size > 1 or loaded_or_off(node) not in DRIVERS.values():
            lab_command(fleet, "down")
            many_nodes.boot(fleet)
            make(fleet, nodes)
        logs.mkdir(parents=True, exist_ok=True)
        os.environ["ANSIBLE_INVENTORY"] = kept_inventory(logs)
        shared_repositories.publish(fleet.lab)  # whatever an earlier campaign has left
        repositories = Repositories(fleet.lab)
        try:
            for fault in faults:
                folder = logs / re.sub(r"\W+", "-", fault.name)
                folder.mkdir(parents=True)
                target = NEW if loaded_driver(node) == DRIVERS[OLD] else OLD
                bad += not meet(fault, Trial(fleet, node, repositories, folder, target, Scheduler()))
        finally:
            repositories.close()
    finally:
        if not keep:
            lab_command(fleet, "down")
    return bad


def loaded_or_off(node: Node) -> str:
    """The loaded driver of a node; nothing where it is off."""
    return loaded_driver(node) if machine.leader(node) else ""


def meet(fault: Fault, trial: Trial) -> bool:
    """One fault: its end, and that of the next run."""
    note(f"=== {fault.name} (to {trial.target})")
    store = RolloutStore(trial.folder / "rollouts.sqlite")
    policy = replace(POLICY, soak_minutes=SOAK_MINUTES if fault.soaks else 0)
    number, _ = propose(store, trial.target, policy)
    if fault.dies:
        _die(trial, number, fault)
        inject: dict[tuple[Course, Step], Callable[[], None]] = {}
    else:
        inject = {(fault.course, fault.step): lambda: fault.inject(trial)} if fault.step else {}
        if fault.passes:
            inject[BACK, Step.UNDO] = lambda: fault.mend(trial)
    executor = LabExecutor(trial.folder, numbers=fault.numbers, inject=inject, drainer=trial.drainer)
    try:
        carry_out(store, number, executor)
    finally:
        fault.mend(trial)
    first = _record(store, number, trial)
    said = " ".join((first.reason, _rollout(store, number).reason))
    problems = []
    if first.state is not fault.state:
        problems.append(f"expected {fault.state}")
    if not re.search(fault.said, said):
        problems.append(f"expected a reason with {fault.said!r}")
    problems += _truth(trial, first)
    after: Record | None = None
    if fault.then and not problems:
        store.retry(number, trial.node.name, "campaign", datetime.now(UTC))
        with contextlib.suppress(ValueError):
            store.resume(number, "campaign", datetime.now(UTC))
        carry_out(
            store, number, LabExecutor(trial.folder, numbers=Numbers(), inject={}, drainer=trial.drainer)
        )
        after = _record(store, number, trial)
        if after.state is not fault.then:
            problems.append(f"then expected {fault.then}, because {after.reason}")
        problems += _truth(trial, after)
    verdict = "as it must" if not problems else f"**{'; '.join(problems)}**"
    reason = re.sub(r"\s+", " ", said).replace("|", "/")[:160]
    print(
        f"| {fault.name} | {first.state} | {reason} | {after.state if after else ''} | {verdict} |",
        flush=True,
    )
    return not problems


def _die(trial: Trial, number: int, fault: Fault) -> None:
    """Have a controller of its own go on until the step, in which it is killed."""
    command = [sys.executable, "-m", "tests.lab.upgrade_campaign", "die", str(trial.folder), str(number)]
    done = subprocess.run([*command, str(fault.step)], cwd=CHECKOUT, check=False)
    assert done.returncode == -signal.SIGKILL, f"the controller ended with {done.returncode}"


def die(folder: Path, number: int, step: Step) -> None:
    """Go on with a roll-out, and be killed in a step while Ansible carries it out."""
    executor = LabExecutor(folder, numbers=Numbers(), inject={}, drainer=Idle())
    original = executor.ansible.playbook

    async def playbook(name: str, node: str, label: str, variables: Mapping[str, Any]) -> Any:
        if label.startswith(f"{step}-"):
            # Some way into it: the node is at work when nobody is left to hear of it.
            asyncio.get_running_loop().call_later(4, os.kill, os.getpid(), signal.SIGKILL)
        return await original(name, node, label, variables)

    executor.ansible.playbook = playbook  # type: ignore[method-assign]  # this one only
    if step in (Step.BASELINE, Step.PROVE):
        executor.inject = {(FORWARD, step): lambda: os.kill(os.getpid(), signal.SIGKILL)}
    carry_out(RolloutStore(folder / "rollouts.sqlite"), number, executor)


def _rollout(store: RolloutStore, number: int) -> Rollout:
    found = store.load(number)
    assert found
    return found


def _record(store: RolloutStore, number: int, trial: Trial) -> Record:
    return _rollout(store, number).records[trial.node.name]


def _truth(trial: Trial, record: Record) -> list[str]:
    """What is not true on the node of what its state says."""
    has = loaded_driver(trial.node)
    wanted = {
        NodeState.RETURNED: trial.target,
        NodeState.LEFT_OUT: trial.former,
        NodeState.ROLLED_BACK: trial.former,
    }
    problems = []
    if record.state in wanted and has != DRIVERS[wanted[record.state]]:
        problems.append(f"{record.state} with driver {has or 'none'} loaded")
    lease = json.loads(trial.run("cat /var/lib/temper/lease.json 2>/dev/null || echo '{}'"))
    if record.state in wanted and lease.get("owner") == "upgrade-campaign":
        problems.append(f"{record.state}, and the node's lease was not given back")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.upgrade_campaign", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fleet").add_argument("--count", type=int, default=30, help="nodes (30)")
    faults = commands.add_parser("faults")
    faults.add_argument(
        "--only", nargs="+", default=[""], help="faults with one of these words in their names"
    )
    faults.add_argument(
        "--part",
        default="1/1",
        metavar="K/N",
        help="every Nth of them from the Kth on: with LAB_NAMEs beside each other",
    )
    faults.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    commands.add_parser("list")
    dying = commands.add_parser("die")
    dying.add_argument("folder", type=Path)
    dying.add_argument("number", type=int)
    dying.add_argument("step", type=Step)
    options = parser.parse_args(arguments)
    try:
        if options.command == "fleet":
            return 0 if upgrade_fleet(options.count) else 1
        if options.command == "die":
            die(options.folder, options.number, options.step)
            return 0
        if options.command == "list":
            print("\n".join(fault.name for fault in FAULTS))
            return 0
        chosen = [fault for fault in FAULTS if any(word in fault.name for word in options.only)]
        if not chosen:
            parser.error("--only: no fault has one of these words in its name; `list` prints them")
        first, _, step = options.part.partition("/")
        return 0 if meet_faults(chosen[int(first) - 1 :: int(step)], keep=options.keep) else 1
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
