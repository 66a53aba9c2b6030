"""Fingerprints of real keys are GnuPG's, and nothing but public keys passes."""

import base64
import time
from pathlib import Path

import pytest
from ansible.module_utils.temper.packaging import openpgp
from ansible.module_utils.temper.packaging.openpgp import OpenPGPError, dearmor, packets

from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing, forged

pytestmark = pytest.mark.component


@pytest.mark.parametrize("armour", [True, False], ids=["armoured", "binary"])
@pytest.mark.parametrize("algorithm", ["rsa4096", "ed25519"])
def test_fingerprint_is_the_one_that_gnupg_prints(key_ring: KeyRing, algorithm: str, armour: bool) -> None:
    assert openpgp_keys.fingerprints(key_ring.export(algorithm, armour=armour)) == [key_ring.keys[algorithm]]


def test_a_subkey_is_no_primary_key(key_ring: KeyRing) -> None:
    primary = key_ring.keys["ed25519"]
    key_ring.gpg("--passphrase", "", "--quick-add-key", primary, "cv25519", "encr", "never")
    assert openpgp_keys.fingerprints(key_ring.export("ed25519", armour=True)) == [primary]


@pytest.mark.parametrize("armour", [True, False], ids=["armoured", "binary"])
def test_every_key_of_a_file_is_listed(key_ring: KeyRing, armour: bool) -> None:
    assert set(openpgp_keys.fingerprints(key_ring.export("rsa4096", "ed25519", armour=armour))) == set(
        key_ring.keys.values()
    )


def test_every_armoured_block_of_a_file_is_read(key_ring: KeyRing) -> None:
    blocks = b"\n".join(key_ring.export(algorithm, armour=True) for algorithm in ("rsa4096", "ed25519"))
    assert set(openpgp_keys.fingerprints(blocks)) == set(key_ring.keys.values())


def test_armour_may_have_headers_no_checksum_and_windows_line_ends(key_ring: KeyRing) -> None:
    encoded = base64.encodebytes(key_ring.export("ed25519", armour=False))
    begin, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n", b"-----END PGP PUBLIC KEY BLOCK-----\n"
    block = begin + "Comment: Schlüssel\nVersion: 1\n\n".encode() + encoded + end
    assert openpgp_keys.fingerprints(block.replace(b"\n", b"\r\n")) == [key_ring.keys["ed25519"]]


@pytest.mark.parametrize(
    ("algorithm", "armour", "kept", "more", "said"),
    [
        ("ed25519", True, None, b"deb http://example.org/ /\n", "something else"),
        ("rsa4096", True, -40, b"", "complete"),
        *(("rsa4096", False, kept, b"", "middle of a packet") for kept in (1, 2, 3, 40, 300, -1)),
    ],
)
def test_a_key_that_is_cut_off_or_has_text_beside_it_is_refused(
    key_ring: KeyRing, algorithm: str, armour: bool, kept: int | None, more: bytes, said: str
) -> None:
    with pytest.raises(OpenPGPError, match=said):
        openpgp_keys.fingerprints(key_ring.export(algorithm, armour=armour)[:kept] + more)


def test_a_damaged_armour_is_refused(key_ring: KeyRing) -> None:
    data = key_ring.export("rsa4096", armour=True)
    middle = len(data) // 2
    with pytest.raises(OpenPGPError, match="damaged"):
        openpgp_keys.fingerprints(data[:middle] + b"*" + data[middle:])


def test_a_secret_key_is_refused(key_ring: KeyRing) -> None:
    secret = key_ring.gpg("--passphrase", "", "--pinentry-mode", "loopback", "--export-secret-keys")
    with pytest.raises(OpenPGPError, match="type 5"):
        openpgp_keys.fingerprints(secret)


def test_an_armoured_signature_is_refused(key_ring: KeyRing, tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text("text")
    signature = key_ring.gpg("--armor", "--output", "-", "--detach-sign", str(document))
    with pytest.raises(OpenPGPError, match="public key blocks"):
        openpgp_keys.fingerprints(signature)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no public key"),
        (b"<html>404 Not Found</html>", "not OpenPGP"),
        (b"\x98\x01\x03", "version 3"),
        (b"\x98\x00", "version \\?"),
        (b"\xc6\xe0", "partial"),
        (b"\x9b\x04", "without a length"),
        (b"\xa3\x01\x00", "without a length"),
        (b"\xc6", "middle of a packet"),
        (b"\xc6\xc0", "middle of a packet"),
        (b"\xc6\xff\x00\x00\x00\x09\x04", "middle of a packet"),
        (b"\xc8\x01\x00", "type 8"),
        (b"\xc6\xff\x00\x01\x00\x00\x04" + bytes(0xFFFF), "65536 bytes"),
    ],
)
def test_what_is_no_public_key_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(OpenPGPError, match=complaint):
        openpgp_keys.fingerprints(data)


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"\xc6\x05", 5),
        (b"\xc6\xc0\x00", 192),
        (b"\xc6\xdf\xff", 8383),
        (b"\xc6\xff\x00\x00\x01\x00", 256),
        (b"\x98\x05", 5),
        (b"\x99\x01\x00", 256),
        (b"\x9a\x00\x01\x00\x00", 65536),
    ],
)
def test_every_form_of_a_length_is_read(header: bytes, length: int) -> None:
    body = bytes(length)
    assert packets(header + body + b"\xcd\x01x") == [(6, body), (13, b"x")]


def test_fingerprint_of_a_version_6_key() -> None:
    """The sample certificate of RFC 9580, appendix A.3."""
    key = "BmOHf+MbAAAAIPlNp7tI1gph5WdwamWH0DMZmbudiRoIJC6thFQ9+JWj"  # version, time, Ed25519, length, point
    body = base64.b64decode(key)
    data = b"\xc6" + bytes([len(body)]) + body
    assert openpgp_keys.fingerprints(data) == [
        "CB186C4F0609A697E4D52DFA6C722B0C1F1E27C18A56708F6525EC27BAD9ACC9"
    ]


def test_binary_data_needs_no_dearmouring() -> None:
    assert dearmor(b"\x98\x00") == b"\x98\x00"


@pytest.mark.parametrize("algorithm", ["rsa4096", "ed25519"])
def test_what_a_key_has_signed_itself_is_kept(key_ring: KeyRing, algorithm: str) -> None:
    (key,) = openpgp.keys(key_ring.export(algorithm, armour=False))
    assert openpgp.own_signatures(key) == key


def test_subkeys_and_a_renewed_expiry_verify() -> None:
    with openpgp_keys.made("rsa2048") as ring:
        primary = ring.keys["rsa2048"]
        ring.gpg("--passphrase", "", "--quick-add-key", primary, "rsa2048", "sign", "1y")
        ring.gpg("--passphrase", "", "--quick-set-expire", primary, "1y")
        ring.gpg("--passphrase", "", "--quick-add-uid", primary, "another name")
        (key,) = openpgp.keys(ring.export("rsa2048", armour=False))
    assert openpgp.own_signatures(key) == key


@pytest.mark.parametrize("kind", [0x13, 0x1F, 0x20, 0x18], ids=["user id", "key", "revocation", "subkey"])
@pytest.mark.parametrize(("algorithm", "number"), [("rsa4096", 1), ("ed25519", 22)])
def test_a_signature_that_a_key_has_not_made_is_dropped(
    key_ring: KeyRing, kind: int, algorithm: str, number: int
) -> None:
    data = key_ring.export(algorithm, armour=False)
    (key,) = openpgp.keys(data)
    (answer,) = openpgp.keys(data + forged(key.fingerprint, kind, algorithm=number))
    assert openpgp.own_signatures(answer) == key


@pytest.mark.parametrize("algorithm", ["rsa4096", "ed25519"])
def test_a_changed_signature_is_none(algorithm: str) -> None:
    with openpgp_keys.made(algorithm) as ring:
        data = bytearray(ring.export(algorithm, armour=False))
    data[-1] ^= 1
    (answer,) = openpgp.keys(bytes(data))
    assert openpgp.own_signatures(answer) is None


@pytest.mark.parametrize("algorithm", ["rsa4096", "ed25519"])
def test_a_signature_of_the_future_counts_for_nothing(key_ring: KeyRing, algorithm: str) -> None:
    data = key_ring.export(algorithm, armour=False)
    (key,) = openpgp.keys(data)
    (answer,) = openpgp.keys(data + forged(key.fingerprint, created=0xFFFFFFFF))
    assert answer.expires == key.expires
    assert openpgp.own_signatures(answer) == key


def test_more_signatures_than_a_key_has_are_refused(key_ring: KeyRing) -> None:
    data = key_ring.export("rsa4096", armour=False)
    (answer,) = openpgp.keys(data + forged(key_ring.keys["rsa4096"]) * 201)
    with pytest.raises(OpenPGPError, match="signatures"):
        openpgp.own_signatures(answer)


def test_two_editions_together_have_the_parts_of_both_once() -> None:
    with openpgp_keys.made("rsa2048") as ring:
        primary = ring.keys["rsa2048"]
        (before,) = openpgp.keys(ring.export("rsa2048", armour=False))
        ring.gpg("--passphrase", "", "--quick-add-key", primary, "rsa2048", "sign", "1y")
        ring.gpg("--passphrase", "", "--quick-add-uid", primary, "another name")
        (after,) = openpgp.keys(ring.export("rsa2048", armour=False))
    both = openpgp.merged(before, after)
    assert sorted(packets(both.packets)) == sorted(packets(after.packets))
    assert openpgp.merged(after, before).packets == openpgp.merged(both, after).packets


@pytest.mark.parametrize(
    "line", [b"a:" * 20, b"\n=abcd" * 4000, b" " * 100_000], ids=["headers", "sums", "blanks"]
)
def test_armour_costs_time_in_proportion_to_its_length(line: bytes) -> None:
    started = time.process_time()
    with pytest.raises(OpenPGPError):
        dearmor(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n" + (line + b"\n") * 8)
    assert time.process_time() - started < 2
