"""Compliance on a real node: what site.yml made is compliant; each drift is named and repaired as printed."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lab import node_state
from tests.lab.fleet import BIN, Fleet, Run, on_node
from tests.lab.settings import CHECKOUT, Lab

pytestmark = pytest.mark.lab

FLEET = Fleet(Lab(name="comply"), size=1)
(NODE,) = FLEET.lab.nodes(1)
INVENTORY = """\
admin_accounts_users:
  - {name: alice, keys: ["{KEY}"]}
compliance_reports_directory: {REPORTS}/compliance
gpu_validation_reports_directory: {REPORTS}
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJLyR1Qn4Q3y0p6QeF3f2u1y0c3b8cVd0oVJ5r0T1f1N alice"
EXPIRED = {
    "control": "firewall/firewall",
    "reason": "a load balancer",
    "owner": "ada",
    "approver": "grace",
    "ticket": "OPS-7",
    "expires": "2026-01-01T00:00:00Z",
}

ANSIBLES = node_state.Exemption(
    r"file /home/ops/\.ansible/tmp(/.*)?", "removed as the measuring job of before ends"
)


class Drift(NamedTuple):
    """What somebody does on a node by hand, and the control that must fail for it."""

    script: str
    control: str


DRIFTS = (
    Drift("echo 'PermitRootLogin yes' >>/etc/ssh/sshd_config.d/00-temper.conf", "ssh_hardening/sshd"),
    # It wins over Temper's file: sshd takes the first line of a keyword.
    Drift("echo 'X11Forwarding yes' >/etc/ssh/sshd_config.d/00-a.conf", "ssh_hardening/sshd"),
    Drift("nft delete table inet temper", "firewall/firewall"),
    Drift("sysctl --quiet --write net.ipv4.conf.all.send_redirects=1", "os_hardening/send-redirects"),
    Drift("echo 'net.ipv4.conf.all.rp_filter = 0' >/etc/sysctl.d/99-local.conf", "os_hardening/reverse-path"),
    Drift("apt-mark unhold nvidia-driver-cuda", "nvidia_stack/package:set"),
    Drift(
        "systemctl mask --quiet --now nvidia-persistenced", "nvidia_stack/unit:nvidia-persistenced.service"
    ),
    Drift("useradd --groups sudo mallory", "node/administrators"),
    Drift("nvidia-smi --reset-gpu-clocks", "gpu_settings/gpu:settings"),
    Drift(
        "echo NCCL_DEBUG=INFO >>/etc/nccl.conf",
        "compute_environment/file:/etc/nccl.conf",
    ),
)


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the lab's inventory, what the operator wants of it."""
    folder = tmp_path_factory.mktemp("inventory")
    (folder / "hosts.yml").write_text("gpu_nodes: {}\n")
    (folder / "group_vars").mkdir()
    text = INVENTORY.replace("{KEY}", KEY).replace("{REPORTS}", str(folder.parent / "reports"))
    (folder / "group_vars" / "gpu_nodes.yml").write_text(text)
    return folder


def play(inventory: Path, playbook: str, **variables: object) -> Run:
    sources = ["-i", "inventory/lab", "-i", str(inventory)]
    return FLEET.run(["ansible-playbook", *sources, playbook, "--extra-vars", json.dumps(variables)])


@pytest.fixture(scope="module", autouse=True)
def node(inventory: Path) -> Iterator[None]:
    """A node as site.yml leaves it."""
    FLEET.command("down")
    FLEET.command("up", "--converged")
    run = play(inventory, "site.yml")
    assert run.status == 0, run.output
    yield
    FLEET.command("down")


def statement(inventory: Path) -> dict[str, Any]:
    latest = inventory.parent / "reports" / "compliance" / "latest"
    found: dict[str, Any] = json.loads((latest / "statement.json").read_text())
    return found


def failing(inventory: Path) -> dict[str, dict[str, Any]]:
    (told,) = statement(inventory)["nodes"]
    return {control["id"]: control for control in told["controls"] if control["state"] == "fail"}


@pytest.mark.smoke
def test_a_node_that_site_yml_has_made_is_compliant_and_left_as_it_is(inventory: Path) -> None:
    before = node_state.capture(NODE)
    run = play(inventory, "playbooks/compliance.yml")
    assert run.status == 0, run.output
    assert run.changed(NODE) == 0
    (told,) = statement(inventory)["nodes"]
    assert told["verdict"] == "compliant"
    assert not node_state.compare(before, node_state.capture(NODE), (*node_state.VOLATILE, ANSIBLES))


@pytest.mark.smoke
def test_every_drift_is_named_and_repaired_by_the_command_that_the_report_prints(inventory: Path) -> None:
    for drift in DRIFTS:
        on_node(NODE, drift.script)
    run = play(inventory, "playbooks/compliance.yml")
    assert run.status != 0
    found = failing(inventory)
    assert {drift.control for drift in DRIFTS} <= found.keys(), run.output
    for remedy in dict.fromkeys(control["remedy"] for control in found.values()):
        done = subprocess.run(
            ["sh", "-c", remedy],
            cwd=CHECKOUT,
            env={**FLEET.environment, "PATH": f"{BIN}:{FLEET.environment['PATH']}"},
            capture_output=True,
            text=True,
            timeout=FLEET.timeout_s,
        )
        assert done.returncode == 0, (remedy, done.stdout, done.stderr)
    run = play(inventory, "playbooks/compliance.yml")
    assert run.status == 0, run.output
    assert "fail -> pass" in run.output


def test_an_expired_waiver_and_a_wrong_one(inventory: Path) -> None:
    run = play(inventory, "playbooks/compliance.yml", compliance_waivers=[EXPIRED])
    assert run.status != 0
    assert "OPS-7" in run.said
    assert "expired at 2026-01-01T00:00:00Z" in run.said
    before = statement(inventory)
    run = play(
        inventory, "playbooks/compliance.yml", compliance_waivers=[EXPIRED | {"expires": "2027-01-01"}]
    )
    assert run.status != 0
    assert "expected an instant with a zone" in run.said
    assert statement(inventory) == before


def test_a_node_that_hangs_half_way_is_not_checked(inventory: Path) -> None:
    script = "#!/bin/sh\\necho $$ >>/run/hanging\\nexec sleep 3600\\n"
    on_node(
        NODE,
        f"mv /usr/sbin/nft /usr/sbin/nft.away; printf '{script}' >/usr/sbin/nft; chmod 755 /usr/sbin/nft",
    )
    try:
        run = play(inventory, "playbooks/compliance.yml", compliance_timeout_s=15)
    finally:
        on_node(
            NODE, "mv /usr/sbin/nft.away /usr/sbin/nft; xargs --no-run-if-empty kill </run/hanging || true"
        )
    assert run.status != 0
    told = statement(inventory)
    assert told["verdict"] == "not-checked"
    assert NODE.name in told["sentence"]
