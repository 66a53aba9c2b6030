"""Settings of GPUs on a real node: made once, refused where somebody is in the way, back after a reboot.

The tests run in the order in which they stand. The node's nvidia-smi is the lab's, with eight H100.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.rollout import gate, gpu_settings
from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.hardening import wait_until
from tests.lab.settings import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="gpuset"), size=1)
(NODE,) = FLEET.lab.nodes(1)
WANTED: dict[str, Any] = {
    "gpu_settings_clocks": "efficient",
    "gpu_settings_power_limit_percent": 80,
    "gpu_settings_ecc": False,
    "gpu_settings_mig": {"0": ["3g.40gb", "3g.40gb"], "all": "disabled"},
    "gpu_settings_mig_change_ok": True,
}
UNIT = "temper-gpu-settings"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """A node with the stack, and nothing left of it afterwards."""
    with FLEET.booted():
        run = FLEET.playbook("provision")
        assert run.status == 0, run.output
        yield


def tune(**variables: Any) -> Run:
    run = ["ansible-playbook", "playbooks/tune.yml", "--tags", "gpu_settings", "--extra-vars"]
    return FLEET.run([*run, json.dumps({**WANTED, **variables})])


def query(fields: str) -> list[list[str]]:
    text = on_node(NODE, f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits")
    return [line.split(", ") for line in text.splitlines()]


def layout() -> list[str]:
    return [line.split()[1] for line in on_node(NODE, "nvidia-smi -L").splitlines() if "  MIG " in line]


def test_intents_become_settings_once() -> None:
    run = tune()
    assert run.status == 0, run.output
    assert "ECC mode is Enabled until the next reboot, then Disabled" in run.said
    assert query("clocks.gr,power.limit,ecc.mode.pending") == [["1380", "560.00", "Disabled"]] * 8
    assert layout() == ["3g.40gb", "3g.40gb"]


def test_compliance_knows_the_reboot_that_is_due(tmp_path: Path) -> None:
    run = FLEET.playbook("compliance", None, compliance_reports_directory=str(tmp_path), **WANTED)
    statement = json.loads((tmp_path / "latest" / "statement.json").read_text())
    controls = {control["id"]: control for control in statement["nodes"][0]["controls"]}
    assert controls["gpu_settings/gpu:settings"]["state"] == "pass", run.output
    assert controls["node/reboot"]["state"] == "fail"
    assert "ECC mode is Enabled until the next reboot" in json.dumps(controls["node/reboot"])


def test_who_uses_a_gpu_is_named_and_keeps_its_layout() -> None:
    # What stands for a device file here is a file; the kernel names it alike.
    run = "systemd-run --quiet --unit=holder --service-type=exec --property=StandardInput=file:/dev/nvidia0"
    on_node(NODE, f"touch /dev/nvidia0; {run} sleep 600")
    try:
        refused = tune(gpu_settings_mig={"all": ["7g.80gb"]})
    finally:
        on_node(NODE, "systemctl stop holder")
    assert refused.status != 0
    assert "holder.service) holds /dev/nvidia0, so its MIG layout stays as it is" in refused.said
    assert layout() == ["3g.40gb", "3g.40gb"]
    assert "7g.80gb" not in on_node(NODE, "cat /etc/temper/gpu-settings.json")


def test_after_a_reboot_everything_is_there_again_before_containers_start() -> None:
    before = gpu_settings.parse(on_node(NODE, "nvidia-smi -q -x"))
    labs.reboot(NODE)
    wait_until(
        lambda: on_node(NODE, f"systemctl show --value --property=ActiveState {UNIT}").strip() == "active",
        f"{UNIT} has ended",
    )
    assert layout() == ["3g.40gb", "3g.40gb"]
    assert query("clocks.gr,power.limit,ecc.mode.current") == [["1380", "560.00", "Disabled"]] * 8
    assert "docker.service" in on_node(NODE, f"systemctl show --value --property=Before {UNIT}")
    lost: list[str] = []
    gate.judge_settings(before, gpu_settings.parse(on_node(NODE, "nvidia-smi -q -x")), lost, [])
    assert lost == []
    assert tune().changed(NODE) == 0


def test_clocks_in_mhz_are_those_that_the_gpu_lists() -> None:
    refused = tune(gpu_settings_clocks={"graphics": 1757})
    assert refused.status != 0
    assert "expected a graphics clock that it has, found 1757 MHz; nearest: 1755 and 1770 MHz" in refused.said
    run = tune(gpu_settings_clocks={"graphics": 1755})
    assert run.status == 0, run.output
    assert query("clocks.gr") == [["1755"]] * 8
