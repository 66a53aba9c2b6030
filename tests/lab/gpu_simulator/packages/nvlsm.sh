#!/bin/sh
# Simulated by Temper's lab: nvlsm, as the fabric manager's start script calls it.
case "$1" in
--version | -v) echo "NVLSM version is: @VERSION@" && exit 0 ;;
esac
exec sleep infinity
