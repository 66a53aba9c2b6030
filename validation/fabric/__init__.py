"""Between nodes: collectives of all nodes and of pairs, the search for who is to blame, the verdict."""
