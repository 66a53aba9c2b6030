"""Named administrators, their keys and sudo, while Ansible's own account stays in."""

from __future__ import annotations

import contextlib
import grp
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import records
from ansible.module_utils.temper.access.administrators import (
    HEADER,
    KEY_FILES,
    SUDO_GROUPS,
    Account,
    KeyFile,
    Shadow,
    User,
    blobs,
    check_groups,
    check_shells,
    diff,
    differs,
    exists,
    key_lines,
    login_refusal,
    parse_users,
    read_account,
    remove_empty_ssh,
    superfluous_groups,
    write_key_files,
)
from ansible.module_utils.temper.access.commit_confirm import DEFAULT_ROLLBACK_AFTER_S, ConfirmedSetting
from ansible.module_utils.temper.access.ssh_access import SECONDS_PER_DAY
from ansible.module_utils.temper.access.ssh_login import Login, ssh_login
from ansible.module_utils.temper.files import File, candidate, put_back, saved
from ansible.module_utils.temper.process import CommandError, run, succeeds, which
from ansible.module_utils.temper.settings.base import Difference, RefusedError, State, WayIn

SUDOERS = Path("/etc/sudoers.d/temper_admins")
RECORD = Path("/var/lib/temper/admin_accounts.json")
RECORD_VERSION = 2
#: The day on which an account expires that is revoked. One that is not gets no day from Temper, and no limit.
REVOKED = "1"
#: What the record has of an account; of one that was there before, what it was. A file of keys is a text and
#: a mode, and where a link leads.
FILES = [(None, [str, int], [str, int, str])]
BEFORE = {"keys": FILES, "groups": [str], "shadow": [str, str, str]}
GIVEN = {
    **dict.fromkeys(("created", "present", "sudo"), bool),
    # The first versions wrote None for the files of an account that there was none of.
    "keys": (None, FILES, ...),
    **dict.fromkeys(("groups", "given"), ([str], ...)),
    "shadow": (BEFORE["shadow"], ...),
    # Until the run has ended that lists an account again which Temper has let expire.
    "revoked": (bool, ...),
}
USER_DEFAULTS: dict[str, Any] = {"keys": [], "sudo": True, "groups": [], "state": "present"}


def sudoers(names: list[str]) -> str | None:
    """Return the drop-in for sudo. Administrators have keys and no passwords, so sudo cannot ask for one."""
    return (
        HEADER + "".join(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n" for name in sorted(names)) if names else None
    )


def check_sudoers(text: str) -> None:
    """Raise RefusedError where sudo is missing or does not understand the text."""
    visudo = which("visudo")
    if not visudo:
        raise RefusedError("There is no sudo on this node; nothing was changed: install the package sudo.")
    with candidate(text.encode()) as path:
        try:
            run([visudo, "-cf", path])
        except CommandError as error:
            raise RefusedError(f"sudo refuses its drop-in; nothing was changed: {error}") from error


def entry(account: Account | None) -> dict[str, Any]:
    """Return an account as it is, enough to give it back."""
    if not account:
        return {"created": True}
    shadow = account.shadow
    return {
        "created": False,
        "keys": [file.saved if file else None for file in account.key_files],
        "groups": sorted(account.groups),
        "shadow": [shadow.last_change, shadow.maximum_days, shadow.expiry_day],
    }


class AccountsRecord:
    """What was there before the first run, by account, so that it can be given back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # In version 1 the accounts' names are the fields, and an account may be called `version`.
        version, fields = records.load(path, {"version": dict}, RECORD_VERSION)
        self.accounts: dict[str, dict[str, Any]] = fields if version == 1 else fields.get("accounts", {})
        records.expect(path, "accounts", self.accounts, {str: dict})
        for name, known in self.accounts.items():
            records.expect(path, name, known, GIVEN)
            if not known["created"]:
                records.expect(path, name, known, BEFORE)

    def remember(self, user: User, account: Account | None) -> None:
        """Note an account as it is, unless it is known, and what it is given."""
        known = self.accounts.get(user.name, {})
        # Without an account before, all of its groups are ours.
        gained = set(user.groups) - (account.groups if account else set())
        given = {
            "present": user.present,
            "sudo": user.sudo and user.present,
            "given": sorted(gained.union(known.get("given", []))),
            "revoked": user.present
            and (known.get("revoked", False) or not known.get("present", True))
            and account is not None
            and account.shadow.expiry_day == REVOKED,
        }
        self.accounts[user.name] = {**entry(account), **known, **given}

    def forget_revoked(self) -> None:
        """Note that no account which is listed again is expired any more: a later expiry is the site's."""
        again = [known for known in self.accounts.values() if known.get("revoked")]
        for known in again:
            known["revoked"] = False
        if again:
            self.write()

    def write(self) -> None:
        """Write it; remove it where nothing is left to remember."""
        if self.accounts:
            records.store(self.path, {"accounts": self.accounts}, version=RECORD_VERSION)
        else:
            self.path.unlink(missing_ok=True)


def ensure_user(user: User, account: Account | None, *, own: bool) -> None:
    """Bring one account to the wanted state. `own` is the one that Ansible comes by."""
    if not user.present:
        if account:
            revoke(account)
        return
    if not account:
        # No password, which is not the same as a locked account, and so none that expires.
        options = ["--create-home", "--shell", "/bin/bash", "--password", "*", "--key", "PASS_MAX_DAYS=-1"]
        if any(group.gr_name == user.name for group in grp.getgrall()):
            options += ["--gid", user.name]
        run(["useradd", *options, user.name])
        account = read_account(user.name)
        assert account is not None
    if account.has_foreign or account.texts != (user.key_file, None):
        replace_keys(user, account, own=own)
    if account.expired:
        run(["chage", "--expiredate", "-1", user.name])
    if account.shadow.ages:
        # With no password there is nothing to renew. Zero would ask for it at the next login all the same.
        today = ["--lastday", str(int(time.time() // SECONDS_PER_DAY))]
        run(["chage", "--maxdays", "-1", *(today if account.shadow.last_change == "0" else []), user.name])
    if missing := set(user.groups) - account.groups:
        if account.shadow.local:
            run(["usermod", "--append", "--groups", ",".join(sorted(missing)), user.name])
        else:  # usermod knows local accounts alone, gpasswd all
            for group in sorted(missing):
                run(["gpasswd", "--add", user.name, group])
    for group in sorted(superfluous_groups(user, account)):
        run(["gpasswd", "--delete", user.name, group])


def replace_keys(user: User, account: Account, *, own: bool) -> None:
    """Give an account its keys; a former one that cannot be replaced is removed, but never Ansible's `own`.

    A disk or a quota that is full, and which the account itself can fill, needs no space to remove a file.
    """
    wanted = (KeyFile(user.key_file, 0o600), None)
    try:
        write_key_files(account, wanted)
    except CommandError:
        former = account.has_foreign or not blobs(account.keys) <= {key.blob for key in user.keys}
        if own or not former:
            raise
        write_key_files(account, (None, None))
        write_key_files(account, wanted)


def revoke(account: Account) -> None:
    """Let the account expire, which keeps certificates and passwords out, too; take its keys and sudo away.

    Nothing that one of these meets keeps the others from being done. An account of a directory service cannot
    expire here, and its groups may be the directory's.
    """
    name, local = account.name, account.shadow.local
    groups = sorted(set(SUDO_GROUPS) & account.groups)
    commands = [["chage", "--expiredate", REVOKED, name]] if local else []
    commands += [["gpasswd", "--delete", name, group] for group in groups if local]
    problems = []
    for command in commands:
        try:
            run(command)
        except CommandError as error:
            problems.append(str(error))
    try:
        # Taken away and not emptied: that needs no space on a disk that the account may have filled.
        if any(file and file.lets_in for file in account.key_files):
            write_key_files(account, (None, None))
    except CommandError as error:
        problems.append(str(error))
    for group in () if local else groups:
        succeeds(["gpasswd", "--delete", name, group])
    if problems:
        raise CommandError("; ".join(problems))


def rights_commands(name: str, shadow: Iterable[str], groups: Iterable[str]) -> list[list[str]]:
    """Return the commands that give an account of this node these fields of shadow(5) and these groups."""
    # As chage takes them, -1 is for an empty field.
    last_change, maximum_days, expiry_day = (field or "-1" for field in shadow)
    return [
        ["chage", "-d", last_change, "-M", maximum_days, "-E", expiry_day, name],
        ["usermod", "--groups", ",".join(sorted(groups)), name],
    ]


def rights_in_shell(account: Account, touched: Iterable[str]) -> list[str]:
    """Return the shell commands that give an account what it has now; `touched` are the groups to change."""
    if account.shadow.local:
        fields = entry(account)["shadow"]
        return [shlex.join(command) for command in rights_commands(account.name, fields, account.groups)]
    # They fail where nothing has changed, and for the groups of the directory itself.
    verbs = {group: "--add" if group in account.groups else "--delete" for group in sorted(touched)}
    return [f"{shlex.join(['gpasswd', verb, account.name, group])} || true" for group, verb in verbs.items()]


def take_back(names: Mapping[str, dict[str, Any]]) -> None:
    """Return accounts to what they were; revoke those that there were none of."""
    for name, before in names.items():
        account = read_account(name)
        if account and before["created"]:
            revoke(account)
        elif account:
            give_back(account, before)


def give_back(account: Account, before: dict[str, Any]) -> None:
    """Return an account to what it was before the first run, with the groups that others gave it since."""
    known = {group.gr_name for group in grp.getgrall()}
    # A record of an earlier version does not say which groups Temper has given.
    since = account.groups - set(before.get("given", account.groups))
    groups = (since | set(before["groups"])) & known
    if account.shadow.local:
        last_change, maximum_days, expiry_day = before["shadow"]
        if "present" in before:  # what Temper has not made of them, the site has set since
            maximum_days = account.shadow.maximum_days or maximum_days
            revoked = before.get("revoked") or not before["present"]
            if account.shadow.expiry_day not in ("", REVOKED if revoked else ""):
                expiry_day = account.shadow.expiry_day
        for command in rights_commands(account.name, (last_change, maximum_days, expiry_day), groups):
            run(command)
    else:
        for group in sorted((account.groups ^ groups) & known):
            # Fails for the groups of the directory itself, which we have not touched either.
            succeeds(["gpasswd", "--delete" if group in account.groups else "--add", account.name, group])
    if Path(account.home).is_dir():
        write_key_files(account, (KeyFile(*saved) if saved else None for saved in before["keys"]))
        remove_empty_ssh(account)


def has_processes(uid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether any process runs as this account, or with another number in one of its logins.

    In a user namespace, an account has further numbers, and may come back to its own.
    """
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended; or the kernel keeps no logins
            # The kernel escapes line feeds in the name, which comes before.
            uids = (process / "status").read_bytes().partition(b"\nUid:")[2].partition(b"\n")[0].split()
            if uid in map(int, uids) or int((process / "loginuid").read_text()) == uid:
                return True
    return False


@dataclass(frozen=True)
class Outlook:
    """Who shall have what and who has it, from one look at the node."""

    users: list[User]
    accounts: dict[str, Account | None]
    own: Account | None
    record: AccountsRecord
    drop_in: File
    differing: list[User]
    forgotten: list[str]
    #: Why of present accounts nobody can tell what they have, by name; these are left alone.
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def own_differs(self) -> bool:
        """Whether the account that Ansible comes by is changed."""
        return self.own is not None and any(user.name == self.own.name for user in self.differing)


class Accounts(ConfirmedSetting[Outlook]):
    """All administrators, with the one drop-in of sudo that names them."""

    key = "account"
    change_name = "accounts"
    subject = "the administrators' accounts"

    def __init__(
        self, users: Sequence[Mapping[str, Any]], present: bool, rollback_after_s: int, login: Login | None
    ) -> None:
        super().__init__(rollback_after_s, login)
        self.users = users
        self.present = present
        #: What came of the accounts that this run has worked on: what went wrong, by name.
        self.done: dict[str, str] = {}

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> Accounts:
        """From a plan's items, which have the accounts' names."""
        users = [{**USER_DEFAULTS, **wanted, "name": name} for name, wanted in items.items()]
        return cls(
            users,
            not options.get("absent"),
            options.get("rollback_after_s", DEFAULT_ROLLBACK_AFTER_S),
            ssh_login(),
        )

    def look(self) -> Outlook:
        """Everything that is written, shown and refused comes from here."""
        record = AccountsRecord(RECORD)
        name = self.login.account if self.login else "root"
        # Its links are followed: what sshd accepts of the account that we came by must not be cut off.
        own = read_account(name, follow=True) if name != "root" else None
        return self._present(record, own) if self.present else self._absent(record, own)

    def _present(self, record: AccountsRecord, own: Account | None) -> Outlook:
        listed = parse_users(self.users)
        check_groups(listed)
        accounts: dict[str, Account | None] = {}
        unread: dict[str, str] = {}
        for user in listed:
            # Whatever keeps files of an account from being read must not keep it, or another, from being
            # revoked.
            try:
                accounts[user.name] = read_account(user.name, tolerant=not user.present)
            except OSError as error:
                unread[user.name] = f"{user.name} was left as it is, because its keys cannot be read: {error}"
        users = [user for user in listed if user.name in accounts]
        check_shells(users, accounts)
        if refusal := login_refusal(listed, own):
            raise RefusedError(f"This would lock Ansible out; nothing was changed: {refusal}.")
        forgotten = sorted(
            name
            for name, known in record.accounts.items()
            # One that somebody deleted must not leave its rights to the next account of that name.
            if name not in {*accounts, *unread} and known["present"] and exists(name)
        )
        with_sudo = [name for name in forgotten if record.accounts[name]["sudo"]]
        text = sudoers([*with_sudo, *(user.name for user in listed if user.present and user.sudo)])
        drop_in = File(str(SUDOERS), text, "0440", public=True)
        if text and drop_in.differs():
            check_sudoers(text)
        differing = [user for user in users if differs(user, accounts[user.name])]
        return Outlook(users, accounts, own, record, drop_in, differing, forgotten, unread)

    def _absent(self, record: AccountsRecord, own: Account | None) -> Outlook:
        before = record.accounts.get(own.name) if own else None
        if own and before:
            then = blobs(key_lines(file[0] for file in before.get("keys") or () if file))
            lost = "lose all of its keys" if before["created"] or blobs(own.keys).isdisjoint(then) else ""
            if not lost and own.shadow.local and Shadow(True, *before["shadow"]).expired:
                lost = "expire again"
            if lost:
                raise RefusedError(
                    f"This would lock Ansible out; nothing was changed: {own.name}, which it uses, would "
                    f"{lost}. Log in as another account, or leave accounts out of this run "
                    "(--skip-tags admin_accounts)."
                )
        return Outlook([], {}, own, record, File(str(SUDOERS), None), [], [])

    def read(self) -> State:
        """Return each account that is changed as it is, and the files that name them all."""
        names = self.outlook.accounts if self.present else self.outlook.record.accounts
        return {
            "files": {str(path): saved(path) for path in (SUDOERS, RECORD)},
            "accounts": {name: entry(read_account(name)) for name in names},
        }

    def settled(self) -> bool:
        """Return whether every account and the drop-in are as wanted, or all is given back."""
        outlook = self.outlook
        left = outlook.differing if self.present else outlook.record.accounts
        return not left and not outlook.unread and not outlook.drop_in.differs()

    def reason(self) -> str:
        """Return which accounts cannot be compared."""
        return "; ".join(self.outlook.unread.values())

    def change(self) -> list[Difference]:
        """Keys as fingerprints, and the drop-in."""
        outlook = self.outlook
        lines = [diff(user, outlook.accounts[user.name]) for user in outlook.differing]
        file = outlook.drop_in
        return [*lines, *([Difference(file.path, *file.before_and_after())] if file.differs() else [])]

    def way_in(self) -> WayIn | None:
        """Return what Ansible's own account has; of its keys, groups and dates only what changes.

        Root cannot save what is in a home on NFS.
        """
        outlook, own = self.outlook, self.outlook.own
        if not own or self.settled():
            return None
        if self.present:
            if not (outlook.own_differs or outlook.drop_in.differs()):
                return None
            files, changes = [SUDOERS], outlook.own_differs
            groups = {group for user in outlook.users if user.name == own.name for group in user.groups}
        else:
            files, changes = [SUDOERS, RECORD], own.name in outlook.record.accounts
            groups = {*own.groups, *outlook.record.accounts.get(own.name, {}).get("groups", [])}
        if not changes:
            return WayIn(self.change_name, self.subject, files)
        keys = [Path(own.home) / name for name in KEY_FILES]
        return WayIn(self.change_name, self.subject, [*files, *keys], rights_in_shell(own, groups))

    def withdraw(self) -> None:
        """Take from everybody but Ansible's own account what they shall no longer have."""
        outlook = self.outlook
        if not self.present or not outlook.differing:
            return
        own = outlook.own.name if outlook.own else None
        there = [user for user in outlook.differing if outlook.accounts[user.name] and user.name != own]
        try:
            self.remember()
        finally:  # also on a disk where nothing can be noted
            self.ensure([user for user in there if not user.present])
        # Before the file is saved to be put back, where a change of Ansible's own account is not confirmed.
        losing = {user.name for user in outlook.users if not (user.present and user.sudo)}
        rules = SUDOERS.read_text(encoding="utf-8").splitlines(keepends=True) if SUDOERS.is_file() else []
        kept = [rule for rule in rules if rule.partition(" ")[0] not in losing]
        if kept != rules:
            File(str(SUDOERS), "".join(kept), "0440", public=True).write()
        self.ensure(there)

    def remember(self) -> None:
        """Note what was there."""
        outlook = self.outlook
        for user in outlook.users:
            if user.present or outlook.accounts[user.name]:
                outlook.record.remember(user, outlook.accounts[user.name])
        outlook.record.write()

    def ensure(self, users: Sequence[User]) -> None:
        """Bring accounts to the wanted state, unless this run has; one that fails costs no other its turn."""
        own = self.outlook.own
        for user in users:
            if user.name in self.done:
                continue
            self.done[user.name] = ""
            try:
                ensure_user(
                    user, self.outlook.accounts[user.name], own=own is not None and own.name == user.name
                )
            except (CommandError, OSError) as error:
                self.done[user.name] = str(error)

    def apply(self) -> None:
        """Note what was there, then give rights and take them; or give all back."""
        outlook = self.outlook
        try:
            if self.present:
                self.remember()
                outlook.drop_in.write()
                self.ensure(outlook.differing)
                problems = [*outlook.unread.values(), *self.done.values()]
                if problems := [problem for problem in problems if problem]:
                    raise CommandError("; ".join(problems))
                outlook.record.forget_revoked()
            else:
                outlook.drop_in.write()
                take_back(outlook.record.accounts)
                outlook.record.accounts = {}
                outlook.record.write()
        finally:
            self.forget()

    def restore(self, state: State) -> None:
        """Return the listed accounts and the files to what they were."""
        put_back(SUDOERS, state["files"].get(str(SUDOERS)))
        take_back(state["accounts"])
        put_back(RECORD, state["files"].get(str(RECORD)))
        self.forget()

    def warnings(self) -> list[str]:
        """Ways in that will close one day, and those that stay open."""
        outlook, lines = self.outlook, []
        own = outlook.own
        if not self.present:
            return []
        if own and own.name not in outlook.accounts and (warning := own.shadow.warning(own.name)):
            lines.append(f"{warning}.")
        if outlook.forgotten:
            lines.append(
                f"{', '.join(outlook.forgotten)}: set up by an earlier run, no longer listed, and still let "
                "in. To revoke, list the account with state: absent."
            )
        of_directory = [
            user.name
            for user in outlook.users
            if not user.present and (account := outlook.accounts[user.name]) and not account.shadow.local
        ]
        working = [
            user.name
            for user in outlook.users
            if not user.present and (account := outlook.accounts[user.name]) and has_processes(account.uid)
        ]
        if working:
            lines.append(
                f"{', '.join(working)}: shall not log in any more, and has processes. An open SSH connection "
                f"lets new sessions in: `loginctl terminate-user {working[0]}` ends it, and jobs with it."
            )
        if of_directory:
            lines.append(
                f"{', '.join(of_directory)}: of a directory service, and cannot be made to expire on this "
                "node. Keys and sudo are taken away here; close the account in the directory."
            )
        return lines
