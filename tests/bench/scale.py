"""What the controller's own code costs for fleets of simulated nodes: reports, history, journal and plans.

    python -m tests.bench.scale [--nodes 1000 10000] [--only NAME ...]

Nodes answer what slices hand over (temper/fleet/collected.py): real plans of eight H100 whose observations
are made here, and results of validation from tests/unit/pages/made_up.py. Of a hundred nodes one is
unreachable, two have drifted, two are waived. What is measured is a process of its own; making the fleet is
not measured. CPU seconds and memory count per node: seconds by the clock are this machine's. Prints a
table in Markdown; asserts nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.slices import measure

SLICE = 100
#: So many nodes are planned, and so many have numbers of their own.
DIFFERENT = 25
#: Nodes whose plan is timed one after the other, each with the addresses of the whole fleet.
PLANNED = 100
FIRST, SECOND = "2026-11-22T09:14:00+00:00", "2026-11-23T09:14:00+00:00"

Step = Callable[[Path, int], None]


def names(count: int) -> list[str]:
    """Names of nodes."""
    return [f"gpu-{number:05}" for number in range(count)]


def slices(count: int) -> list[list[str]]:
    """The nodes of each slice."""
    nodes = names(count)
    return [nodes[start : start + SLICE] for start in range(0, count, SLICE)]


def addresses(count: int) -> list[str]:
    """An address of each node."""
    return [f"10.{number >> 8}.{number & 255}.7" for number in range(count)]


def folders(folder: Path, name: str) -> list[Path]:
    """What slices have handed over."""
    return sorted(path.parent for path in folder.glob(f"slices/*/{name}.json"))


def hand_over(folder: Path, number: int, name: str, document: Any) -> None:
    """Write what a slice hands over."""
    path = folder / "slices" / f"{number:04}" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")


# ------------------------------------------------------------------ making fleets


@functools.cache
def fact(count: int) -> dict[str, Any]:
    """The plan of a node of a fleet."""
    from temper.plan.preflight import preflight_plan
    from tests.unit.compliance.fleets import KNOWN, VARIABLES
    from tests.unit.planning_nodes import H100, gpus, node

    known = KNOWN | {"fleet": {"addresses": addresses(count), "unknown": []}}
    return preflight_plan({"ansible_facts": {"temper": node(pci=gpus(*[H100] * 8))}}, VARIABLES, known)


def make_compliance(folder: Path, count: int, drifted: int) -> None:
    """Answers of a check in which the nodes with this remainder of 50 have drifted."""
    from temper.compliance.answers import answer, packed
    from temper.compliance.model import Observation, State
    from temper.plan.node_plan import NodePlan
    from tests.unit.compliance.fleets import DRIVER, observations

    plan = NodePlan.from_fact(fact(count))
    swappiness = "sysctl:vm.swappiness"
    answers = [
        answer(
            fact(count),
            {
                role: [dataclasses.asdict(one) for one in found]
                for role, found in observations(plan, *differing).items()
            },
            DRIVER,
        )
        for differing in (
            (),
            (Observation(swappiness, (), State.FAIL, "60 is in force"),),
            (Observation("sshd:sshd", (), State.FAIL, "sshd answers with another value than wanted"),),
        )
    ]
    good, waived, bad = answers
    waiver = {"control": f"os_tuning/{swappiness}", "reason": "jobs need it", "owner": "ada"}
    waiver |= {"approver": "grace", "ticket": "OPS-7", "expires": "2999-01-01T00:00:00Z"}
    # Nothing was validated here; without that every node would be bad.
    unvalidated = waiver | {"control": "validation/last"}
    for number, nodes in enumerate(slices(count)):
        asked = []
        for name in nodes:
            place = int(name[-5:])
            said = {"answer": {drifted: bad, 13: waived}.get(place % 50, good)}
            if place % 100 == 21:
                said = {"problem": "unreachable: no route to host"}
            waivers = [unvalidated, *([waiver] if place % 50 == 13 else [])]
            asked.append({"name": name, "groups": ["gpu_nodes"], "answer": said, "waivers": waivers})
        hand_over(folder, number, "compliance", packed(asked))


def make_validation(folder: Path, count: int, began: str) -> None:
    """Results of a run, each GPU with a UUID of its own."""
    from tests.unit.pages import made_up
    from validation.model.contract import EXPECTATIONS_VERSION, encode

    results = [encode(made_up.result(name, "quick")) for name in made_up.names(DIFFERENT)]
    expectation = encode(made_up.expectation())
    silent = {"schema_version": EXPECTATIONS_VERSION, "gpus": None, "not_run": "no route to host"}
    for number, nodes in enumerate(slices(count)):
        expected, found = {}, {}
        for name in nodes:
            place = int(name[-5:])
            if place % 100 == 21:
                expected[name] = silent
                continue
            expected[name] = expectation
            one = results[place % DIFFERENT]
            gpus = [gpu | {"uuid": f"{gpu['uuid']}-{name}"} for gpu in one["gpus"]]
            found[name] = one | {"node": name, "started_at": began, "gpus": gpus}
        expectations = {"schema_version": EXPECTATIONS_VERSION, "nodes": expected}
        document = {"expectations": expectations, "results": found, "fabric": None}
        hand_over(folder, number, "validation", {"document": document})


def make_plans(folder: Path, count: int) -> None:
    """Plans as slices hand them over; one node of a hundred is refused."""
    from temper.plan.fleet import FleetPlan

    refused = {"problems": ["there is no driver for this kernel"]}
    for number, nodes in enumerate(slices(count)):
        facts = {name: refused if int(name[-5:]) % 100 == 21 else fact(count) for name in nodes}
        hand_over(folder, number, "plan", FleetPlan.from_dict(facts).part())


# ----------------------------------------------------------------- what is measured


def chosen(folder: Path) -> dict[str, Any]:
    """How reports are made: below the folder of the measurement."""
    from temper.fleet import collected

    below = {
        "compliance_reports_directory": str(folder / "compliance"),
        "gpu_validation_reports_directory": str(folder / "validation"),
    }
    return collected.defaults() | below


def check_compliance(folder: Path, count: int) -> None:
    """Statement, all its files, and the history."""
    from temper.fleet import collected
    from temper.plan.inventory import Inventory

    known = Inventory({"gpu_nodes": {"hosts": names(count)}}, {name: {} for name in names(count)})
    said = collected.compliance(folders(folder, "compliance"), {}, [], known, chosen(folder))
    assert said is not None and said.status == 1, said


def compliance_status(folder: Path, _count: int) -> None:
    """The command."""
    from temper.cli.compliance import main

    main(["status", "--reports", str(folder / "compliance")])


def compliance_drifts(folder: Path, _count: int) -> None:
    """The command."""
    from temper.cli.compliance import main

    history = folder / "validation" / "history.sqlite"
    main(["drifts", "--reports", str(folder / "compliance"), "--history", str(history)])


def judge_validation(folder: Path, _count: int) -> None:
    """Verdict, all its files, and the history."""
    from temper.fleet import collected

    said = collected.validation(folders(folder, "validation"), {}, [], chosen(folder))
    assert said is not None and (folder / "validation" / "latest" / "summary.json").is_file(), said


def keep_journal(folder: Path, count: int) -> None:
    """Every slice of a run begun and recorded, with its line of progress; half of them, then the rest."""
    from temper.fleet.journal import Job, Journal, NodeRecord
    from temper.fleet.run import HERE, FleetRun, places
    from temper.fleet.slices import Board, NodeOutcome
    from temper.plan.inventory import from_listing

    nodes = names(count)
    job = Job("site.yml", (), "", {}, (), tuple(nodes))
    listing = {"gpu_nodes": {"hosts": nodes}, "_meta": {"hostvars": {name: {} for name in nodes}}}
    known = from_listing(listing)
    journal = Journal(folder / "runs.sqlite")
    journal.begin("one", job)
    for part_of in (2, 1):
        before = journal.nodes("one")
        left = [node for node in job.nodes if node not in before or not before[node].state]
        board = Board.of(left, SLICE, places([HERE], 4), {node: one.attempt for node, one in before.items()})
        board.outcomes |= {node: one.outcome for node, one in before.items() if one.state}
        run = FleetRun("one", job, known, board, journal, folder / "run", {}, True, print)
        for _ in range(len(board.waiting) // part_of):
            for part, place in board.start():
                journal.start("one", part.nodes, part.attempt, place)
            part = next(iter(board.running))
            outcomes = {
                node: NodeOutcome("failed" if node.endswith("7") else "ok", "", part.attempt, HERE)
                for node in part.nodes
            }
            counts = {"ok": 40, "changed": 3, "skipped": 12}
            records = [
                NodeRecord(node, one.attempt, one.place, one.state, one.reason, counts, f"{part.number:04}")
                for node, one in outcomes.items()
            ]
            journal.end("one", records)
            board.end(part, outcomes)
            print(run.progress())
    assert len(board.outcomes) == count


def merge_plans(folder: Path, _count: int) -> None:
    """The plans of slices made one file."""
    from temper.fleet import collected

    collected.ROOT = folder
    assert collected.plans(folders(folder, "plan"), {})


def compare_plans(folder: Path, count: int) -> None:
    """The plans of one Ansible process made one file, as the action fleet_plan does."""
    from temper.plan.fleet import FleetPlan, grouped

    refused = {"problems": ["there is no driver for this kernel"], "text": "refused"}
    facts = {name: refused if int(name[-5:]) % 100 == 21 else fact(count) for name in names(count)}
    fleet = FleetPlan.from_dict(facts)
    texts = {name: str(one["text"]) for name, one in facts.items()}
    print(grouped(texts, {}), fleet.text())
    (folder / "plan.json").write_text(json.dumps(fleet.as_dict(), indent=1), encoding="utf-8")


def plan_nodes(_folder: Path, count: int) -> None:
    """Each node's plan, which has the addresses of the fleet in its firewall."""
    for _ in range(PLANNED):
        fact.cache_clear()
        fact(count)


@dataclasses.dataclass(frozen=True)
class Row:
    """What is measured: `make` comes before, unmeasured. `per` nodes are what it is divided by, 0 for all."""

    title: str
    step: Step
    make: Step | None = None
    per: int = 0


ROWS = {
    "check": Row("compliance: first check", check_compliance, functools.partial(make_compliance, drifted=7)),
    "again": Row("compliance: next check", check_compliance, functools.partial(make_compliance, drifted=8)),
    "status": Row("compliance status", compliance_status),
    "drifts": Row("compliance drifts", compliance_drifts),
    "judge": Row(
        "validation: first report", judge_validation, functools.partial(make_validation, began=FIRST)
    ),
    "rejudge": Row(
        "validation: next report", judge_validation, functools.partial(make_validation, began=SECOND)
    ),
    "journal": Row("journal and board, with resume", keep_journal),
    "merge": Row("plans of slices merged", merge_plans, make_plans),
    "compare": Row("plans of one process compared", compare_plans),
    "plan": Row("plan of a node", plan_nodes, per=PLANNED),
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--step", nargs=3, metavar=("NAME", "FOLDER", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        name, folder, count = options.step
        row = ROWS[name.removeprefix("make-")]
        step = row.make if name.startswith("make-") else row.step
        assert step
        step(Path(folder), int(count))
        return 0
    print("| Nodes | | CPU ms a node | CPU s | MiB of the largest process | s |\n|---|---|---|---|---|---|")
    for count in options.nodes:
        with tempfile.TemporaryDirectory() as scratch:
            call = [sys.executable, "-m", "tests.bench.scale", "--step"]
            for name in options.only:
                row = ROWS[name]
                if row.make:
                    measure([*call, f"make-{name}", scratch, str(count)])
                clock_s, cpu_s, memory_mib = measure([*call, name, scratch, str(count)])
                a_node_ms = cpu_s / (row.per or count) * 1e3
                numbers = f"{a_node_ms:.2f} | {cpu_s:.1f} | {memory_mib:.0f} | {clock_s:.1f}"
                print(f"| {count} | {row.title} | {numbers} |", flush=True)
            print(sizes(Path(scratch), count))
    return 0


def sizes(folder: Path, count: int) -> str:
    """What the files take, MB each."""
    files = {
        name: next(iter(sorted(folder.glob(pattern))), None)
        for name, pattern in {
            "index of compliance": "compliance/2*/report.html",
            "index of validation": "validation/2*/report.html",
            "statement.json": "compliance/2*/statement.json*",
            "oscal.json": "compliance/2*/oscal.json",
            "sarif.json": "compliance/2*/sarif.json",
            "junit.xml": "compliance/2*/junit.xml",
            "history.sqlite": "validation/history.sqlite",
        }.items()
    }
    said = [f"{name} {path.stat().st_size / 1e6:.1f}" for name, path in files.items() if path]
    return f"MB of {count} nodes: {', '.join(said)}"


if __name__ == "__main__":
    sys.exit(main())
