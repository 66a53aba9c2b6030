"""Where a measurement runs: CPU or CUDA through torch, storage; and how something is timed."""
