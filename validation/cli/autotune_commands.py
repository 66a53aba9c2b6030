"""The commands of autotune: try settings on this node, and propose the winners for an inventory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from validation.autotune import evidence as documents
from validation.autotune.between import BetweenError
from validation.autotune.journal import ChangeError, restore
from validation.autotune.tune import TuneError, Wishes, tune, tune_together
from validation.cli.commands import STDIN, read
from validation.fabric.groups import Order
from validation.model.contract import dumps, loads
from validation.model.not_run import NotRunError
from validation.model.usage import UsageError
from validation.processes import files
from validation.run.burn_in import locked
from validation.verdict.judge import EXIT_PASS

if TYPE_CHECKING:
    import argparse


def autotune(options: argparse.Namespace) -> int:
    """Try settings on this node, and say which of them are worth it."""
    try:
        if options.restore:
            if options.journal.exists():
                with locked(options.journal):
                    print(*restore(options.journal), sep="\n")
            else:  # what is on standard output has been restored
                print(f"Nothing to restore: there is no {options.journal}.", file=sys.stderr)
            return EXIT_PASS
        to_file = options.output not in {None, STDIN}
        if to_file:
            files.ensure_writable(options.output)
        wishes = Wishes(
            options.node,
            options.journal,
            tuple(options.knobs or ()),
            options.storage,
            options.minutes,
            options.seed,
        )
        if options.order is None:
            found = tune(wishes, _say)
        else:
            found = tune_together(wishes, loads(Order, read(Path(options.order))), _say)
    except (TuneError, BetweenError, ChangeError, NotRunError) as error:
        raise UsageError(str(error)) from error
    if to_file:
        files.write_atomically(options.output, dumps(found))
    print(dumps(found) if options.output == STDIN else documents.text(found), end="")
    return EXIT_PASS


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
