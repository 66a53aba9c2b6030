"""Write Debian binary packages without dpkg-deb: small ones, quickly, byte for byte the same each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

# Every file in every package has this time, 2026-11-20 00:00 UTC.
BUILD_TIME = 1795132800


@dataclass(frozen=True)
class File:
    """A regular file in a package."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Package:
    """A binary package.

    `files` maps absolute paths to their content, `links` maps symbolic links to where they lead, `scripts`
    maps postinst, prerm, ... to shell text.
    """

    name: str
    version: str
    architecture: str
    description: str
    section: str = "misc"
    depends: str = ""
    recommends: str = ""
    conflicts: str = ""
    replaces: str = ""
    provides: str = ""
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """The package's file name; an epoch is no part of it."""
        return f"{self.name}_{self.version.rpartition(':')[2]}_{self.architecture}.deb"


def control(package: Package) -> str:
    """Return the package's control stanza, without the fields that an index adds."""
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.architecture,
        "Maintainer": "Temper's lab <root@localhost>",
        "Installed-Size": str(sum(-(-len(file.content) // 1024) for file in package.files.values())),
        "Section": package.section,
        "Priority": "optional",
        "Depends": package.depends,
        "Recommends": package.recommends,
        "Conflicts": package.conflicts,
        "Replaces": package.replaces,
        "Provides": package.provides,
        "Description": f"{package.description} (simulated by Temper's lab)\n"
        " This package stands for NVIDIA's of the same name on simulated nodes. It contains nothing of\n"
        " NVIDIA's.",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def build(package: Package) -> bytes:
    """Return the package as the bytes of a .deb file."""
    members: dict[str, File] = {"control": File(control(package).encode())}
    conffiles = sorted(path for path in package.files if path.startswith("/etc/"))
    if conffiles:
        members["conffiles"] = File("".join(f"{path}\n" for path in conffiles).encode())
    members["md5sums"] = File(
        "".join(
            f"{hashlib.md5(file.content, usedforsecurity=False).hexdigest()}  {path[1:]}\n"
            for path, file in sorted(package.files.items())
            if path not in conffiles
        ).encode()
    )
    for name, text in package.scripts.items():
        members[name] = File(text.encode(), 0o755)
    return _ar(
        [
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", _tar(members)),
            (
                "data.tar.gz",
                _tar(
                    {path[1:]: file for path, file in package.files.items()},
                    {path[1:]: target for path, target in package.links.items()},
                ),
            ),
        ]
    )


def index_stanza(package: Package, deb: bytes, filename: str) -> str:
    """Return the stanza of a Packages index; `filename` is the path below the repository's root."""
    checksum = hashlib.sha256(deb).hexdigest()
    return f"{control(package)}Filename: {filename}\nSize: {len(deb)}\nSHA256: {checksum}\n"


def _tar(files: Mapping[str, File], links: Mapping[str, str] | None = None) -> bytes:
    """Pack files and links with their parent directories, owned by root."""
    links = links or {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        names = {*files, *links}
        parents = {str(parent) for path in names for parent in PurePosixPath(path).parents}
        for name in sorted(parents | names):
            entry = tarfile.TarInfo("./" if name == "." else f"./{name}")
            entry.mtime = BUILD_TIME
            entry.uname = entry.gname = "root"
            if name in files:
                entry.size, entry.mode = len(files[name].content), files[name].mode
                archive.addfile(entry, io.BytesIO(files[name].content))
            elif name in links:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, links[name], 0o777
                archive.addfile(entry)
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
    return gzip.compress(buffer.getvalue(), compresslevel=6, mtime=BUILD_TIME)


def _ar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Concatenate `members` in the Unix archive format."""
    archive = b"!<arch>\n"
    for name, content in members:
        archive += f"{name:<16}{BUILD_TIME:<12}{0:<6}{0:<6}{0o100644:<8o}{len(content):<10}`\n".encode()
        archive += content + b"\n" * (len(content) % 2)
    return archive
