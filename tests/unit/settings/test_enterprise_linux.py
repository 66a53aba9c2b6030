"""What only Enterprise Linux has: authselect, crypto policies and SELinux, as their manuals describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible.module_utils.temper.files import saved
from ansible.module_utils.temper.settings import enterprise_linux
from ansible.module_utils.temper.settings.enterprise_linux import Authselect, CryptoPolicy, SelinuxMode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FEATURES = "with-faillock\nwith-mkhomedir\nwith-silent-lastlog\n"


class Programs:
    """authselect and update-crypto-policies, as far as their published interface is used."""

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
            case ["update-crypto-policies", "--set", policy]:
                (self.folder / "policy").write_text(f"{policy}\n")
        return ""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path)
    monkeypatch.setattr(enterprise_linux, "AUTHSELECT", tmp_path / "authselect.conf")
    monkeypatch.setattr(enterprise_linux, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(enterprise_linux, "SELINUX", tmp_path / "enforce")
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


def test_a_module_comes_behind_the_sites_policy_and_the_file_is_restored(programs: Programs) -> None:
    path = programs.folder / "policy"
    path.write_text(before := "# Of the site.\nFIPS:OSPP\n")
    setting = CryptoPolicy("TEMPER")
    state = setting.read()
    setting.apply()
    assert (path.read_text(), setting.settled()) == ("FIPS:OSPP:TEMPER\n", True)
    setting.restore(state)
    assert (path.read_text(), programs.ran[-1]) == (before, "update-crypto-policies")


def test_a_policy_that_the_site_has_chosen_since_stays(programs: Programs) -> None:
    path = programs.folder / "policy"
    path.write_text("DEFAULT\n")
    state = saved(path)
    path.write_text("FUTURE:TEMPER\n")
    CryptoPolicy("TEMPER").restore(state)
    assert path.read_text() == "FUTURE\n"


def test_a_policy_that_takes_what_is_weak_is_a_fault(programs: Programs) -> None:
    path = programs.folder / "policy"
    path.write_text("LEGACY:TEMPER\n")
    assert CryptoPolicy("TEMPER").fault()
    path.write_text("DEFAULT:TEMPER\n")
    assert CryptoPolicy("TEMPER").fault() is None


#: What runs (None: no SELinux), the file before, the file after, and whether a boot is due.
MODES = [
    ("1", "enforcing", "enforcing", False),
    ("0", "permissive", "enforcing", True),
    (None, "disabled", "permissive", True),
    (None, "permissive", "permissive", True),
    (None, "enforcing", "enforcing", True),
]


def test_selinux_is_set_for_the_next_boot_one_step_at_a_time(programs: Programs) -> None:
    wrong = []
    for running, before, after, due in MODES:
        if running is None:
            (programs.folder / "enforce").unlink(missing_ok=True)
        else:
            (programs.folder / "enforce").write_text(running)
        path = programs.folder / "config"
        path.write_text(original := f"# SELINUX= can take one of these three values:\nSELINUX={before}\n")
        setting = SelinuxMode(str(path), "SELINUX", "enforcing")
        setting.order = "enforcing > permissive > disabled"
        state = setting.read()
        if not setting.settled():
            setting.apply()
        found = path.read_text().splitlines()[-1], bool(setting.fault()), bool(setting.warnings())
        setting.restore(state)
        if found != (f"SELINUX={after}", due, due) or path.read_text() != original:
            wrong.append((running, before, found))
    assert wrong == []
    assert programs.ran == []
