"""Apply the fleet's signed configuration to this node, once. temper-pull.service runs it.

Ends with 0 where the node was compared with its plan, or somebody else works on it; with 1 where the
configuration was refused, the run failed, or the result could not be kept or handed back.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from pull.agent import Agent, StoppedError
from pull.configuration import PATH, Configuration, ConfigurationError
from pull.result import CHECKED, HELD


def main() -> int:
    """Run once; return the exit status."""
    os.umask(0o022)
    signal.signal(signal.SIGTERM, stop)
    try:
        result, problem = Agent(Configuration.load(PATH)).run()
    except (ConfigurationError, StoppedError) as error:
        print(error, file=sys.stderr)
        return 1
    print(result.sentence)
    if problem:
        print(problem, file=sys.stderr)
    return int(bool(problem) or result.state not in (CHECKED, HELD))


def stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End the work with a result that says why; a second signal ends the program. Raises StoppedError."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise StoppedError("The run was ended before it was through (SIGTERM).")


if __name__ == "__main__":
    sys.exit(main())
