"""Fingerprints, expiry and own signatures of OpenPGP public keys, without GnuPG: nodes need not have it.

Only what pinning a repository key takes: RFC 4880 packets, version 4 keys (SHA-1 fingerprint) and RFC 9580
version 6 keys (SHA-256). Signatures are verified of version 4 keys of RSA and Ed25519.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ansible.module_utils.temper.packaging import ed25519

PUBLIC_KEY_TAG, SUBKEY_TAG, USER_ID_TAG, USER_ATTRIBUTE_TAG = 6, 14, 13, 17
SIGNATURE_TAG = 2
# Types of signatures: of user ids and of the key itself, and its revocation (RFC 9580, 5.2.1).
CERTIFICATIONS = (0x10, 0x11, 0x12, 0x13, 0x1F)
REVOCATION, DIRECT = 0x20, 0x1F
# Types of subpackets (RFC 9580, 5.2.3.7).
CREATED, KEY_LIFETIME, ISSUER, ISSUER_FINGERPRINT = 2, 9, 16, 33
# What a transferable public key consists of: the keys, user ids and attributes, signatures, GnuPG's trust.
PART_ORDER = (PUBLIC_KEY_TAG, USER_ID_TAG, USER_ATTRIBUTE_TAG, SUBKEY_TAG, 12)
KEY_FILE_TAGS = {*PART_ORDER, SIGNATURE_TAG}
# Algorithms of keys (RFC 9580, 9.1), and of digests with what stands before them in a signature (5.2.3.1).
RSA, EDDSA = (1, 3), 22
ED25519_CURVE = bytes.fromhex("092b06010401da470f01")
DIGESTS = {
    2: ("sha1", "3021300906052b0e03021a05000414"),
    8: ("sha256", "3031300d060960864801650304020105000420"),
    9: ("sha384", "3041300d060960864801650304020205000430"),
    10: ("sha512", "3051300d060960864801650304020305000440"),
    11: ("sha224", "302d300d06096086480165030402040500041c"),
}
LARGEST_EXPONENT_BYTES = 8
# A repository's key has a few.
MOST_SIGNATURES = 200
CLOCK_ERROR_S = 86400
# The length is hashed as two bytes in version 4.
LARGEST_KEY_BYTES = 0xFFFF
ARMOUR = re.compile(
    # A header's line matches in one way: a server could else make this take exponential time.
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?:[^\r\n:]+:[^\n]*\n)*[ \t]*\r?\n"
    rb"(.*?)(?:\n=[^\n]{4}\s*)?\n-----END PGP PUBLIC KEY BLOCK-----\s*",
    re.DOTALL,
)


class OpenPGPError(ValueError):
    """The data is no OpenPGP public key."""


def dearmor(data: bytes) -> bytes:
    """Return the binary packets of all ASCII-armoured blocks; binary data is returned as it is.

    Anything besides the blocks is refused: another program might read it, and nobody would have checked it.
    """
    text = data.lstrip()
    if not text.startswith(b"-----BEGIN PGP"):
        return data
    binary, position = [], 0
    while position < len(text):
        block = ARMOUR.match(text, position)
        if not block:
            raise OpenPGPError("the armour holds something else than complete public key blocks")
        try:
            binary.append(base64.b64decode(b"".join(block[1].split()), validate=True))
        except binascii.Error as error:
            raise OpenPGPError(f"the armour is damaged ({error})") from None
        position = block.end()
    return b"".join(binary)


@dataclass(frozen=True)
class Key:
    """A primary key with all that belongs to it: user ids, subkeys, signatures.

    Times are seconds since 1970, as the key itself claims them; `own_signatures` and what verifies packages
    check the claims. What claims to be made in the future counts for nothing.
    """

    fingerprint: str
    packets: bytes
    expires: int | None
    revoked: bool


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
    """Return the fingerprint, in capitals, of a public key packet."""
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
    """Return the keys of a key file. Raises OpenPGPError where there is none, or anything else."""
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
    """Return a key from its packets, the primary key first."""
    primary = group[0][1]
    own = fingerprint(primary)
    created = int.from_bytes(primary[1:5], "big")
    renewed, lifetime, revoked = created, 0, False
    for tag, body, _ in group:
        signature = Signature.of(body) if tag == SIGNATURE_TAG else None
        # Others certify the key, too, and subkeys have an expiry of their own.
        if not signature or signature.kind not in (*CERTIFICATIONS, REVOCATION):
            continue
        if not signature.is_of(own) or signature.is_of_the_future():
            continue
        revoked |= signature.kind == REVOCATION
        if signature.kind != REVOCATION and signature.created >= renewed:
            renewed, lifetime = signature.created, signature.key_lifetime
    return Key(
        own,
        b"".join(whole for _, _, whole in group),
        created + lifetime if lifetime else None,
        revoked,
    )


def own_signatures(key: Key) -> Key | None:
    """Return the key with those of its parts and signatures alone that it has signed.

    None where nothing is left.

    Those of an algorithm other than RSA and Ed25519 are taken at their word, unless they are of the future.
    """
    first, *others = walk(key.packets)
    if sum(tag == SIGNATURE_TAG for tag, _, _ in others) > MOST_SIGNATURES:
        raise OpenPGPError(f"the key has more than {MOST_SIGNATURES} signatures")
    hashed, part, kept = hashed_key(first[1]), b"", [first]
    waiting: list[tuple[int, bytes, bytes]] = []
    for tag, body, whole in others:
        if tag in PREFIXES:
            part, waiting = PREFIXES[tag](body), [(tag, body, whole)]
        elif tag == SIGNATURE_TAG:
            signature = Signature.of(body)
            if not signature or not signature.is_of(key.fingerprint) or signature.is_of_the_future():
                continue
            if verifies(first[1], hashed if signature.of_key else hashed + part, body):
                kept += [*waiting, (tag, body, whole)]
                waiting = []
    return key_of(kept) if len(kept) > 1 else None


def merged(first: Key, second: Key) -> Key:
    """Return one key with all parts and signatures of two editions, as GnuPG imports it.

    What verifies packages takes the newest good signature of each part, so that nothing which is added takes
    a key away that works.
    """
    parts: dict[tuple[int, bytes], dict[bytes, tuple[int, bytes, bytes]]] = {}
    for edition in (first, second):
        part: dict[bytes, tuple[int, bytes, bytes]] = {}
        for packet in walk(edition.packets):
            tag, body, _ = packet
            if tag != SIGNATURE_TAG:
                part = parts.setdefault((tag, body), {b"": packet})
            else:
                part.setdefault(body, packet)
    ordered = sorted(parts.items(), key=lambda item: PART_ORDER.index(item[0][0]))
    return key_of([packet for _, part in ordered for packet in part.values()])


def hashed_key(body: bytes) -> bytes:
    """Return a public key packet as signatures of version 4 hash it."""
    return b"\x99" + (len(body) & 0xFFFF).to_bytes(2, "big") + body


# What a signature hashes of the part that it is about, beside the primary key (RFC 9580, 5.2.4).
PREFIXES: dict[int, Callable[[bytes], bytes]] = {
    SUBKEY_TAG: hashed_key,
    USER_ID_TAG: lambda body: b"\xb4" + len(body).to_bytes(4, "big") + body,
    USER_ATTRIBUTE_TAG: lambda body: b"\xd1" + len(body).to_bytes(4, "big") + body,
}


def verifies(primary: bytes, hashed: bytes, signature: bytes) -> bool:
    """Return whether a primary key has made a signature over `hashed`.

    True where its algorithm is unknown here.
    """
    algorithm = primary[5] if len(primary) > 5 else 0
    if primary[:1] != b"\x04" or algorithm not in (*RSA, EDDSA):
        return True
    end = 6 + int.from_bytes(signature[4:6], "big")
    rest = end + 2 + int.from_bytes(signature[end : end + 2], "big")
    if signature[:1] != b"\x04" or (signature[2] in RSA) != (algorithm in RSA) or signature[3] not in DIGESTS:
        return False
    name, prefix = DIGESTS[signature[3]]
    trailer = signature[:end] + b"\x04\xff" + end.to_bytes(4, "big")
    digest = hashlib.new(name, hashed + trailer, usedforsecurity=False).digest()
    if algorithm == EDDSA:
        point, _ = multiprecision(primary, 6 + len(ED25519_CURVE))
        r, after = multiprecision(signature, rest + 2)
        s, last = multiprecision(signature, after)
        whole = primary[6:].startswith(ED25519_CURVE) and point[:1] == b"\x40" and last == len(signature)
        return whole and ed25519.verifies(point[1:], digest, r.rjust(32, b"\0"), s.rjust(32, b"\0"))
    modulus, after = multiprecision(primary, 6)
    exponent, _ = multiprecision(primary, after)
    number, last = multiprecision(signature, rest + 2)
    padding = len(modulus) - len(prefix) // 2 - len(digest) - 3
    if padding < 8 or not any(modulus) or len(exponent) > LARGEST_EXPONENT_BYTES or last != len(signature):
        return False
    # The whole block is compared (RFC 8017, 8.2.2): nothing of it is parsed.
    block = b"\x00\x01" + b"\xff" * padding + b"\x00" + bytes.fromhex(prefix) + digest
    found = pow(*(int.from_bytes(each, "big") for each in (number, exponent, modulus)))
    return found == int.from_bytes(block, "big")


def multiprecision(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the bytes of a number with its length in bits before it, and where it ends."""
    start = position + 2
    end = start + (int.from_bytes(data[position:start], "big") + 7) // 8
    return data[start:end], end


@dataclass(frozen=True)
class Signature:
    """What a signature packet says of itself."""

    kind: int
    created: int
    key_lifetime: int
    issuer: str

    @property
    def of_key(self) -> bool:
        """Whether it is about the primary key alone, and not about the part before it."""
        return self.kind in (REVOCATION, DIRECT)

    def is_of(self, fingerprint: str) -> bool:
        """Return whether it names this key as its maker, or nobody."""
        return fingerprint.endswith(self.issuer) or fingerprint.startswith(self.issuer)

    def is_of_the_future(self) -> bool:
        """Return whether it claims to be made after today, which no clock's error explains."""
        return self.created > time.time() + CLOCK_ERROR_S

    @classmethod
    def of(cls, body: bytes) -> Signature | None:
        """Return the signature in a packet; None for the old version 3."""
        version = body[:1]
        if version not in (b"\x04", b"\x06") or len(body) < 6:
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
            int.from_bytes(fields.get(CREATED, b"")[:4], "big"),
            int.from_bytes(fields.get(KEY_LIFETIME, b"")[:4], "big"),
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
