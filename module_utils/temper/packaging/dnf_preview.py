"""Simulate a dnf transaction on a node that is not configured for it yet, without changing the node.

dnf works in a private root directory with copies of the node's configuration and of its rpm database.
"""

from __future__ import annotations

import contextlib
import gzip
import platform
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from ansible.module_utils.temper.packaging import repositories as repos
from ansible.module_utils.temper.packaging.dnf import ENVIRONMENT, Dnf, same
from ansible.module_utils.temper.packaging.packages import (
    FAMILY,
    PackageError,
    Packages,
    Transaction,
    Wish,
    attempt,
    nearest,
)
from ansible.module_utils.temper.packaging.preview import Lacking, Preview, conclude, refused, unresolved
from ansible.module_utils.temper.packaging.repositories import Repository
from ansible.module_utils.temper.packaging.signing_keys import RepositoryError, keyring, noted
from ansible.module_utils.temper.packaging.site_rules import SiteRule, barring

CONFIGURATION = ("/etc/dnf", "/etc/yum/vars", "/etc/os-release")
CACHE = "/var/cache/dnf"
# "nothing provides dkms >= 3.1.8 needed by kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch from ..."
UNMET = re.compile(
    r"nothing provides (?P<requirement>.+) needed by (?P<package>\S+)-[^-\s]+-[^-\s]+?(?: from |$)"
)
# What a line of dnf's configuration keeps away, with the lines that go on with it (dnf.conf(5)).
EXCLUSION = re.compile(
    r"^(?:exclude|excludepkgs|includepkgs)[ \t]*[=:][^\n]*(?:\n[ \t]+[^\n]*)*", re.MULTILINE
)
# A line of the versionlock plugin's list.
LOCK = re.compile(r"^[^#\n].*$", re.MULTILINE)
COMMON = "{http://linux.duke.edu/metadata/common}"


def preview(wish: Wish, repositories: Sequence[Repository], node: Dnf, *, from_bare: bool) -> Preview:
    """Simulate `wish` as if `repositories` and the pins and module streams of `node` were in place."""
    with private_root(repositories, node, wish if from_bare else None) as (private, problems):
        if private is None:
            return refused(*problems)
        return resolve(private, with_required(wish, private), private.query(), node.path(CACHE))


@contextlib.contextmanager
def private_root(
    repositories: Sequence[Repository], node: Dnf, forgotten: Wish | None = None
) -> Iterator[tuple[Dnf | None, list[str]]]:
    """Provide a dnf that knows `repositories` and has the streams of `node`.

    Where that fails, provide None and a sentence.

    With `forgotten`, as if nothing of the NVIDIA family, nor of this wish, were installed.
    """
    with tempfile.TemporaryDirectory(prefix="temper-preview-") as name:
        private = replace(node, root=Path(name), saved={})
        problems: list[str] = []
        try:
            fill(private, node, repositories)
            if forgotten is not None:
                forget_family(private, forgotten)
            private.refresh()
            private.prepare()
        except (RepositoryError, PackageError) as error:
            problems = [str(error)]
        yield (None if problems else private), problems


def with_required(wish: Wish, private: Dnf) -> Wish:
    """Return the wish with what holding itself needs."""
    return Wish(wish.packages, {**wish.present, **dict.fromkeys(private.required(), "")})


def resolve(private: Dnf, wish: Wish, known: Packages, archives: Path) -> Preview:
    """Simulate; `archives` is where downloads go on the node."""
    lacking = wish.lacking(known)
    try:
        transaction = private.simulate(lacking) if lacking else Transaction()
    except PackageError as error:
        found = rule_files(private)
        rules = barring(site_rules(private, found), lambda some: works(private, lacking, found, some))
        absent = not_offered(private, lacking)
        otherwise = [] if absent else unmet(private, error.output) or [str(error)]
        return unresolved(rules, absent, otherwise)
    preview = conclude(private, wish, transaction, known, archives)
    return replace(preview, transaction=with_checksums(preview.transaction, private))


def rule_files(private: Dnf) -> dict[Path, tuple[re.Pattern[str], str]]:
    """Return the files that may keep packages away, with the pattern of such a rule, and their text."""
    sources = [
        path
        for path in sorted(private.path("/etc/yum.repos.d").glob("*.repo"))
        if not path.name.startswith("temper-")
    ]
    forms = dict.fromkeys([private.path("/etc/dnf/dnf.conf"), *sources], EXCLUSION)
    forms[private.lock_list()] = LOCK
    return {
        path: (form, path.read_text(encoding="utf-8", errors="replace"))
        for path, form in forms.items()
        if path.is_file()
    }


def site_rules(private: Dnf, found: Mapping[Path, tuple[re.Pattern[str], str]]) -> list[SiteRule]:
    """Return the exclusions and locks in these files that are not ours."""
    foreign = private.foreign_locks()
    return [
        SiteRule(f"/{path.relative_to(private.root)}", rule)
        for path, (form, text) in found.items()
        for rule in form.findall(text)
        if form is not LOCK or rule.strip() in foreign
    ]


def works(
    private: Dnf,
    wanted: dict[str, str],
    found: Mapping[Path, tuple[re.Pattern[str], str]],
    rules: Sequence[SiteRule],
) -> bool:
    """Return whether dnf can do it with these rules alone in its files."""
    for path, (form, whole) in found.items():
        text = whole
        kept = {rule.text for rule in rules if rule.place == f"/{path.relative_to(private.root)}"}
        for rule in form.findall(whole):
            if rule not in kept:
                text = re.sub(f"^{re.escape(rule)}$", "", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
    try:
        private.simulate(wanted)
    except PackageError:
        return False
    return True


def fill(private: Dnf, node: Dnf, repositories: Sequence[Repository]) -> None:
    """Copy what dnf reads of the node, and add the repositories to come."""
    for name in CONFIGURATION:
        source, target = node.path(name), private.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copyfile(source, target)
    database = attempt(["rpm", "--eval", "%{_dbpath}"], ENVIRONMENT).stdout.strip()
    if node.path(database).is_dir():
        shutil.copytree(node.path(database), private.path(database), dirs_exist_ok=True)
    sources = private.path("/etc/yum.repos.d")
    sources.mkdir(parents=True)
    directory = node.path("/etc/yum.repos.d")
    for path in sorted(directory.glob("*.repo")) if directory.is_dir() else ():
        content = None if path.name.startswith("temper-") else repos.without(path, repositories)
        if content is not None:
            (sources / path.name).write_bytes(content)
    keys = private.path("/keys")
    keys.mkdir()
    for repository in repositories:
        source, existing = repos.source_path(repository), repos.keyring_path(repository)
        if repository["signed_by"] is None:
            current = existing.read_bytes() if existing.is_file() else b""
            before = set(noted(source)["fingerprints"])
            (keys / existing.name).write_text(keyring(repository, current, before).text, encoding="utf-8")
        text = repos.source_text(repository, keys / existing.name)
        (sources / source.name).write_text(text, encoding="utf-8")


def forget_family(private: Dnf, wish: Wish) -> None:
    """Let rpm believe that the family is not installed."""
    known = private.query()
    gone = [name for name in known if FAMILY.match(name) or name in wish.packages or name in wish.present]
    if gone:
        options = ["--root", str(private.root), "--justdb", "--nodeps", "--noscripts", "--notriggers"]
        completed = attempt(["rpm", "-e", "--allmatches", *options, *gone], ENVIRONMENT)
        if completed.returncode:
            raise PackageError(f"The family cannot be left out of the simulation: {completed.stderr.strip()}")


def not_offered(private: Dnf, wanted: Mapping[str, str]) -> list[Lacking]:
    """Return the packages and versions that no repository offers."""
    offered = private.offered(wanted)
    found = []
    for name, version in wanted.items():
        if name not in offered:
            near = nearest(name, sorted(private.offered([f"{name[: max(4, len(name) * 2 // 3)]}*"])))
            found.append(Lacking(name, "", near))
        elif version and not any(same(version, other) for other in offered[name]):
            found.append(Lacking(name, version, nearest(version, offered[name])))
    return found


def unmet(private: Dnf, output: Sequence[str]) -> list[str]:
    """Return a sentence on what packages need and no repository has: dkms, where EPEL is not enabled."""
    needs = [
        f"{match['package']} needs {match['requirement']}"
        for line in output
        if (match := UNMET.search(line)) and not FAMILY.match(match["requirement"])
    ]
    if not needs:
        return []
    listing = private.dnf(["-q", "repolist", "--enabled"])[1].splitlines()[1:]
    enabled = ", ".join(line.split()[0] for line in listing if line.strip())
    return [
        f"{', '.join(dict.fromkeys(needs))}, and no enabled repository of this node has it ({enabled}). What "
        f"NVIDIA's packages need beside the distribution's own (dkms) is in EPEL and CRB; enable both, or "
        f"mirrors of them, and run again: {enabling(private)}."
    ]


def enabling(private: Dnf) -> str:
    """Return the commands that enable EPEL and CRB, on RHEL and on its rebuilds."""
    text = private.path("/etc/os-release").read_text(encoding="utf-8")
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    major = release.get("VERSION_ID", "").partition(".")[0]
    if release.get("ID") != "rhel":
        crb = "powertools" if major == "8" else "crb"
        return f"`dnf install epel-release` and `dnf config-manager --set-enabled {crb}`"
    return (
        f"`subscription-manager repos --enable codeready-builder-for-rhel-{major}-{platform.machine()}-rpms` "
        f"and `dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-{major}.noarch.rpm`"
    )


@contextlib.contextmanager
def unreadable_metadata(path: Path) -> Iterator[None]:
    """Raise PackageError where a repository's metadata are no XML, or not whole."""
    try:
        yield
    except (ElementTree.ParseError, EOFError, zlib.error, OSError) as error:
        raise PackageError(
            f"The metadata {path.name} that dnf has fetched cannot be read ({error}): see whether the mirror "
            "is whole, and run again."
        ) from error


def with_checksums(transaction: Transaction, private: Dnf) -> Transaction:
    """Add the packages' checksums from the metadata that dnf has fetched; dnf itself does not print them."""
    names = {change.name for change in transaction.changes}
    found = {}
    for path in private.path(CACHE).glob("*/repodata/*primary.xml.gz"):
        with gzip.open(path) as stream, unreadable_metadata(path):
            # What dnf has just parsed, from repositories whose packages the node is about to run as root.
            for _, element in ElementTree.iterparse(stream):  # noqa: S314 - said above
                if element.tag != f"{COMMON}package":
                    continue
                checksum, location = element.find(f"{COMMON}checksum"), element.find(f"{COMMON}location")
                if (
                    element.findtext(f"{COMMON}name") in names
                    and checksum is not None
                    and location is not None
                ):
                    file = location.get("href", "").rpartition("/")[2]
                    found[file] = (checksum.text or "") if checksum.get("type") == "sha256" else ""
                element.clear()
    install, upgrade, downgrade = (
        tuple(replace(change, sha256=found.get(change.uri.rpartition("/")[2], "")) for change in changes)
        for changes in (transaction.install, transaction.upgrade, transaction.downgrade)
    )
    return replace(transaction, install=install, upgrade=upgrade, downgrade=downgrade)
