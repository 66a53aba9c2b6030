"""Write data/scap/streams.yml: which rules ComplianceAsCode's data streams ask of a server.

    python3 -m tools.scap_rules    read the streams that `make scap` has unpacked, and say so if they changed

A rule that is new has no answer yet, and tests/unit/compliance/test_tailoring.py fails until
data/os_controls or data/scap/rules.yml has one.
"""

from __future__ import annotations

import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

from temper.compliance.tailoring import CONTENT, STREAM_PROFILES, XCCDF, stream_profile
from temper.plan.os_controls import distribution_of
from temper.plan.os_systems import systems
from tools.bootstrap import SCAP, SCAP_PACKAGES
from tools.documents import ROOT, write

FILE = ROOT / "data" / "scap" / "streams.yml"
SOURCES = ", ".join(Path(package).name for package in SCAP_PACKAGES)
HEAD = f"""\
---
# Made by `python3 -m tools.scap_rules` from {SOURCES}: change that.
# The rules of each data stream, and which of Temper's profiles are measured by them.
streams:
"""


def stream_of(product: str) -> Path:
    """Return the file with the data stream of a product."""
    return next(SCAP.glob(f"*/usr/share/xml/scap/ssg/content/ssg-{product}-ds.xml"))


def rules(product: str) -> dict[str, list[str]]:
    """Return the rules of a stream, each with the profiles that have it. Raises OSError, ET.ParseError."""
    found: dict[str, list[str]] = {}
    # The package's checksum is pinned.
    root = ET.parse(stream_of(product)).getroot()  # noqa: S314
    streamed = {one.get("id"): one for one in root.iter(f"{{{XCCDF}}}Profile")}
    for profile in STREAM_PROFILES:
        found_profile = streamed.get(f"{CONTENT}_profile_{stream_profile(product, profile)}")
        if found_profile is None:
            continue
        selects = found_profile.iter(f"{{{XCCDF}}}select")
        for rule in (one.get("idref", "") for one in selects if one.get("selected") == "true"):
            if rule.startswith(prefix := f"{CONTENT}_rule_"):
                found.setdefault(rule.removeprefix(prefix), []).append(profile)
    return found


def text() -> str:
    """Return the file. Rules that several distributions have stand with each."""
    families: dict[str, dict[str, dict[str, list[str]]]] = {}
    for system, one in systems().items():
        if one.stream:
            families.setdefault(distribution_of(system), {})[one.stream] = rules(one.stream)
    parts = [HEAD]
    for by_product in families.values():
        groups: dict[str, list[str]] = {}
        for rule in sorted({rule for found in by_product.values() for rule in found}):
            where = [
                f"{product}: [{', '.join(found[rule])}]"
                for product, found in by_product.items()
                if rule in found
            ]
            groups.setdefault(", ".join(where), []).append(rule)
        for place, names in sorted(groups.items()):
            parts.append(f"  - in: {{{place}}}\n    rules:\n")
            listed = textwrap.fill(", ".join(names), 130, break_on_hyphens=False, break_long_words=False)
            parts.append(textwrap.indent(f"[{listed}]", " " * 6).replace("\n", "\n ") + "\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(write({FILE: text()}))
