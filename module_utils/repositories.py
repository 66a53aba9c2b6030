"""Package repositories with pinned keys: their source files, and getting a key that is the pinned one."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ansible.module_utils import openpgp
from ansible.module_utils.urls import open_url

APT_KEYRINGS = Path("/etc/apt/keyrings")
APT_SOURCES = Path("/etc/apt/sources.list.d")
FETCH_TIMEOUT_S = 60
LARGEST_KEY_BYTES = 1 << 20

# For a module's argument_spec: what a plan says of a repository.
SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "kind": {"type": "str", "choices": ["apt", "dnf"], "default": "apt"},
    "uri": {"type": "str", "required": True},
    "suite": {"type": "str", "default": "/"},
    "components": {"type": "list", "elements": "str", "default": []},
    "key_url": {"type": "str", "no_log": False},
    "fingerprints": {"type": "list", "elements": "str", "default": []},
    "signed_by": {"type": "str"},
    "signed": {"type": "str", "choices": ["packages", "metadata", "both"], "default": "packages"},
    "exclude": {"type": "list", "elements": "str", "default": []},
}
OPTIONS: dict[str, Any] = {
    "options": SPEC,
    "required_one_of": [("key_url", "signed_by")],
    "mutually_exclusive": [("key_url", "signed_by")],
}

Repository = Mapping[str, Any]


class RepositoryError(Exception):
    """A repository cannot be used; the message is the sentence for the operator."""


def deb822(repository: Repository, keyring: Path) -> str:
    """The source file of an apt repository."""
    components = repository["components"]
    signed_by = str(keyring) if repository["signed_by"] is None else repository["signed_by"]
    return (
        "# Managed by Temper.\nTypes: deb\n"
        f"URIs: {repository['uri']}\nSuites: {repository['suite']}\n"
        + (f"Components: {' '.join(components)}\n" if components else "")
        + (f"Signed-By: {signed_by}\n" if signed_by else "")
    )


def preferences(pins: Sequence[Mapping[str, str]]) -> str:
    """What the preferences of apt say of packages that are pinned to a version."""
    stanzas = [
        f"Package: {pin['packages']}\nPin: version {pin['version']}\nPin-Priority: 1001\n" for pin in pins
    ]
    return "\n".join(stanzas)


def normal(fingerprints: Sequence[str]) -> set[str]:
    """Fingerprints as they are compared: without blanks, in capitals."""
    return {fingerprint.replace(" ", "").upper() for fingerprint in fingerprints}


def pinned(data: bytes, fingerprints: Sequence[str]) -> bool:
    """Whether the data is a key file whose primary keys are all among the pinned ones."""
    try:
        return set(openpgp.fingerprints(data)) <= normal(fingerprints)
    except openpgp.OpenPGPError:
        return False


def fetch_key(repository: Repository) -> bytes:
    """Download the key and check it.

    Raises:
        RepositoryError: it cannot be fetched, or is not the pinned one.
    """
    name, url = repository["name"], repository["key_url"]
    try:
        data = bytes(open_url(url, timeout=FETCH_TIMEOUT_S).read(LARGEST_KEY_BYTES))
    except (OSError, HTTPException, ValueError) as error:
        raise RepositoryError(
            f"Repository {name}: its signing key at {url} cannot be fetched from this "
            f"node: {error}. Check the address and the node's proxy and DNS, or point "
            "nvidia_stack_*_repository_url at a mirror."
        ) from error
    try:
        found = openpgp.fingerprints(data)
    except openpgp.OpenPGPError as error:
        raise RepositoryError(f"Repository {name}: {url} is no OpenPGP public key: {error}.") from error
    if not pinned(data, repository["fingerprints"]):
        raise RepositoryError(
            f"Repository {name}: the key at {url} has fingerprint {', '.join(found)}, "
            f"expected one of {', '.join(sorted(normal(repository['fingerprints'])))}. Nothing was changed. "
            "If the key was rotated, verify the new fingerprint with its owner and pin it."
        )
    return data


def armour(data: bytes) -> str:
    """ASCII armour, which apt and rpm read, so that the keyring is a text file.

    Made anew of what was checked: no comment or anything else of the download gets into the keyring.
    """
    encoded = base64.encodebytes(openpgp.dearmor(data)).decode("ascii")
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{encoded}-----END PGP PUBLIC KEY BLOCK-----\n"


def keyring(repository: Repository, current: bytes) -> str:
    """The text of a repository's keyring: the current one if it is the pinned one, else fetched and checked.

    Raises:
        RepositoryError: as fetch_key does.
    """
    return armour(current if pinned(current, repository["fingerprints"]) else fetch_key(repository))


def is_obsolete(path: Path, repositories: Sequence[Repository]) -> bool:
    """Whether a source file of somebody else names the same repositories, with another key perhaps.

    apt refuses two sources of one repository that differ in their keys.
    """
    text = "\n".join(
        line for line in path.read_text(errors="replace").splitlines() if not line.startswith("#")
    )
    named = {normal_uri(uri) for uri in re.findall(r"[a-z+]+:/\S+", text)}
    ours = {normal_uri(repository["uri"]) for repository in repositories if repository["signed_by"] is None}
    return bool(named) and named <= ours


def normal_uri(uri: str) -> str:
    """An address as it is compared."""
    return uri.rstrip("/").lower()


def unreadable(output: str, repositories: Sequence[Repository]) -> list[str]:
    """Sentences on the repositories that an update of the lists could not read, from apt's output."""
    complaints: dict[str, list[str]] = {}
    for line in output.splitlines():
        if not line.startswith(("E: ", "W: ")) or "Some index files failed" in line:
            continue
        owner = next(
            (repository for repository in repositories if normal_uri(repository["uri"]) in line.lower()), None
        )
        name = f"Repository {owner['name']}" if owner else "A repository of this node"
        complaints.setdefault(name, []).append(" ".join(line[3:].split()))
    return [
        f"{name} cannot be used: {' '.join(dict.fromkeys(lines))}. Check its address and key, and the "
        "node's proxy and DNS; or point nvidia_stack_*_repository_url at a mirror."
        for name, lines in complaints.items()
    ] or [f"The package lists cannot be read: {' '.join(output.split())[-500:]}"]
