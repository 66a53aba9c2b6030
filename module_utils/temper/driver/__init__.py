"""The NVIDIA driver on a node: its modules in every kernel, what is loaded, and the GPUs' settings."""
