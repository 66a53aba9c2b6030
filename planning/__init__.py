"""Resolve what a node needs: packages and settings, or every reason to refuse.

Facts, tables and the operator's wishes go in. Pure functions without I/O: the same inputs give the same plan.
`plan.py` is the way in; `filter_plugins/node_plan.py` gives it to Ansible.
"""
