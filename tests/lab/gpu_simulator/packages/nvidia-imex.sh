#!/bin/sh
# Simulated by Temper's lab: nvidia-imex, which needs the list of its domain's nodes.
case "$1" in
--version | -v) echo "IMEX version is: @VERSION@" && exit 0 ;;
esac
if ! grep -qs '^[^#]' /etc/nvidia-imex/nodes_config.cfg; then
    echo "Failed to read the nodes configuration /etc/nvidia-imex/nodes_config.cfg" >&2
    exit 1
fi
exec sleep infinity
