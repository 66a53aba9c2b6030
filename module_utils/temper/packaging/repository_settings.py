"""Package repositories as one setting: source files, keyrings, preferences, and what others left for them."""

from __future__ import annotations

import base64
import functools
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.packaging import node, repositories, signing_keys
from ansible.module_utils.temper.packaging.repositories import Repository
from ansible.module_utils.temper.settings.base import Difference, Setting, SettingError, State


class Repositories(Setting):
    """All repositories of a role, each with its pinned keys.

    `absent` are names of repositories of ours that are wanted no more. With `offline` no key is fetched to
    look: the node may not have a way out yet.
    """

    key = "repository:sources"
    in_parts = True

    def __init__(
        self, wanted: Sequence[Repository] = (), absent: Sequence[str] = (), *, offline: bool = False
    ) -> None:
        self.spec = {}
        self.wanted = wanted
        self.absent = absent
        self.offline = offline
        self.refusal: str | None = None
        self.notes: list[str] = []
        self.left: list[str] = []
        self.written: list[str] | None = None

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> Repositories:
        """From repositories by name. In check mode the node is `offline`."""
        defaults = {name: option.get("default") for name, option in repositories.SPEC.items()}
        wanted = [{**defaults, **each, "name": name} for name, each in items.items() if each is not None]
        absent = [name for name, each in items.items() if each is None]
        return cls(wanted, absent, offline=bool(options.get("check_mode")))

    @functools.cached_property
    def files(self) -> list[File]:
        """All files, as they shall be; none, and `refusal`, where a pinned key is not to be had."""
        try:
            return self.wanted_files()
        except signing_keys.RepositoryError as error:
            self.refusal = str(error)
            return []

    def wanted_files(self) -> list[File]:
        """Return all files. Raises RepositoryError."""
        files = [File(str(path), None) for path in files_of(self.absent)]
        files += foreign_files(self.wanted) + trusted_files()
        for repository in self.wanted:
            files += exclusions(repository) + self.files_with_key(repository)
        return files

    def files_with_key(self, repository: Repository) -> list[File]:
        """Keyring and source of one repository."""
        keyring, source = repositories.keyring_path(repository), repositories.source_path(repository)
        text = File(str(source), repositories.source_text(repository, keyring))
        if repository["signed_by"] is not None:
            return [text]
        current = keyring.read_bytes() if keyring.is_file() else b""
        noted = set(signing_keys.noted(source)["fingerprints"])
        if self.offline and signing_keys.due(repository, current, noted):
            return [File(str(keyring), "(the key, fetched and verified)\n"), text]
        key = signing_keys.keyring(repository, current, noted)
        self.notes += key.warnings
        # apt must not meet a source whose keyring is not there yet.
        return [File(str(keyring), key.text), text]

    @functools.cached_property
    def differing(self) -> list[File]:
        """The files that are not as they shall be."""
        return [file for file in self.files if file.differs()]

    def read(self) -> State:
        """Content and mode of the files that would change; None for one that is not there."""
        return {file.path: content_of(Path(file.path)) for file in self.differing}

    def settled(self) -> bool:
        """Return whether all files are as they shall be, and every key is to be had."""
        return not self.differing and self.refusal is None

    def change(self) -> list[Difference]:
        """Return the files."""
        return [Difference(file.path, *file.before_and_after()) for file in self.differing]

    def apply(self) -> None:
        """Write the files; the package lists are then read anew."""
        if obstacle := self.obstacle():
            raise SettingError(obstacle)
        for file in self.differing:
            file.write()
            node.NODE.lists_outdated = True
        self.written = [file.path for file in self.differing]
        self.forget()

    def restore(self, state: State) -> None:
        """Put back, or take away, the files that `read` has named."""
        ours = repositories.own_addresses()
        for path, before in state.items():
            content = None if before is None else base64.b64decode(before["content"])
            now = lines(Path(path).read_bytes()) if Path(path).is_file() else set()
            if content and of_others(Path(path)) and changed_since(Path(path).suffix, now, content, ours):
                lost = repositories.addresses("\n".join(lines(content) - now))
                self.left += [
                    f"stays: {path}, without {uri}, because it was changed since."
                    for uri in sorted(lost & ours or lost)
                ]
                continue
            mode = "0644" if before is None else before["mode"]
            if of_others(Path(path)) and Path(path).is_file():  # the site may have made it private since
                mode = f"{int(mode, 8) & Path(path).stat().st_mode:04o}"
            File(path, content, mode).write()
            node.NODE.lists_outdated = True
        self.forget()

    def after(self) -> list[str]:
        """Return the files that the site has changed since."""
        return self.left

    def is_at(self, state: State) -> bool:
        """Return whether the files that `read` has named are as they were."""
        return all(content_of(Path(path)) == before for path, before in state.items())

    def forget(self) -> None:
        """Forget what was read, because the files are others now."""
        for name in ("files", "differing"):
            self.__dict__.pop(name, None)

    def obstacle(self) -> str | None:
        """Return a key that cannot be fetched, or is not the pinned one."""
        return None if self.files else self.refusal

    def warnings(self) -> list[str]:
        """Keys that expire, or could not be renewed."""
        return self.notes

    def result(self) -> dict[str, Any]:
        """Return the files that changed, or would."""
        paths = [file.path for file in self.differing] if self.written is None else self.written
        return {"changed_files": paths}


def content_of(path: Path) -> dict[str, str] | None:
    """Return a file as JSON, None where there is none."""
    if not path.is_file():
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    return {"content": base64.b64encode(path.read_bytes()).decode(), "mode": f"{mode:04o}"}


def of_others(path: Path) -> bool:
    """Return whether it is a source file that is not ours."""
    return path.suffix in (".list", ".sources", ".repo") and not path.name.startswith("temper-")


def changed_since(suffix: str, now: set[str], content: bytes, ours: set[str]) -> bool:
    """Return whether a source file has other lines than its former content, or than we have left of it.

    Where none of these addresses is in it, nobody can tell what we have left.
    """
    text = content.decode(errors="replace")
    left = repositories.remaining(suffix, text, ours)
    return bool(now - lines(content)) or (left not in (None, text) and not lines(left.encode()) <= now)


def lines(content: bytes) -> set[str]:
    """Return the lines of a source file that say something."""
    return {line.strip() for line in content.decode(errors="replace").splitlines()} - {""}


def files_of(names: Sequence[str]) -> list[Path]:
    """Return all files that repositories of these names may have, of whatever kind they are."""
    files: list[Path] = []
    for repository in ({"name": name, "kind": kind} for name in names for kind in ("apt", "dnf")):
        files += [repositories.source_path(repository), repositories.keyring_path(repository)]
    return [*files, *(repositories.preferences_path(name) for name in names)]


def foreign_files(wanted: Sequence[Repository]) -> list[File]:
    """Source files of other tools, without the repositories that are ours now."""
    files = []
    for kind in sorted({repository["kind"] for repository in wanted}):
        for path in repositories.foreign_sources(kind):
            kept = repositories.without(path, wanted)
            if kept != path.read_bytes():
                mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"  # of addresses with passwords
                files.append(File(str(path), kept, mode))
    return files


def trusted_files() -> list[File]:
    """Return the keyrings that apt trusts for every repository, without keys that their owner has revoked."""
    files = []
    directory = repositories.APT / "trusted.gpg.d"
    for path in (repositories.APT / "trusted.gpg", *directory.glob("*.gpg"), *directory.glob("*.asc")):
        if not path.is_file():
            continue
        keys = signing_keys.readable(path.read_bytes())
        good = {name: key for name, key in keys.items() if name not in repositories.REVOKED}
        if len(good) < len(keys):
            binary = b"".join(key.packets for key in good.values())
            text = signing_keys.text(good).encode() if path.suffix == ".asc" else binary
            files.append(File(str(path), text if good else None))
    return files


def exclusions(repository: Repository) -> list[File]:
    """Return the preferences that keep packages of an apt repository away."""
    if repository["kind"] != "apt":
        return []
    text = "# Managed by Temper.\n" + repositories.preferences([], [repository])
    path = repositories.preferences_path(repository["name"])
    return [File(str(path), text if repository["exclude"] else None)]
