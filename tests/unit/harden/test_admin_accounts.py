"""Administrators: what is refused, what an account lacks, and that Ansible's own stays in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import admin_accounts
import pytest
from ansible.module_utils import administrators
from ansible.module_utils.administrators import Account, User, parse_user, parse_users
from ansible.module_utils.commit_confirm import RefusedError
from ansible.module_utils.ssh_keys import parse_public_key

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMP/JIfnXzGl0FmT5rCEOw2Y8sIp9EyInaNs4E2UMwMO alice@office"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKvB7zSxUi0oTkVYCWkr4zHLPW2RXjdbJXiPSF7CQvcr alice@home"
ALICE = User("alice", (parse_public_key(KEY),), sudo=True, groups=(), present=True)
AS_WANTED = Account(
    "alice", "/home/alice", 1001, 1001, (ALICE.key_file, None), groups=frozenset(), expired=False
)


def item(**changes: Any) -> dict[str, Any]:
    return {"name": "alice", "keys": [KEY], "sudo": True, "groups": [], "state": "present", **changes}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "root"}, "user 1 (root): expected the name of an account other than root"),
        ({"name": "a b"}, "user 1 (a b): expected the name"),
        ({"name": "alice ALL=ALL"}, "expected the name"),
        ({"keys": []}, "user 1 (alice): expected at least one key, found none"),
        ({"keys": [KEY, "ssh-dss AAAA"]}, "user 1 (alice), key 2: it is a DSA key"),
        ({"keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, "key 1: it is a private key"),
    ],
)
def test_wrong_user_is_refused_with_a_sentence_that_names_it(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        parse_user(0, item(**changes))
    assert sentence in str(refusal.value)


def test_group_that_the_node_lacks_is_refused() -> None:
    with pytest.raises(RefusedError, match="There is no group no-such-group for alice on this node"):
        administrators.check_groups([replace(ALICE, groups=("root", "no-such-group"))])


def test_account_in_two_entries_is_refused() -> None:
    with pytest.raises(RefusedError, match="alice is listed twice"):
        parse_users([item(), item(keys=[OTHER])])


def test_revoked_user_needs_no_key() -> None:
    assert not parse_user(0, item(keys=[], state="absent")).present


def test_private_key_is_in_no_output(run_module: Callable[..., dict[str, Any]]) -> None:
    secret = "-----BEGIN OPENSSH PRIVATE KEY----- c2VjcmV0"
    result = run_module(admin_accounts.main, check_mode=True, users=[{"name": "alice", "keys": [secret]}])
    assert "it is a private key" in result["msg"]
    assert "c2VjcmV0" not in str(result)


def test_account_as_wanted_does_not_differ() -> None:
    assert not administrators.differs(ALICE, AS_WANTED)


@pytest.mark.parametrize(
    ("user", "account"),
    [
        (ALICE, None),
        (ALICE, replace(AS_WANTED, key_files=(f"{ALICE.key_file}{OTHER}\n", None))),
        (ALICE, replace(AS_WANTED, key_files=(ALICE.key_file, OTHER))),
        (ALICE, replace(AS_WANTED, expired=True)),
        (replace(ALICE, groups=("data",)), AS_WANTED),
        (replace(ALICE, sudo=False), replace(AS_WANTED, groups=frozenset({"sudo"}))),
        (replace(ALICE, present=False), AS_WANTED),
        (replace(ALICE, present=False), replace(AS_WANTED, key_files=(None, None))),
    ],
)
def test_account_that_lacks_or_has_too_much_differs(user: User, account: Account | None) -> None:
    assert administrators.differs(user, account)


@pytest.mark.parametrize("account", [None, replace(AS_WANTED, key_files=("# none\n", None), expired=True)])
def test_revoked_account_stays_revoked(account: Account | None) -> None:
    assert not administrators.differs(replace(ALICE, present=False), account)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (replace(ALICE, present=False), "log in as another one to revoke it"),
        (replace(ALICE, sudo=False), "needs sudo"),
        (replace(ALICE, keys=(parse_public_key(OTHER),)), "none of the keys given for alice is in place now"),
    ],
)
def test_account_of_ansible_is_not_locked_out(user: User, reason: str) -> None:
    assert reason in (administrators.login_refusal([user], AS_WANTED) or "")


@pytest.mark.parametrize(
    "user",
    [
        ALICE,
        replace(ALICE, keys=(parse_public_key(OTHER), parse_public_key(KEY))),
        replace(ALICE, name="bob", present=False),
    ],
)
def test_rotation_and_other_accounts_are_not_refused(user: User) -> None:
    assert administrators.login_refusal([user], AS_WANTED) is None


def test_diff_shows_fingerprints_and_no_keys() -> None:
    shown = administrators.diff(replace(ALICE, keys=(parse_public_key(OTHER),)), AS_WANTED)
    assert shown["before"].startswith("SHA256:")
    assert "alice@office" in shown["before"]
    assert "alice@home" in shown["after"]
    assert "AAAA" not in shown["before"] + shown["after"]


def test_record_keeps_what_was_there_first(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = admin_accounts.Record(path)
    record.remember(ALICE, replace(AS_WANTED, key_files=("before", None)))
    record.write()
    record = admin_accounts.Record(path)
    record.remember(replace(ALICE, sudo=False), AS_WANTED)
    assert record.accounts["alice"]["keys"] == ["before", None]
    assert record.accounts["alice"]["sudo"] is False


def test_drop_in_names_all_in_one_order() -> None:
    text = admin_accounts.sudoers(["bob", "alice"])
    assert text
    assert [line.split()[0] for line in text.splitlines()] == ["#", "alice", "bob"]


def test_no_drop_in_for_nobody() -> None:
    assert admin_accounts.sudoers([]) is None
