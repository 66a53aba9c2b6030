"""The files of a site, for each sshd of this machine and of the lab's nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.harden.real_sshd import SiteFiles, Users, programs


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with Users.made(tmp_path_factory.mktemp("users")) as made:
        yield made


@pytest.fixture(params=programs() or ["none"])
def site(
    request: pytest.FixtureRequest, users: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SiteFiles:
    """A site without settings of its own, for each sshd."""
    if request.param == "none":
        pytest.skip("needs an sshd, its own or one of the lab's nodes")
    return SiteFiles(tmp_path, users, programs()[request.param], monkeypatch, request.param)
