"""The program by which a node applies its fleet's signed configuration by itself: docs/pull.md.

Standard library and git only, for Python 3.9: it runs on nodes. In the order in which they may import:
files, processes, configuration, keyring, repository, checkout, result, playbooks, delivery, agent.
"""
