#!/bin/sh
# Simulated by Temper's lab: stands for make and the compiler. DKMS gives the kernel as kernelver.
set -e
directory=$(pwd)
echo "make -C /lib/modules/$kernelver/build M=$directory modules"
echo "  CC [M]  $directory/nvidia/nv-pci.o"
if grep -qs '"module-build-fails"' "$GPU_SIMULATOR_ROOT/var/lib/gpu-simulator/faults.json"; then
    cat <<TEXT
$directory/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
$directory/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
      |         ^~~~~~~~~~~~~~~~~~~
./include/linux/pci.h:1463:18: note: declared here
make[2]: *** [scripts/Makefile.build:250: $directory/nvidia/nv-pci.o] Error 1
make[1]: *** [Makefile:1946: $directory] Error 2
make: *** [Makefile:85: modules] Error 2
TEXT
    exit 2
fi
echo "  LD [M]  $directory/nvidia.ko"
# Which kernel it is for, in place of as many letters: modpost writes that beside the description.
LC_ALL=C sed "s/KERNEL__*/$(printf '%-64s' "$kernelver SMP preempt mod_unload modversions")/" nvidia.o >nvidia.ko
