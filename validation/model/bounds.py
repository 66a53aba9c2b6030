"""How large a value of a document may be: declared beside its field, checked by the reader, in the schema.

A document may come from a machine that somebody has taken over. What has no bounds of its own has the default
ones of its type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

#: The defaults: characters of a text and of a name in an object (a path is one), items of a list or object,
#: whole numbers either way (counters of drivers have 64 bits), other numbers either way, and how deep free
#: values may nest.
MOST_CHARACTERS = 1 << 20
MOST_KEY = 4 << 10
MOST_ITEMS = 100_000
MOST_WHOLE = 2**64
MOST_NUMBER = 1e18
MOST_DEPTH = 16
#: A clock that says another year than these is not set.
FIRST_YEAR, LAST_YEAR = 2020, 2099
#: What no file, terminal or database takes: NUL, and half of a surrogate pair.
UNWRITABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Bounds:
    """The range of a number, or the most characters of a text, or the most items of a list or an object.

    `moment`: a text is a time with a zone, as ISO 8601 writes it. `pattern`: all of a text matches it.
    """

    most: float
    least: float | None = None
    moment: bool = False
    pattern: str = ""


#: A name, version or identifier.
Name = Annotated[str, Bounds(256)]
#: A time with a zone. It is read as the same time in UTC, so that two of them compare as text.
Moment = Annotated[str, Bounds(40, moment=True)]
#: The index of a GPU.
Index = Annotated[int, Bounds(255, 0)]
#: A count of things, or a version.
Count = Annotated[int, Bounds(2**31, 0)]
#: For how long something took, in seconds; a burn-in takes weeks at most.
Seconds = Annotated[float, Bounds(1e8, 0)]


def moment(text: str) -> datetime:
    """Return a time with a zone, in UTC, from ISO 8601. Raises ValueError with what was expected."""
    expected = "expected a time with a zone, such as 2026-11-20T12:00:00+00:00"
    try:
        # Python 3.10 does not know Z.
        found = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    except ValueError as error:
        raise ValueError(expected) from error
    if found.tzinfo is None:
        raise ValueError(expected)
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(f"expected a time between {FIRST_YEAR} and {LAST_YEAR}: the clock was not set")
    return found.astimezone(timezone.utc)
