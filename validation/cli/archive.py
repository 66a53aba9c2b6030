"""Build the payload as one file that Python runs: `python3 temper-validation.pyz run`.

The same source gives the same bytes, on any machine: a node whose copy is current is then left alone.
"""

from __future__ import annotations

import io
import json
import zipfile
import zipimport
from pathlib import Path

from validation.model import gpu_models

PACKAGE = Path(__file__).parents[1]
SHEBANG = b"#!/usr/bin/env python3\n"
SUFFIXES = (".py", ".json", ".j2")
EPOCH = (1980, 1, 1, 0, 0, 0)


def own_archive() -> bytes | None:
    """Return the one file that this program runs from, if it does: its source is there and nowhere else."""
    loader = globals().get("__loader__")
    return Path(loader.archive).read_bytes() if isinstance(loader, zipimport.zipimporter) else None


def build(package: Path = PACKAGE) -> bytes:
    """Return the one-file payload.

    Files in the order of their names, stored uncompressed (zlib's output depends on its version), and the
    table of GPU models as JSON.
    """
    files = sorted(path for suffix in SUFFIXES for path in package.rglob(f"*{suffix}"))
    members = {path.relative_to(package.parent).as_posix(): path.read_bytes() for path in files}
    members["__main__.py"] = members[f"{package.name}/__main__.py"]
    if references := gpu_models.table(package.parent / "data/gpu_models.yml"):
        text = json.dumps(references, sort_keys=True, default=str)
        members[f"{package.name}/{gpu_models.CARRIED}"] = text.encode()
    buffer = io.BytesIO()
    buffer.write(SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(members.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3  # Unix, wherever it is built
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()
