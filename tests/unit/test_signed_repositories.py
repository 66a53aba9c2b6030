"""Repositories are configured with the pinned key, or nothing is written."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import repositories

from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing
from tests.unit.serving import serving_files
from tests.unit.settings.role_plans import item

Run = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


@pytest.fixture
def web(tmp_path: Path, key_ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder with the pinned key, and the address at which a web server offers it."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "key").write_bytes(key_ring.export("ed25519"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving_files(folder) as url:
        yield folder, url


@pytest.fixture
def configure(carry_out: Run, web: tuple[Path, str], apt: Path, key_ring: KeyRing) -> Run:
    """Configure one repository that pins the ed25519 key."""

    def run(
        name: str = "gpu", check_mode: bool = False, obsolete: tuple[str, ...] = (), **repository: Any
    ) -> dict[str, Any]:
        wanted = {
            "uri": "http://example.org/debian/",
            "key_url": f"{web[1]}/key",
            "fingerprints": [key_ring.keys["ed25519"]],
        } | repository
        items = [item("repository", name, wanted), *(item("file", path, None) for path in obsolete)]
        return carry_out("nvidia_stack", items, check_mode=check_mode)

    return run


@pytest.fixture
def keyring(apt: Path) -> Path:
    return apt / "keyrings" / "temper-gpu.asc"


def written(apt: Path) -> list[str]:
    return sorted(path.name for path in apt.rglob("*") if path.is_file())


@pytest.mark.parametrize("armour", [True, False], ids=["armoured", "binary"])
def test_a_pinned_key_is_written_as_the_keyring_of_its_source(
    configure: Run, web: tuple[Path, str], apt: Path, keyring: Path, key_ring: KeyRing, armour: bool
) -> None:
    (web[0] / "key").write_bytes(key_ring.export("ed25519", armour=armour))
    assert configure()["changed"]
    assert openpgp_keys.fingerprints(keyring.read_bytes()) == [key_ring.keys["ed25519"]]
    assert (apt / "sources.list.d" / "temper-gpu.sources").read_text() == (
        "# Managed by Temper.\n"
        f"# Key: {web[1]}/key\n"
        f"# Pinned: {key_ring.keys['ed25519']}\n"
        "Types: deb\n"
        "URIs: http://example.org/debian/\n"
        "Suites: /\n"
        f"Signed-By: {keyring}\n"
    )


def test_gnupg_reads_the_keyring(
    configure: Run, web: tuple[Path, str], keyring: Path, key_ring: KeyRing
) -> None:
    (web[0] / "key").write_bytes(key_ring.export("ed25519", armour=False))
    configure()
    assert key_ring.keys["ed25519"] in key_ring.gpg("--with-colons", "--show-keys", str(keyring)).decode()


def test_the_second_run_changes_nothing_and_asks_nobody(configure: Run, web: tuple[Path, str]) -> None:
    configure()
    (web[0] / "key").unlink()
    second = configure()
    assert (second["changed"], second["changed_files"]) == (False, [])


def test_a_fingerprint_may_be_pinned_as_gnupg_prints_it(configure: Run, key_ring: KeyRing) -> None:
    pin = key_ring.keys["ed25519"].lower()
    spaced = " ".join(pin[i : i + 4] for i in range(0, len(pin), 4))
    assert configure(fingerprints=[spaced])["changed"]


def test_another_key_is_refused_before_anything_is_written(
    configure: Run, web: tuple[Path, str], apt: Path, key_ring: KeyRing
) -> None:
    (web[0] / "key").write_bytes(key_ring.export("rsa4096"))
    result = configure()
    assert result["failed"]
    assert f"has fingerprint {key_ring.keys['rsa4096']}" in result["msg"]
    assert f"expected one of {key_ring.keys['ed25519']}" in result["msg"]
    assert written(apt) == []


@pytest.mark.parametrize("armour", [True, False], ids=["armoured", "binary"])
def test_a_key_that_travels_with_the_pinned_one_is_refused(
    configure: Run, web: tuple[Path, str], apt: Path, key_ring: KeyRing, armour: bool
) -> None:
    keys = [key_ring.export(algorithm, armour=armour) for algorithm in ("ed25519", "rsa4096")]
    (web[0] / "key").write_bytes(b"".join(keys))
    assert key_ring.keys["rsa4096"] in configure()["msg"]
    assert written(apt) == []


def test_comments_of_the_download_do_not_reach_the_keyring(
    configure: Run, web: tuple[Path, str], keyring: Path, key_ring: KeyRing
) -> None:
    key = key_ring.export("ed25519").replace(b"BLOCK-----\n", "BLOCK-----\nComment: Schlüssel\n".encode(), 1)
    (web[0] / "key").write_bytes(key)
    configure()
    assert b"Comment" not in keyring.read_bytes()


def test_a_page_in_the_place_of_a_key_is_refused(configure: Run, web: tuple[Path, str], apt: Path) -> None:
    (web[0] / "key").write_text("<html>Sign in to the network</html>")
    assert "is no OpenPGP public key: not OpenPGP data" in configure()["msg"]
    assert written(apt) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("{web}/missing", "404"),
        ("http://127.0.0.1:1/key", "Connection refused"),
        ("key.asc", "unknown url type"),
        ("http://127.0.0.1:port/key", "port"),
    ],
)
def test_a_key_that_cannot_be_fetched_is_a_sentence(
    configure: Run, web: tuple[Path, str], apt: Path, url: str, reason: str
) -> None:
    result = configure(key_url=url.format(web=web[1]))
    assert "cannot be fetched from this node" in result["msg"]
    assert reason in result["msg"]
    assert written(apt) == []


@pytest.mark.parametrize("kind", ["apt", "dnf"])
def test_no_message_has_the_password_of_an_address(configure: Run, kind: str) -> None:
    result = configure(key_url="http://user:s3cret@127.0.0.1:1/key", kind=kind)
    assert "its signing key at http://127.0.0.1:1/key cannot be fetched" in result["msg"]
    assert "s3cret" not in result["msg"]


def test_a_repository_with_a_login_is_known_in_what_apt_says_of_it() -> None:
    repository = {"name": "gpu", "uri": "https://user:s3cret@example.org/debian/"}
    said = "E: Failed to fetch https://example.org/debian/InRelease  401  Unauthorized"
    (sentence,) = repositories.unreadable(said, [repository])
    assert sentence.startswith("Repository gpu cannot be used: Failed to fetch https://example.org/")


def spoil_key(keyring: Path, other: bytes) -> None:
    keyring.write_bytes(other)


def add_key(keyring: Path, other: bytes) -> None:
    keyring.write_bytes(keyring.read_bytes() + other)


def hide_key(keyring: Path, _: bytes) -> None:
    keyring.chmod(0o600)


@pytest.mark.parametrize("spoil", [spoil_key, add_key, hide_key])
def test_a_keyring_that_was_changed_is_repaired(
    configure: Run, keyring: Path, key_ring: KeyRing, spoil: Any
) -> None:
    configure()
    good = keyring.read_bytes()
    spoil(keyring, key_ring.export("rsa4096"))
    assert configure()["changed_files"] == [str(keyring)]
    assert (keyring.read_bytes(), keyring.stat().st_mode & 0o777) == (good, 0o644)


def test_sources_of_other_tools_are_removed(configure: Run, tmp_path: Path) -> None:
    obsolete = tmp_path / "cuda.list"
    obsolete.write_text("deb [signed-by=/another/key] http://example.org/debian/ /\n")
    result = configure(obsolete=(str(obsolete), str(tmp_path / "missing")))
    files = [diff["after_header"].rpartition(":")[2] for diff in result["diff"]]
    assert str(obsolete) in files
    assert str(tmp_path / "missing") not in files
    assert not obsolete.exists()


def test_check_mode_asks_nobody_and_writes_nothing(
    configure: Run, web: tuple[Path, str], apt: Path, keyring: Path
) -> None:
    (web[0] / "key").unlink()
    result = configure(check_mode=True)
    source = apt / "sources.list.d" / "temper-gpu.sources"
    assert result["changed_files"] == [str(keyring), str(source)]
    assert not apt.exists()


def test_distribution_s_own_repository_is_signed_by_the_keyring_that_the_node_has(
    carry_out: Run, apt: Path
) -> None:
    debian = {
        "uri": "http://mirror.example/debian",
        "suite": "bookworm bookworm-updates",
        "components": ["contrib", "non-free"],
        "signed_by": "/usr/share/keyrings/debian-archive-keyring.gpg",
    }
    carry_out("nvidia_stack", [item("repository", "debian", debian)])
    assert written(apt) == ["temper-debian.sources"]
    assert (apt / "sources.list.d/temper-debian.sources").read_text() == (
        "# Managed by Temper.\nTypes: deb\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm bookworm-updates\nComponents: contrib non-free\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_repository_of_a_node_that_names_no_keyring_names_none_either(carry_out: Run, apt: Path) -> None:
    debian = {"uri": "http://mirror.example/debian", "suite": "trixie", "signed_by": ""}
    carry_out("nvidia_stack", [item("repository", "debian", debian)])
    assert "Signed-By" not in (apt / "sources.list.d/temper-debian.sources").read_text()


# ---------------------------------------------------------------- what other tools have left


def legacy(apt: Path, name: str, text: str) -> Path:
    path = apt / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


DEBIAN = "# The mirror\ndeb http://mirror.example/debian bookworm main\n"
MIRROR = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
OURS = "\nTypes: deb\nURIs: http://example.org/debian/\nSuites: /\nSigned-By: /x.gpg\n"
SECURITY = "deb http://example.org/debian-security/ /\n"


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("cuda.list", "deb [signed-by=/usr/share/keyrings/cuda.gpg] http://example.org/debian/ /\n", None),
        ("cuda.list", "deb http://EXAMPLE.org/debian /\n# deb-src http://example.org/other /\n", None),
        ("cuda.list", "deb http://user:s3cret@example.org/debian /\n", None),
        ("../sources.list", f"{DEBIAN}deb http://example.org/debian/ /\n", DEBIAN),
        ("all.sources", MIRROR + OURS, MIRROR),
        ("other.list", SECURITY, SECURITY),
    ],
)
def test_of_what_other_tools_have_left_the_same_repository_is_taken_away(
    configure: Run, apt: Path, name: str, text: str, left: str | None
) -> None:
    path = legacy(apt / "sources.list.d", name, text).resolve()
    assert (str(path) in configure()["changed_files"]) == (text != left)
    assert (path.read_text() if path.exists() else None) == left


@pytest.mark.parametrize("name", ["trusted.gpg", "trusted.gpg.d/cuda.gpg", "trusted.gpg.d/cuda.asc"])
def test_a_revoked_key_is_trusted_no_more(
    configure: Run, apt: Path, key_ring: KeyRing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(repositories, "REVOKED", {key_ring.keys["rsa4096"]})
    path = legacy(apt, name, "")
    path.write_bytes(key_ring.export("rsa4096", "ed25519", armour=name.endswith("asc")))
    assert str(path) in configure()["changed_files"]
    assert openpgp_keys.fingerprints(path.read_bytes()) == [key_ring.keys["ed25519"]]
    path.write_bytes(key_ring.export("rsa4096", armour=name.endswith("asc")))
    configure()
    assert not path.exists()


# ---------------------------------------------------------------- dnf


@pytest.fixture
def rhel(configure: Run) -> Run:

    def run(**repository: Any) -> dict[str, Any]:
        uri = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/"
        return configure(**{"name": "nvidia-cuda", "kind": "dnf", "uri": uri} | repository)

    return run


@pytest.mark.parametrize(
    ("signed", "gpgcheck", "repo_gpgcheck"), [("packages", 1, 0), ("metadata", 0, 1), ("both", 1, 1)]
)
def test_a_dnf_repository_checks_what_its_owner_signs(
    rhel: Run,
    tmp_path: Path,
    web: tuple[Path, str],
    key_ring: KeyRing,
    signed: str,
    gpgcheck: int,
    repo_gpgcheck: int,
) -> None:
    rhel(signed=signed, exclude=["mft*", "nvidia-settings"])
    key = tmp_path / "rpm-gpg/RPM-GPG-KEY-temper-nvidia-cuda"
    assert (tmp_path / "yum.repos.d/temper-nvidia-cuda.repo").read_text() == (
        "# Managed by Temper.\n"
        f"# Key: {web[1]}/key\n"
        f"# Pinned: {key_ring.keys['ed25519']}\n"
        "[temper-nvidia-cuda]\n"
        "name=nvidia-cuda, managed by Temper\n"
        "baseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/\n"
        "enabled=1\n"
        f"gpgcheck={gpgcheck}\n"
        f"repo_gpgcheck={repo_gpgcheck}\n"
        f"gpgkey=file://{key}\n"
        "excludepkgs=mft*,nvidia-settings\n"
    )
    assert openpgp_keys.fingerprints(key.read_bytes()) == [key_ring.keys["ed25519"]]


def test_nvidias_own_repo_file_gives_way(rhel: Run, tmp_path: Path) -> None:
    nvidia = legacy(
        tmp_path / "yum.repos.d",
        "cuda-rhel9.repo",
        "[cuda-rhel9-x86_64]\nname=cuda\n"
        "baseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64\n"
        "gpgkey=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/D42D0685.pub\n",
    )
    epel = legacy(tmp_path / "yum.repos.d", "epel.repo", "[epel]\nbaseurl=https://example.org/epel/\n")
    rhel()
    assert not nvidia.exists()
    assert epel.exists()


def test_a_section_with_only_a_metalink_survives_beside_ours(rhel: Run, tmp_path: Path) -> None:
    epel = "[epel]\nmetalink=https://example.org/metalink?repo=epel-9\n"
    mixed = legacy(
        tmp_path / "yum.repos.d",
        "all.repo",
        "[cuda]\nbaseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64\n" + epel,
    )
    rhel()
    assert mixed.read_text() == epel


def test_what_an_apt_repository_must_not_bring_is_pinned_away(configure: Run, apt: Path) -> None:
    configure(exclude=["dkms", "mft*"])
    preferences = apt / "preferences.d/temper-gpu"
    assert preferences.read_text() == (
        '# Managed by Temper.\nPackage: dkms mft*\nPin: origin "example.org"\nPin-Priority: -1\n'
    )
    configure()
    assert not preferences.exists()
