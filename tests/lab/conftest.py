"""Fixtures that several files of lab tests share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lab.hardening import ENVIRONMENT, ROOT, Fleet


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """A hardened lab of its own, because its tests break the ways into its nodes."""
    command = [sys.executable, "-m", "tests.lab"]
    subprocess.run([*command, "up"], cwd=ROOT, env=ENVIRONMENT, check=True)
    try:
        fleet = Fleet()
        run = fleet.harden()
        assert run.status == 0, run.output
        yield fleet
    finally:
        subprocess.run([*command, "down"], cwd=ROOT, env=ENVIRONMENT, check=True)
