"""A client of the Container Runtime Interface, for nodes: it runs there, without Temper."""
