"""Take back everything that Temper has made on nodes: shows it, asks once, and does it.

--keep leaves what a role has made as it is: a role's name, or `driver` for nvidia_stack. What stays on a node
is said with its reason. Nothing is deleted on this machine. Other options, such as --ask-become-pass, are
given to ansible-playbook. `ansible-playbook playbooks/uninstall.yml` does the same without a question.

Exit status: 0 all is taken back, or there was nothing; 1 a node refuses, fails or does not answer, or the run
ended in another way once it had begun; 2 not carried out: the command line or this machine does not allow it,
or the answer was no; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from temper.base import ROOT
from temper.base.nodes import READING, printable
from temper.base.selection import misspelt
from temper.cli import playbook
from temper.cli.main import BAD, GOOD, NOT_CARRIED_OUT, refused

PLAYBOOK = ROOT / "playbooks" / "uninstall.yml"
OPTIONS = ("--inventory", "--limit", "--keep", "--yes", "--check")
#: By what ansible-playbook ends with, where it began.
STATUSES = {0: GOOD, 2: BAD, 4: BAD}
#: Beside the names of roles.
ALIASES = {"driver": "nvidia_stack"}
#: What stays on this machine, below the checkout or the home folder.
LEFT_HERE = {
    "reports": "plans, results, histories, statements and roll-outs",
    "inventory": "inventories; keys and vaults are where they name them",
    ".cache": "what tools have fetched",
    "~/.ansible": "Ansible's connections and temporary files",
}


def keeps(text: str) -> list[str]:
    """Return the roles of --keep. Raises ArgumentTypeError for a name that is none."""
    names = [ALIASES.get(name, name) for name in text.replace(",", " ").split()]
    # Only here: planning imports Ansible, which takes longer than all else of `--help`.
    from temper.plan.roles import ROLES

    known = [role.ROLE for role in ROLES]
    if unknown := sorted(set(names) - {*known}):
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: expected names of {', '.join((*ALIASES, *known))}"
        )
    return names


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = playbook.parser("uninstall", __doc__)
    made.add_argument("--keep", type=keeps, action="extend", default=[], help="what stays: driver,firewall")
    made.add_argument("--yes", action="store_true", help="show and begin without a question, for programs")
    made.add_argument("--check", action="store_true", help="show what would be taken back, and end")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    given, others = parser().parse_known_args(arguments)
    if wrong := misspelt(others, OPTIONS):
        return refused("uninstall", f"{wrong}; nothing was changed")
    if not (given.yes or given.check or sys.stdin.isatty()):
        return refused("uninstall", playbook.ASKS)
    print(READING, file=sys.stderr, flush=True)
    if status := run(given, others, check=True):
        print("Nothing was changed. What is refused above has to be put right first.", file=sys.stderr)
        return status
    if given.check:
        return GOOD
    if not given.yes and not playbook.confirmed("Take this back on these nodes?"):
        print("Nothing was changed.")
        return NOT_CARRIED_OUT
    status = run(given, others)
    if status == GOOD:
        print(printable("\n".join(left_here())))
    return status


def run(given: argparse.Namespace, others: Sequence[str], *, check: bool = False) -> int:
    """Run the playbook, and return this command's status for how it ends.

    Where nodes do not end with that, it is carried out only if they may have changed.
    """
    words = ["--skip-tags", ",".join(dict.fromkeys(given.keep))] if given.keep else []
    status = playbook.run(PLAYBOOK, [*words, *(["--check"] if check else [])], given, others)
    return NOT_CARRIED_OUT if status is None else STATUSES.get(status, NOT_CARRIED_OUT if check else BAD)


def left_here(root: Path = ROOT) -> list[str]:
    """Return lines about what stays on this machine, which nobody deletes unasked."""
    paths = {root / Path(name).expanduser(): what for name, what in LEFT_HERE.items()}
    found = [f"  {path}: {what}" for path, what in paths.items() if path.exists()]
    return (
        ["On this machine nothing was deleted; these are yours to keep or remove:", *found] if found else []
    )
