"""What an operator gets wrong: each ends with a sentence, and running again completes the work.

One lab of two bare nodes for the whole file; the tests run in the order in which they stand.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.fleet import BIN, Fleet, Run, new_key, on_node
from tests.lab.gpu_simulator import profiles
from tests.lab.settings import CHECKOUT, Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LAB = Lab(name="badinput")
FIRST, SECOND = LAB.nodes(2)
WAIT_TIMEOUT_S = 600
FLEET = Fleet(LAB)


def playbook(name: str, *arguments: str, **variables: object) -> Run:
    """Run a playbook on the lab with extra variables."""
    return FLEET.run(["ansible-playbook", name, *arguments, "--extra-vars", json.dumps(variables)])


def snapshot(node: Node) -> str:
    """What the roles would have changed on a node."""
    return on_node(
        node, "dpkg-query -W | sha256sum; ls -R /etc/apt /etc/modprobe.d /etc/ssh /etc/systemd/system"
    )


@pytest.mark.smoke
def test_every_problem_of_a_node_stands_in_one_list_and_nothing_is_changed() -> None:
    before = snapshot(FIRST)
    result = playbook(
        "site.yml",
        nvidia_stack_nam="r580-cuda13.0",
        ssh_hardening_ports=["ssh"],
        preflight_minimum_free_gib=1_000_000,
    )
    assert result.status != 0
    assert (
        "nvidia_stack_nam: no role has a variable of this name; did you mean nvidia_stack_name?"
        in result.output
    )
    assert "ssh_hardening_ports: expected a list of whole numbers, found ['ssh']" in result.output
    assert "GiB free, the stack needs 1000000 GiB there" in result.output
    assert {row["changed"] for name, row in result.recap.items() if name != "localhost"} == {0}
    assert snapshot(FIRST) == before


def test_a_node_that_cannot_be_reached_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    key = new_key(tmp_path)
    nobody = LAB.nodes(90)[-1].address
    extra = tmp_path / "more.yml"
    extra.write_text(
        json.dumps(
            {
                "gpu_nodes": {
                    "hosts": {
                        "away": {"ansible_host": nobody},
                        SECOND.name: {
                            "ansible_ssh_private_key_file": str(key),
                            # Not over a connection that is still open from before.
                            "ansible_ssh_extra_args": "-o ControlPath=none",
                        },
                    }
                }
            }
        )
    )
    result = playbook(
        "playbooks/preflight.yml",
        "--inventory",
        "inventory/lab",
        "--inventory",
        str(extra),
        ansible_timeout=5,
    )
    assert result.status != 0
    rows = result.recap
    assert rows[FIRST.name]["failed"] == 0
    assert rows["away"]["failed"] == rows[SECOND.name]["failed"] == 1
    assert f"{nobody} cannot be reached over SSH as ops" in result.output
    assert "Permission denied (publickey" in result.output


def test_an_unknown_gpu_is_refused_unless_it_is_allowed() -> None:
    hardware = "/var/lib/gpu-simulator/hardware.json"
    unknown = json.dumps(profiles.hardware("unknown-1", SECOND.name))
    on_node(SECOND, f"cp {hardware} {hardware}.known; cat >{hardware} <<'END'\n{unknown}\nEND")
    FLEET.command("reboot", SECOND.name)
    try:
        refused = playbook("playbooks/preflight.yml")
        allowed = playbook("playbooks/preflight.yml", preflight_unknown_gpu_ok=True)
    finally:
        on_node(SECOND, f"mv {hardware}.known {hardware}")
        FLEET.command("reboot", SECOND.name)
    assert refused.recap[SECOND.name]["failed"] == 1
    assert refused.recap[FIRST.name]["failed"] == 0
    assert "is in no table; add it to data/gpu_models.yml" in refused.output
    assert allowed.status == 0
    assert "validation has no reference for it" in allowed.output


def test_an_unknown_operating_system_is_refused() -> None:
    on_node(
        SECOND, "cp /etc/os-release /root/known; printf 'ID=plan9\\nPRETTY_NAME=\"Plan 9\"\\n' >/root/new"
    )
    on_node(SECOND, "mount --bind /root/new /etc/os-release")
    try:
        result = playbook("playbooks/preflight.yml")
    finally:
        on_node(SECOND, "umount /etc/os-release")
    assert result.recap[SECOND.name]["failed"] == 1
    assert "operating system Plan 9 is not supported; expected one of: debian-12, debian-13" in result.output


def test_a_key_that_is_not_pinned_is_refused_before_it_is_trusted() -> None:
    fingerprint = "EB693B3035CD5710E231E123A4B469963BF863CC"
    result = playbook("playbooks/provision.yml", nvidia_stack_cuda_key_fingerprints=[fingerprint])
    assert result.status != 0
    assert f"expected one of {fingerprint}" in result.output
    assert (
        on_node(FIRST, "ls /etc/apt/keyrings /etc/apt/sources.list.d | grep -c temper- || true").strip()
        == "0"
    )


def test_a_run_that_is_interrupted_is_completed_by_the_next() -> None:
    command = [str(BIN / "ansible-playbook"), "playbooks/provision.yml"]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=FLEET.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as run:
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        unpacking = 'test -n "$(pgrep --exact dpkg)" && echo yes || true'
        while on_node(FIRST, unpacking).strip() != "yes":
            assert run.poll() is None, "the run ended before it could be interrupted"
            assert time.monotonic() < deadline, "dpkg did not start"
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=WAIT_TIMEOUT_S) != 0
    again = playbook("playbooks/provision.yml", nvidia_stack_reboot_ok=False)
    assert "driver 580.178.04 is loaded only by a reboot, because nouveau holds the GPUs" in again.output
    assert (again.status != 0, {row["changed"] for row in again.recap.values()}) == (True, {0})
    allowed = playbook("playbooks/provision.yml")
    assert allowed.status == 0, allowed.output
    settled = playbook("playbooks/provision.yml")
    assert settled.status == 0
    assert {row["changed"] for row in settled.recap.values()} == {0}
