"""The tests, one a module, and the node that they run on."""
