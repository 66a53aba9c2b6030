"""Fingerprints and expiry of OpenPGP public keys, without GnuPG: nodes need not have it.

Only what pinning a repository key takes: RFC 4880 packets, version 4 keys (SHA-1 fingerprint) and RFC 9580
version 6 keys (SHA-256).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

PUBLIC_KEY_TAG = 6
SIGNATURE_TAG = 2
# Types of signatures: of user ids and of the key itself, and its revocation (RFC 9580, 5.2.1).
CERTIFICATIONS = (0x10, 0x11, 0x12, 0x13, 0x1F)
REVOCATION = 0x20
# Types of subpackets (RFC 9580, 5.2.3.7).
CREATED, KEY_LIFETIME, ISSUER, ISSUER_FINGERPRINT = 2, 9, 16, 33
# What a transferable public key consists of: the keys, user ids and attributes, signatures, GnuPG's trust.
KEY_FILE_TAGS = {PUBLIC_KEY_TAG, 14, 13, 17, 2, 12}
# The length is hashed as two bytes in version 4.
LARGEST_KEY_BYTES = 0xFFFF
ARMOUR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?:[^\r\n]+:[^\n]*\n)*[ \t]*\r?\n"
    rb"(.*?)(?:\n=[^\n]{4}\s*)?\n-----END PGP PUBLIC KEY BLOCK-----\s*",
    re.DOTALL,
)


class OpenPGPError(ValueError):
    """The data is no OpenPGP public key."""


def dearmor(data: bytes) -> bytes:
    """The binary packets of all ASCII-armoured blocks; binary data is returned as it is.

    Anything besides the blocks is refused: another program might read it, and nobody would have checked it.
    """
    text = data.lstrip()
    if not text.startswith(b"-----BEGIN PGP"):
        return data
    binary = b""
    while text:
        block = ARMOUR.match(text)
        if not block:
            raise OpenPGPError("the armour holds something else than complete public key blocks")
        try:
            binary += base64.b64decode(b"".join(block[1].split()), validate=True)
        except binascii.Error as error:
            raise OpenPGPError(f"the armour is damaged ({error})") from None
        text = text[block.end() :]
    return binary


@dataclass(frozen=True)
class Key:
    """A primary key with all that belongs to it: user ids, subkeys, signatures.

    Times are seconds since 1970, as the key itself claims them; what verifies signatures checks the claims.
    """

    fingerprint: str
    packets: bytes
    renewed: int  # its newest self-signature
    expires: int | None
    revoked: bool

    def usable(self, time: float) -> bool:
        """Whether signatures of this key are good at a time."""
        return not self.revoked and (self.expires is None or self.expires > time)


def packets(data: bytes) -> list[tuple[int, bytes]]:
    """(tag, body) of each packet. Raises OpenPGPError where the data ends early or is no packet stream."""
    return [(tag, body) for tag, body, _ in walk(data)]


def walk(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """(tag, body, the whole packet) of each packet."""
    found = []
    position = 0
    while position < len(data):
        start = position
        header = data[position]
        if not header & 0x80:
            raise OpenPGPError("not OpenPGP data")
        try:
            if header & 0x40:
                tag, length, position = header & 0x3F, *new_length(data, position + 1)
            elif header & 3 == 3:
                raise OpenPGPError("packets without a length are not allowed in a key")
            else:
                tag, width = (header >> 2) & 0x0F, 1 << (header & 3)
                length = int.from_bytes(data[position + 1 : position + 1 + width], "big")
                position += 1 + width
        except IndexError:
            raise OpenPGPError("the key ends in the middle of a packet") from None
        if position + length > len(data):
            raise OpenPGPError("the key ends in the middle of a packet")
        found.append((tag, data[position : position + length], data[start : position + length]))
        position += length
    return found


def new_length(data: bytes, position: int) -> tuple[int, int]:
    """Length in the new packet format, and where the body starts. Keys never use partial lengths."""
    first = data[position]
    if first < 192:
        return first, position + 1
    if first < 224:
        return ((first - 192) << 8) + data[position + 1] + 192, position + 2
    if first == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
    raise OpenPGPError("partial packet lengths are not allowed in a key")


def fingerprint(body: bytes) -> str:
    """The fingerprint, in capitals, of a public key packet."""
    if len(body) > LARGEST_KEY_BYTES:
        raise OpenPGPError(f"a key of {len(body)} bytes is no real one")
    if body[:1] == b"\x04":
        # The standard defines version 4 fingerprints with SHA-1; what is pinned is the whole fingerprint.
        digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
        return digest.hexdigest().upper()
    if body[:1] == b"\x06":
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise OpenPGPError(f"version {body[0] if body else '?'} keys are not supported")


def keys(data: bytes) -> list[Key]:
    """The keys of a key file. Raises OpenPGPError where there is none, or anything else."""
    groups: list[list[tuple[int, bytes, bytes]]] = []
    for tag, body, whole in walk(dearmor(data)):
        if tag not in KEY_FILE_TAGS:
            raise OpenPGPError(f"a packet of type {tag} has no place in a file of public keys")
        if tag == PUBLIC_KEY_TAG:
            groups.append([])
        if not groups:
            raise OpenPGPError("no public key found")
        groups[-1].append((tag, body, whole))
    if not groups:
        raise OpenPGPError("no public key found")
    return [key_of(group) for group in groups]


def key_of(group: list[tuple[int, bytes, bytes]]) -> Key:
    """A key from its packets, the primary key first."""
    primary = group[0][1]
    own = fingerprint(primary)
    created = int.from_bytes(primary[1:5], "big")
    renewed, lifetime, revoked = created, 0, False
    for tag, body, _ in group:
        signature = Signature.of(body) if tag == SIGNATURE_TAG else None
        # Others certify the key, too, and subkeys have an expiry of their own.
        if not signature or signature.kind not in (*CERTIFICATIONS, REVOCATION):
            continue
        if signature.issuer and not own.endswith(signature.issuer) and not own.startswith(signature.issuer):
            continue
        revoked |= signature.kind == REVOCATION
        if signature.kind != REVOCATION and signature.created >= renewed:
            renewed, lifetime = signature.created, signature.key_lifetime
    return Key(
        own,
        b"".join(whole for _, _, whole in group),
        max(renewed, newest(group)),
        created + lifetime if lifetime else None,
        revoked,
    )


def newest(group: list[tuple[int, bytes, bytes]]) -> int:
    """When the newest signature of a key was made, those of its subkeys included."""
    signatures = (Signature.of(body) for tag, body, _ in group if tag == SIGNATURE_TAG)
    return max((signature.created for signature in signatures if signature), default=0)


@dataclass(frozen=True)
class Signature:
    """What a signature packet says of itself."""

    kind: int
    created: int
    key_lifetime: int
    issuer: str

    @classmethod
    def of(cls, body: bytes) -> Signature | None:
        """The signature in a packet; None for the old version 3."""
        version = body[:1]
        if version not in (b"\x04", b"\x06"):
            return None
        width = 2 if version == b"\x04" else 4
        hashed = int.from_bytes(body[4 : 4 + width], "big")
        start = 4 + width
        fields = subpackets(body[start : start + hashed])
        rest = start + hashed
        unhashed = int.from_bytes(body[rest : rest + width], "big")
        unsigned = subpackets(body[rest + width : rest + width + unhashed])
        issuer = fields.get(ISSUER_FINGERPRINT, b"")[1:] or fields.get(ISSUER, unsigned.get(ISSUER, b""))
        return cls(
            body[1],
            int.from_bytes(fields.get(CREATED, b""), "big"),
            int.from_bytes(fields.get(KEY_LIFETIME, b""), "big"),
            issuer.hex().upper(),
        )


def subpackets(data: bytes) -> dict[int, bytes]:
    """Type -> content of the subpackets of a signature."""
    found = {}
    position = 0
    while position < len(data):
        first = data[position]
        if first < 192:
            length, position = first, position + 1
        elif first < 255:
            length, position = (
                ((first - 192) << 8) + int.from_bytes(data[position + 1 : position + 2], "big"),
                (position + 2),
            )
            length += 192
        else:
            length, position = int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
        if not 0 < length <= len(data) - position:
            raise OpenPGPError("a signature of the key is damaged")
        found[data[position] & 0x7F] = data[position + 1 : position + length]
        position += length
    return found


def fingerprints(data: bytes) -> list[str]:
    """Fingerprints, in capitals, of the primary keys of a key file.

    Raises OpenPGPError where there is none, or anything else.
    """
    return [key.fingerprint for key in keys(data)]
