"""A node that the other is reached through: hardened last, it still forwards, and that is proven first."""

import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fleet import Run
from tests.lab.hardening import NODES, SOON, Hardened, changed, wait_until

pytestmark = pytest.mark.lab
#: Later in sshd's order than the role's file, and read by sshd when the role has it reload.
SITE = "/etc/ssh/sshd_config.d/60-site.conf"


class Jump:
    """The lab, with gpu02 reached through gpu01 alone."""

    def __init__(self, fleet: Hardened, folder: Path) -> None:
        self.fleet = fleet
        self.address = fleet.nodes["gpu02"].address
        known = f"-o UserKnownHostsFile={fleet.lab.known_hosts} -o StrictHostKeyChecking=yes"
        common = f"-F /dev/null {known} -o GlobalKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
        proxy = (
            f"ssh {common} -i {fleet.lab.ssh_key} -o ControlMaster=auto -o ControlPersist=60 "
            f"-o ControlPath={folder}/%%C -W %h:%p -q ops@{fleet.nodes['gpu01'].address}"
        )
        arguments = f"{common} -o ProxyCommand={shlex.quote(proxy)}"
        hosts = {"gpu01": {}, "gpu02": {"ansible_ssh_common_args": arguments}}
        self.folder = folder
        self.inventory = folder / "jump.json"
        # Connections of its own: one that leads straight to gpu02 would be taken.
        shared = {"ansible_control_path_dir": str(folder)}
        self.inventory.write_text(json.dumps({"gpu_nodes": {"hosts": hosts, "vars": shared}}))

    def harden(self, *arguments: str, **variables: object) -> Run:
        both = ("--inventory", "inventory/lab", "--inventory", str(self.inventory))
        return self.fleet.harden(*both, *arguments, **variables)

    def disconnect(self) -> None:
        """End the connections that runs leave open."""
        for path in self.folder.iterdir():
            if path.is_socket():
                subprocess.run(["ssh", "-O", "exit", "-S", str(path), "x"], check=False, capture_output=True)

    def forwarding(self) -> dict[str, str]:
        return {
            node: next(line.split()[1] for line in text.splitlines() if line.startswith("allowtcpforwarding"))
            for node, text in self.fleet.side_door("sshd -T").items()
        }


@pytest.fixture
def jump(fleet: Hardened) -> Iterator[Jump]:
    # Short: a socket's path has an end.
    with tempfile.TemporaryDirectory() as folder:
        jump = Jump(fleet, Path(folder))
        try:
            yield jump
        finally:
            jump.disconnect()
            assert fleet.harden().status == 0


@pytest.mark.smoke
def test_both_are_hardened_in_one_run(jump: Jump) -> None:
    """On nodes that nobody has hardened. The connection that the ways share would hide a cut."""
    assert jump.fleet.harden(ssh_hardening_state="absent").status == 0
    run = jump.harden()
    assert run.status == 0, run.output
    assert "jump host of gpu02" in run.output
    assert jump.forwarding() == {"gpu01": "local", "gpu02": "no"}
    assert changed(jump.harden()) == dict.fromkeys(NODES, 0)


def test_a_jump_host_of_others_is_refused(jump: Jump) -> None:
    """An inventory that does not say so, while somebody is on the way through the node."""
    assert jump.harden("--limit=gpu01").status == 0
    assert jump.harden().status == 0
    refused = jump.fleet.harden()
    assert f"This node is a jump host: sshd forwards connections of ops to {jump.address}" in refused.said
    assert jump.forwarding()["gpu01"] == "local"
    decided = jump.fleet.harden(ssh_hardening_tcp_forwarding="no")
    assert decided.status == 0, decided.output
    assert jump.forwarding()["gpu01"] == "no"


def test_a_jump_host_that_forbids_forwarding_is_named_and_heals(jump: Jump) -> None:
    assert jump.forwarding()["gpu01"] == "no"
    run = jump.harden()
    assert run.status != 0
    assert "gpu02 is reached through gpu01, which forbids forwarding" in run.said
    assert jump.forwarding()["gpu01"] == "local"
    # sshd gives a connection the settings of its time.
    stale = jump.harden("--limit=gpu02")
    assert "ControlMaster" in stale.said
    jump.disconnect()
    assert jump.harden().status == 0


def test_an_operator_who_forbids_it_is_refused(jump: Jump) -> None:
    run = jump.harden(ssh_hardening_tcp_forwarding="no")
    assert run.status != 0
    assert "ssh_hardening_tcp_forwarding is no: through this node, this machine reaches gpu02" in run.said
    assert changed(run)["gpu01"] == 0


def test_what_cuts_the_way_is_not_confirmed(jump: Jump) -> None:
    """The site's block forbids what the role's file allows, once sshd has read it."""
    assert jump.harden("--limit=gpu01").status == 0
    jump.fleet.side_door(f"printf 'Match User ops\\n    AllowTcpForwarding no\\n' >{SITE}")
    try:
        run = jump.harden("--limit=gpu01", ssh_hardening_max_auth_tries=3, **SOON)
        assert run.status != 0
        assert "gpu02 is reached through gpu01, which forbids forwarding" in run.said
        assert "Nothing is confirmed, so gpu01 restores itself" in run.said
    finally:
        jump.fleet.side_door(f"rm {SITE}; systemctl reload ssh")
        wait_until(lambda: not jump.fleet.pending("ssh"), "the change is undone")
    assert "maxauthtries 4" in jump.fleet.side_door("sshd -T")["gpu01"]
