"""Files that a site has as links into a tree of its own are refused by name, and never replaced."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.settings import programs
from ansible.module_utils.temper.settings.files import Keyword, WholeFile

from tests.unit.needs import root_and
from tests.unit.settings.role_plans import item, role_plan


@pytest.fixture
def link(tmp_path: Path) -> Path:
    target = tmp_path / "managed/login.defs"
    target.parent.mkdir()
    target.write_text("UMASK 022\nOTHER 1\n")
    link = tmp_path / "login.defs"
    link.symlink_to("managed/login.defs")
    return link


def test_a_keyword_in_a_file_that_is_a_link_is_not_set_by_a_file_in_its_place(link: Path) -> None:
    said = Keyword(str(link), "UMASK", "027").obstacle()
    assert said is not None
    assert said.startswith(f"{link}: expected a file, found a link to managed/login.defs")
    assert Keyword(str(link.resolve()), "UMASK", "027").obstacle() is None


def test_what_is_in_the_place_of_a_file_of_ours_is_named_before_anything_is_changed(
    link: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, found in ((link, "a link to managed/login.defs"), (folder, "something else")):
        said = WholeFile(str(path), "ours\n").obstacle()
        assert said is not None
        assert said.startswith(f"{path}: expected a file, found {found}")


def test_nothing_is_in_the_way_of_a_file_that_is_there_or_a_link_that_shall_go(
    link: Path, tmp_path: Path
) -> None:
    for path, content in ((link.resolve(), "ours\n"), (tmp_path / "none", "ours\n"), (link, None)):
        assert WholeFile(str(path), content).obstacle() is None


@root_and()
@pytest.mark.component
def test_preflight_is_told_with_the_control_that_may_be_waived(link: Path) -> None:
    wanted: dict[str, Any] = item("file", str(link), {"content": "ours\n"}, "banner")
    (refused,) = programs.ask([role_plan("os_hardening", [wanted], atomic=True)]).refused
    assert "a link to managed/login.defs" in refused["said"]
    assert "banner (os_hardening_waivers)" in refused["said"]
    assert refused["advises"]


@root_and()
def test_a_link_that_a_site_has_put_in_the_place_of_ours_keeps_nothing_from_being_taken_back(
    carry_out: Any, tmp_path: Path
) -> None:
    """As it masks a drop-in."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    carry_out("os_hardening", [item("file", str(one), {"content": "ours\n"}) for one in (ours, other)])
    ours.unlink()
    ours.symlink_to("/dev/null")
    assert not carry_out("os_hardening", [], absent=True).get("failed")
    assert not other.exists()
