"""The option of modules that change a node only while their run has it."""

from __future__ import annotations


class ModuleDocFragment:
    """Its documentation."""

    DOCUMENTATION = r"""
options:
  lease:
    description: The lease that this run took (M(node_facts)). Where somebody has taken the node since,
      nothing is changed.
    type: dict
    suboptions:
      owner:
        description: Who took it.
        type: str
        required: true
      fencing:
        description: The number that the owner was given.
        type: int
        required: true
"""
