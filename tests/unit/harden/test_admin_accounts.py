"""Administrators: what is refused, what an account lacks, and that Ansible's own stays in."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible.module_utils.temper.access import accounts as node_accounts
from ansible.module_utils.temper.access import administrators, ssh_keys
from ansible.module_utils.temper.access.administrators import (
    Account,
    KeyFile,
    Shadow,
    User,
    parse_user,
    parse_users,
)
from ansible.module_utils.temper.access.commit_confirm import Change
from ansible.module_utils.temper.access.ssh_keys import parse_public_key
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.settings.base import RefusedError

from tests.unit.each import each
from tests.unit.settings import role_plans

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMP/JIfnXzGl0FmT5rCEOw2Y8sIp9EyInaNs4E2UMwMO alice@office"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKvB7zSxUi0oTkVYCWkr4zHLPW2RXjdbJXiPSF7CQvcr alice@home"
ALICE = User("alice", (parse_public_key(KEY),), sudo=True, groups=(), present=True)
AS_WANTED = Account(
    "alice", "/home/alice", "/bin/bash", 1001, 1001, (KeyFile(ALICE.key_file, 0o600), None), frozenset()
)
EXPIRED = Shadow(expiry_day="1")
OF_DIRECTORY = Shadow(local=False)
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")


def keys(*texts: str) -> tuple[KeyFile | None, ...]:
    files = [KeyFile(text, 0o600) for text in texts]
    return (*files, *[None] * (2 - len(files)))


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of nobody's, where nobody gets to (pytest's own directories are root's)."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "home").mkdir()
    os.chown(path / "home", NOBODY, NOBODY)
    yield path / "home"
    shutil.rmtree(path)


def account_in(home: Path) -> Account:
    return replace(AS_WANTED, home=str(home), uid=NOBODY, gid=NOBODY)


def item(**changes: Any) -> dict[str, Any]:
    return {"name": "alice", "keys": [KEY], "sudo": True, "groups": [], "state": "present", **changes}


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def administer(carry_out: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Have these administrators set up. Only our own account has processes, whoever is on this machine."""
    monkeypatch.setattr(node_accounts, "has_processes", lambda uid: uid == os.getuid())

    def run(*users: dict[str, Any], **options: Any) -> dict[str, Any]:
        accounts = [
            role_plans.item("account", user["name"], {key: user[key] for key in user if key != "name"})
            for user in users
        ]
        return carry_out("admin_accounts", accounts, **options)

    return run


@each(
    ({"name": "root"}, "user 1 (root): expected the name of an account other than root"),
    ({"name": "a b"}, "user 1 (a b): expected the name"),
    ({"name": "alice ALL=ALL"}, "expected the name"),
    ({"keys": []}, "user 1 (alice): expected at least one key, found none"),
    ({"keys": [KEY, "ssh-dss AAAA"]}, "user 1 (alice), key 2: it is a DSA key"),
    ({"keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, "key 1: it is a private key"),
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


def test_private_key_is_in_no_output(administer: Run) -> None:
    secret = "-----BEGIN OPENSSH PRIVATE KEY----- c2VjcmV0"
    result = administer({"name": "alice", "keys": [secret]}, check_mode=True)
    assert "it is a private key" in result["msg"]
    assert "c2VjcmV0" not in str(result)


REVOKED = replace(ALICE, present=False)


@each(
    (ALICE, AS_WANTED, False),
    (ALICE, None, True),
    (ALICE, replace(AS_WANTED, key_files=keys(f"{ALICE.key_file}{OTHER}\n")), True),
    (ALICE, replace(AS_WANTED, key_files=keys(ALICE.key_file, OTHER)), True),
    (ALICE, replace(AS_WANTED, shadow=EXPIRED), True),
    (ALICE, replace(AS_WANTED, shadow=Shadow(has_password=False, last_change="0")), True),
    (replace(ALICE, groups=("data",)), AS_WANTED, True),
    (replace(ALICE, sudo=False), replace(AS_WANTED, groups=frozenset({"sudo"})), True),
    (REVOKED, AS_WANTED, True),
    (REVOKED, replace(AS_WANTED, key_files=(None, None)), True),
    (REVOKED, replace(AS_WANTED, shadow=OF_DIRECTORY), True),
    (REVOKED, None, False),
    (REVOKED, replace(AS_WANTED, key_files=keys("# none\n"), shadow=EXPIRED), False),
    (REVOKED, replace(AS_WANTED, key_files=keys("# none\n"), shadow=OF_DIRECTORY), False),
)
def test_account_that_lacks_or_has_too_much_differs(
    user: User, account: Account | None, differs: bool
) -> None:
    assert administrators.differs(user, account) is differs


@each(
    (REVOKED, "log in as another one to revoke it"),
    (replace(ALICE, sudo=False), "needs sudo"),
    (replace(ALICE, keys=(parse_public_key(OTHER),)), "none of the keys given for alice is in place now"),
    (ALICE, None),
    # Rotation, and other accounts.
    (replace(ALICE, keys=(parse_public_key(OTHER), parse_public_key(KEY))), None),
    (replace(ALICE, name="bob", present=False), None),
)
def test_account_of_ansible_is_not_locked_out(user: User, reason: str | None) -> None:
    found = administrators.login_refusal([user], AS_WANTED)
    assert found is None if reason is None else reason in (found or "")


def test_diff_shows_fingerprints_and_no_keys() -> None:
    shown = administrators.diff(replace(ALICE, keys=(parse_public_key(OTHER),)), AS_WANTED)
    assert shown.before.startswith("SHA256:")
    assert "alice@office" in shown.before
    assert "alice@home" in shown.after
    assert "AAAA" not in shown.before + shown.after


def test_record_keeps_what_was_there_first(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = node_accounts.AccountsRecord(path)
    record.remember(ALICE, replace(AS_WANTED, key_files=keys("before"), shadow=EXPIRED))
    record.write()
    record = node_accounts.AccountsRecord(path)
    record.remember(replace(ALICE, sudo=False), AS_WANTED)
    assert record.accounts["alice"]["keys"] == [["before", 0o600], None]
    assert record.accounts["alice"]["shadow"] == ["", "", "1"]
    assert record.accounts["alice"]["sudo"] is False


def test_drop_in_names_all_in_one_order() -> None:
    text = node_accounts.sudoers(["bob", "alice"])
    assert text
    assert [line.split()[0] for line in text.splitlines()] == ["#", "alice", "bob"]
    assert node_accounts.sudoers([]) is None


@each(
    (Shadow(has_password=False, last_change="20000", maximum_days="365"), True),
    (Shadow(has_password=False, last_change="0", maximum_days="99999"), True),
    (Shadow(has_password=False, last_change="20000", maximum_days="99999"), False),
    (Shadow(has_password=False, last_change="20000", maximum_days="-1"), False),
    (Shadow(has_password=False, last_change="", maximum_days="365"), False),
    (Shadow(has_password=True, last_change="20000", maximum_days="365"), False),
)
def test_age_of_a_password_that_is_not_there_would_close_the_account(shadow: Shadow, ages: bool) -> None:
    assert shadow.ages is ages


@each(
    (Shadow(expiry_day="20820"), "expires on 2027-01-02"),
    (Shadow(has_password=False, last_change="20000", maximum_days="365"), "`chage -M -1 ops`"),
    (Shadow(has_password=False, last_change="20000", maximum_days="99999"), None),
)
def test_account_of_ansible_that_will_be_closed_one_day_is_named(shadow: Shadow, words: str | None) -> None:
    found = shadow.warning("ops")
    assert found is None if words is None else words in (found or "")


def test_shadow_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "shadow"
    path.write_text("root:*:1:0:99999:7:::\nalice:!:20000:0:365:7::20800:\n")
    assert administrators.read_shadow("alice", path) == Shadow(False, "20000", "365", "20800")
    assert administrators.read_shadow("ldap", path) == Shadow(local=False)


@each(":!:", ":!:x:0:y:7:::", ":!:20000:0:99999:7::2027-01-01:", ":!:20000:0:9999999:7::99999999999999999:")
def test_a_line_of_shadow_in_another_form_says_nothing_of_expiry(line: str, tmp_path: Path) -> None:
    path = tmp_path / "shadow"
    path.write_text(f"alice{line}\n")
    shadow = administrators.read_shadow("alice", path)
    assert (shadow.expired, shadow.ages, shadow.warning("alice")) == (False, False, None)


def test_account_that_nobody_logs_in_to_is_no_administrator() -> None:
    daemon = replace(AS_WANTED, shell="/usr/sbin/nologin")  # noqa: S604 - a field
    with pytest.raises(RefusedError, match="alice is an account of this node that nobody logs in to"):
        administrators.check_shells([ALICE], {"alice": daemon})
    administrators.check_shells([replace(ALICE, present=False)], {"alice": daemon})
    administrators.check_shells([ALICE], {"alice": None})


@needs_root
def test_keys_are_read_with_the_rights_of_the_account(home: Path) -> None:
    """Else a link to /etc/shadow would be read, recorded and one day given back as the account's own file."""
    secret = home.parent / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    (home / ".ssh").mkdir()
    (home / ".ssh/authorized_keys").symlink_to(secret)
    with ssh_keys.acting_as(NOBODY, NOBODY):
        assert administrators.read_key_file(home / ".ssh/authorized_keys", follow=True) is None
    assert os.geteuid() == 0
    assert secret.read_text() == "root's"


@needs_root
def test_a_namespace_that_refuses_groups_leaves_root_and_its_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_groups: list[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setgroups", refuses)
    before = os.umask(0o027)
    try:
        with pytest.raises(PermissionError), ssh_keys.acting_as(NOBODY, NOBODY):
            pytest.fail("it touches files with the groups of root")
        assert (os.geteuid(), os.getegid()) == (0, 0)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


@each(
    os.mkfifo,
    lambda keys: keys.mkdir(),
    lambda keys: keys.symlink_to(keys),
    lambda keys: keys.symlink_to("a" * 300),
)
def test_what_is_no_file_in_the_place_of_the_keys_holds_none_and_makes_nobody_wait(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "keys")
    handles = len(list(Path("/proc/self/fd").iterdir()))
    assert administrators.read_key_file(tmp_path / "keys", follow=True) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == handles


def test_a_folder_of_keys_that_leads_to_a_name_that_is_too_long_holds_none(tmp_path: Path) -> None:
    (tmp_path / ".ssh").symlink_to("a" * 300)
    assert administrators.read_key_file(tmp_path / ".ssh/authorized_keys") is None


def test_a_link_in_the_place_of_the_keys_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(KEY)
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    found = administrators.read_key_file(tmp_path / "keys")
    assert found
    assert (found.text, found.target, found.lets_in) == ("", str(tmp_path / "elsewhere"), True)


@needs_root
def test_a_folder_that_its_owner_may_not_enter_holds_no_keys(home: Path) -> None:
    administrators.write_key_files(account_in(home), (KeyFile(KEY, 0o600), None))
    (home / ".ssh").chmod(0)
    with ssh_keys.acting_as(NOBODY, NOBODY):
        assert administrators.read_key_file(home / ".ssh/authorized_keys") is None


def test_of_a_file_as_long_as_its_owner_likes_the_beginning_is_read(tmp_path: Path) -> None:
    with (tmp_path / "keys").open("wb") as sparse:
        sparse.truncate(100 << 30)
    found = administrators.read_key_file(tmp_path / "keys")
    assert found
    assert found.cut
    assert len(found.text) <= 1 << 20


def test_a_key_behind_what_is_read_still_lets_its_owner_in() -> None:
    commented = KeyFile("# comment\n", 0o600, cut=True)
    account = replace(AS_WANTED, key_files=(commented, None), shadow=EXPIRED)
    assert administrators.differs(replace(ALICE, present=False), account)


@needs_root
def test_a_lease_on_the_keys_makes_nobody_wait(home: Path) -> None:
    """Its owner can take one; an open for reading then waits up to 45 seconds, or fails with EAGAIN."""
    path = home / "keys"
    path.write_text(KEY)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which tells the holder
    with path.open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        found = administrators.read_key_file(path)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    assert found
    assert found.lets_in


@needs_root
def test_a_directory_in_the_place_of_the_second_key_file_is_let_be(home: Path) -> None:
    account = account_in(home)
    (home / ".ssh/authorized_keys2").mkdir(parents=True)
    os.chown(home / ".ssh", NOBODY, NOBODY)
    administrators.write_key_files(account, (KeyFile("x", 0o600), None))
    assert (home / ".ssh/authorized_keys").read_text() == "x"


@needs_root
def test_key_files_are_the_accounts_own_and_come_back_as_they_were(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (KeyFile("a\udcff\n", 0o640), KeyFile("b\n", 0o600))
    labelled: list[Path] = []
    monkeypatch.setattr(administrators, "label", labelled.append)
    administrators.write_key_files(account_in(home), before)
    assert labelled == [home / ".ssh"]
    path = home / ".ssh/authorized_keys"
    assert (path.stat().st_uid, path.read_bytes()) == (NOBODY, b"a\xff\n")
    assert tuple(map(administrators.read_key_file, (path, home / ".ssh/authorized_keys2"))) == before
    administrators.write_key_files(account_in(home), (None, None))
    administrators.remove_empty_ssh(account_in(home))
    assert list(home.iterdir()) == []


@needs_root
def test_home_that_belongs_to_somebody_else_is_a_sentence(home: Path) -> None:
    os.chown(home, 0, 0)
    with pytest.raises(CommandError, match="alice cannot write its keys in"):
        administrators.write_key_files(account_in(home), (KeyFile("x", 0o600), None))
    assert os.geteuid() == 0


def test_who_was_deleted_leaves_no_rights_to_the_next_of_that_name(
    administer: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, drop_in = tmp_path / "record.json", tmp_path / "sudoers"
    record.write_text('{"no-such-account": {"created": true, "present": true, "sudo": true}}')
    drop_in.write_text("no-such-account ALL=(ALL:ALL) NOPASSWD: ALL\n")
    monkeypatch.setattr(node_accounts, "SUDOERS", drop_in)
    monkeypatch.setattr(node_accounts, "RECORD", record)
    result = administer(check_mode=True)
    assert result["changed"]
    assert result["diff"][0]["after"] == ""


# ---------------------------------------------------------------- accounts of a directory service


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands for the node's accounts, which the host's must not see."""
    commands: list[str] = []

    def note(command: Sequence[str]) -> str:
        commands.append(" ".join(command))
        return ""

    monkeypatch.setattr(node_accounts, "run", note)
    monkeypatch.setattr(node_accounts, "succeeds", note)
    return commands


def with_keys(home: Path) -> Account:
    """Of whoever runs the test, with a key file as wanted."""
    account = replace(AS_WANTED, home=str(home), uid=os.getuid(), gid=os.getgid())
    administrators.write_key_files(account, account.key_files)
    return account


def test_revoked_account_loses_its_keys_and_expires_if_it_is_of_this_node(
    tmp_path: Path, commands: list[str]
) -> None:
    for shadow, expected in ((OF_DIRECTORY, []), (AS_WANTED.shadow, ["chage --expiredate 1 alice"])):
        node_accounts.revoke(replace(with_keys(tmp_path), shadow=shadow))
        assert not (tmp_path / ".ssh/authorized_keys").exists()
        assert commands == expected


def test_account_whose_keys_stay_expires_all_the_same(
    tmp_path: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    account = with_keys(tmp_path)

    def full(*_: object) -> None:
        raise CommandError("alice cannot write its keys")

    monkeypatch.setattr(node_accounts, "write_key_files", full)
    with pytest.raises(CommandError, match="alice cannot write its keys"):
        node_accounts.revoke(account)
    assert commands == ["chage --expiredate 1 alice"]


def test_account_of_a_directory_gets_its_groups_without_usermod(commands: list[str]) -> None:
    account = replace(AS_WANTED, shadow=OF_DIRECTORY)
    node_accounts.ensure_user(replace(ALICE, groups=("adm", "video")), account, own=False)
    assert commands == ["gpasswd --add alice adm", "gpasswd --add alice video"]


def test_account_of_a_directory_gets_keys_and_groups_back(tmp_path: Path, commands: list[str]) -> None:
    account = replace(with_keys(tmp_path), shadow=OF_DIRECTORY, groups=frozenset({"adm", "video"}))
    entry = {"keys": [["before", 0o600], None], "groups": ["audio", "gone", "video"], "shadow": ["", "", ""]}
    node_accounts.give_back(account, entry)
    assert (tmp_path / ".ssh/authorized_keys").read_text() == "before"
    assert commands == ["gpasswd --delete alice adm", "gpasswd --add alice audio"]


def test_groups_that_others_gave_since_stay_when_an_account_is_given_back(
    tmp_path: Path, commands: list[str]
) -> None:
    entry = {"keys": [None, None], "groups": ["audio"], "shadow": ["", "", ""]}
    record = node_accounts.AccountsRecord(tmp_path / "record.json")
    first = replace(AS_WANTED, groups=frozenset({"audio"}))
    record.remember(replace(ALICE, groups=("audio", "adm")), first)
    record.remember(replace(ALICE, groups=("video",)), replace(first, groups=frozenset({"audio", "adm"})))
    given = record.accounts["alice"]["given"]
    now = replace(with_keys(tmp_path), groups=frozenset({"adm", "video", "staff"}))
    for known, expected in (({"given": given}, "audio,staff"), ({}, "audio")):
        commands.clear()
        node_accounts.give_back(now, entry | known)
        assert commands[-1] == f"usermod --groups {expected} alice"


def test_expiry_and_ageing_that_the_site_has_set_since_stay(tmp_path: Path, commands: list[str]) -> None:
    """What Temper has made of them goes, and in an undone run all."""
    entry = {"keys": [None, None], "groups": [], "shadow": ["7", "8", "9"]}
    present, absent = {"present": True}, {"present": False}
    for known, maximum, expiry, expected in (
        (present, "", "", "-M 8 -E 9"),
        (present, "", "1", "-M 8 -E 1"),
        (present, "90", "30000", "-M 90 -E 30000"),
        (absent, "", "1", "-M 8 -E 9"),
        (absent, "90", "30000", "-M 90 -E 30000"),
        ({}, "90", "1", "-M 8 -E 9"),
    ):
        commands.clear()
        now = replace(with_keys(tmp_path), shadow=Shadow(maximum_days=maximum, expiry_day=expiry))
        node_accounts.give_back(now, entry | known)
        assert commands[0] == f"chage -d 7 {expected} alice", (known, maximum, expiry)


@needs_root
@pytest.mark.parametrize("ends", [False, True], ids=["killed", "ended"])
def test_an_account_that_was_revoked_and_is_listed_again_does_not_stay_expired(
    administer: Run,
    known: dict[str, Account | None],
    commands: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: bool,
) -> None:
    """Also where the run that lists it is killed before it ends the expiry. A later expiry is the site's."""

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    known["alice"] = replace(AS_WANTED, home=str(tmp_path))
    monkeypatch.setattr(node_accounts, "write_key_files", lambda *_: None)
    administer(item(state="absent"))
    known["alice"] = replace(AS_WANTED, home=str(tmp_path), shadow=EXPIRED)
    with monkeypatch.context() as patch, contextlib.nullcontext() if ends else pytest.raises(Killed):
        if not ends:
            patch.setattr(node_accounts, "ensure_user", killed)
        administer(item())
    commands.clear()
    administer(absent=True)
    assert [command for command in commands if command.startswith("chage")] == [
        f"chage -d -1 -M -1 -E {1 if ends else -1} alice"
    ]


# ---------------------------------------------------------------- runs of the whole role


class Saved(Change):
    """Notes what would be saved."""

    files: ClassVar[list[Path]] = []
    live: ClassVar[list[str]] = []

    @contextlib.contextmanager
    def armed(
        self, files: Sequence[Path], live: Sequence[str], timeout_s: int, login: Login | None
    ) -> Iterator[None]:
        self.files.extend(files)
        self.live.extend(live)
        yield


@pytest.fixture
def known(tmp_path: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Account | None]:
    """The accounts of a node that Ansible reaches as ops; tests add theirs."""
    accounts: dict[str, Account | None] = {"ops": replace(AS_WANTED, name="ops", home="/home/ops")}
    monkeypatch.setattr(node_accounts, "SUDOERS", tmp_path / "sudoers")
    monkeypatch.setattr(node_accounts, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(node_accounts.Accounts, "pending", Saved("accounts", "it", tmp_path / "state"))
    monkeypatch.setattr(Saved, "files", [])
    monkeypatch.setattr(Saved, "live", [])
    monkeypatch.setattr(node_accounts, "ssh_login", lambda: Login("ops", "192.0.2.1", 1, "192.0.2.9", 22))
    monkeypatch.setattr(node_accounts, "check_sudoers", lambda *_: None)
    monkeypatch.setattr(node_accounts, "read_account", lambda name, **_: accounts.get(name))
    return accounts


@pytest.fixture
def accounts(known: dict[str, Account | None], monkeypatch: pytest.MonkeyPatch) -> dict[str, Account | None]:
    """The same; nothing is done to them."""
    monkeypatch.setattr(node_accounts, "ensure_user", lambda *_, **__: None)
    monkeypatch.setattr(node_accounts, "give_back", lambda *_: None)
    return known


OWN_KEYS = [Path("/home/ops/.ssh/authorized_keys"), Path("/home/ops/.ssh/authorized_keys2")]


@needs_root
def test_keys_of_ansible_that_nobody_changes_need_not_be_saved(
    administer: Run, accounts: dict[str, Account | None]
) -> None:
    """Which root cannot do in a home on NFS."""
    accounts["alice"] = None
    assert administer(item())["needs"] == {"confirm": "accounts"}
    assert Saved.files == [node_accounts.SUDOERS]


@needs_root
def test_keys_groups_and_dates_of_ansible_that_change_are_saved(
    administer: Run, accounts: dict[str, Account | None]
) -> None:
    """Else a group by which a site keeps people out would stay when the change is undone."""
    dates = Shadow(expiry_day="29000", maximum_days="90", last_change="20000")
    own = replace(AS_WANTED, name="ops", home="/home/ops", groups=frozenset({"staff", "adm"}), shadow=dates)
    accounts["ops"] = own
    administer(item(name="ops", groups=["video"]))
    assert Saved.files == [node_accounts.SUDOERS, *OWN_KEYS]
    assert Saved.live == ["chage -d 20000 -M 90 -E 29000 ops", "usermod --groups adm,staff ops"]
    Saved.live.clear()
    accounts["ops"] = replace(own, shadow=OF_DIRECTORY)
    administer(item(name="ops", groups=["video", "adm"]))
    assert Saved.live == ["gpasswd --add ops adm || true", "gpasswd --delete ops video || true"]


@needs_root
def test_account_of_ansible_that_would_expire_again_is_not_given_back(
    administer: Run, accounts: dict[str, Account | None]
) -> None:
    entry = {"created": False, "present": True, "sudo": True, "keys": [[ALICE.key_file, 0o600], None]}
    for expiry, refused in (("1", True), ("", False), ("99000", False)):
        record = {"ops": {**entry, "groups": [], "shadow": ["19000", "99999", expiry]}}
        node_accounts.RECORD.write_text(json.dumps(record))
        said = administer(absent=True).get("msg", "")
        assert ("ops, which it uses, would expire again" in said) is refused, expiry


@pytest.mark.parametrize(
    ("name", "own_keys"), [("alice", []), ("ops", OWN_KEYS)], ids=["of another", "of Ansible's"]
)
def test_only_keys_that_are_given_back_are_saved_first(
    administer: Run, accounts: dict[str, Account | None], name: str, own_keys: list[Path]
) -> None:
    accounts["alice"] = AS_WANTED
    entry = {"created": False, "present": True, "sudo": True, "keys": [[ALICE.key_file, 0o600], None]}
    entry |= {"groups": [], "shadow": ["19000", "99999", ""]}
    node_accounts.RECORD.write_text(json.dumps({name: entry}))
    assert administer(absent=True)["needs"] == {"confirm": "accounts"}
    assert Saved.files == [node_accounts.SUDOERS, node_accounts.RECORD, *own_keys]


def test_account_of_a_directory_that_is_to_be_revoked_is_named(
    administer: Run, accounts: dict[str, Account | None]
) -> None:
    accounts["alice"] = replace(AS_WANTED, shadow=OF_DIRECTORY)
    accounts["bob"] = replace(AS_WANTED, name="bob")
    revoked = [item(name=name, state="absent") for name in ("alice", "bob")]
    warnings = str(administer(*revoked)["warnings"])
    assert "alice: of a directory service, and cannot be made to expire" in warnings
    assert "bob" not in warnings


def test_file_that_cannot_be_read_is_a_sentence(
    administer: Run, accounts: dict[str, Account | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_name: str, **_: bool) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", "/home/alice/.ssh/authorized_keys")

    monkeypatch.setattr(node_accounts, "read_account", stale)
    message = administer(item())["msg"]
    assert message.startswith("A file of this node could not be read or written")
    assert "Stale file handle: '/home/alice/.ssh/authorized_keys'" in message


@needs_root
def test_a_plans_items_are_users_with_defaults(accounts: dict[str, Account | None]) -> None:
    accounts["alice"] = AS_WANTED
    setting = node_accounts.Accounts.from_items({"alice": {"keys": [KEY]}}, {"rollback_after_s": 60})
    assert setting.obstacle() is None
    assert [difference.name for difference in setting.change()] == [str(node_accounts.SUDOERS)]
    assert setting.rollback_after_s == 60


def test_accounts_are_restored_to_what_was_read(
    accounts: dict[str, Account | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        node_accounts, "give_back", lambda account, before: given.update({account.name: before})
    )
    monkeypatch.setattr(node_accounts, "revoke", lambda account: given.update({account.name: "revoked"}))
    accounts.update({"alice": replace(AS_WANTED, key_files=keys("before")), "bob": None})
    setting = node_accounts.Accounts([item(), item(name="bob")], True, 60, None)
    state = json.loads(json.dumps(setting.read()))
    accounts["bob"] = replace(AS_WANTED, name="bob")
    node_accounts.SUDOERS.touch()
    setting.restore(state)
    assert given["alice"]["keys"] == [["before", 0o600], None]
    assert given["bob"] == "revoked"
    assert not node_accounts.SUDOERS.exists()


# ---------------------------------------------------------------- revocation


@pytest.fixture
def revocable(known: dict[str, Account | None], tmp_path: Path) -> Path:
    """The home of alice, who has a key, and what changes accounts as it is, but for the commands."""
    known["alice"] = with_keys(tmp_path)
    return tmp_path


@needs_root
@pytest.mark.parametrize("wanted", [item(state="absent"), item(keys=[OTHER])], ids=["account", "key"])
def test_rights_are_gone_before_anything_is_described(
    administer: Run, revocable: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    seen = []

    def describe(_lines: list[str]) -> str:
        path = revocable / ".ssh/authorized_keys"
        seen.append(path.read_text() if path.exists() else "")
        raise RuntimeError("cannot be described")

    monkeypatch.setattr(administrators, "describe", describe)
    with contextlib.suppress(RuntimeError):
        administer(wanted)
    assert seen
    assert not any(KEY in text for text in seen)


@needs_root
def test_an_account_that_cannot_be_read_costs_no_other_its_revocation(
    administer: Run, revocable: Path, known: dict[str, Account | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of its own that is encrypted, say, which its user can make at any time."""

    def read(name: str, **_: bool) -> Account | None:
        if name == "bob":
            raise OSError(errno.ENOKEY, "Required key not available", "/home/bob/.ssh/authorized_keys")
        return known.get(name)

    monkeypatch.setattr(node_accounts, "read_account", read)
    message = administer(item(name="bob", sudo=False), item(state="absent"))["msg"]
    assert "bob was left as it is" in message
    assert "Required key not available" in message
    assert not (revocable / ".ssh/authorized_keys").exists()
    assert "bob" not in node_accounts.AccountsRecord(node_accounts.RECORD).accounts


@needs_root
def test_a_rule_of_sudo_that_is_taken_back_is_in_no_file_that_is_saved(
    administer: Run, revocable: Path, known: dict[str, Account | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever made its revocation fail would get the rule back with the undoing of it."""
    node_accounts.SUDOERS.write_text(node_accounts.sudoers(["alice", "ops"]) or "")
    saved = []

    @contextlib.contextmanager
    def armed(*_: object) -> Iterator[None]:
        saved.append(node_accounts.SUDOERS.read_text())
        yield

    monkeypatch.setattr(Saved, "armed", armed)
    administer(item(state="absent"), item(name="ops", keys=[KEY, OTHER]))
    assert [("alice" in text, "ops" in text) for text in saved] == [(False, True)]


@needs_root
def test_keys_that_cannot_be_described_cost_the_text_alone(
    administer: Run, revocable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_line: str) -> None:
        raise RuntimeError("no text")

    monkeypatch.setattr(administrators, "parse_public_key", fail)
    result = administer(item(keys=[], state="absent"))
    assert result["changed"]
    assert "cannot be shown" in str(result["diff"])


@needs_root
def test_an_account_that_cannot_be_revoked_costs_no_other_its_turn(
    administer: Run, revocable: Path, commands: list[str], known: dict[str, Account | None]
) -> None:
    account = with_keys(revocable)
    known.update({"zoe": account, "alice": replace(account, home="/nowhere")})
    result = administer(item(state="absent"), item(name="zoe", state="absent"))
    assert "The home directory of alice" in result["msg"]
    assert not (revocable / ".ssh/authorized_keys").exists()
    assert len(commands) == 2


@needs_root
def test_a_folder_that_its_owner_may_not_write_to_keeps_no_key(home: Path) -> None:
    account = account_in(home)
    administrators.write_key_files(account, account.key_files)
    (home / ".ssh").chmod(0o500)
    administrators.write_key_files(account, (None, None))
    assert not (home / ".ssh/authorized_keys").exists()


@needs_root
def test_a_full_disk_keeps_no_key_that_is_to_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = account_in(home)
    administrators.write_key_files(account, account.key_files)

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(administrators, "replace_file", full)
    other = replace(ALICE, keys=(parse_public_key(OTHER),))
    with pytest.raises(CommandError, match="Disk quota exceeded"):
        node_accounts.replace_keys(other, account, own=True)
    assert (home / ".ssh/authorized_keys").exists()
    with pytest.raises(CommandError, match="Disk quota exceeded"):
        node_accounts.replace_keys(other, account, own=False)
    assert not (home / ".ssh/authorized_keys").exists()


def test_a_revoked_account_is_in_no_group_of_sudo(commands: list[str]) -> None:
    account = replace(AS_WANTED, key_files=(None, None), shadow=EXPIRED, groups=frozenset({"sudo", "video"}))
    assert administrators.differs(replace(ALICE, present=False), account)
    node_accounts.revoke(account)
    assert commands == ["chage --expiredate 1 alice", "gpasswd --delete alice sudo"]


def test_a_revoked_account_with_processes_is_named(
    administer: Run, accounts: dict[str, Account | None]
) -> None:
    accounts["alice"] = replace(AS_WANTED, uid=os.getuid())
    assert "loginctl terminate-user alice" in str(administer(item(state="absent"), check_mode=True))


@each(
    ("1001 1001 1001 1001", "4294967295"),
    ("1001 0 0 0", "4294967295"),
    ("100000 100000 100000 100000", "1001"),
)
def test_a_process_does_not_hide_whose_it_is(uids: str, login: str, tmp_path: Path) -> None:
    """The folder of a process that is setuid, or in a user namespace, is not its account's."""
    process = tmp_path / "7"
    process.mkdir()
    (process / "status").write_text(f"Name:\tbash\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    (process / "loginuid").write_text(login)
    assert process.stat().st_uid != 1001
    assert node_accounts.has_processes(1001, tmp_path)
    assert not node_accounts.has_processes(1002, tmp_path)


def test_a_link_to_keys_comes_back_as_one(tmp_path: Path) -> None:
    account = replace(AS_WANTED, home=str(tmp_path), uid=os.getuid(), gid=os.getgid())
    (tmp_path / ".ssh").mkdir()
    path = tmp_path / ".ssh/authorized_keys"
    path.symlink_to("elsewhere")
    before = replace(account, key_files=(administrators.read_key_file(path), None))
    administrators.write_key_files(account, (KeyFile("x", 0o600), None))
    saved = json.loads(json.dumps(node_accounts.entry(before)))["keys"]
    administrators.write_key_files(account, [KeyFile(*file) if file else None for file in saved])
    assert str(path.readlink()) == "elsewhere"
