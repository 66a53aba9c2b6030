"""Write files that are made from others, where they are not what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(documents: Mapping[Path, str]) -> int:
    """Write what is not current, name it, and return the exit status. Raises OSError."""
    for path, text in documents.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0
