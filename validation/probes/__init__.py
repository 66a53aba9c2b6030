"""What is read from a node: its machine, driver, GPUs, links and kernel log."""
