"""What commands share that run a playbook of Temper's, or that ask before nodes are changed."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from temper.base.nodes import printable
from temper.base.options import told
from temper.plan.inventory import environment

#: As ansible-playbook ends where it was interrupted.
INTERRUPTED = 99
#: What follows the name of a command that nobody could answer.
ASKS = (
    "asks before it changes nodes, and nobody can answer here: give --yes, or type it on a terminal; nothing "
    "was changed"
)


def parser(name: str, does: str | None) -> argparse.ArgumentParser:
    """Make the parser of a command that gives options which it does not know to ansible-playbook."""
    made = argparse.ArgumentParser(
        f"temper {name}",
        description=does,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_selection(made)
    return made


def add_selection(made: argparse.ArgumentParser) -> None:
    """Add the options that choose inventories and nodes."""
    made.add_argument("-i", "--inventory", action="append", default=[], help="as ansible-playbook takes it")
    made.add_argument("-l", "--limit", default="", help="as ansible-playbook takes it")


def run(
    playbook: Path,
    words: Sequence[str],
    given: argparse.Namespace,
    others: Sequence[str],
    output: int | None = None,
) -> int | None:
    """Run a playbook, whose text goes to the file descriptor `output`; None where nothing can be run.

    Raises KeyboardInterrupt where Ansible was interrupted.

    The caller's folder stays the current one: Ansible finds inventories and files of variables in it.
    """
    program = Path(sys.executable).with_name("ansible-playbook")
    # Behind an option ansible-playbook takes no further playbook, which would be carried out.
    command = [str(program), str(playbook), *words]
    command += [word for source in given.inventory for word in ("-i", source)]
    command += ["--limit", given.limit] if given.limit else []
    # Ctrl-C reaches Ansible, too, which then says what goes on where: Python would kill it before it has.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        # The operator's own words.
        done = subprocess.run([*command, *others], env=environment(), stdout=output, check=False)  # noqa: S603
    except OSError as error:
        print(f"temper: {program} cannot be run: {told(error)}; make setup installs it", file=sys.stderr)
        return None
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    return done.returncode


def confirmed(question: str) -> bool:
    """Ask whether what was shown is to be done. Raises KeyboardInterrupt, which says what became of it."""
    try:
        return input(printable(f"{question} Type yes to begin: ")).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the terminal has shown ^C behind the question
        raise KeyboardInterrupt("nothing was changed") from None
