"""Shared by all tests: our module_utils are importable under the name that Ansible gives them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import ansible.module_utils
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests read Ansible's own words; those of the callback that an operator sees have tests that ask for it.
os.environ["ANSIBLE_STDOUT_CALLBACK"] = "default"

# On a node Ansible merges module_utils/ into its own package of that name; `__path__` does the same here.
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

# A busy machine is no failure: no example has a time limit. `make thorough` looks at more examples.
for name, examples in (("fast", 50), ("thorough", 1000)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# A shell that starts tests in the background has them ignore SIGINT, nohup SIGHUP; so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what is collected: it would go through all of it, in each fork too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
