"""What the lab's tests of slices share."""

import subprocess
from pathlib import Path

import pytest

from temper.base import ROOT
from tests.lab import helpers


@pytest.mark.component
def test_a_campaign_knows_its_own_runs_alone(tmp_path: Path) -> None:
    """An operator's run in this checkout, or what a failed campaign has left, stops none."""
    command = helpers.command(tmp_path / "runs", "status")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, str(tmp_path / "runs") in done.stderr) == (2, True)
