#!/bin/sh
# Simulated by Temper's lab: DCGM's daemon, which stays up without a driver.
case "$1" in
--version | -v) echo "Version : @VERSION@" && exit 0 ;;
esac
exec sleep infinity
