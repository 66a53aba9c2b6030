"""Would sshd let an account in? What it looks at, read from the node, and its answer under given settings."""

from __future__ import annotations

import contextlib
import fnmatch
import grp
import ipaddress
import os
import pwd
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.temper.access.ssh_keys import acting_as, read_regular

if TYPE_CHECKING:
    from ansible.module_utils.temper.access.sshd import Effective
SECONDS_PER_DAY = 86400


@dataclass(frozen=True)
class Account:
    """What decides whether sshd lets an account in. `has_key` is None where no file can tell."""

    name: str
    uid: int
    groups: tuple[str, ...]
    locked: bool
    expired: bool
    password_expired: bool
    has_key: bool | None
    has_password: bool = False


def _matches_user(pattern: str, account: Account, address: str) -> bool:
    """User patterns of sshd: NAME or NAME@HOST, with wildcards, HOST also as a network."""
    name, _, host = pattern.partition("@")
    if not fnmatch.fnmatchcase(account.name, name):
        return False
    if not host or fnmatch.fnmatchcase(address, host):
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(host, strict=False)
    except ValueError:
        return False


def login_refusal(account: Account, address: str, effective: Effective) -> str | None:
    """Say why sshd would no longer let the account in under `effective`, or return None if it would."""

    def one(keyword: str) -> str:
        return effective.get(keyword, ["no"])[0]

    def patterns(keyword: str) -> list[str]:
        return [pattern for line in effective.get(keyword, []) for pattern in line.split()]

    def user_in(keyword: str) -> bool:
        return any(_matches_user(pattern, account, address) for pattern in patterns(keyword))

    def group_in(keyword: str) -> bool:
        return any(
            fnmatch.fnmatchcase(group, pattern) for group in account.groups for pattern in patterns(keyword)
        )

    name = account.name
    if account.uid == 0 and one("permitrootlogin") in ("no", "forced-commands-only"):
        return (
            "the login of root would no longer be allowed: make an account with sudo rights and an "
            "authorized key, and name it in ansible_user"
        )
    if one("pubkeyauthentication") != "yes":
        return f"the login of {name} by key would no longer be allowed: leave PubkeyAuthentication on"
    if account.has_key is False:
        files = " or ".join(patterns("authorizedkeysfile"))
        return f"the account {name} has no key in {files}: install one (ssh-copy-id {name}@...)"
    if account.locked and one("usepam") != "yes":
        return (
            f"the account {name} is locked and UsePAM is no: leave UsePAM on, or run `usermod -p '*' {name}`"
        )
    if account.expired:
        return f"the account {name} has expired: renew it with `chage -E -1 {name}`"
    if account.password_expired and one("usepam") == "yes":
        return (
            f"the password of {name} has expired, so that PAM lets no command run: `chage -M -1 {name}`, or "
            f"`chage -d $(date +%F) {name}` where it was to be changed at the first login"
        )
    if user_in("denyusers"):
        return f"DenyUsers names the account {name}: take it out"
    if patterns("allowusers") and not user_in("allowusers"):
        return f"AllowUsers ({' '.join(patterns('allowusers'))}) lacks the account {name}: add it"
    if group_in("denygroups"):
        return f"DenyGroups names a group of the account {name}: take it out"
    if patterns("allowgroups") and not group_in("allowgroups"):
        groups = ", ".join(account.groups)
        return f"AllowGroups ({' '.join(patterns('allowgroups'))}) has no group of {name} ({groups}): add one"
    return None


def gets_in_by_password(account: Account, address: str, effective: Effective) -> bool:
    """Return whether sshd would let the account in with its password."""
    asks = any(
        effective.get(keyword) == ["yes"]
        for keyword in ("passwordauthentication", "kbdinteractiveauthentication")
    )
    methods = " ".join(effective.get("authenticationmethods", ["any"])).split()
    root_may = account.uid != 0 or effective.get("permitrootlogin") == ["yes"]
    if not (account.has_password and asks and root_may) or all("publickey" in one for one in methods):
        return False
    with_a_key = replace(account, has_key=True)
    return login_refusal(with_a_key, address, {**effective, "pubkeyauthentication": ["yes"]}) is None


def key_files(user: pwd.struct_passwd, effective: Effective) -> list[Path]:
    """Return the files in which sshd looks for an account's keys."""
    tokens = {"%%": "%", "%h": user.pw_dir, "%u": user.pw_name, "%U": str(user.pw_uid)}
    return [
        Path(user.pw_dir) / re.sub("%[%huU]", lambda token: tokens[token[0]], pattern)
        for pattern in effective.get("authorizedkeysfile", [""])[0].split()
        if pattern != "none"
    ]


def has_key(
    user: pwd.struct_passwd, effective: Effective, revoked: frozenset[str] = frozenset()
) -> bool | None:
    """Return whether a key file of the account has a key that is not revoked.

    None where keys come from elsewhere.

    `revoked` holds the keys' base64 texts.
    """
    if any(
        effective.get(keyword, ["none"]) != ["none"]
        for keyword in ("authorizedkeyscommand", "trustedusercakeys")
    ):
        return None
    for file in key_files(user, effective):
        try:
            # As the account, as sshd does: a link of its own leads it to no file of root's.
            with acting_as(user.pw_uid, user.pw_gid):
                found = read_regular(file, follow=True)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # one of its other groups may let it read
            return None
        for line in found[0].decode(errors="replace").split("\n") if found else ():
            if line.strip() and not line.lstrip().startswith("#") and revoked.isdisjoint(line.split()):
                return True
    return False


def read_account(
    name: str,
    effective: Effective,
    revoked: frozenset[str] = frozenset(),
    shadow: Path = Path("/etc/shadow"),
) -> Account:
    """Gather what sshd looks at. An account of a directory service has no shadow entry: it counts as open."""
    user = pwd.getpwnam(name)
    groups = []
    for gid in os.getgrouplist(name, user.pw_gid):
        with contextlib.suppress(KeyError):  # a group of a file server may have no name here
            groups.append(grp.getgrgid(gid).gr_name)
    entries = [line.split(":") for line in shadow.read_text(encoding="utf-8", errors="replace").split("\n")]
    entry = [*next((entry for entry in entries if entry[0] == name), [name, "*"]), *[""] * 7]
    today, expiry = int(time.time() // SECONDS_PER_DAY), days(entry[7])
    return Account(
        name=name,
        uid=user.pw_uid,
        groups=tuple(groups),
        locked=entry[1].startswith("!"),
        expired=0 <= expiry <= today,
        password_expired=_password_expired(last_change=entry[2], maximum_days=entry[4], today=today),
        has_key=has_key(user, effective, revoked),
        has_password=entry[1][:1] not in ("", "!", "*"),
    )


def _password_expired(last_change: str, maximum_days: str, today: int) -> bool:
    """shadow(5): 0 asks for a change at the next login; an empty field switches ageing off."""
    changed, most = days(last_change), days(maximum_days)
    return changed == 0 or (changed > 0 and 0 <= most < today - changed)


def days(text: str) -> int:
    """Read a field of shadow(5) that counts days; below 0 where it is empty, damaged, or beyond any date."""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else -1
