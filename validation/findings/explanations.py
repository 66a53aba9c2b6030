"""What each finding means, what usually causes it and what to do: `validation explain CODE`.

Codes are stable. A test proves that every code which this package can emit is explained here, or in one of
the files that this one joins.
"""

from __future__ import annotations

import difflib

from validation.findings import gpus, links, platform, tests, training, xids
from validation.findings.explanation import Explanation

EXPLANATIONS: dict[str, Explanation] = {
    **gpus.EXPLANATIONS,
    **platform.EXPLANATIONS,
    **links.EXPLANATIONS,
    **tests.EXPLANATIONS,
    **training.EXPLANATIONS,
}

EXPLANATIONS |= {
    f"xid-{number}": Explanation(
        f"Xid {number}: {entry.title}",
        "The driver wrote this to the kernel log since it was loaded",
        ("the finding has the log's last line, and NVIDIA's catalogue the possible causes",),
        (entry.action,),
        xids.SOURCE,
    )
    for number, entry in sorted(xids.REPORTED.items())
}
EXPLANATIONS["xid-unknown"] = Explanation(
    "An Xid that this program does not know",
    "The driver wrote it to the kernel log since it was loaded",
    ("a driver that is newer than this program",),
    (xids.UNKNOWN.action,),
    xids.SOURCE,
)


def explain(code: str) -> str:
    """All that is known of a code, for people. Raises KeyError."""
    found = EXPLANATIONS[code]
    lines = [f"{code}: {found.title}.", "", f"{found.meaning}."]
    for heading, items in (("Usual causes:", found.causes), ("What to do:", found.actions)):
        lines += ["", heading, *(f"  - {item}" for item in items)]
    return "\n".join([*lines, "", f"Source: {found.source}"]) + "\n"


def overview() -> str:
    """All codes with their titles."""
    width = max(map(len, EXPLANATIONS))
    return "\n".join(f"{code:<{width}}  {found.title}" for code, found in EXPLANATIONS.items()) + "\n"


def closest(code: str) -> str | None:
    """The code that somebody may have meant."""
    return next(iter(difflib.get_close_matches(code, EXPLANATIONS, n=1)), None)
