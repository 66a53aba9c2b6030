"""Fetch the packages of an upgrade, and those that lead back from it, before anything is changed (dnf).

Both become repositories in one folder of the node (`dnf.KEPT`), and nothing of it lies elsewhere. `dnf.Dnf`
installs from them alone where they have all that a transaction needs: either way then asks nobody.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.temper.packaging import dnf_preview, rpm_files
from ansible.module_utils.temper.packaging.dnf import (
    ENVIRONMENT,
    FULL_DISK,
    INSTALL,
    KEPT,
    Dnf,
    kept_stream,
    why,
)
from ansible.module_utils.temper.packaging.download import without_credentials
from ansible.module_utils.temper.packaging.packages import (
    Change,
    PackageError,
    Packages,
    Transaction,
    Wish,
    attempt,
)
from ansible.module_utils.temper.packaging.preview import Preview, no_room, refused
from ansible.module_utils.temper.packaging.repositories import Repository
from ansible.module_utils.temper.packaging.rpm_files import RpmIdentity

NOTHING_CHANGED = "Nothing was changed."
# "[MIRROR] libnccl-2.28.9-1.x86_64.rpm: Status code: 404 for https://..."
FILE_FAILED = re.compile(r"^\[MIRROR\] (.+)$", re.MULTILINE)


def stage(wish: Wish, repositories: Sequence[Repository], node: Dnf) -> tuple[Preview, dict[str, str]]:
    """Return the transaction that leads to `wish`, and the versions that lead back.

    Both are on the node afterwards.

    Each new package is checked as its repository asks (checksum, signature), each former one is the very
    package that is installed. Where the preview has problems, nothing more was fetched.

    Raises:
        PackageError: a package could not be fetched; what was there already is not fetched again.
    """
    folder = node.path(KEPT)
    with dnf_preview.private_root(repositories, node) as (private, problems):
        if private is None:
            return refused(*problems), {}
        known = private.query()
        wish = dnf_preview.with_required(wish, private)
        preview = dnf_preview.resolve(private, wish, known, folder)
        if preview.problems or not preview.transaction.changes:
            return preview, {}
        back = former(preview.transaction, known)
        before = rpm_files.installed(private.root, (f"{name}-{bare(back[name])}" for name in back))
        keep_streams(private, node, forget(folder))
        # These first: it is they that may be had nowhere any more.
        with as_now(private, node):
            lacking = absent(before, whole_files(private, folder))
            size = preview.transaction.download_bytes + download_bytes(private, lacking)
            short = no_room(replace(preview.transaction, download_bytes=size), folder)
            if short:
                return replace(preview, problems=short), {}
            fetch_former(private, node, lacking, folder)
        fetch_new(private, wish.lacking(known), folder)
        publish(private, before, preview.transaction, folder)
    return preview, back


def former(transaction: Transaction, known: Packages) -> dict[str, str]:
    """Return the installed version of what is replaced or removed."""
    replaced = {change.name: change.previous for change in (*transaction.upgrade, *transaction.downgrade)}
    return {**replaced, **{name: known[name].version for name, _ in transaction.remove if name in known}}


def bare(version: str) -> str:
    """Return a version without its epoch: older ones of rpm know no other way to ask."""
    return version.rpartition(":")[2]


def forget(folder: Path) -> Path:
    """Offer nothing of what is there until it is complete; the packages stay. Returns the folder."""
    for name in ("yum.repos.d", "cache", "modules.d", "signed", "unsigned"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "packages").mkdir(parents=True, exist_ok=True)
    return folder


# ---------------------------------------------------------------- fetching


def fetch_new(private: Dnf, lacking: dict[str, str], folder: Path) -> None:
    """Fetch what the transaction brings. dnf checks it as for an installation."""
    with private.plugins() as plugins:
        names = [f"{name}-{version}" if version else name for name, version in lacking.items()]
        status, _, output = private.dnf([*INSTALL, *only_download(folder), *names], plugins)
    if status:
        raise PackageError(
            f"Downloading the packages of the new stack failed: {reason(output)} {NOTHING_CHANGED} "
            "Run again when that is put right.",
            without_credentials(output),
        )


def fetch_former(private: Dnf, node: Dnf, lacking: Sequence[RpmIdentity], folder: Path) -> None:
    """Fetch the packages that are installed now: from the cache of the node's dnf, else as it has them."""
    copy_cached(private, node, lacking, folder)
    lacking = absent(lacking, whole_files(private, folder))
    if not lacking:
        return
    offered = private.offered({package.name for package in lacking})
    gone = [package for package in lacking if package.version not in offered.get(package.name, ())]
    if gone:
        raise PackageError(
            f"The way back cannot be kept: no repository of this node offers {listed(gone)} any more, which "
            f"is installed now, and dnf's cache does not have it. {NOTHING_CHANGED} Offer these versions in "
            "a repository or a mirror, then run again."
        )
    # Of a package that is there already, dnf asks for nothing but this very version.
    command = ["reinstall", *only_download(folder), *(package.exact for package in lacking)]
    with replace(private, pins=()).plugins() as plugins:
        status, _, output = private.dnf(command, plugins)
    if status:
        raise PackageError(
            "The way back cannot be kept: the packages that are installed now cannot be downloaded: "
            f"{reason(output)} {NOTHING_CHANGED} Run again when that is put right.",
            without_credentials(output),
        )
    others = absent(lacking, whole_files(private, folder))
    if others:
        raise PackageError(
            f"The way back cannot be kept: what the repositories of this node offer as {listed(others)} is "
            f"not the package that is installed. {NOTHING_CHANGED} Offer that one, then run again.",
            without_credentials(output),
        )


def only_download(folder: Path) -> list[str]:
    """Options of dnf: nothing is installed, and files go to the folder."""
    return ["--downloadonly", f"--downloaddir={folder / 'packages'}"]


def reason(output: str) -> str:
    """Return why dnf could not download, in a sentence.

    What it says of a file is in the lines before its error.
    """
    told = [without_credentials(" ".join(line.split())) for line in FILE_FAILED.findall(output)]
    full = "the disk is full (see `df -h /var/cache` on the node)" if FULL_DISK.search(output) else ""
    return (full or "; ".join(dict.fromkeys(told)) or without_credentials(why(output))).rstrip(".") + "."


def copy_cached(private: Dnf, node: Dnf, lacking: Sequence[RpmIdentity], folder: Path) -> None:
    """Copy what the cache of the node's dnf still has."""
    names = {package.file for package in lacking}
    for file in node.path(dnf_preview.CACHE).glob("*/packages/*.rpm"):
        same = file.name in names and rpm_files.identity(file) in lacking
        if same and rpm_files.check(private.root, file).whole:
            try:
                shutil.copyfile(file, folder / "packages" / file.name)
            except OSError as error:
                raise PackageError(f"Copying {file} failed: {error}. {NOTHING_CHANGED}") from error


def download_bytes(private: Dnf, lacking: Iterable[RpmIdentity]) -> int:
    """Return what is to be downloaded, as far as a repository offers it."""
    changes = [Change(package.name, package.version, package.architecture) for package in lacking]
    return private.with_details(Transaction(install=tuple(changes))).download_bytes


def whole_files(private: Dnf, folder: Path) -> dict[RpmIdentity, tuple[Path, bool]]:
    """Return the packages that are there and whole, and whether a key that rpm knows has signed each."""
    found: dict[RpmIdentity, tuple[Path, bool]] = {}
    for file in sorted((folder / "packages").glob("*.rpm")):
        package = rpm_files.identity(file)
        check = rpm_files.check(private.root, file)
        if package is not None and check.whole:
            found[package] = file, check.signed
    return found


def absent(expected: Iterable[RpmIdentity], there: Iterable[RpmIdentity]) -> list[RpmIdentity]:
    """Return which packages are not there yet."""
    found = set(there)
    return [package for package in expected if package not in found]


def listed(packages: Sequence[RpmIdentity]) -> str:
    """Return names and versions, for a sentence."""
    return ", ".join(f"{package.name} {package.version}" for package in packages)


# ---------------------------------------------------------------- the node as it is, and as it will be


def keep_streams(private: Dnf, node: Dnf, folder: Path) -> None:
    """Keep dnf's own note on each module stream, the one to come and the one of now.

    To enable a stream, dnf needs the module's metadata, which only the repository has that it is from.
    """
    for stream in node.streams:
        for manager in (node, private):
            enabled = manager.enabled(stream["name"])
            if enabled:
                target = kept_stream(folder, stream["name"], enabled)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(manager.stream_state(stream["name"]), target)


@contextlib.contextmanager
def as_now(private: Dnf, node: Dnf) -> Iterator[None]:
    """For a while the private root has the repositories and the module streams that the node has now."""
    with contextlib.ExitStack() as returning:
        for name in ("/etc/yum.repos.d", "/etc/dnf/modules.d"):
            inside, aside = private.path(name), private.path(name).with_suffix(".wanted")
            if inside.is_dir():
                inside.rename(aside)
                returning.callback(aside.rename, inside)
            if node.path(name).is_dir():
                shutil.copytree(node.path(name), inside)
                returning.callback(shutil.rmtree, inside)
        yield


# ---------------------------------------------------------------- the repositories


def publish(private: Dnf, before: Sequence[RpmIdentity], transaction: Transaction, folder: Path) -> None:
    """Make repositories of the packages of both stacks, and remove whatever else lies there.

    What is signed is checked again when it is installed. What is not (the container toolkit's repository
    signs its metadata only) has a repository of its own: dnf has compared it with that metadata, or it is the
    very package that is installed, and only root can write here.
    """
    after = {(change.name, change.version, change.architecture) for change in transaction.changes}
    there = {
        package: found
        for package, found in whole_files(private, folder).items()
        if package in before or (package.name, package.version, package.architecture) in after
    }
    lost = sorted(
        " ".join(row)
        for row in after - {(package.name, package.version, package.architecture) for package in there}
    )
    if lost:
        raise PackageError(f"dnf reported success, but has not downloaded {', '.join(lost)}.")
    kept = {file for file, _ in there.values()}
    for file in (folder / "packages").iterdir():
        if file not in kept:
            file.unlink()
    sections = ""
    for name in ("signed", "unsigned"):
        chosen = [file for file, signed in there.values() if signed == (name == "signed")]
        if chosen:
            rpm_files.write_repository(folder / name, chosen)
            sections += section(name, folder)
    # The keys with which dnf has just checked them; of a new repository, rpm of the node has none yet.
    command = ["rpm", "--root", str(private.root), "-q", "gpg-pubkey", "--qf", "%{DESCRIPTION}\\n"]
    (folder / "keys").write_text(attempt(command, ENVIRONMENT).stdout, encoding="utf-8")
    # The last: before it, dnf does not look at any of this.
    (folder / "yum.repos.d").mkdir()
    (folder / "yum.repos.d" / "temper-former.repo").write_text(sections, encoding="utf-8")


def section(name: str, folder: Path) -> str:
    """Return a repository for dnf.

    What it has was chosen in its streams, so that no other stream hides it.
    """
    return (
        f"[temper-former-{name}]\nname=Kept by Temper until an upgrade is proven, {name}\n"
        f"baseurl=file://{folder / name}/\nenabled=1\ngpgcheck={int(name == 'signed')}\nrepo_gpgcheck=0\n"
        f"gpgkey=file://{folder / 'keys'}\nmodule_hotfixes=1\nskip_if_unavailable=0\n"
    )
