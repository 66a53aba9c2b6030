"""What a test needs of this machine beyond Python."""

import os
import shutil

import pytest

#: A Python with torch, which Temper's own environment does not have.
TORCH_PYTHON = os.environ.get("TEMPER_PAYLOAD_PYTHON", "")
needs_torch = pytest.mark.skipif(not TORCH_PYTHON, reason="TEMPER_PAYLOAD_PYTHON names no Python with torch")


def root_and(*programs: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where we are not root, or where a program is not installed."""
    missing = os.geteuid() != 0 or not all(map(shutil.which, programs))
    return pytest.mark.skipif(missing, reason=f"needs {', '.join(('root', *programs))}")
