"""Repositories, their keys, and packages: what apt and dnf do on a node."""
