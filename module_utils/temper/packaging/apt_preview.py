"""Simulate an apt transaction on a node that is not configured for it yet, without changing the node.

apt gets private directories for everything that it would write, and for the sources, keyrings and
preferences that the node does not have yet. The node's own lists are used, so that Debian's are not fetched
again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ansible.module_utils.temper import process
from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.packaging import repositories as repos
from ansible.module_utils.temper.packaging.apt import APT_GET, UNVERIFIED, UPDATE_OPTIONS, Apt
from ansible.module_utils.temper.packaging.packages import (
    FAMILY,
    PackageError,
    Packages,
    Transaction,
    Wish,
    nearest,
)
from ansible.module_utils.temper.packaging.preview import MIB, Lacking, Preview, conclude, refused, unresolved
from ansible.module_utils.temper.packaging.repositories import Repository
from ansible.module_utils.temper.packaging.signing_keys import RepositoryError, keyring, noted, renew
from ansible.module_utils.temper.packaging.site_rules import SiteRule, barring

# apt's names of the files and directories that a preview replaces or reads.
APT_PATHS = {
    "sourcelist": "Dir::Etc::sourcelist/f",
    "sourceparts": "Dir::Etc::sourceparts/d",
    "preferences": "Dir::Etc::preferences/f",
    "preferencesparts": "Dir::Etc::preferencesparts/d",
    "lists": "Dir::State::lists/d",
    "status": "Dir::State::status/f",
    "archives": "Dir::Cache::archives/d",
}
# The files in preferences.d that apt reads (GetListOfFilesInDir in apt-pkg/contrib/fileutl.cc).
PREFERENCES = re.compile(r"[\w:-]+(\.pref)?", re.ASCII)
NO_SPACE = "No space left on device"
HOOKS = ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")


def preview(
    wish: Wish, repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]], *, from_bare: bool
) -> Preview:
    """Simulate `wish` as if `repositories` and `pins` were in place.

    With `from_bare`, as if nothing of the NVIDIA family, nor what it brought along, were installed.
    """
    with private_root(repositories, pins) as (root, problems):
        if root is None:
            return refused(*problems)
        known = root.apt.query()
        if from_bare:
            known = root.forget_family(wish, known)
        return resolve(root, wish, known)


@contextlib.contextmanager
def private_root(
    repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]]
) -> Iterator[tuple[Root | None, list[str]]]:
    """Provide an apt that knows `repositories` and `pins`.

    Where a repository cannot be read, provide None and a sentence.
    """
    with tempfile.TemporaryDirectory(prefix="temper-preview-") as name:
        root = Root(Path(name), node_paths())
        try:
            root.fill(repositories, pins)
        except RepositoryError as error:
            yield None, [str(error)]
            return
        problems = root.refresh(repositories)
        yield (None if problems else root), problems


def node_paths() -> dict[str, Path]:
    """Return where the node's apt has its files."""
    words = [word for name, option in APT_PATHS.items() for word in (name, option)]
    output = process.run(["apt-config", "shell", *words])

    def path(line: str) -> tuple[str, Path]:
        name, value = shlex.split(line)[0].split("=", 1)
        return name, Path(value)

    return dict(process.each_line("apt-config shell", output, path))


class Root:
    """Private directories, and an apt that works in them."""

    def __init__(self, directory: Path, node: Mapping[str, Path]) -> None:
        self.directory = directory
        self.node = node
        # apt downloads as a user of its own, who has to get here.
        directory.chmod(0o755)
        self.sources = directory / "sources.list.d"
        self.ours = directory / "ours"
        self.keyrings = directory / "keyrings"
        self.preferences = directory / "preferences.d"
        self.own_preferences = directory / "own-preferences.d"
        self.lists = directory / "lists"
        self.configuration = directory / "apt.conf"
        self.apt = Apt(("-c", str(self.configuration)))
        #: Sentences on repositories of others that could not be read.
        self.unread: list[str] = []

    def fill(self, repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]]) -> None:
        """Write the configuration. Raises RepositoryError where a key is not to be had, or another one."""
        own = (self.ours, self.keyrings, self.own_preferences)
        for path in (self.sources, self.preferences, *own, self.lists / "partial"):
            path.mkdir(parents=True)
        (self.directory / "cache/archives/partial").mkdir(parents=True)
        self.configure()
        self.take_source(self.node["sourcelist"], self.directory / "sources.list", repositories)
        for path in files(self.node["sourceparts"]):
            if not path.name.startswith("temper-"):
                self.take_source(path, self.sources / path.name, repositories)
        copy_file(self.node["preferences"], self.directory / "preferences")
        for path in files(self.node["preferencesparts"]):
            if not path.name.startswith("temper-"):
                copy_file(path, self.preferences / path.name)
        pinned = repos.preferences(pins, repositories)
        for directory in (self.preferences, self.own_preferences):
            (directory / "temper-nvidia").write_text(pinned, encoding="utf-8")
        for repository in repositories:
            source = repos.source_path(repository)
            existing = repos.keyring_path(repository)
            private = self.keyrings / existing.name
            if repository["signed_by"] is None:
                current = existing.read_bytes() if existing.is_file() else b""
                before = set(noted(source)["fingerprints"])
                private.write_text(keyring(repository, current, before).text, encoding="utf-8")
            text = repos.source_text(repository, private)
            for directory in (self.sources, self.ours):
                (directory / source.name).write_text(text, encoding="utf-8")
        self.take_lists(repositories)

    def take_source(self, path: Path, target: Path, repositories: Sequence[Repository]) -> None:
        """Copy a source file of the node, if it is there, without the repositories that are ours.

        Addresses may have passwords, and everybody may enter the folder.
        """
        content = repos.without(path, repositories) if path.is_file() else None
        if content is not None:
            replace_file(target, content, stat.S_IMODE(path.stat().st_mode))

    def configure(self, *more: str) -> None:
        """Write apt's configuration."""
        lines = [
            # They belong to the node: what they write is not private.
            *(f"#clear APT::Update::{hook};" for hook in HOOKS),
            f'Dir::Etc::sourcelist "{self.directory}/sources.list";',
            f'Dir::Etc::sourceparts "{self.sources}";',
            f'Dir::Etc::preferences "{self.directory}/preferences";',
            f'Dir::Etc::preferencesparts "{self.preferences}";',
            f'Dir::State::lists "{self.lists}";',
            f'Dir::Cache "{self.directory}/cache";',
            'Dir::Cache::archives "archives";',
            f'Dir::Log "{self.directory}";',
            'Debug::NoLocking "true";',
            *more,
        ]
        self.configuration.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def take_lists(self, repositories: Sequence[Repository]) -> None:
        """Use the node's lists: copies of those that apt may write, none of what it fetches as a whole."""
        flat = [repository for repository in repositories if repository["suite"].endswith("/")]
        anew = tuple(list_prefix(repository["uri"]) for repository in flat)
        written = tuple(list_prefix(repository["uri"]) for repository in repositories)
        for path in files(self.node["lists"]):
            if path.name == "lock" or path.name.startswith(anew):
                continue
            if path.name.startswith(written):
                shutil.copy2(path, self.lists / path.name)
            else:
                (self.lists / path.name).symlink_to(path)

    def refresh(self, repositories: Sequence[Repository]) -> list[str]:
        """Read the lists of the new repositories, and those that the node lacks; says what cannot be read."""
        if not any(path.is_file() for path in self.lists.iterdir()):
            return self.read_all(repositories)
        only_ours = [f"Dir::Etc::sourceparts={self.ours}", "Dir::Etc::sourcelist=/dev/null"]
        said = self.update(*only_ours, "APT::Get::List-Cleanup=false") if repositories else ""
        return self.unreadable(said, repositories)

    def read_all(self, repositories: Sequence[Repository]) -> list[str]:
        """Read all lists; says what cannot be read.

        Where that is of others alone, it is noted: they need not have what is wanted.
        """
        said = self.update()
        problems = self.unreadable(said, repositories)
        own = {repos.normal_uri(repository["uri"]) for repository in repositories}
        if repos.only_others_fail(said.splitlines(), own):
            self.unread, problems = problems, []
        return problems

    def update(self, *options: str) -> str:
        """Run apt-get update; return what it prints where a repository cannot be read."""
        words = [word for option in (*options, *UPDATE_OPTIONS) for word in ("-o", option)]
        command = [*APT_GET, *words, "update"]
        completed = self.apt.attempt(command)
        if completed.returncode:
            if UNVERIFIED.search(completed.stdout + completed.stderr):
                renew(self.ours, self.keyrings)
            completed = self.apt.attempt(command)
        return completed.stdout + completed.stderr if completed.returncode else ""

    def unreadable(self, said: str, repositories: Sequence[Repository] = ()) -> list[str]:
        """Return sentences on what apt could not read, by what it says; none where it says nothing."""
        if NO_SPACE in said:
            place = self.directory.parent
            free = shutil.disk_usage(place).free // MIB
            return [
                f"{place} is full ({free} MiB free), and apt reads its lists there for the simulation: free "
                "some space."
            ]
        return repos.unreadable(said, repositories) if said else []

    def site_pins(self) -> list[SiteRule]:
        """Return the entries of the node's preferences that are not ours."""
        parts = [path for path in files(self.node["preferencesparts"]) if PREFERENCES.fullmatch(path.name)]
        return [
            pin
            for path in (self.node["preferences"], *parts)
            if path.is_file() and not path.name.startswith("temper-")
            for pin in entries(path)
        ]

    def works(self, wanted: dict[str, str], pins: Sequence[SiteRule]) -> bool:
        """Return whether apt can do it with these entries in place of the node's preferences."""
        path = self.directory / "tried-preferences"
        path.write_text("\n".join(pin.text for pin in pins), encoding="utf-8")
        names = {"preferences": path, "preferencesparts": self.own_preferences}
        options = [word for name, value in names.items() for word in ("-o", f"Dir::Etc::{name}={value}")]
        try:
            Apt((*self.apt.options, *options)).simulate(wanted)
        except PackageError:
            return False
        return True

    def forget_family(self, wish: Wish, known: Packages) -> Packages:
        """Let apt believe that the family, and what only the family needed, is not installed."""
        text = self.node["status"].read_text(encoding="utf-8")
        gone = (
            {package.base for package in known.values() if FAMILY.match(package.base)}
            | set(wish.packages)
            | set(wish.present)
        )
        self.write_status(text, gone)
        simulated = self.apt.attempt(["apt-get", "-q", "--simulate", "autoremove"])
        gone |= {name for name, _ in self.apt.parse(simulated.stdout).remove}
        self.write_status(text, gone)
        return {name: package for name, package in known.items() if package.base not in gone}

    def write_status(self, text: str, without: set[str]) -> None:
        """Write dpkg's status file without some packages, for apt alone."""

        def name(stanza: str) -> str:
            return str(re.findall(r"^Package: (\S+)", stanza, re.MULTILINE)[0])

        stanzas = [
            stanza
            for stanza in text.split("\n\n")
            if stanza.strip() and process.parsed("dpkg's status", stanza, name) not in without
        ]
        path = self.directory / "status"
        path.write_text("".join(f"{stanza.strip()}\n\n" for stanza in stanzas), encoding="utf-8")
        self.configure(f'Dir::State::status "{path}";')


def resolve(root: Root, wish: Wish, known: Packages) -> Preview:
    """Simulate; where the node's own lists are too old for it, a second time with new ones."""
    lacking = wish.lacking(known)
    try:
        transaction = root.apt.simulate(lacking) if lacking else Transaction()
    except PackageError:
        said = root.update()
        root.unread = root.unreadable(said)
        try:
            transaction = root.apt.simulate(lacking)
        except PackageError as error:
            if NO_SPACE in (said := f"{said}{error}"):
                return refused(*root.unreadable(said))
            rules = barring(root.site_pins(), lambda pins: root.works(lacking, pins))
            found = unresolved(rules, not_offered(root.apt, lacking), [str(error)])
            # What is not offered may be where nobody could read.
            unread = [] if rules else root.unread
            return replace(found, problems=[*unread, *found.problems])
    found = conclude(root.apt, wish, transaction, known, root.node["archives"])
    barred = no_scripts(root.node["status"].with_name("info")) if transaction.changes else []
    return replace(found, problems=[*found.problems, *barred])


def no_scripts(info: Path) -> list[str]:
    """Return why no package's script can run: dpkg starts them in the folder where it keeps them."""
    if not os.statvfs(info).f_flag & os.ST_NOEXEC:
        return []
    # A site may have apt mount it anew for each transaction.
    if re.search("remount.* /var", process.run(["apt-config", "dump", "DPkg::Pre-Invoke"])):
        return []
    return [
        f"The file system of {info} is mounted noexec, and dpkg starts the packages' scripts there: mount it "
        "without that (mount -o remount,exec; /etc/fstab)."
    ]


def entries(path: Path) -> Iterator[SiteRule]:
    """Yield the entries of a file of preferences, each with its first line (apt_preferences(5))."""
    begins, found = 0, ""
    # What follows the last line ends the last entry.
    for number, line in enumerate([*path.read_text(encoding="utf-8", errors="replace").split("\n"), ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            begins, found = begins or number, f"{found}{line}\n"
        elif found:
            yield SiteRule(f"{path}:{begins}", found)
            begins, found = 0, ""


def not_offered(apt: Apt, wanted: Mapping[str, str]) -> list[Lacking]:
    """Return the packages and versions that no repository offers."""
    offered = apt.offered(wanted)
    missing = [name for name in wanted if name not in offered]
    # A virtual package has no versions, but somebody provides it.
    missing = [name for name in missing if wanted[name] or not provided(apt, name)]
    found = []
    for name, version in wanted.items():
        if name in missing:
            found.append(Lacking(name, "", nearest(name, package_names(apt, name))))
        elif version and version not in offered.get(name, [version]):
            found.append(Lacking(name, version, nearest(version, offered[name])))
    return found


def provided(apt: Apt, name: str) -> bool:
    """Return whether a package provides this name."""
    shown = apt.attempt(["apt-cache", "showpkg", name]).stdout
    return bool(shown.partition("Reverse Provides:")[2].strip())


def package_names(apt: Apt, name: str) -> list[str]:
    """Return names of packages that begin as this one does."""
    stem = name.rstrip("0123456789.-")[: max(4, len(name) * 2 // 3)]
    return apt.attempt(["apt-cache", "pkgnames", stem]).stdout.split()


def files(directory: Path) -> Iterator[Path]:
    """Yield the files in a directory that may not be there."""
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in sorted(directory.iterdir()) if path.is_file())


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that may not be there."""
    if source.is_file():
        shutil.copyfile(source, target)


def list_prefix(uri: str) -> str:
    """Return how the names of apt's lists of a repository begin."""
    parts = urlsplit(uri)
    return (parts.netloc.rpartition("@")[2] + parts.path).strip("/").replace("/", "_")
