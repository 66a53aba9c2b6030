"""Fleets beyond one Ansible process: slices of an inventory, helper controllers, nodes that pull."""
