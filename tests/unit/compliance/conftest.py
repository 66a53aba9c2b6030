"""Reports of compliance in a folder of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from temper.base import DATA
from temper.report.compliance import Settings, check
from tests.unit.compliance.fleets import NOW, checked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    (inventory / "hosts.yml").write_text("gpu_nodes: {hosts: {gpu01: {}}}\n")
    return Settings(
        directory=tmp_path / "reports" / "compliance",
        validations=tmp_path / "reports",
        data=DATA,
        inventory=(inventory,),
        validation_max_age=timedelta(days=30),
        inventories=("inventory/mine",),
    )


@pytest.fixture
def reports(settings: Settings) -> Path:
    """Three reports."""
    for hours in range(3):
        check([checked()], settings, NOW + timedelta(hours=hours))
    return settings.directory
