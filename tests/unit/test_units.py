"""The sandbox of each unit that Temper writes, as docs/reference/units.md has it: systemd's own judgement."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.temper import image
from ansible.module_utils.temper.access import commit_confirm, firewall

from temper.base import DATA
from temper.plan.os_controls import MOUNT_UNIT_TEXT, load_controls, settings_of
from temper.plan.roles.settings import render
from temper.rollout.windows import systemd_units
from tests.unit.each import each

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
LOGGED = settings_of(load_controls(DATA / "os_controls")["log-martians"], "cis-level1")
UNITS = {
    "temper-pull.service": render("pull", "temper-pull.service", python=PYTHON, programs="/usr/local/lib"),
    "temper-metrics.service": render(
        "monitoring",
        "temper-metrics.service",
        **dict.fromkeys(("payload", "expectation", "maintenance", "output", "folder"), "/x"),
        python=PYTHON,
        interval_s=60,
    ),
    "temper-gpu-settings.service": render(
        "gpu_settings", "temper-gpu-settings.service", python=PYTHON, mig={}
    ),
    "temper-os-tuning.service": render(
        "os_tuning", "temper-os-tuning.service", path="/x", shm="50%", folder="/dev/shm"
    ),
    "temper-mount-options.service": MOUNT_UNIT_TEXT.format(commands="ExecStart=/bin/true"),
    **{Path(path).name: text for path, text in LOGGED["files"].items()},
    image.FIRST_BOOT: image.FIRST_BOOT_TEXT,
    firewall.UNIT: firewall.UNIT_TEXT,
    commit_confirm.BOOT_UNIT: commit_confirm.BOOT_UNIT_TEXT.format(state="/var/lib/temper"),
    "temper-rollout.service": systemd_units("/bin/true", "/srv/temper", "ops")["temper-rollout.service"],
}
#: What systemd judges and what stands in a unit by another name.
DIRECTIVE = re.compile(r"[A-Za-z]+")
#: Of which systemd the numbers of the page are.
JUDGE = "252"


def documented() -> tuple[dict[str, float], list[tuple[set[str], str]]]:
    """The exposure of each unit, and the directives that rows leave open, with the units that they name."""
    exposures, rows = {}, []
    for line in (ROOT / "docs/reference/units.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| `") else []
        if len(cells) == 5:
            exposures[cells[0].strip("`")] = float(cells[1])
        elif len(cells) == 3 and cells[2]:
            rows.append((set(re.findall(r"`(\w+)`", cells[0])), cells[1]))
    return exposures, rows


@each(*UNITS)
def test_each_unit_has_bounds(name: str) -> None:
    found = {line.partition("=")[0] for line in UNITS[name].splitlines()}
    assert {"MemoryMax", "TasksMax", "OOMScoreAdjust"} <= found


def test_the_page_has_each_unit() -> None:
    assert documented()[0].keys() == UNITS.keys()


def judged(text: str, folder: Path) -> tuple[float, set[str]]:
    """How exposed systemd calls a unit, and the directives that it misses."""
    path = folder / "judged.service"
    path.write_text(text)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    said = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found
    asked = [*command, "--json=short", str(path)]
    rows = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    missing = {match[0] for row in rows if row["set"] is False and (match := DIRECTIVE.match(row["name"]))}
    return float(found[1]), missing


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd judges its own units")
@pytest.mark.parametrize("name", UNITS)
def test_each_exposure_is_the_documented_one_and_has_its_reason(name: str, tmp_path: Path) -> None:
    exposures, rows = documented()
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True)
    exposure, missing = judged(UNITS[name], tmp_path)
    if version.stdout.split()[1] == JUDGE:
        assert exposure == exposures[name]
    known = {word for words, units in rows if units == "all" or f"`{name}`" in units for word in words}
    assert missing <= known
