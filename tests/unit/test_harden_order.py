"""In which order one run hardens nodes: what is reached through another node comes before that one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hostile.test_hostile_node import EVIL, GOOD, NAMES, Fleet

JUMP, BEHIND = EVIL, GOOD
pytestmark = pytest.mark.component


class Behind(Fleet):
    """Two played nodes, of which ssh reaches the second through the first."""

    def inventory(self) -> dict[str, Any]:
        """The way is one of ssh, which the played connection is not."""
        found = super().inventory()
        found["gpu_nodes"]["vars"]["__preflight_ways_by"] = "ssh"
        found["gpu_nodes"]["hosts"][NAMES[BEHIND]]["ansible_ssh_common_args"] = f"-F none -J {JUMP}"
        return found


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        # Without a role whose change could cut the way, nobody looks at those behind.
        pytest.param(["--tags=os_hardening"], [BEHIND, JUMP], marks=pytest.mark.nightly),
        (["--skip-tags=admin_accounts"], [BEHIND, JUMP]),
        (["--tags=os_hardening", f"--limit={NAMES[JUMP]}"], [JUMP]),
        (["--skip-tags=harden"], []),
    ],
)
def test_jump_host_is_hardened_after_those_behind_it(
    arguments: list[str], order: list[str], tmp_path: Path
) -> None:
    fleet = Behind(tmp_path / "fleet")
    done = fleet.run("playbooks/harden.yml", {}, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [call["node"] for call in fleet.calls if call["module"] == "node_settings"]
    assert asked == order
    assert NAMES[JUMP] in json.loads((tmp_path / "fleet/plan.json").read_text())["nodes"]
