"""Look at reports of compliance: `verify` them, or end with the `status` of the newest.

temper compliance status     0 compliant, 1 not, 2 where what was required could not be checked
temper compliance verify     0 where every report is as it was written, 1 where not
temper compliance head       the last report of the chain in one line, to be kept elsewhere for --head
temper compliance drifts     when each drift began and ended; one that a waiver accepts goes on
temper compliance tailoring  what a scanner shall leave out, and why: for `oscap xccdf eval --tailoring-file`
temper compliance scan       what a scanner found on a node, beside the newest report; 1 where they disagree

Nothing is written: a copy on a medium that is read only will do.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base import DATA, ROOT
from temper.base.nodes import number_of, utc
from temper.base.store import HISTORY, HistoryError
from temper.cli import json_document
from temper.compliance import document, scans, tailoring
from temper.compliance.evidence import EvidenceError, heads_of, verify
from temper.compliance.history import History
from temper.plan.os_controls import load_controls
from temper.plan.tables import read_yaml
from validation.model.contract import ContractError
from validation.model.printable import printable

if TYPE_CHECKING:
    from temper.compliance.model import NodeStatement, Statement

REPORTS = ROOT / "reports" / "compliance"
USAGE_ERROR = 2


def status(given: argparse.Namespace, directory: Path) -> int:
    """Print the newest verdict; returns its exit status."""
    latest = directory / "latest"
    summary = latest / document.SUMMARY
    # Reports of before have no summary.
    statement = document.read(summary.read_bytes()) if summary.exists() else document.of_report(latest)
    shown = {
        "made_at": statement.made_at,
        "verdict": statement.verdict,
        "sentence": statement.sentence,
        "counts": asdict(statement.counts),
    }
    json_document.show(given, shown, printable(f"{statement.made_at}: {statement.sentence}"))
    return statement.verdict.exit_status


def head(given: argparse.Namespace, history: Path) -> int:
    """Print the last report that the history knows. Raises EvidenceError."""
    last = History(history).head()
    if last is None:
        raise EvidenceError(f"{history} has no report yet: run playbooks/compliance.yml first")
    json_document.show(given, {"head": asdict(last)}, str(last))
    return 0


def verify_all(given: argparse.Namespace, history: Path) -> int:
    """Print what is wrong with the reports. `--head` are heads, or the file that has them."""
    signers, kept = given.signers, given.head
    known = History(history)
    recorded = known.reports()
    if not recorded:
        raise EvidenceError(f"{history} has no report to verify: run playbooks/compliance.yml first")
    # No head has a name that a file could have.
    heads = heads_of(Path(kept).read_text(encoding="utf-8") if " " not in kept else kept) if kept else []
    problems = verify(given.reports, recorded, signers, heads, known.number())
    last = known.head()
    signed = "" if signers else ", signatures not looked at (--signers)"
    verb = "is as it was" if len(recorded) == 1 else "are as they were"
    good = f"{number_of(len(recorded), 'report')} {verb} written{signed}. Head: {last}"
    shown = {
        "reports": len(recorded),
        "signatures_checked": bool(signers),
        "head": asdict(last) if last else None,
        "problems": problems,
    }
    json_document.show(given, shown, "\n".join(map(printable, problems)) or good)
    return int(bool(problems))


def drifts(given: argparse.Namespace, history: Path) -> int:
    """Print each drift with its beginning and its end."""
    found = History(history).drifts()
    lines = [
        printable(
            f"{one.began} to {one.ended or 'now':<20}  {one.node}  {one.control}"
            f"{', waived' if one.waived else ''}"
        )
        for one in found
    ]
    json_document.show(given, {"drifts": [asdict(one) for one in found]}, "\n".join(lines))
    return 0


def node_of(directory: Path, asked: str, option: str = "--node") -> tuple[NodeStatement, Statement]:
    """Return a node of the newest report, and that. Raises ValueError, ContractError, OSError."""
    statement = document.of_report(directory / "latest")
    nodes = {node.node: node for node in statement.nodes}
    if asked not in nodes:
        known = ", ".join(nodes)
        raise ValueError(f"{option}: expected a node of the newest report ({known}), found {asked}")
    return nodes[asked], statement


def scan(given: argparse.Namespace, directory: Path) -> int:
    """Print results of a scanner beside the statement of a node. Raises ValueError, OSError."""
    with given.results.open("rb") as stream:
        found = scans.read(stream)
    option = "--node" if given.node else "the target in the results (name the node with --node)"
    node, statement = node_of(directory, given.node or found.target, option)
    if not scans.same_machine(found.target, node.node):
        warning = f"warning: expected results of {node.node}, found those of {found.target or 'no machine'}"
        print(printable(f"{warning}: see that {given.results} is of that node"), file=sys.stderr)
    controls = load_controls(DATA / "os_controls")
    rows = scans.compared(found, controls, scap_table(), tailoring.of_node(node))
    disagreeing = [row for row in rows if row.relation.disagrees]
    counts = Counter(row.relation for row in rows)
    lines = [
        f"{row.relation:<13}  {row.rule}: scanner {row.result}; "
        f"{row.control or 'no control'} {row.state or 'not in the report'}"
        f"{f': {row.reason}' if row.reason else ''}"
        for row in rows
        if row.relation not in (scans.Relation.AGREE, scans.Relation.NOT_JUDGED)
    ]
    numbers = ", ".join(f"{number} {relation}" for relation, number in counts.items())
    lines.append(
        f"{node.node} (results of {found.target or 'no machine'}), {found.profile or 'no profile'}, "
        f"beside the report of {statement.made_at}: "
        f"{number_of(len(disagreeing), 'disagreement')} ({numbers})"
    )
    shown = {"node": node.node, "target": found.target, "profile": found.profile}
    details = {"report": statement.made_at, "counts": counts, "rules": [asdict(row) for row in rows]}
    json_document.show(given, {**shown, **details}, "\n".join(map(printable, lines)))
    return int(bool(disagreeing))


def scap_table() -> dict[str, Any]:
    """Return where each rule of the data streams is answered."""
    return {**read_yaml(DATA / "scap" / "rules.yml"), **read_yaml(DATA / "scap" / "streams.yml")}


def tailor(given: argparse.Namespace, directory: Path) -> int:
    """Print the tailoring of a profile, or of a node by the newest report. Raises ValueError."""
    table = scap_table()
    controls = load_controls(DATA / "os_controls")
    if given.product not in (known := tailoring.products(table)):
        raise ValueError(f"--product: expected {' or '.join(known)}, found {given.product or 'nothing'}")
    known_controls, made_at = tailoring.of_profile(controls, given.profile), utc(datetime.now(UTC))
    if given.node:
        node, statement = node_of(directory, given.node)
        system = node.system.replace("-", "")
        if system != given.product:
            raise ValueError(f"--product: expected {system}, which {given.node} has, found {given.product}")
        known_controls, made_at = tailoring.of_node(node), statement.made_at
    rules = tailoring.exempted(controls, table, given.product, given.profile, known_controls)
    text = tailoring.tailoring(given.product, given.profile, made_at, rules, given.node)
    shown = {"profile": tailoring.profile_id(given.profile), "rules": [asdict(rule) for rule in rules]}
    json_document.show(given, shown, text.rstrip())
    return 0


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(prog="temper compliance", description=(__doc__ or "").splitlines()[0])
    made.add_argument("command", choices=["status", "verify", "head", "drifts", "tailoring", "scan"])
    made.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports (%(default)s)")
    made.add_argument(
        "--history", type=Path, help=f"the fleet's history (default: {HISTORY} beside that folder)"
    )
    made.add_argument("--signers", type=Path, help="allowed_signers file that every signature must be of")
    made.add_argument(
        "--head",
        default="",
        help="head that was kept elsewhere, or a file with several: the chain must have it",
    )
    made.add_argument("--product", default="", help="tailoring: the data stream, such as debian13")
    made.add_argument(
        "--profile",
        choices=tailoring.PROFILES,
        default="gpu",
        help="tailoring: the profile of os_hardening (%(default)s)",
    )
    made.add_argument(
        "--node", default="", help="tailoring, scan: by what the newest report says of this node"
    )
    made.add_argument(
        "--results", type=Path, help="scan: what `oscap xccdf eval --results` or `--results-arf` has written"
    )
    json_document.add_option(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    made = parser()
    given = made.parse_args(arguments)
    if given.command == "scan" and not given.results:
        made.error("scan needs --results FILE")
    history = given.history or given.reports.absolute().parent / HISTORY
    of_profile = given.command == "tailoring" and not given.node
    needed = given.reports / "latest" if given.command in ("status", "tailoring", "scan") else history
    if not of_profile and not needed.exists():
        print(
            f"{needed} is not there: run playbooks/compliance.yml first, or name another folder with "
            "--reports or another file with --history.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    try:
        if given.command == "verify":
            return verify_all(given, history)
        if given.command == "head":
            return head(given, history)
        if given.command == "scan":
            return scan(given, given.reports)
        if given.command == "tailoring":
            return tailor(given, given.reports)
        return status(given, given.reports) if given.command == "status" else drifts(given, history)
    except (OSError, UnicodeError, HistoryError, EvidenceError, ContractError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR
