"""The stacks of PAM that tests of settings go by are theirs, and not those of the machine that runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.temper.settings import modprobe, pam_lines


@pytest.fixture(autouse=True)
def pam(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of /etc/pam.d, with no vendor's beside it."""
    folder = tmp_path_factory.mktemp("pam")
    stacks = folder / "pam.d"
    stacks.mkdir()
    monkeypatch.setattr(pam_lines, "STACKS", stacks)
    monkeypatch.setattr(pam_lines, "VENDOR", folder / "vendor")
    monkeypatch.setattr(pam_lines, "ACCOUNTS", folder / "passwd")
    monkeypatch.setattr(modprobe, "WEAKER", (folder / "run/modprobe.d", folder / "lib/modprobe.d"))
    return stacks
