"""From the results of nodes to the verdict of a fleet, and to what is kept of it."""
