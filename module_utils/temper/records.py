"""What Temper has noted on a node, in /var/lib/temper: JSON objects with a version, written in one step.

A record that cannot be read is never emptied, replaced or removed: it may be all that is left of what the
node was before. Records of earlier versions of Temper have no version, and are of version 1.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper.files import read_regular, replace_file
    from ansible.module_utils.temper.process import printable
    from ansible.module_utils.temper.settings.base import SettingError
else:
    # Beside the program by which a node pulls (pull/), which needs no Ansible.
    from files import read_regular, replace_file
    from process import printable

    SettingError = Exception


Kinds = Mapping[str, tuple[type, ...]]

VERSION = 1
#: A writer is done with its draft in milliseconds: an older one is of a writer that was killed.
DRAFT_MAX_AGE_S = 3600
REMEDY = (
    "restore it from a backup of the node, or move it away and give up what it says of the time before Temper"
)
#: What mkstemp adds to a draft's name (`files.replace_file`).
DRAFT_ENDS = "????????"


class RecordError(SettingError):
    """A record is damaged, or newer than this Temper; the message says what to do."""


def damaged(path: Path, why: object, remedy: str = REMEDY) -> RecordError:
    """Return the error for a record that cannot be understood."""
    return RecordError(
        f"The record {path} is damaged ({printable(str(why))}), and is left as it is: {remedy}."
    )


def load(
    path: Path, kinds: Kinds, version: int = VERSION, remedy: str = REMEDY
) -> tuple[int, dict[str, Any]]:
    """Return a record's version and fields; (`version`, {}) where there is no record.

    `kinds` has the type of each field that is known, and those of what is in it: (dict, list, str). A field
    of version 1 that is itself called `version` is told from the record's by its type there.

    Raises:
        RecordError: it cannot be read, has a field of another type, or is newer than `version`.
    """
    try:
        fields = json.loads(read_regular(path), parse_constant=_no_number, parse_float=_number)
    except FileNotFoundError:
        return version, {}
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error, remedy) from error
    if not isinstance(fields, dict):
        raise damaged(path, f"expected an object, found {type(fields).__name__}", remedy)
    plain = "version" not in fields or is_of(fields["version"], kinds.get("version", (type(None),)))
    found = 1 if plain else fields.pop("version")
    if type(found) is not int or found < 1:
        raise damaged(path, f"expected a version from 1 on, found {found!r}", remedy)
    if found > version:
        raise RecordError(
            f"The record {path} has version {found}, and this Temper knows {version} at most: run the newer "
            "Temper that wrote it. Nothing was changed."
        )
    for name, kind in kinds.items():
        if name in fields and not is_of(fields[name], kind):
            expected = " of ".join(one.__name__ for one in kind)
            raise damaged(path, f"expected {name} as {expected}, found {repr(fields[name])[:60]}", remedy)
    return found, fields


def is_of(value: Any, kind: Sequence[type]) -> bool:
    """Return whether a value is of the first type, and what is in it of the others."""
    members: Iterable[Any] = ()
    if len(kind) > 1 and isinstance(value, (dict, list)):
        members = value.values() if isinstance(value, dict) else value
    return type(value) is kind[0] and all(is_of(member, kind[1:]) for member in members)


def store(path: Path, fields: Mapping[str, Any], mode: int = 0o600, version: int | None = VERSION) -> None:
    """Write a record in one step, and clean up after writers that were killed.

    Without a `version` none is written: for readers of earlier versions of Temper that refuse the field.
    """
    noted = {**({"version": version} if version else {}), **fields}
    replace_file(path, (json.dumps(noted, indent=1, allow_nan=False) + "\n").encode(), mode)
    for draft in path.parent.glob(f".{path.name}.{DRAFT_ENDS}"):
        with contextlib.suppress(OSError):  # another writer has removed it
            status = draft.lstat()
            own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if own and abs(time.time() - status.st_mtime) > DRAFT_MAX_AGE_S:
                draft.unlink()


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text[:40])
