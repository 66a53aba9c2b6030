"""Cut runs of site.yml off at random moments, and prove that the next run completes each.

    python -m tests.lab.cutoff [--count 20] [--seed N] [--start bare | drifted | both] [--keep]

Boots a lab of its own (LAB_NAME=cutoff) with two nodes, Debian 12 and 13. An uninterrupted run says how long
a run takes and what the nodes are like after it. Then, for each moment: the nodes start anew from the same
disks, a run starts, and at a random moment of its duration

    controller      all processes of the controller's run are killed; what it started on the nodes goes on
    module          so are all processes of its sessions on the nodes
    power           the nodes' power is cut, and they boot again; the controller sees them vanish

The next run starts at once and must end without a failure, the one after must change nothing, no rollback may
be pending, and each node must equal itself after the uninterrupted run: every file but the listed ones, and
what is in force. `drifted` starts from converged nodes on which managed files, rules, holds and kernel
parameters were taken away or changed: these moments meet changes, not installations.

Prints a table in Markdown on standard output, progress on standard error; logs and differences are in
reports/cutoff/. The same seed gives the same moments.

Exit status: 0 all runs were completed, 1 some were not, 2 already an uninterrupted run was not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from tests.lab import node as machine
from tests.lab import node_state
from tests.lab.cgroups import ROOT, Group
from tests.lab.fleet import BIN, Fleet, Run, on_node
from tests.lab.node_state import VOLATILE, Exemption, State
from tests.lab.settings import CHECKOUT, Lab, Node

Cut = Literal["controller", "module", "power"]
Start = Literal["bare", "drifted"]
CUTS: tuple[Cut, ...] = get_args(Cut)
STARTS: tuple[Start, ...] = get_args(Start)

SITE = ("ansible-playbook", "site.yml", "--skip-tags", "validate")
# What a controller needs to see that its nodes are gone: 15 s x 4 in ansible.cfg, and its own retries.
LONELY_S = 150.0
# The longest rollback that a role arms unasked is 120 s.
ROLLBACK_TIMEOUT_S = 150.0

# What two uninterrupted runs do not share either.
EXEMPTIONS = (
    *VOLATILE,
    Exemption(
        r"file /var/lib/dkms/mok\.(key|pub)", "each installation makes a key of its own", only="content"
    ),
    Exemption(r"file .*/dkms/.*\.ko", "signed with that key", only="content"),
    Exemption(r"file /var/lib/dkms/.*/make\.log", "has the time of the build", only="content"),
    Exemption(r"file /etc/audit/audit\.rules(\.prev)?", "a boot makes it of rules.d; nodes have no audit"),
)

# A rollback is pending while its timer runs or its way back is stored.
PENDING = """
systemctl list-units --plain --no-legend --state=active,activating 'temper-rollback-*' | cut -d' ' -f1
find /var/lib/temper/rollback -mindepth 1 -maxdepth 1 -type d ! -name '.*' 2>/dev/null || true
"""

# Takes away or changes what bears our name, but for the lab's own; which files, the salt decides.
DRIFT = r"""
find /etc -type f -path '*temper*' ! -name '*-lab.conf' | sort | while read -r file; do
    case $(( $(printf %s "$file SALT" | cksum | cut -d' ' -f1) % 3 )) in
    0) rm "$file" ;;
    1) echo '# drifted' >>"$file" ;;
    esac
done
nft delete table inet temper
apt-mark showhold | xargs --no-run-if-empty apt-mark unhold >/dev/null
sysctl --quiet --write kernel.sysrq=438 kernel.yama.ptrace_scope=0
systemctl daemon-reload
systemctl try-reload-or-restart ssh
"""


@dataclass(frozen=True)
class Moment:
    """When and how a run is cut off."""

    number: int
    start: Start
    cut: Cut
    after_s: float


@dataclass(frozen=True)
class Outcome:
    """What was running at a moment, and what came after it."""

    moment: Moment
    task: str
    processes: str
    completed_by: str
    problems: Sequence[str]

    def row(self) -> str:
        """A row of the table."""
        moment = self.moment
        verdict = "completed" if not self.problems else "**" + "; ".join(self.problems) + "**"
        cells = (f"{moment.number}", moment.start, f"{moment.after_s:.1f}", moment.cut, self.task)
        return (
            "| "
            + " | ".join(
                cell.replace("|", "/") for cell in (*cells, self.processes, self.completed_by, verdict)
            )
            + " |"
        )


HEADER = """\
| # | Start | Cut after, s | What was cut | Task | On the nodes | What the next run changed | Result |
|--:|---|--:|---|---|---|---|---|"""


def is_off(node: Node) -> bool:
    """Whether nothing of the node's machine runs."""
    return not machine.group(node).processes()


def note(message: str) -> None:
    """Print one line of progress; standard output is for the table."""
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


class Disks:
    """What the nodes have stored at some time, to start from again and again."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder

    @property
    def nodes(self) -> list[Node]:
        """The nodes whose disks these are."""
        return self.fleet.lab.nodes(self.fleet.size)

    def save(self) -> None:
        """Shut the nodes down in order, keep their disks, and boot them again."""
        for node in self.nodes:
            machine.shut_down(node, "poweroff")
        for node in self.nodes:
            wait_until(partial(is_off, node), f"{node.name} is off", 60)
            self._copy(node.state / "upper", self.folder / node.name)
        lab_command(self.fleet, "up")

    def restore(self) -> None:
        """Cut the nodes' power, put the disks back, and boot them."""
        for node in self.nodes:
            machine.stop(node)
            self._copy(self.folder / node.name, node.state / "upper")
        lab_command(self.fleet, "up")

    def _copy(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        # With overlayfs's own attributes, which say what a folder hides.
        subprocess.run(["cp", "--archive", "--reflink=auto", str(source), str(target)], check=True)


class Controller:
    """A run of Ansible, site.yml unless told otherwise, in a control group of its own.

    Ansible's workers and its shared SSH connections have sessions of their own, so the process group of
    ansible-playbook would not do.
    """

    def __init__(self, fleet: Fleet, log: Path, words: Sequence[str] = SITE) -> None:
        self.log = log
        self.group = Group(f"{ROOT}/{fleet.lab.name}/controller")
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                self.group.command([str(BIN / words[0]), *words[1:]]),
                cwd=CHECKOUT,
                # Else Ansible names a task only with its first result.
                env={**fleet.environment, "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "true"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by itself within a time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
            return True
        return False

    def kill(self) -> None:
        """End all its processes with SIGKILL."""
        self.group.kill()
        self.process.wait()

    @property
    def task(self) -> str:
        """The task that it named last: with the strategy host_pinned, the last one with a result."""
        titles = re.findall(r"^TASK \[(.*?)\] \*", self.log.read_text(errors="replace"), re.MULTILINE)
        return titles[-1] if titles else "before the first task"


class CampaignError(Exception):
    """The campaign cannot begin: even an uninterrupted run does not do what it should."""


def lab_command(fleet: Fleet, command: str) -> None:
    """One of the lab's commands, whose words are progress."""
    arguments = [sys.executable, "-m", "tests.lab", command]
    subprocess.run(arguments, cwd=CHECKOUT, env=fleet.environment, stdout=sys.stderr, check=True)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait for a condition.

    Raises:
        CampaignError: not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise CampaignError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)


def session_processes(node: Node) -> dict[int, str]:
    """The processes of a node's SSH sessions, a controller's modules: ids on this machine, and names."""
    found = {}
    for process in machine.group(node).processes():
        # It may end while we read.
        with contextlib.suppress(OSError):
            if re.search(
                r"/session-[^/]+\.scope$", Path(f"/proc/{process}/cgroup").read_text(), re.MULTILINE
            ):
                found[process] = Path(f"/proc/{process}/comm").read_text().strip()
    return found


def innermost(processes: dict[int, str]) -> list[str]:
    """The names of those that have started no other: what a node was busy with."""
    parents = set()
    for process in processes:
        with contextlib.suppress(OSError):
            parents.add(int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]))
    return sorted(
        {name for process, name in processes.items() if process not in parents | {0}}
        - {"sshd", "sshd-session"}
    )


def kill_sessions(nodes: Sequence[Node]) -> None:
    """End the sessions' processes with SIGKILL, and those that they were just starting."""

    def killed() -> bool:
        left = [process for node in nodes for process in session_processes(node)]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not left

    wait_until(killed, "the sessions' processes are gone", 20)


def changes(run: Run) -> dict[str, list[str]]:
    """The tasks that changed something, with the nodes that they changed."""
    found: dict[str, list[str]] = {}
    task = ""
    for line in run.output.splitlines():
        if title := re.match(r"(?:TASK|RUNNING HANDLER) \[(.*)\] \*", line):
            task = title[1]
        elif node := re.match(r"changed: \[([^\]]+)\]", line):
            found.setdefault(task, []).append(node[1])
    return found


def summary(changed: dict[str, list[str]]) -> str:
    """The changes of a run in a cell of a table."""
    if not changed:
        return "nothing"
    if len(changed) > 3:
        counts = Counter(node for nodes in changed.values() for node in nodes)
        totals = ", ".join(f"{count} tasks on {node}" for node, count in sorted(counts.items()))
        return f"{totals}, the first: {next(iter(changed))}"
    return "; ".join(f"{task} ({', '.join(sorted(set(nodes)))})" for task, nodes in changed.items())


def failure(run: Run) -> str | None:
    """Why a run did not complete; None if it did."""
    with contextlib.suppress(ValueError):
        if run.status == 0 and all(
            not counters["failed"] and not counters["unreachable"] for counters in run.recap.values()
        ):
            return None
    reason = re.search(r"\[ERROR\]: .*|fatal: .*|FAILED! .*", run.output)
    return f"status {run.status}, {reason[0][:300] if reason else 'see the log'}"


class Campaign:
    """Two nodes, what they are like after an uninterrupted run, and the moments."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self.nodes = fleet.lab.nodes(fleet.size)
        self.logs = CHECKOUT / "reports" / "cutoff"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.disks: dict[Start, Disks] = {
            start: Disks(fleet, fleet.lab.state / "disks" / start) for start in STARTS
        }
        self.duration_s: dict[Start, float] = {}
        self.wanted: dict[Start, dict[Node, State]] = {}
        # Whether the nodes are converged, so that drift can be put on them as they are.
        self.converged = False

    def prepare(self, starts: Sequence[Start]) -> None:
        """Run without interruption from each start: how long it takes, and what comes of it.

        Raises:
            CampaignError: that run failed, or was not complete.
        """
        self.disks["bare"].save()
        self._measure("bare")
        if "drifted" in starts:
            self.disks["drifted"].save()
            self.drift("control")
            self._measure("drifted")
            self.converged = True

    def _measure(self, start: Start) -> None:
        begun = time.monotonic()
        self._must_complete(self.site(f"{start}-control"))
        self.duration_s[start] = time.monotonic() - begun
        again = self.site(f"{start}-control-again")
        self._must_complete(again)
        if changed := changes(again):
            raise CampaignError(f"the second of two uninterrupted runs changed {summary(changed)}")
        if pending := self._pending():
            raise CampaignError(f"an uninterrupted run leaves a rollback pending: {pending}")
        self.wanted[start] = node_state.capture_all(self.nodes)
        for node, state in self.wanted[start].items():
            node_state.store(state, self.logs / f"{start}-control-{node.name}.json")
        note(f"uninterrupted run from {start} nodes: {self.duration_s[start]:.1f} s")

    def _must_complete(self, run: Run) -> None:
        if reason := failure(run):
            raise CampaignError(f"an uninterrupted run failed: {reason}; logs: {self.logs}")

    def site(self, name: str) -> Run:
        """Run site.yml to its end."""
        try:
            run = self.fleet.run(list(SITE))
        except subprocess.TimeoutExpired as error:
            so_far = (error.stdout or b"").decode(errors="replace")
            run = Run(-1, f"{so_far}\nFAILED! it did not end within {self.fleet.timeout_s:g} s")
        (self.logs / f"{name}.log").write_text(run.output)
        return run

    def drift(self, salt: str) -> None:
        """Take away or change what site.yml has made."""
        for node in self.nodes:
            on_node(node, DRIFT.replace("SALT", salt))

    def meet(self, moment: Moment) -> Outcome:
        """Cut a run off at a moment and see what comes after it."""
        if moment.start == "bare" or not self.converged:
            self.disks[moment.start].restore()
        if moment.start == "drifted":
            self.drift(f"{self.seed} {moment.number}")
        self.converged = False
        name = f"{moment.start}-{moment.number:02d}"
        controller = Controller(self.fleet, self.logs / f"{name}-1-cut.log")
        try:
            ended = controller.wait(moment.after_s)
            task = "none: it had ended" if ended else controller.task
            busy = self._cut(moment.cut, controller)
        finally:
            controller.kill()
        completing = self.site(f"{name}-2-next")
        problems = [f"the next run failed: {reason}"] if (reason := failure(completing)) else []
        problems += [] if problems else self._judge(moment, name)
        self.converged = not problems
        return Outcome(moment, task, busy, summary(changes(completing)), problems)

    def _cut(self, cut: Cut, controller: Controller) -> str:
        """Cut the run off; return what the nodes were doing."""
        doing = {node.name: innermost(session_processes(node)) for node in self.nodes}
        match cut:
            case "controller":
                controller.kill()
            case "module":
                controller.kill()
                kill_sessions(self.nodes)
            case "power":
                for node in self.nodes:
                    machine.stop(node)
                lab_command(self.fleet, "up")
                controller.wait(LONELY_S)
        return "; ".join(f"{name}: {', '.join(names) or 'nothing'}" for name, names in doing.items())

    def _judge(self, moment: Moment, name: str) -> list[str]:
        """What is wrong after a run that has completed an interrupted one."""
        problems = []
        try:
            wait_until(lambda: not self._pending(), "no rollback is pending", ROLLBACK_TIMEOUT_S)
        except CampaignError as error:
            problems.append(f"{error}: {self._pending()}")
        again = self.site(f"{name}-3-again")
        if reason := failure(again):
            problems.append(f"the run after the next failed: {reason}")
        if changed := changes(again):
            problems.append(f"the run after the next changed {summary(changed)}")
        for node, state in node_state.capture_all(self.nodes).items():
            differences = node_state.compare(self.wanted[moment.start][node], state, EXEMPTIONS)
            if differences:
                node_state.store(state, self.logs / f"{name}-{node.name}.json")
                (self.logs / f"{name}-{node.name}.diff").write_text("\n".join(map(str, differences)) + "\n")
                named = ", ".join(difference.name for difference in differences[:4])
                problems.append(f"{node.name} differs in {len(differences)}: {named}")
        return problems

    def _pending(self) -> str:
        return "; ".join(
            f"{node.name}: {' '.join(found.split())}"
            for node in self.nodes
            if (found := on_node(node, PENDING)).strip()
        )


def moments(start: Start, count: int, seed: int, duration_s: float) -> Iterator[Moment]:
    """The moments that a seed gives, uniform over the duration of an uninterrupted run."""
    chance = random.Random(f"{seed} {start}")
    for number in range(1, count + 1):
        yield Moment(number, start, CUTS[(number - 1) % len(CUTS)], chance.uniform(0, duration_s))


def run_campaign(campaign: Campaign, starts: Sequence[Start], count: int) -> bool:
    """Meet all moments and print the table; whether all were completed."""
    campaign.prepare(starts)
    print(f"Seed {campaign.seed}. An uninterrupted run takes", end=" ")
    print(", ".join(f"{campaign.duration_s[start]:.0f} s from {start} nodes" for start in starts) + ".\n")
    print(HEADER, flush=True)
    outcomes = []
    for start in starts:
        for moment in moments(start, count, campaign.seed, campaign.duration_s[start]):
            note(f"{start} {moment.number} of {count}: {moment.cut} after {moment.after_s:.1f} s")
            outcomes.append(campaign.meet(moment))
            print(outcomes[-1].row(), flush=True)
    completed = sum(not outcome.problems for outcome in outcomes)
    print(f"\n{completed} of {len(outcomes)} interrupted runs were completed by the next.")
    return completed == len(outcomes)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.cutoff", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=20, help="moments for each start (20)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the moments of an earlier campaign")
    parser.add_argument(
        "--start", choices=[*STARTS, "both"], default="bare", help="what the nodes are like (bare)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    note(f"seed {seed}")
    starts = STARTS if options.start == "both" else (options.start,)
    fleet = Fleet(Lab(name=os.environ.get("LAB_NAME") or "cutoff"))
    lab_command(fleet, "down")
    try:
        lab_command(fleet, "up")
        return 0 if run_campaign(Campaign(fleet, seed), starts, options.count) else 1
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if not options.keep:
            lab_command(fleet, "down")


if __name__ == "__main__":
    sys.exit(main())
