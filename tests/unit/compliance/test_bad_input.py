"""What a new user gets wrong: one sentence says it, and what was there before stays."""

from __future__ import annotations

import resource
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from temper.base import DATA
from temper.base.store import HISTORY
from temper.compliance import waivers
from temper.compliance.evidence import verify
from temper.compliance.history import History
from temper.compliance.statement import statement
from temper.report.compliance import Settings, check
from tests.unit.compliance.fleets import NOW, RULES, checked, waiver
from tests.unit.each import each

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A history of one check needs less, a statement more.
LIMIT_BYTES = 60_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A folder with one report."""
    made = Settings(tmp_path / "reports", tmp_path, DATA, (), timedelta(days=30))
    check([checked()], made, NOW)
    return made


@pytest.fixture
def full_disk() -> Iterator[None]:
    """The kernel lets nobody write a longer file: a disk that is full behind the history."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def left(settings: Settings) -> tuple[list[str], list[str]]:
    """The reports, and what is wrong with them."""
    names = [path.name for path in settings.directory.iterdir() if path.is_dir() and not path.is_symlink()]
    return names, verify(settings.directory, History(settings.validations / HISTORY).reports())


def test_a_disk_that_becomes_full_costs_only_the_report_that_it_cannot_hold(
    settings: Settings, request: pytest.FixtureRequest
) -> None:
    before = left(settings)
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="File too large"):
        check([checked()], settings, NOW + timedelta(hours=1))
    assert left(settings) == before
    assert before[1] == []


def test_a_folder_that_nobody_can_write_to_is_named(settings: Settings) -> None:
    folder = Path("/proc/reports")  # root's permissions end there, too
    with pytest.raises(OSError, match=str(folder)):
        check([checked()], replace(settings, directory=folder), NOW)


@each("ssh_hardening/sshd", {"control": "ssh_hardening/sshd"}, 7)
def test_waivers_that_are_no_list_are_one_problem(given: Any) -> None:
    found, problems = waivers.read(given, set())
    assert (found, len(problems)) == ([], 1)
    assert "expected a list" in problems[0]


@each(
    (
        "ssh_hardening/sshd:PasswordAuthentification",
        "did you mean ssh_hardening/sshd:PasswordAuthentication?",
    ),
    ("nothing/like/it", "correct or remove it."),
)
def test_a_typo_in_the_name_of_a_control_is_answered_with_what_is_meant(name: str, said: str) -> None:
    (finding,) = statement([checked(waivers=(waiver(name),))], RULES, {}).waivers
    assert finding.text.endswith(said)
