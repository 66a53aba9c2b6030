"""What a node was brought to since it started: its programs need not be asked again whether they take that.

One digest for each role, of the role's part of the plan. It is noted below /run, where a restart removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.records import RecordError, load, store

PATH = Path("/run/temper/in-place.json")


def digest(part: Mapping[str, Any]) -> str:
    """Return what tells a role's part of a plan from all others."""
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


def noted() -> dict[str, str]:
    """Return the digest of each role that is in place; nothing where the note cannot be read."""
    try:
        return dict(load(PATH, {"roles": {str: str}})[1].get("roles", {}))
    except RecordError:
        return {}


def note(part: Mapping[str, Any], *, as_a_whole: bool = True) -> None:
    """Note that a role is in place; forget it where it is absent now, or not there as a whole.

    Raises OSError where the note cannot be written.
    """
    known = noted()
    wanted = {**known, part["role"]: digest(part)}
    if part["options"]["absent"] or not as_a_whole:
        del wanted[part["role"]]
    if wanted != known:
        PATH.parent.mkdir(mode=0o755, exist_ok=True)
        store(PATH, {"roles": wanted})
