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
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from temper.base import ROOT
from temper.base.nodes import READING, printable
from temper.base.selection import misspelt
from temper.plan.inventory import environment

PLAYBOOK = ROOT / "playbooks" / "uninstall.yml"
GOOD, BAD, NOT_CARRIED_OUT = range(3)
OPTIONS = ("--inventory", "--limit", "--keep", "--yes", "--check")
#: By what ansible-playbook ends with, where it began.
STATUSES = {0: GOOD, 2: BAD, 4: BAD, 99: 130}
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
    made = argparse.ArgumentParser(
        "temper uninstall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("-i", "--inventory", action="append", default=[], help="as ansible-playbook takes it")
    made.add_argument("-l", "--limit", default="", help="as ansible-playbook takes it")
    made.add_argument("--keep", type=keeps, action="extend", default=[], help="what stays: driver,firewall")
    made.add_argument("--yes", action="store_true", help="show and begin without a question, for programs")
    made.add_argument("--check", action="store_true", help="show what would be taken back, and end")
    return made


def command(given: argparse.Namespace, others: Sequence[str], *words: str) -> list[str]:
    """Return the command line of ansible-playbook."""
    found = [str(Path(sys.executable).with_name("ansible-playbook")), str(PLAYBOOK)]
    found += [word for source in given.inventory for word in ("-i", source)]
    found += ["--limit", given.limit] if given.limit else []
    found += ["--skip-tags", ",".join(dict.fromkeys(given.keep))] if given.keep else []
    return [*found, *words, *others]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    given, others = parser().parse_known_args(arguments)
    if wrong := misspelt(others, OPTIONS):
        print(f"temper uninstall: {wrong}; nothing was changed", file=sys.stderr)
        return NOT_CARRIED_OUT
    if not (given.yes or given.check or sys.stdin.isatty()):
        print(
            "temper uninstall asks before it changes nodes, and nobody can answer here: give --yes, or type "
            "it on a terminal; nothing was changed",
            file=sys.stderr,
        )
        return NOT_CARRIED_OUT
    print(READING, file=sys.stderr, flush=True)
    if status := run(command(given, others, "--check")):
        print("Nothing was changed. What is refused above has to be put right first.", file=sys.stderr)
        return status
    if given.check:
        return GOOD
    if not given.yes and not confirmed():
        print("Nothing was changed.")
        return NOT_CARRIED_OUT
    status = run(command(given, others), otherwise=BAD)
    if status == GOOD:
        print(printable("\n".join(left_here())))
    return status


def run(words: Sequence[str], otherwise: int = NOT_CARRIED_OUT) -> int:
    """Run ansible-playbook in the caller's folder, and return this command's status for it.

    `otherwise` is that for one that nodes do not end with: once they may have changed, it is carried out.
    """
    try:
        done = subprocess.run(words, env=environment(), check=False)  # noqa: S603 - the operator's own words
    except OSError as error:
        print(f"temper uninstall: {words[0]} cannot be run: {error}; make setup installs it", file=sys.stderr)
        return NOT_CARRIED_OUT
    return STATUSES.get(done.returncode, otherwise)


def confirmed() -> bool:
    """Ask whether what was shown is to be taken back."""
    try:
        return input("Take this back on these nodes? Type yes to begin: ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
    except KeyboardInterrupt:
        print("\nNothing was changed.", file=sys.stderr)
        raise


def left_here(root: Path = ROOT) -> list[str]:
    """Return lines about what stays on this machine, which nobody deletes unasked."""
    paths = {root / Path(name).expanduser(): what for name, what in LEFT_HERE.items()}
    found = [f"  {path}: {what}" for path, what in paths.items() if path.exists()]
    return (
        ["On this machine nothing was deleted; these are yours to keep or remove:", *found] if found else []
    )
