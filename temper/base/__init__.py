"""What the other packages of the controller stand on."""

import os
from pathlib import Path

#: Temper's checkout.
ROOT = Path(__file__).resolve().parents[2]
#: Its tables of facts.
DATA = ROOT / "data"


def typed(path: str | Path) -> str:
    """Return a path as the operator would type it here."""
    here = Path.cwd()
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) else str(path)
