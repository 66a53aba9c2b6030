"""Slices beside one process, and cut off at random moments: the nodes must end the same.

    python -m tests.lab.fleet_campaign [--nodes 4] [--count 20] [--seed N] [--keep]

Boots a lab of its own (LAB_NAME=slicecut) with two helpers and as many nodes as asked for. One process makes
bare nodes what site.yml makes of them (without the validation); slices over the two helpers make the same of
the same bare disks, and every node must equal itself, file by file, and be counted the same. Then, for each
moment: managed things on the nodes are taken away or changed, a run over slices starts, and at a random
moment of its duration

    helper        the power of one helper is cut
    network       one helper is cut off from all others, until the run has ended
    controller    the controller's process is killed; `resume` follows

The run, or the one that resumes it, must end well by itself, with no node left and none held. Then one
process must find nothing to change, each node must equal itself after an uninterrupted run, and nothing may
still run on the helpers.

Prints a table in Markdown on standard output, progress on standard error; logs and differences are in
reports/fleet-campaign/, the records of the last campaign's runs in runs/ there. The same seed gives the same
moments.

Exit status: 0 all is as it must be, 1 something is not, 2 already an uninterrupted run failed.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tests.lab import helpers, many_nodes, node_state
from tests.lab import node as machine
from tests.lab.cutoff import (
    DRIFT,
    EXEMPTIONS,
    CampaignError,
    Disks,
    changes,
    failure,
    lab_command,
    note,
    summary,
    wait_until,
)
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.node_state import Exemption, State
from tests.lab.settings import CHECKOUT, Lab, Node

Cut = Literal["helper", "network", "controller"]
CUTS: tuple[Cut, ...] = get_args(Cut)
STAGES = ("--tags", "provision,tune,harden")
RUN_TIMEOUT_S = 3600.0
# A connection that says nothing is given up after 2 minutes at a helper, and by sshd there as hardened.
END_TIMEOUT_S = 300.0
SAME = (
    *EXEMPTIONS,
    Exemption(r"file /var/lib/temper/lease\.json(\.lock)?", "only a run over slices takes nodes"),
)
HEADER = """\
| # | Cut after, s | What was cut | What the run said | Took, s | Result |
|--:|--:|---|---|--:|---|"""


@dataclass(frozen=True)
class Moment:
    """When and how a run is cut off; `helper` is the place of the helper in question."""

    number: int
    cut: Cut
    after_s: float
    helper: int


def moments(count: int, seed: int, duration_s: float) -> Iterator[Moment]:
    """The moments that a seed gives, uniform over the duration of an uninterrupted run."""
    chance = random.Random(seed)
    for number in range(1, count + 1):
        yield Moment(
            number, CUTS[(number - 1) % len(CUTS)], chance.uniform(0, duration_s), chance.randrange(2)
        )


@contextlib.contextmanager
def cut_off(node: Node) -> Iterator[None]:
    """Have all that a node sends and gets vanish, as a broken switch does: no connection is ended."""
    nft = ["ip", "netns", "exec", node.unique_name, "nft"]
    hooks = "".join(
        f"chain {way} {{ type filter hook {way} priority -400; policy drop; }}\n"
        for way in ("input", "output")
    )
    subprocess.run([*nft, f"table inet lab_cut_off {{ {hooks} }}"], check=True)
    try:
        yield
    finally:
        subprocess.run([*nft, "delete table inet lab_cut_off"], check=True)


class Campaign:
    """Two helpers, nodes, and what these are like after an uninterrupted run."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        first, second, third, *others = fleet.lab.nodes(fleet.size)
        # Debian 12: a helper needs the controller's Python.
        self.helpers = [first, third]
        self.targets = [second, *others]
        self.limit = ["--limit", ",".join(node.name for node in self.targets)]
        self.logs = CHECKOUT / "reports" / "fleet-campaign"
        self.runs = self.logs / "runs"
        shutil.rmtree(self.runs, ignore_errors=True)
        self.runs.mkdir(parents=True)
        self.slice = ["--slice", str(-(-len(self.targets) // 4))]
        self.disks = Disks(fleet, fleet.lab.state / "disks" / "bare")

    def one(self, name: str) -> Run:
        """Run site.yml as one process."""
        run = self.fleet.run(["ansible-playbook", "site.yml", *STAGES, *self.limit])
        (self.logs / f"{name}.log").write_text(run.output)
        return run

    def begin(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start `temper fleet`."""
        places = helpers.options(self.fleet, *self.helpers)
        with (self.logs / f"{name}.log").open("wb") as output:
            return subprocess.Popen(
                helpers.command(self.runs, *words, *self.slice, *places),
                cwd=CHECKOUT,
                env=self.fleet.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def slices(self, name: str) -> tuple[int, float]:
        """Run site.yml as slices: exit status and seconds."""
        begun_s = time.monotonic()
        process = self.begin(name, "run", "site.yml", *STAGES, *self.limit)
        return process.wait(RUN_TIMEOUT_S), time.monotonic() - begun_s

    def said(self, name: str) -> str:
        """What `temper fleet` wrote."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def compare(self, name: str, wanted: Mapping[Node, State]) -> list[str]:
        """In what nodes differ from what they should be like."""
        problems = []
        for node, state in node_state.capture_all(self.targets).items():
            if differences := node_state.compare(wanted[node], state, SAME):
                text = "\n".join(map(str, differences)) + "\n"
                (self.logs / f"{name}-{node.name}.diff").write_text(text)
                named = ", ".join(difference.name for difference in differences[:4])
                problems.append(f"{node.name} differs in {len(differences)}: {named}")
        return problems

    def same(self) -> list[str]:
        """Compare one process and slices on the same bare disks; what differs.

        Raises:
            CampaignError: the run of one process did not do what it should.
        """
        helpers.equip(self.fleet, self.helpers)
        self.disks.save()
        begun_s = time.monotonic()
        run = self.one("one")
        one_s = time.monotonic() - begun_s
        if reason := failure(run):
            raise CampaignError(f"site.yml as one process failed: {reason}; logs: {self.logs}")
        wanted = node_state.capture_all(self.targets)
        self.disks.restore()
        status, sliced_s = self.slices("slices")
        problems = [] if status == 0 else [f"slices ended with status {status}"]
        changed = f"changed: {len(self.targets)} nodes"
        if changed not in " ".join(self.said("slices").split()):
            problems.append(f"one process changed all nodes, slices did not say: {changed}")
        problems += self.compare("slices", wanted) + self._again("slices-again")
        print(f"One process took {one_s:.0f} s, slices {sliced_s:.0f} s.", flush=True)
        return problems

    def _again(self, name: str) -> list[str]:
        again = self.one(name)
        if reason := failure(again):
            return [f"one process failed after it: {reason}"]
        return [f"one process changed after it: {summary(changed)}"] if (changed := changes(again)) else []

    def drift(self, salt: str) -> None:
        """Take away or change what site.yml has made."""
        for node in self.targets:
            on_node(node, DRIFT.replace("SALT", salt))

    def control(self) -> tuple[dict[Node, State], float]:
        """The nodes after an uninterrupted run over drifted ones, and how many seconds it takes."""
        self.drift("control")
        status, duration_s = self.slices("control")
        if status:
            raise CampaignError(f"an uninterrupted run ended with status {status}; logs: {self.logs}")
        return node_state.capture_all(self.targets), duration_s

    def meet(self, moment: Moment, seed: int, wanted: Mapping[Node, State]) -> tuple[str, bool]:
        """Cut a run off at a moment; return a row of the table, and whether all is as it must be."""
        self.drift(f"{seed} {moment.number}")
        name = f"{moment.number:02d}-{moment.cut}"
        begun_s = time.monotonic()
        process = self.begin(name, "run", "site.yml", *STAGES, *self.limit)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment.after_s)
        status = self._cut(moment, process, name)
        took_s = time.monotonic() - begun_s
        said = [line for line in self.said(name).splitlines() if "lost" in line or "cannot be used" in line]
        problems = [] if status == 0 else [f"it ended with status {status}"]
        problems += [
            f"{node.name} is held by {owner}" for node in self.targets if (owner := helpers.lease_owner(node))
        ]
        problems += self._leftovers() + self._again(f"{name}-again") + self.compare(name, wanted)
        verdict = "as it must be" if not problems else "**" + "; ".join(problems) + "**"
        cells = (
            f"{moment.number}",
            f"{moment.after_s:.1f}",
            moment.cut,
            "; ".join(said) or "nothing of it",
            f"{took_s:.0f}",
            verdict,
        )
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |", not problems

    def _cut(self, moment: Moment, process: subprocess.Popen[bytes], name: str) -> int:
        """Cut the run off, and return what it, or the run that goes on with it, ended with."""
        helper = self.helpers[moment.helper]
        match moment.cut:
            case "helper":
                machine.stop(helper)
                try:
                    return process.wait(RUN_TIMEOUT_S)
                finally:
                    many_nodes.boot(self.fleet)
            case "network":
                with cut_off(helper):
                    return process.wait(RUN_TIMEOUT_S)
            case "controller":
                process.kill()
                process.wait()
                # Before its name was said, nothing was begun; after its recap, it had ended.
                begun = any(line.startswith("run ") for line in self.said(name).splitlines())
                words = ["resume"] if begun else ["run", "site.yml", *STAGES, *self.limit]
                resumed = self.begin(f"{name}-resume", *words)
                status = resumed.wait(RUN_TIMEOUT_S)
                ended = "nothing is left of the last run" in self.said(f"{name}-resume")
                return 0 if ended and begun else status

    def _leftovers(self) -> list[str]:
        problems = []
        for helper in self.helpers:
            try:
                wait_until(lambda node=helper: not helpers.workers(node), "nothing runs", END_TIMEOUT_S)  # type: ignore[misc]
            except CampaignError as error:
                problems.append(f"{helper.name}: {error}: {helpers.workers(helper)}")
        return problems


def carry_out(campaign: Campaign, count: int, seed: int) -> bool:
    """Compare, then meet all moments; whether all was as it must be."""
    problems = campaign.same()
    print(f"Slices beside one process, {len(campaign.targets)} nodes: {'; '.join(problems) or 'the same'}.\n")
    wanted, duration_s = campaign.control()
    note(f"an uninterrupted run: {duration_s:.0f} s")
    print(f"Seed {seed}. An uninterrupted run over drifted nodes takes {duration_s:.0f} s.\n")
    print(HEADER, flush=True)
    met = []
    for moment in moments(count, seed, duration_s):
        note(f"{moment.number} of {count}: {moment.cut} after {moment.after_s:.1f} s")
        row, well = campaign.meet(moment, seed, wanted)
        met.append(well)
        print(row, flush=True)
    print(f"\n{sum(met)} of {len(met)} runs that were cut off ended as they must.")
    return not problems and all(met)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.fleet_campaign", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--nodes", type=int, default=4, help="nodes beside the two helpers (4)")
    parser.add_argument("--count", type=int, default=20, help="moments (20)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the moments of an earlier campaign")
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    lab = Lab(name=os.environ.get("LAB_NAME") or "slicecut")
    os.environ["LAB_NAME"] = lab.name
    fleet = Fleet(lab, max(options.nodes, 2) + 2, RUN_TIMEOUT_S)
    lab_command(fleet, "down")
    try:
        many_nodes.boot(fleet)
        return 0 if carry_out(Campaign(fleet), options.count, seed) else 1
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if not options.keep:
            lab_command(fleet, "down")


if __name__ == "__main__":
    sys.exit(main())
