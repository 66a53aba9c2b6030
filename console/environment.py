"""Says in one sentence that a command of the controller was started by another Python than its own."""

from __future__ import annotations

import importlib.util
import sys


def require(command: str, *modules: str) -> None:
    """End a command whose Python has not these modules, as in a shell in which nobody activated ours."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{command}: {sys.executable} has no {missing[0]}: `. .venv/bin/activate` in this shell, or "
            f"start .venv/bin/python3 -m {command}; `make setup` makes that environment.",
            file=sys.stderr,
        )
        raise SystemExit(2)
