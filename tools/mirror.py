"""Fetch what playbooks/mirror_list.yml has listed into a directory that a web server can serve.

    python3 -m tools.mirror reports/mirror.json /srv/mirror

Files lie below the directory as HOST/PATH of their address. The repositories' own signed indexes and keys are
fetched with the packages, so that nodes go on checking NVIDIA's signatures; a package is only kept if it has
the listed checksum. What is there already is not fetched again. Exit status: 0 complete; 1 not, and a
sentence on standard error says why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_S = 60
CHUNK_BYTES = 1 << 20
RELEASE_FILE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (Packages(?:\.\w+)?)$", re.MULTILINE)
REPOMD_FILE = re.compile(r'<location href="([^"]+)"')


class MirrorError(Exception):
    """The mirror is not complete; the message is the sentence for the operator."""


def place(directory: Path, address: str) -> Path:
    """Where the file at an address lies in the mirror."""
    parts = urlsplit(address)
    # A web server looks for the name without its percent signs.
    path = directory / (parts.hostname or "local") / unquote(parts.path).lstrip("/")
    if ".." in path.parts:
        raise MirrorError(f"{address} leads out of its repository; the list is not from mirror_list.yml.")
    return path


def fetch(address: str, target: Path, sha256: str = "") -> None:
    """Download a file, whole or not at all.

    Raises:
        MirrorError: it cannot be had, or is not what the list promises.
    """
    if sha256 and target.is_file() and digest(target) == sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        # The addresses are those of the operator's own repositories.
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as source, partial.open("wb") as stream:  # noqa: S310
            while chunk := source.read(CHUNK_BYTES):
                stream.write(chunk)
        if sha256 and digest(partial) != sha256:
            raise MirrorError(
                f"{address} has checksum {digest(partial)}, the list says {sha256}. "
                "Make the list anew, or look at who answers there."
            )
        partial.rename(target)
    except (OSError, ValueError) as error:
        raise MirrorError(f"{address} cannot be fetched: {error}. Run again to go on.") from error
    finally:
        partial.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def indexes(directory: Path, repository: Mapping[str, Any]) -> Iterator[str]:
    """Fetch a repository's signed indexes; yields the addresses of those that are there."""
    base = repository["uri"].rstrip("/") + "/"
    if repository["kind"] == "dnf":
        entry = base + "repodata/repomd.xml"
        fetch(entry, place(directory, entry))
        yield entry
        named = [(base + name, "") for name in REPOMD_FILE.findall(place(directory, entry).read_text())]
        optional = [f"{entry}.asc", f"{entry}.key"]
    else:
        entry = base + "InRelease"
        fetch(entry, place(directory, entry))
        yield entry
        text = place(directory, entry).read_text()
        files = {name: checksum for checksum, _, name in RELEASE_FILE.findall(text)}
        best = next((name for name in ("Packages.xz", "Packages.gz", "Packages") if name in files), None)
        if best is None:
            raise MirrorError(f"{entry} names no Packages file: the repository is not a flat one.")
        named = [(base + best, files[best])]
        if re.search(r"^Acquire-By-Hash: yes", text, re.MULTILINE):
            named.append((f"{base}by-hash/SHA256/{files[best]}", files[best]))
        optional = []
    for address, sha256 in named:
        fetch(address, place(directory, address), sha256)
        yield address
    for address in optional:
        try:
            fetch(address, place(directory, address))
        except MirrorError:
            # Not every repository signs its metadata.
            continue
        yield address


def mirror(listing: Mapping[str, Any], directory: Path) -> int:
    """Fetch everything; returns how many packages the mirror serves now."""
    count = 0
    for repository in listing["repositories"]:
        for package in repository["packages"]:
            fetch(package["uri"], place(directory, package["uri"]), package["sha256"])
            count += 1
        # The indexes last: they never name a package of ours that is not there.
        for _ in indexes(directory, repository):
            pass
        if repository["key_url"]:
            key = urljoin(repository["uri"], repository["key_url"])
            fetch(key, place(directory, key))
    return count


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch what playbooks/mirror_list.yml has listed.")
    parser.add_argument("list", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    try:
        count = mirror(json.loads(options.list.read_text()), options.directory)
    except (MirrorError, OSError, json.JSONDecodeError, KeyError) as error:
        print(f"The mirror is not complete: {error}", file=sys.stderr)
        return 1
    print(f"{options.directory} serves {count} packages.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
