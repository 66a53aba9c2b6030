#!/bin/sh
# Simulated by Temper's lab: tells its version, compiles nothing.
case "$1" in
--version | -V)
    cat <<'TEXT'
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release @RELEASE@, V@NVCC@
Build cuda_@RELEASE@.r@RELEASE@/compiler.simulated_0
TEXT
    ;;
*)
    echo "nvcc: simulated by Temper's lab, compiles nothing" >&2
    exit 1
    ;;
esac
