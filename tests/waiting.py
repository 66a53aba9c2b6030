"""Wait for what other processes do, with a bound."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], what: str, patience_s: float = 20.0, pause_s: float = 0.02
) -> None:
    """Wait for a condition; the test fails, with `what`, where it does not come true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(pause_s)
