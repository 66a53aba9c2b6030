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

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File, write_all
from ansible.module_utils.packaging import repositories, signing_keys


def wanted_files(repository: dict[str, Any], *, check: bool) -> tuple[list[File], list[str]]:
    """The files of one repository, and warnings. Raises RepositoryError where its key is not to be had."""
    keyring = repositories.keyring_path(repository)
    source = repositories.source_path(repository)
    text = File(str(source), repositories.source_text(repository, keyring))
    if repository["signed_by"] is not None:
        return [text], []
    current = keyring.read_bytes() if keyring.is_file() else b""
    noted = set(signing_keys.noted(source)["fingerprints"])
    if check and signing_keys.due(repository, current, noted):
        # Asks nothing of the network: the node may not have a way out yet.
        return [File(str(keyring), "(the key, fetched and verified)\n"), text], []
    key = signing_keys.keyring(repository, current, noted)
    # apt must not meet a source whose keyring is not there yet.
    return [File(str(keyring), key.text), text], list(key.warnings)


def foreign_files(wanted: list[dict[str, Any]]) -> list[File]:
    """Source files of other tools, without the repositories that are ours now."""
    files = []
    for kind in sorted({repository["kind"] for repository in wanted}):
        for path in repositories.foreign_sources(kind):
            kept = repositories.without(path, wanted)
            if kept != path.read_text(encoding="utf-8", errors="replace"):
                files.append(File(str(path), kept))
    return files


def trusted_files() -> list[File]:
    """The keyrings that apt trusts for every repository, without keys that their owner has revoked."""
    files = []
    directory = repositories.APT / "trusted.gpg.d"
    for path in (repositories.APT / "trusted.gpg", *directory.glob("*.gpg"), *directory.glob("*.asc")):
        if not path.is_file():
            continue
        keys = signing_keys.readable(path.read_bytes())
        good = {name: key for name, key in keys.items() if name not in repositories.REVOKED}
        if len(good) < len(keys):
            binary = b"".join(key.packets for key in good.values())
            text = signing_keys.text(good).encode() if path.suffix == ".asc" else binary
            files.append(File(str(path), text if good else None))
    return files


def exclusions(repository: dict[str, Any]) -> list[File]:
    """The preferences that keep packages of an apt repository away."""
    if repository["kind"] != "apt":
        return []
    path = repositories.APT / "preferences.d" / f"temper-{repository['name']}"
    text = "# Managed by Temper.\n" + repositories.preferences([], [repository])
    return [File(str(path), text if repository["exclude"] else None)]


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
    wanted = module.params["repositories"]
    obsolete = [File(path, None) for path in module.params["obsolete"]]
    named = {file.path for file in obsolete}
    files = obsolete + [file for file in foreign_files(wanted) if file.path not in named] + trusted_files()
    try:
        for repository in wanted:
            needed, warnings = wanted_files(repository, check=module.check_mode)
            files += exclusions(repository) + needed
            for warning in warnings:
                module.warn(warning)
    except signing_keys.RepositoryError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**write_all(module, files).as_dict())


if __name__ == "__main__":
    main()
