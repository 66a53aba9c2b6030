"""Options of modules that read repositories of a node's plan."""

from __future__ import annotations


class ModuleDocFragment:
    """Their documentation."""

    DOCUMENTATION = r"""
options:
  repositories:
    description: The repositories that the node is to get.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the source file and of the keyring.
        type: str
        required: true
      kind:
        description: The package manager that reads it.
        type: str
        choices: [apt, dnf]
        default: apt
      uri:
        description: Base address.
        type: str
        required: true
      suite:
        description: Suites, separated by spaces; C(/) for a flat repository.
        type: str
        default: /
      components:
        description: Components of the suites; none for a flat repository.
        type: list
        elements: str
        default: []
      key_url:
        description: Where the public key is, armoured or binary.
        type: str
      fingerprints:
        description: Fingerprints of the primary keys that are accepted. None accepts no key at all.
        type: list
        elements: str
        default: []
      signed_by:
        description: Instead of a key to fetch, the keyring that the node trusts for this repository already.
          Empty for the keys that apt trusts for every repository.
        type: str
      signed:
        description: What the owner of a dnf repository signs with the key.
        type: str
        choices: [packages, metadata, both]
        default: packages
      exclude:
        description: Patterns of packages that the repository must not bring.
        type: list
        elements: str
        default: []
  pins:
    description: Patterns of names and the version that apt may choose of them.
    type: list
    elements: dict
    default: []
    suboptions:
      packages:
        description: Patterns of package names, separated by spaces.
        type: str
        required: true
      version:
        description: The version, which may end in C(*).
        type: str
        required: true
"""
