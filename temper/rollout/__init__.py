"""Rolling upgrades of the driver: what to do next on which node, who does it, and what has happened."""
