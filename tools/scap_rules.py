"""Write data/scap/streams.yml: which rules ComplianceAsCode's data streams ask of a Debian server.

    python3 -m tools.scap_rules    read the streams that `make scap` has unpacked, and say so if they changed

A rule that is new has no answer yet, and tests/unit/compliance/test_tailoring.py fails until
data/os_controls or data/scap/rules.yml has one.
"""

from __future__ import annotations

import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

from temper.compliance.tailoring import CONTENT, STREAM_PROFILES, XCCDF
from tools.bootstrap import SCAP, SCAP_PACKAGE
from tools.documents import ROOT, write

FILE = ROOT / "data" / "scap" / "streams.yml"
STREAMS = SCAP / "usr" / "share" / "xml" / "scap" / "ssg" / "content"
PRODUCTS = ("debian12", "debian13")
HEAD = f"""\
---
# Made by `python3 -m tools.scap_rules` from {Path(SCAP_PACKAGE).name}: change that.
# The rules of the profiles {" and ".join(STREAM_PROFILES.values())} in each data stream.
streams:
"""


def rules(stream: Path) -> dict[str, str]:
    """Return the rules of a stream, each with the lowest level that has it. Raises OSError, ET.ParseError."""
    found: dict[str, str] = {}
    profiles = {f"{CONTENT}_profile_{name}": level for level, name in STREAM_PROFILES.items()}
    selected: dict[str, list[str]] = {}
    # The package's checksum is pinned.
    for profile in ET.parse(stream).getroot().iter(f"{{{XCCDF}}}Profile"):  # noqa: S314
        if level := profiles.get(profile.get("id", "")):
            chosen = (one for one in profile.iter(f"{{{XCCDF}}}select") if one.get("selected") == "true")
            selected[level] = [one.get("idref", "") for one in chosen]
    for level in STREAM_PROFILES:
        for rule in selected[level]:
            if rule.startswith(prefix := f"{CONTENT}_rule_"):
                found.setdefault(rule.removeprefix(prefix), level)
    return found


def text() -> str:
    """Return the file."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    by_product = {product: rules(STREAMS / f"ssg-{product}-ds.xml") for product in PRODUCTS}
    for rule in sorted({rule for found in by_product.values() for rule in found}):
        where = tuple((product, found[rule]) for product, found in by_product.items() if rule in found)
        groups.setdefault(where, []).append(rule)
    parts = [HEAD]
    for where, names in sorted(groups.items()):
        parts.append(
            f"  - in: {{{', '.join(f'{product}: {level}' for product, level in where)}}}\n    rules:\n"
        )
        listed = textwrap.fill(", ".join(names), 130, break_on_hyphens=False, break_long_words=False)
        parts.append(textwrap.indent(f"[{listed}]", " " * 6).replace("\n", "\n ") + "\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(write({FILE: text()}))
