"""What a test needs of this machine beyond Python."""

import os
import shutil

import pytest


def root_and(*programs: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where we are not root, or where a program is not installed."""
    missing = os.geteuid() != 0 or not all(map(shutil.which, programs))
    return pytest.mark.skipif(missing, reason=f"needs {', '.join(('root', *programs))}")
