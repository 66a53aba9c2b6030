"""What the other packages of the controller stand on."""

from pathlib import Path

#: Temper's checkout.
ROOT = Path(__file__).resolve().parents[2]
#: Its tables of facts.
DATA = ROOT / "data"
