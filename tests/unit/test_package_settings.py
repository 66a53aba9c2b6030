"""Packages and repositories as settings: items fold, dpkg is asked once, and what is undone."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.temper.packaging import node, packages, repositories
from ansible.module_utils.temper.packaging.node import PackageState
from ansible.module_utils.temper.packaging.package_settings import PackageSet
from ansible.module_utils.temper.packaging.packages import Package, Wish
from ansible.module_utils.temper.packaging.repository_settings import Repositories
from ansible.module_utils.temper.settings.base import SettingError

from tests.unit.apt_machine import Archive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.apt_machine import Machine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb"))),
    reason="needs root and Debian's package tools",
)
ITEMS: dict[str, Any] = {
    "package:libcuda1": {"version": "580-1", "held": True},
    "package:desktop": {"version": "", "held": False},
    "hold_version:580-1": True,
    "pin:libcuda1 nvidia-*": {"version": "580-1"},
}


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    node.NODE.forget()
    node.NODE.lists_outdated = False


def made(items: dict[str, Any]) -> PackageSet:
    setting = PackageSet.from_items(items, {})
    if not setting.settled():
        setting.apply()
    return setting


@pytest.mark.component
def test_items_fold_into_one_transaction(machine: Machine) -> None:
    result = made(ITEMS).result()
    assert result["installed"] == machine.versions() == {"libcuda1": "580-1", "desktop": "1"}
    assert machine.held() == result["held"] == ["libcuda1"]


def test_a_package_of_another_version_is_told_with_the_one_that_is_there() -> None:
    known = {
        "a": Package("a", "2", "install", "installed"),
        "b": Package("b", "", "deinstall", "not-installed"),
    }

    class Known(PackageState):
        def installed(self) -> dict[str, Package]:
            return known

    class Manager:
        def required(self) -> list[str]:
            return []

        def prepared(self) -> bool:
            return True

    setting = PackageSet(Wish({"a": "1", "b": "1"}, {}), manager=Manager(), state=Known())  # type: ignore[arg-type]
    (packages_, *_) = setting.change()
    assert packages_.before == "a=2\n"
    assert "a=1" in packages_.after
    assert "b=1" in packages_.after


def test_pins_and_module_streams_are_for_dnf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ansible.module_utils.temper.process.SYSTEM_PATH", str(tmp_path))
    stream = {"name": "nvidia-driver", "stream": "580-open"}
    manager = PackageSet.from_items(ITEMS | {"module_stream:nvidia-driver": stream}, {}).manager
    assert getattr(manager, "pins", None) == [{"packages": "libcuda1 nvidia-*", "version": "580-1"}]
    assert getattr(manager, "streams", None) == [stream]


@pytest.mark.component
def test_settled_sets_of_one_execution_ask_dpkg_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(ITEMS)
    asked: list[str] = []
    query = packages.query

    def counted() -> packages.Packages:
        asked.append("dpkg-query")
        return query()

    monkeypatch.setattr(packages, "query", counted)
    node.NODE.forget()
    for _ in range(3):
        setting = PackageSet.from_items(ITEMS, {})
        assert (setting.settled(), setting.read()["libcuda1"]["held"]) == (True, True)
    assert len(asked) == 1


@pytest.mark.component
def test_a_set_sees_what_another_one_has_installed(machine: Machine) -> None:
    later = PackageSet.from_items({"package:desktop": {"version": "", "held": False}}, {})
    assert not later.settled()
    made(ITEMS)
    assert later.settled()


@pytest.mark.component
def test_a_role_with_the_programs_it_needs_lets_somebody_elses_broken_package_be(
    machine: Machine, tmp_path: Path
) -> None:
    programs = {"package:desktop": ITEMS["package:desktop"]}
    made(programs)
    others = Archive(tmp_path / "others")
    others.add("database", "1", script="exit 1")
    machine.run("dpkg", "--unpack", str(others.path / "database_1.deb"))
    node.NODE.forget()
    assert PackageSet.from_items(programs, {}).settled()
    assert not PackageSet.from_items(ITEMS, {}).settled()


@pytest.mark.component
def test_libraries_are_to_be_proven_after_a_change_of_theirs(machine: Machine) -> None:
    made({"package:desktop": {"version": "", "held": False}})
    assert not node.unproven().exists()
    made(ITEMS)
    assert node.unproven().exists()


@pytest.mark.component
def test_packages_are_not_removed(machine: Machine) -> None:
    assert "does not remove packages" in str(PackageSet.from_items({"package:desktop": None}, {}).obstacle())


@pytest.mark.component
def test_holds_are_released_and_versions_that_stay_are_named(machine: Machine) -> None:
    setting = PackageSet.from_items(ITEMS, {})
    before = setting.read()
    setting.apply()
    with pytest.raises(SettingError, match=r"no way back.*libcuda1 \(was not installed\)"):
        setting.restore(before)
    assert machine.held() == []
    assert packages.recorded_holds() == set()


@pytest.mark.component
def test_holds_of_somebody_else_stay(machine: Machine) -> None:
    machine.install("libcuda1=580-1")
    setting = PackageSet(Wish({"libcuda1": "580-1"}), ["580-1"], state=PackageState())
    before = setting.read()
    setting.apply()
    machine.install("desktop")
    machine.run("apt-mark", "hold", "desktop")
    setting.restore(before)
    assert machine.held() == ["desktop"]


# ---------------------------------------------------------------- repositories


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(repositories, "APT", tmp_path / "apt")
    monkeypatch.setattr(repositories, "DNF_SOURCES", tmp_path / "yum.repos.d")
    monkeypatch.setattr(repositories, "DNF_KEYRINGS", tmp_path / "rpm-gpg")
    return tmp_path / "apt"


REPOSITORY = {"uri": "http://example.org/debian/", "signed_by": "/usr/share/keyrings/x.gpg", "exclude": ["x"]}


def written(apt: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in apt.rglob("*") if path.is_file()}


def test_an_item_needs_only_what_is_not_the_default(apt: Path) -> None:
    setting = Repositories.from_items({"gpu": REPOSITORY}, {})
    setting.apply()
    assert "Suites: /\n" in written(apt)["temper-gpu.sources"]
    assert setting.settled()
    assert node.NODE.lists_outdated


def test_a_repository_that_is_not_wanted_any_more_leaves_nothing(apt: Path) -> None:
    Repositories.from_items({"gpu": REPOSITORY}, {}).apply()
    Repositories.from_items({"gpu": None}, {}).apply()
    assert written(apt) == {}


def test_the_files_of_before_come_back(apt: Path) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    source.write_text("deb http://example.org/debian/ /\n")
    source.chmod(0o640)
    before = written(apt)
    setting = Repositories.from_items({"gpu": REPOSITORY | {"signed_by": "", "key_url": None}}, {})
    state = setting.read()
    setting.apply()
    setting.restore(state)
    assert written(apt) == before


def test_a_key_that_cannot_be_had_is_an_obstacle_unless_offline(apt: Path) -> None:
    unreachable = {
        "gpu": {"uri": "http://example.org/", "key_url": "file:///nowhere/key", "fingerprints": ["A" * 40]}
    }
    setting = Repositories.from_items(unreachable, {})
    assert "cannot be fetched" in str(setting.obstacle())
    assert not setting.settled()
    with pytest.raises(SettingError, match="cannot be fetched"):
        setting.apply()
    offline = Repositories.from_items(unreachable, {"check_mode": True})
    assert (offline.obstacle(), offline.settled()) == (None, False)
