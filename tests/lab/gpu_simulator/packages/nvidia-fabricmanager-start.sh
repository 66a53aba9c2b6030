#!/bin/sh
# Simulated by Temper's lab, after what the real script is known to do: it tells systems with NVSwitches on the PCI bus from
# those of NVLink 5, where it starts the subnet manager first and needs ibstat of infiniband-diags for that.
set -e
case "$*" in
*"--mode stop"*) exit 0 ;;
esac
if grep -qs SW_MNG /sys/class/infiniband/*/device/vpd; then
    echo "Detected NVL5+ system"
    if ! command -v ibstat >/dev/null; then
        echo "ibstat not found: install infiniband-diags" >&2
        exit 1
    fi
    if [ ! -x /opt/nvidia/nvlsm/sbin/nvlsm ]; then
        echo "/opt/nvidia/nvlsm/sbin/nvlsm not found: install nvlsm" >&2
        exit 1
    fi
    /opt/nvidia/nvlsm/sbin/nvlsm -F /usr/share/nvidia/nvlsm/nvlsm.conf >/dev/null 2>&1 &
    exec /usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg -g 0x0
fi
echo "Detected Pre-NVL5 system"
exec /usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
