"""Hostile input for every reader of text that comes from elsewhere: `make fuzz`.

`readers` is the table of the readers, `mutations` changes their samples, `guard` runs them within bounds.
"""
