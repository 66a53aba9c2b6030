"""Administrators as an inventory lists them, their accounts as a node has them, and what lies between."""

from __future__ import annotations

import grp
import pwd
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.commit_confirm import RefusedError
from ansible.module_utils.ssh_access import SECONDS_PER_DAY
from ansible.module_utils.ssh_keys import PublicKey, parse_public_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SUDO_GROUPS = ("sudo", "wheel", "admin")
HEADER = "# Managed by Temper: administrators (admin_accounts_users).\n"
KEY_FILES = (".ssh/authorized_keys", ".ssh/authorized_keys2")  # sshd's default; the second one is not used


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
class Account:
    """An account as it is."""

    name: str
    home: str
    uid: int
    gid: int
    key_files: tuple[str | None, ...]
    groups: frozenset[str]
    expired: bool

    @property
    def keys(self) -> list[str]:
        """The lines of its key files that are not comments."""
        return key_lines(self.key_files)


def key_lines(texts: Iterable[str | None]) -> list[str]:
    """Return the lines of key files that are not comments."""
    lines = [line.strip() for text in texts for line in (text or "").splitlines()]
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


def parse_users(items: list[dict[str, Any]]) -> list[User]:
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


def read_account(name: str, shadow: Path = Path("/etc/shadow")) -> Account | None:
    """Return what the node has; None without such an account."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return None
    texts: list[str | None] = []
    for file in KEY_FILES:
        try:
            texts.append((Path(user.pw_dir) / file).read_text(errors="replace"))
        except (FileNotFoundError, NotADirectoryError):
            texts.append(None)
    entries = (line.split(":") for line in shadow.read_text(encoding="utf-8").splitlines())
    expiry_day = next((entry[7] for entry in entries if entry[0] == name), "")
    groups = frozenset(group.gr_name for group in grp.getgrall() if name in group.gr_mem)
    expired = bool(expiry_day) and int(expiry_day) <= time.time() // SECONDS_PER_DAY
    return Account(name, user.pw_dir, user.pw_uid, user.pw_gid, tuple(texts), groups, expired)


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
    """Groups that give sudo to an account that is to have none."""
    return set() if user.sudo else set(SUDO_GROUPS) & account.groups - set(user.groups)


def differs(user: User, account: Account | None) -> bool:
    """Whether an account is not as wanted."""
    if not user.present:
        return account is not None and (bool(account.keys) or not account.expired)
    if not account:
        return True
    return (
        account.expired
        or account.key_files != (user.key_file, None)
        or not account.groups.issuperset(user.groups)
        or bool(superfluous_groups(user, account))
    )


def describe(keys: list[str]) -> str:
    """Return key lines as fingerprints, one a line, for --diff."""
    lines = []
    for line in keys:
        try:
            lines.append(parse_public_key(line).summary)
        except ValueError:
            lines.append("a line that is no public key")
    return "".join(f"{line}\n" for line in sorted(lines))


def diff(user: User, account: Account | None) -> dict[str, str]:
    """Return before and after in the form that Ansible's --diff prints."""
    header = f"account {user.name}"
    after = [key.line for key in user.keys] if user.present else []
    return {
        "before_header": header if account else f"{header} (missing)",
        "after_header": header if user.present else f"{header} (revoked)",
        "before": describe(account.keys) if account else "",
        "after": describe(after),
    }
