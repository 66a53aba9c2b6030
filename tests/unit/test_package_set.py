"""Packages reach their versions in one transaction of the real apt and dpkg, in a root of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import package_set
import pytest
from ansible.module_utils import apt, dkms, packages, repositories
from ansible.module_utils.apt import Apt
from ansible.module_utils.packages import Package, Wish

from tests.unit.apt_machine import Archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.unit.apt_machine import Machine

    Run = Callable[..., dict[str, Any]]

needs_apt = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb"))),
    reason="needs root and Debian's package tools",
)
DRIVER = {"nvidia-driver-cuda": "580-1", "nvidia-kernel-open-dkms": "580-1"}


# ---------------------------------------------------------------- pure functions


def installed(name: str, version: str, want: str = "install") -> dict[str, Package]:
    return {name: Package(name, version, want, "installed")}


def test_a_line_of_dpkg_is_a_package() -> None:
    known = packages.parse_dpkg("libcuda1\t580-1\thold\tinstalled\nvim\t9\tdeinstall\tconfig-files\n")
    assert known["libcuda1"].installed
    assert known["libcuda1"].held
    assert not known["vim"].installed
    assert not known["vim"].broken


@pytest.mark.parametrize("status", ["half-installed", "unpacked", "half-configured", "triggers-pending"])
def test_a_package_that_stopped_half_way_is_broken(status: str) -> None:
    package = packages.parse_dpkg(f"libcuda1\t580-1\tinstall\t{status}\n")["libcuda1"]
    assert package.broken
    assert not package.installed


@pytest.mark.parametrize("reverse", [False, True])
def test_of_two_architectures_the_installed_one_counts(reverse: bool) -> None:
    lines = ["libc6\t2\tinstall\tinstalled\n", "libc6\t1\tdeinstall\tconfig-files\n"]
    assert packages.parse_dpkg("".join(reversed(lines) if reverse else lines))["libc6"].version == "2"


@pytest.mark.parametrize("reverse", [False, True])
def test_another_architecture_of_a_package_is_held_apart(reverse: bool) -> None:
    lines = [
        "libcuda1\t580-1\thold\tinstalled\tamd64\n",
        "libcuda1\t580-1\tinstall\tinstalled\ti386\n",
        "nvidia-common\t580-1\thold\tinstalled\tall\n",
    ]
    known = packages.parse_dpkg("".join(reversed(lines) if reverse else lines), "amd64")
    assert packages.to_hold({"libcuda1": "580-1"}, [], known) == ["libcuda1:i386"]
    known["libcuda1:i386"] = Package("libcuda1:i386", "580-1", "hold", "installed")
    assert packages.to_hold({"libcuda1": "580-1"}, ["580-1"], known) == []


@pytest.mark.parametrize(
    "name",
    [
        "cuda-toolkit-13-0",
        "cudnn9-cuda-13",
        "datacenter-gpu-manager-4-core",
        "firmware-nvidia-gsp",
        "libcuda1",
        "libcudnn9-cuda-13",
        "libnccl2",
        "libnvidia-ml1",
        "libnvsdm",
        "nvidia-kernel-open-dkms",
        "nvlsm",
    ],
)
def test_names_of_the_family(name: str) -> None:
    assert packages.FAMILY.match(name)


@pytest.mark.parametrize("name", ["barracuda-agent", "libcuda1-mock", "nvlsm-tools", "xnvidia-x", "libc6"])
def test_names_of_others(name: str) -> None:
    assert not packages.FAMILY.match(name)


def test_only_what_differs_is_asked_for() -> None:
    known = installed("a", "1") | installed("b", "1") | installed("headers", "7")
    known["c"] = Package("c", "1", "deinstall", "config-files")
    wish = Wish({"a": "1", "b": "2", "c": "1", "d": "1"}, ["headers", "missing"])
    assert wish.lacking(known) == {"missing": "", "b": "2", "c": "1", "d": "1"}


def test_any_version_meets_a_wish_for_none_in_particular() -> None:
    assert Wish({"a": "", "b": ""}).lacking(installed("a", "7")) == {"b": ""}


def test_the_listed_packages_and_their_siblings_are_held() -> None:
    known = (
        installed("nvidia-driver-cuda", "580-1")
        | installed("libnvidia-ml1", "580-1")
        | installed("libcuda1", "580-1", want="hold")
        | installed("libnccl2", "2.28-1")
        | installed("libnccl-dev", "2.28-1")
        | installed("unrelated", "580-1")
    )
    known["nvidia-modprobe"] = Package("nvidia-modprobe", "580-1", "deinstall", "config-files")
    holds = packages.to_hold({"nvidia-driver-cuda": "580-1", "libnccl2": "2.28-1"}, ["580-1"], known)
    assert holds == ["libnccl2", "libnvidia-ml1", "nvidia-driver-cuda"]


SIMULATION = """\
Reading package lists...
Remv nvidia-kernel-dkms [550-1]
Inst nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
Inst linux-headers-amd64 (6.1 Debian:12 [amd64])
Conf nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
"""


def dangers(
    simulation: str,
    asked: Iterable[str] = (),
    known: dict[str, Package] | None = None,
    ours: Iterable[str] = (),
) -> list[str]:
    return packages.dangers(Apt().parse(simulation), list(asked), known or {}, set(ours))


def test_the_other_flavour_of_the_modules_may_give_way() -> None:
    assert dangers(SIMULATION, ["nvidia-kernel-open-dkms"]) == []


def test_removing_anything_else_is_a_danger() -> None:
    simulation = SIMULATION + "Remv docker-ce [5:29]\nRemv openssh-server [1:9.2]\n"
    assert dangers(simulation) == ["it would remove docker-ce, openssh-server"]


def test_a_kernel_that_nobody_asked_for_is_a_danger() -> None:
    simulation = SIMULATION + "Inst linux-image-6.12.0-1-amd64 (6.12 Debian:12 [amd64])\n"
    assert dangers(simulation, ["a"]) == ["it would install another kernel (linux-image-6.12.0-1-amd64)"]
    assert dangers(simulation, ["linux-image-6.12.0-1-amd64"]) == []


def test_changing_what_somebody_else_holds_is_a_danger() -> None:
    known = installed("linux-headers-amd64", "6.0", want="hold")
    refusal = ["it would change linux-headers-amd64, which somebody holds"]
    assert dangers(SIMULATION, known=known) == refusal
    # Two wishes of people against each other: that is for them to decide.
    assert dangers(SIMULATION, ["linux-headers-amd64"], known) == refusal


def test_changing_what_temper_holds_is_none() -> None:
    known = installed("nvidia-kernel-open-dkms", "570-1", want="hold")
    assert dangers(SIMULATION, known=known, ours=known) == []
    assert dangers(SIMULATION, known=known) == [
        "it would change nvidia-kernel-open-dkms, which somebody holds"
    ]


# ---------------------------------------------------------------- the whole module, with a real apt


@pytest.fixture
def settle(run_module: Run) -> Run:
    def run(wanted: dict[str, str], present: Iterable[str] = (), **parameters: Any) -> dict[str, Any]:
        return run_module(package_set.main, packages=wanted, present=list(present), **parameters)

    return run


@needs_apt
def test_a_bare_machine_gets_the_set_and_holds_it(settle: Run, machine: Machine) -> None:
    result = settle(DRIVER, ["linux-headers-amd64"], hold_versions=["580-1"])
    expected = DRIVER | {"libcuda1": "580-1", "linux-headers-amd64": "6.1"}
    assert machine.versions() == expected
    assert (result["changed"], result["installed"]) == (True, expected)
    assert machine.held() == result["held"] == ["libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"]


@needs_apt
def test_the_second_run_changes_nothing(settle: Run, machine: Machine) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    before = machine.snapshot()
    assert not settle(DRIVER, hold_versions=["580-1"])["changed"]
    assert machine.snapshot() == before


@needs_apt
@pytest.mark.parametrize("version", ["550-1", "595-1"], ids=["downgrade", "upgrade"])
def test_held_packages_move_together_to_another_version(settle: Run, machine: Machine, version: str) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    machine.pin(version)
    # libcuda1 is not listed, and held at the old version: apt must still move it.
    result = settle(dict.fromkeys(DRIVER, version), hold_versions=[version])
    assert result["installed"] == machine.versions() == dict.fromkeys(["libcuda1", *DRIVER], version)
    assert machine.held() == ["libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"]


@needs_apt
def test_a_hold_that_somebody_took_away_is_set_again(settle: Run, machine: Machine) -> None:
    settle(DRIVER, hold_versions=["580-1"])
    machine.run("apt-mark", "unhold", "libcuda1")
    result = settle(DRIVER, hold_versions=["580-1"])
    assert (result["changed"], result["held"], result["installed"]) == (True, ["libcuda1"], {})
    assert "libcuda1" in machine.held()


@needs_apt
def test_the_other_flavour_is_replaced(settle: Run, machine: Machine) -> None:
    machine.install("nvidia-kernel-dkms")
    settle(DRIVER)
    assert "nvidia-kernel-dkms" not in machine.versions()


@needs_apt
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nvidia-hates-desktop", "it would remove desktop"),
        ("nvidia-needs-kernel", "it would install another kernel (linux-image-6.99)"),
    ],
)
def test_a_dangerous_transaction_is_refused(settle: Run, machine: Machine, name: str, reason: str) -> None:
    machine.install("desktop")
    result = settle({name: "1"})
    assert f"The transaction is refused, because {reason}. Nothing was changed." in result["msg"]
    assert machine.versions() == {"desktop": "1"}


@needs_apt
def test_a_version_that_no_repository_has_is_named(settle: Run, machine: Machine) -> None:
    message = settle({"libcuda1": "600-1"})["msg"]
    assert "Version '600-1' for 'libcuda1' was not found" in message
    assert machine.versions() == {}


@needs_apt
def test_a_dependency_that_cannot_be_met_is_named(settle: Run, machine: Machine) -> None:
    message = settle({"nvidia-impossible": "1"})["msg"]
    assert "nvidia-impossible : Depends: libcuda1 (= 999-1)" in message
    assert machine.versions() == {}


def audit(machine: Machine) -> str:
    """What dpkg would have somebody complete."""
    environment = os.environ | machine.environment
    return subprocess.run(["dpkg", "--audit"], env=environment, capture_output=True, text=True).stdout


@needs_apt
def test_an_installation_that_fails_says_why_and_is_undone(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=580-1")
    result = settle({"nvidia-fails": "1", "libnccl2": "2.28-1"})
    assert result["failed"]
    assert "Installing the packages failed: " in result["msg"]
    assert "nvidia-fails" in result["msg"]
    assert "The transaction was undone (2 package(s) that it had brought were removed again)" in result["msg"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert audit(machine) == ""


@needs_apt
def test_an_upgrade_that_fails_returns_to_the_versions_of_before(settle: Run, machine: Machine) -> None:
    settle(DRIVER | {"libnccl2": "2.28-1"}, hold_versions=["580-1"])
    before = machine.versions()
    machine.pin("595-1")
    wanted = dict.fromkeys(DRIVER, "595-1") | {"libnccl2": "2.30-1"}
    result = settle(wanted, hold_versions=["595-1"])
    assert "libnccl2 2.28-1" in result["msg"]
    assert "returned" in result["msg"]
    assert machine.versions() == before
    assert audit(machine) == ""


@needs_apt
def test_a_version_that_is_offered_no_more_is_not_called_returned(
    settle: Run, machine: Machine, tmp_path: Path
) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    newer = Archive(tmp_path / "newer")
    newer.add("libcuda1", "580-1")
    newer.add("nvidia-fails", "1", script="exit 1", Depends="libcuda1 (= 580-1)")
    machine.use(newer)
    message = settle({"nvidia-fails": "1", "libcuda1": "580-1"}, refresh=True)["msg"]
    assert (
        "The transaction was undone as far as possible (1 package(s) that it had brought were removed again, "
        "could not return to libcuda1 550-1), and apt works."
    ) in message
    assert machine.versions() == {"libcuda1": "580-1"}


@needs_apt
@pytest.mark.parametrize("while_ours", ["download", "reason"], ids=["downloads", "fails"])
def test_what_another_package_manager_did_meanwhile_stays(
    settle: Run, machine: Machine, archive: Archive, monkeypatch: pytest.MonkeyPatch, while_ours: str
) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    step = getattr(Apt, while_ours)

    def with_another(self: Apt, argument: Any) -> Any:
        for file in ("desktop_1.deb", "libcuda1_580-1.deb"):
            machine.run("dpkg", "--install", str(archive.path / file))
        return step(self, argument)

    monkeypatch.setattr(Apt, while_ours, with_another)
    assert "The transaction was undone" in settle({"nvidia-fails": "1"})["msg"]
    assert machine.versions() == {"libcuda1": "580-1", "desktop": "1"}


@needs_apt
def test_apt_works_after_an_installation_that_failed(settle: Run, machine: Machine) -> None:
    settle({"nvidia-fails": "1"})
    machine.install("desktop")
    assert machine.versions() == {"desktop": "1"}


@needs_apt
def test_a_module_that_does_not_build_is_reported_with_the_compilers_error(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dkms, "TREE", machine.root / "var/lib/dkms")
    monkeypatch.setattr(dkms, "KEPT_LOGS", machine.root / "var/log/temper")
    result = settle({"nvidia-kernel-broken-dkms": "1"})
    assert (
        "DKMS module nvidia/580.1 does not build for kernel 6.12.117+deb13-amd64: "
        "/var/lib/dkms/nvidia/580.1/build/nvidia/nv-pci.c:237:9: error: too few arguments to function "
        f"(the whole log is kept as {machine.root}/var/log/temper/dkms-nvidia-580.1.log)"
    ) in result["msg"]
    assert "nv-pci.o] Error 1" in (machine.root / "var/log/temper/dkms-nvidia-580.1.log").read_text()
    assert machine.versions() == {}
    assert audit(machine) == ""


@needs_apt
def test_a_transaction_in_which_dpkg_is_killed_is_undone(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    result = settle({"nvidia-killed": "1", "libcuda1": "580-1"})
    assert "The transaction was undone" in result["msg"]
    assert machine.versions() == {"libcuda1": "550-1"}
    assert audit(machine) == ""


@needs_apt
def test_a_full_disk_is_called_so(settle: Run, machine: Machine) -> None:
    assert "the disk is full (see `df -h / /var /boot` on the node)" in settle({"nvidia-full": "1"})["msg"]


@needs_apt
def test_what_had_failed_before_gives_way_to_what_is_wanted_now(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "nvidia-fails_1.deb"))
    assert settle({"libcuda1": "580-1"})["recovered"] == ["nvidia-fails"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert audit(machine) == ""


@needs_apt
def test_a_failing_package_of_somebody_else_is_left_to_them(
    settle: Run, machine: Machine, tmp_path: Path
) -> None:
    others = Archive(tmp_path / "others")
    others.add("database", "1", script="exit 1")
    machine.run("dpkg", "--unpack", str(others.path / "database_1.deb"))
    message = settle({"libcuda1": "580-1"})["msg"]
    assert "database are half-installed, and apt will complain of them" in message
    assert packages.query()["database"].broken


@needs_apt
def test_a_package_that_is_not_what_the_list_promises_installs_nothing(
    settle: Run, machine: Machine, tmp_path: Path
) -> None:
    changing = Archive(tmp_path / "changing")
    changing.add("libcuda1", "580-1")
    changing.add("libnccl2", "2.28-1")
    good = (changing.path / "libnccl2_2.28-1.deb").read_bytes()
    (changing.path / "libnccl2_2.28-1.deb").write_bytes(good[:-100] + b"x" * 100)
    machine.use(changing)
    wanted = {"libcuda1": "580-1", "libnccl2": "2.28-1"}
    message = settle(wanted)["msg"]
    assert message.startswith("Downloading the packages failed: ")
    assert "Hash Sum mismatch" in message
    assert machine.versions() == {}
    (changing.path / "libnccl2_2.28-1.deb").write_bytes(good)
    assert settle(wanted)["installed"] == machine.versions() == wanted


@needs_apt
def test_a_repository_in_a_directory_is_read_without_copies(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    (machine.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{archive.path} ./\n")
    assert settle({"libcuda1": "580-1"})["installed"] == {"libcuda1": "580-1"}


@needs_apt
def test_without_a_version_what_is_offered_is_installed_and_held(settle: Run, machine: Machine) -> None:
    assert settle({"libcuda1": ""})["installed"] == {"libcuda1": "580-1"}
    assert machine.held() == ["libcuda1"]
    machine.pin("595-1")
    assert not settle({"libcuda1": ""})["changed"]


@needs_apt
def test_without_a_version_the_siblings_are_held_too(settle: Run, machine: Machine) -> None:
    settle({"nvidia-driver-cuda": ""})
    assert machine.versions()["libcuda1"] == machine.versions()["nvidia-driver-cuda"]
    assert machine.held() == ["libcuda1", "nvidia-driver-cuda"]


@needs_apt
def test_what_somebody_else_holds_is_not_moved(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    machine.run("apt-mark", "hold", "libcuda1")
    message = settle(DRIVER)["msg"]
    assert "it would change libcuda1, which somebody holds" in message
    assert machine.versions() == {"libcuda1": "550-1"}


@needs_apt
def test_an_interrupted_installation_is_completed(settle: Run, machine: Machine, archive: Archive) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "libcuda1_580-1.deb"))
    result = settle({"libcuda1": "580-1"})
    assert result["recovered"] == ["libcuda1"]
    assert result["changed"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert machine.held() == ["libcuda1"]


@needs_apt
def test_an_installation_in_which_dpkg_was_killed_is_completed(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "libcuda1_580-1.deb"))
    # What dpkg had not yet merged into its status file; apt does nothing before that is done.
    database = machine.root / "var/lib/dpkg"
    shutil.copy(database / "status", database / "updates" / "0001")
    settle({"libcuda1": "580-1"})
    assert machine.versions() == {"libcuda1": "580-1"}


@needs_apt
def test_a_package_without_its_dependency_gets_it(settle: Run, machine: Machine, archive: Archive) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "nvidia-driver-cuda_580-1.deb"))
    settle({"nvidia-driver-cuda": "580-1"})
    assert machine.versions() == {"nvidia-driver-cuda": "580-1", "libcuda1": "580-1"}


@needs_apt
def test_completing_an_installation_removes_nothing_of_others(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "plugin_1.deb"))
    assert "it would remove plugin" in settle({"libcuda1": "580-1"})["msg"]


@needs_apt
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


@needs_apt
def test_a_repository_that_cannot_be_read_stops_the_run(settle: Run, machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list").write_text("deb [trusted=yes] copy:/nowhere ./\n")
    message = settle(DRIVER)["msg"]
    assert message.startswith("Reading the package lists (apt-get update) failed: ")
    assert "/nowhere" in message


def with_dead_source(machine: Machine) -> None:
    path = machine.root / "etc/apt/sources.list"
    path.write_text(path.read_text() + "deb [trusted=yes] copy:/nowhere ./\n")


@needs_apt
def test_a_dead_repository_of_somebody_else_is_a_warning(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")
    with_dead_source(machine)
    result = settle(DRIVER, refresh=True)
    assert "/nowhere" in str(result["warnings"])
    assert machine.versions() == DRIVER | {"libcuda1": "580-1"}


@needs_apt
def test_a_dead_repository_of_ours_stops_the_run_though_another_offers_all(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")
    with_dead_source(machine)
    ours = machine.root / "etc/apt/sources.list.d/temper-x.sources"
    ours.write_text("Types: deb\nURIs: copy:/nowhere-ours\nSuites: ./\nTrusted: yes\n")
    assert "Reading the package lists (apt-get update) failed: " in settle(DRIVER, refresh=True)["msg"]
    assert machine.versions() == {}


@needs_apt
def test_check_mode_says_what_would_be_installed_and_changes_nothing(settle: Run, machine: Machine) -> None:
    before = machine.snapshot()
    result = settle(DRIVER, ["linux-headers-amd64"], check_mode=True)
    assert (result["changed"], result["installed"]) == (True, DRIVER)
    assert result["diff"]["after"].splitlines() == [
        "linux-headers-amd64",
        "nvidia-driver-cuda=580-1",
        "nvidia-kernel-open-dkms=580-1",
    ]
    assert machine.snapshot() == before


@needs_apt
def test_check_mode_takes_no_hold(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=580-1")
    assert settle({"libcuda1": "580-1"}, check_mode=True)["held"] == ["libcuda1"]
    assert machine.held() == []


@needs_apt
def test_what_apt_leaves_undone_is_not_called_done(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "INSTALL", [*apt.INSTALL, "--download-only"])
    assert "still not installed as wanted: libcuda1=580-1" in settle({"libcuda1": "580-1"})["msg"]
