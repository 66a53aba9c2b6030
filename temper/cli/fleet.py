"""Run a playbook on a fleet in slices: `temper fleet run site.yml --helpers 'ctl[1-4]'`.

Exit status: 0 every node is done and all is well, 1 a node or a verdict is bad, 2 nothing could be started,
3 nodes are left; `temper fleet resume` goes on with those, `abort` gives them back as they are.
Both, and `status`, take the name of a run.
"""

from __future__ import annotations

import argparse
import difflib
import fcntl
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from temper.base import ROOT
from temper.base.nodes import alike, counted, number_of, printable
from temper.base.options import told as described
from temper.base.outcome import BAD, GOOD, numbers, tally, worst
from temper.base.selection import NOTHING_DONE, unknown_names, unknown_tags
from temper.base.store import HistoryError
from temper.cli import json_document
from temper.cli.main import NOT_FINISHED, refused
from temper.cli.playbook import add_selection
from temper.fleet import identities, pulled
from temper.fleet.bundle import BundleError
from temper.fleet.collected import CHOSEN, CollectedError, Said, compliance, defaults, plans, validation
from temper.fleet.journal import Job, Journal, NodeRecord, same, sealed
from temper.fleet.slices import Board
from temper.plan import inventory
from temper.plan.extra_vars import ExtraVarsError, variables_of
from temper.plan.fleet_addresses import fleet as fleet_addresses
from temper.plan.identity import twins
from validation.processes.files import own
from validation.processes.interrupts import end_on_signals

FOLDER = ROOT / "reports" / "fleet"
HISTORY = FOLDER / "runs.sqlite"
SLICE_NODES = 100
JOBS = 2
#: The playbooks whose product is on the nodes, or is handed over and made one report here (fleet.collected).
SLICED = (
    "site.yml",
    *(
        f"playbooks/{name}.yml"
        for name in ("compliance", "harden", "preflight", "provision", "tune", "validate")
    ),
)
#: The others: why not, and the command that does it.
NOT_SLICED = {
    "playbooks/autotune.yml": (
        "it writes its proposals beside the inventory, which in a slice is a folder that goes with it",
        "ansible-playbook -i INVENTORY playbooks/autotune.yml --limit NODE",
    ),
    "playbooks/image.yml": (
        "its seal takes from the tree the lease by which slices keep others off it",
        "ansible-playbook -i INVENTORY playbooks/image.yml",
    ),
    "playbooks/kernel_preview.yml": (
        "it writes one file for all nodes, and each slice would write its own over the others'",
        "temper rollout plan -i INVENTORY --kernel newest",
    ),
    "playbooks/mirror_list.yml": (
        "it writes one list for all nodes, and each slice would write its own over the others'; "
        "one node of each distribution and kind of GPU is enough",
        "ansible-playbook -i INVENTORY playbooks/mirror_list.yml --limit NODES",
    ),
    "playbooks/release.yml": (
        "it gives back the nodes of a run that slices carry out",
        "temper fleet abort RUN",
    ),
    "playbooks/upgrade.yml": (
        "a roll-out decides node by node, and each slice would start one of its own",
        "temper rollout run -i INVENTORY --stack STACK",
    ),
    "playbooks/uninstall.yml": (
        "it shows what goes from all nodes, and asks once",
        "temper uninstall -i INVENTORY --limit NODES",
    ),
    **dict.fromkeys(
        ("playbooks/upgrade_step.yml", "playbooks/upgrade_settle.yml"),
        (
            "it is one step of a roll-out, which decides node by node",
            "temper rollout run -i INVENTORY --stack STACK",
        ),
    ),
}
#: Runs that take nodes, and as many others, that are kept; those of which slices failed have their output.
KEPT_RUNS = 20


class UsageError(Exception):
    """The command line or the state of things does not allow a run; the message is a sentence."""


class UnfinishedError(Exception):
    """This machine kept a run that has begun from its end; the message says what goes on with it."""


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(command_line)
    end_on_signals()
    try:
        status: int = arguments.function(arguments)
    except (
        *(UsageError, ExtraVarsError, inventory.InventoryError, BundleError, CollectedError, HistoryError),
    ) as error:
        return refused("fleet", error)
    except UnfinishedError as error:
        refused("fleet", error)
        return NOT_FINISHED
    return status


def parser() -> argparse.ArgumentParser:
    """Run the command line."""
    whole = argparse.ArgumentParser(
        "temper fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a playbook of Temper on all nodes, in slices")
    run.add_argument(
        "playbook", help="site.yml, or the name of one in playbooks/: compliance.yml, validate.yml"
    )
    add_selection(run)
    run.add_argument("-t", "--tags", action="append", default=[], help="as ansible-playbook takes it")
    run.add_argument("-C", "--check", action="store_true", help="change nothing, say what would change")
    run.add_argument("-f", "--forks", type=pulled.positive, help="nodes at a time in each slice")
    run.set_defaults(function=_run)
    resume = commands.add_parser("resume", help="go on with the nodes that a run has left")
    resume.set_defaults(function=_resume)
    abort = commands.add_parser("abort", help="give back the nodes that a run has left, as they are")
    abort.set_defaults(function=_abort)
    for command in (run, resume, abort):
        command.add_argument(
            *("-e", "--extra-vars"),
            action="append",
            default=[],
            metavar="VARS",
            help="name=value, JSON, or @FILE, which nobody sees among the processes; values are not recorded",
        )
        command.add_argument(
            "--helpers",
            default="",
            metavar="NAMES",
            help="machines that run slices: 'ctl[1-4]'; without, this one does",
        )
        command.add_argument(
            "--jobs", type=pulled.positive, default=JOBS, help=f"slices at a time on each machine ({JOBS})"
        )
        command.add_argument(
            "--slice",
            type=pulled.positive,
            default=SLICE_NODES,
            metavar="NODES",
            help=f"nodes of a slice at most ({SLICE_NODES})",
        )
        command.add_argument(
            "--ssh-options", type=_words, default="", help="for the connections to helpers: '-F FILE'"
        )
    status = commands.add_parser("status", help="the result of a run, node by node")
    json_document.add_option(status)
    status.set_defaults(function=_status)
    for command in (resume, abort, status):
        command.add_argument(
            "run",
            nargs="?",
            default="",
            help="its name, as a node says it that is held by it; without, the newest that changes nodes and "
            "has not ended, or else the last one",
        )
    results = commands.add_parser("pulled", help="judge what nodes that pull have handed back")
    pulled.add_arguments(results)
    results.set_defaults(function=pulled.run)
    return whole


def _words(text: str) -> str:
    """Return a text that a shell could split into words. Raises ArgumentTypeError."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected words as in a shell, found {text} ({error})") from error
    return text


def told(texts: Sequence[str]) -> tuple[str, ...]:
    """Return what is recorded of `-e`: files by their paths, of all else the names. Raises ExtraVarsError."""
    return tuple(
        word
        for text in texts
        for word in ([f"@{Path(text[1:]).resolve()}"] if text.startswith("@") else variables_of([text]))
    )


def variables_again(name: str, job: Job, texts: Sequence[str]) -> dict[str, Any]:
    """Return the variables of a run that was cut off: those of `-e`, or of the files that it was begun with.

    Raises UsageError where they are others, or were given without a file.
    """
    again = f"give resume the same -e again: temper fleet resume {name} -e ..."
    if not texts and any(not word.startswith("@") for word in job.extra):
        raise UsageError(
            f"run {name} was begun with -e of {', '.join(job.extra)}, whose values are not recorded: {again}"
        )
    found = variables_of(texts or job.extra)
    if job.seal and not same(job.seal, found):
        raise UsageError(
            f"run {name} was begun with other values of -e ({', '.join(job.extra)}) than found now: {again}, "
            f"or temper fleet abort {name} gives its nodes back."
        )
    return found


def helpers_of(names: str) -> list[str]:
    """Return the machines of `--helpers`; none where it is empty. Raises UsageError."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    wanted = f"--helpers {names}: expected names such as ctl[1-4],login"
    try:
        found = list(NodeSet(names))
    except NodeSetException as error:
        raise UsageError(f"{wanted}: {error}") from error
    wrong = [name for name in found if not re.fullmatch(r"\w[\w.@:-]*", name)]
    # A group that nobody knows has no members: that is not to mean this machine.
    if wrong or (names and not found):
        raise UsageError(f"{wanted}, found {', '.join(wrong) or 'nobody'}.")
    return found


def playbook_of(name: str) -> str:
    """Return the path of a playbook that can be cut into slices. Raises UsageError."""
    for path in (name, f"playbooks/{name}", f"playbooks/{name}.yml"):
        if path in SLICED:
            return path
        if path in NOT_SLICED:
            reason, command = NOT_SLICED[path]
            raise UsageError(f"{path} cannot be cut into slices, because {reason}; type: {command}")
    short = [Path(path).stem for path in SLICED]
    close = difflib.get_close_matches(Path(name).stem, short, n=1)
    hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(short)}"
    raise UsageError(f"expected a playbook that can be cut into slices, found {name}; {hint}")


def sources_of(given: Sequence[str]) -> tuple[str, ...]:
    """Return the inventories of the command line, else those of ANSIBLE_INVENTORY, by their whole paths.

    A run records them, so that `resume` works on the same nodes in another shell.
    """
    named = given or [one for one in os.environ.get("ANSIBLE_INVENTORY", "").split(",") if one]
    return tuple(str(Path(path).resolve()) if Path(path).exists() else path for path in named)


def _run(arguments: argparse.Namespace) -> int:
    """Begin a run."""
    from ansible.inventory.manager import split_host_pattern

    playbook = playbook_of(arguments.playbook)
    variables = variables_of(arguments.extra_vars)
    sources = sources_of(arguments.inventory)
    # Ansible takes longer than a second to its first word.
    print("Reading the inventory.", file=sys.stderr, flush=True)
    known = inventory.read(sources)
    if sentence := unknown_names(arguments.limit, split_host_pattern, known.names):
        raise UsageError(f"{sentence} {NOTHING_DONE}")
    chosen = inventory.read(sources, arguments.limit) if arguments.limit else known
    # Preflight refuses each such node, but a slice would be lost before that.
    if slashed := [node for node in chosen.nodes if "/" in node]:
        raise UsageError(
            f"{counted(slashed)}: expected names without a slash, because files of a slice have them. "
            f"Rename them in the inventory, or leave them out with --limit. {NOTHING_DONE}"
        )
    options = _tags(playbook, arguments.tags)
    options += ["--check", "--diff"] if arguments.check else []
    options += ["--forks", str(arguments.forks)] if arguments.forks else []
    seal = sealed(variables) if variables else ""
    job = Job(
        *(playbook, sources, arguments.limit, variables, tuple(options), tuple(chosen.nodes)),
        *(told(arguments.extra_vars), seal),
    )
    # Before the run is recorded: what cannot be is none that could be gone on with.
    known.require_same(job.nodes, variables, helpers=bool(helpers_of(arguments.helpers)))
    with _alone():
        journal = _without_values(Journal(HISTORY))
        before = journal.last()
        unended = journal.unended()
        for other, cut_off in unended:
            if job.takes_nodes and _may_hold_nodes(journal, other, cut_off, ""):
                raise UsageError(
                    f"run {other} ({cut_off.playbook}) has not ended and may hold nodes: "
                    f"temper fleet resume {other} goes on with it, "
                    f"temper fleet abort {other} gives its nodes back as they are."
                )
        name = name_of_run(datetime.now(UTC), before[0] if before else "")
        # They hold nothing, and resume is not to come back to them when this one has ended. What only reads
        # is no reason to end a run that changes nodes.
        replaced = {
            other: cut_off for other, cut_off in unended if job.takes_nodes or not cut_off.takes_nodes
        }
        journal.begin(name, job, replaced)
        for other, cut_off in replaced.items():
            _say(f"run {name} takes the place of run {other} ({cut_off.playbook}), which had not ended.")
        with _left_to(f"temper fleet resume {name} goes on"):
            return _carry_out(name, job, journal, known, arguments)


def name_of_run(now: datetime, before: str) -> str:
    """Return a name that no run of any controller has, and that comes after the one of `before`.

    Nodes know a run by it, and a clock that was set back is not to make an older run the last one.
    """
    form = "%Y-%m-%dT%H-%M-%SZ"
    stamp = f"{now:{form}}"
    last = before[: len(stamp)]
    if stamp <= last:
        stamp = f"{datetime.strptime(last, form).replace(tzinfo=UTC) + timedelta(seconds=1):{form}}"
    return f"{stamp}-{secrets.token_hex(3)}"


def _tags(playbook: str, given: list[str]) -> list[str]:
    """Return the option for these tags.

    Raises UsageError where no task has one: slices would do next to nothing.
    """
    if not given:
        return []
    asked = [tag for text in given for tag in map(str.strip, text.split(",")) if tag]
    if not asked:
        raise UsageError(f"--tags: expected names of tags, found none in {', '.join(map(repr, given))}")
    # With an inventory of its own: to ask for the tags, none has to be read.
    listed = inventory.ansible("ansible-playbook", ["localhost,"], playbook, "--list-tags").stdout
    known = {tag for found in re.findall(r"TASK TAGS: \[(.*)\]", listed) for tag in found.split(", ")}
    if sentence := unknown_tags("--tags", asked, known):
        raise UsageError(f"{sentence} {NOTHING_DONE}")
    return ["--tags", ",".join(asked)]


def _resume(arguments: argparse.Namespace) -> int:
    """Go on with a run."""
    with _alone():
        journal = _without_values(Journal(HISTORY))
        name, job = _cut_off(journal, arguments.run)
        job = replace(job, variables=variables_again(name, job, arguments.extra_vars))
        known = inventory.read(job.sources)
        # The inventory and the helpers may be others by now.
        known.require_same(job.nodes, job.variables, helpers=bool(helpers_of(arguments.helpers)))
        with _left_to(f"temper fleet resume {name} goes on"):
            return _carry_out(name, job, journal, known, arguments)


def _abort(arguments: argparse.Namespace) -> int:
    """End a run that was cut off, and give back the nodes that it may hold.

    One that was named may have ended: a node that went away under it could not give its lease back.
    """
    # Late: ansible-runner and ClusterShell are not needed to look at a run.
    from temper.fleet.run import FleetRun, places

    with _alone():
        journal = _without_values(GivingUp(HISTORY))
        name, job, before = _meant(journal, arguments.run) if arguments.run else (*_cut_off(journal), "")
        known = inventory.read(job.sources)
        attempts = {node: one.attempt for node, one in journal.nodes(name).items() if one.state not in GOOD}
        held = [node for node in attempts if node in known.variables] if job.takes_nodes else []
        if gone := sorted(set(attempts) - set(known.variables)):
            _say(f"not in the inventory any more, and left alone: {counted(gone)}")
        if before and not held:
            raise UsageError(f"nothing is left of run {name}: {before}")
        board = Board.of(
            held, arguments.slice, places(helpers_of(arguments.helpers), arguments.jobs), attempts
        )
        if held:
            again = variables_of(arguments.extra_vars)
            giving = replace(job, playbook="playbooks/release.yml", variables=again, options=())
            with _left_to(f"temper fleet abort {name} asks the others again"):
                FleetRun(
                    *(name, giving, known, board, journal, FOLDER / name, {}, True, _say),
                    ssh_options=arguments.ssh_options,
                ).carry_out()
        if board.left:
            _say(recap({}, board.left))
            return NOT_FINISHED
        given_back = [node for node, one in board.outcomes.items() if one.state == "changed"]
        ended = f"given up; {len(given_back)} of {number_of(len(job.nodes), 'node')} given back"
        silent = {node: one.reason for node, one in board.outcomes.items() if one.state in BAD}
        if silent:
            ended += f"; {len(silent)} could not be asked, and may be held: abort {name} asks them again"
        journal.finish(name, ended)
        _say(f"run {name}: {ended}")
        for nodes, text in alike(silent, {}):
            _say(f"  {counted(nodes)}: {text}")
        return int(bool(silent))


AnyJournal = TypeVar("AnyJournal", bound=Journal)


def _without_values(journal: AnyJournal) -> AnyJournal:
    """Return the journal, from which values of `-e` that an earlier Temper recorded are gone."""
    if runs := journal.forget_values():
        _say(f"removed the values of -e recorded with {', '.join(runs)}: change those that are secret.")
    return journal


def _may_hold_nodes(journal: Journal, name: str, job: Job, ended: str) -> bool:
    """Return whether a run took nodes that it is not known to be through with."""
    return not ended and job.takes_nodes and not all(one.state for one in journal.nodes(name).values())


class GivingUp(Journal):
    """Records of nodes that are given back that the run did not come to its end on them.

    What a node had come to before stays: it says why.
    """

    def end(self, run: str, records: Iterable[NodeRecord]) -> None:
        """Record a slice."""
        before, reason = self.nodes(run), "given up before it was through"
        through = {node for node, one in before.items() if one.state}
        left = [one for one in records if one.node not in through]
        super().end(run, [replace(one, state="failed", reason=reason) for one in left])


def _cut_off(journal: Journal, name: str = "") -> tuple[str, Job]:
    """Return the run that is meant, which has not ended. Raises UsageError."""
    run, job, ended = _meant(journal, name)
    if ended:
        raise UsageError(f"nothing is left of {'run' if name else 'the last run,'} {run}: {ended}")
    if not name:
        _name_others(journal, run)
    return run, job


def _meant(journal: Journal, name: str = "") -> tuple[str, Job, str]:
    """Return the named run, else the newest that takes nodes and has not ended, else the last one.

    One that only reads can have begun after it. Raises UsageError.
    """
    if not name:
        for run, job in journal.unended():
            if job.takes_nodes:
                return run, job, ""
    found = journal.last(name)
    if found is None and name:
        raise UsageError(f"expected a run that is recorded in {HISTORY}, found {name}.")
    if found is None:
        raise UsageError(f"expected a run to look at in {HISTORY}, found none: temper fleet run begins one.")
    return found


def _name_others(journal: Journal, run: str) -> None:
    """Say which other runs could have been meant, and what to type for them."""
    unended = journal.unended()
    for other, job in unended:
        if other != run:
            _say(
                f"run {other} ({job.playbook}) has not ended either: "
                f"temper fleet status {other} shows it, temper fleet resume {other} goes on with it, "
                f"temper fleet abort {other} gives it up."
            )
    last = journal.last()
    if last and last[2] and last[0] != run:
        _say(f"run {last[0]} ({last[1].playbook}) is newer: temper fleet status {last[0]} shows it.")


@contextmanager
def _alone() -> Iterator[None]:
    """Keep to one run at a time from this checkout. Raises UsageError where there is another."""
    own(FOLDER)
    # Variables of the command line and all that Ansible said are in it.
    FOLDER.chmod(0o700)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                "another run is under way from this checkout; temper fleet status shows it."
            ) from None
        yield


@contextmanager
def _left_to(following: str) -> Iterator[None]:
    """Name the command that follows where what has begun is cut off.

    Raises KeyboardInterrupt, UnfinishedError.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"a step that a node was at may still end there; {following}") from None
    except (OSError, HistoryError) as error:
        raise UnfinishedError(f"{described(error)}; {following}") from error


def _carry_out(
    name: str, job: Job, journal: Journal, known: inventory.Inventory, arguments: argparse.Namespace
) -> int:
    """Run what is not through yet, then report on all nodes."""
    from temper.fleet.run import HERE, FleetRun, places

    helpers = helpers_of(arguments.helpers)
    before = journal.nodes(name)
    if gone := sorted(set(job.nodes) - set(known.variables)):
        raise UsageError(
            f"{counted(gone)} of run {name} is not in the inventory any more: temper fleet abort {name} "
            "gives back the others as they are; then begin a new run."
        )
    left = [node for node in job.nodes if node not in before or not before[node].state]
    attempts = {node: one.attempt for node, one in before.items()}
    pairs = inventory.addresses(known, job.sources, job.variables)
    addresses = fleet_addresses(pairs)
    named: dict[str, identities.Named] = {}
    # One slice compares its own nodes.
    if job.takes_nodes and left and len(job.nodes) > min(arguments.slice, len(left)):
        _say(f"run {name}: asking {counted(job.nodes)} which machines they are, before any is changed")
        asked = Board.of(job.nodes, arguments.slice, places(helpers, arguments.jobs))
        named = identities.ask(
            lambda journal: FleetRun(
                *(name, identities.asking(job), known, asked, journal, FOLDER / name, addresses, False, _say),
                ssh_options=arguments.ssh_options,
            )
        )
        if unnamed := identities.unnamed(job.nodes, named):
            _say(f"no answer which machine it is, so a second name would not show: {counted(unnamed)}")
        found = twins(named)
        for warning in found.warnings:
            _say(f"warning: {warning}")
        refused = {node: why.text for node, why in found.refused.items() if node in left}
        for node in refused:
            journal.start(name, [node], attempts.get(node, 0) + 1, HERE)
        journal.end(
            name,
            [
                NodeRecord(node, attempts.get(node, 0) + 1, HERE, "refused", why)
                for node, why in refused.items()
            ],
        )
        before, left = journal.nodes(name), [node for node in left if node not in refused]
    board = Board.of(
        *(left, arguments.slice, places(helpers, arguments.jobs), attempts),
        {node: one.level for node, one in named.items()},
    )
    board.outcomes |= {node: one.outcome for node, one in before.items() if one.state}
    run = FleetRun(
        *(name, job, known, board, journal, FOLDER / name, addresses, job.takes_nodes, _say),
        ssh_options=arguments.ssh_options,
    )
    if left:
        size = f"{number_of(len(left), 'node')} in {number_of(len(board.waiting), 'slice')}"
        _say(f"run {name}: {job.playbook} on {size}")
        run.carry_out()
    else:
        _say(f"run {name}: no node is left to work on, only its report is missing")
    try:
        return _report(name, job, journal, known, board)
    except (OSError, HistoryError) as error:
        if board.left:
            raise
        raise UnfinishedError(
            f"all nodes are done, and the report could not be written: {described(error)}; "
            f"temper fleet resume {name} writes it"
        ) from error


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _report(name: str, job: Job, journal: Journal, known: inventory.Inventory, board: Board) -> int:
    """Return one report and one exit status, as of one run."""
    records = journal.nodes(name)
    folders = [
        FOLDER / name / one for one in sorted({record.folder for record in records.values() if record.folder})
    ]
    left = board.left
    silent = {
        node: outcome.reason or "it was not worked on"
        for node, outcome in board.outcomes.items()
        if outcome.state in BAD
    }
    silent |= left
    sources = job.sources or (str(ROOT / "inventory" / "lab"),)
    reports = [plans(folders, silent)] if Path(job.playbook).stem != "compliance" else []
    given = inventory.values(known, job.sources, job.variables, job.nodes[0], CHOSEN) if folders else {}
    chosen = defaults() | given
    validated = validation(folders, silent, sources, chosen)
    reports += [validated, compliance(folders, silent, sources, known, chosen)]
    said = [report for report in reports if report]
    for report in said:
        _say(report.text)
    if validated and (apart := _apart(job, known)):
        _say(
            f"gpu_validation_fabric: {counted(apart)} not measured with others, which slices cannot do: run "
            "playbooks/validate.yml as one process (docs/operate/scale.md)."
        )
    records = judged(records, said)
    _say(recap(records, left))
    sentence = f"{len(board.outcomes)} of {number_of(len(job.nodes), 'node')} done"
    if left:
        _say(f"{sentence}. Next: temper fleet resume {name} goes on with the others.")
        return NOT_FINISHED
    sentence += f": {numbers({node: one.state for node, one in records.items()})}"
    journal.end(name, records.values())
    journal.finish(name, sentence)
    _forget_old_runs(journal)
    _say(f"{sentence}.")
    return max([status_of(records), *(one.status for one in said)])


def judged(records: Mapping[str, NodeRecord], reports: Iterable[Said]) -> dict[str, NodeRecord]:
    """Return the nodes as the reports judge them, where that is worse than the results of their slices."""
    found = dict(records)
    for report in reports:
        for node, state in report.states.items():
            if (one := found.get(node)) and one.state and worst([state, one.state]) != one.state:
                found[node] = replace(one, state=state, reason=one.reason or "the report says why")
    return found


def status_of(records: Mapping[str, NodeRecord]) -> int:
    """Return the exit status of a run that has no node left."""
    return int(any(one.state not in GOOD for one in records.values()))


def _apart(job: Job, known: inventory.Inventory) -> list[str]:
    """Return the nodes that were to be measured with others."""
    name, no = "gpu_validation_fabric", ("false", "no", "off", "n", "f", "0", "0.0", "none", "")
    wanted = {node: {**known.variables.get(node, {}), **job.variables}.get(name, False) for node in job.nodes}
    return [node for node, value in wanted.items() if str(value).lower() not in no]


def recap(records: Mapping[str, NodeRecord], left: Mapping[str, str]) -> str:
    """Return how many nodes have each state, and each reason once with its nodes."""
    lines = []
    for state, nodes in tally({node: one.state for node, one in records.items() if node not in left}).items():
        lines.append(f"{state}: {counted(nodes)}")
        reasons = {node: records[node].reason for node in nodes}
        lines += [f"  {counted(alike_ones)}: {text}" for alike_ones, text in alike(reasons, {}) if text]
    if left:
        lines.append(f"left: {counted(left)}")
        lines += [f"  {counted(nodes)}: {text}" for nodes, text in alike(left, {})]
    return "\n".join(lines)


def _forget_old_runs(journal: Journal) -> None:
    """Forget all runs but the last ones and those that have not ended, with their folders."""
    old = journal.old(KEPT_RUNS)
    # The folders first: what is not recorded would be forgotten by nobody.
    for name in old:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    journal.forget(old)


def _status(arguments: argparse.Namespace) -> int:
    """Print the result of a run."""
    journal = Journal(HISTORY)
    name, job, ended = _meant(journal, arguments.run)
    records = journal.nodes(name)
    waiting = {node: "its slice has not begun" for node in job.nodes if node not in records}
    waiting |= {
        node: f"attempt {one.attempt} on {one.place} {'was' if ended else 'is under way, or was'} cut off"
        for node, one in records.items()
        if not one.state
    }
    nodes = {
        node: {"state": "left", "reason": reason, "attempt": 0, "place": "", "counts": {}}
        for node, reason in waiting.items()
    }
    for node, one in records.items():
        found = {"attempt": one.attempt, "place": one.place, "counts": dict(one.counts or {})}
        nodes[node] = nodes.get(node, {"state": one.state, "reason": one.reason}) | found
    document = {"run": name, "playbook": job.playbook, "ended": ended, "nodes": nodes}
    state = ended or ("not ended" if waiting else f"only its report is missing: temper fleet resume {name}")
    text = f"run {name}: {job.playbook}: {state}\n{recap(records, waiting)}"
    json_document.show(arguments, document, printable(text))
    if not arguments.run and not arguments.json:
        _name_others(journal, name)
    return NOT_FINISHED if waiting else status_of(records)
