"""The drop-in's text, its place in the whole configuration, and who would be kept out by it."""

import os
import pwd
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.temper import node_conditions, process, units
from ansible.module_utils.temper.access import (
    listeners,
    selinux_ports,
    ssh_access,
    ssh_keys,
    sshd,
    sshd_matches,
    sshd_settings,
)
from ansible.module_utils.temper.access.listeners import Listener
from ansible.module_utils.temper.access.ssh_access import Account
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.settings.base import RefusedError

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.tables import specs

OPS = Account(
    "ops", uid=1000, groups=("ops", "sudo"), locked=False, expired=False, password_expired=False, has_key=True
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMP/JIfnXzGl0FmT5rCEOw2Y8sIp9EyInaNs4E2UMwMO ops"
OPEN = {
    "permitrootlogin": ["no"],
    "pubkeyauthentication": ["yes"],
    "usepam": ["yes"],
    "authorizedkeysfile": [".ssh/authorized_keys .ssh/authorized_keys2"],
}


def refusal(account: Account = OPS, **effective: str) -> str | None:
    settings = OPEN | {keyword: value.split("|") for keyword, value in effective.items()}
    return ssh_access.login_refusal(account, "192.0.2.7", settings)


@each(
    (False, ["no"]),
    (True, ["yes"]),
    (4, ["4"]),
    ("publickey", ["publickey"]),
    ([22, 2222], ["22", "2222"]),
    ([], []),
)
def test_value_becomes_what_sshd_reads(value: Any, lines: list[str]) -> None:
    assert sshd_settings.values("Keyword", value) == lines


@each("Match", "include", "Two Words", "Banner\nPort")
def test_keyword_that_would_change_the_files_structure_is_refused(keyword: str) -> None:
    with pytest.raises(RefusedError, match="expected a keyword"):
        sshd_settings.values(keyword, "x")


@each("", "/etc/issue\nPermitRootLogin yes")
def test_value_that_is_not_one_line_is_refused(value: str) -> None:
    with pytest.raises(RefusedError, match="Banner: expected a value in one line"):
        sshd_settings.values("Banner", value)


def test_block_whose_criteria_are_not_one_line_is_refused() -> None:
    with pytest.raises(RefusedError, match="Match: expected criteria in one line"):
        sshd_settings.check_criteria(["Group data\nPermitRootLogin yes"])


def test_later_layer_wins_whatever_its_case() -> None:
    merged = sshd_settings.merge(
        {"PermitRootLogin": False, "Port": []}, {"permitrootlogin": "prohibit-password"}
    )
    assert merged == {"permitrootlogin": ["prohibit-password"]}


def test_algorithms_of_newer_versions_are_left_out() -> None:
    wanted = ["mlkem768x25519-sha256", "b", "a"]
    assert sshd_settings.known_algorithms("KexAlgorithms", wanted, ["a", "b", "c"]) == "b,a"


@each(
    (["new"], ["a"], "knows none of new"),
    # One is misspelt.
    (
        ["aes256-ctr", "aes256-gmc@openssh.com"],
        ["aes256-ctr", "aes256-gcm@openssh.com"],
        r"has aes256-gmc@openssh\.com; choose",
    ),
)
def test_an_algorithm_that_no_openssh_has_is_refused(wanted: list[str], known: list[str], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        sshd_settings.known_algorithms("Ciphers", wanted, known)


@each("kex_algorithms", "ciphers", "macs")
def test_the_roles_own_algorithms_are_known_to_some_openssh(name: str) -> None:
    option = specs()["ssh_hardening"]["argument_specs"]["main"]["options"][f"ssh_hardening_{name}"]
    assert set(option["default"]) <= sshd_settings.ALGORITHMS


def test_include_is_written_out_in_sshds_order(tmp_path: Path) -> None:
    folder = tmp_path / "sshd_config.d"
    folder.mkdir()
    for name in ("50-cloud-init.conf", "00-aaa.conf", "readme", ".hidden.conf"):
        (folder / name).touch()
    text = f"Include {folder}/*.conf\nPort 22\n"
    candidate = sshd.candidate_configuration(
        text, tmp_path, folder / "00-temper.conf", Path("/tmp/candidate")
    )
    assert candidate.splitlines() == [
        f'Include "{folder}/00-aaa.conf"',
        'Include "/tmp/candidate"',
        f'Include "{folder}/50-cloud-init.conf"',
        "Port 22",
    ]


def test_relative_and_further_includes_stay(tmp_path: Path) -> None:
    text = "Include other.conf sshd_config.d/*.conf # why\n"
    candidate = sshd.candidate_configuration(
        text, tmp_path, tmp_path / "sshd_config.d/00-temper.conf", Path("/tmp/candidate")
    )
    assert candidate == f'Include "{tmp_path}/other.conf"\nInclude "/tmp/candidate"\n'


@each("Port 22\n", "Match User bob\nInclude sshd_config.d/*.conf\n")
def test_configuration_that_does_not_read_the_drop_in_for_all_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"put the line `Include .*sshd_config\.d/\*\.conf` at its top"):
        sshd.candidate_configuration(
            text, tmp_path, tmp_path / "sshd_config.d/00-temper.conf", Path("/tmp/candidate")
        )


@each(
    (
        {"PasswordAuthentication": ["no"], "Port": ["22"]},
        "port 22\npasswordauthentication yes\n",
        {"PasswordAuthentication": "PasswordAuthentication is yes, expected no"},
    ),
    ({"Port": ["22"]}, "port 22\nport 2222\n", {"Port": "Port is 22, 2222, expected 22"}),
)
def test_setting_that_something_else_overrules_is_named(
    wanted: dict[str, list[str]], effective: str, wrong: dict[str, str]
) -> None:
    ours = sshd.parse_effective("port 22\npasswordauthentication no\n")
    assert sshd_settings.disagreements(wanted, ours, sshd.parse_effective(effective)) == wrong


def test_lines_in_the_way_are_found(tmp_path: Path) -> None:
    file = tmp_path / "50-cloud-init.conf"
    file.write_text("# PasswordAuthentication no\npasswordauthentication yes\nPasswordAuthenticationX no\n")
    lines = sshd_matches.site_lines(file, tmp_path / "ours.conf")
    assert sshd_settings.where("PasswordAuthentication", lines) == f"{file}:2"


@each(
    (replace(OPS, name="root", uid=0), {}, "login of root"),
    (replace(OPS, name="root", uid=0), {"permitrootlogin": "forced-commands-only"}, "login of root"),
    (OPS, {"pubkeyauthentication": "no"}, "PubkeyAuthentication"),
    (replace(OPS, has_key=False), {}, "has no key in .ssh/authorized_keys or"),
    (replace(OPS, locked=True), {"usepam": "no"}, "locked and UsePAM is no"),
    (replace(OPS, expired=True), {}, "chage -E -1 ops"),
    (replace(OPS, password_expired=True), {}, "chage -M -1 ops"),
    (OPS, {"denyusers": "o*"}, "DenyUsers"),
    (OPS, {"allowusers": "alice|bob"}, "AllowUsers (alice bob) lacks the account ops"),
    (OPS, {"allowusers": "ops@198.51.100.0/24"}, "AllowUsers"),
    (OPS, {"denygroups": "sudo"}, "DenyGroups"),
    (OPS, {"allowgroups": "admins users"}, "AllowGroups (admins users) has no group of ops (ops, sudo)"),
)
def test_account_that_would_be_kept_out_is_refused(
    account: Account, effective: dict[str, str], reason: str
) -> None:
    assert reason in (refusal(account, **effective) or "")


@each(
    (OPS, {}),
    (replace(OPS, name="root", uid=0), {"permitrootlogin": "prohibit-password"}),
    (replace(OPS, locked=True), {}),  # PAM lets a locked password in by key
    (replace(OPS, has_key=None), {}),
    (replace(OPS, password_expired=True), {"usepam": "no"}),
    (OPS, {"allowusers": "alice|ops"}),
    (OPS, {"allowusers": "ops@192.0.2.0/24"}),
    (OPS, {"allowusers": "ops@192.0.2.*"}),
    (OPS, {"allowgroups": "admins sudo"}),
)
def test_account_that_gets_in_is_not_refused(account: Account, effective: dict[str, str]) -> None:
    assert refusal(account, **effective) is None


def test_sockets_of_root_are_found_by_port(tmp_path: Path) -> None:
    header = "sl local_address rem_address st tx rx tr tm->when retrnsmt uid timeout inode\n"
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        header
        + "0: 00000000:0016 00000000:0000 0A 0:0 00:0 0 0 0 111 1 x\n"
        + "1: 00000000:0016 00000000:0000 0A 0:0 00:0 0 1000 0 444 1 x\n"
        + "2: 0100007F:0016 0100007F:9C40 01 0:0 00:0 0 0 0 222 1 x\n"
    )
    (tmp_path / "net" / "tcp6").write_text(
        header + f"0: {'0' * 32}:0016 {'0' * 32}:0000 0A 0:0 00:0 0 0 0 333 1 x\n"
    )
    assert sshd.listening_sockets(["22", "80"], tmp_path) == {"22": {"111", "333"}, "80": set()}


@each(
    ("port 22\nlistenaddress 0.0.0.0:22\nlistenaddress [::]:22\n", ["22"]),
    ("port 22\nlistenaddress 10.0.0.4:2222\n", ["2222"]),
    ("Port 22\nListenAddress 10.0.0.4:2222\n", ["2222"]),  # OpenSSH 10.6
    ("port 22\nlistenaddress 10.0.0.4:2222 rdomain mgmt\nlistenaddress [2001:db8::4]:222\n", ["222", "2222"]),
    ("port 22\n", ["22"]),
)
def test_ports_are_those_of_the_addresses_that_sshd_listens_on(dump: str, ports: list[str]) -> None:
    assert sshd.listening_ports(sshd.parse_effective(dump)) == ports


def test_port_that_sshd_shares_with_a_program_at_another_address_is_not_busy() -> None:
    found = [
        Listener("tcp", 22, "haproxy"),
        Listener("tcp", 22, "sshd"),
        Listener("tcp", 80, "nginx"),
        Listener("tcp", 81, "unknown process"),
        Listener("tcp", 222, "nginx"),
        Listener("tcp", 222, "systemd"),
        Listener("tcp", 2222, "sshd", uid=1000),
        Listener("tcp", 2223, "unknown process", uid=1000),
        Listener("udp", 443, "nginx"),
    ]
    assert sshd.ports_of_others(found) == {"80": "nginx", "2222": "sshd", "2223": "unknown process"}


@each("0.0.0.0:22", "[::]:22", "127.0.0.1:22", "[fe80::1%eth0]:22")
def test_address_that_sshd_can_listen_on_is_taken(address: str) -> None:
    sshd.refuse_what_sshd_cannot_listen_on([address], {"80": "nginx"})


@each(
    ("192.0.2.77:22", r"192\.0\.2\.77:22; nothing was changed: this node does not have the address"),
    ("[2001:db8::77]:22", "this node does not have the address"),
    ("0.0.0.0:80", r"0\.0\.0\.0:80; nothing was changed: nginx has that port"),
)
def test_address_that_would_end_sshd_is_refused(address: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        sshd.refuse_what_sshd_cannot_listen_on(["0.0.0.0:22", address], {"80": "nginx"})


@pytest.mark.component
@pytest.mark.parametrize(
    ("state", "by_systemd", "calls"),
    [
        ("active", False, ["reload ssh.service"]),
        # A SIGHUP costs it systemd's sockets.
        ("active", True, ["restart ssh.service"]),
        ("reloading", False, ["reload ssh.service"]),
        ("failed", False, ["reset-failed ssh.service", "restart ssh.service"]),
        ("activating", False, ["reset-failed ssh.service", "restart ssh.service"]),  # waits for its next try
        ("inactive", True, []),  # at boot, before sshd
    ],
)
def test_undo_reloads_an_sshd_that_runs_and_starts_one_that_failed(
    tmp_path: Path, state: str, by_systemd: bool, calls: list[str]
) -> None:
    executable(
        tmp_path / "systemctl",
        f'[ "$1" != is-active ] || exit {int(not by_systemd)}\n[ "$1" = show ] || {{ '
        f'echo "$@" >>{tmp_path}/calls; exit; }}\n'
        f'case "$*" in *" ssh.service") echo {state};; *) echo inactive;; esac',
    )
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", f"set -u; {sshd.RELOAD_IN_SHELL}"], env={"PATH": path}, check=True)
    done = (tmp_path / "calls").read_text().splitlines() if calls else []
    assert done == calls


@pytest.mark.component
@pytest.mark.parametrize(
    ("state", "restarts"),
    [("active", True), ("failed", True), ("inactive", False)],  # at boot, before it listens
)
def test_undo_of_a_move_has_the_socket_listen_anew(tmp_path: Path, state: str, restarts: bool) -> None:
    executable(
        tmp_path / "systemctl",
        f'if [ "$1" = show ]; then echo {state}; else echo "$@" >>{tmp_path}/calls; fi',
    )
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", f"set -u; {sshd.LISTEN_ANEW_IN_SHELL}"], env={"PATH": path}, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    anew = ["reset-failed ssh.socket ssh.service", "restart ssh.socket ssh.service"]
    assert calls == ["daemon-reload", *(anew if restarts else [])]


def obstacle(
    unit: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *generators: Path, drop_ins: str = ""
) -> str | None:
    """Why sshd's Port does not move the socket, where these are the generators that systemd looks for."""
    monkeypatch.setattr(sshd, "GENERATORS", generators)
    monkeypatch.setattr(sshd, "GENERATED", str(folder / "generator"))
    monkeypatch.setattr(sshd, "run", lambda _: drop_ins)
    return sshd.socket_obstacle(unit)


def test_port_moves_the_socket_where_a_generator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, masked, none = tmp_path / "there", tmp_path / "masked", tmp_path / "none"
    generator.touch(mode=0o755)
    masked.symlink_to("/dev/null")
    assert obstacle("ssh.socket", tmp_path, monkeypatch, none, generator) is None
    for unit, generators in (
        ("sshd.socket", [generator]),
        ("ssh.socket", [masked, generator]),
        ("ssh.socket", []),
    ):
        said = obstacle(unit, tmp_path, monkeypatch, *generators)
        assert said
        assert f"set ListenStream in a drop-in of {unit}" in said


def test_port_does_not_move_a_socket_whose_drop_in_has_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, theirs, made = (
        tmp_path / "there",
        tmp_path / "theirs.conf",
        tmp_path / "generator/addresses.conf",
    )
    generator.touch(mode=0o755)
    made.parent.mkdir()
    for path in (theirs, made):
        path.write_text("[Socket]\nListenStream=\nListenStream=2200\n")
    assert obstacle("ssh.socket", tmp_path, monkeypatch, generator, drop_ins=str(made)) is None
    said = obstacle("ssh.socket", tmp_path, monkeypatch, generator, drop_ins=f"{made} {theirs}")
    assert said
    assert f"take ListenStream out of {theirs}" in said


@each((None, ["1024", "2222"]), ("2000\n", ["2222"]), ("0\n", ["22", "1024", "2222"]))
def test_a_port_that_any_account_can_take_is_told(
    first: str | None, found: list[str], tmp_path: Path
) -> None:
    if first:
        file = tmp_path / "sys/net/ipv4/ip_unprivileged_port_start"
        file.parent.mkdir(parents=True)
        file.write_text(first)
    assert sshd.ports_of_everybody(["22", "1024", "2222"], tmp_path) == found


def looks(effective: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a look find these effective settings, and a drop-in that it writes; return the drop-in's path."""
    drop_in = tmp_path / "drop-in.conf"
    monkeypatch.setattr(sshd_settings, "DROP_IN", drop_in)
    planned = sshd_settings.SshdPlan({drop_in: "Port 22\n"}, effective)
    monkeypatch.setattr(sshd_settings, "which", lambda program: program)
    monkeypatch.setattr(sshd_settings, "Sshd", lambda *_, **__: SimpleNamespace(whole=lambda *_: effective))
    monkeypatch.setattr(sshd_settings, "plan", lambda *_: planned)
    monkeypatch.setattr(sshd_settings, "active_socket", lambda: None)
    monkeypatch.setattr(sshd_settings, "listeners", list)
    monkeypatch.setattr(sshd_settings, "started_with", lambda _: [])
    monkeypatch.setattr(sshd_settings, "read_account", lambda *_: OPS)
    return drop_in


@each((222, None), (22, 222), (2222, None))
def test_port_of_a_listen_address_is_the_one_to_connect_to(
    server_port: int, port: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listened = server_port if server_port != 22 else 222
    effective = OPEN | {"port": ["22"], "listenaddress": [f"127.0.0.1:{listened}"]}
    looks(effective, tmp_path, monkeypatch)
    login = Login("ops", "192.0.2.7", 40000, "192.0.2.9", server_port)
    setting = sshd_settings.SshdSettings(sshd_settings.Parameters(settings={"Port": [22]}), 120, login)
    assert setting.result()["port"] == port
    assert bool(setting.warnings()) is bool(port or listened == 2222)


def test_a_socket_that_does_not_move_keeps_the_port_to_connect_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own ListenStream counts, and sshd's Port does not."""
    effective = OPEN | {"port": ["22"], "listenaddress": ["0.0.0.0:22"]}
    looks(effective, tmp_path, monkeypatch)
    monkeypatch.setattr(sshd_settings, "active_socket", lambda: "ssh.socket")
    login = Login("ops", "192.0.2.7", 40000, "192.0.2.9", 2200)
    for now, port in (({"0.0.0.0:22"}, None), ({"0.0.0.0:2200"}, 22)):
        monkeypatch.setattr(sshd_settings, "configured_addresses", lambda now=now: [*now])
        monkeypatch.setattr(sshd_settings, "socket_obstacle", lambda _: None)
        setting = sshd_settings.SshdSettings(sshd_settings.Parameters(settings={"Port": [22]}), 120, login)
        assert setting.result()["port"] == port


def test_port_without_selinuxs_label_is_a_change_though_no_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_in = looks(OPEN | {"port": ["222"], "listenaddress": ["0.0.0.0:222"]}, tmp_path, monkeypatch)
    drop_in.write_text("Port 22\n")
    drop_in.chmod(0o600)
    login = Login("ops", "192.0.2.7", 40000, "192.0.2.9", 222)
    for missing in (["222"], []):
        monkeypatch.setattr(selinux_ports, "unlabelled", lambda _, missing=missing: missing)
        setting = sshd_settings.SshdSettings(sshd_settings.Parameters(settings={"Port": [222]}), 120, login)
        assert setting.settled() is not bool(missing)
        assert [one.name for one in setting.change()] == [f"SELinux's label of port {one}" for one in missing]
        assert bool(setting.way_in()) is bool(missing)
    monkeypatch.setattr(selinux_ports, "unlabelled", lambda _: ["222"])
    image = sshd_settings.SshdSettings(sshd_settings.Parameters(settings={"Port": [222]}), 120, login)
    image.live = False
    assert image.settled()


def test_what_keeps_sshd_out_for_any_login_is_known_ahead_and_a_lock_out_is_left_to_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_this_port(_: list[str]) -> list[str]:
        raise RefusedError("SELinux has it for http")

    def setting(**wanted: Any) -> sshd_settings.SshdSettings:
        parameters = sshd_settings.Parameters(settings={"Port": [222]}, **wanted)
        return sshd_settings.SshdSettings(parameters, 120, Login("ops", "192.0.2.7", 40000, "192.0.2.9", 22))

    def foreseen(**wanted: Any) -> str:
        try:
            setting(**wanted).foreseen()
        except RefusedError as error:
            return str(error)
        return ""

    effective = OPEN | {"port": ["222"], "listenaddress": ["0.0.0.0:222"], "allowusers": ["alice"]}
    looks(effective, tmp_path, monkeypatch)
    monkeypatch.setattr(sshd_settings, "channels", lambda _: [])
    monkeypatch.setattr(sshd_settings, "locked_out", lambda *_: [])
    assert "lock Ansible out" in (setting().obstacle() or "")
    assert foreseen() == ""
    with monkeypatch.context() as patched:
        patched.setattr(sshd_settings, "channels", list)
        patched.setattr(sshd_settings, "cut_ways", lambda *_: ["gpu02"])
        assert "jump host" in foreseen()
        assert foreseen(forwarding_decided=True) == ""
    with monkeypatch.context() as patched:
        patched.setattr(sshd_settings, "ports_of_others", lambda _: {"222": "caddy"})
        assert "caddy has that port" in foreseen()
    monkeypatch.setattr(selinux_ports, "unlabelled", not_this_port)
    assert foreseen() == "SELinux has it for http"


TODAY = 20000


@each(
    ("", "", False),
    ("0", "99999", True),
    (str(TODAY - 91), "90", True),
    (str(TODAY - 90), "90", False),
    (str(TODAY - 91), "", False),
    (str(TODAY - 91), "-1", False),
)
def test_password_expires_by_its_age_or_on_request(
    last_change: str, maximum_days: str, expired: bool
) -> None:
    assert ssh_access._password_expired(last_change, maximum_days, TODAY) is expired


def test_home_that_root_may_not_read_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file server with root_squash, sshd reads keys as the account."""

    def refuse(*_args: Any, **_options: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(ssh_access, "read_regular", refuse)
    user = pwd.getpwnam("nobody")
    assert ssh_access.has_key(user, OPEN) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")
def test_keys_are_read_as_the_account_to_which_links_of_its_own_open_nothing(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("ssh-ed25519 AAAA\n")
    secret.chmod(0o600)
    # pytest's own folders are closed, and there is one more where it runs tests side by side.
    for folder in (
        tmp_path,
        *(one for one in tmp_path.parents if one.name.startswith(("pytest-", "popen-"))),
    ):
        folder.chmod(0o755)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/authorized_keys").symlink_to(secret)
    user = pwd.struct_passwd(("nobody", "x", 65534, 65534, "", str(tmp_path), "/bin/sh"))
    assert ssh_access.has_key(user, OPEN) is None
    secret.chmod(0o644)
    assert ssh_access.has_key(user, OPEN) is True


def test_group_without_a_name_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = tmp_path / "shadow"
    shadow.touch()
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 4_000_000])
    assert ssh_access.read_account("root", OPEN, shadow=shadow).groups == ("root",)


def test_account_is_read_from_shadow(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_text("root:!*:0:0:99999:7::1:\n")
    account = ssh_access.read_account("root", {"authorizedkeysfile": ["none"]}, shadow=shadow)
    assert (account.locked, account.expired, account.password_expired, account.has_key) == (
        True,
        True,
        True,
        False,
    )


def test_revoked_key_is_no_key(tmp_path: Path) -> None:
    user = pwd.struct_passwd(("ops", "x", os.getuid(), os.getgid(), "", str(tmp_path), "/bin/sh"))
    (tmp_path / "keys").write_text("# none\nssh-ed25519 AAAA ops\n")
    effective = {"authorizedkeysfile": ["missing %h/keys"]}
    assert ssh_access.has_key(user, effective) is True
    assert ssh_access.has_key(user, effective, frozenset({"AAAA"})) is False


def test_block_follows_the_settings() -> None:
    text = sshd_settings.render({"Port": ["22"]}, {"Group data": {"AllowTcpForwarding": ["local"]}})
    assert text.splitlines()[1:] == ["Port 22", "Match Group data", "    AllowTcpForwarding local"]


def test_small_moduli_are_left_out(tmp_path: Path) -> None:
    moduli = tmp_path / "moduli"
    small, large = "20240101000000 2 6 100 2047 2 AB\n", "20240101000000 2 6 100 3071 2 CD\n"
    moduli.write_text(f"# Time Type Tests Tries Size Generator Modulus\n{small}{large}")
    assert sshd_settings.strong_moduli(3072, moduli) == large


def host_key(folder: Path, *arguments: str) -> str:
    path = folder / "_".join(arguments)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", *arguments, "-f", str(path)], check=True)
    return str(path)


@pytest.mark.component
def test_host_keys_of_the_wanted_kinds_are_offered_and_weak_ones_are_named(tmp_path: Path) -> None:
    keys = {
        name: host_key(tmp_path, *name.split()) for name in ("ed25519", "ecdsa", "rsa -b 2048", "rsa -b 3072")
    }
    offered, weak = sshd_settings.offered_host_keys(["ed25519", "rsa"], list(keys.values()))
    assert offered == [keys["ed25519"], keys["rsa -b 3072"]]
    assert weak == [f"{keys['rsa -b 2048']} has 2048 bits"]


@pytest.mark.component
def test_node_without_a_host_key_of_the_wanted_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="ssh-keygen -A"):
        sshd_settings.offered_host_keys(["ed25519"], [host_key(tmp_path, "ecdsa")])


def test_wrong_key_is_named_by_its_place_and_not_repeated() -> None:
    with pytest.raises(RefusedError, match=r"user CA keys, key 2: expected a public key") as refusal:
        ssh_keys.public_keys("user CA keys", [KEY, "half-a-secret"])
    assert "half-a-secret" not in str(refusal.value)


def test_a_plans_items_are_parameters() -> None:
    items = {
        "sshd:PermitRootLogin": {"value": False},
        "sshd:DebianBanner": {"value": False, "if_known": True},
        "sshd:Group data/AllowTcpForwarding": {"value": "local", "block": "Group data"},
        "sshd_algorithm:Ciphers": ["aes256-ctr"],
        "sshd_parameter:banner": "Hello",
    }
    made = sshd_settings.SshdSettings.from_items(items, {"rollback_after_s": 60})
    assert made.wanted == sshd_settings.Parameters(
        settings={"PermitRootLogin": False},
        settings_if_known={"DebianBanner": False},
        blocks={"Group data": {"AllowTcpForwarding": "local"}},
        algorithms={"Ciphers": ["aes256-ctr"]},
        banner="Hello",
    )
    assert made.rollback_after_s == 60
    assert sshd_settings.SshdSettings.from_items({}, {"absent": True}).wanted.state == "absent"


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Ask for the options of a process 7 that the pid file names."""
    monkeypatch.setattr(sshd, "which", lambda _: "/usr/sbin/sshd")
    monkeypatch.setattr(sshd, "is_active", lambda _: False)
    monkeypatch.setattr(os.path, "realpath", str)
    (tmp_path / "7").mkdir()
    (tmp_path / "pid").write_text("7\n")

    def ask(line: str, uids: str = "0 0 0 0", program: str = "/usr/sbin/sshd") -> list[str]:
        (tmp_path / "7/cmdline").write_text(line)
        (tmp_path / "7/status").write_text("Name:\tsshd\nUid:\t" + uids.replace(" ", "\t") + "\nGid:\t0\n")
        (tmp_path / "7/exe").unlink(missing_ok=True)
        (tmp_path / "7/exe").symlink_to(program)
        return sshd.started_with({"pidfile": [str(tmp_path / "pid")]}, tmp_path)

    return ask


SSHD = "/usr/sbin/sshd"
TITLE = "sshd: /usr/sbin/sshd -D {} [listener] 0 of 10-100 startups\0\0"


def test_command_line_of_the_running_sshd_is_read(running: Callable[..., list[str]]) -> None:
    cases: dict[str, list[str]] = {
        "-D": [],
        "-D -oCiphers=aes128-cbc -o MACs=hmac-sha1": ["-oCiphers=aes128-cbc", "-oMACs=hmac-sha1"],
        "-o AllowUsers=ops~ansible": ["-oAllowUsers=ops ansible"],
        "-o Ciphers~aes256-ctr": ["-oCiphers aes256-ctr"],
        "-Dp 2222": ["-p2222"],
        "-E -opretend -4q -g 30": ["-4", "-q", "-g30"],
        "-f /etc/ssh/sshd_config -h KEY": ["-hKEY"],
    }
    found = {
        line: running("/usr/sbin/sshd\0" + line.replace(" ", "\0").replace("~", " ") + "\0") for line in cases
    }
    assert found == cases
    # As words of a title.
    assert running(TITLE.format("-p 2222 -oMACs=hmac-sha1")) == ["-p2222", "-oMACs=hmac-sha1"]
    assert running("sshd: ops [priv]\0") == []


def test_command_line_that_cannot_be_told_apart_is_refused(running: Callable[..., list[str]]) -> None:
    cases = {
        TITLE.format("-o AllowUsers=ops ansible"): "without spaces",
        TITLE.format("-o Ciphers aes256-ctr"): "without spaces",
        TITLE.format("-o MACs -hmac-md5"): "without spaces",
        "sshd: /usr/sbin/sshd -D -oMACs=hm\0": "without spaces",
        "/usr/sbin/sshd\0-D\0-Z\0": "cannot be told apart",
        TITLE.format("-f /etc/ssh/site_config -h KEY"): "does not read /etc/ssh/sshd_config",
        "/usr/sbin/sshd\0-f/etc/ssh/site_config\0": "does not read /etc/ssh/sshd_config",
    }
    for line, reason in cases.items():
        with pytest.raises(RefusedError, match=reason) as refused:
            running(line)
        assert "nothing was changed" in str(refused.value)


def test_roots_sshd_alone_speaks_for_sshd(
    running: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "/usr/sbin/sshd\0-p1\0"
    assert running(line) == running(line, program="/usr/sbin/sshd (deleted)") == ["-p1"]
    assert running(line, uids="1000 1000 1000 1000") == running(line, uids="0 1000 0 0") == []
    assert running(line, program="/usr/bin/vim") == running(line, program="/home/ops/sshd") == []
    # Without a pid file, systemd knows it.
    assert running(line) == ["-p1"]
    assert sshd.started_with({}, tmp_path) == []
    monkeypatch.setattr(sshd, "is_active", lambda unit: unit == "ssh.service")
    monkeypatch.setattr(sshd, "run", lambda _: "7\n")
    assert sshd.started_with({}, tmp_path) == ["-p1"]


@pytest.fixture
def per_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Path) -> Callable[[str, str], None]:
    """Have ssh.socket accept connections; as systemd 252 prints the unit of Debian 12, with another file."""
    monkeypatch.setattr(sshd, "is_active", lambda unit: unit == "ssh.socket")
    monkeypatch.setattr(sshd, "which", lambda _: SSHD)
    monkeypatch.setattr(os.path, "realpath", str)
    monkeypatch.setattr(sshd, "run", lambda command: "yes\n" if "--property=Accept" in command else "0\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("sl local_address rem_address st\n")

    def start(argv: str, file: str) -> None:
        (tmp_path / "default").write_text(file)
        shown = (
            f"ExecStart={{ path={argv.split()[0]} ; argv[]={argv} ; ignore_errors=yes ; start_time=[n/a] ; "
            "stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }\n"
            "Environment=SSHD_OPTS=-4 PORT=2222\n"
            f"EnvironmentFiles={tmp_path}/default (ignore_errors=yes)\n"
            f"EnvironmentFiles={tmp_path}/missing (ignore_errors=yes)\n"
        )
        monkeypatch.setattr(units, "run", lambda command: shown if "ssh@temper.service" in command else "")

    return start


UNIT = f"{SSHD} -i $SSHD_OPTS"


def test_options_of_an_sshd_that_systemd_starts_for_each_connection_are_read(
    per_connection: Callable[[str, str], None], tmp_path: Path, main: Path
) -> None:
    cases: dict[tuple[str, str], list[str]] = {
        (UNIT, "# nothing\n"): ["-4"],
        (UNIT, "SSHD_OPTS=\n"): [],
        (UNIT, "; SSHD_OPTS=-6\n SSHD_OPTS = -o MaxAuthTries=6 -q \n"): ["-oMaxAuthTries=6", "-q"],
        (UNIT, "SSHD_OPTS='-o \"AllowUsers=ops ansible\"'\n"): ["-oAllowUsers=ops ansible"],
        (UNIT, 'SSHD_OPTS="-oMACs=hmac-sha1 \\\n-oCiphers=aes128-cbc"'): [
            *("-oMACs=hmac-sha1", "-oCiphers=aes128-cbc")
        ],
        (UNIT, f"SSHD_OPTS=-f {main}"): [],
        (f"{SSHD} -i -p${{PORT}}", ""): ["-p2222"],
    }
    found = {}
    for case in cases:
        per_connection(*case)
        found[case] = sshd.started_with({}, tmp_path)
        assert sshd.other_servers(tmp_path) == []
    assert found == cases


def test_an_sshd_for_each_connection_with_a_file_of_its_own_is_refused_and_found(
    per_connection: Callable[[str, str], None], tmp_path: Path
) -> None:
    cases = {
        (UNIT, "SSHD_OPTS=-f /etc/ssh/other"): "reads '/etc/ssh/other'",
        (f"{SSHD} -i -f /etc/ssh/other", ""): "reads '/etc/ssh/other'",
        (f"{SSHD} -i -o AllowUsers=ops ansible", ""): "has options that cannot be told apart",
    }
    for case, reason in cases.items():
        per_connection(*case)
        (found,) = sshd.other_servers(tmp_path)
        assert found.startswith(f"that of ssh@.service {reason}")
        with pytest.raises(RefusedError, match="nothing was changed"):
            sshd.started_with({}, tmp_path)
    per_connection("/opt/ssh/sbin/sshd -i", "")
    assert sshd.other_servers(tmp_path) == ["that of ssh@.service is '/opt/ssh/sbin/sshd'"]


@each(
    ("-D\0-f\0/etc/ssh/other", 0, "00000000", SSHD, ["process 7 on port 2222 reads '/etc/ssh/other'"]),
    ("-D", 0, "00000000", "/opt/ssh/sbin/sshd", ["process 7 on port 2222 is '/opt/ssh/sbin/sshd'"]),
    ("-f\0/etc/other", 0, "00000000", "/usr/sbin/haproxy", []),
    ("-f{main}", 0, "00000000", f"{SSHD} (deleted)", []),
    ("-D\0-p\x002222", 0, "00000000", SSHD, []),
    ("-f\0/etc/ssh/other", 0, "0100007F", SSHD, []),
    # A user's.
    ("-f\0/etc/ssh/other", 1000, "00000000", SSHD, []),
    (
        "-o\0Banner=/etc/my banner\0-f\0/etc/ssh/other",
        *(0, "00000000", SSHD, ["process 7 on port 2222 reads '/etc/ssh/other'"]),
    ),
)
def test_an_sshd_with_a_file_of_its_own_is_found(
    words: str,
    uid: int,
    address: str,
    program: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    main: Path,
) -> None:
    line = f"/usr/sbin/sshd\0{words}\0".replace("{main}", str(main))
    server(tmp_path, monkeypatch, line, uid, address, program)
    assert sshd.other_servers(tmp_path) == expected


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the node's sshd_config somewhere."""
    path = tmp_path / "sshd_config"
    path.write_text("")
    monkeypatch.setattr(sshd, "MAIN", path)
    return path


def server(
    proc: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    uid: int = 0,
    address: str = "00000000",
    program: str = SSHD,
) -> None:
    """Have process 7 listen on port 2222."""
    monkeypatch.setattr(sshd, "is_active", lambda _: False)
    monkeypatch.setattr(sshd, "which", lambda _: SSHD)
    monkeypatch.setattr(os.path, "realpath", str)
    for folder in ("net", "7/fd"):
        (proc / folder).mkdir(parents=True)
    row = f"0: {address}:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 4711 1"
    (proc / "net/tcp").write_text(f"sl local_address rem_address st\n{row}\n")
    (proc / "7/fd/3").symlink_to("socket:[4711]")
    (proc / "7/exe").symlink_to(program)
    (proc / "7/root").symlink_to("/")
    (proc / "7/cmdline").write_text(line)


def test_a_pipe_is_no_socket_of_an_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Path) -> None:
    server(tmp_path, monkeypatch, "/usr/sbin/sshd\0-f\0/etc/ssh/other\0")
    (tmp_path / "7/fd/3").unlink()
    (tmp_path / "7/fd/3").symlink_to("pipe:[124711]")
    assert sshd.other_servers(tmp_path) == []


def test_an_sshd_whose_title_does_not_tell_its_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Path
) -> None:
    cases = {
        TITLE.format("-o Banner=/etc/my banner -f /etc/ssh/other"): True,
        TITLE.format("-o Ciphers aes256-ctr"): True,
        "sshd: sshd -f other [listener] 0 of 10-100 startups\0": True,
        # Cut off.
        "sshd: sshd -o LogLevel=INFO -f /etc/s\0": True,
        "sshd: /usr/sbin/sshd -D -f /etc/ssh/oth\0": True,
        TITLE.format(f"-p 2222 -f {main}"): False,
        "sshd: sshd -D [listener] 0 of 10-100 startups\0": False,
        # Sessions of root, who has a port forwarded to him.
        "sshd: root@pts/0\0": False,
        "sshd: root [priv]\0": False,
    }
    server(tmp_path, monkeypatch, "")
    found = {}
    for line in cases:
        (tmp_path / "7/cmdline").write_text(line)
        found[line] = sshd.other_servers(tmp_path) != []
    assert found == cases


def test_an_sshd_with_files_of_a_container_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Path
) -> None:
    server(tmp_path, monkeypatch, TITLE.format(""))
    assert sshd.other_servers(tmp_path) == []
    (tmp_path / "7/root").unlink()
    own = tmp_path / "7/root" / main.relative_to("/")
    (tmp_path / "7/root").mkdir()
    assert "container" in " ".join(sshd.other_servers(tmp_path))
    # It has the node's file, and not what that includes.
    own.parent.mkdir(parents=True)
    own.hardlink_to(main)
    assert "container" in " ".join(sshd.other_servers(tmp_path))
    # It has ended.
    (tmp_path / "7/exe").unlink()
    assert sshd.other_servers(tmp_path) == []


def test_a_search_for_sshds_that_ends_early_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Path
) -> None:
    server(tmp_path, monkeypatch, TITLE.format(""))
    monkeypatch.setattr(listeners, "NAMES_TIMEOUT_S", -1.0)
    condition = node_conditions.ssh_servers(lambda: sshd.other_servers(tmp_path))
    assert (condition["state"], "in -1 s" in condition["reason"]) == ("not-checked", True)
    # Open files of other programs are not read.
    (tmp_path / "7/exe").unlink()
    (tmp_path / "7/exe").symlink_to("/usr/bin/python3")
    assert sshd.other_servers(tmp_path) == []
    (tmp_path / "7/exe").unlink()
    (tmp_path / "7/exe").symlink_to(SSHD)
    # Nothing listens.
    (tmp_path / "net/tcp").write_text("sl local_address rem_address st\n")
    assert sshd.other_servers(tmp_path) == []


def test_options_are_named_by_their_keywords() -> None:
    options = ["-p2222", "-oCiphers aes256-ctr", "-oMACs=hmac-sha1", "-g30"]
    for keyword in ("Port", "Ciphers", "MACs", "LoginGraceTime"):
        assert "command line" in sshd_settings.where(keyword, [], options)
    assert sshd_settings.where("Banner", [], options) == "no line of a file"


@pytest.mark.component
def test_sshd_without_include_is_refused_where_a_drop_in_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenSSH 8.0 answers (recorded of a build of its own release)."""
    program = tmp_path / "sshd"
    refusal = 'echo "$3: line 1: Bad configuration option: Include" >&2; exit 255'
    program.write_text(
        f'#!/bin/sh\ngrep -qs ^Include "$3" && {{ {refusal}; }}\nprintf "port 22\\nhostkey k\\n"\n'
    )
    client = tmp_path / "ssh"
    client.write_text('#!/bin/sh\necho "Unsupported query \\"$2\\"" >&2; exit 255\n')
    for one in (program, client):
        one.chmod(0o755)
    monkeypatch.setattr(process, "search_path", lambda: f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "main").write_text("Port 22\n")
    monkeypatch.setattr(sshd, "MAIN", tmp_path / "main")
    monkeypatch.setattr(sshd, "DROP_IN", tmp_path / "sshd_config.d/00-temper.conf")
    asked = sshd.Sshd(str(program), None, tmp_path)
    # Nothing is in the way of taking a role back that never was there.
    assert asked.whole(None) == {"port": ["22"], "hostkey": ["k"]}
    with pytest.raises(RefusedError, match="ssh_hardening_state: absent"):
        asked.whole("Port 222\n")
    wanted = sshd_settings.Parameters(algorithms={"Ciphers": ["aes256-ctr"]})
    with pytest.raises(RefusedError, match="ssh_hardening_state: absent"):
        sshd_settings.plan(wanted, asked, asked.whole(None))


#: SELinux's commands: sshd has 22, 2200 to 2210, and 222 by a change of the node's own.
SELINUX = {
    "getenforce": "cat mode",
    "semanage": """case "$*" in
        *-C*) echo "ssh_port_t  tcp  222";;
        *) printf '%s\\n' "http_port_t  tcp  80, 443" "ssh_port_t  tcp  222, 22, 2200-2210" \\
            "unreserved_port_t  tcp  61001-65535, 1024-32767" "dns_port_t  udp  53";;
    esac""",
}


@pytest.mark.component
def test_undo_changes_a_label_where_that_is_still_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        """case "$*" in *-l*) cat labels;; *-[ad]*2222) : >asked; exit "$(cat refuses)";; *) exit 1;; esac"""
    )
    executable(tmp_path / "semanage", text)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def undo(option: str, labels: str | None, refuses: int = 0) -> tuple[bool, bool]:
        """Return whether the step succeeds, and whether it asks for the change."""
        for name, content in (("labels", labels), ("refuses", str(refuses)), ("asked", None)):
            (tmp_path / name).unlink(missing_ok=True)
            if content is not None:
                (tmp_path / name).write_text(content)
        step = f"{{ {selinux_ports.in_shell(option, '2222')}; }} || exit 1"
        done = subprocess.run(["sh", "-c", step], cwd=tmp_path, check=False, capture_output=True)
        return done.returncode == 0, (tmp_path / "asked").exists()

    there = ("ssh_port_t                     tcp      222, 2222, 22222\n", "ssh_port_t tcp 2222\n")
    gone = ("", "ssh_port_t tcp 222, 22222\n", "ssh_port_t tcp 2200-2222\n", "http_port_t tcp 2222\n")
    for labels in (*there, *gone):
        assert undo("-d", labels) == (True, labels in there), labels
        assert undo("-a", labels) == (True, labels in gone), labels
    assert undo("-d", there[0], refuses=1) == undo("-a", "", refuses=1) == (False, True)
    assert undo("-d", None) == undo("-a", None) == (False, False)  # semanage itself fails


@pytest.mark.component
@each(
    ("Disabled", ["443"], []),
    ("Enforcing", ["22"], []),
    ("Enforcing", ["22", "222", "2205"], []),
    ("Permissive", ["2222", "53"], ["2222", "53"]),
    ("Enforcing", ["443"], "another service: 443 (http_port_t)"),
    ("no semanage", ["2222"], "policycoreutils-python-utils"),
)
def test_selinux_lets_sshd_listen_where_the_port_has_its_label(
    mode: str, ports: list[str], found: list[str] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in SELINUX.items():
        if (name, mode) != ("semanage", "no semanage"):
            executable(tmp_path / name, text)
    (tmp_path / "mode").write_text(mode)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(process, "SYSTEM_PATH", "")
    if isinstance(found, list):
        assert selinux_ports.unlabelled(ports) == found
        assert selinux_ports.added() == ([] if mode == "Disabled" else ["222"])
    else:
        with pytest.raises(RefusedError, match=re.escape(found)):
            selinux_ports.unlabelled(ports)


@pytest.mark.component
def test_the_labels_that_we_gave_are_taken_away_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "getenforce": "echo Enforcing",
        "semanage": """case $2 in
            -l) sed 's/^/ssh_port_t  tcp  /' local;;
            -a) echo "$7" >>local;;
            -d) grep -qx "$7" local && sed -i "/^$7$/d" local;;
        esac""",
    }
    for name, text in programs.items():
        executable(tmp_path / name, text)
    local = tmp_path / "local"
    local.write_text("222\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(process, "SYSTEM_PATH", "")
    monkeypatch.setattr(selinux_ports, "NOTE", tmp_path / "note.json")
    selinux_ports.give(["2222"])
    selinux_ports.give(["2223"])
    assert (selinux_ports.noted(), local.read_text().split()) == (["2222", "2223"], ["222", "2222", "2223"])
    local.write_text("222\n2223\n")  # somebody has taken one away
    selinux_ports.take(selinux_ports.noted())
    assert local.read_text().split() == ["222"]
