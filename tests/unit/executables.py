"""Programs that a test makes."""

from pathlib import Path


def executable(path: Path, text: str) -> Path:
    """Make a program, and its folder: a shell's script, unless the text names another interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
