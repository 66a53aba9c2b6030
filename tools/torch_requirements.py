"""Pin what comes with each torch of the tables, with hashes.

    python3 -m tools.torch_requirements              write the files that are missing
    python3 -m tools.torch_requirements 2.11.0       write this one anew

A file, requirements/torch/VERSION.txt, is for the newest patch of a release in data/nvidia_compatibility.yml,
for every Python and machine at once, from wheels alone. Only indexes are read, no wheel.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from temper.plan.tables import load_tables
from temper.plan.torch_wheels import FIRST_PYTHON, REQUIREMENTS
from temper.plan.versions import version

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "make torch-requirements"


def pin(torch: str, python: str) -> None:
    """Write the file of one torch, for this Python and later ones. Raises subprocess.CalledProcessError."""
    target = ROOT / REQUIREMENTS.format(torch)
    target.parent.mkdir(exist_ok=True)
    uv = [
        str(Path(sys.executable).with_name("uv")),
        "--no-config",
        "pip",
        "compile",
        "--quiet",
        "--universal",
    ]
    options = ["--generate-hashes", "--only-binary", ":all:", "--no-annotate", "--no-emit-index-url"]
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.in")
        wanted.write_text(f"torch=={torch}\n")
        place = [
            "--python-version",
            python,
            "--output-file",
            str(target),
            "--custom-compile-command",
            COMMAND,
        ]
        subprocess.run([*uv, *options, *place, str(wanted)], check=True)
    print(f"wrote {target.relative_to(ROOT)}")


def main(named: list[str]) -> int:
    """Write the files of the versions that are named, else those that are missing."""
    for row in load_tables(ROOT / "data").torch_releases.values():
        if row.last in named or not (named or (ROOT / REQUIREMENTS.format(row.last)).exists()):
            pin(row.last, max(row.first_python, FIRST_PYTHON, key=version))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
