"""Administrators on real nodes: added, rotated, revoked, and given back; Ansible's own account stays in."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import new_key
from tests.lab.hardening import NODES, ROLLBACK_S, SOON, Hardened, changed

pytestmark = pytest.mark.lab


# One that has expired, and one whose password, which it does not have, is due.
ACCOUNTS_OF_BEFORE = """
useradd -m -s /bin/bash -p '*' -e 2020-01-01 carol
useradd -m -s /bin/bash -p '*' dave
chage -d 0 -M 30 dave
install -d -m 700 -o dave /home/dave/.ssh
install -m 640 -o dave /dev/null /home/dave/.ssh/authorized_keys2
"""


def user(name: str, *keys: Path, **more: Any) -> dict[str, Any]:
    return {"name": name, "keys": [Path(f"{key}.pub").read_text() for key in keys], **more}


@pytest.fixture
def given_back(fleet: Hardened) -> Iterator[Hardened]:
    """The fleet, whose accounts are given back what they had before."""
    yield fleet
    assert fleet.harden(admin_accounts_state="absent").status == 0
    fleet.assert_everybody_gets_in()


def test_administrator_is_added_rotated_and_revoked(given_back: Hardened, tmp_path: Path) -> None:
    fleet, old, new = given_back, new_key(tmp_path, "old"), new_key(tmp_path, "new")
    assert fleet.harden(admin_accounts_users=[user("alice", old, groups=["adm"])]).status == 0
    for node in NODES:
        assert fleet.login(node, user="alice", key=old, command="id -nG && sudo -n id -u").stdout == (
            "alice adm\n0\n"
        )
    assert changed(fleet.harden(admin_accounts_users=[user("alice", old, groups=["adm"])])) == dict.fromkeys(
        NODES, 0
    )
    assert fleet.harden(admin_accounts_users=[user("alice", new, sudo=False)]).status == 0
    for node in NODES:
        assert fleet.login(node, user="alice", key=old).returncode != 0
        assert fleet.login(node, user="alice", key=new).returncode == 0
        assert fleet.login(node, user="alice", key=new, command="sudo -n true").returncode != 0
    assert fleet.harden(admin_accounts_users=[user("alice", state="absent")]).status == 0
    for node in NODES:
        assert fleet.login(node, user="alice", key=new).returncode != 0


@pytest.mark.parametrize(
    "others",
    [pytest.param(["bob"], marks=pytest.mark.slow, id="another stays"), pytest.param([], id="the last one")],
)
def test_administrator_who_is_no_longer_listed_is_named(
    given_back: Hardened, tmp_path: Path, others: list[str]
) -> None:
    fleet, key = given_back, new_key(tmp_path, "key")
    assert fleet.harden(admin_accounts_users=[user("alice", key)]).status == 0
    run = fleet.harden(admin_accounts_users=[user(name, key) for name in others])
    assert "alice: set up by an earlier run, no longer listed" in run.said
    for node in NODES:
        assert fleet.login(node, user="alice", key=key, command="sudo -n true").returncode == 0


@pytest.mark.slow
def test_account_of_before_gets_in_while_listed_and_is_given_back_as_it_was(
    fleet: Hardened, tmp_path: Path
) -> None:
    key = new_key(tmp_path, "key")
    names = ("carol", "dave")
    state = (
        f"grep -E '^({'|'.join(names)}):' /etc/shadow; find /home/carol /home/dave | xargs stat -c '%n %a %U'"
    )
    fleet.side_door(ACCOUNTS_OF_BEFORE)
    before = fleet.side_door(state)
    try:
        listed = [user(name, key) for name in names]
        assert fleet.harden(admin_accounts_users=listed).status == 0
        for node, name in itertools.product(NODES, names):
            assert fleet.login(node, user=name, key=key, command="sudo -n true").returncode == 0
        assert changed(fleet.harden(admin_accounts_users=listed)) == dict.fromkeys(NODES, 0)
        assert fleet.harden(admin_accounts_state="absent").status == 0
        assert fleet.side_door(state) == before
    finally:
        # Their service managers outlive the last login by some seconds.
        fleet.side_door("userdel --force --remove carol; userdel --force --remove dave")


def test_key_of_ansible_is_rotated_in_two_runs(given_back: Hardened, tmp_path: Path) -> None:
    fleet, key, now = given_back, new_key(tmp_path, "key"), given_back.lab.ssh_key
    refused = fleet.harden(admin_accounts_users=[user("ops", key)])
    assert "none of the keys given for ops is in place now" in refused.said
    assert changed(refused) == dict.fromkeys(NODES, 0)
    assert fleet.harden(admin_accounts_users=[user("ops", now, key)]).status == 0
    wrong = fleet.harden(admin_accounts_users=[user("ops", key)], **SOON)
    assert "No new SSH connection to" in wrong.said
    both = [user("ops", now, key)]
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s", admin_accounts_users=both)
    run = fleet.harden(admin_accounts_users=[user("ops", key)], ansible_ssh_private_key_file=str(key))
    assert run.status == 0, run.output
    for node in NODES:
        assert fleet.login(node).returncode != 0
    back = fleet.harden(admin_accounts_users=[user("ops", now, key)], ansible_ssh_private_key_file=str(key))
    assert back.status == 0, back.output


def test_private_key_is_refused_and_shown_nowhere(fleet: Hardened, tmp_path: Path) -> None:
    secret = new_key(tmp_path, "key").read_text()
    run = fleet.harden("-vvv", admin_accounts_users=[{"name": "alice", "keys": [secret]}])
    assert "key 1: it is a private key" in run.said
    line = secret.splitlines()[2]
    # What the tasks say; the run itself may repeat its command line.
    assert line not in run.output[run.output.index("TASK [") :]
    assert all(line not in text for text in fleet.side_door("journalctl --sync; journalctl --quiet").values())
