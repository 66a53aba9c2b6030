"""A run: a plan's tests one after the other, once or for hours."""
