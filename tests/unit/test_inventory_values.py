"""Values of an inventory are evaluated as in any task, by real Ansible on played nodes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hostile.test_hostile_node import Fleet
from tests.unit.planning_nodes import gpus, node

pytestmark = pytest.mark.component

PEERS = "{{ groups['gpu_nodes'] | map('extract', hostvars, 'ansible_host') | list }}"


SERVICES = ("slurmctld", "slurmd", "slurmdbd", "srun", "node_exporter", "dcgm_exporter")
#: Of each value what the plan of node01 has.
VALUES = {
    PEERS: ["192.0.2.11", "192.0.2.12"],
    "{{ [hostvars['node02'].ansible_host, '192.0.2.2'] }}": ["192.0.2.12", "192.0.2.2"],
    "{{ [hostvars[inventory_hostname]['ansible_host'], '192.0.2.3'] }}": ["192.0.2.11", "192.0.2.3"],
    "{{ ansible_play_hosts_all | map('regex_replace', 'node0', '192.0.2.10') | list }}": [
        "192.0.2.101",
        "192.0.2.102",
    ],
    # From the inventory, from a vault, and from a file beside the inventory.
    "{{ [lookup('vars', 'site_gateway'), vaulted, lookup('file', inventory_dir ~ '/gateway')] }}": [
        "192.0.2.4",
        "192.0.2.7",
        "192.0.2.8",
    ],
    "{{ ['192.0.2.9'] if playbook_dir is abs and not ansible_check_mode else [] }}": ["192.0.2.9"],
}


def test_a_value_sees_what_a_task_sees(tmp_path: Path) -> None:
    services = dict(zip(SERVICES, VALUES, strict=True))
    fleet = Fleet(tmp_path / "fleet", {"site_gateway": "192.0.2.4", "firewall_services": services})
    (fleet.folder / "group_vars/all").mkdir(parents=True)
    (fleet.folder / "gateway").write_text("192.0.2.8\n")
    secret = fleet.folder / "group_vars/all/vault.yml"
    secret.write_text("vaulted: 192.0.2.7\nansible_become_password: Correct-Horse-9\n")
    (tmp_path / "word").write_text("a word\n")
    option = f"--vault-password-file={tmp_path / 'word'}"
    vault = Path(sys.executable).with_name("ansible-vault")
    subprocess.run([vault, "encrypt", option, secret], check=True, capture_output=True)
    done = fleet.run("playbooks/preflight.yml", {}, option)
    assert done.returncode == 0, done.stdout
    document = json.dumps(json.loads((fleet.folder / "plan.json").read_text()))
    assert [found for found in VALUES.values() if json.dumps(found)[1:-1] not in document] == []
    assert "Correct-Horse-9" not in document + done.stdout


def test_a_value_that_cannot_be_evaluated_is_named(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", {"firewall_services": "{{ nobody_set_this }}"})
    done = fleet.run("playbooks/preflight.yml", {})
    assert "firewall_services: its value cannot be evaluated" in done.stdout


def test_one_machine_under_two_names_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    same = {"node_facts": {"ansible_facts": {"temper": node(boot_id="b1", pci=gpus("2330", "2330"))}}}
    done = fleet.run_with(dict.fromkeys(fleet.names, same), "site.yml")
    assert done.returncode == 2, done.stdout
    plan: dict[str, Any] = json.loads((fleet.folder / "plan.json").read_text())
    assert all("are one machine" in one["problems"][-1] for one in plan["nodes"].values())
    assert {call["module"] for call in fleet.calls} == {"node_facts", "package_preview", "node_programs"}
