"""Take the pictures of reports that the documentation shows: of a made-up fleet, which every picture says.

    python -m tools.screenshots    write docs/images/*.png, with Debian's Chromium

The fleet is tests/unit/pages/made_up.py's, the same every time; fonts and the browser's version are not, so
that no test compares pixels. Exit status: 0, or 1 where a picture is larger than it should be.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from temper.report.write import write
from tests.unit.pages import made_up
from tests.unit.pages.browser import chromium

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
MOST_BYTES = 200_000
NODES = 24
GPU_MATMUL, GPU_PEERS = (f"section[aria-labelledby$={test}]" for test in ("gpu_matmul", "gpu_peers"))
#: Of A4 without its margins, in the pixels of CSS.
PAPER_WIDTH = 703


class Picture(NamedTuple):
    """A part of a page: the report's parts, the node that is opened, what it begins at, how it is seen."""

    part: str
    height: int
    node: str = ""
    begins: str = "body"
    scheme: str = "light"
    width: int = 1280
    media: str = ""


PICTURES = {
    "report-fleet": Picture("validation", 940),
    "report-nodes": Picture("validation", 900, begins="section[aria-labelledby=nodes]"),
    "report-telemetry": Picture("validation", 800, made_up.THROTTLING, f"{GPU_MATMUL} h3"),
    "report-links": Picture("validation", 800, made_up.BAD_LINK, GPU_PEERS, "dark"),
    "report-compliance": Picture("compliance", 1000),
    "report-narrow": Picture("compliance", 1030, width=400),
    # What stands on the first sheet.
    "report-print": Picture("both", 550, width=PAPER_WIDTH, media="print"),
}


def main() -> int:
    """Take all of them; returns the exit status."""
    whole = made_up.report(NODES)
    reports = {
        "validation": replace(whole, compliance=None),
        "compliance": replace(whole, validation=None),
        "both": whole,
    }
    IMAGES.mkdir(exist_ok=True)
    too_large = False
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        files = {part: write(Path(folder, part), report)[-1] for part, report in reports.items()}
        for name, one in PICTURES.items():
            browser.width(one.width)
            browser.prefer(one.scheme)
            browser.open(files[one.part], f"#node-{one.node}" if one.node else "")
            browser.prefer(one.scheme, one.media)
            found = f"document.querySelector('{'article:target ' * bool(one.node)}{one.begins}')"
            top = browser.ask(f"Math.max(0, {found}.getBoundingClientRect().top + scrollY - 20)")
            picture = browser.picture(int(top), one.height, one.width)
            (IMAGES / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture) / 1e3:.0f} kB")
            too_large |= len(picture) > MOST_BYTES
    return int(too_large)


if __name__ == "__main__":
    sys.exit(main())
