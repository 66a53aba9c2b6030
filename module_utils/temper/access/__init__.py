"""The ways into a node: accounts, sshd, the firewall, and the way back from a change of them."""
