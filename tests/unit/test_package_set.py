"""Packages reach their versions in one transaction of the real apt and dpkg, in a root of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import apt

from tests.unit.apt_machine import Archive, Machine
from tests.unit.each import each
from tests.unit.needs import root_and

Run = Callable[..., dict[str, Any]]


pytestmark = [
    pytest.mark.component,
    root_and("apt-get", "dpkg-deb"),
]
DRIVER = {"nvidia-driver-cuda": "580-1", "nvidia-kernel-open-dkms": "580-1"}


def test_a_bare_machine_gets_the_set_and_holds_it(settle: Run, machine: Machine) -> None:
    result = settle(DRIVER, ["linux-headers-amd64"], hold_versions=["580-1"])
    expected = DRIVER | {"libcuda1": "580-1", "linux-headers-amd64": "6.1"}
    assert machine.versions() == expected
    assert (result["changed"], result["installed"]) == (True, expected)
    assert machine.held() == result["held"] == ["libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"]


def test_the_second_run_changes_nothing(settle: Run, machine: Machine) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    before = machine.snapshot()
    assert not settle(DRIVER, hold_versions=["580-1"])["changed"]
    assert machine.snapshot() == before


@pytest.mark.parametrize("version", ["550-1", "595-1"], ids=["downgrade", "upgrade"])
def test_held_packages_move_together_to_another_version(settle: Run, machine: Machine, version: str) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    machine.pin(version)
    # libcuda1 is not listed, and held at the old version: apt must still move it.
    result = settle(dict.fromkeys(DRIVER, version), hold_versions=[version])
    assert result["installed"] == machine.versions() == dict.fromkeys(["libcuda1", *DRIVER], version)
    assert machine.held() == ["libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"]


def test_a_hold_that_somebody_took_away_is_set_again(settle: Run, machine: Machine) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    machine.run("apt-mark", "unhold", "libcuda1")
    result = settle(DRIVER, hold_versions=["580-1"])
    assert (result["changed"], result["held"], result["installed"]) == (True, ["libcuda1"], {})
    assert "libcuda1" in machine.held()


def test_the_other_flavour_is_replaced(settle: Run, machine: Machine) -> None:
    machine.install("nvidia-kernel-dkms")
    settle(DRIVER)
    assert "nvidia-kernel-dkms" not in machine.versions()


@pytest.fixture
def desktop(machine: Machine) -> None:
    machine.install("desktop")


@each(
    ({"nvidia-hates-desktop": "1"}, "is refused, because it would remove desktop. Nothing was changed."),
    ({"nvidia-needs-kernel": "1"}, "because it would install another kernel (linux-image-6.99). Nothing was"),
    ({"libcuda1": "600-1"}, "Version '600-1' for 'libcuda1' was not found"),
    ({"nvidia-impossible": "1"}, "nvidia-impossible : Depends: libcuda1 (= 999-1)"),
)
def test_a_wish_that_cannot_be_or_is_a_danger_is_refused(
    wanted: dict[str, str], said: str, settle: Run, machine: Machine, desktop: None
) -> None:
    assert said in settle(wanted)["msg"]
    assert machine.versions() == {"desktop": "1"}


def test_a_repository_in_a_directory_is_read_without_copies(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    (machine.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{archive.path} ./\n")
    assert settle({"libcuda1": "580-1"})["installed"] == {"libcuda1": "580-1"}


def test_without_a_version_what_is_offered_is_installed_and_held(settle: Run, machine: Machine) -> None:
    assert settle({"libcuda1": ""})["installed"] == {"libcuda1": "580-1"}
    assert machine.held() == ["libcuda1"]
    machine.pin("595-1")
    assert not settle({"libcuda1": ""})["changed"]


def test_without_a_version_the_siblings_are_held_too(settle: Run, machine: Machine) -> None:
    settle({"nvidia-driver-cuda": ""})
    assert machine.versions()["libcuda1"] == machine.versions()["nvidia-driver-cuda"]
    assert machine.held() == ["libcuda1", "nvidia-driver-cuda"]


def test_what_somebody_else_holds_is_not_moved(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    machine.run("apt-mark", "hold", "libcuda1")
    message = settle(DRIVER)["msg"]
    assert "it would change libcuda1, which somebody holds" in message
    assert machine.versions() == {"libcuda1": "550-1"}


def test_what_is_only_suggested_stays_away_whatever_the_site_wants_of_apt(
    settle: Run, machine: Machine, tmp_path: Path
) -> None:
    own = Archive(tmp_path / "own")
    own.add("daemon", "1", Suggests="editor", Recommends="viewer")
    for name in ("editor", "viewer"):
        own.add(name, "1")
    machine.use(own)
    wants = 'APT::Install-Suggests "true";\nAPT::Install-Recommends "true";\n'
    (machine.root / "etc/apt/apt.conf.d/99site").write_text(wants)
    settle({}, ["daemon"])
    assert machine.versions() == {"daemon": "1"}


@pytest.mark.parametrize("refresh", [True, False])
def test_the_lists_are_read_again_only_when_a_repository_changed(
    settle: Run, machine: Machine, tmp_path: Path, refresh: bool
) -> None:
    changing = Archive(tmp_path / "archive")
    changing.add("libcuda1", "550-1")
    changing.add("libcuda1", "580-1")
    (machine.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] copy:{changing.path} ./\n")
    settle({"libcuda1": "550-1"})
    changing.add("libnccl2", "2.28-1")
    settle({"libcuda1": "580-1"}, refresh=refresh)
    lists = (path.read_text() for path in (machine.root / "var/lib/apt/lists").glob("*_Packages"))
    assert any("Package: libnccl2" in text for text in lists) == refresh


def test_a_repository_that_cannot_be_read_stops_the_run(settle: Run, machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list").write_text("deb [trusted=yes] copy:/nowhere ./\n")
    message = settle(DRIVER)["msg"]
    assert message.startswith("Reading the package lists (apt-get update) failed: ")
    assert "/nowhere" in message


def with_dead_source(machine: Machine) -> None:
    path = machine.root / "etc/apt/sources.list"
    path.write_text(path.read_text() + "deb [trusted=yes] copy:/nowhere ./\n")


def test_a_dead_repository_of_somebody_else_is_a_warning(settle: Run, machine: Machine) -> None:
    with_dead_source(machine)
    result = settle(DRIVER, refresh=True)
    assert "/nowhere" in str(result["warnings"])
    assert machine.versions() == DRIVER | {"libcuda1": "580-1"}


def with_hook(machine: Machine, name: str) -> None:
    text = f'APT::Update::{name} {{ "echo no database >&2; exit 1"; }};\n'
    (machine.root / "etc/apt/apt.conf.d/50hook").write_text(text)


@pytest.mark.parametrize("name", ["Post-Invoke", "Post-Invoke-Success"])
def test_a_hook_that_fails_once_the_lists_are_read_is_a_warning(
    name: str, settle: Run, machine: Machine
) -> None:
    with_hook(machine, name)
    result = settle(DRIVER, refresh=True)
    assert f"APT::Update::{name}" in str(result["warnings"])
    assert machine.versions() == DRIVER | {"libcuda1": "580-1"}


def test_a_hook_that_keeps_the_lists_from_being_read_stops_the_run(settle: Run, machine: Machine) -> None:
    with_hook(machine, "Pre-Invoke")
    assert "APT::Update::Pre-Invoke" in settle(DRIVER, refresh=True)["msg"]
    assert machine.versions() == {}


def test_a_dead_repository_of_ours_stops_the_run_though_another_offers_all(
    settle: Run, machine: Machine
) -> None:
    with_dead_source(machine)
    ours = machine.root / "etc/apt/sources.list.d/temper-x.sources"
    ours.write_text("Types: deb\nURIs: copy:/nowhere-ours\nSuites: ./\nTrusted: yes\n")
    assert "Reading the package lists (apt-get update) failed: " in settle(DRIVER, refresh=True)["msg"]
    assert machine.versions() == {}


def test_check_mode_says_what_would_be_installed_and_changes_nothing(settle: Run, machine: Machine) -> None:
    before = machine.snapshot()
    result = settle(DRIVER, ["linux-headers-amd64"], check_mode=True)
    assert (result["changed"], result["installed"]) == (True, DRIVER)
    assert result["diff"][0]["after"].splitlines() == [
        "linux-headers-amd64",
        "nvidia-driver-cuda=580-1",
        "nvidia-kernel-open-dkms=580-1",
    ]
    assert machine.snapshot() == before


def test_check_mode_takes_no_hold(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=580-1")
    assert settle({"libcuda1": "580-1"}, check_mode=True)["held"] == ["libcuda1"]
    assert machine.held() == []


def test_what_apt_leaves_undone_is_not_called_done(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "INSTALL", [*apt.INSTALL, "--download-only"])
    assert "still not installed as wanted: libcuda1=580-1" in settle({"libcuda1": "580-1"})["msg"]
