"""Package repositories: their source files, and what other tools have left for the same ones."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.temper.packaging import signing_keys
from ansible.module_utils.temper.packaging.download import remedy, without_credentials

Repository = Mapping[str, Any]

APT = Path("/etc/apt")
DNF_SOURCES = Path("/etc/yum.repos.d")
#: With this, apt ends its complaints; it names no repository, and no status tells it from others.
SUMMARY = "Some index files failed"
# Of hooks that others have, as command-not-found and AppStream. Source: RunScripts in
# apt-pkg/contrib/fileutl.cc of apt 2.6.1.
HOOK = re.compile(
    r"E: (?:Problem executing scripts APT::Update::Post-Invoke|Sub-process returned an error code$)"
)
DNF_KEYRINGS = Path("/etc/pki/rpm-gpg")
# Published with the CUDA repositories up to April 2022, then revoked by NVIDIA; apt trusted it for every
# repository. https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/
REVOKED = {"AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

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
#: Arguments of modules; plugins/doc_fragments/temper_repositories.py documents them.
ARGUMENTS: dict[str, Any] = {
    "repositories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": SPEC,
        "required_one_of": [("key_url", "signed_by")],
        "mutually_exclusive": [("key_url", "signed_by")],
    },
    "pins": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "packages": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
        },
    },
}


def source_path(repository: Repository) -> Path:
    """Return the file that names a repository to its package manager."""
    if repository["kind"] == "dnf":
        return DNF_SOURCES / f"temper-{repository['name']}.repo"
    return APT / "sources.list.d" / f"temper-{repository['name']}.sources"


def keyring_path(repository: Repository) -> Path:
    """Return the file with a repository's keys."""
    if repository["kind"] == "dnf":
        return DNF_KEYRINGS / f"RPM-GPG-KEY-temper-{repository['name']}"
    return APT / "keyrings" / f"temper-{repository['name']}.asc"


def preferences_path(name: str) -> Path:
    """Return the file that keeps packages of an apt repository away."""
    return APT / "preferences.d" / f"temper-{name}"


def source_text(repository: Repository, keyring: Path) -> str:
    """Return the content of a repository's source file."""
    text = "# Managed by Temper.\n" + signing_keys.comment(repository)
    signed_by = str(keyring) if repository["signed_by"] is None else repository["signed_by"]
    if repository["kind"] == "dnf":
        return text + repo_section(repository, signed_by)
    components = repository["components"]
    return (
        f"{text}Types: deb\nURIs: {repository['uri']}\nSuites: {repository['suite']}\n"
        + (f"Components: {' '.join(components)}\n" if components else "")
        + (f"Signed-By: {signed_by}\n" if signed_by else "")
    )


def repo_section(repository: Repository, keyring: str) -> str:
    """Return the section of a .repo file.

    What is not signed by the owner is not checked: nothing could pass.
    """
    signed = repository["signed"]
    lines = [
        f"[temper-{repository['name']}]",
        f"name={repository['name']}, managed by Temper",
        f"baseurl={repository['uri']}",
        "enabled=1",
        f"gpgcheck={int(signed in ('packages', 'both'))}",
        f"repo_gpgcheck={int(signed in ('metadata', 'both'))}",
        *([f"gpgkey=file://{keyring}"] if keyring else []),
        *([f"excludepkgs={','.join(repository['exclude'])}"] if repository["exclude"] else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def preferences(pins: Sequence[Mapping[str, str]], repositories: Sequence[Repository] = ()) -> str:
    """Return apt's preferences: pinned versions, and what a repository must not bring."""
    stanzas = [
        f"Package: {pin['packages']}\nPin: version {pin['version']}\nPin-Priority: 1001\n" for pin in pins
    ]
    stanzas += [
        f"Package: {' '.join(repository['exclude'])}\n"
        f'Pin: origin "{urlsplit(repository["uri"]).hostname or ""}"\nPin-Priority: -1\n'
        for repository in repositories
        if repository["exclude"] and repository["kind"] == "apt"
    ]
    return "\n".join(stanzas)


def normal_uri(uri: str) -> str:
    """Return an address as it is compared. apt tells of none with its user and password."""
    here = without_credentials(uri).replace("$(ARCH)", ARCHITECTURES.get(platform.machine(), ""))
    return here.rstrip("/").lower()


def without(path: Path, repositories: Sequence[Repository]) -> bytes | None:
    """Return a foreign source file without the repositories that are ours; None if it has no others.

    apt refuses two sources of one repository that differ in their keys, and dnf would take from the second
    what is excluded from the first.
    """
    ours = {normal_uri(repository["uri"]) for repository in repositories if repository["signed_by"] is None}
    # In remarks of others there may be any bytes.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    kept = remaining(path.suffix, text, ours)
    if kept == text:
        return path.read_bytes()
    return None if kept is None else kept.encode(errors="surrogateescape")


def remaining(suffix: str, text: str, ours: set[str]) -> str | None:
    """Return the text of a source file without these addresses; None if it has no others."""
    kept = "".join(part for part in parts(suffix, text) if not addresses(part) or addresses(part) - ours)
    if kept == text:
        return text
    # A section may have a metalink or a mirrorlist instead of an address.
    more = suffix == ".repo" and re.search(r"(?m)^\s*\[", kept)
    return kept if more or addresses(kept) else None


def parts(suffix: str, text: str) -> Iterator[str]:
    """Yield the units of a source file that each name one repository: lines, stanzas or sections."""
    if suffix == ".sources":
        yield from re.split(r"(?<=\n)(?=\n)", text)
    elif suffix == ".repo":
        yield from re.split(r"(?m)^(?=\[)", text)
    else:
        yield from text.splitlines(keepends=True)


def addresses(part: str) -> set[str]:
    """Addresses of repositories in a part of a source file, without those in comments and of keys."""
    lines = (line for line in part.splitlines() if not re.match(r"\s*(#|gpgkey|mirrorlist|metalink)", line))
    return {normal_uri(uri) for line in lines for uri in re.findall(r"\b[a-z][a-z+]*:/[^\s\]]+", line)}


def foreign_sources(kind: str) -> list[Path]:
    """Source files that are not ours."""
    if kind == "dnf":
        found = [*DNF_SOURCES.glob("*.repo")]
    else:
        directory = APT / "sources.list.d"
        found = [APT / "sources.list", *directory.glob("*.list"), *directory.glob("*.sources")]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("temper-"))


def own_addresses() -> set[str]:
    """Return the addresses that our source files name."""
    sources = (*(APT / "sources.list.d").glob("temper-*.sources"), *DNF_SOURCES.glob("temper-*.repo"))
    return {uri for path in sources for uri in addresses(path.read_text(encoding="utf-8"))}


def only_others_fail(complaints: Sequence[str], ours: Collection[str]) -> bool:
    """Return whether all complaints of an update of apt's lists are about what is not ours.

    Those are repositories of others, and hooks that run once the lists are read.
    """
    told = [line for line in complaints if line.startswith(("E: ", "W: ")) and SUMMARY not in line]
    # An error without an address is one of apt itself: a lock, a full disk.
    return bool(told) and all(
        HOOK.match(line)
        or ((addresses(line) or line.startswith("W: ")) and not any(uri in line.lower() for uri in ours))
        for line in told
    )


def unreadable(output: str, repositories: Sequence[Repository]) -> list[str]:
    """Return sentences on the repositories that an update of the lists could not read, from apt's output."""
    complaints: dict[str, list[str]] = {}
    for line in output.splitlines():
        if not line.startswith(("E: ", "W: ")) or SUMMARY in line:
            continue
        owner = next(
            (repository for repository in repositories if normal_uri(repository["uri"]) in line.lower()), None
        )
        name = f"Repository {owner['name']}" if owner else "A repository of this node"
        complaints.setdefault(name, []).append(" ".join(line[3:].split()))
    return [
        f"{name} cannot be used: {' '.join(dict.fromkeys(lines))}. {remedy(' '.join(lines))}"
        for name, lines in complaints.items()
    ] or [f"The package lists cannot be read: {' '.join(output.split())[-500:]}"]
