"""Fixtures that several files of lab tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hardening import Hardened
from tests.lab.repository_faults import Repositories

#: The longest files of `make lab-smoke`, the longest first: one that began last would run alone.
LONGEST = ("upgrade_steps", "compliance", "harden", "validation", "jump_hosts", "lock_outs", "strict_site")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    items.sort(key=lambda item: (*LONGEST, name := item.path.stem.removeprefix("test_")).index(name))


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[None]:
    """New nodes of the file's FLEET, and nothing left of them afterwards."""
    with request.module.FLEET.booted():
        yield


@pytest.fixture
def repositories(request: pytest.FixtureRequest, lab: None) -> Iterator[Repositories]:
    """The lab's repositories, for a test to change; whole again for the next."""
    own = Repositories(request.module.LAB)
    yield own
    own.close()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Hardened]:
    """A hardened lab of its own, because its tests break the ways into its nodes."""
    fleet = Hardened()
    with fleet.booted():
        run = fleet.harden()
        assert run.status == 0, run.output
        yield fleet
