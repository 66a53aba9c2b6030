"""Files of rpm packages: what they are, whether they are whole, and a repository made of them.

The repository's metadata are made here from what rpm tells of each file: a node need not have createrepo_c,
and nothing is installed on it for this. Only `primary` is written; dnf does without the others.
Format: https://github.com/openSUSE/libsolv/blob/master/ext/repo_rpmmd.c reads it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ansible.module_utils.temper.packaging.packages import PackageError, attempt
from ansible.module_utils.temper.process import each_line, parsed

ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
EVR = "%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}"
IDENTITY = f"%{{NAME}}\\t{EVR}\\t%{{ARCH}}\\t%{{SHA1HEADER}} %{{SHA256HEADER}}\\n"
DEPENDENCIES = ("provides", "requires", "conflicts", "obsoletes")
HEADER = (
    "package\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\t%{BUILDTIME}\\t%{LONGSIZE}\\n"
    + "".join(
        f"[{kind}\\t%{{{tag}NAME}}\\t%{{{tag}FLAGS}}\\t%{{{tag}VERSION}}\\n]"
        for kind, tag in zip(  # noqa: B905 - strict= is newer than some nodes' Python
            DEPENDENCIES, ("PROVIDE", "REQUIRE", "CONFLICT", "OBSOLETE")
        )
    )
    + "[file\\t%{FILENAMES}\\n]"
)
#: rpm's flags of a dependency (RPMSENSE_*): how versions compare, and what is only wished for.
COMPARED = {2: "LT", 4: "GT", 8: "EQ", 10: "LE", 12: "GE"}
COMPARISON, MISSING_OK = 0b1110, 1 << 19
COMMON = "http://linux.duke.edu/metadata/common"
RPM = "http://linux.duke.edu/metadata/rpm"
REPO = "http://linux.duke.edu/metadata/repo"
BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class RpmIdentity:
    """A package, exactly: `digest` is of its header, which has the digests of its files in it."""

    name: str
    version: str
    architecture: str
    digest: str = ""

    @property
    def exact(self) -> str:
        """NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE, as dnf takes it."""
        return f"{self.name}-{self.version}.{self.architecture}"

    @property
    def file(self) -> str:
        """The usual name of its file, which has no epoch."""
        return f"{self.name}-{self.version.rpartition(':')[2]}.{self.architecture}.rpm"


@dataclass(frozen=True)
class Check:
    """What rpm says of a file: all of it is there, and a key that rpm knows has signed it."""

    whole: bool
    signed: bool


def installed(root: Path, names: Iterable[str]) -> list[RpmIdentity]:
    """Return what is installed of these, in all versions and architectures. Raises PackageError."""
    asked = list(names)
    if not asked:
        return []
    completed = attempt(["rpm", "--root", str(root), "-q", "--qf", IDENTITY, *asked], ENVIRONMENT)
    if completed.returncode:
        said = " ".join((completed.stdout + completed.stderr).split())
        raise PackageError(f"Reading the installed packages failed: {said}")
    return identities(completed.stdout)


def identity(file: Path) -> RpmIdentity | None:
    """Return the package in a file; None where its header is not whole."""
    completed = attempt(["rpm", "-qp", "--qf", IDENTITY, str(file)], ENVIRONMENT)
    found = [] if completed.returncode else identities(completed.stdout)
    return found[0] if found else None


def identities(listing: str) -> list[RpmIdentity]:
    """Return packages as IDENTITY lists them; an epoch of 0 is left out, as dnf does."""

    def one(line: str) -> RpmIdentity:
        name, version, architecture, digest = line.split("\t")
        return RpmIdentity(name, version.removeprefix("0:"), architecture, digest)

    return each_line("rpm -q", listing, one)


def check(root: Path, file: Path) -> Check:
    """Compare a file with its own digests, and with the keys that rpm of a root directory knows."""
    completed = attempt(["rpmkeys", "--root", str(root), "--checksig", str(file)], ENVIRONMENT)
    # "FILE: digests signatures OK"; what is wrong has capitals: "FILE: digests SIGNATURES NOT OK".
    said = completed.stdout.strip().rpartition(": ")[2].split()
    return Check("digests" in said, "signatures" in said and "NOT" not in said)


def write_repository(folder: Path, files: Sequence[Path]) -> None:
    """Write the metadata of a repository of these files, which lie beside the folder. Raises PackageError."""
    metadata = folder / "repodata"
    metadata.mkdir(parents=True, exist_ok=True)
    primary = ElementTree.Element(
        "metadata", {"xmlns": COMMON, "xmlns:rpm": RPM, "packages": str(len(files))}
    )
    primary.extend(package_element(file, f"../{file.parent.name}/{file.name}") for file in files)
    text = ElementTree.tostring(primary, "utf-8", xml_declaration=True)
    # Without a time in it: the same packages have the same metadata.
    packed = gzip.compress(text, mtime=0)
    (metadata / "primary.xml.gz").write_bytes(packed)
    root = ElementTree.Element("repomd", {"xmlns": REPO})
    data = ElementTree.SubElement(root, "data", {"type": "primary"})
    for name, content in (("checksum", packed), ("open-checksum", text)):
        element = ElementTree.SubElement(data, name, {"type": "sha256"})
        element.text = hashlib.sha256(content).hexdigest()
    ElementTree.SubElement(data, "location", {"href": "repodata/primary.xml.gz"})
    for name, number in (("timestamp", 0), ("size", len(packed)), ("open-size", len(text))):
        ElementTree.SubElement(data, name).text = str(number)
    (metadata / "repomd.xml").write_bytes(ElementTree.tostring(root, "utf-8", xml_declaration=True))


def package_element(file: Path, location: str) -> ElementTree.Element:
    """Return a package's entry in the metadata."""
    completed = attempt(["rpm", "-qp", "--qf", HEADER, str(file)], ENVIRONMENT)
    if completed.returncode:
        raise PackageError(f"Reading {file} failed: {completed.stderr.strip()}")
    return parsed(f"rpm -qp {file}", completed.stdout, lambda text: element_of(text, file, location))


def element_of(header: str, file: Path, location: str) -> ElementTree.Element:
    """Return the entry of a package whose header rpm prints as HEADER says."""
    rows = [line.split("\t") for line in header.split("\n") if line]
    (_, name, version, architecture, built, size), *rest = rows
    package = ElementTree.Element("package", {"type": "rpm"})
    for tag, text in (("name", name), ("arch", architecture)):
        ElementTree.SubElement(package, tag).text = text
    ElementTree.SubElement(package, "version", parts(version))
    checksum = ElementTree.SubElement(package, "checksum", {"type": "sha256", "pkgid": "YES"})
    checksum.text = sha256(file)
    ElementTree.SubElement(package, "time", {"file": built, "build": built})
    sizes = {"package": str(file.stat().st_size), "installed": size, "archive": size}
    ElementTree.SubElement(package, "size", sizes)
    ElementTree.SubElement(package, "location", {"href": location})
    form = ElementTree.SubElement(package, "format")
    for kind in DEPENDENCIES:
        entries = [dependency(*row[1:]) for row in rest if row[0] == kind and wanted(*row[1:3])]
        if entries:
            ElementTree.SubElement(form, f"rpm:{kind}").extend(entries)
    for row in rest:
        # All files: whatever another package requires by its path has to be found.
        if row[0] == "file" and row[1] != "(none)":
            ElementTree.SubElement(form, "file").text = row[1]
    return package


def wanted(name: str, flags: str) -> bool:
    """Return whether a dependency is one on packages: neither on a feature of rpm, nor a mere wish."""
    return name != "(none)" and not name.startswith("rpmlib(") and not int(flags) & MISSING_OK


def dependency(name: str, flags: str, version: str) -> ElementTree.Element:
    """Return one entry of what a package provides, requires, conflicts with or obsoletes."""
    compared = COMPARED.get(int(flags) & COMPARISON)
    bounds = {"flags": compared, **parts(version)} if compared and version else {}
    return ElementTree.Element("rpm:entry", {"name": name, **bounds})


def parts(version: str) -> dict[str, str]:
    """EPOCH:VERSION-RELEASE as attributes; a bound may lack the release."""
    epoch, _, rest = version.rpartition(":")
    number, _, release = rest.partition("-")
    return {"epoch": epoch or "0", "ver": number, **({"rel": release} if release else {})}


def sha256(file: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
