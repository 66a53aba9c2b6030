"""The program by which a node applies its fleet's signed configuration by itself: docs/operate/pull.md.

git fetches, verifies and checks out, ansible-playbook compares and repairs; this decides in between. Standard
library only, for Python 3.9: it runs on nodes. In the order in which they may import: shared, configuration,
repository, result, playbooks, delivery, agent.
"""
