"""RHEL's way of everything: a real dnf and rpm, in a root directory of their own, and a signed repository.

What no Debian can show is RHEL itself; see the support matrix in the README.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.driver.module_builds import HEADERS
from ansible.module_utils.temper.packaging import packages
from ansible.module_utils.temper.packaging.dnf import Dnf
from ansible.module_utils.temper.packaging.packages import PackageError

from tests.lab.dnf_node import (
    configure,
    dnf_as_administrator,
    held,
    make_node,
    preview,
    repository_of,
    settle,
    snapshot,
    versions,
)
from tests.lab.rpm_archive import RELEASE, RpmArchive, kernel_provides
from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing
from tests.unit.planning_nodes import assert_says

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="rpm installs packages as root"),
]
DRIVER = {"nvidia-driver-cuda": f"580.1-{RELEASE}"}
OPTIONS = ("--releasever=9",)
KERNELS = ("5.14.8", "5.14.9")


@pytest.fixture(scope="module")
def ring() -> Iterator[KeyRing]:
    with openpgp_keys.made("rsa3072", "rsa2048") as ring:
        yield ring


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, ring: KeyRing) -> RpmArchive:
    """The packages, built once."""
    archive = RpmArchive(tmp_path_factory.mktemp("rpm") / "repository", ring, "rsa3072")
    archive.path.mkdir()
    for version in ("570.1", "580.1", "595.1"):
        archive.add("libnvidia-ml", version, epoch=3)
        archive.add("nvidia-driver-cuda", version, f"Requires: libnvidia-ml = 3:{version}", epoch=3)
    archive.add("nvidia-modprobe", "580.1", "Requires: libnvidia-ml", epoch=3)
    archive.add("desktop", "1")
    archive.add("kernel-core", "5.14.9")
    archive.add("nvidia-hates-desktop", "1", "Conflicts: desktop")
    archive.add("nvidia-needs-kernel", "1", "Requires: kernel-core")
    archive.add("nvidia-impossible", "1", "Requires: libnvidia-ml = 3:999")
    archive.add("nvidia-fails", "1", script='error("it went wrong")')
    archive.add("kmod-nvidia-open-dkms", "580.1", "Requires: dkms >= 3.1.8", epoch=3)
    archive.add("nvidia-container-toolkit", "1.20.0")
    for version in KERNELS:
        archive.add("kernel-devel", version, *kernel_provides(f"{version}-{RELEASE}.x86_64"))
    archive.publish()
    return archive


@pytest.fixture
def archive(built: RpmArchive, tmp_path: Path) -> RpmArchive:
    """A copy of the repository, for one test to change."""
    shutil.copytree(built.path, tmp_path / "rpm/repository")
    return RpmArchive(tmp_path / "rpm/repository", built.ring, built.key)


@pytest.fixture
def repository(archive: RpmArchive, tmp_path: Path) -> dict[str, Any]:
    return repository_of(archive, tmp_path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dnf:
    """A node that has no repository yet."""
    return make_node(tmp_path, monkeypatch)


@pytest.fixture
def node(bare: Dnf, repository: dict[str, Any]) -> Dnf:
    """A node that has the repository."""
    configure(repository)
    return bare


def change_names(changes: list[dict[str, Any]]) -> set[str]:
    return {change["name"] for change in changes}


# ---------------------------------------------------------------- packages


def test_a_bare_node_gets_the_set_and_holds_it(node: Dnf) -> None:
    result = settle(node, DRIVER, {"desktop": ""})
    assert versions(node) == {
        "nvidia-driver-cuda": "3:580.1-1.el9",
        "libnvidia-ml": "3:580.1-1.el9",
        "desktop": "1-1.el9",
    }
    assert result["changed"]
    assert held(node) == result["held"] == ["libnvidia-ml", "nvidia-driver-cuda"]


def test_the_second_run_changes_nothing(node: Dnf) -> None:
    settle(node, DRIVER)
    before = snapshot(node.root)
    assert not settle(node, DRIVER)["changed"]
    assert snapshot(node.root) == before


def test_a_held_package_is_upgraded_by_nobody(node: Dnf) -> None:
    settle(node, DRIVER)
    dnf_as_administrator(node, "upgrade")
    assert versions(node)["nvidia-driver-cuda"] == "3:580.1-1.el9"


@pytest.mark.parametrize("version", ["570.1", "595.1"], ids=["downgrade", "upgrade"])
def test_held_packages_move_together_to_another_version(node: Dnf, version: str) -> None:
    settle(node, DRIVER)
    settle(node, {"nvidia-driver-cuda": f"{version}-{RELEASE}"})
    assert set(versions(node).values()) == {f"3:{version}-1.el9"}
    assert "nvidia-driver-cuda" in held(node)
    # One lock a package, or the next version would be refused.
    assert sum("nvidia-driver-cuda" in line for line in node.locks()) == 1


def test_pins_keep_what_is_pulled_in_at_their_version(node: Dnf) -> None:
    pinned = Dnf(
        [{"packages": "nvidia-* libnvidia-*", "version": f"580.1-{RELEASE}"}], root=node.root, options=OPTIONS
    )
    settle(pinned, {"nvidia-modprobe": ""})
    assert versions(node)["libnvidia-ml"] == "3:580.1-1.el9"


def test_a_pin_bars_no_package_that_only_its_pattern_matches(node: Dnf) -> None:
    pinned = Dnf([{"packages": "nvidia-*", "version": f"580.1-{RELEASE}"}], root=node.root, options=OPTIONS)
    settle(pinned, DRIVER | {"nvidia-container-toolkit": f"1.20.0-{RELEASE}"})
    assert versions(node)["nvidia-container-toolkit"] == f"1.20.0-{RELEASE}"


def test_headers_of_one_kernel_are_installed_beside_those_of_another(node: Dnf) -> None:
    """As dnf installs a kernel's packages: a new version replaces none."""
    older, newer = (f"{version}-{RELEASE}" for version in KERNELS)
    settle(node, {}, {"kernel-devel": newer})
    settle(node, {}, {"kernel-devel": older})
    for version in (older, newer, ""):
        assert not settle(node, {}, {"kernel-devel": version})["changed"]
    assert held(node) == []


def test_the_remedy_for_missing_headers_is_a_command_that_dnf_knows(node: Dnf) -> None:
    older = f"{KERNELS[0]}-{RELEASE}"
    package = HEADERS["dnf"].format(f"{older}.x86_64").strip("'")
    dnf_as_administrator(node, "install", package)
    assert versions(node) == {"kernel-devel": older}


def test_what_somebody_else_holds_is_not_moved(node: Dnf) -> None:
    settle(node, {"nvidia-driver-cuda": f"570.1-{RELEASE}"})
    packages.HOLD_RECORD.unlink()
    with pytest.raises(PackageError, match="Somebody holds nvidia-driver-cuda"):
        settle(node, DRIVER)
    assert set(versions(node).values()) == {"3:570.1-1.el9"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nvidia-hates-desktop", "it would remove desktop"),
        ("nvidia-needs-kernel", r"it would install another kernel \(kernel-core\)"),
    ],
)
def test_a_dangerous_transaction_is_refused(node: Dnf, name: str, reason: str) -> None:
    settle(node, {}, {"desktop": ""})
    with pytest.raises(PackageError, match=f"The transaction is refused, because {reason}"):
        settle(node, {name: f"1-{RELEASE}"})
    assert versions(node) == {"desktop": "1-1.el9"}


def test_a_corrupt_package_installs_nothing_and_the_next_run_completes(
    node: Dnf, archive: RpmArchive
) -> None:
    file = archive.file("libnvidia-ml", "580.1")
    good = file.read_bytes()
    file.write_bytes(good[:-50] + b"x" * 50)
    with pytest.raises(PackageError, match=r"incorrect checksum.* Nothing was installed"):
        settle(node, DRIVER)
    assert versions(node) == {}
    file.write_bytes(good)
    settle(node, DRIVER)
    assert set(versions(node).values()) == {"3:580.1-1.el9"}


def test_a_package_that_somebody_else_signed_is_not_installed(
    node: Dnf, archive: RpmArchive, repository: dict[str, Any]
) -> None:
    configure(repository | {"signed": "packages"})
    RpmArchive(archive.path, archive.ring, "rsa2048").sign_package(archive.file("libnvidia-ml", "580.1"))
    archive.publish()
    with pytest.raises(PackageError, match=r"GPG check FAILED.* Nothing was installed"):
        settle(node, DRIVER)
    assert versions(node) == {}


def test_metadata_that_somebody_else_signed_are_not_read(node: Dnf, archive: RpmArchive) -> None:
    RpmArchive(archive.path, archive.ring, "rsa2048").publish()
    with pytest.raises(PackageError, match=r"Reading the repositories \(dnf makecache\) failed"):
        settle(node, DRIVER)


def test_a_package_whose_script_fails_is_taken_back(node: Dnf) -> None:
    settle(node, {}, {"desktop": ""})
    with pytest.raises(PackageError, match=r"a script of nvidia-fails failed\. The transaction was undone"):
        settle(node, {"nvidia-fails": f"1-{RELEASE}"})
    assert versions(node) == {"desktop": "1-1.el9"}


# ---------------------------------------------------------------- module streams


@pytest.fixture
def streams(archive: RpmArchive) -> None:
    """The driver as RHEL 8 and 9 have it: a stream for each branch."""
    for stream, version in (("580-open", "580.1"), ("595-open", "595.1")):
        archive.add_stream(
            *("nvidia-driver", stream),
            dict.fromkeys(("nvidia-driver-cuda", "libnvidia-ml"), f"3:{version}-{RELEASE}"),
        )
    archive.publish()


def with_stream(node: Dnf, stream: str) -> Dnf:
    return Dnf(streams=[{"name": "nvidia-driver", "stream": stream}], root=node.root, options=OPTIONS)


def test_a_stream_is_enabled_and_then_switched(streams: None, node: Dnf) -> None:
    for stream, version in (("580-open", "580.1"), ("595-open", "595.1")):
        manager = with_stream(node, stream)
        assert settle(manager, {"nvidia-driver-cuda": f"{version}-{RELEASE}"})["changed"]
        assert manager.enabled("nvidia-driver") == stream
        assert versions(node)["libnvidia-ml"] == f"3:{version}-1.el9"
        assert not settle(manager, {"nvidia-driver-cuda": f"{version}-{RELEASE}"})["changed"]


def test_a_stream_offers_only_its_own_versions(streams: None, node: Dnf) -> None:
    with pytest.raises(PackageError, match="Simulating the installation failed"):
        settle(with_stream(node, "595-open"), DRIVER)


def test_after_a_refusal_the_stream_is_that_of_before(streams: None, node: Dnf) -> None:
    settle(with_stream(node, "580-open"), DRIVER)
    with pytest.raises(PackageError):
        settle(with_stream(node, "595-open"), {"nvidia-driver-cuda": f"999-{RELEASE}"})
    assert node.enabled("nvidia-driver") == "580-open"


def test_a_stream_that_does_not_exist_is_named(streams: None, node: Dnf) -> None:
    with pytest.raises(PackageError, match="Enabling module stream nvidia-driver:600-open failed"):
        settle(with_stream(node, "600-open"), DRIVER)


# ---------------------------------------------------------------- package_preview


def test_a_bare_node_is_told_the_transaction(
    bare: Dnf, repository: dict[str, Any], archive: RpmArchive
) -> None:
    result = preview(bare, repository, DRIVER, present={"desktop": ""})
    assert result["problems"] == []
    assert change_names(result["transaction"]["install"]) == {"nvidia-driver-cuda", "libnvidia-ml", "desktop"}
    assert result["resolved"] == {"desktop": "1-1.el9"}
    change = next(c for c in result["transaction"]["install"] if c["name"] == "libnvidia-ml")
    file = archive.file("libnvidia-ml", "580.1")
    assert change == {
        "name": "libnvidia-ml",
        "version": "3:580.1-1.el9",
        "architecture": "noarch",
        "uri": f"file://{file}",
        "size_bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }


def test_the_preview_knows_the_stream_to_come(streams: None, bare: Dnf, repository: dict[str, Any]) -> None:
    result = preview(with_stream(bare, "580-open"), repository, {"nvidia-driver-cuda": ""})
    assert result["resolved"] == {"nvidia-driver-cuda": "3:580.1-1.el9"}


def test_an_upgrade_is_shown_with_both_versions(node: Dnf, repository: dict[str, Any]) -> None:
    settle(node, DRIVER)
    moved = preview(node, repository, {"nvidia-driver-cuda": f"595.1-{RELEASE}"})["transaction"]["upgrade"]
    assert {(c["name"], c["from"], c["to"]) for c in moved} == {
        (name, "3:580.1-1.el9", "3:595.1-1.el9") for name in ("nvidia-driver-cuda", "libnvidia-ml")
    }


def test_from_bare_the_family_is_part_of_it(node: Dnf, repository: dict[str, Any]) -> None:
    settle(node, DRIVER, {"desktop": ""})
    assert preview(node, repository, DRIVER)["transaction"]["install"] == []
    result = preview(node, repository, DRIVER, from_bare=True)
    assert change_names(result["transaction"]["install"]) == {"nvidia-driver-cuda", "libnvidia-ml"}


def test_a_version_that_nobody_offers_is_named_with_the_nearest(
    bare: Dnf, repository: dict[str, Any]
) -> None:
    (problem,) = preview(bare, repository, {"nvidia-driver-cuda": f"580.7-{RELEASE}"})["problems"]
    assert problem.startswith(
        "No repository of this node offers nvidia-driver-cuda 580.7-1.el9; nearest are 3:5"
    )


def test_a_package_that_nobody_offers_is_named(bare: Dnf, repository: dict[str, Any]) -> None:
    assert preview(bare, repository, {"nvidia-driver-cudo": ""})["problems"] == [
        "No repository of this node offers a package nvidia-driver-cudo; "
        "offered are, for instance, nvidia-driver-cuda."
    ]


def test_a_dependency_that_cannot_be_met_is_named(bare: Dnf, repository: dict[str, Any]) -> None:
    (problem,) = preview(bare, repository, {"nvidia-impossible": ""})["problems"]
    assert "nothing provides libnvidia-ml = 3:999" in problem


def test_a_node_without_epel_is_told_so(bare: Dnf, repository: dict[str, Any]) -> None:
    (problem,) = preview(bare, repository, {"kmod-nvidia-open-dkms": ""})["problems"]
    assert_says(
        problem,
        "kmod-nvidia-open-dkms needs dkms >= 3.1.8",
        "no enabled repository",
        "temper-nvidia-cuda)",
        "`dnf install epel-release` and `dnf config-manager --set-enabled crb`",
    )


def test_on_rhel_the_way_to_epel_is_another(bare: Dnf, repository: dict[str, Any]) -> None:
    (bare.root / "etc/os-release").write_text('ID="rhel"\nVERSION_ID="9.6"\n')
    (problem,) = preview(bare, repository, {"kmod-nvidia-open-dkms": ""})["problems"]
    assert_says(problem, "codeready-builder-for-rhel-9-", "epel-release-latest-9.noarch.rpm")


def test_a_danger_is_a_problem(node: Dnf, repository: dict[str, Any]) -> None:
    settle(node, {}, {"desktop": ""})
    assert preview(node, repository, {"nvidia-hates-desktop": ""})["problems"] == [
        "The transaction is refused, because it would remove desktop."
    ]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("dnf/dnf.conf", "[main]\nexclude=desktop\n  libnvidia*\n", "exclude=desktop; libnvidia*"),
        ("dnf/dnf.conf", "[main]\nexcludepkgs=nvidia-driver-cuda\n", "excludepkgs=nvidia-driver-cuda"),
        ("dnf/plugins/versionlock.list", "# kept\nlibnvidia-ml-3:570.1-1.el9.*\n", "libnvidia-ml-3:570.1"),
    ],
)
def test_an_exclusion_or_a_lock_that_keeps_a_package_away_is_named(
    bare: Dnf, repository: dict[str, Any], file: str, text: str, said: str
) -> None:
    path = bare.root / "etc" / file
    path.write_text(text)
    result = preview(bare, repository, DRIVER)
    assert not result["unresolved"]
    (problem,) = result["problems"]
    assert_says(problem, f"/etc/{file} ({said}")
    assert preview(bare, repository, {"nvidia-impossible": ""})["unresolved"]


def test_a_repository_that_cannot_be_reached_is_a_problem(bare: Dnf, repository: dict[str, Any]) -> None:
    (problem,) = preview(bare, repository | {"uri": "file:///nowhere/"}, DRIVER)["problems"]
    assert problem.startswith("Reading the repositories (dnf makecache) failed")
    assert "temper-nvidia-cuda" in problem


def test_a_node_without_the_plugin_that_holds_is_to_get_it(bare: Dnf, repository: dict[str, Any]) -> None:
    (bare.root / "etc/dnf/plugins/versionlock.conf").unlink()
    (problem,) = preview(bare, repository, DRIVER)["problems"]
    assert problem.startswith("No repository of this node offers a package python3-dnf-plugin-versionlock")
