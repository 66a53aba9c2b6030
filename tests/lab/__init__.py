"""The lab: real Debian nodes with simulated GPUs, on one machine.

`python3 -m tests.lab` is its command; docs/explain/lab.md says what in it is real and what is simulated.
Standard library only: it runs before anything is installed.
"""
