"""Temper's validation payload: is this node what its GPUs promise, and can one trust the answer?

It measures a node and writes one JSON result; on a controller it judges the results of a fleet. It needs
Python 3.11 and, for what is measured rather than read, torch; nothing else. `python -m validation --help`
says how; docs/validation.md says what.
"""
