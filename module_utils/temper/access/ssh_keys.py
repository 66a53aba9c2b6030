"""Public keys of SSH: read from a line, judged, and never confused with private ones."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper.settings.base import RefusedError

# RequiredRSASize of the role ssh_hardening: sshd would not take a shorter one.
MINIMUM_RSA_BITS = 2048
KINDS = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
# What a terminal acts on where a comment is shown, or what cannot be written.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# PEM and PuTTY's headers, and how base64 of OpenSSH's own format begins.
PRIVATE = re.compile(r"PRIVATE KEY|PuTTY-User-Key-File|b3BlbnNzaC1rZXktdjE")
# What may stand before a key; blanks are within quotes only (sshd(8), AUTHORIZED_KEYS FILE FORMAT). No text
# matches in two ways, so that a user's line costs time in proportion to its length.
OPTIONS = re.compile(r'(?:\\"|(?!\\")[^\s"]|"(?:\\"|(?!\\")[^"])*")+\s+')
# The path of a file, or an address.
PLACE = re.compile(r"[~./]\S+|[a-z]+:\S+|\S+\.pub")
# The longest line that is parsed. The longest key, RSA of 16384 bits, takes 3 KiB.
LONGEST_LINE = 16 << 10
# What is read of a file that its user can make as long as he likes, a sparse one of terabytes for one.
LARGEST_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class PublicKey:
    """One line of authorized_keys."""

    options: str
    kind: str
    blob: str
    comment: str
    bits: int | None  # of RSA only

    @property
    def family(self) -> str:
        """What ssh-keygen calls it: ed25519, rsa or ecdsa."""
        return next(family for family in ("ed25519", "rsa", "ecdsa") if family in self.kind)

    @property
    def line(self) -> str:
        """The line as sshd reads it."""
        return " ".join(part for part in (self.options, self.kind, self.blob, self.comment) if part)

    @property
    def summary(self) -> str:
        """The key in a form that a person can compare: SHA256:... (kind, comment)."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        fingerprint = base64.b64encode(digest).decode().rstrip("=")
        return f"SHA256:{fingerprint} ({', '.join(part for part in (self.kind, self.comment) if part)})"


def _fields(blob: bytes) -> list[bytes]:
    """Split a key's wire format: fields of a 32-bit length and as many bytes (RFC 4251, section 5)."""
    fields, position = [], 0
    while position < len(blob):
        start = position + 4
        position = start + int.from_bytes(blob[position:start], "big")
        if len(blob) < max(start, position):
            raise ValueError("cut off")
        fields.append(blob[start:position])
    return fields


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Touch files as an account.

    Its links lead nowhere then that it could not go itself, and a home on NFS, where root is nobody, is open.
    A file system that the account itself has mounted (FUSE) refuses us, as root is still our real number, and
    sshd likewise: so it cannot make us wait.
    """
    if os.geteuid() != 0:
        yield
        return
    groups, umask = os.getgroups(), os.umask(0o077)
    try:
        os.setgroups([])
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        # First what cannot fail: a user namespace may refuse the groups here as it did above.
        os.umask(umask)
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def read_regular(path: Path, *, follow: bool = False) -> tuple[bytes, os.stat_result] | None:
    """Read the beginning of a user's file; return it with its status, None unless it is a regular one.

    Its user cannot make this wait, nor, where links are not followed, have another file read: a pipe does not
    block, and a device is not read. Raises OSError.
    """
    # A terminal must not become ours; a lease of the user's is an error (EAGAIN) instead of 45 seconds.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = b""
        while len(data) < LARGEST_FILE_BYTES and (more := os.read(handle, LARGEST_FILE_BYTES - len(data))):
            data += more
        return data, status
    finally:
        os.close(handle)


def parse_public_key(text: str) -> PublicKey:
    """Read one line of a key file; raise ValueError with what is wrong, without quoting the text.

    A malformed key may be half of a secret, so no message repeats it.
    """
    if len(text) > LONGEST_LINE:
        raise ValueError(f"it has {len(text)} characters, expected at most {LONGEST_LINE} in one line")
    text = text.strip()
    if PRIVATE.search(text):
        raise ValueError(
            "it is a private key. Replace it everywhere, as an inventory has held it, and give the public "
            "one (the file that ends with .pub)"
        )
    if "\n" in text:
        raise ValueError("expected one key in one line, found several lines")
    if CONTROL.search(text):
        raise ValueError("expected a line of text, found a control character, on which a terminal would act")
    options, rest = "", text
    if not text.startswith((*KINDS, "ssh-")) and (match := OPTIONS.match(text)):
        options, rest = match[0].strip(), text[match.end() :]
    kind, _, rest = rest.partition(" ")
    blob, _, comment = rest.strip().partition(" ")
    if kind == "ssh-dss":
        raise ValueError("it is a DSA key, which sshd does not take: make one with `ssh-keygen -t ed25519`")
    if "-cert-v0" in kind:
        raise ValueError("it is a certificate: give the key that signs (ssh_hardening_user_ca_keys) instead")
    if PLACE.fullmatch(text):
        raise ValueError(
            "it says where a key is, expected the key itself: \"{{ lookup('ansible.builtin.file', PATH) }}\" "
            "reads it from a file on the controller"
        )
    if kind not in KINDS:
        raise ValueError(f"expected a public key that begins with one of {', '.join(KINDS)}")
    try:
        fields = _fields(base64.b64decode(blob, validate=True))
    except (binascii.Error, ValueError):
        fields = []
    if len(fields) < 2 or fields[0] != kind.encode():
        raise ValueError(f"it begins like a key of the kind {kind}, but is cut off or damaged after that")
    bits = None
    if kind == "ssh-rsa":
        bits = int.from_bytes(fields[-1], "big").bit_length()
        if bits < MINIMUM_RSA_BITS:
            raise ValueError(
                f"it is an RSA key of {bits} bits, expected at least {MINIMUM_RSA_BITS}: make one with "
                "`ssh-keygen -t ed25519`"
            )
    return PublicKey(options, kind, blob, comment.strip(), bits)


def public_keys(where: str, texts: list[str]) -> list[PublicKey]:
    """Read keys from an inventory; raise RefusedError, which never repeats the text, for a wrong one."""
    keys = []
    for index, text in enumerate(texts, start=1):
        try:
            keys.append(parse_public_key(text))
        except ValueError as error:
            raise RefusedError(f"{where}, key {index}: {error}.") from None
    return keys
