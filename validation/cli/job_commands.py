"""The command that searches the batch of somebody's own training step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from validation.jobs import own_function
from validation.jobs.batch import BatchError, largest_batch
from validation.model.usage import UsageError
from validation.verdict.judge import EXIT_PASS

if TYPE_CHECKING:
    import argparse


def batch(options: argparse.Namespace) -> int:
    """Search the largest and the fastest batch of a step."""
    try:
        found = largest_batch(
            own_function.named(options.step),
            device=options.device,
            most=options.most,
            memory_gb=options.memory,
            minutes=options.minutes,
            say=lambda words: print(words, file=sys.stderr, flush=True),
        )
    except (BatchError, own_function.FunctionError) as error:
        raise UsageError(str(error)) from error
    print(found.text(), end="")
    return EXIT_PASS
