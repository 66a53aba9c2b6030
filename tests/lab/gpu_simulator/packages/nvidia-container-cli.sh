#!/bin/sh
# Simulated by Temper's lab.
echo "cli-version: @VERSION@"
echo "lib-version: @VERSION@"
