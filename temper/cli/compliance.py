"""Look at reports of compliance: `verify` them, or end with the `status` of the newest.

temper compliance status     0 compliant, 1 not, 2 where what was required could not be checked
temper compliance verify     0 where every report is as it was written, 1 where not
temper compliance head       the last report of the chain in one line, to be kept elsewhere for --head
temper compliance drifts     when each drift began and ended

Nothing is written: a copy on a medium that is read only will do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from temper.base.store import HistoryError
from temper.compliance import document
from temper.compliance.evidence import EvidenceError, heads_of, verify
from temper.compliance.history import History
from temper.report.compliance import HISTORY
from temper.report.statement import SUMMARY
from validation.model.contract import ContractError
from validation.model.printable import printable

REPORTS = Path(__file__).resolve().parents[2] / "reports" / "compliance"
USAGE_ERROR = 2


def status(directory: Path) -> int:
    """Print the newest verdict; returns its exit status."""
    latest = directory / "latest"
    summary = latest / SUMMARY
    # Reports of before have no summary.
    statement = document.read(summary.read_bytes()) if summary.exists() else document.of_report(latest)
    print(printable(f"{statement.made_at}: {statement.sentence}"))
    return statement.verdict.exit_status


def head(history: Path) -> int:
    """Print the last report that the history knows. Raises EvidenceError."""
    last = History(history).head()
    if last is None:
        raise EvidenceError(f"{history} has no report yet: run playbooks/compliance.yml first")
    print(last)
    return 0


def verify_all(directory: Path, history: Path, signers: Path | None, kept: str) -> int:
    """Print what is wrong with the reports. `kept` are heads, or the file that has them."""
    known = History(history)
    recorded = known.reports()
    # No head has a name that a file could have.
    heads = heads_of(Path(kept).read_text(encoding="utf-8") if " " not in kept else kept) if kept else []
    problems = verify(directory, recorded, signers, heads, known.number())
    for problem in problems:
        print(printable(problem))
    if not problems:
        signed = "" if signers else ", signatures not looked at (--signers)"
        print(f"{len(recorded)} reports are as they were written{signed}. Head: {known.head()}")
    return int(bool(problems))


def drifts(history: Path) -> int:
    """Print each drift with its beginning and its end."""
    for node, control, began, ended in History(history).drifts():
        print(printable(f"{began} to {ended or 'now':<20}  {node}  {control}"))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="temper compliance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["status", "verify", "head", "drifts"])
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports (%(default)s)")
    parser.add_argument(
        "--history", type=Path, help=f"the fleet's history (default: {HISTORY} beside that folder)"
    )
    parser.add_argument("--signers", type=Path, help="allowed_signers file that every signature must be of")
    parser.add_argument(
        "--head",
        default="",
        help="head that was kept elsewhere, or a file with several: the chain must have it",
    )
    given = parser.parse_args(arguments)
    history = given.history or given.reports.absolute().parent / HISTORY
    needed = given.reports / "latest" if given.command == "status" else history
    if not needed.exists():
        print(
            f"{needed} is not there: run playbooks/compliance.yml first, or name another folder with "
            "--reports or another file with --history.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    try:
        if given.command == "verify":
            return verify_all(given.reports, history, given.signers, given.head)
        if given.command == "head":
            return head(history)
        return status(given.reports) if given.command == "status" else drifts(history)
    except (OSError, UnicodeError, HistoryError, EvidenceError, ContractError) as error:
        print(printable(str(error)), file=sys.stderr)
        return USAGE_ERROR
