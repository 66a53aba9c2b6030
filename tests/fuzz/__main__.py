"""`python -m tests.fuzz`: give hostile input to every reader, print a table, end with 1 where one fails.

A failure is repeated alone by its seed: `python -m tests.fuzz --reader NAME --seed N`.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime

from tests import conftest  # noqa: F401 - makes module_utils/ importable
from tests.fuzz import guard

ROOT = guard.ROOT


def main() -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="CPU time of all readers together (%(default)s)"
    )
    parser.add_argument("--seed", type=int, help="the first input's; by default one of today")
    parser.add_argument("--reader", help="only this one; with --seed, that input alone, and its traceback")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "library"), str(ROOT / "plugins/filter")]
    from tests.fuzz.readers import READERS

    chosen = [one for one in READERS if options.reader in (None, one.name)]
    if not chosen:
        parser.error(f"expected a reader of {', '.join(one.name for one in READERS)}")
    if options.reader and options.seed is not None:
        return repeat(chosen[0], options.seed)
    seed = options.seed if options.seed is not None else int(f"{datetime.now(UTC):%Y%m%d}") * 1_000_000
    print(f"Seed {seed}: `make fuzz SEED={seed}` repeats this run.\n")
    return table(chosen, seed, options.minutes * 60)


def table(readers: Sequence[guard.Reader], seed: int, cpu_s: float) -> int:
    """Examine readers and print what came of each, as SECURITY.md has it."""
    whole = sum(one.weight for one in readers)
    print("| Reader | Inputs | Unhandled | Hangs | Wrongly accepted |", "|---|---|---|---|---|", sep="\n")
    total, said = guard.Tally(), []
    for one in readers:
        found = guard.examine(one, seed, cpu_s * one.weight / whole)
        total.inputs += found.inputs
        total.counts += found.counts
        print(_row(one.name, found), flush=True)
        said += [
            f"  {kind}: {place}\n    python -m tests.fuzz --reader {one.name!r} --seed {at}"
            for (kind, place), at in sorted(found.places.items())
        ]
    print(_row("all", total), "", *said, sep="\n")
    return 1 if total.counts else 0


def _row(name: str, found: guard.Tally) -> str:
    counts = (f"{found.counts[kind]:,}" for kind in ("unhandled", "hang", "wrong"))
    return f"| {' | '.join((name, f'{found.inputs:,}', *counts))} |"


def repeat(reader: guard.Reader, seed: int) -> int:
    """Give one input to a reader in this process, and say what comes of it."""
    given = reader.input(seed)
    print(f"{given!r:.4000}")
    guard.bound()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            with guard.limited():
                found = reader.read(given)
        except reader.errors as error:
            print(f"{type(error).__name__}: {error}")
            return 0
        except (Exception, guard.HangError):  # noqa: BLE001 - it is what is looked for
            traceback.print_exc()
            return 1
        said = reader.wrong(given, found) if reader.wrong else ""
    print(said or f"{found!r:.2000}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
