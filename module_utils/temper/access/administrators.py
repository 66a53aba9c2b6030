"""Administrators as an inventory lists them, their accounts as a node has them, and what lies between."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.ssh_access import SECONDS_PER_DAY, days
from ansible.module_utils.temper.access.ssh_keys import (
    LARGEST_FILE_BYTES,
    PublicKey,
    acting_as,
    parse_public_key,
    read_regular,
)
from ansible.module_utils.temper.files import label, replace_file
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.settings.base import Difference, RefusedError

SUDO_GROUPS = ("sudo", "wheel", "admin")
HEADER = "# Managed by Temper: administrators (admin_accounts_users).\n"
KEY_FILES = (".ssh/authorized_keys", ".ssh/authorized_keys2")  # sshd's default; the second one is not used
NO_LOGIN = ("nologin", "false")
# A file of keys that the account itself could not open, with which sshd does without.
NO_KEY_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENXIO,  # a socket
    errno.ENAMETOOLONG,  # where a link leads
)
# Of an account's keys, how many are described.
MOST_LINES = 200
# What login.defs has where passwords do not age: 273 years.
NEVER_DAYS = 99999


@dataclass(frozen=True)
class User:
    """An administrator as wanted."""

    name: str
    keys: tuple[PublicKey, ...]
    sudo: bool
    groups: tuple[str, ...]
    present: bool

    @property
    def key_file(self) -> str:
        """The text of authorized_keys."""
        return HEADER + "".join(f"{key.line}\n" for key in self.keys)


@dataclass(frozen=True)
class KeyFile:
    """A file of keys as the account itself can read it.

    Where a link leads (`target`) is not read, and a large file is read up to a limit (`cut`).
    """

    text: str
    mode: int
    target: str = ""
    cut: bool = False

    @property
    def saved(self) -> list[str | int]:
        """What makes this object again, for the record."""
        return [self.text, self.mode, *([self.target] if self.target else [])]

    @property
    def lets_in(self) -> bool:
        """Whether there may be a key in it."""
        return bool(self.target) or self.cut or bool(key_lines([self.text]))


@dataclass(frozen=True)
class Shadow:
    """The fields of shadow(5) that keep an account out, as they stand there; empty: never.

    An account that is not `local` has no entry: it comes from a directory service.
    """

    has_password: bool = True
    last_change: str = ""
    maximum_days: str = ""
    expiry_day: str = ""
    local: bool = True

    @property
    def expired(self) -> bool:
        """Whether the account has expired."""
        return 0 <= days(self.expiry_day) <= time.time() // SECONDS_PER_DAY

    @property
    def ages(self) -> bool:
        """Whether PAM will ask for a new password where there is none, and let no key in until then."""
        if self.has_password or not self.last_change:
            return False
        return 0 <= days(self.maximum_days) < NEVER_DAYS or days(self.last_change) == 0

    def warning(self, name: str) -> str | None:
        """Say when Ansible's own account will be kept out, or return None."""
        if (expiry_day := days(self.expiry_day)) >= 0:
            day = date(1970, 1, 1) + timedelta(days=expiry_day)
            return f"{name}, which Ansible uses, expires on {day}, the way in with it: `chage -E -1 {name}`"
        if self.ages:
            return (
                f"{name}, which Ansible uses, has no password, and yet it will expire, and with it the way "
                f"in by key: `chage -M -1 {name}`, or list {name} in admin_accounts_users"
            )
        return None


@dataclass(frozen=True)
class Account:
    """An account as it is."""

    name: str
    home: str
    shell: str
    uid: int
    gid: int
    key_files: tuple[KeyFile | None, ...]
    groups: frozenset[str]
    shadow: Shadow = Shadow()

    @property
    def expired(self) -> bool:
        """Whether it has expired."""
        return self.shadow.expired

    @property
    def texts(self) -> tuple[str | None, ...]:
        """What its key files say."""
        return tuple(file.text if file else None for file in self.key_files)

    @property
    def has_foreign(self) -> bool:
        """Whether a file of keys is a link, or was not read as a whole: not one that Temper has written."""
        return any(file and (file.target or file.cut) for file in self.key_files)

    @property
    def keys(self) -> list[str]:
        """The lines of its key files that are not comments."""
        return key_lines(self.texts)


def key_lines(texts: Iterable[str | None]) -> list[str]:
    """Return the lines of key files that are not comments."""
    lines = [line.strip(" \t\r") for text in texts for line in (text or "").split("\n")]
    return [line for line in lines if line and not line.startswith("#")]


def blobs(lines: list[str]) -> set[str]:
    """Return the keys alone, in base64, which always begins with the length of the kind's name."""
    return {word for line in lines for word in line.split() if word.startswith("AAAA")}


def parse_user(index: int, item: Mapping[str, Any]) -> User:
    """Check one of the users; raise RefusedError, which never repeats a key, for a wrong one."""
    name, present = item["name"], item["state"] == "present"
    where = f"user {index + 1} ({name})"
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name) or name == "root":
        raise RefusedError(
            f"{where}: expected the name of an account other than root: lower-case letters, digits, - and _."
        )
    if present and not item["keys"]:
        raise RefusedError(
            f"{where}: expected at least one key, found none. To take the access away: state: absent."
        )
    keys: dict[str, PublicKey] = {}
    for number, text in enumerate(item["keys"], start=1):
        try:
            key = parse_public_key(text)
        except ValueError as error:
            raise RefusedError(f"{where}, key {number}: {error}.") from None
        keys[key.blob] = key
    return User(name, tuple(keys.values()), item["sudo"], tuple(item["groups"]), present)


def parse_users(items: Iterable[Mapping[str, Any]]) -> list[User]:
    """Check all users."""
    users = [parse_user(index, item) for index, item in enumerate(items)]
    names = [user.name for user in users]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RefusedError(f"{', '.join(twice)} is listed twice: put all keys of an account into one entry.")
    return users


def check_groups(users: list[User]) -> None:
    """Raise RefusedError where this node lacks a group."""
    for user in users:
        for group in user.groups:
            try:
                grp.getgrnam(group)
            except KeyError:
                raise RefusedError(
                    f"There is no group {group} for {user.name} on this node; nothing was changed: make it."
                ) from None


def read_key_file(path: Path, *, follow: bool = False, tolerant: bool = False) -> KeyFile | None:
    """Read a file of keys; None where sshd, as the account, would find none either.

    With `tolerant`, one that cannot be read counts as one that may let somebody in. Else raises OSError.
    """
    try:
        found = read_regular(path, follow=follow)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            with contextlib.suppress(OSError):  # the link may be in a folder's place
                return KeyFile("", 0, target=os.readlink(path))  # noqa: PTH115 - as it stands there
        if error.errno in NO_KEY_FILE:
            return None
        if tolerant or error.errno == errno.EAGAIN:  # its owner holds a lease on it
            return KeyFile("", 0, cut=True)
        raise
    if not found:
        return None
    data, status = found
    text, mode = data.decode(errors="surrogateescape"), stat.S_IMODE(status.st_mode)
    return KeyFile(text, mode, cut=len(data) >= LARGEST_FILE_BYTES)


def write_key_files(account: Account, files: Iterable[KeyFile | None]) -> None:
    """Give an account these key files, in the order of KEY_FILES; None removes one."""
    if not Path(account.home).is_dir():
        raise CommandError(
            f"The home directory of {account.name} ({account.home}) is missing: make it first."
        )
    try:
        with acting_as(account.uid, account.gid):
            for name, file in zip(KEY_FILES, files):  # noqa: B905 - strict= is not in Python 3.9
                path = Path(account.home) / name
                try:
                    _write_key_file(path, file)
                except PermissionError:
                    # Who owns a folder can take the right to write from everybody, and so keep a key in it.
                    with contextlib.suppress(OSError):
                        path.parent.chmod(0o700)
                    _write_key_file(path, file)
    except OSError as error:
        raise CommandError(f"{account.name} cannot write its keys in {account.home}: {error}") from error


def _write_key_file(path: Path, file: KeyFile | None) -> None:
    if file is None or file.target:
        # A directory of that name holds no keys.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
    if file is None:
        return
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700)
        # sshd may not read what has the label of a home's other content.
        label(path.parent)
    if file.target:
        path.symlink_to(file.target)
    else:
        replace_file(path, file.text.encode(errors="surrogateescape"), file.mode)


def remove_empty_ssh(account: Account) -> None:
    """Take ~/.ssh away where nothing is in it."""
    with contextlib.suppress(OSError), acting_as(account.uid, account.gid):
        (Path(account.home) / ".ssh").rmdir()


def read_shadow(name: str, shadow: Path = Path("/etc/shadow")) -> Shadow:
    """Read an account's entry. One of a directory service has none: nothing that we could change."""
    for line in shadow.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = [*line.split(":"), *[""] * 7]  # somebody may have written a shorter one
        if fields[0] == name:
            return Shadow(not fields[1].startswith(("!", "*")), fields[2], fields[4], fields[7])
    return Shadow(local=False)


def exists(name: str) -> bool:
    """Return whether there is such an account."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def read_account(name: str, *, follow: bool = False, tolerant: bool = False) -> Account | None:
    """Return what the node has; None without such an account. `follow` and `tolerant` are read_key_file's."""
    if not exists(name):
        return None
    user = pwd.getpwnam(name)
    with acting_as(user.pw_uid, user.pw_gid):
        paths = [Path(user.pw_dir) / file for file in KEY_FILES]
        key_files = tuple(read_key_file(path, follow=follow, tolerant=tolerant) for path in paths)
    groups = frozenset(group.gr_name for group in grp.getgrall() if name in group.gr_mem)
    return Account(
        name, user.pw_dir, user.pw_shell, user.pw_uid, user.pw_gid, key_files, groups, read_shadow(name)
    )


def check_shells(users: list[User], accounts: Mapping[str, Account | None]) -> None:
    """Raise RefusedError where an administrator is an account that is not for people."""
    for user in users:
        account = accounts[user.name]
        if user.present and account and Path(account.shell).name in NO_LOGIN:
            raise RefusedError(
                f"{user.name} is an account of this node that nobody logs in to (its shell is "
                f"{account.shell}); nothing was changed: choose another name, or give it a shell."
            )


def login_refusal(users: list[User], account: Account | None) -> str | None:
    """Say how the users would lock the account out that Ansible comes by, or return None."""
    user = next((user for user in users if account and user.name == account.name), None)
    if not user or not account:
        return None
    if not user.present:
        return f"{user.name} is the account that Ansible uses: log in as another one to revoke it"
    if not user.sudo:
        return f"{user.name} is the account that Ansible uses, and needs sudo"
    if account.keys and blobs(account.keys).isdisjoint(key.blob for key in user.keys):
        return (
            f"none of the keys given for {user.name} is in place now, so the one that Ansible uses is not "
            "among them: add the new key beside it, and take it out in a later run, which uses the new one"
        )
    return None


def superfluous_groups(user: User, account: Account) -> set[str]:
    """Return groups that give sudo to an account that is to have none.

    Groups of a directory service are left to that service.
    """
    if not user.present:
        return set(SUDO_GROUPS) & account.groups if account.shadow.local else set()
    return set() if user.sudo else set(SUDO_GROUPS) & account.groups - set(user.groups)


def differs(user: User, account: Account | None) -> bool:
    """Return whether an account is not as wanted."""
    if not user.present:
        return account is not None and (
            any(file and file.lets_in for file in account.key_files)
            or (account.shadow.local and not account.expired)
            or bool(superfluous_groups(user, account))
        )
    if not account:
        return True
    return (
        account.expired
        or account.shadow.ages
        or account.has_foreign
        or account.texts != (user.key_file, None)
        or not account.groups.issuperset(user.groups)
        or bool(superfluous_groups(user, account))
    )


def describe(keys: list[str]) -> str:
    """Return key lines as fingerprints, one a line, for --diff."""
    lines = []
    for line in keys[:MOST_LINES]:
        try:
            # What is not UTF-8 in a comment, or no letter, must not keep the result from being printed.
            summary = parse_public_key(line).summary
            lines.append("".join(letter if letter.isprintable() else "?" for letter in summary))
        except ValueError:
            lines.append("a line that is no public key")
    more = [f"and {len(keys) - MOST_LINES} more lines"] if len(keys) > MOST_LINES else []
    return "".join(f"{line}\n" for line in sorted(lines) + more)


def described(account: Account) -> str:
    """Return an account's keys for --diff, with a line for each file that was not read."""
    try:
        text = describe(account.keys)
    except Exception as error:  # noqa: BLE001 - what an account has written must not keep its rights in place
        text = f"its keys cannot be shown: {type(error).__name__}\n"
    files = dict(zip(KEY_FILES, account.key_files))  # noqa: B905 - strict= is not in Python 3.9
    links = [f"{name} is a link\n" for name, file in files.items() if file and file.target]
    cut = [f"{name} was not read to its end\n" for name, file in files.items() if file and file.cut]
    return "".join([text, *links, *cut])


def diff(user: User, account: Account | None) -> Difference:
    """Before and after of one account, for --diff."""
    after = [key.line for key in user.keys] if user.present else []
    note = " (revoked)" if not user.present else "" if account else " (missing)"
    before = described(account) if account else ""
    return Difference(f"account {user.name}{note}", before, describe(after))
