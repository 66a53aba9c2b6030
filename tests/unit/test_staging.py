"""Both stacks' packages are on the node before one is changed: the way there, and the way back."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import package_preview
import pytest
from ansible.module_utils.temper.packaging import repositories, staging
from ansible.module_utils.temper.packaging.apt import Apt

from tests.unit.apt_machine import Archive, Machine, holding
from tests.unit.needs import root_and
from tests.unit.openpgp_keys import KeyRing

Run = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.component,
    root_and("apt-get", "dpkg-deb", "gpgv"),
]
OLD, NEW = "580-1", "595-1"
NAMES = ("libcuda1", "nvidia-driver-cuda")


@pytest.fixture
def nvidia(tmp_path: Path, key_ring: KeyRing) -> Archive:
    """NVIDIA's repository, signed, with its key beside it."""
    archive = Archive(tmp_path / "nvidia")
    for version in (OLD, NEW):
        archive.add("libcuda1", version)
        archive.add("nvidia-driver-cuda", version, Depends=f"libcuda1 (= {version})")
    archive.sign(key_ring, "ed25519")
    (archive.path / "key").write_bytes(key_ring.export("ed25519"))
    return archive


@pytest.fixture
def node(machine: Machine, nvidia: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with the old driver, which knows NVIDIA's repository."""
    machine.use()
    source = machine.root / "etc/apt/sources.list.d/temper-nvidia.list"
    source.write_text(f"deb [trusted=yes] file:{nvidia.path} ./\n")
    machine.install(*(f"{name}={OLD}" for name in NAMES))
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")
    monkeypatch.setattr(staging, "FORMER", tmp_path / "former-packages")
    return machine


@pytest.fixture
def stage(run_module: Run, node: Machine, nvidia: Archive, key_ring: KeyRing) -> Run:
    """Run the module for the new driver; what is installed stays as it is."""
    repository = {
        "name": "nvidia",
        "uri": f"file:{nvidia.path}",
        "suite": "./",
        "key_url": f"file://{nvidia.path}/key",
        "fingerprints": [key_ring.keys["ed25519"]],
    }

    def run(version: str = NEW, **parameters: Any) -> dict[str, Any]:
        before = node.versions()
        result = run_module(
            package_preview.main,
            packages={"nvidia-driver-cuda": version},
            repositories=[repository],
            pins=[{"packages": "libcuda1 nvidia-*", "version": version}],
            stage=True,
            **parameters,
        )
        assert node.versions() == before
        return result

    return run


def test_the_way_back_needs_nobody_else(stage: Run, node: Machine, nvidia: Archive) -> None:
    result = stage()
    assert result["problems"] == []
    assert result["former"] == dict.fromkeys(NAMES, OLD)
    node.pin(NEW)
    node.run("apt-get", "-q", "-y", "install", f"nvidia-driver-cuda={NEW}")
    shutil.rmtree(nvidia.path)
    node.pin(OLD)
    Apt().install({"nvidia-driver-cuda": OLD})
    assert node.versions() == dict.fromkeys(NAMES, OLD)


def test_a_former_version_that_nobody_offers_any_more_is_refused(
    stage: Run, node: Machine, tmp_path: Path
) -> None:
    newer = Archive(tmp_path / "newer")
    newer.add("libcuda1", NEW)
    (node.root / "etc/apt/sources.list.d/temper-nvidia.list").unlink()
    node.use(newer)
    node.run("apt-get", "-q", "update")
    result = stage()
    assert result["failed"]
    assert result["msg"].startswith("The way back cannot be kept")
    assert OLD in result["msg"]


def test_a_second_run_comes_to_the_same(stage: Run) -> None:
    first = stage()
    index = (staging.FORMER / "Packages").read_text()
    assert stage() == first
    assert (staging.FORMER / "Packages").read_text() == index


def test_a_file_that_was_cut_off_is_fetched_again(stage: Run) -> None:
    stage()
    victim = next(staging.FORMER.glob("libcuda1_*.deb"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[:100])
    stage()
    assert victim.read_bytes() == whole


def test_nothing_is_fetched_where_the_transaction_is_refused(stage: Run) -> None:
    result = stage("999-1")
    assert "No repository of this node offers nvidia-driver-cuda 999-1" in result["problems"][0]
    assert not staging.FORMER.exists()


@pytest.mark.parametrize("lock", ["var/lib/dpkg/lock-frontend", "var/cache/apt/archives/lock"])
def test_another_apt_that_keeps_the_lock_is_said_soon(
    lock: str, stage: Run, node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_TIMEOUT_S", 0)
    with holding(node.root / lock) as other:
        result = stage()
    assert result["failed"]
    assert lock.removesuffix("/lock") in result["msg"]
    assert f"It is held by process {other.pid} (" in result["msg"]
    assert stage()["problems"] == []


def test_check_mode_fetches_nothing(stage: Run, node: Machine) -> None:
    assert stage(check_mode=True)["problems"] == []
    assert not staging.FORMER.exists()
    assert not staging.source_file().exists()
