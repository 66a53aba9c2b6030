"""Keys are renewed when they have to be, never replaced by older ones, and never taken from anybody else."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import openpgp, signing_keys
from ansible.module_utils.temper.packaging.signing_keys import RepositoryError

from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing, forged

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(not shutil.which("gpg"), reason="gpg makes the keys of these tests"),
]
needs_gpgv = pytest.mark.skipif(not shutil.which("gpgv"), reason="gpgv verifies as apt does")
DAY_S = 86400


@pytest.fixture(scope="module")
def ring() -> Iterator[KeyRing]:
    """Keys of one owner: `key` in three editions, and the `next` one."""
    with openpgp_keys.made() as ring:
        yield ring


@pytest.fixture(scope="module")
def editions(ring: KeyRing) -> dict[str, bytes]:
    """One key as its owner publishes it over time, by when it expires; and another key of theirs."""
    ring.generate("ed25519", expires="2d")
    found = {"in two days": ring.export("ed25519")}
    (fingerprint,) = openpgp_keys.fingerprints(found["in two days"])
    for name, period in (("in a year", "1y"), ("never", "0")):
        ring.gpg(
            "--faked-system-time", f"{int(time.time()) + 10 * len(found)}", *set_expiry(fingerprint, period)
        )
        found[name] = ring.export("ed25519")
    ring.generate("rsa3072")
    found["another key"] = ring.export("rsa3072")
    return found


def set_expiry(fingerprint: str, period: str) -> tuple[str, ...]:
    return ("--passphrase", "", "--quick-set-expire", fingerprint, period)


@pytest.fixture
def repository(tmp_path: Path, ring: KeyRing, editions: dict[str, bytes]) -> dict[str, Any]:
    return {
        "name": "gpu",
        "key_url": f"file://{tmp_path}/key",
        "fingerprints": [ring.keys["ed25519"]],
        "signed_by": None,
    }


@pytest.fixture
def publish(tmp_path: Path, editions: dict[str, bytes]) -> Any:
    """Let the owner publish editions of keys in one file."""

    def write(*names: str) -> None:
        (tmp_path / "key").write_bytes(b"\n".join(editions[name] for name in names))

    return write


def keyring(repository: dict[str, Any], current: bytes, **options: Any) -> signing_keys.Keyring:
    """The new keyring where the pins are those of the last time."""
    noted = signing_keys.normal(options.pop("noted", repository["fingerprints"]))
    return signing_keys.keyring(repository, current, noted, **options)


def expires_days(text: str) -> list[float | None]:
    now = time.time()
    return [
        None if key.expires is None else round((key.expires - now) / DAY_S)
        for key in openpgp.keys(text.encode())
    ]


def test_expiry_is_what_gnupg_says(ring: KeyRing, editions: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(editions["in a year"])
    shown = ring.gpg("--with-colons", "--show-keys", str(path)).decode()
    expected = int(next(line for line in shown.splitlines() if line.startswith("pub:")).split(":")[6])
    assert [key.expires for key in openpgp.keys(path.read_bytes())] == [expected]


def test_a_key_without_expiry_has_none(editions: dict[str, bytes]) -> None:
    assert [key.expires for key in openpgp.keys(editions["never"])] == [None]


def test_a_revoked_key_is_known_as_one(tmp_path: Path) -> None:
    with openpgp_keys.made("ed25519") as ring:
        certificate = ring.home / "openpgp-revocs.d" / f"{ring.keys['ed25519']}.rev"
        revocation = tmp_path / "revocation"
        revocation.write_text(certificate.read_text().replace(":-----BEGIN", "-----BEGIN"))
        ring.gpg("--import", str(revocation))
        (key,) = openpgp.keys(ring.export("ed25519"))
    assert key.revoked


def test_a_good_key_is_kept_without_asking_anybody(
    repository: dict[str, Any], editions: dict[str, bytes]
) -> None:
    kept = keyring(repository, editions["in a year"])
    assert expires_days(kept.text) == [365]
    assert kept.warnings == ()


def test_a_key_that_expires_soon_is_renewed(
    repository: dict[str, Any], editions: dict[str, bytes], publish: Any
) -> None:
    publish("in a year")
    renewed = keyring(repository, editions["in two days"])
    assert expires_days(renewed.text) == [365]
    assert renewed.warnings == ()


def test_an_older_edition_does_not_replace_the_newer_one(
    repository: dict[str, Any], editions: dict[str, bytes], publish: Any
) -> None:
    publish("in two days")
    assert expires_days(keyring(repository, editions["in a year"], renew=True).text) == [365]


def test_an_expiry_without_a_remedy_is_a_warning(
    repository: dict[str, Any], editions: dict[str, bytes], publish: Any
) -> None:
    publish("in two days")
    kept = keyring(repository, editions["in two days"])
    assert expires_days(kept.text) == [2]
    (warning,) = kept.warnings
    day = time.strftime("%Y-%m-%d", time.gmtime(openpgp.keys(editions["in two days"])[0].expires))
    assert f"expire on {day}" in warning
    assert "Ask its owner for the new key" in warning


def test_an_owner_who_is_away_does_not_matter_while_the_key_is_good(
    repository: dict[str, Any], editions: dict[str, bytes]
) -> None:
    kept = keyring(repository, editions["in two days"])
    assert expires_days(kept.text) == [2]
    assert "cannot be fetched" in kept.warnings[0]


def test_a_key_that_was_pinned_since_is_added(
    repository: dict[str, Any], editions: dict[str, bytes], ring: KeyRing, publish: Any
) -> None:
    publish("another key")
    repository["fingerprints"] = [ring.keys["ed25519"], ring.keys["rsa3072"]]
    both = keyring(repository, editions["in a year"], noted=[ring.keys["ed25519"]])
    assert set(openpgp_keys.fingerprints(both.text.encode())) == set(repository["fingerprints"])


def test_a_key_that_was_pinned_since_and_is_not_to_be_had_is_an_error(
    repository: dict[str, Any], editions: dict[str, bytes], ring: KeyRing
) -> None:
    repository["fingerprints"] = [ring.keys["ed25519"], ring.keys["rsa3072"]]
    with pytest.raises(RepositoryError, match="cannot be fetched"):
        keyring(repository, editions["in a year"], noted=[ring.keys["ed25519"]])


def test_a_pinned_key_that_the_owner_does_not_publish_yet_is_asked_for_once(
    repository: dict[str, Any], editions: dict[str, bytes], ring: KeyRing
) -> None:
    repository["fingerprints"] = [ring.keys["ed25519"], ring.keys["rsa3072"]]
    kept = keyring(repository, editions["in a year"], noted=repository["fingerprints"])
    assert openpgp_keys.fingerprints(kept.text.encode()) == [ring.keys["ed25519"]]


def test_a_key_that_is_pinned_no_more_is_dropped(
    repository: dict[str, Any], editions: dict[str, bytes], ring: KeyRing
) -> None:
    both = openpgp.dearmor(editions["in a year"]) + openpgp.dearmor(editions["another key"])
    assert openpgp_keys.fingerprints(keyring(repository, both).text.encode()) == [ring.keys["ed25519"]]


def test_renewing_takes_no_key_that_is_not_pinned(
    repository: dict[str, Any], editions: dict[str, bytes], publish: Any
) -> None:
    publish("in a year", "another key")
    kept = keyring(repository, editions["in two days"], renew=True)
    assert expires_days(kept.text) == [2]
    assert "expected one of" in kept.warnings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="keyrings belong to root")
def test_all_our_keyrings_are_renewed_where_apt_cannot_verify(
    repository: dict[str, Any], editions: dict[str, bytes], publish: Any, tmp_path: Path
) -> None:
    for name in ("sources", "keyrings"):
        (tmp_path / name).mkdir()
    (tmp_path / "sources/temper-gpu.sources").write_text(signing_keys.comment(repository))
    path = tmp_path / "keyrings/temper-gpu.asc"
    path.write_bytes(editions["in a year"])
    publish("never")
    assert signing_keys.renew(tmp_path / "sources", tmp_path / "keyrings")
    assert expires_days(path.read_text()) == [None]
    assert not signing_keys.renew(tmp_path / "sources", tmp_path / "keyrings")


# ---------------------------------------------------------------- forged answers


@pytest.fixture(scope="module")
def signed(ring: KeyRing, editions: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and beside it the owner's signature of it."""
    path = tmp_path_factory.mktemp("signed") / "Release"
    path.write_text("a repository")
    ring.gpg("--detach-sign", "--local-user", ring.keys["ed25519"], str(path))
    return path


def accepts(keyring_text: str, signed: Path, folder: Path) -> bool:
    """Whether gpgv, with which apt verifies, takes the owner's signature with this keyring."""
    (folder / "keyring.gpg").write_bytes(openpgp.dearmor(keyring_text.encode()))
    command = ["gpgv", "--keyring", str(folder / "keyring.gpg"), f"{signed}.sig", str(signed)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def without_signatures(edition: bytes, fingerprint: str, created: int) -> bytes:
    """A key with the right fingerprint whose own signatures are replaced by a forged one."""
    parts = [
        whole for tag, _, whole in openpgp.walk(openpgp.dearmor(edition)) if tag != openpgp.SIGNATURE_TAG
    ]
    return b"".join(parts) + forged(fingerprint, created=created, algorithm=22)


@needs_gpgv
@pytest.mark.parametrize("created", [0, 0xFFFFFFFF], ids=["today", "2106"])
@pytest.mark.parametrize("current", ["in two days", "in a year"])
def test_a_forged_answer_never_replaces_a_key_that_works(
    repository: dict[str, Any],
    editions: dict[str, bytes],
    signed: Path,
    tmp_path: Path,
    current: str,
    created: int,
) -> None:
    answer = without_signatures(editions["in a year"], repository["fingerprints"][0], created)
    (tmp_path / "key").write_bytes(answer)
    kept = keyring(repository, editions[current], renew=True)
    assert accepts(kept.text, signed, tmp_path)


@needs_gpgv
@pytest.mark.parametrize("created", [0, 0xFFFFFFFF], ids=["today", "2106"])
def test_a_good_answer_repairs_a_forged_keyring(
    repository: dict[str, Any],
    editions: dict[str, bytes],
    signed: Path,
    tmp_path: Path,
    publish: Any,
    created: int,
) -> None:
    bad = without_signatures(editions["in a year"], repository["fingerprints"][0], created)
    publish("in a year")
    assert accepts(keyring(repository, bad, renew=True).text, signed, tmp_path)


def test_a_first_answer_whose_signatures_are_of_the_future_is_refused(
    repository: dict[str, Any], editions: dict[str, bytes], tmp_path: Path
) -> None:
    answer = without_signatures(editions["in a year"], repository["fingerprints"][0], 0xFFFFFFFF)
    (tmp_path / "key").write_bytes(answer)
    with pytest.raises(RepositoryError, match="no good signature of its own"):
        keyring(repository, b"")


@pytest.mark.parametrize(("edition", "algorithm"), [("another key", "rsa3072"), ("never", "ed25519")])
def test_a_first_answer_that_the_key_has_not_signed_is_refused(
    repository: dict[str, Any],
    editions: dict[str, bytes],
    ring: KeyRing,
    tmp_path: Path,
    edition: str,
    algorithm: str,
) -> None:
    repository["fingerprints"] = [ring.keys[algorithm]]
    answer = without_signatures(editions[edition], ring.keys[algorithm], 0)
    (tmp_path / "key").write_bytes(answer)
    with pytest.raises(RepositoryError, match="no good signature of its own"):
        keyring(repository, b"")


def test_a_keyring_that_claims_the_future_is_fetched_anew(
    repository: dict[str, Any], editions: dict[str, bytes]
) -> None:
    pins = signing_keys.normal(repository["fingerprints"])
    bad = without_signatures(editions["in a year"], repository["fingerprints"][0], 0xFFFFFFFF)
    assert signing_keys.due(repository, bad, pins)
    assert not signing_keys.due(repository, editions["in a year"], pins)
