"""Whose mirror a node uses, from what `apt-get indextargets` prints."""

from pathlib import Path

import pytest
from ansible.module_utils.temper.packaging import apt_sources

from tests.unit.each import each


def target(
    uri: str,
    suite: str,
    component: str,
    *,
    origin: str = "Debian",
    entry: str = "/nowhere/debian.sources:1",
) -> str:
    """A stanza as apt 2.6 and 3.0 print it, without the fields that nobody reads."""
    return (
        f"MetaKey: {component}/binary-amd64/Packages\nShortDesc: Packages\n"
        + (f"Label: Debian\nOrigin: {origin}\n" if origin else "")
        + f"Component: {component}\nCreated-By: Packages\nRelease: {suite}\nRepo-URI: {uri}\n"
        f"Sourcesentry: {entry}\nTarget-Of: deb\n"
    )


def test_apt_reads_the_caches_that_there_are_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt_sources, "CACHES", tmp_path)
    (tmp_path / "pkgcache.bin").write_text("read")
    with apt_sources.caches_kept() as options:
        _, package_option, _, source_option = options
        package_cache = Path(package_option.removeprefix("Dir::Cache::pkgcache="))
        source_cache = Path(source_option.removeprefix("Dir::Cache::srcpkgcache="))
        assert package_cache.read_text() == "read"
        # A link to nowhere could lead what apt writes to the node's own folder.
        assert not source_cache.is_symlink()
        assert tmp_path not in (package_cache.parent, source_cache.parent)
    assert not package_cache.parent.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["pkgcache.bin"]


def test_components_of_a_suite_stand_together() -> None:
    listing = [target("http://mirror/debian/", "bookworm", name) for name in ("main", "contrib", "main")]
    assert apt_sources.parse("\n".join(listing), "Debian") == [
        {
            "uri": "http://mirror/debian/",
            "suite": "bookworm",
            "components": ["main", "contrib"],
            "signed_by": "",
        }
    ]


@each(
    {"origin": "Example"},
    # What Temper added is not the node's own.
    {"entry": "/etc/apt/sources.list.d/temper-debian.sources:1"},
)
def test_others_repositories_are_not_taken_for_the_distributions(of: dict[str, str]) -> None:
    assert apt_sources.parse(target("http://mirror/debian/", "bookworm", "main", **of), "Debian") == []


def test_repository_whose_list_was_never_fetched_is_known_by_its_folder() -> None:
    security = target("http://mirror/debian-security/", "bookworm-security", "main", origin="")
    others = target("http://mirror/other/", "bookworm", "main", origin="")
    found = apt_sources.parse(f"{security}\n{others}", "Debian")
    assert [source["suite"] for source in found] == ["bookworm-security"]


@each(
    ("debian.sources", 1, "/usr/share/keyrings/debian-archive-keyring.gpg"),
    ("debian.sources", 2, "/etc/apt/keyrings/mirror.pgp"),
    ("debian.sources", 3, ""),
    ("sources.list", 2, "/usr/share/keyrings/debian-archive-keyring.gpg"),
    ("sources.list", 3, ""),
    ("gone.list", 1, ""),
)
def test_keyring_is_the_one_that_the_source_names(
    file: str, number: int, keyring: str, tmp_path: Path
) -> None:
    (tmp_path / "debian.sources").write_text(
        "# Debian\n\nTypes: deb\nURIs: http://mirror/debian/\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        "# The company's\nTypes: deb\nURIs: http://mirror/own/\nSigned-By: /etc/apt/keyrings/mirror.pgp\n\n"
        "Types: deb\nURIs: http://mirror/x/\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n"
    )
    (tmp_path / "sources.list").write_text(
        "# Debian\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror/ x main\n"
        "deb http://mirror/debian bookworm-updates main\n"
    )
    listing = target("http://mirror/debian/", "bookworm", "main", entry=f"{tmp_path / file}:{number}")
    (found,) = apt_sources.parse(listing, "Debian")
    assert found["signed_by"] == keyring


def test_node_without_apt_has_no_sources() -> None:
    assert apt_sources.parse("", "Debian") == []
