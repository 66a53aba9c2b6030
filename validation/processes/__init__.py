"""Programs, measuring processes and files of a run, within bounds that hold."""
