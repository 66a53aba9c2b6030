"""Fingerprints of OpenPGP public keys, without GnuPG: nodes need not have it.

Only what pinning a repository key takes: RFC 4880 packets, version 4 keys (SHA-1 fingerprint) and RFC 9580
version 6 keys (SHA-256).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

PUBLIC_KEY_TAG = 6
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


def packets(data: bytes) -> list[tuple[int, bytes]]:
    """(tag, body) of each packet. Raises OpenPGPError where the data ends early or is no packet stream."""
    found = []
    position = 0
    while position < len(data):
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
        found.append((tag, data[position : position + length]))
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


def fingerprints(data: bytes) -> list[str]:
    """Fingerprints, in capitals, of the primary keys of a key file.

    Raises OpenPGPError where there is none, or anything else.
    """
    found = []
    for tag, body in packets(dearmor(data)):
        if tag not in KEY_FILE_TAGS:
            raise OpenPGPError(f"a packet of type {tag} has no place in a file of public keys")
        if tag != PUBLIC_KEY_TAG:
            continue
        if len(body) > LARGEST_KEY_BYTES:
            raise OpenPGPError(f"a key of {len(body)} bytes is no real one")
        if body[:1] == b"\x04":
            # The standard defines version 4 fingerprints with SHA-1; what is pinned is the whole fingerprint.
            digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
            found.append(digest.hexdigest().upper())
        elif body[:1] == b"\x06":
            found.append(hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper())
        else:
            raise OpenPGPError(f"version {body[0] if body else '?'} keys are not supported")
    if not found:
        raise OpenPGPError("no public key found")
    return found
