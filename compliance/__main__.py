"""Look at reports of compliance: `verify` them, or end with the `status` of the newest.

python3 -m compliance status     0 compliant, 1 not, 2 where what was required could not be checked
python3 -m compliance verify     0 where every report is as it was written, 1 where not
python3 -m compliance drifts     when each drift began and ended
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compliance.evidence import verify
from compliance.fleet import HISTORY
from compliance.history import History, HistoryError
from compliance.model import Statement
from validation.model.contract import ContractError, loads

REPORTS = Path(__file__).resolve().parents[1] / "reports" / "compliance"
USAGE_ERROR = 2


def status(directory: Path) -> int:
    """Print the newest verdict; returns its exit status."""
    statement = loads(Statement, (directory / "latest" / "statement.json").read_bytes())
    print(f"{statement.made_at}: {statement.sentence}")
    return statement.verdict.exit_status


def verify_all(directory: Path, signers: Path | None) -> int:
    """Print what is wrong with the reports."""
    recorded = History(directory / HISTORY).reports()
    problems = verify(directory, recorded, signers)
    for problem in problems:
        print(problem)
    if not problems:
        signed = "" if signers else ", signatures not looked at (--signers)"
        print(f"{len(recorded)} reports are as they were written{signed}.")
    return int(bool(problems))


def drifts(directory: Path) -> int:
    """Print each drift with its beginning and its end."""
    for node, control, began, ended in History(directory / HISTORY).drifts():
        print(f"{began} to {ended or 'now':<20}  {node}  {control}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m compliance", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("command", choices=["status", "verify", "drifts"])
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports (%(default)s)")
    parser.add_argument("--signers", type=Path, help="allowed_signers file that every signature must be of")
    given = parser.parse_args(arguments)
    if not (given.reports / HISTORY).is_file():
        print(
            f"{given.reports} has no reports of compliance: expected {HISTORY} there. Run "
            "playbooks/compliance.yml first, or name another folder with --reports.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    try:
        if given.command == "verify":
            return verify_all(given.reports, given.signers)
        return status(given.reports) if given.command == "status" else drifts(given.reports)
    except (OSError, HistoryError, ContractError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
