"""Look at reports of compliance: `verify` them, or end with the `status` of the newest.

temper compliance status     0 compliant, 1 not, 2 where what was required could not be checked
temper compliance verify     0 where every report is as it was written, 1 where not
temper compliance head       the last report of the chain in one line, to be kept elsewhere for --head
temper compliance drifts     when each drift began and ended; one that a waiver accepts goes on
temper compliance tailoring  what a scanner shall leave out, and why: for `oscap xccdf eval --tailoring-file`

Nothing is written: a copy on a medium that is read only will do.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from temper.base import DATA, ROOT
from temper.base.nodes import number_of, utc
from temper.base.store import HISTORY, HistoryError
from temper.cli import json_document
from temper.compliance import document, tailoring
from temper.compliance.evidence import EvidenceError, heads_of, verify
from temper.compliance.history import History
from temper.plan.os_controls import load_controls
from temper.plan.tables import read_yaml
from validation.model.contract import ContractError
from validation.model.printable import printable

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


def tailor(given: argparse.Namespace, directory: Path) -> int:
    """Print the tailoring of a profile, or of a node by the newest report. Raises ValueError."""
    table = read_yaml(DATA / "scap" / "rules.yml") | read_yaml(DATA / "scap" / "streams.yml")
    controls = load_controls(DATA / "os_controls")
    if given.product not in (known := tailoring.products(table)):
        raise ValueError(f"--product: expected {' or '.join(known)}, found {given.product or 'nothing'}")
    known_controls, made_at = tailoring.of_profile(controls, given.profile), utc(datetime.now(UTC))
    if given.node:
        statement = document.of_report(directory / "latest")
        nodes = {node.node: node for node in statement.nodes}
        if given.node not in nodes:
            raise ValueError(
                f"--node: expected a node of the newest report ({', '.join(nodes)}), found {given.node}"
            )
        system = nodes[given.node].system.replace("-", "")
        if system != given.product:
            raise ValueError(f"--product: expected {system}, which {given.node} has, found {given.product}")
        known_controls, made_at = tailoring.of_node(nodes[given.node]), statement.made_at
    rules = tailoring.exempted(controls, table, given.product, given.profile, known_controls)
    text = tailoring.tailoring(given.product, given.profile, made_at, rules, given.node)
    shown = {"profile": tailoring.profile_id(given.profile), "rules": [asdict(rule) for rule in rules]}
    json_document.show(given, shown, text.rstrip())
    return 0


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(prog="temper compliance", description=(__doc__ or "").splitlines()[0])
    made.add_argument("command", choices=["status", "verify", "head", "drifts", "tailoring"])
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
    made.add_argument("--node", default="", help="tailoring: by what the newest report says of this node")
    json_document.add_option(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    given = parser().parse_args(arguments)
    history = given.history or given.reports.absolute().parent / HISTORY
    of_profile = given.command == "tailoring" and not given.node
    needed = given.reports / "latest" if given.command in ("status", "tailoring") else history
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
        if given.command == "tailoring":
            return tailor(given, given.reports)
        return status(given, given.reports) if given.command == "status" else drifts(given, history)
    except (OSError, UnicodeError, HistoryError, EvidenceError, ContractError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR
