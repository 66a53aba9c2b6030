"""Keys are renewed when they have to be, never replaced by older ones, and never taken from anybody else."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass
class Owner:
    """Who publishes keys for the repository `gpu`, which pins one of them."""

    ring: KeyRing
    editions: dict[str, bytes]
    published: Path

    def __post_init__(self) -> None:
        self.repository: dict[str, Any] = {"name": "gpu", "key_url": f"file://{self.published}"}
        self.repository |= {"fingerprints": [self.ring.keys["ed25519"]], "signed_by": None}

    def publish(self, *names: str) -> None:
        """Publish editions of keys in one file."""
        self.published.write_bytes(b"\n".join(self.editions[name] for name in names))

    def pin(self, *algorithms: str) -> list[str]:
        self.repository["fingerprints"] = [self.ring.keys[algorithm] for algorithm in algorithms]
        return list(self.repository["fingerprints"])

    def keyring(self, current: str | bytes, **options: Any) -> signing_keys.Keyring:
        """The new keyring, in place of an edition; the pins are those of the last time."""
        noted = signing_keys.normal(options.pop("noted", self.repository["fingerprints"]))
        there = current if isinstance(current, bytes) else self.editions[current]
        return signing_keys.keyring(self.repository, there, noted, **options)

    def forged(self, edition: str, algorithm: str = "ed25519", created: int = 0) -> bytes:
        """A key with the right fingerprint whose own signatures are replaced by a forged one."""
        parts = [
            whole
            for tag, _, whole in openpgp.walk(openpgp.dearmor(self.editions[edition]))
            if tag != openpgp.SIGNATURE_TAG
        ]
        return b"".join(parts) + forged(self.ring.keys[algorithm], created=created, algorithm=22)


@pytest.fixture
def owner(tmp_path: Path, ring: KeyRing, editions: dict[str, bytes]) -> Owner:
    return Owner(ring, editions, tmp_path / "key")


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


def test_a_key_without_expiry_has_none(owner: Owner) -> None:
    assert [key.expires for key in openpgp.keys(owner.editions["never"])] == [None]


def test_a_revoked_key_is_known_as_one(tmp_path: Path) -> None:
    with openpgp_keys.made("ed25519") as ring:
        certificate = ring.home / "openpgp-revocs.d" / f"{ring.keys['ed25519']}.rev"
        revocation = tmp_path / "revocation"
        revocation.write_text(certificate.read_text().replace(":-----BEGIN", "-----BEGIN"))
        ring.gpg("--import", str(revocation))
        (key,) = openpgp.keys(ring.export("ed25519"))
    assert key.revoked


def test_a_good_key_is_kept_without_asking_anybody(owner: Owner) -> None:
    kept = owner.keyring("in a year")
    assert expires_days(kept.text) == [365]
    assert kept.warnings == ()


def test_a_key_that_expires_soon_is_renewed(owner: Owner) -> None:
    owner.publish("in a year")
    renewed = owner.keyring("in two days")
    assert expires_days(renewed.text) == [365]
    assert renewed.warnings == ()


def test_an_older_edition_does_not_replace_the_newer_one(owner: Owner) -> None:
    owner.publish("in two days")
    assert expires_days(owner.keyring("in a year", renew=True).text) == [365]


def test_an_expiry_without_a_remedy_is_a_warning(owner: Owner) -> None:
    owner.publish("in two days")
    kept = owner.keyring("in two days")
    assert expires_days(kept.text) == [2]
    (warning,) = kept.warnings
    day = time.strftime("%Y-%m-%d", time.gmtime(openpgp.keys(owner.editions["in two days"])[0].expires))
    assert f"expire on {day}" in warning
    assert "Ask its owner for the new key" in warning


def test_an_owner_who_is_away_does_not_matter_while_the_key_is_good(owner: Owner) -> None:
    kept = owner.keyring("in two days")
    assert expires_days(kept.text) == [2]
    assert "cannot be fetched" in kept.warnings[0]


def test_a_key_that_was_pinned_since_is_added(owner: Owner) -> None:
    owner.publish("another key")
    pins = owner.pin("ed25519", "rsa3072")
    both = owner.keyring("in a year", noted=pins[:1])
    assert set(openpgp_keys.fingerprints(both.text.encode())) == set(pins)


def test_a_key_that_was_pinned_since_and_is_not_to_be_had_is_an_error(owner: Owner) -> None:
    pins = owner.pin("ed25519", "rsa3072")
    with pytest.raises(RepositoryError, match="cannot be fetched"):
        owner.keyring("in a year", noted=pins[:1])


def test_a_pinned_key_that_the_owner_does_not_publish_yet_is_asked_for_once(owner: Owner) -> None:
    pins = owner.pin("ed25519", "rsa3072")
    kept = owner.keyring("in a year", noted=pins)
    assert openpgp_keys.fingerprints(kept.text.encode()) == [owner.ring.keys["ed25519"]]


def test_a_key_that_is_pinned_no_more_is_dropped(owner: Owner) -> None:
    both = openpgp.dearmor(owner.editions["in a year"]) + openpgp.dearmor(owner.editions["another key"])
    assert openpgp_keys.fingerprints(owner.keyring(both).text.encode()) == [owner.ring.keys["ed25519"]]


def test_renewing_takes_no_key_that_is_not_pinned(owner: Owner) -> None:
    owner.publish("in a year", "another key")
    kept = owner.keyring("in two days", renew=True)
    assert expires_days(kept.text) == [2]
    assert "expected one of" in kept.warnings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="keyrings belong to root")
def test_all_our_keyrings_are_renewed_where_apt_cannot_verify(owner: Owner, tmp_path: Path) -> None:
    for name in ("sources", "keyrings"):
        (tmp_path / name).mkdir()
    (tmp_path / "sources/temper-gpu.sources").write_text(signing_keys.comment(owner.repository))
    path = tmp_path / "keyrings/temper-gpu.asc"
    path.write_bytes(owner.editions["in a year"])
    owner.publish("never")
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


@needs_gpgv
@pytest.mark.parametrize("created", [0, 0xFFFFFFFF], ids=["today", "2106"])
@pytest.mark.parametrize("current", ["in two days", "in a year"])
def test_a_forged_answer_never_replaces_a_key_that_works(
    owner: Owner, signed: Path, tmp_path: Path, current: str, created: int
) -> None:
    owner.published.write_bytes(owner.forged("in a year", created=created))
    kept = owner.keyring(current, renew=True)
    assert accepts(kept.text, signed, tmp_path)


@needs_gpgv
@pytest.mark.parametrize("created", [0, 0xFFFFFFFF], ids=["today", "2106"])
def test_a_good_answer_repairs_a_forged_keyring(
    owner: Owner, signed: Path, tmp_path: Path, created: int
) -> None:
    bad = owner.forged("in a year", created=created)
    owner.publish("in a year")
    assert accepts(owner.keyring(bad, renew=True).text, signed, tmp_path)


def test_a_first_answer_whose_signatures_are_of_the_future_is_refused(owner: Owner) -> None:
    owner.published.write_bytes(owner.forged("in a year", created=0xFFFFFFFF))
    with pytest.raises(RepositoryError, match="no good signature of its own"):
        owner.keyring(b"")


@pytest.mark.parametrize(("edition", "algorithm"), [("another key", "rsa3072"), ("never", "ed25519")])
def test_a_first_answer_that_the_key_has_not_signed_is_refused(
    owner: Owner, edition: str, algorithm: str
) -> None:
    owner.pin(algorithm)
    owner.published.write_bytes(owner.forged(edition, algorithm))
    with pytest.raises(RepositoryError, match="no good signature of its own"):
        owner.keyring(b"")


def test_a_keyring_that_claims_the_future_is_fetched_anew(owner: Owner) -> None:
    pins = signing_keys.normal(owner.repository["fingerprints"])
    bad = owner.forged("in a year", created=0xFFFFFFFF)
    assert signing_keys.due(owner.repository, bad, pins)
    assert not signing_keys.due(owner.repository, owner.editions["in a year"], pins)
