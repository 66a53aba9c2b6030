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
        choices: [apt]
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

import base64
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ansible.module_utils import openpgp
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File, write_all
from ansible.module_utils.urls import open_url

KEYRINGS = Path("/etc/apt/keyrings")
SOURCES = Path("/etc/apt/sources.list.d")
FETCH_TIMEOUT_S = 60
LARGEST_KEY_BYTES = 1 << 20


def source_text(repository: dict[str, Any], keyring: str) -> str:
    """The deb822 stanza of a repository."""
    components = " ".join(repository["components"])
    return (
        "# Managed by Temper.\nTypes: deb\n"
        f"URIs: {repository['uri']}\nSuites: {repository['suite']}\n"
        + (f"Components: {components}\n" if components else "")
        + (f"Signed-By: {keyring}\n" if keyring else "")
    )


def normal(fingerprints: list[str]) -> set[str]:
    return {fingerprint.replace(" ", "").upper() for fingerprint in fingerprints}


def pinned(data: bytes, fingerprints: list[str]) -> bool:
    """Whether the data is a key file whose primary keys are all among the pinned ones."""
    try:
        return set(openpgp.fingerprints(data)) <= normal(fingerprints)
    except openpgp.OpenPGPError:
        return False


def fetch_key(module: AnsibleModule, repository: dict[str, Any]) -> bytes:
    """Download the key and check it; ends the module with a sentence where it is not the pinned one."""
    url = repository["key_url"]
    try:
        data = bytes(open_url(url, timeout=FETCH_TIMEOUT_S).read(LARGEST_KEY_BYTES))
    except (OSError, HTTPException, ValueError) as error:
        module.fail_json(
            msg=f"Repository {repository['name']}: its signing key at {url} cannot be fetched from this "
            f"node: {error}. Check the address and the node's proxy and DNS, or point "
            "nvidia_stack_*_repository_url at a mirror."
        )
    try:
        found = openpgp.fingerprints(data)
    except openpgp.OpenPGPError as error:
        module.fail_json(msg=f"Repository {repository['name']}: {url} is no OpenPGP public key: {error}.")
    if not pinned(data, repository["fingerprints"]):
        module.fail_json(
            msg=f"Repository {repository['name']}: the key at {url} has fingerprint {', '.join(found)}, "
            f"expected one of {', '.join(sorted(normal(repository['fingerprints'])))}. Nothing was changed. "
            "If the key was rotated, verify the new fingerprint with its owner and pin it."
        )
    return data


def armour(data: bytes) -> str:
    """ASCII armour, which apt reads from .asc files, so that the keyring is a text file.

    Made anew of what was checked: no comment or anything else of the download gets into the keyring.
    """
    encoded = base64.encodebytes(openpgp.dearmor(data)).decode("ascii")
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{encoded}-----END PGP PUBLIC KEY BLOCK-----\n"


def main() -> None:
    repository_spec = {
        "name": {"type": "str", "required": True},
        "kind": {"type": "str", "choices": ["apt"], "default": "apt"},
        "uri": {"type": "str", "required": True},
        "suite": {"type": "str", "default": "/"},
        "components": {"type": "list", "elements": "str", "default": []},
        "key_url": {"type": "str", "no_log": False},
        "fingerprints": {"type": "list", "elements": "str", "default": []},
        "signed_by": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "repositories": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": repository_spec,
                "required_one_of": [("key_url", "signed_by")],
                "mutually_exclusive": [("key_url", "signed_by")],
            },
            "obsolete": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    files = [File(path, None) for path in module.params["obsolete"]]
    for repository in module.params["repositories"]:
        source = str(SOURCES / f"temper-{repository['name']}.sources")
        if repository["signed_by"] is not None:
            files.append(File(source, source_text(repository, repository["signed_by"])))
            continue
        keyring = KEYRINGS / f"temper-{repository['name']}.asc"
        current = keyring.read_bytes() if keyring.is_file() else b""
        if pinned(current, repository["fingerprints"]):
            key = armour(current)
        elif module.check_mode:
            # Asks nothing of the network: the node may not have a way out yet.
            key = "(the key, fetched and verified)\n"
        else:
            key = armour(fetch_key(module, repository))
        files += [File(str(keyring), key), File(source, source_text(repository, str(keyring)))]
    module.exit_json(**write_all(module, files).as_dict())


if __name__ == "__main__":
    main()
