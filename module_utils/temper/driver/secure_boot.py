"""Secure Boot as the firmware and shim report it: in force or not, and which keys the owner has enrolled."""

from __future__ import annotations

import hashlib
from pathlib import Path

EFI_VARIABLES = "sys/firmware/efi/efivars"
# UEFI specification 2.10, section 3.3: EFI_GLOBAL_VARIABLE.
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
# shim's MokVars.txt: its own namespace; names end in RT for the copies that a running system may read.
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
# shim's list without the length limit of EFI variables (Linux 5.10, drivers/firmware/efi/mokvar-table.c).
MOK_TABLE = "sys/firmware/efi/mok-variables/MokListRT"
# UEFI specification 2.10, section 32.4.1: EFI_CERT_X509_GUID, and the sizes of EFI_SIGNATURE_LIST and _DATA.
# The GUID a5c059a1-94e4-4aa7-87b5-ab155c2bf072, as EFI writes one: the first three parts are little-endian.
X509 = bytes.fromhex("a159c0a5 e494 a74a 87b5 ab155c2bf072")
LIST_HEADER_BYTES = 28
OWNER_BYTES = 16
ATTRIBUTE_BYTES = 4
# X.690: the tags of an INTEGER, and of the version that X.509 version 3 puts before the serial number.
DER_INTEGER = 0x02
DER_VERSION = 0xA0


def variable(root: Path, name: str, namespace: str) -> bytes | None:
    """Return an EFI variable's value, without the attributes that efivarfs puts first; None without one."""
    try:
        return (root / EFI_VARIABLES / f"{name}-{namespace}").read_bytes()[ATTRIBUTE_BYTES:]
    except OSError:
        return None


def secure_boot(root: Path) -> str:
    """Return `enabled` where the kernel accepts signed modules only, else `disabled`.

    A machine without UEFI cannot have it enabled. `mokutil --disable-validation` turns it off in shim alone:
    the firmware's variable stays 1, and the kernel goes by shim's.
    """
    if variable(root, "SecureBoot", GLOBAL) != b"\x01":
        return "disabled"
    return "disabled" if variable(root, "MokSBStateRT", SHIM) == b"\x01" else "enabled"


def enrolled_keys(root: Path) -> list[str]:
    """SHA-256 of every enrolled machine owner certificate, in DER: what `sha256sum` prints for MOK.der."""
    try:
        content = (root / MOK_TABLE).read_bytes()
    except OSError:
        content = variable(root, "MokListRT", SHIM) or b""
    return [hashlib.sha256(certificate).hexdigest() for certificate in certificates(content)]


def certificates(content: bytes) -> list[bytes]:
    """Return the X.509 certificates in a sequence of EFI_SIGNATURE_LIST; what is cut off is left out."""
    found = []
    while len(content) >= LIST_HEADER_BYTES:
        kind = content[:16]
        list_bytes, header_bytes, each_bytes = (
            int.from_bytes(content[start : start + 4], "little") for start in (16, 20, 24)
        )
        if list_bytes < LIST_HEADER_BYTES or each_bytes <= OWNER_BYTES:
            break
        entries = content[LIST_HEADER_BYTES + header_bytes : list_bytes]
        content = content[list_bytes:]
        if kind == X509:
            found += [
                entries[start + OWNER_BYTES : start + each_bytes]
                for start in range(0, len(entries) - each_bytes + 1, each_bytes)
            ]
    return found


def serial_number(certificate: bytes) -> int:
    """Return the serial number of an X.509 certificate in DER; by it a module names the key that signed it.

    RFC 5280, section 4.1: Certificate { tbsCertificate { [0] version OPTIONAL, serialNumber INTEGER ... } }
    Raises ValueError for what is no certificate.
    """
    _, body, _ = der_element(certificate)
    _, fields, _ = der_element(body)
    tag, content, rest = der_element(fields)
    if tag == DER_VERSION:
        tag, content, _ = der_element(rest)
    if tag != DER_INTEGER:
        raise ValueError("expected an X.509 certificate in DER, found something else")
    return int.from_bytes(content, "big")


def der_element(content: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first element, and what follows it; ValueError where there is none."""
    if len(content) < 2:
        raise ValueError("expected a DER element, found the end")
    tag, length, start = content[0], content[1], 2
    if length & 0x80:
        count = length & 0x7F
        start += count
        length = int.from_bytes(content[2:start], "big")
    return tag, content[start : start + length], content[start + length :]
