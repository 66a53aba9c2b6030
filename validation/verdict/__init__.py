"""The verdict on GPUs, nodes and a fleet. Pure functions: the same inputs give the same verdict."""
