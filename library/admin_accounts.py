#!/usr/bin/python3
"""Named administrators, their keys and sudo, in one round trip, and Ansible's own account stays in."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: admin_accounts
short_description: Named administrators, their SSH keys and sudo
description:
  - Each present account has exactly the given keys, and sudo by a drop-in that C(visudo) has checked. One
    that is revoked keeps its files and its running sessions, but has no keys and no sudo, and has expired.
  - What could lock Ansible's own account out is refused. A change of its keys, or of sudo, is undone by a
    timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: C(absent) gives accounts back the keys and groups of before, and revokes those it has made.
    type: str
    choices: [present, absent]
    default: present
  users:
    description: The administrators. One that an earlier run has set up and that is not listed stays as it is.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The account's name.
        type: str
        required: true
      keys:
        description: Its public keys, as lines of C(authorized_keys).
        type: list
        elements: str
        default: []
      sudo:
        description: Whether it may do everything as root, without a password, as it has none.
        type: bool
        default: true
      groups:
        description: Groups that it is put into. They must exist.
        type: list
        elements: str
        default: []
      state:
        description: C(absent) revokes its access.
        type: str
        choices: [present, absent]
        default: present
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Let Alice in and Bob no longer
  admin_accounts:
    users:
      - name: alice
        keys: ["ssh-ed25519 AAAAC3Nza... alice@office"]
      - name: bob
        state: absent
"""

RETURN = r"""
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
"""

import grp
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.access.administrators import (
    HEADER,
    KEY_FILES,
    Account,
    KeyFile,
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
from ansible.module_utils.access.commit_confirm import (
    ARGUMENTS,
    Change,
    CommandError,
    RefusedError,
    run,
    succeeds,
    write_durably,
)
from ansible.module_utils.access.ssh_access import SECONDS_PER_DAY
from ansible.module_utils.access.ssh_login import ssh_login
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File

SUDOERS = Path("/etc/sudoers.d/temper_admins")
RECORD = Path("/var/lib/temper/admin_accounts.json")


def sudoers(names: list[str]) -> str | None:
    """Return the drop-in for sudo. Administrators have keys and no passwords, so sudo cannot ask for one."""
    return (
        HEADER + "".join(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n" for name in sorted(names)) if names else None
    )


def check_sudoers(module: AnsibleModule, text: str) -> None:
    """Raise RefusedError where sudo is missing or does not understand the text."""
    visudo = module.get_bin_path("visudo")
    if not visudo:
        raise RefusedError("There is no sudo on this node; nothing was changed: install the package sudo.")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            run([visudo, "-cf", file.name])
        except CommandError as error:
            raise RefusedError(f"sudo refuses its drop-in; nothing was changed: {error}") from error


class Record:
    """What was there before the first run, by account, so that it can be given back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.accounts: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.accounts = {}

    def remember(self, user: User, account: Account | None) -> None:
        """Note an account as it is, unless it is known, and what it is given."""
        before: dict[str, Any] = {"created": account is None}
        if account:
            before["keys"] = [[file.text, file.mode] if file else None for file in account.key_files]
            before["groups"] = sorted(account.groups)
            shadow = account.shadow
            before["shadow"] = [shadow.last_change, shadow.maximum_days, shadow.expiry_day]
        given = {"present": user.present, "sudo": user.sudo and user.present}
        self.accounts[user.name] = {**before, **self.accounts.get(user.name, {}), **given}

    def write(self) -> None:
        """Write it; remove it where nothing is left to remember."""
        if self.accounts:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_durably(self.path, json.dumps(self.accounts, indent=2) + "\n", 0o600)
        else:
            self.path.unlink(missing_ok=True)


def ensure_user(user: User, account: Account | None) -> None:
    """Bring one account to the wanted state."""
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
    if account.texts != (user.key_file, None):
        write_key_files(account, (KeyFile(user.key_file, 0o600), None))


def revoke(account: Account) -> None:
    """Take keys away and let the account expire, which keeps certificates and passwords out, too.

    An account of a directory service cannot expire here.
    """
    try:
        if account.keys and Path(account.home).is_dir():
            write_key_files(account, (KeyFile(HEADER, 0o600), None))
    finally:
        if account.shadow.local:
            run(["chage", "--expiredate", "1", account.name])


def give_back(account: Account, entry: dict[str, Any]) -> None:
    """Return an account to what it was before the first run."""
    known = {group.gr_name for group in grp.getgrall()}
    if account.shadow.local:
        # As chage takes them, -1 is for an empty field.
        last_change, maximum_days, expiry_day = (field or "-1" for field in entry["shadow"])
        run(["chage", "-d", last_change, "-M", maximum_days, "-E", expiry_day, account.name])
        groups = ",".join(name for name in entry["groups"] if name in known)
        run(["usermod", "--groups", groups, account.name])
    else:
        for group in sorted((account.groups ^ set(entry["groups"])) & known):
            # Fails for the groups of the directory itself, which we have not touched either.
            succeeds(["gpasswd", "--delete" if group in account.groups else "--add", account.name, group])
    if Path(account.home).is_dir():
        write_key_files(account, (KeyFile(*saved) if saved else None for saved in entry["keys"]))
        remove_empty_ssh(account)


def converge(module: AnsibleModule, change: Change, account_name: str | None) -> dict[str, Any]:
    """Bring all accounts to the wanted state; returns the module's result."""
    users = parse_users(module.params["users"])
    check_groups(users)
    accounts = {user.name: read_account(user.name) for user in users}
    check_shells(users, accounts)
    own = read_account(account_name) if account_name else None
    if refusal := login_refusal(users, own):
        raise RefusedError(f"This would lock Ansible out; nothing was changed: {refusal}.")
    record = Record(RECORD)
    forgotten = sorted(
        name
        for name, entry in record.accounts.items()
        # One that somebody deleted must not leave its rights to the next account of that name.
        if name not in accounts and entry["present"] and exists(name)
    )
    if own and own.name not in accounts and (warning := own.shadow.warning(own.name)):
        module.warn(f"{warning}.")
    if forgotten:
        module.warn(
            f"{', '.join(forgotten)}: set up by an earlier run, no longer listed, and still let in. To "
            "revoke, list the account with state: absent."
        )
    of_directory = [
        user.name
        for user in users
        if not user.present and (account := accounts[user.name]) and not account.shadow.local
    ]
    if of_directory:
        module.warn(
            f"{', '.join(of_directory)}: of a directory service, and cannot be made to expire on this node. "
            "Keys and sudo are taken away here; close the account in the directory."
        )
    with_sudo = [name for name in forgotten if record.accounts[name]["sudo"]]
    drop_in = sudoers([*with_sudo, *(user.name for user in users if user.present and user.sudo)])
    file = File(str(SUDOERS), drop_in, "0440", public=True)
    differing = [user for user in users if differs(user, accounts[user.name])]
    result: dict[str, Any] = {
        "changed": bool(differing) or file.differs(),
        "confirm": False,
        "diff": [diff(user, accounts[user.name]) for user in differing],
    }
    if file.differs():
        if drop_in:
            check_sudoers(module, drop_in)
        result["diff"].append(file.diff())
    if module.check_mode or not result["changed"]:
        return result

    def apply() -> None:
        for user in users:
            if user.present or accounts[user.name]:
                record.remember(user, accounts[user.name])
        record.write()
        file.write(module)
        for user in differing:
            ensure_user(user, accounts[user.name])

    own_differs = own is not None and any(user.name == own.name for user in differing)
    if not own or not (file.differs() or own_differs):
        apply()
        return result
    # The keys only where they change: root cannot save what is in a home on NFS.
    ways_in = [SUDOERS, *(Path(own.home) / name for name in KEY_FILES if own_differs)]
    with change.armed(ways_in, [], module.params["rollback_after_s"], ssh_login()):
        apply()
    return {**result, "confirm": True}


def restore(module: AnsibleModule, change: Change, account_name: str | None) -> dict[str, Any]:
    """Give every account back what it had before the first run; revoke those that there were none of."""
    record = Record(RECORD)
    own = read_account(account_name) if account_name else None
    before = record.accounts.get(own.name) if own else None
    if own and before:
        then = blobs(key_lines(saved[0] for saved in before.get("keys", []) if saved))
        if before["created"] or blobs(own.keys).isdisjoint(then):
            raise RefusedError(
                f"This would lock Ansible out; nothing was changed: {own.name}, which it uses, would lose "
                "all of its keys. Log in as another account."
            )
    file = File(str(SUDOERS), None)
    result = {
        "changed": bool(record.accounts) or file.differs(),
        "confirm": False,
        "diff": [file.diff()] if file.differs() else [],
    }
    if module.check_mode or not result["changed"]:
        return result

    def apply() -> None:
        file.write(module)
        for name, entry in record.accounts.items():
            account = read_account(name)
            if account and entry["created"]:
                revoke(account)
            elif account:
                give_back(account, entry)
        record.accounts = {}
        record.write()

    if not own:
        apply()
        return result
    ways_in = [SUDOERS, RECORD, *(Path(own.home) / name for name in KEY_FILES if before)]
    with change.armed(ways_in, [], module.params["rollback_after_s"], ssh_login()):
        apply()
    return {**result, "confirm": True}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "users": {
                "type": "list",
                "elements": "dict",
                "default": [],
                # Public keys are no secret, but who pastes a private one must not find it in the node's log.
                # Of the options below alone, a value of several lines would get there in spite of no_log.
                "no_log": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
                    "sudo": {"type": "bool", "default": True},
                    "groups": {"type": "list", "elements": "str", "default": []},
                    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
                },
            },
        },
        supports_check_mode=True,
    )
    # Names and groups may be in messages.
    module.no_log_values = {key for user in module.params["users"] for key in user["keys"]}
    change = Change("accounts", "the administrators' accounts")
    login = ssh_login()
    account_name = login.account if login and login.account != "root" else None
    try:
        change.settle_the_past(module)
        act = converge if module.params["state"] == "present" else restore
        module.exit_json(**act(module, change, account_name))
    except (RefusedError, CommandError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"A file of this node could not be read or written; mend that and run again: {error}."
        )


if __name__ == "__main__":
    main()
