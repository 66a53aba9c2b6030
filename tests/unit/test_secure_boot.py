"""Secure Boot from EFI variables as firmware and shim write them."""

import hashlib
import struct
import uuid
from pathlib import Path

from ansible.module_utils.temper.driver.secure_boot import (
    EFI_VARIABLES,
    GLOBAL,
    MOK_TABLE,
    SHIM,
    enrolled_keys,
    secure_boot,
)

from tests.unit.each import each

ATTRIBUTES = b"\x06\x00\x00\x00"
# From the UEFI specification, as a list of bytes rather than by the module's own constant.
X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
SHA256_HASH = uuid.UUID("c1c41626-504c-4092-aca9-41f936934328").bytes_le
OWNER = bytes(range(16))


def variable(root: Path, name: str, value: bytes) -> None:
    path = root / EFI_VARIABLES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ATTRIBUTES + value)


def signature_list(kind: bytes, *entries: bytes) -> bytes:
    """An EFI_SIGNATURE_LIST: all of its entries have one length."""
    each = 16 + len(entries[0])
    return (
        kind + struct.pack("<III", 28 + each * len(entries), 0, each) + b"".join(OWNER + e for e in entries)
    )


def digests(*certificates: bytes) -> list[str]:
    return [hashlib.sha256(certificate).hexdigest() for certificate in certificates]


@each((b"\x01", "enabled"), (b"\x00", "disabled"), (b"", "disabled"))
def test_the_firmwares_variable_says_whether_it_is_enabled(value: bytes, state: str, tmp_path: Path) -> None:
    variable(tmp_path, f"SecureBoot-{GLOBAL}", value)
    assert secure_boot(tmp_path) == state


def test_a_machine_without_uefi_cannot_have_it(tmp_path: Path) -> None:
    assert secure_boot(tmp_path) == "disabled"


@each((b"\x01", "disabled"), (b"\x00", "enabled"))
def test_validation_that_shim_has_turned_off_is_off(value: bytes, state: str, tmp_path: Path) -> None:
    variable(tmp_path, f"SecureBoot-{GLOBAL}", b"\x01")
    variable(tmp_path, f"MokSBStateRT-{SHIM}", value)
    assert secure_boot(tmp_path) == state


def test_every_enrolled_certificate_is_found_by_its_digest(tmp_path: Path) -> None:
    lists = [
        signature_list(X509, b"the distribution's"),
        signature_list(SHA256_HASH, bytes(32), bytes(32)),
        signature_list(X509, b"one of ours", b"one of them"),
    ]
    variable(tmp_path, f"MokListRT-{SHIM}", b"".join(lists))
    assert enrolled_keys(tmp_path) == digests(b"the distribution's", b"one of ours", b"one of them")


def test_the_kernels_table_comes_before_the_variable_that_may_be_cut_off(tmp_path: Path) -> None:
    variable(tmp_path, f"MokListRT-{SHIM}", signature_list(X509, b"old"))
    table = tmp_path / MOK_TABLE
    table.parent.mkdir(parents=True)
    table.write_bytes(signature_list(X509, b"complete"))  # without attributes
    assert enrolled_keys(tmp_path) == digests(b"complete")


def test_a_list_that_is_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    whole = signature_list(X509, b"one of ours")
    variable(tmp_path, f"MokListRT-{SHIM}", whole + signature_list(X509, b"x" * 100)[:60])
    assert enrolled_keys(tmp_path) == digests(b"one of ours")


@each(b"", b"\x00" * 28, X509 + struct.pack("<III", 28, 0, 0), b"\xff" * 40)
def test_nonsense_gives_no_key(content: bytes, tmp_path: Path) -> None:
    variable(tmp_path, f"MokListRT-{SHIM}", content)
    assert enrolled_keys(tmp_path) == []


def test_a_machine_without_shim_has_no_keys(tmp_path: Path) -> None:
    assert enrolled_keys(tmp_path) == []
