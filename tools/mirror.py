"""Fetch what playbooks/mirror_list.yml has listed into a directory that a web server can serve.

    python3 -m tools.mirror reports/mirror.json /srv/mirror

Files lie below the directory as HOST/PATH of their address. The repositories' own signed indexes and keys are
fetched with the packages, so that nodes go on checking NVIDIA's signatures; a package is only kept if it has
the listed checksum. What is there already is not fetched again. Logins come from ~/.netrc, or another file in
its form (`--netrc FILE`). Exit status: 0 complete; 1 not, and a sentence on standard error says why.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import netrc
import re
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from temper.base.options import told

TIMEOUT_S = 60
CHUNK_BYTES = 1 << 20
RELEASE_FILE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (Packages(?:\.\w+)?)$", re.MULTILINE)
# What stands in the list in the place of a login.
STRUCK_OUT = "***@"
REPOMD_FILE = re.compile(r'<location href="([^"]+)"')


class MirrorError(Exception):
    """The mirror is not complete; the message is the sentence for the operator."""


@dataclass(frozen=True)
class Mirror:
    """A directory that a web server can serve; `logins` (host -> user, password) are for filling it."""

    directory: Path
    logins: Mapping[str, tuple[str, str]]

    def fill(self, listing: Mapping[str, Any]) -> int:
        """Fetch everything that is listed; returns how many packages the mirror serves now.

        Raises:
            MirrorError: something cannot be had, or is not what the list promises.
        """
        count = sum(len(repository["packages"]) for repository in listing["repositories"])
        number = 0
        for repository in listing["repositories"]:
            for package in repository["packages"]:
                number += 1
                if self.fetch(package["uri"], package["sha256"]):
                    name = f"{package['name']} {package['version']}"
                    print(f"{number}/{count} {name}, {package['size_bytes'] / 1e6:.1f} MB", flush=True)
            # The indexes last: they never name a package of ours that is not there.
            self.fetch_indexes(repository)
            if repository["key_url"]:
                self.fetch(urljoin(repository["uri"], repository["key_url"]))
        return count

    def fetch(self, address: str, sha256: str = "") -> bool:
        """Download a file, whole or not at all; whether that was necessary."""
        target = self.place(address)
        if sha256 and target.is_file() and digest(target) == sha256:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        request = self.request(address)
        try:
            with (
                urllib.request.urlopen(request, timeout=TIMEOUT_S) as source,  # noqa: S310 - of our own list
                partial.open("wb") as stream,
            ):
                while chunk := source.read(CHUNK_BYTES):
                    stream.write(chunk)
            if sha256 and digest(partial) != sha256:
                raise MirrorError(
                    f"{address} has checksum {digest(partial)}, the list says {sha256}. "
                    "Make the list anew, or look at who answers there."
                )
            partial.rename(target)
        except (OSError, HTTPException, ValueError) as error:
            raise MirrorError(f"{address} cannot be fetched: {error}. Run again to go on.") from error
        finally:
            partial.unlink(missing_ok=True)
        return True

    def request(self, address: str) -> urllib.request.Request:
        """Return what is asked for, with the login of its host.

        A host to which that leads on does not get it.
        """
        parts = urlsplit(address)
        host = parts.hostname or ""
        had_login = parts.netloc.startswith(STRUCK_OUT)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        request = urllib.request.Request(bare)  # noqa: S310 - an address of the operator's own repositories
        if host in self.logins:
            login = base64.b64encode(":".join(self.logins[host]).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")
        elif had_login:
            raise MirrorError(
                f"{address} needs a login, which the list does not have. Write `machine {host} login NAME "
                "password PASSWORD` into ~/.netrc, or into a file that --netrc names, and run again."
            )
        return request

    def place(self, address: str) -> Path:
        """Return where the file at an address lies."""
        parts = urlsplit(address)
        # A web server looks for the name without its percent signs.
        path = self.directory / (parts.hostname or "local") / unquote(parts.path).lstrip("/")
        if ".." in path.parts:
            raise MirrorError(f"{address} leads out of its repository; the list is not from mirror_list.yml.")
        return path

    def fetch_indexes(self, repository: Mapping[str, Any]) -> None:
        """Fetch a repository's signed indexes."""
        base = repository["uri"].rstrip("/") + "/"
        if repository["kind"] == "dnf":
            entry = base + "repodata/repomd.xml"
            self.fetch(entry)
            for name in REPOMD_FILE.findall(self.place(entry).read_text()):
                self.fetch(base + name)
            for address in (f"{entry}.asc", f"{entry}.key"):
                # Not every repository signs its metadata.
                with contextlib.suppress(MirrorError):
                    self.fetch(address)
            return
        entry = base + "InRelease"
        self.fetch(entry)
        text = self.place(entry).read_text()
        files = {name: checksum for checksum, _, name in RELEASE_FILE.findall(text)}
        best = next((name for name in ("Packages.xz", "Packages.gz", "Packages") if name in files), None)
        if best is None:
            raise MirrorError(f"{entry} names no Packages file: the repository is not a flat one.")
        self.fetch(base + best, files[best])
        if re.search(r"^Acquire-By-Hash: yes", text, re.MULTILINE):
            self.fetch(f"{base}by-hash/SHA256/{files[best]}", files[best])


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_logins(path: Path | None) -> dict[str, tuple[str, str]]:
    """Host -> user and password of a netrc file: the named one, or ~/.netrc where there is one."""
    try:
        # Only for hosts by name: the entry `default` would give NVIDIA somebody else's password.
        hosts = netrc.netrc(path).hosts
    except FileNotFoundError:
        if path:
            raise
        return {}
    except netrc.NetrcParseError as error:
        raise MirrorError(f"{path or '~/.netrc'} cannot be used: {error}") from error
    return {host: (user, password or "") for host, (user, _, password) in hosts.items() if host != "default"}


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch what playbooks/mirror_list.yml has listed.")
    parser.add_argument("list", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--netrc", type=Path, metavar="FILE", help="logins for repositories that need one (default: ~/.netrc)"
    )
    options = parser.parse_args(arguments)
    try:
        mirror = Mirror(options.directory, read_logins(options.netrc))
        count = mirror.fill(json.loads(options.list.read_text()))
    except (MirrorError, OSError, json.JSONDecodeError, KeyError) as error:
        print(f"The mirror is not complete: {told(error)}", file=sys.stderr)
        return 1
    print(f"{options.directory} serves {count} package{'' if count == 1 else 's'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
