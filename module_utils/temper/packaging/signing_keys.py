"""Signing keys of repositories: fetched, accepted only if they are the pinned ones, renewed in time."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.packaging import openpgp
from ansible.module_utils.temper.packaging.download import (
    DownloadError,
    download,
    remedy,
    without_credentials,
)
from ansible.module_utils.temper.settings.base import SettingError

LARGEST_KEY_BYTES = 1 << 20
# Within this time before a key expires, its owner is asked for a renewed one.
NOTICE_S = 30 * 86400


class RepositoryError(SettingError):
    """A repository cannot be used; the message is the sentence for the operator."""


@dataclass(frozen=True)
class Keyring:
    """The text of a repository's keyring, and what the operator should know about it."""

    text: str
    warnings: tuple[str, ...] = ()


def normal(fingerprints: Sequence[str]) -> set[str]:
    """Fingerprints as they are compared: without blanks, in capitals."""
    return {fingerprint.replace(" ", "").upper() for fingerprint in fingerprints}


def usable(data: bytes, pins: set[str]) -> dict[str, openpgp.Key]:
    """Fingerprint -> key of the pinned keys in a node's keyring, with what they have signed themselves."""
    try:
        found = {name: openpgp.own_signatures(key) for name, key in readable(data).items() if name in pins}
    except openpgp.OpenPGPError:
        return {}
    return {name: key for name, key in found.items() if key}


def readable(data: bytes) -> dict[str, openpgp.Key]:
    """Fingerprint -> key of a keyring; none where it is no keyring."""
    try:
        return {key.fingerprint: key for key in openpgp.keys(data)}
    except openpgp.OpenPGPError:
        return {}


def fetch(repository: Mapping[str, Any]) -> dict[str, openpgp.Key]:
    """Download the keys and check them.

    Raises:
        RepositoryError: they cannot be fetched, or are not all pinned.
    """
    name, url = repository["name"], without_credentials(repository["key_url"])
    pins = normal(repository["fingerprints"])
    try:
        data = download(repository["key_url"], repository.get("kind", "apt"), LARGEST_KEY_BYTES)
    except DownloadError as error:
        raise RepositoryError(
            f"Repository {name}: its signing key at {url} cannot be fetched from this node: {error}. "
            f"{remedy(str(error))}"
        ) from error
    try:
        found = {key.fingerprint: key for key in openpgp.keys(data)}
        own = {name: openpgp.own_signatures(key) for name, key in found.items() if name in pins}
    except openpgp.OpenPGPError as error:
        raise RepositoryError(f"Repository {name}: {url} is no OpenPGP public key: {error}.") from error
    if not set(found) <= pins:
        raise RepositoryError(
            f"Repository {name}: the key at {url} has fingerprint {', '.join(found)}, "
            f"expected one of {', '.join(sorted(pins)) or 'none'}. Nothing was changed. "
            "If the key was rotated, verify the new fingerprint with its owner and pin it."
        )
    if forged := [name for name, key in own.items() if not key]:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        raise RepositoryError(
            f"Repository {name}: the key {', '.join(forged)} at {url} has no good signature of its own that "
            f"was made by {today}, the date of this node. Nothing was changed. Check the node's clock; if it "
            "is right, somebody on the way to that address forges the answer: use https."
        )
    return {name: key for name, key in own.items() if key}


def armour(data: bytes) -> str:
    """ASCII armour, which apt and rpm read, so that the keyring is a text file.

    Made anew of what was checked: no comment or anything else of the download gets into the keyring.
    """
    encoded = base64.encodebytes(data).decode("ascii")
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{encoded}-----END PGP PUBLIC KEY BLOCK-----\n"


def text(keys: Mapping[str, openpgp.Key]) -> str:
    """Return the keyring of these keys."""
    return armour(b"".join(key.packets for key in keys.values()))


def last_day(keys: Mapping[str, openpgp.Key]) -> float:
    """Until when one of the keys is good, in seconds since 1970."""
    good = [key for key in keys.values() if not key.revoked]
    return max((float("inf") if key.expires is None else key.expires for key in good), default=0.0)


def newer(current: Mapping[str, openpgp.Key], fetched: Mapping[str, openpgp.Key]) -> dict[str, openpgp.Key]:
    """Return both sets of keys together.

    A key that is in both keeps what it had: the answer may lack what works.
    """
    found = dict(current)
    for name, key in fetched.items():
        both = openpgp.merged(found[name], key) if name in found else key
        found[name] = both if len(both.packets) <= LARGEST_KEY_BYTES else key
    return found


def due(repository: Mapping[str, Any], current: bytes, noted: set[str]) -> bool:
    """Return whether keys have to be fetched: none is there, one was pinned since, or all expire soon."""
    pins = normal(repository["fingerprints"])
    mine = usable(current, pins)
    return not mine or not pins <= (noted | set(mine)) or last_day(mine) < time.time() + NOTICE_S


def keyring(
    repository: Mapping[str, Any], current: bytes, noted: set[str], *, renew: bool = False
) -> Keyring:
    """Return the keyring that a repository is to have.

    Args:
        repository: with name, key_url and fingerprints.
        current: the keyring that the node has; empty if none.
        noted: the fingerprints that were pinned when keys were last fetched.
        renew: fetch even if nothing seems to be due, because apt could not verify with the current ones.

    Raises:
        RepositoryError: as fetch does, where the node has no keys of its own to go on with.
    """
    pins = normal(repository["fingerprints"])
    mine = usable(current, pins)
    warnings = []
    if renew or due(repository, current, noted):
        try:
            mine = newer(mine, fetch(repository))
        except RepositoryError as error:
            # An added key is wanted now; one that expires can wait while it is good.
            if not mine or not pins <= (noted | set(mine)):
                raise
            warnings.append(str(error))
        if last_day(mine) < time.time() + NOTICE_S:
            warnings.append(expiry(repository, mine))
    return Keyring(text(mine), tuple(warnings))


def expiry(repository: Mapping[str, Any], keys: Mapping[str, openpgp.Key]) -> str:
    """Return a sentence on keys that are, or soon will be, good no more."""
    last = last_day(keys)
    when = time.strftime("%Y-%m-%d", time.gmtime(last))
    what = "are revoked" if not last else f"{'expired' if last < time.time() else 'expire'} on {when}"
    return (
        f"Repository {repository['name']}: its signing keys {', '.join(keys)} {what}, and "
        f"{without_credentials(repository['key_url'])} has none that is good for longer; the package manager "
        "refuses the repository then. Ask its owner for the new key, verify its fingerprint and pin it."
    )


def comment(repository: Mapping[str, Any]) -> str:
    """Lines for a source file that say where its keys come from and which are pinned."""
    if repository["signed_by"] is not None:
        return ""
    pins = " ".join(sorted(normal(repository["fingerprints"])))
    return f"# Key: {repository['key_url']}\n# Pinned: {pins}\n"


def noted(source: Path) -> dict[str, Any]:
    """Return what `comment` had written into a source file: key_url and fingerprints."""
    try:
        lines = source.read_text(encoding="utf-8")
    except OSError:
        return {"key_url": "", "fingerprints": []}
    url = re.search(r"^# Key: (\S+)$", lines, re.MULTILINE)
    pins = re.search(r"^# Pinned: (.*)$", lines, re.MULTILINE)
    return {"key_url": url[1] if url else "", "fingerprints": pins[1].split() if pins else []}


def renew(sources: Path, keyrings: Path) -> bool:
    """Fetch the keys of all our apt sources again; whether a keyring has changed.

    For when apt cannot verify a repository: its owner may sign with a new subkey, or have renewed an expiry.
    """
    changed = False
    for source in sorted(sources.glob("temper-*.sources")):
        path = keyrings / f"{source.stem}.asc"
        origin = noted(source)
        if not origin["key_url"] or not path.is_file():
            continue
        current = path.read_bytes()
        try:
            wanted = keyring(
                {"name": source.stem, **origin}, current, set(origin["fingerprints"]), renew=True
            )
        except RepositoryError:
            continue
        if wanted.text.encode() != current:
            replace_file(path, wanted.text.encode(), 0o644)
            changed = True
    return changed
