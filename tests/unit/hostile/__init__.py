"""Nodes that answer what they like, against the real playbooks."""
