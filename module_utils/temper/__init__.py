"""What Temper's modules share on a node: `ansible.module_utils.temper`."""
