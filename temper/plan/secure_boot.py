"""The operator's certificate for Secure Boot, a file of the controller."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A certificate as PEM, and the SHA-256 of its DER form, by which firmware names the keys it knows."""

    pem: str = ""
    sha256: str = ""


def read_certificate(path: str) -> Certificate:
    """Return the certificate in a file, an empty one where there is no path.

    Raises ValueError: it is none.
    """
    if not path:
        return Certificate()
    try:
        data = Path(path).expanduser().read_bytes()
        if b"-----BEGIN" in data:
            data = ssl.PEM_cert_to_DER_cert(data[data.index(b"-----BEGIN CERTIFICATE") :].decode().strip())
    except (OSError, ValueError) as error:
        raise ValueError(
            "nvidia_stack_mok_certificate: expected an X.509 certificate (PEM or DER) on this machine at "
            f"{path}: {error}"
        ) from error
    return Certificate(ssl.DER_cert_to_PEM_cert(data), hashlib.sha256(data).hexdigest())
