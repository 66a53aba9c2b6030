"""Fleets beyond one Ansible process: slices of an inventory, helper controllers, nodes that pull."""

from console.environment import require

require("fleet", "yaml", "ansible", "ansible_runner", "ClusterShell")
