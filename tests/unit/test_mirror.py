"""A mirror serves exactly what the planned nodes download, with the checksums of the list."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from mirror_list import mirror_list

from tools import mirror

if TYPE_CHECKING:
    from pathlib import Path

CUDA = "https://nvidia.example/cuda/debian12/x86_64/"


def change(uri: str, name: str = "libnccl2", version: str = "1", size_bytes: int = 10) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "architecture": "amd64",
        "uri": uri,
        "size_bytes": size_bytes,
        "sha256": "0" * 64,
    }


def node(*changes: dict[str, Any], uri: str = CUDA, os: str = "debian-12", **more: Any) -> dict[str, Any]:
    repository = {"name": "nvidia-cuda", "kind": "apt", "uri": uri, "suite": "/", "key_url": f"{uri}key.pub"}
    return {
        "name": "n",
        "os": os,
        "repositories": [repository | more],
        "transaction": {"install": list(changes), "upgrade": [], "downgrade": []},
    }


def test_a_package_that_two_nodes_need_is_listed_once() -> None:
    found = mirror_list([node(change(f"{CUDA}a.deb")), node(change(f"{CUDA}a.deb"), change(f"{CUDA}b.deb"))])
    (repository,) = found["repositories"]
    assert [package["uri"] for package in repository["packages"]] == [f"{CUDA}a.deb", f"{CUDA}b.deb"]
    assert repository["size_bytes"] == 20


def test_each_distribution_has_a_repository_of_its_own() -> None:
    other = CUDA.replace("12", "13")
    found = mirror_list(
        [node(change(f"{CUDA}a.deb")), node(change(f"{other}a.deb"), uri=other, os="debian-13")]
    )
    assert [repository["uri"] for repository in found["repositories"]] == [CUDA, other]


def test_what_the_distribution_brings_is_listed_apart() -> None:
    uri = "http://mirror.example/debian/pool/d/dkms.deb"
    found = mirror_list([node(change(uri, "dkms"))])
    assert found["repositories"][0]["packages"] == []
    assert [package["name"] for package in found["distributions"]["debian-12"]] == ["dkms"]


def test_a_repository_that_the_distribution_signs_is_the_distributions() -> None:
    uri = "http://mirror.example/debian"
    found = mirror_list([node(change(f"{uri}/pool/n/nvidia.deb"), uri=uri, key_url=None)])
    assert found["repositories"] == []
    assert len(found["distributions"]["debian-12"]) == 1


def test_the_list_has_no_password_of_a_repository() -> None:
    uri = CUDA.replace("https://", "https://robot:s3cret@")
    found = mirror_list([node(change(f"{uri}a.deb"), uri=uri)])
    assert "s3cret" not in json.dumps(found)
    assert found["repositories"][0]["packages"][0]["uri"].endswith(
        "nvidia.example/cuda/debian12/x86_64/a.deb"
    )


# ---------------------------------------------------------------- fetching


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A flat repository with a package that is listed and one that is not."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    for name, content in {
        "a.deb": b"a" * 10,
        "b.deb": b"b" * 10,
        "Packages": b"index",
        "key.pub": b"key",
    }.items():
        (folder / name).write_bytes(content)
    checksum = hashlib.sha256(b"index").hexdigest()
    (folder / "InRelease").write_text(f"Origin: NVIDIA\nSHA256:\n {checksum} 5 Packages\n")
    return folder


@pytest.fixture
def listing(upstream: Path, tmp_path: Path) -> Path:
    package = change(f"file://{upstream}/a.deb") | {"sha256": hashlib.sha256(b"a" * 10).hexdigest()}
    path = tmp_path / "mirror.json"
    path.write_text(json.dumps(mirror_list([node(package, uri=f"file://{upstream}/")])))
    return path


def served(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def test_exactly_the_listed_packages_and_their_signed_index_are_fetched(
    listing: Path, tmp_path: Path, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 0
    assert served(tmp_path / "www") == {"a.deb", "Packages", "InRelease", "key.pub"}
    assert (tmp_path / "www/local" / str(upstream / "a.deb").lstrip("/")).read_bytes() == b"a" * 10
    assert "serves 1 packages" in capsys.readouterr().out


def test_what_is_there_is_not_fetched_again(listing: Path, tmp_path: Path, upstream: Path) -> None:
    mirror.main([str(listing), str(tmp_path / "www")])
    (upstream / "a.deb").unlink()
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 0


def test_a_package_with_another_checksum_is_not_kept(
    listing: Path, tmp_path: Path, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (upstream / "a.deb").write_bytes(b"x" * 10)
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 1
    assert "The mirror is not complete: " in capsys.readouterr().err
    assert "a.deb" not in served(tmp_path / "www")


def test_an_index_that_is_not_the_signed_one_is_not_kept(
    listing: Path, tmp_path: Path, upstream: Path
) -> None:
    (upstream / "Packages").write_bytes(b"other")
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 1
    assert "Packages" not in served(tmp_path / "www")


def test_a_package_that_is_gone_is_named(
    listing: Path, tmp_path: Path, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (upstream / "a.deb").unlink()
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 1
    assert "a.deb cannot be fetched" in capsys.readouterr().err


def test_a_file_has_the_name_that_a_web_server_looks_for(tmp_path: Path) -> None:
    address = "https://example.org/cuda/./libnccl2_2.28.9-1%2bcuda13.0_amd64.deb"
    assert mirror.place(tmp_path, address) == (
        tmp_path / "example.org/cuda/libnccl2_2.28.9-1+cuda13.0_amd64.deb"
    )


def test_an_address_leads_nowhere_out_of_the_mirror(tmp_path: Path) -> None:
    with pytest.raises(mirror.MirrorError, match="leads out of its repository"):
        mirror.place(tmp_path, "https://example.org/%2e%2e/../etc/passwd")
