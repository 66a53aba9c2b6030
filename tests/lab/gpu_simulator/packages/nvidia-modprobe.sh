#!/bin/sh
# Simulated by Temper's lab: loads the simulated nvidia module and makes the device files.
exec /usr/lib/gpu-simulator/machine.py load
