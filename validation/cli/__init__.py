"""The command line, and the one-file build."""
