"""What is installed is what the requirements ask for: pinned, hashed, from wherever pip is told to look."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = {"controller": PROJECT["project"]["dependencies"], "dev": PROJECT["dependency-groups"]["dev"]}
PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)
each_layer = pytest.mark.parametrize("layer", ["controller", "dev"])


def pins(layer: str) -> dict[str, str]:
    """Return the pinned versions by package."""
    return dict(PIN.findall((REQUIREMENTS / f"{layer}.txt").read_text()))


@each_layer
def test_every_wanted_package_is_pinned(layer: str) -> None:
    wanted = {re.split(r"[^a-z0-9-]", line.lower())[0] for line in WANTED[layer]}
    assert wanted
    assert wanted - pins(layer).keys() == set(), "run `make requirements`"


@each_layer
def test_every_pin_has_hashes_and_nothing_names_an_index(layer: str) -> None:
    text = (REQUIREMENTS / f"{layer}.txt").read_text()
    entries = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert set(re.findall(r"--[a-z-]+", text)) == {"--hash"}


def test_developers_environment_holds_the_controllers_at_the_same_versions() -> None:
    assert pins("controller").items() <= pins("dev").items(), "tools/bootstrap.py installs dev.txt alone"
