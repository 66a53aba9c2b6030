"""More ways of locking people out, also of those that come between a change and its confirmation."""

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import new_key
from tests.lab.hardening import NODES, SOON, Hardened, changed, wait_until

pytestmark = pytest.mark.lab

CHANGE = {"ssh_hardening_max_auth_tries": 3}
REPORT = "/var/lib/temper/rollback/ssh.undone"
KEYS = "/home/ops/.ssh/authorized_keys"
STORE = "/var/lib/temper"
RESTORE_PAM = "mv /root/pam /etc/pam.d/sshd"
SITE = "/etc/ssh/sshd_config.d/site.conf"
RIGHTS = "/etc/sudoers.d/90-cloud-init-users"


def pam(module: str) -> str:
    """Have sshd's PAM stack ask one more module about the account."""
    return (
        f"cp -a /etc/pam.d/sshd /root/pam; sed -i '/pam_nologin/a account required {module}' /etc/pam.d/sshd"
    )


def option(text: str) -> tuple[str, str]:
    """Give Ansible's key an option."""
    return f"cp -a {KEYS} /root/keys; sed -i 's/^ssh-/{text} &/' {KEYS}", f"mv /root/keys {KEYS}"


def sshd(text: str) -> tuple[str, str]:
    """Have the site's own file say something to sshd."""
    return (
        f"printf '%b' {shlex.quote(text)} >{SITE}; systemctl reload ssh",
        f"rm {SITE}; systemctl reload ssh",
    )


def stack(name: str, line: str) -> tuple[str, str]:
    """Put a line before all others of a PAM stack."""
    file = f"/etc/pam.d/{name}"
    return f"cp -a {file} /root/stack; sed -i {shlex.quote(f'1i {line}')} {file}", f"mv /root/stack {file}"


#: What keeps a new login out and leaves a connection that is open alone: what is done, and what mends it.
UNSEEN = {
    "nologin": ("echo closed >/etc/nologin", "rm /etc/nologin"),
    "access.conf": (
        f"echo '-:ALL:ALL' >/root/access.conf; {pam('pam_access.so accessfile=/root/access.conf')}",
        RESTORE_PAM,
    ),
    "shell-that-is-not-listed": (
        f"cp /bin/bash /opt/shell; usermod --shell /opt/shell ops; {pam('pam_shells.so')}",
        f"usermod --shell /bin/bash ops; {RESTORE_PAM}",
    ),
    "home-that-others-may-write": ("chmod 777 /home/ops", "chmod 755 /home/ops"),
    "key-for-other-addresses": option('from="192.0.2.1"'),
    "key-that-has-expired": option('expiry-time="20200101"'),
    "no-login-shell": ("usermod --shell /usr/sbin/nologin ops", "usermod --shell /bin/bash ops"),
    "hours-of-pam_time": (
        f"cp -a /etc/security/time.conf /root; echo 'sshd;*;ops;!Al0000-2400' >>/etc/security/time.conf; "
        f"{pam('pam_time.so')}",
        f"mv /root/time.conf /etc/security; {RESTORE_PAM}",
    ),
    "module-that-pam-lacks": (pam("pam_missing.so"), RESTORE_PAM),
    "most-logins-of-pam_limits": (
        "echo 'ops - maxlogins 0' >/etc/security/limits.d/site.conf",
        "rm /etc/security/limits.d/site.conf",
    ),
    "keys-of-a-command-that-has-none": sshd(
        r"AuthorizedKeysFile none\nAuthorizedKeysCommand /bin/false\nAuthorizedKeysCommandUser nobody\n"
    ),
    "command-of-a-match-block": sshd(r"Match User ops\nForceCommand /bin/false\n"),
}
#: What takes the right to become root, from a session that is open, too.
WITHOUT_SUDO = {
    "sudo": ("echo 'ops ALL=(ALL:ALL) !ALL' >/etc/sudoers.d/zz-site", "rm /etc/sudoers.d/zz-site"),
    "nopasswd": ("echo 'ops ALL=(ALL:ALL) ALL' >/etc/sudoers.d/zz-site", "rm /etc/sudoers.d/zz-site"),
    "requiretty": ("echo 'Defaults requiretty' >/etc/sudoers.d/zz-site", "rm /etc/sudoers.d/zz-site"),
    "file-with-a-dot": (f"mv {RIGHTS} {RIGHTS}.site", f"mv {RIGHTS}.site {RIGHTS}"),
    "include-after-the-others": (
        "cp -a /etc/sudoers /root; echo 'ops ALL=(ALL:ALL) !ALL' >/etc/sudoers.site; "
        "chmod 440 /etc/sudoers.site; echo '@include /etc/sudoers.site' >>/etc/sudoers",
        "mv /root/sudoers /etc/sudoers; rm /etc/sudoers.site",
    ),
    "stack-of-sudo": stack("sudo", "account requisite pam_deny.so"),
    "access.conf-of-every-stack": stack(
        "common-account", "account required pam_access.so accessfile=/root/denied"
    ),
}
#: What comes between the change and its confirmation.
BETWEEN = WITHOUT_SUDO | {
    "expiry": ("chage -E 1 ops", "chage -E -1 ops"),
    "password": ("chage -d 0 ops", "chage -d 2026-01-01 ops"),
}


@contextlib.contextmanager
def spoiled(fleet: Hardened, spoil: str, mend: str) -> Iterator[None]:
    """Have something in the way for a while; everybody gets in once it has gone."""
    fleet.side_door(spoil)
    try:
        yield
    finally:
        fleet.side_door(mend)
    fleet.assert_everybody_gets_in()


def between(script: str) -> str:
    """Have systemd run a script once, as soon as a change of sshd waits for its confirmation."""
    path = f"--path-property=PathExists={STORE}/rollback/ssh"
    return f"systemd-run --quiet --unit=between --remain-after-exit {path} sh -c {shlex.quote(script)}"


def assert_undone(fleet: Hardened, **variables: Any) -> None:
    """Make a change that nothing confirms, and wait until the nodes have undone it."""
    fleet.side_door(f"rm -f {REPORT}")
    run = fleet.harden(**CHANGE | SOON | variables)
    assert run.status != 0
    wait_until(lambda: not fleet.pending("ssh"), "the change is undone")
    for node, said in fleet.side_door(f"cat {REPORT}; sshd -T").items():
        assert "was undone because no new connection confirmed it" in said, (node, run.output)
        assert "maxauthtries 4" in said, node


@pytest.mark.parametrize("name", UNSEEN)
def test_what_keeps_new_logins_out_is_undone(fleet: Hardened, name: str) -> None:
    fleet.connect()
    with spoiled(fleet, *UNSEEN[name]):
        assert_undone(fleet)


@pytest.mark.parametrize(
    "name", [pytest.param("sudo", marks=pytest.mark.smoke), *(name for name in BETWEEN if name != "sudo")]
)
def test_what_comes_before_the_confirmation_is_undone(fleet: Hardened, name: str) -> None:
    spoil, mend = BETWEEN[name]
    fleet.connect()
    with spoiled(fleet, between(spoil), f"systemctl stop between.path between.service; {mend}"):
        assert_undone(fleet)


@pytest.mark.parametrize("name", [name for name in WITHOUT_SUDO if name != "requiretty"])
def test_account_without_the_right_of_sudo_changes_nothing(fleet: Hardened, name: str) -> None:
    fleet.connect()
    with spoiled(fleet, *WITHOUT_SUDO[name]):
        run = fleet.harden(**CHANGE)
        assert run.status != 0
        assert changed(run) == dict.fromkeys(NODES, 0)


def test_certificate_that_has_expired_is_undone(fleet: Hardened, tmp_path: Path) -> None:
    """The site's authority lets Ansible in; the shared connection is from before the certificate's end."""
    authority, key = new_key(tmp_path, "authority"), tmp_path / "key"
    shutil.copy(str(fleet.lab.ssh_key), key)
    shutil.copy(f"{fleet.lab.ssh_key}.pub", f"{key}.pub")

    def sign(validity: str) -> None:
        command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "ops", "-n", "ops", "-V", validity]
        subprocess.run([*command, f"{key}.pub"], check=True)

    trusted = {"ssh_hardening_user_ca_keys": [Path(f"{authority}.pub").read_text()]}
    assert fleet.harden(**trusted).status == 0
    with spoiled(fleet, f"mv {KEYS} {KEYS}.away", f"mv {KEYS}.away {KEYS}"):
        sign("-1h:+1h")
        for node in NODES:
            assert fleet.login(node, key=key).returncode == 0
        sign("-2h:-1h")
        assert_undone(fleet, **trusted, ansible_ssh_private_key_file=str(key))
        sign("-1h:+1h")
        for node in NODES:
            assert fleet.login(node, key=key).returncode == 0
    assert fleet.harden().status == 0


def test_host_key_of_a_kind_that_this_machine_does_not_know_is_undone(
    fleet: Hardened, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    with_ecdsa = {"ssh_hardening_host_key_types": ["ed25519", "rsa", "ecdsa"]}
    assert fleet.harden(**with_ecdsa).status == 0
    keys = fleet.side_door("cut -d' ' -f1,2 /etc/ssh/ssh_host_ecdsa_key.pub")
    known.write_text("".join(f"{fleet.nodes[node].address} {key.strip()}\n" for node, key in keys.items()))
    options = f"-F /dev/null -o UserKnownHostsFile={known} -o GlobalKnownHostsFile=/dev/null"
    knowing = {"ansible_ssh_common_args": f"{options} -o StrictHostKeyChecking=yes"}
    run = fleet.harden(**SOON, **knowing)
    assert run.status != 0
    assert "Host key verification failed" in run.output
    wait_until(lambda: not fleet.pending("ssh"), "the change is undone")
    for text in fleet.side_door("sshd -T").values():
        assert "hostkey /etc/ssh/ssh_host_ecdsa_key" in text
    assert fleet.harden(**with_ecdsa, **knowing).status == 0
    assert fleet.harden().status == 0


@pytest.fixture
def small_store(fleet: Hardened) -> Iterator[Hardened]:
    """Temper's own folder on a small disk."""
    small = f"cp -a {STORE} /root/store; mount -t tmpfs -o size=2m none {STORE}; cp -a /root/store/. {STORE}"
    fleet.side_door(small)
    try:
        yield fleet
    finally:
        fleet.side_door(f"umount {STORE}; rm -rf /root/store")
        assert fleet.harden().status == 0
    fleet.assert_everybody_gets_in()


FILL = f"cat /dev/zero >{STORE}/full 2>&1; true"


def test_full_disk_changes_nothing(small_store: Hardened) -> None:
    small_store.side_door(FILL)
    run = small_store.harden(**CHANGE)
    assert run.status != 0
    for text in small_store.side_door("sshd -T").values():
        assert "maxauthtries 4" in text
    assert not small_store.pending("ssh")


def test_disk_that_fills_before_the_confirmation_keeps_the_change(small_store: Hardened) -> None:
    """To confirm it takes no room."""
    small_store.side_door(between(FILL))
    try:
        run = small_store.harden(**CHANGE)
        assert run.status == 0, run.output
        assert not small_store.pending("ssh")
        for text in small_store.side_door(f"ls {STORE}; sshd -T").values():
            assert "full\n" in text
            assert "maxauthtries 3" in text
        small_store.assert_everybody_gets_in()
    finally:
        small_store.side_door(f"systemctl stop between.path between.service; rm -f {STORE}/full")


def test_others_whom_a_change_keeps_out_are_named(fleet: Hardened) -> None:
    """Ansible gets in before and after, and so proves nothing for them."""
    theirs = KEYS.replace("ops", "alice")
    add = f"useradd -m -s /bin/bash -p '*' alice; install -D -o alice -m 600 {KEYS} {theirs}"
    with spoiled(fleet, add, "userdel --force --remove alice || true"):
        only = {"ssh_hardening_allow_groups": ["ops"]}
        for run in (fleet.harden("--check", **only), fleet.harden(**only)):
            assert run.status == 0, run.output
            assert "AllowGroups (ops) has no group of alice" in run.said
        for node in NODES:
            assert fleet.login(node, user="alice").returncode != 0
        assert "alice" not in fleet.harden(**only).said
        assert fleet.harden().status == 0
        for node in NODES:
            assert fleet.login(node, user="alice").returncode == 0


def test_others_who_have_a_password_alone_are_named(fleet: Hardened) -> None:
    """Before its first run a node takes passwords."""
    assert fleet.harden(ssh_hardening_state="absent").status == 0
    with spoiled(
        fleet,
        "useradd -m -s /bin/bash carol; echo carol:Qz7-kfw9 | chpasswd",
        "userdel --force --remove carol || true",
    ):
        run = fleet.harden()
        assert run.status == 0, run.output
        assert "the account carol has no key" in run.said
