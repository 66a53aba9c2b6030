#!/usr/bin/env python3
"""Ansible inventory of the lab on this machine: the nodes that run now. LAB_NAME chooses the lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import lab as labs
from tests.lab.process import LabError
from tests.lab.settings import ADMINISTRATOR, NETWORKS, Lab


def inventory(lab: Lab) -> dict[str, Any]:
    """The inventory of the running nodes.

    Raises:
        LabError: no node runs, or the lab is another checkout's. Without nodes, no run may end well.
    """
    labs.refuse_foreign(lab)
    status = labs.status(lab)
    nodes = [node for node in status["nodes"] if node["state"] != "off"]
    if not nodes:
        raise LabError(
            "The lab is not running. Start it with: make lab-up. For your own nodes: -i inventory/mine"
        )
    shared = {
        "ansible_user": ADMINISTRATOR,
        "ansible_ssh_private_key_file": status["ssh_key"],
        # The nodes' host keys are known, so they are checked. The user's own files are left alone.
        "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={status['known_hosts']} "
        "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
        "lab_repository_url": status["repository_url"],
        "lab_key_fingerprints": status["key_fingerprints"],
        "lab_networks": NETWORKS,
    }
    return {
        "gpu_nodes": {"hosts": [node["name"] for node in nodes], "vars": shared},
        "ungrouped": {"hosts": ["localhost"]},
        "_meta": {
            "hostvars": {
                "localhost": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": "{{ ansible_playbook_python }}",
                },
                **{node["name"]: {"ansible_host": node["address"]} for node in nodes},
            }
        },
    }


def main() -> int:
    """Print the inventory; Ansible reads it."""
    try:
        print(json.dumps(inventory(Lab.from_environment()), indent=2))
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
