"""One browser, and one report of a fleet, for all tests of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from temper.report.write import write
from tests.unit.pages import made_up
from tests.unit.pages.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.pages.browser import Browser

#: Enough for the slow GPU and the throttling one.
NODES = 8


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a few nodes: one file."""
    (page,) = write(tmp_path_factory.mktemp("one file"), made_up.report(NODES))
    return page
