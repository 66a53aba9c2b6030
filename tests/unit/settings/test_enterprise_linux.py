"""What only Enterprise Linux has: authselect, as its manual describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible.module_utils.temper.settings import enterprise_linux
from ansible.module_utils.temper.settings.enterprise_linux import Authselect

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FEATURES = "with-faillock\nwith-mkhomedir\nwith-silent-lastlog\n"


class Programs:
    """authselect, as far as its published interface is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.features = FEATURES
        self.ran: list[str] = []

    def run(self, command: Sequence[str]) -> str:
        self.ran.append(" ".join(command))
        match list(command):
            case ["authselect", "list-features", _]:
                return self.features
            case ["authselect", "enable-feature", feature]:
                with (self.folder / "authselect.conf").open("a") as stream:
                    stream.write(f"{feature}\n")
            case ["authselect", "disable-feature", feature]:
                path = self.folder / "authselect.conf"
                path.write_text(path.read_text().replace(f"{feature}\n", ""))
        return ""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path)
    monkeypatch.setattr(enterprise_linux, "AUTHSELECT", tmp_path / "authselect.conf")
    monkeypatch.setattr(enterprise_linux, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(enterprise_linux, "run", found.run)
    return found


def test_a_feature_of_authselect_comes_and_goes_and_the_profile_stays(programs: Programs) -> None:
    path = programs.folder / "authselect.conf"
    path.write_text(before := "sssd\nwith-silent-lastlog\n")
    setting = Authselect("with-faillock")
    state = setting.read()
    assert (setting.obstacle(), setting.settled()) == (None, False)
    setting.apply()
    assert (setting.settled(), path.read_text()) == (True, f"{before}with-faillock\n")
    setting.restore(state)
    assert path.read_text() == before


def test_a_feature_that_was_there_stays(programs: Programs) -> None:
    path = programs.folder / "authselect.conf"
    path.write_text("sssd\nwith-faillock\n")
    setting = Authselect("with-faillock")
    assert setting.settled()
    setting.restore(setting.read())
    assert path.read_text() == "sssd\nwith-faillock\n"


def test_stacks_that_authselect_does_not_keep_are_refused(programs: Programs) -> None:
    setting = Authselect("with-faillock")
    assert "names no profile" in (setting.obstacle() or "")
    (programs.folder / "authselect.conf").write_text("custom/site\n")
    programs.features = "with-mkhomedir\n"
    assert "has no feature with-faillock" in (setting.obstacle() or "")
