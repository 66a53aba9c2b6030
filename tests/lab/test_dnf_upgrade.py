"""An upgrade and the way back with a real dnf and rpm: what is kept on the node, and that it is enough.

The root directory and the signed repository are those of `test_dnf`; the repository is served over HTTP here,
because dnf takes packages from a directory without a download.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import dnf_staging, rpm_files
from ansible.module_utils.temper.packaging.dnf import KEPT, Dnf
from ansible.module_utils.temper.packaging.packages import PackageError, Wish

from tests.lab.dnf_node import configure, held, make_node, repository_of, settle, snapshot, versions
from tests.lab.rpm_archive import RELEASE, RpmArchive, run
from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing
from tests.unit.planning_nodes import assert_says

Stage = Callable[..., dict[str, str]]

pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="rpm installs packages as root"),
]
OLD, NEW = "580.1", "595.1"
TOOLKIT = {"nvidia-container-toolkit": f"1.20.0-{RELEASE}"}
NAMES = ("libnvidia-ml", "nvidia-driver-cuda")


@pytest.fixture(scope="module")
def ring() -> Iterator[KeyRing]:
    with openpgp_keys.made("rsa3072", "rsa2048") as ring:
        yield ring


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, ring: KeyRing) -> RpmArchive:
    """Two drivers, each in a stream of its own, of which the newer one drives another package out."""
    archive = RpmArchive(tmp_path_factory.mktemp("rpm") / "repository", ring, "rsa3072")
    archive.path.mkdir()
    for version in (OLD, NEW):
        needs = (f"Requires: libnvidia-ml = 3:{version}", "Requires: (libnvidia-ml or nothing)")
        conflicts = ("Conflicts: nvidia-legacy",) if version == NEW else ()
        archive.add("libnvidia-ml", version, epoch=3)
        archive.add("nvidia-driver-cuda", version, *needs, *conflicts, epoch=3)
        archive.add_stream(
            *("nvidia-driver", f"{version[:3]}-open"), dict.fromkeys(NAMES, f"3:{version}-{RELEASE}")
        )
    archive.add("nvidia-legacy", "1", "Requires: libnvidia-ml")
    archive.add("nvidia-container-toolkit", "1.19.0")
    archive.add("nvidia-container-toolkit", "1.20.0")
    archive.publish()
    return archive


@pytest.fixture
def archive(built: RpmArchive, tmp_path: Path) -> RpmArchive:
    """A copy of the repository, for one test to change."""
    shutil.copytree(built.path, tmp_path / "rpm/repository")
    return RpmArchive(tmp_path / "rpm/repository", built.ring, built.key, built.modules.copy())


@pytest.fixture
def fetched() -> list[str]:
    """The packages that were asked for."""
    return []


@pytest.fixture
def server(
    archive: RpmArchive, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    """The repository's server."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.endswith(".rpm"):
                fetched.append(self.path.rpartition("/")[2])
            super().do_GET()

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(archive.path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def repository(archive: RpmArchive, server: ThreadingHTTPServer, tmp_path: Path) -> dict[str, Any]:
    return repository_of(archive, tmp_path) | {"uri": f"http://127.0.0.1:{server.server_port}/"}


@pytest.fixture
def node(tmp_path: Path, repository: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Dnf:
    """A node with the old driver."""
    node = make_node(tmp_path, monkeypatch)
    configure(repository)
    settle(for_driver(node, OLD), driver(OLD), {"nvidia-legacy": ""})
    return node


@pytest.fixture
def stage(node: Dnf, repository: dict[str, Any]) -> Stage:
    """Stage the new driver; returns what leads back, and proves that nothing of the node changes besides."""

    def run(wanted: dict[str, str] | None = None) -> dict[str, str]:
        def others() -> dict[str, bytes]:
            return {path: data for path, data in snapshot(node.root).items() if KEPT not in path}

        before = others()
        try:
            wish = Wish(wanted or driver(NEW))
            preview, back = dnf_staging.stage(wish, [repository], for_driver(node, NEW))
        finally:
            assert others() == before
        assert preview.problems == []
        return back

    return run


def for_driver(node: Dnf, version: str) -> Dnf:
    """The manager with the pins and the stream of a driver."""
    pins = [{"packages": "nvidia-driver* libnvidia-*", "version": f"{version}-{RELEASE}"}]
    streams = [{"name": "nvidia-driver", "stream": f"{version[:3]}-open"}]
    return Dnf(pins, streams, root=node.root, options=node.options)


def driver(version: str) -> dict[str, str]:
    return {"nvidia-driver-cuda": f"{version}-{RELEASE}"}


def go_to(node: Dnf, version: str, present: dict[str, str] | None = None) -> None:
    """Install a driver as a roll-out does."""
    settle(for_driver(node, version), driver(version), present, [f"3:{version}-{RELEASE}"])


def silence(server: ThreadingHTTPServer, node: Dnf) -> None:
    """Nobody answers any more, and dnf does not remember what was answered."""
    server.server_close()
    shutil.rmtree(node.path("/var/cache/dnf"))


def kept_files(node: Dnf) -> list[str]:
    return sorted(path.name for path in (node.path(KEPT) / "packages").iterdir())


def kept_repositories(node: Dnf) -> str:
    return (node.path(KEPT) / "yum.repos.d/temper-former.repo").read_text()


# ---------------------------------------------------------------- there and back


def test_both_ways_need_nobody_else(stage: Stage, node: Dnf, server: ThreadingHTTPServer) -> None:
    former = versions(node)
    assert stage() == former
    silence(server, node)
    go_to(node, NEW)
    assert versions(node) == dict.fromkeys(NAMES, f"3:{NEW}-{RELEASE}")
    assert (node.enabled("nvidia-driver"), held(node)) == ("595-open", sorted(NAMES))
    go_to(node, OLD, {"nvidia-legacy": ""})
    assert versions(node) == former
    assert (node.enabled("nvidia-driver"), held(node)) == ("580-open", sorted(NAMES))


def test_a_way_back_that_was_cut_off_is_completed(
    stage: Stage, node: Dnf, server: ThreadingHTTPServer
) -> None:
    stage()
    go_to(node, NEW)
    silence(server, node)
    file = node.path(KEPT) / f"packages/libnvidia-ml-{OLD}-{RELEASE}.noarch.rpm"
    run("rpm", "--root", str(node.root), "-i", "--justdb", "--nodeps", "--oldpackage", str(file))
    assert node.query()["libnvidia-ml"].broken
    go_to(node, OLD)
    assert versions(node) == dict.fromkeys(NAMES, f"3:{OLD}-{RELEASE}")


def test_without_its_folder_nothing_of_it_stays(stage: Stage, node: Dnf) -> None:
    before = snapshot(node.root)
    stage()
    shutil.rmtree(node.path(KEPT))
    assert snapshot(node.root) == before


def test_what_the_kept_packages_do_not_have_comes_from_the_repositories(stage: Stage, node: Dnf) -> None:
    stage()
    settle(node, TOOLKIT)
    assert versions(node)["nvidia-container-toolkit"] == f"1.20.0-{RELEASE}"


# ---------------------------------------------------------------- signatures


def test_a_kept_package_that_somebody_else_has_signed_is_not_installed(
    stage: Stage, node: Dnf, archive: RpmArchive
) -> None:
    former = stage()
    packages = node.path(KEPT) / "packages"
    victim = packages / archive.file("libnvidia-ml", NEW).name
    # A file of its own: with the one that was fetched, dnf has noted the checksum.
    victim.unlink()
    shutil.copyfile(archive.file("libnvidia-ml", NEW), victim)
    RpmArchive(archive.path, archive.ring, "rsa2048").sign_package(victim)
    # As if whoever did it had put the metadata right, too: else the checksum is wrong already.
    rpm_files.write_repository(node.path(KEPT) / "signed", sorted(packages.iterdir()))
    with pytest.raises(PackageError, match=r"GPG check FAILED.* Nothing was installed"):
        go_to(node, NEW)
    assert versions(node) == former


def test_what_its_owner_does_not_sign_leads_back_too(
    stage: Stage, node: Dnf, repository: dict[str, Any], archive: RpmArchive, server: ThreadingHTTPServer
) -> None:
    """NVIDIA's repository of the container toolkit signs its metadata only."""
    repository |= {"signed": "metadata"}
    configure(repository)
    for version in ("1.19.0", "1.20.0"):
        run("rpmsign", "--delsign", str(archive.file("nvidia-container-toolkit", version)))
    archive.publish()
    former = {"nvidia-container-toolkit": f"1.19.0-{RELEASE}"}
    settle(node, former)
    assert stage(driver(NEW) | TOOLKIT).items() >= former.items()
    assert_says(kept_repositories(node), "[temper-former-signed]", "[temper-former-unsigned]")
    checked = {
        part.partition("]")[0]: "gpgcheck=1\nrepo" in part for part in kept_repositories(node).split("[")[1:]
    }
    assert checked == {"temper-former-signed": True, "temper-former-unsigned": False}
    silence(server, node)
    settle(for_driver(node, NEW), driver(NEW) | TOOLKIT, hold_versions=[f"3:{NEW}-{RELEASE}"])
    settle(for_driver(node, OLD), driver(OLD) | former, hold_versions=[f"3:{OLD}-{RELEASE}"])
    assert versions(node).items() >= former.items()


def test_with_signed_packages_only_none_goes_unchecked(stage: Stage, node: Dnf) -> None:
    stage()
    assert "\ngpgcheck=1" in kept_repositories(node)
    assert "\ngpgcheck=0" not in kept_repositories(node)


# ---------------------------------------------------------------- downloads that fail


def test_a_second_run_fetches_nothing_and_comes_to_the_same(
    stage: Stage, node: Dnf, fetched: list[str]
) -> None:
    first = stage()
    before = snapshot(node.path(KEPT))
    fetched.clear()
    assert stage() == first
    assert fetched == []
    assert snapshot(node.path(KEPT)) == before


@pytest.mark.parametrize("version", [OLD, NEW], ids=["former", "new"])
def test_a_file_that_was_cut_off_is_completed(
    stage: Stage, node: Dnf, fetched: list[str], version: str
) -> None:
    stage()
    victim = node.path(KEPT) / f"packages/libnvidia-ml-{version}-{RELEASE}.noarch.rpm"
    whole = victim.read_bytes()
    # All of its header, and a part of what it packs.
    victim.write_bytes(whole[:-10])
    fetched.clear()
    stage()
    assert fetched == [victim.name]
    assert victim.read_bytes() == whole


def test_what_an_earlier_staging_has_left_is_removed(stage: Stage, node: Dnf, archive: RpmArchive) -> None:
    stage()
    before = kept_files(node)
    packages = node.path(KEPT) / "packages"
    shutil.copy(archive.file("nvidia-container-toolkit", "1.19.0"), packages)
    (packages / "cut-off.rpm").write_bytes(b"\0" * 100)
    stage()
    assert kept_files(node) == before


@pytest.mark.parametrize("version", [OLD, NEW], ids=["former", "new"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [(lambda _: None, "Status code: 404"), (lambda good: good[:-50] + b"x" * 50, "checksum doesn't match")],
    ids=["missing", "corrupt"],
)
def test_a_download_that_fails_is_one_sentence_and_the_next_run_completes(
    stage: Stage,
    node: Dnf,
    archive: RpmArchive,
    version: str,
    damage: Callable[[bytes], bytes | None],
    reason: str,
) -> None:
    file = archive.file("libnvidia-ml", version)
    good = file.read_bytes()
    file.unlink()
    if bad := damage(good):
        file.write_bytes(bad)
    with pytest.raises(PackageError) as caught:
        stage()
    assert_says(str(caught.value), file.name, reason, "Nothing was changed.")
    assert "\n" not in str(caught.value)
    assert node.kept() is None
    file.write_bytes(good)
    stage()
    assert node.kept() is not None


@pytest.fixture
def small_disk(node: Dnf) -> Iterator[Path]:
    """A file system of its own for what is kept: two packages fit, four do not."""
    folder = node.path(KEPT)
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder))
    yield folder
    run("umount", str(folder))


def test_a_disk_with_too_little_room_is_named_before_anything_is_fetched(
    node: Dnf, repository: dict[str, Any], small_disk: Path, fetched: list[str]
) -> None:
    fetched.clear()
    preview, back = dnf_staging.stage(Wish(driver(NEW)), [repository], for_driver(node, NEW))
    assert_says(preview.problems[0], str(small_disk), "MiB free", "free some space")
    assert (back, fetched) == ({}, [])


def test_a_disk_that_becomes_full_is_said(
    stage: Stage,
    node: Dnf,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if somebody else had filled it after the look.
    monkeypatch.setattr(dnf_staging, "no_room", lambda *_: [])
    monkeypatch.setattr("ansible.module_utils.temper.packaging.preview.no_room", lambda *_: [])
    with pytest.raises(PackageError, match=r"the disk is full.* Nothing was changed"):
        stage()
    assert node.kept() is None


# ---------------------------------------------------------------- where the former packages cannot be had


def test_a_former_version_that_nobody_offers_any_more_is_refused_before_any_download(
    stage: Stage, archive: RpmArchive, fetched: list[str]
) -> None:
    archive.file("libnvidia-ml", OLD).unlink()
    archive.publish()
    fetched.clear()
    with pytest.raises(PackageError) as caught:
        stage()
    assert_says(
        str(caught.value),
        "The way back cannot be kept",
        f"no repository of this node offers libnvidia-ml 3:{OLD}-{RELEASE} any more",
        "Nothing was changed",
    )
    assert fetched == []


def test_one_that_the_nodes_cache_still_has_is_taken_from_there(
    stage: Stage, node: Dnf, archive: RpmArchive
) -> None:
    file = archive.file("libnvidia-ml", OLD)
    cache = node.path("/var/cache/dnf/temper-nvidia-cuda-0123456789abcdef/packages")
    cache.mkdir(parents=True)
    shutil.move(file, cache)
    archive.publish()
    assert set(stage()) == {*NAMES, "nvidia-legacy"}
    assert file.name in kept_files(node)


def test_another_build_of_the_same_version_is_no_way_back(stage: Stage, archive: RpmArchive) -> None:
    archive.add("libnvidia-ml", OLD, "Provides: something-else", epoch=3)
    archive.publish()
    with pytest.raises(PackageError, match=f"libnvidia-ml 3:{OLD}-{RELEASE} is not the package that is inst"):
        stage()


def test_nothing_is_fetched_where_the_transaction_is_refused(
    node: Dnf, repository: dict[str, Any], fetched: list[str]
) -> None:
    fetched.clear()
    preview, back = dnf_staging.stage(Wish(driver("999")), [repository], for_driver(node, NEW))
    assert_says(preview.problems[0], "No repository of this node offers nvidia-driver-cuda 999")
    assert (back, fetched) == ({}, [])
    assert not node.path(KEPT).exists()
