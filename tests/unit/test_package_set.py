"""Packages reach their versions in one transaction of the real apt and dpkg, in a root of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import package_set
import pytest
from ansible.module_utils import packages as dpkg
from ansible.module_utils.packages import Package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

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
    known = dpkg.parse_dpkg("libcuda1\t580-1\thold\tinstalled\nvim\t9\tdeinstall\tconfig-files\n")
    assert known["libcuda1"].installed
    assert known["libcuda1"].held
    assert not known["vim"].installed
    assert not known["vim"].broken


@pytest.mark.parametrize("status", ["half-installed", "unpacked", "half-configured", "triggers-pending"])
def test_a_package_that_stopped_half_way_is_broken(status: str) -> None:
    package = dpkg.parse_dpkg(f"libcuda1\t580-1\tinstall\t{status}\n")["libcuda1"]
    assert package.broken
    assert not package.installed


@pytest.mark.parametrize("reverse", [False, True])
def test_of_two_architectures_the_installed_one_counts(reverse: bool) -> None:
    lines = ["libc6\t2\tinstall\tinstalled\n", "libc6\t1\tdeinstall\tconfig-files\n"]
    assert dpkg.parse_dpkg("".join(reversed(lines) if reverse else lines))["libc6"].version == "2"


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
    assert dpkg.FAMILY.match(name)


@pytest.mark.parametrize("name", ["barracuda-agent", "libcuda1-mock", "nvlsm-tools", "xnvidia-x", "libc6"])
def test_names_of_others(name: str) -> None:
    assert not dpkg.FAMILY.match(name)


def test_only_what_differs_is_asked_of_apt() -> None:
    known = installed("a", "1") | installed("b", "1") | installed("headers", "7")
    known["c"] = Package("c", "1", "deinstall", "config-files")
    wanted = {"a": "1", "b": "2", "c": "1", "d": "1"}
    assert package_set.differing(wanted, ["headers", "missing"], known) == ["b=2", "c=1", "d=1", "missing"]


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
    holds = package_set.to_hold({"nvidia-driver-cuda": "580-1", "libnccl2": "2.28-1"}, ["580-1"], known)
    assert holds == ["libnccl2", "libnvidia-ml1", "nvidia-driver-cuda"]


SIMULATION = """\
Reading package lists...
Remv nvidia-kernel-dkms [550-1]
Inst nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
Inst linux-headers-amd64 (6.1 Debian:12 [amd64])
Conf nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
"""


def test_the_other_flavour_of_the_modules_may_give_way() -> None:
    assert package_set.dangers(SIMULATION, ["nvidia-kernel-open-dkms=580-1"], {}) == []


def test_removing_anything_else_is_a_danger() -> None:
    simulation = SIMULATION + "Remv docker-ce [5:29]\nRemv openssh-server [1:9.2]\n"
    assert package_set.dangers(simulation, [], {}) == ["it would remove docker-ce, openssh-server"]


def test_a_kernel_that_nobody_asked_for_is_a_danger() -> None:
    simulation = SIMULATION + "Inst linux-image-6.12.0-1-amd64 (6.12 Debian:12 [amd64])\n"
    assert package_set.dangers(simulation, ["a=1"], {}) == [
        "it would install another kernel (linux-image-6.12.0-1-amd64)"
    ]
    assert package_set.dangers(simulation, ["linux-image-6.12.0-1-amd64"], {}) == []


def test_changing_what_somebody_else_holds_is_a_danger() -> None:
    known = installed("linux-headers-amd64", "6.0", want="hold")
    assert package_set.dangers(SIMULATION, [], known) == [
        "it would change linux-headers-amd64, which somebody holds"
    ]
    assert package_set.dangers(SIMULATION, ["linux-headers-amd64"], known) == []


# ---------------------------------------------------------------- the whole module, with a real apt


@dataclass(frozen=True)
class Archive:
    """A flat package repository of empty packages."""

    path: Path

    def add(self, name: str, version: str, script: str = "", **fields: str) -> None:
        """Publish a package; `fields` are those of its control file, `script` is its postinst."""
        tree = self.path / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        control = {
            "Package": name,
            "Version": version,
            "Architecture": "all",
            "Maintainer": "Nobody <nobody@example.org>",
            "Description": "empty",
        } | fields
        text = "".join(f"{key}: {value}\n" for key, value in control.items())
        (tree / "DEBIAN" / "control").write_text(text)
        if script:
            (tree / "DEBIAN" / "postinst").write_text(f"#!/bin/sh\n{script}\n")
            (tree / "DEBIAN" / "postinst").chmod(0o755)
        file = self.path / f"{name}_{version}.deb"
        subprocess.run(["dpkg-deb", "-Znone", "--build", tree, file], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        entry = f"{text}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {checksum}\n\n"
        with (self.path / "Packages").open("a") as index:
            index.write(entry)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    archive = Archive(tmp_path_factory.mktemp("archive"))
    for version in ("550-1", "580-1", "595-1"):
        archive.add("libcuda1", version)
        archive.add("nvidia-driver-cuda", version, Depends=f"libcuda1 (= {version})")
        archive.add("nvidia-kernel-open-dkms", version, Conflicts="nvidia-kernel-dkms")
    archive.add("nvidia-kernel-dkms", "550-1")
    archive.add("linux-headers-amd64", "6.1")
    archive.add("desktop", "1")
    archive.add("plugin", "1", Depends="vanished")
    archive.add("nvidia-needs-kernel", "1", Depends="linux-image-6.99")
    archive.add("linux-image-6.99", "6.99")
    archive.add("nvidia-hates-desktop", "1", Conflicts="desktop")
    archive.add("nvidia-impossible", "1", Depends="libcuda1 (= 999-1)")
    archive.add("nvidia-fails", "1", script="echo 'no space left on device' >&2; exit 1")
    return archive


class Machine:
    """A root directory that apt and dpkg work on instead of this machine's."""

    def __init__(self, root: Path, archive: Archive) -> None:
        self.root = root
        for directory in (
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/sources.list.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "var/log/apt",
        ):
            (root / directory).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] copy:{archive.path} ./\n")
        (root / "apt.conf").write_text(
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n'
        )
        # Scripts of the packages run without chroot: there is no shell in this root.
        (root / ".dpkg.cfg").write_text(f"force-script-chrootless\nlog={root}/var/log/dpkg.log\n")

        self.pin("580-1")

    def pin(self, version: str) -> None:
        """Write what the role nvidia_stack writes: apt has no other version of the family to choose."""
        stanza = f"Package: libcuda1 nvidia-*\nPin: version {version}\nPin-Priority: 1001\n"
        (self.root / "etc/apt/preferences.d/temper-nvidia").write_text(stanza)

    @property
    def environment(self) -> dict[str, str]:
        return {"APT_CONFIG": f"{self.root}/apt.conf", "DPKG_ROOT": str(self.root), "HOME": str(self.root)}

    def run(self, *command: str) -> None:
        environment = os.environ | self.environment
        subprocess.run(command, check=True, capture_output=True, env=environment)

    def install(self, *arguments: str) -> None:
        self.run("apt-get", "-q", "update")
        self.run("apt-get", "-q", "-y", "install", *arguments)

    def versions(self) -> dict[str, str]:
        return {name: package.version for name, package in dpkg.query().items() if package.installed}

    def held(self) -> list[str]:
        return sorted(name for name, package in dpkg.query().items() if package.held)

    def snapshot(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, archive)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    return machine


@pytest.fixture
def settle(run_module: Run) -> Run:
    def run(packages: dict[str, str], present: Iterable[str] = (), **parameters: Any) -> dict[str, Any]:
        return run_module(package_set.main, packages=packages, present=list(present), **parameters)

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


@needs_apt
def test_an_installation_that_fails_says_why_and_the_next_run_takes_it_up(
    settle: Run, machine: Machine
) -> None:
    result = settle({"nvidia-fails": "1", "libcuda1": "580-1"})
    assert result["failed"]
    assert "Installing the packages failed" in result["msg"]
    assert "nvidia-fails" in result["msg"]
    assert "nvidia-fails" in settle({"libcuda1": "580-1"})["msg"]


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
    (changing.path / "Packages").unlink()
    changing.add("libcuda1", "580-1", Depends="libnccl2")
    changing.add("libnccl2", "2.28-1")
    settle({"libcuda1": "580-1"}, refresh=refresh)
    assert machine.versions().get("libnccl2") == ("2.28-1" if refresh else None)


@needs_apt
def test_a_repository_that_cannot_be_read_stops_the_run(settle: Run, machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list").write_text("deb [trusted=yes] copy:/nowhere ./\n")
    message = settle(DRIVER)["msg"]
    assert message.startswith("Reading the package lists (apt-get update) failed: ")
    assert "/nowhere" in message


@needs_apt
def test_check_mode_says_what_would_be_installed_and_changes_nothing(settle: Run, machine: Machine) -> None:
    before = machine.snapshot()
    result = settle(DRIVER, ["linux-headers-amd64"], check_mode=True)
    assert (result["changed"], result["installed"]) == (True, DRIVER)
    assert result["diff"]["after"].splitlines() == [
        "nvidia-driver-cuda=580-1",
        "nvidia-kernel-open-dkms=580-1",
        "linux-headers-amd64",
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
    monkeypatch.setattr(package_set, "INSTALL", [*package_set.INSTALL, "--download-only"])
    assert "still not installed as wanted: libcuda1=580-1" in settle({"libcuda1": "580-1"})["msg"]
