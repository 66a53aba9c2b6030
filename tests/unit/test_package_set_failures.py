"""What fails is undone or completed, said with its cause, and leaves apt working."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import apt, dkms, packages
from ansible.module_utils.temper.packaging.apt import Apt

from tests.unit.apt_machine import Archive, Machine, holding
from tests.unit.each import each
from tests.unit.needs import root_and

Run = Callable[..., dict[str, Any]]


pytestmark = [
    pytest.mark.component,
    root_and("apt-get", "dpkg-deb"),
]
DRIVER = {"nvidia-driver-cuda": "580-1", "nvidia-kernel-open-dkms": "580-1"}


def audit(machine: Machine) -> str:
    """What dpkg would have somebody complete."""
    environment = os.environ | machine.environment
    return subprocess.run(["dpkg", "--audit"], env=environment, capture_output=True, text=True).stdout


def test_an_installation_that_fails_says_why_and_is_undone(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=580-1")
    result = settle({"nvidia-fails": "1", "libnccl2": "2.28-1"})
    assert result["failed"]
    assert "Installing the packages failed: " in result["msg"]
    assert "nvidia-fails" in result["msg"]
    assert "it went wrong" in result["msg"]
    assert "The transaction was undone (2 package(s) that it had brought were removed again)" in result["msg"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert audit(machine) == ""
    machine.install("desktop")
    assert machine.versions() == {"libcuda1": "580-1", "desktop": "1"}


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


def test_a_transaction_in_which_dpkg_is_killed_is_undone(settle: Run, machine: Machine) -> None:
    machine.install("libcuda1=550-1", "--allow-downgrades")
    result = settle({"nvidia-killed": "1", "libcuda1": "580-1"})
    assert "The transaction was undone" in result["msg"]
    assert machine.versions() == {"libcuda1": "550-1"}
    assert audit(machine) == ""


def test_what_dpkg_had_only_in_its_journal_is_completed_first(settle: Run, machine: Machine) -> None:
    """Killed between two packages: none is half-way."""
    machine.install("libcuda1=550-1", "--allow-downgrades")
    dpkg = machine.root / "var/lib/dpkg"
    (dpkg / "updates/0000").write_text((dpkg / "status").read_text())
    assert settle({"libcuda1": "580-1"})["recovered"] == []
    assert machine.versions() == {"libcuda1": "580-1"}
    assert audit(machine) == ""


def test_a_full_disk_is_called_so(settle: Run, machine: Machine) -> None:
    assert "the disk is full (see `df -h / /var /boot` on the node)" in settle({"nvidia-full": "1"})["msg"]


# apt itself waits for dpkg's lock alone.
LISTS, ARCHIVES = "var/lib/apt/lists/lock", "var/cache/apt/archives/lock"


def test_who_holds_dpkgs_lock_is_said(settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "LOCK_TIMEOUT_S", 1)
    with holding(machine.root / "var/lib/dpkg/lock-frontend") as other:
        result = settle(DRIVER)
    assert f"It is held by process {other.pid} (py" in result["msg"]
    assert result["msg"].endswith("Nothing was installed; run again when the lock is free.")
    assert machine.versions() == {}


def test_another_apt_that_reads_or_downloads_is_waited_for(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    with holding(machine.root / LISTS) as reads, holding(machine.root / ARCHIVES) as downloads:
        waiting = [downloads, reads]

        def end_one(seconds: float) -> None:
            other = waiting.pop()
            other.kill()
            other.wait()
            ended.append(other)

        monkeypatch.setattr(time, "sleep", end_one)
        settle(DRIVER, refresh=True)
    assert ended == [reads, downloads]
    assert machine.versions() == DRIVER | {"libcuda1": "580-1"}


@each(LISTS, ARCHIVES)
def test_another_apt_is_not_waited_for_without_end(
    lock: str, settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "LOCK_TIMEOUT_S", 0)
    with holding(machine.root / lock) as other:
        message = settle(DRIVER, refresh=True)["msg"]
    assert f"It is held by process {other.pid} (py" in message
    assert machine.versions() == {}


@each(LISTS, ARCHIVES)
def test_a_lock_that_cannot_be_opened_is_not_waited_for(lock: str, settle: Run, machine: Machine) -> None:
    """As where a disk is full or read-only: apt is not started again and again."""
    (machine.root / lock).unlink(missing_ok=True)
    (machine.root / lock).mkdir()
    assert "Could not open lock file" in settle(DRIVER, refresh=True)["msg"]
    (machine.root / lock).rmdir()


def test_a_lock_that_nobody_holds_has_no_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert apt.lock_holder(tmp_path / "lock") == apt.lock_holder(tmp_path / "none") == ""


def test_what_had_failed_before_gives_way_to_what_is_wanted_now(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "nvidia-fails_1.deb"))
    assert settle({"libcuda1": "580-1"})["recovered"] == ["nvidia-fails"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert audit(machine) == ""


def test_a_failing_package_of_somebody_else_is_left_to_them(
    settle: Run, machine: Machine, tmp_path: Path
) -> None:
    others = Archive(tmp_path / "others")
    others.add("database", "1", script="exit 1")
    machine.run("dpkg", "--unpack", str(others.path / "database_1.deb"))
    message = settle({"libcuda1": "580-1"})["msg"]
    assert "database are half-installed, and apt will complain of them" in message
    assert packages.query()["database"].broken


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


def test_an_interrupted_installation_is_completed(settle: Run, machine: Machine, archive: Archive) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "libcuda1_580-1.deb"))
    result = settle({"libcuda1": "580-1"})
    assert result["recovered"] == ["libcuda1"]
    assert result["changed"]
    assert machine.versions() == {"libcuda1": "580-1"}
    assert machine.held() == ["libcuda1"]


def test_an_installation_in_which_dpkg_was_killed_is_completed(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "libcuda1_580-1.deb"))
    # What dpkg had not yet merged into its status file; apt does nothing before that is done.
    database = machine.root / "var/lib/dpkg"
    shutil.copy(database / "status", database / "updates" / "0001")
    settle({"libcuda1": "580-1"})
    assert machine.versions() == {"libcuda1": "580-1"}


def test_a_package_without_its_dependency_gets_it(settle: Run, machine: Machine, archive: Archive) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "nvidia-driver-cuda_580-1.deb"))
    settle({"nvidia-driver-cuda": "580-1"})
    assert machine.versions() == {"nvidia-driver-cuda": "580-1", "libcuda1": "580-1"}


def test_completing_an_installation_removes_nothing_of_others(
    settle: Run, machine: Machine, archive: Archive
) -> None:
    machine.run("dpkg", "--unpack", str(archive.path / "plugin_1.deb"))
    assert "it would remove plugin" in settle({"libcuda1": "580-1"})["msg"]


def test_holds_of_a_run_that_was_cut_off_are_known_as_ours(
    settle: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Apt.hold

    def die(self: Apt, names: Sequence[str]) -> None:
        hold(self, names)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Apt, "hold", die)
        settle(DRIVER)
    machine.pin("595-1")
    newer = dict.fromkeys(DRIVER, "595-1")
    assert settle(newer)["installed"].keys() >= newer.keys()
