"""Gives the plan (package planning/) to Ansible."""

from __future__ import annotations

import hashlib
import ssl
import sys
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning.plan import preflight_plan
from planning.preview import with_engines, with_preview


def mok_certificate(path: str) -> dict[str, str]:
    """What preflight has to know of the operator's certificate for Secure Boot, a file of the controller.

    `mok_sha256` is the SHA-256 of its DER form, as enrolled keys are told by, and `mok_pem` its text; or
    `problem`, where the file is none. No path, nothing to know.
    """
    if not path:
        return {}
    try:
        data = Path(path).expanduser().read_bytes()
        if b"-----BEGIN" in data:
            data = ssl.PEM_cert_to_DER_cert(data[data.index(b"-----BEGIN CERTIFICATE") :].decode().strip())
    except (OSError, ValueError) as error:
        return {
            "problem": "nvidia_stack_mok_certificate: expected an X.509 certificate (PEM or DER) on this "
            f"machine at {path}: {error}"
        }
    return {"mok_sha256": hashlib.sha256(data).hexdigest(), "mok_pem": ssl.DER_cert_to_PEM_cert(data)}


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {
            "preflight_plan": preflight_plan,
            "with_preview": with_preview,
            "with_engines": with_engines,
            "mok_certificate": mok_certificate,
        }
