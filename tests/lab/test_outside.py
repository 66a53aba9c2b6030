"""What a node does not say of itself is seen from outside, and keeps a change from being confirmed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hardening import EXPORTER, NODES, SOON, Hardened

pytestmark = pytest.mark.lab

#: A second sshd gets what comes for the first one, and no setting of the first one says so.
SECOND = (
    "systemd-run --quiet --unit=second /usr/sbin/sshd -D -p 9100 -oPidFile=none -oAuthenticationMethods=any "
    "-oPasswordAuthentication=yes && nft 'table inet second { chain prerouting { "
    "type nat hook prerouting priority -100; tcp dport 22 redirect to :9100; }; }'"
)
#: Pages on a port that nobody has planned, over both IP versions.
SERVICE = "systemd-run --quiet --unit=unplanned python3 -m http.server 8080 --bind ::"
OPEN_OVER_IPV6 = "nft insert rule inet temper input meta nfproto ipv6 tcp dport 8080 accept"


def seen(fleet: Hardened, folder: Path, **variables: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Each node's controls after a compliance check, by their ids."""
    hosts = {node: {"compliance_outside_addresses": [fleet.nodes[node].address6]} for node in NODES}
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    reports = {"compliance_reports_directory": str(folder), "gpu_validation_reports_directory": str(folder)}
    sources = ("-i", "inventory/lab", "-i", str(inventory))
    done = fleet.run(fleet.command_line("compliance", *sources, **reports | variables))
    told = json.loads((folder / "latest" / "statement.json").read_text())
    assert {one["node"] for one in told["nodes"]} == set(NODES), done.output
    return {one["node"]: {control["id"]: control for control in one["controls"]} for one in told["nodes"]}


def test_hardened_nodes_pass_and_nothing_is_held_against_this_machine(
    fleet: Hardened, tmp_path: Path
) -> None:
    """Twice in a row, and without its exemption from sshd's penalties, which Debian 13 has."""
    exempt = {"ssh_hardening_penalty_exempt_networks": ["192.0.2.1"]}
    assert fleet.harden(**exempt).status == 0
    try:
        for _ in range(2):
            for node, controls in seen(fleet, tmp_path, **exempt).items():
                found = {name: one for name, one in controls.items() if name.startswith("outside/")}
                assert {one["state"] for one in found.values()} == {"pass"}, (node, found)
        journal = "journalctl --boot --identifier=sshd --identifier=sshd-session; faillock || true"
        for text in fleet.side_door(journal).values():
            assert "Invalid user temper-outside" in text
            for word in ("Failed password", "Failed none", "authentication failure", "drop connection"):
                assert word not in text
    finally:
        assert fleet.harden().status == 0
    fleet.assert_everybody_gets_in()


def test_another_sshd_at_the_port_is_found_and_keeps_changes_from_being_confirmed(
    fleet: Hardened, tmp_path: Path
) -> None:
    opened = {"firewall_rules": [EXPORTER]}
    assert fleet.harden(**opened).status == 0
    fleet.side_door(SECOND)
    try:
        for controls in seen(fleet, tmp_path, **opened).values():
            assert controls["ssh_hardening/sshd"]["state"] == "pass"
            found = controls["outside/ssh-methods"]
            assert found["state"] == "fail"
            assert "the node itself says that ssh_hardening/sshd is as it should be" in found["reason"]
            assert {change["before"] for change in found["changes"]} == {"password, publickey"}
            assert controls["outside/ssh-root"]["state"] == "fail"
            assert "--tags ssh_hardening" in found["remedy"]
        run = fleet.harden(ssh_hardening_max_auth_tries=3, **SOON, **opened)
        assert run.status != 0
        assert "found password, publickey, wanted publickey" in run.said
        fleet.assert_undone("no new connection confirmed it", **opened)
    finally:
        fleet.side_door("nft delete table inet second; systemctl stop second")
        assert fleet.harden().status == 0
    fleet.assert_everybody_gets_in()


@pytest.mark.smoke
def test_port_that_answers_over_ipv6_alone_is_found(fleet: Hardened, tmp_path: Path) -> None:
    fleet.side_door(f"{SERVICE} && {OPEN_OVER_IPV6}")
    try:
        for node, controls in seen(fleet, tmp_path).items():
            found = controls["outside/ports"]
            assert found["state"] == "fail"
            assert [change["name"] for change in found["changes"]] == [
                f"tcp [{fleet.nodes[node].address6}]:8080"
            ]
    finally:
        fleet.side_door("systemctl stop unplanned; systemctl reload temper-firewall")
