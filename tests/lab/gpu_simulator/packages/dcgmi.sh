#!/bin/sh
# Simulated by Temper's lab.
echo "dcgmi  version: @VERSION@"
