"""The order of versions, as PEP 440 has it: 2rc1 before 2, 2 before 2.post1, 2.9 before 2.10.

Nodes have no package for it. Its spellings are taken, too: 2-rc1, 2.rc.1 and v2rc1 are one version.
"""

from __future__ import annotations

import re

FORM = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_number>\d*))?"
    r"(?:-(?P<bare_post>\d+)|(?P<post>[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*)))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE | re.ASCII,
)
LONGEST = 200
#: Before all numbers and names of the place that it stands in, or after them.
FIRST, LAST = (-1,), (1,)
PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}


def key(text: str) -> tuple[object, ...] | None:
    """What a version is sorted by; None where the text is no version."""
    found = FORM.fullmatch(text) if len(text) <= LONGEST else None
    if not found:
        return None
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    post = found["bare_post"] or found["post"]
    if found["pre"]:
        pre: tuple[int, ...] = (0, PRE[found["pre"].lower()], int(found["pre_number"] or 0))
    else:
        # 2.dev1 comes before 2a1.
        pre = FIRST if found["dev"] and not post else LAST
    local = re.split(r"[-_.]", found["local"].lower()) if found["local"] else []
    return (
        int(found["epoch"] or 0),
        tuple(release),
        pre,
        (0, int(found["bare_post"] or found["post_number"] or 0)) if post else FIRST,
        (0, int(found["dev_number"] or 0)) if found["dev"] else LAST,
        tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in local),
    )
