"""Take the pictures of reports that the documentation shows: of a made-up fleet, which every picture says.

    python -m tools.screenshots    write docs/images/*.png, with Debian's Chromium

The fleet is tests/unit/pages/made_up.py's, the same every time; fonts and the browser's version are not, so
that no test compares pixels. Exit status: 0, or 1 where a picture is larger than it should be.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from temper.report.inputs import Report
from temper.report.write import write
from tests.unit.pages import made_up
from tests.unit.pages.browser import chromium

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
MOST_BYTES = 200_000
NODES = 24
GPU_MATMUL, GPU_PEERS = (f"section[aria-labelledby$={test}]" for test in ("gpu_matmul", "gpu_peers"))
WIDTH = 1280
#: Of each picture: the report's parts, the node that is opened, what it begins at, its height, the scheme.
PICTURES = {
    "report-fleet": ("validation", "", "body", 1130, "light"),
    "report-nodes": ("validation", "", "section[aria-labelledby=nodes]", 760, "light"),
    "report-telemetry": (
        "validation",
        made_up.THROTTLING,
        f"{GPU_MATMUL} h3",
        800,
        "light",
    ),
    "report-links": ("validation", made_up.BAD_LINK, GPU_PEERS, 800, "dark"),
    "report-compliance": ("compliance", "", "body", 880, "light"),
}


def main() -> int:
    """Take all of them; returns the exit status."""
    whole = made_up.report(NODES)
    reports = {
        "validation": Report(validation=whole.validation, label=whole.label),
        "compliance": Report(compliance=whole.compliance, label=whole.label),
    }
    IMAGES.mkdir(exist_ok=True)
    too_large = False
    with tempfile.TemporaryDirectory() as folder, chromium(WIDTH) as browser:
        files = {part: write(Path(folder, part), report)[-1] for part, report in reports.items()}
        for name, (part, node, selector, height, scheme) in PICTURES.items():
            browser.prefer(scheme)
            browser.open(files[part], f"#node-{node}" if node else "")
            found = f"document.querySelector('{'article:target ' * bool(node)}{selector}')"
            top = browser.ask(f"Math.max(0, {found}.getBoundingClientRect().top + scrollY - 20)")
            picture = browser.picture(int(top), height, WIDTH)
            (IMAGES / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture) / 1e3:.0f} kB")
            too_large |= len(picture) > MOST_BYTES
    return int(too_large)


if __name__ == "__main__":
    sys.exit(main())
