#!/bin/sh
# Simulated by Temper's lab: a new kernel, or its headers, bring the modules.
if [ -d "/lib/modules/$1/build" ]; then
    dkms autoinstall --kernelver "$1"
else
    echo "Automatic installation of modules for kernel $1 was skipped since the kernel headers for this kernel do not seem to be installed."
fi
