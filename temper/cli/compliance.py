"""Look at reports of compliance: verify them, or end with the status of the newest.

Nothing is written: a copy on a medium that is read only will do.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from temper.base import DATA, ROOT
from temper.base.nodes import number_of, utc
from temper.base.options import named
from temper.base.store import HISTORY, HistoryError
from temper.cli import json_document
from temper.cli.main import refused
from temper.compliance import document, scans, tailoring
from temper.compliance.evidence import MANIFEST, EvidenceError, digest, heads_of, verify
from temper.compliance.history import History
from temper.compliance.model import NodeStatement, Statement
from temper.plan.os_controls import load_controls
from temper.plan.tables import read_yaml
from validation.model.contract import ContractError
from validation.model.printable import printable

REPORTS = ROOT / "reports" / "compliance"


def status(given: argparse.Namespace) -> int:
    """Print the newest verdict; returns its exit status."""
    latest = there(given.reports / "latest")
    summary = latest / document.SUMMARY
    # Reports of before have no summary.
    statement = document.of_file(summary) if summary.exists() else document.of_report(latest)
    shown = {
        "made_at": statement.made_at,
        "verdict": statement.verdict,
        "sentence": statement.sentence,
        "counts": asdict(statement.counts),
    }
    json_document.show(given, shown, printable(f"{statement.made_at}: {statement.sentence}"))
    return statement.verdict.exit_status


def history_of(given: argparse.Namespace) -> History:
    """Return the fleet's history. Raises EvidenceError where it is not there, or has no report."""
    found = History(there(given.history or given.reports.absolute().parent / HISTORY))
    if not found.reports():
        raise EvidenceError(f"{found.path} has no report of compliance: run playbooks/compliance.yml first")
    return found


def head(given: argparse.Namespace) -> int:
    """Print the last report that the history knows."""
    last = history_of(given).head()
    json_document.show(given, {"head": asdict(last)}, str(last))
    return 0


def verify_all(given: argparse.Namespace) -> int:
    """Print what is wrong with the reports. `--head` are heads, or the file that has them."""
    signers, kept, known = given.signers, given.head, history_of(given)
    recorded = known.reports()
    # No head has a name that a file could have, unless that has a space.
    if kept and (" " not in kept or os.path.exists(kept)):  # noqa: PTH110 - Path refuses what is too long
        kept = Path(kept).read_text(encoding="utf-8", errors="replace")
    heads = heads_of(kept) if kept is not None else []
    if signers and not signers.is_file():
        raise EvidenceError(f"--signers: expected a file as ssh-keygen(1) has it, found none: {signers}")
    problems = verify(given.reports, recorded, signers, heads, known.number())
    last = known.head()
    signed = "" if signers else ", signatures not looked at (--signers)"
    verb = "is as it was" if len(recorded) == 1 else "are as they were"
    good = f"{number_of(len(recorded), 'report')} {verb} written{signed}. Head: {last}"
    shown = {
        "reports": len(recorded),
        "signatures_checked": bool(signers),
        "head": asdict(last),
        "problems": problems,
    }
    json_document.show(given, shown, "\n".join(map(printable, problems)) or good)
    return int(bool(problems))


def drifts(given: argparse.Namespace) -> int:
    """Print each drift with its beginning and its end."""
    history = history_of(given)
    found, recorded = history.drifts(), history.reports()
    latest = given.reports / "latest"
    checked: set[str] | None = None
    with suppress(EvidenceError, ContractError, OSError):  # a history alone says when each began, too
        if digest(there(latest) / MANIFEST) in recorded.values():
            checked = {node.node for node in document.of_report(latest).nodes}
        else:
            warning = (
                f"warning: expected {latest.resolve()} in {history.path}, whose newest report is "
                f"{next(reversed(recorded), 'none')}: it may be the history of another fleet, and its nodes "
                "are not compared with this report"
            )
            print(printable(warning), file=sys.stderr)
    lines = []
    for one in found:
        unseen = checked is not None and not one.ended and one.node not in checked
        notes = [", waived" * one.waived, f", {one.node} is not in the newest report" * unseen]
        lines.append(
            printable(f"{one.began} to {one.ended or 'now':<20}  {one.node}  {one.control}{''.join(notes)}")
        )
    json_document.show(given, {"drifts": [asdict(one) for one in found]}, "\n".join(lines))
    return 0


def node_of(directory: Path, asked: str, option: str = "--node") -> tuple[NodeStatement, Statement]:
    """Return a node of the newest report, and that. Raises ValueError, ContractError, OSError."""
    statement = document.of_report(there(directory / "latest"))
    nodes = {node.node: node for node in statement.nodes}
    if asked not in nodes:
        known = ", ".join(nodes)
        raise ValueError(f"{option}: expected a node of the newest report ({known}), found {asked}")
    return nodes[asked], statement


def scan(given: argparse.Namespace) -> int:
    """Print results of a scanner beside the statement of a node. Raises ValueError, OSError."""
    with given.results.open("rb") as stream:
        try:
            found = scans.read(stream)
        except scans.ScanError as error:
            raise scans.ScanError(f"{given.results}: {error}") from error
    option = "--node" if given.node else "the target in the results (name the node with --node)"
    node, statement = node_of(given.reports, given.node or found.target, option)
    if not scans.same_machine(found.target, node.node):
        warning = f"warning: expected results of {node.node}, found those of {found.target or 'no machine'}"
        print(printable(f"{warning}: see that {given.results} is of that node"), file=sys.stderr)
    controls = load_controls(DATA / "os_controls")
    rows = scans.compared(found, controls, scap_table(), tailoring.of_node(node))
    disagreeing = [row for row in rows if row.relation.disagrees]
    counts = Counter(row.relation for row in rows)
    total = (
        f"{node.node} (results of {found.target or 'no machine'}), {found.profile or 'no profile'}, "
        f"beside the report of {statement.made_at}: {number_of(len(disagreeing), 'disagreement')}"
    )
    lines = [*comparison(rows, counts), total]
    shown = {"node": node.node, "target": found.target, "profile": found.profile}
    details = {"report": statement.made_at, "counts": counts, "rules": [asdict(row) for row in rows]}
    json_document.show(given, {**shown, **details}, "\n".join(map(printable, lines)))
    return int(bool(disagreeing))


def comparison(rows: list[scans.Compared], counts: Mapping[scans.Relation, int]) -> Iterator[str]:
    """Yield what people read of compared rules: those with the same control and reason stand together."""
    for relation, number in counts.items():
        yield f"{number} {relation}: {relation.meaning}"
        if relation in (scans.Relation.AGREE, scans.Relation.NOT_JUDGED):
            continue
        for (control, state, reason), alike in groupby(
            (row for row in rows if row.relation is relation),
            key=lambda row: (row.control, row.state, row.reason),
        ):
            rules = (row.rule if row.result == "fail" else f"{row.rule} ({row.result})" for row in alike)
            yield f"  {control or 'no control'} ({state or 'not in the report'}): {', '.join(rules)}"
            if reason:
                yield f"    {reason}"


def scap_table() -> dict[str, Any]:
    """Return where each rule of the data streams is answered."""
    return {**read_yaml(DATA / "scap" / "rules.yml"), **read_yaml(DATA / "scap" / "streams.yml")}


def tailor(given: argparse.Namespace) -> int:
    """Print the tailoring of a profile, or of a node by the newest report. Raises ValueError."""
    table = scap_table()
    controls = load_controls(DATA / "os_controls")
    if given.product not in (known := tailoring.products(table)):
        raise ValueError(f"--product: expected {' or '.join(known)}, found {given.product or 'nothing'}")
    if given.profile not in (measured := tailoring.profiles_of(table, given.product)):
        raise ValueError(
            f"--profile: expected what the stream of {given.product} measures ({', '.join(measured)}), "
            f"found {given.profile}"
        )
    system, made_at = tailoring.system_of(given.product), utc(datetime.now(UTC))
    known_controls = tailoring.of_profile(controls, given.profile, system)
    if given.node:
        node, statement = node_of(given.reports, given.node)
        if node.system != system:
            of_node = f"that of {node.system or 'a known system'}, which {given.node} has"
            raise ValueError(f"--product: expected {of_node}, found {given.product}")
        known_controls, made_at = tailoring.of_node(node), statement.made_at
    rules = tailoring.exempted(controls, table, given.product, given.profile, known_controls)
    text = tailoring.tailoring(given.product, given.profile, made_at, rules, given.node)
    shown = {"profile": tailoring.profile_id(given.profile), "rules": [asdict(rule) for rule in rules]}
    json_document.show(given, shown, text.rstrip())
    return 0


def there(path: Path) -> Path:
    """Return a file or folder of reports. Raises EvidenceError where it is not there."""
    if not path.exists():
        raise EvidenceError(
            f"{path} is not there: run `ansible-playbook playbooks/compliance.yml` first, or name another "
            "folder with --reports or another file with --history."
        )
    return path


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    whole = argparse.ArgumentParser(
        prog="temper compliance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], does: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=does)
        made.set_defaults(function=function)
        made.add_argument(
            "--reports", type=named, default=REPORTS, help="folder of the reports (%(default)s)"
        )
        json_document.add_option(made)
        return made

    def of_history(
        name: str, function: Callable[[argparse.Namespace], int], does: str
    ) -> argparse.ArgumentParser:
        made = command(name, function, does)
        made.add_argument(
            "--history", type=named, help=f"the fleet's history (default: {HISTORY} beside that folder)"
        )
        return made

    command("status", status, "print the newest verdict: 0 compliant, 1 not, 2 where it could not be checked")
    made = of_history("verify", verify_all, "print which reports are not as they were written: then 1")
    made.add_argument("--signers", type=named, help="allowed_signers file that every signature must be of")
    made.add_argument(
        "--head",
        help="head that was kept elsewhere, or a file with several: the chain must have it",
    )
    of_history(
        "head", head, "print the last report of the chain in one line, to be kept elsewhere for --head"
    )
    of_history("drifts", drifts, "print when each drift began and ended; one that a waiver accepts goes on")
    made = command("tailoring", tailor, "print, for `oscap xccdf eval`, what it shall leave out, and why")
    made.add_argument("--product", default="", help="the data stream, such as debian13")
    made.add_argument(
        "--profile",
        choices=tailoring.PROFILES,
        default="gpu",
        help="the profile of os_hardening (%(default)s)",
    )
    made.add_argument("--node", default="", help="by what the newest report says of this node")
    made = command("scan", scan, "print what a scanner found on a node, beside the newest report")
    made.add_argument("--node", default="", help="the node (default: the target that the results name)")
    made.add_argument(
        "--results",
        type=named,
        required=True,
        help="what `oscap xccdf eval --results` or `--results-arf` has written",
    )
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = parser().parse_args(arguments)
    try:
        return int(given.function(given))
    except (HistoryError, EvidenceError, ContractError, ValueError) as error:
        return refused("compliance", error)
