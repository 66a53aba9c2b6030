"""What Temper has noted on a node, in /var/lib/temper: JSON objects with a version, written in one step.

A record that cannot be read is never emptied, replaced or removed: it may be all that is left of what the
node was before. Records of earlier versions of Temper have no version, and are of version 1.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Mapping
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


#: The form of a value that comes from JSON. A type; `object` for any; None. [form]: a list of such; several
#: in a list: just these. {str: form}: an object of such; {"name": form}: one with these fields at least. A
#: tuple: one of these, where `...` stands for a field that may be missing.
Form = Any

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
    path: Path, forms: Mapping[str, Form], version: int = VERSION, remedy: str = REMEDY
) -> tuple[int, dict[str, Any]]:
    """Return a record's version and fields; (`version`, {}) where there is no record.

    `forms` has the form of each field that is known. A field of version 1 that is itself called `version` is
    told from the record's by its form there.

    Raises:
        RecordError: it cannot be read, has a field of another form, or is newer than `version`.
    """
    try:
        fields = json.loads(read_regular(path), parse_constant=_no_number, parse_float=_number)
    except FileNotFoundError:
        return version, {}
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error, remedy) from error
    if not isinstance(fields, dict):
        raise damaged(path, f"expected an object, found {type(fields).__name__}", remedy)
    plain = "version" not in fields or fits(fields["version"], forms.get("version"))
    found = 1 if plain else fields.pop("version")
    if type(found) is not int or found < 1:
        raise damaged(path, f"expected a version from 1 on, found {found!r}", remedy)
    if found > version:
        raise RecordError(
            f"The record {path} has version {found}, and this Temper knows {version} at most: run the newer "
            "Temper that wrote it. Nothing was changed."
        )
    for name, form in forms.items():
        if name in fields:
            expect(path, name, fields[name], form, remedy)
    return found, fields


def expect(path: Path, name: str, value: Any, form: Form, remedy: str = REMEDY) -> None:
    """Raise RecordError where what a record says has another form; `name` is what it says that of."""
    forms = form if isinstance(form, tuple) else (form,)
    objects = [one for one in forms if isinstance(one, dict) and str not in one]
    if isinstance(value, dict) and len(objects) == 1:
        for field, one in objects[0].items():
            expect(path, f"{field} of {name}", value.get(field, ...), one, remedy)
    elif not fits(value, form):
        found = "nothing" if value is ... else repr(value)[:60]
        expected = re.sub(r"<class '(\w+)'>", r"\1", repr(form)).replace("Ellipsis", "nothing")
        raise damaged(path, f"expected {name} as {expected}, found {found}", remedy)


def fits(value: Any, form: Form) -> bool:
    """Return whether a value has a form."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, list):
        forms = form if len(form) > 1 else form * len(value) if isinstance(value, list) else []
        return type(value) is list and len(value) == len(forms) and all(map(fits, value, forms))
    if isinstance(form, dict):
        if type(value) is not dict:
            return False
        if str in form:
            return all(fits(one, form[str]) for one in value.values())
        return all(fits(value.get(name, ...), one) for name, one in form.items())
    if value is ... or form in (None, ...):
        return value is form
    return form is object or type(value) is form


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
