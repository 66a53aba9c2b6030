#!/usr/bin/python3
"""Package repositories whose signing keys are pinned by fingerprint."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: signed_repositories
short_description: Configure apt or dnf repositories with pinned keys, in one call
description:
  - For each repository, writes a source file (deb822 with C(Signed-By), or a C(.repo) file) and a keyring
    that holds exactly its keys.
  - Keys are fetched when the keyring is missing, when a fingerprint was pinned since, and when its keys
    expire within 30 days; they are refused when one of them is not in O(repositories[].fingerprints). Of a
    key that the node has in a newer form, the node's form is kept.
  - Entries of other tools for the same repositories are taken away, and the key that NVIDIA revoked in 2022.
options:
  repositories:
    description: The repositories.
    type: list
    elements: dict
    required: true
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
  obsolete:
    description: Source files of other tools for the same repositories; apt refuses two sources that name
      different keys.
    type: list
    elements: path
    default: []
author: Temper developers
"""

EXAMPLES = r"""
- name: Configure NVIDIA's repository
  signed_repositories:
    repositories:
      - name: nvidia-cuda
        uri: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/
        key_url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
        fingerprints: [EB693B3035CD5710E231E123A4B469963BF863CC]
"""

RETURN = r"""
changed_files:
  description: The files that changed.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.packaging import repositories
from ansible.module_utils.packaging.repository_settings import Repositories
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repositories": {
                "type": "list",
                "elements": "dict",
                "required": True,
                **repositories.OPTIONS,
            },
            "obsolete": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    settle_one(module, Repositories.from_parameters(module.params, offline=module.check_mode))


if __name__ == "__main__":
    main()
