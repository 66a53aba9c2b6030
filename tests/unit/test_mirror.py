"""A mirror serves exactly what the planned nodes download, with the checksums of the list."""

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from temper.plan.mirror_list import downloads, mirror_list
from tests.unit.each import each
from tests.unit.serving import Silent, serving_files
from tools import mirror

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
        "packages": downloads({"install": list(changes), "upgrade": [], "downgrade": []}),
    }


def test_a_package_that_two_nodes_need_is_listed_once() -> None:
    found = mirror_list([node(change(f"{CUDA}a.deb")), node(change(f"{CUDA}a.deb"), change(f"{CUDA}b.deb"))])
    (repository,) = found["repositories"]
    assert [package["uri"] for package in repository["packages"]] == [f"{CUDA}a.deb", f"{CUDA}b.deb"]
    assert repository["size_bytes"] == 20


@each(5, [5], [{}], [change(f"{CUDA}a.deb", name="x" * (1 << 20))], [change("x") | {"size_bytes": "x"}])
def test_a_node_that_says_its_downloads_in_another_form_has_none(changes: Any) -> None:
    with pytest.raises(ValueError, match="package_preview"):
        downloads({"install": changes, "upgrade": [], "downgrade": []})


def test_names_of_packages_move_no_cursor() -> None:
    (package,) = downloads({"install": [change("x", name="\x1b]0;evil\x07")], "upgrade": [], "downgrade": []})
    assert package["name"].isprintable()


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
    assert capsys.readouterr().out == f"1/1 libnccl2 1, 0.0 MB\n{tmp_path / 'www'} serves 1 package.\n"


def test_what_is_there_is_not_fetched_again(listing: Path, tmp_path: Path, upstream: Path) -> None:
    mirror.main([str(listing), str(tmp_path / "www")])
    (upstream / "a.deb").unlink()
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 0


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("a.deb", b"x" * 10, "The mirror is not complete: "),
        ("Packages", b"other", "Packages"),  # not the signed one
        ("a.deb", None, "a.deb cannot be fetched"),
    ],
)
def test_what_is_gone_or_has_another_checksum_is_named_and_not_kept(
    listing: Path,
    tmp_path: Path,
    upstream: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: bytes | None,
    complaint: str,
) -> None:
    (upstream / file).unlink()
    if content is not None:
        (upstream / file).write_bytes(content)
    assert mirror.main([str(listing), str(tmp_path / "www")]) == 1
    assert complaint in capsys.readouterr().err
    assert file not in served(tmp_path / "www")


def test_a_file_has_the_name_that_a_web_server_looks_for(tmp_path: Path) -> None:
    address = "https://example.org/cuda/./libnccl2_2.28.9-1%2bcuda13.0_amd64.deb"
    assert mirror.Mirror(tmp_path, {}).place(address) == (
        tmp_path / "example.org/cuda/libnccl2_2.28.9-1+cuda13.0_amd64.deb"
    )


def test_an_address_leads_nowhere_out_of_the_mirror(tmp_path: Path) -> None:
    with pytest.raises(mirror.MirrorError, match="leads out of its repository"):
        mirror.Mirror(tmp_path, {}).place("https://example.org/%2e%2e/../etc/passwd")


# ---------------------------------------------------------------- logins


class Locked(Silent, SimpleHTTPRequestHandler):
    """Serves a directory to whoever has the login."""

    login = base64.b64encode(b"fleet:s3cret").decode()

    def do_GET(self) -> None:
        if self.headers["Authorization"] == f"Basic {self.login}":
            super().do_GET()
        else:
            self.send_error(401)


@pytest.fixture
def locked(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The list of a repository that asks for a login; nobody's netrc file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving_files(upstream, Locked) as url:
        uri = f"{url.replace('//', '//fleet:s3cret@')}/"
        package = change(f"{uri}a.deb") | {"sha256": hashlib.sha256(b"a" * 10).hexdigest()}
        path = tmp_path / "mirror.json"
        path.write_text(json.dumps(mirror_list([node(package, uri=uri)])))
        yield path


def netrc(path: Path, password: str) -> Path:
    path.write_text(f"machine 127.0.0.1 login fleet password {password}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("option", [[], ["--netrc", "{}"]], ids=["default", "named"])
def test_the_login_comes_from_a_netrc_file(locked: Path, tmp_path: Path, option: list[str]) -> None:
    path = netrc(tmp_path / ("login" if option else ".netrc"), "s3cret")
    arguments = [word.format(path) for word in option]
    assert mirror.main([str(locked), str(tmp_path / "www"), *arguments]) == 0
    assert served(tmp_path / "www/127.0.0.1") == {"a.deb", "Packages", "InRelease", "key.pub"}


def test_without_a_login_the_remedy_is_said(
    locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mirror.main([str(locked), str(tmp_path / "www")]) == 1
    assert "Write `machine 127.0.0.1 login NAME password PASSWORD` into ~/.netrc" in capsys.readouterr().err


def test_a_wrong_login_is_told_without_the_password(
    locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = netrc(tmp_path / "login", "wr0ng")
    assert mirror.main([str(locked), str(tmp_path / "www"), "--netrc", str(path)]) == 1
    said = capsys.readouterr().err
    assert "401" in said
    assert "wr0ng" not in said


def test_a_login_is_for_its_host_alone(tmp_path: Path) -> None:
    path = tmp_path / "login"
    path.write_text("default login me password s3cret\n")
    path.chmod(0o600)
    assert mirror.read_logins(path) == {}


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("machine", "cannot be used")])
def test_a_netrc_file_that_is_none_is_a_sentence(
    locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    path = tmp_path / "login"
    if content is not None:
        path.write_text(content)
    assert mirror.main([str(locked), str(tmp_path / "www"), "--netrc", str(path)]) == 1
    assert reason in capsys.readouterr().err
