"""Look at a node as a stranger does, so that its own word is not the only witness. Runs on the controller.

`ssh`, `ports` and `route` open connections, each bounded in time, bytes and number; `hello`, `expected` and
`judge` are pure. Whatever a server sends is hostile, and costs only the node that it belongs to.
"""
