#!/usr/bin/python3
"""Package repositories whose signing keys are pinned by fingerprint."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: signed_repositories
short_description: Configure apt repositories with pinned keys, in one call
description:
  - For each repository, writes a deb822 source file with C(Signed-By) and a keyring that holds exactly its
    key.
  - A key is fetched only when the keyring is missing or holds a key that is not pinned, and is refused when
    its fingerprint is not one of O(repositories[].fingerprints).
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

from ansible.module_utils import repositories
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File, write_all


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
    files = [File(path, None) for path in module.params["obsolete"]]
    for repository in module.params["repositories"]:
        source = repositories.APT_SOURCES / f"temper-{repository['name']}.sources"
        keyring = repositories.APT_KEYRINGS / f"temper-{repository['name']}.asc"
        if repository["signed_by"] is not None:
            files.append(File(str(source), repositories.deb822(repository, keyring)))
            continue
        current = keyring.read_bytes() if keyring.is_file() else b""
        if module.check_mode and not repositories.pinned(current, repository["fingerprints"]):
            # Asks nothing of the network: the node may not have a way out yet.
            key = "(the key, fetched and verified)\n"
        else:
            try:
                key = repositories.keyring(repository, current)
            except repositories.RepositoryError as error:
                module.fail_json(msg=str(error))
        # apt must not meet a source whose keyring is not there yet.
        files += [File(str(keyring), key), File(str(source), repositories.deb822(repository, keyring))]
    module.exit_json(**write_all(module, files).as_dict())


if __name__ == "__main__":
    main()
