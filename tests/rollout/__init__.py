"""Simulated fleets that are upgraded by the real planner."""
