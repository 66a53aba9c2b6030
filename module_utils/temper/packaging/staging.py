"""Fetch the packages of an upgrade, and those that lead back from it, before anything is changed (apt).

The way there goes into apt's own cache, where the installation finds it. A repository need not offer the
former versions any more when they are wanted back (Debian's keeps one a suite), so these become a repository
of their own on the node, which the same transaction as ever installs from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.packaging import apt_preview, repositories
from ansible.module_utils.temper.packaging.apt import APT_GET, INSTALL, Apt, lines_that_explain, targets
from ansible.module_utils.temper.packaging.packages import PackageError, Packages, Transaction, Wish
from ansible.module_utils.temper.packaging.preview import Preview, refused
from ansible.module_utils.temper.packaging.repositories import Repository

#: apt downloads and reads as a user of its own: below a directory that everybody may enter.
FORMER = Path("/var/cache/temper/former-packages")
BLOCK_BYTES = 2**20
#: Nothing is changed yet, and the roll-out tries again later: no reason to wait as long as at work.
LOCK_TIMEOUT_S = 60


def stage(
    wish: Wish, wanted_repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]]
) -> tuple[Preview, dict[str, str]]:
    """Return the transaction that leads to `wish`, and the versions that lead back.

    Both are on the node afterwards.

    apt has checked each file against the signed lists. Where the preview has problems, nothing was fetched.

    Raises:
        PackageError: a package could not be fetched; what was there already is not fetched again.
    """
    with apt_preview.private_root(wanted_repositories, pins) as (root, problems):
        if root is None:
            return refused(*problems), {}
        known = root.apt.query()
        preview = apt_preview.resolve(root, wish, known)
        if preview.problems:
            return preview, {}
        lacking = wish.lacking(known)
        if lacking:
            fetch_new(root, lacking)
    back = former(preview.transaction, known)
    if back:
        fetch_former(back)
        publish()
    return preview, back


def fetch_new(root: apt_preview.Root, lacking: dict[str, str]) -> None:
    """Fetch what the transaction brings into the cache of the node's apt."""
    command = [
        *APT_GET,
        *INSTALL,
        *("--download-only", "-o", f"Dir::Cache::archives={root.node['archives']}"),
        *("-o", "Debug::NoLocking=false", "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}"),
        *targets(lacking),
    ]
    apt = replace(root.apt, lock_timeout_s=LOCK_TIMEOUT_S)
    apt.run(command, "Downloading the packages of the new stack")


def former(transaction: Transaction, known: Packages) -> dict[str, str]:
    """Return the installed version of each package that is replaced or removed.

    The key is NAME:ARCHITECTURE (NAME for "all") of one that is replaced, NAME of one that is removed.
    """
    replaced = {
        f"{change.name}:{change.architecture}".removesuffix(":all"): change.previous
        for change in (*transaction.upgrade, *transaction.downgrade)
    }
    removed = {name: version or known[name].version for name, version in transaction.remove}
    return {**replaced, **removed}


def fetch_former(back: Mapping[str, str]) -> None:
    """Fetch the versions that are installed now, as the node's own lists offer them."""
    FORMER.mkdir(parents=True, exist_ok=True)
    FORMER.chmod(0o755)
    names = [f"{name}={version}" for name, version in back.items()]
    # apt-get download writes into the working directory.
    completed = Apt().attempt(["env", f"--chdir={FORMER}", *APT_GET, "download", *names])
    if completed.returncode:
        output = completed.stdout + completed.stderr
        raise PackageError(
            "The way back cannot be kept: the packages that are installed now cannot be downloaded: "
            f"{lines_that_explain(output)} Nothing was changed. Offer these versions in a repository or a "
            "mirror, then run again.",
            output,
        )


def publish() -> None:
    """Make a repository of what lies in FORMER, and let apt know it."""
    index = "\n".join(map(stanza, sorted(FORMER.glob("*.deb"))))
    (FORMER / "Packages").write_text(index, encoding="utf-8")
    source = source_file()
    text = (
        "# Managed by Temper: the packages from before an upgrade, until it is proven.\n"
        # apt has checked each file against the signed lists that it came from; only root can write here.
        f"Types: deb\nURIs: file:{FORMER}\nSuites: ./\nTrusted: yes\n"
    )
    # In one step: with a part of it, no apt of this node works any more.
    replace_file(source, text.encode(), 0o644)
    options = (f"Dir::Etc::sourcelist={source}", "Dir::Etc::sourceparts=-", "APT::Get::List-Cleanup=false")
    words = [word for option in options for word in ("-o", option)]
    Apt().run([*APT_GET, *words, "update"], "Reading the list of the former packages")


def stanza(file: Path) -> str:
    """Return a package's entry in the index."""
    control = Apt().run(["dpkg-deb", "--field", str(file)], f"Reading {file}").strip()
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return f"{control}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest.hexdigest()}\n"


def source_file() -> Path:
    """Return what names the former packages to apt."""
    return repositories.APT / "sources.list.d" / "temper-former.sources"
