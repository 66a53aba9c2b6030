"""Settings of this node tried in pairs, and those kept that are worth it."""
