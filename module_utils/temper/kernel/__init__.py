"""The kernels of a node: which one GRUB boots, and the way to a newer one and back (apt)."""
