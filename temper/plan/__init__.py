"""Resolve what a node needs: packages and settings, or every reason to refuse.

Facts (facts.py), tables (tables.py) and the operator's variables (variables.py) go in, typed. Pure functions:
the same inputs give the same plan. Only `load_tables` reads files. `plan.py` is the way in;
`plugins/filter/node_plan.py` gives it to Ansible.
"""
