"""From what nodes answered to a statement of their compliance, its report, its evidence and its history.

Runs on the controller. Pure functions but for `history` and `evidence`, which read and write files.
"""
