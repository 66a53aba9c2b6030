"""A site that has settings of sshd already: none becomes weaker, for anybody, and nobody is locked out."""

import json
import subprocess
from typing import Any

import pytest
from ansible.module_utils.temper.access import sshd_matches, sshd_settings
from ansible.module_utils.temper.access.ssh_access import Account
from ansible.module_utils.temper.access.sshd import Sshd
from ansible.module_utils.temper.access.sshd_matches import Block, Connection, Who
from ansible.module_utils.temper.access.sshd_strictness import as_strict, further_factors, stricter, ways_in
from ansible.module_utils.temper.settings.base import RefusedError

from temper.compliance.repairs import command_of
from tests.unit.harden.real_sshd import ACCOUNTS, LOGIN, SiteFiles

pytestmark = pytest.mark.component

MFA = """KbdInteractiveAuthentication yes
AuthenticationMethods publickey,keyboard-interactive:pam
Match User ops
    AuthenticationMethods publickey
"""
BY_PASSWORD = """    AuthenticationMethods password publickey
    PasswordAuthentication yes
    AllowTcpForwarding yes
"""
SETTINGS = {
    "PermitRootLogin": False,
    "PubkeyAuthentication": True,
    "AuthenticationMethods": "publickey",
    "PasswordAuthentication": False,
    "KbdInteractiveAuthentication": False,
    "PermitEmptyPasswords": False,
    "MaxAuthTries": 4,
    "MaxSessions": 10,
    "MaxStartups": "30:30:100",
    "LoginGraceTime": 30,
    "ClientAliveInterval": 300,
    "ClientAliveCountMax": 2,
    "AllowTcpForwarding": "no",
    "X11Forwarding": False,
    "LogLevel": "VERBOSE",
}
CIPHERS = ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr"]


def parameters(more: dict[str, Any] | None = None, **others: Any) -> sshd_settings.Parameters:
    return sshd_settings.Parameters(
        settings=SETTINGS | (more or {}), algorithms={"Ciphers": CIPHERS}, **others
    )


KEYWORDS = [
    # keyword, wanted, stricter, weaker, in no order with it
    ("MaxAuthTries", "4", "2", "6", ""),
    ("MaxSessions", "10", "0", "20", ""),
    ("LoginGraceTime", "30", "15", "0", ""),
    ("ClientAliveInterval", "300", "60", "0", ""),
    ("ClientAliveCountMax", "2", "1", "0", ""),
    ("RequiredRSASize", "2048", "3072", "1024", ""),
    ("MaxStartups", "30:30:100", "10:30:60", "30:30:200", "10:10:60"),
    ("AuthenticationMethods", "publickey", "publickey,keyboard-interactive:pam", "any", "password"),
    (
        "AuthenticationMethods",
        "publickey",
        "publickey,password publickey,hostbased",
        "publickey password",
        "",
    ),
    ("PasswordAuthentication", "yes", "no", "", ""),
    ("KbdInteractiveAuthentication", "no", "", "yes", ""),
    ("PermitEmptyPasswords", "no", "", "yes", ""),
    ("HostbasedAuthentication", "no", "", "yes", ""),
    ("IgnoreRhosts", "shosts-only", "yes", "no", ""),
    ("IgnoreUserKnownHosts", "yes", "", "no", ""),
    ("StrictModes", "yes", "", "no", ""),
    ("PermitRootLogin", "without-password", "forced-commands-only", "yes", ""),
    ("AllowTcpForwarding", "local", "no", "yes", "remote"),
    ("AllowStreamLocalForwarding", "local", "no", "yes", "remote"),
    ("AllowAgentForwarding", "no", "", "yes", ""),
    ("X11Forwarding", "no", "", "yes", ""),
    ("PermitTunnel", "point-to-point", "no", "yes", "ethernet"),
    ("GatewayPorts", "clientspecified", "no", "yes", ""),
    ("Ciphers", "a,b,c", "c,a", "a,b,c,d", "a,x"),
    ("KexAlgorithms", "a,b", "b", "a,b,c", "c"),
    ("MACs", "a,b", "b", "a,b,c", "c"),
    ("Compression", "no", "", "delayed", ""),
    ("DebianBanner", "no", "", "yes", ""),
    ("GSSAPIAuthentication", "no", "", "yes", ""),
    ("KerberosAuthentication", "no", "", "yes", ""),
    (
        "PerSourcePenalties",
        "authfail:5 min:15 overflow:permissive",
        "authfail:60 min:5 overflow:deny-all",
        "no",
        "",
    ),
    ("PerSourcePenalties", "authfail:5.0 min:15.0", "authfail:5.0 min:1.5", "", "authfail:60.0 min:30.0"),
    (
        "PerSourcePenaltyExemptList",
        "10.0.0.0/8,192.0.2.0/24",
        "none",
        "0.0.0.0/1,10.0.0.0/8,192.0.2.0/24",
        "::/1",
    ),
    ("LogLevel", "VERBOSE", "", "", "DEBUG"),
    ("UsePAM", "yes", "", "", "no"),
    ("LoginGraceTime", "30", "", "", "none"),
]


@pytest.mark.parametrize(("keyword", "wanted", "more", "less", "foreign"), KEYWORDS)
def test_each_keyword_says_which_value_is_stricter(
    keyword: str, wanted: str, more: str, less: str, foreign: str
) -> None:
    assert as_strict(keyword, [wanted], [wanted])
    assert not stricter(keyword, [wanted], [wanted])
    if more:
        assert stricter(keyword, [more], [wanted])
        assert not as_strict(keyword, [wanted], [more])
    if less:
        assert not as_strict(keyword, [less], [wanted])
    if foreign:
        assert not as_strict(keyword, [foreign], [wanted])
        assert not as_strict(keyword, [wanted], [foreign])


def test_way_in_needs_all_methods_of_a_list_switched_on() -> None:
    effective = {
        "authenticationmethods": ["publickey,keyboard-interactive:pam publickey,password"],
        "pubkeyauthentication": ["yes"],
        "passwordauthentication": ["yes"],
        "kbdinteractiveauthentication": ["no"],
    }
    assert ways_in(effective) == [("publickey", "password")]


def test_further_factor_beside_a_key_needs_its_keyword() -> None:
    assert further_factors("publickey,keyboard-interactive:pam password") == ["kbdinteractiveauthentication"]


@pytest.mark.parametrize(
    ("criteria", "meets"),
    [
        ("User alice,bob", True),
        ("user=al*", True),
        ("User *,!alice", False),
        ("User bob", False),
        ("Group data", True),
        ("Group *,!data", False),
        ("Group ops", False),
        ("User alice Address 198.51.100.0/24,!198.51.100.7", False),
        ("Address 198.51.*", True),
        ("Address 2001:db8::/32", False),
        ("LocalPort 22 LocalAddress 192.0.2.0/24", True),
        ("all", True),
        ("invalid-user", False),
        ("RDomain management", False),
    ],
)
def test_match_line_meets_whom_it_names(criteria: str, meets: bool) -> None:
    who, connection = Who("alice", frozenset({"alice", "data"})), Connection("198.51.100.7")
    block = Block("sshd_config:1", criteria)
    found = sshd_matches.meets_account(block, who) and sshd_matches.meets_connection(block, connection)
    assert found is meets


STRICTER = {
    "MaxAuthTries": "2",
    "LoginGraceTime": "15",
    "MaxSessions": "4",
    "ClientAliveInterval": "60",
    "MaxStartups": "10:30:60",
    "Ciphers": "aes256-gcm@openssh.com",
}


def test_stricter_settings_of_the_site_stay_and_are_named(site: SiteFiles) -> None:
    site.says("".join(f"{keyword} {value}\n" for keyword, value in STRICTER.items()))
    plan = site.applied(parameters())
    effective = site.effective("alice")
    assert {keyword: effective[keyword.lower()] for keyword in STRICTER} == {
        keyword: [value] for keyword, value in STRICTER.items()
    }
    assert {sentence.split()[0] for sentence in plan.kept} == STRICTER.keys()
    assert effective["permitrootlogin"] == ["no"]


def test_second_run_and_one_after_the_site_took_its_settings_out_say_what_holds(site: SiteFiles) -> None:
    site.says("MaxAuthTries 2\n")
    first = site.applied(parameters())
    assert site.plan(parameters()).files == first.files
    site.says("")
    assert site.effective("alice")["maxauthtries"] == ["2"]
    assert site.applied(parameters()).kept == []
    assert site.effective("alice")["maxauthtries"] == ["4"]


def test_bare_site_gets_what_the_role_asks_for(site: SiteFiles) -> None:
    assert site.applied(parameters()).kept == []
    assert site.effective("alice")["maxstartups"] == ["30:30:100"]


def test_weaker_settings_of_the_site_are_replaced(site: SiteFiles) -> None:
    site.says("MaxAuthTries 6\nLoginGraceTime 0\nPasswordAuthentication yes\nPermitRootLogin yes\n")
    assert site.applied(parameters()).kept == []
    effective = site.effective("root")
    assert effective["maxauthtries"] == ["4"]
    assert effective["logingracetime"] == ["30"]
    assert effective["permitrootlogin"] == ["no"]


def test_operator_may_decide_for_less_than_the_site_has(site: SiteFiles) -> None:
    site.says("MaxAuthTries 2\n")
    assert site.applied(parameters(overrides={"MaxAuthTries": 5})).kept == []
    assert site.effective("alice")["maxauthtries"] == ["5"]


def test_algorithms_are_those_that_site_and_role_offer(site: SiteFiles) -> None:
    site.says("Ciphers chacha20-poly1305@openssh.com,aes256-ctr,aes128-gcm@openssh.com\n")
    site.applied(parameters())
    assert site.effective("alice")["ciphers"] == ["aes128-gcm@openssh.com,aes256-ctr"]


def test_penalties_are_the_longer_ones_of_site_and_role(site: SiteFiles) -> None:
    wanted = {"PerSourcePenalties": True, "PerSourcePenaltyExemptList": "10.0.0.0/8"}
    if site.plan(parameters(settings_if_known=wanted)).unknown:
        pytest.skip("this OpenSSH has none")
    site.says("PerSourcePenalties authfail:1h crash:10\nPerSourcePenaltyExemptList none\n")
    kept = site.applied(parameters(settings_if_known=wanted)).kept
    penalties = site.effective("alice")["persourcepenalties"][0]
    assert float(penalties.split("authfail:")[1].split()[0]) == 3600
    assert float(penalties.split("crash:")[1].split()[0]) == 90
    assert site.effective("alice")["persourcepenaltyexemptlist"] == ["none"]
    assert [sentence.split()[0] for sentence in kept] == [*wanted]


def test_what_an_openssh_lacks_is_left_out_and_named_also_without_its_client(
    site: SiteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is on each release of Debian, asked of sshd itself. 10.6 of testing is built without GSSAPI."""
    optional = {"GSSAPIAuthentication": False, "RequiredRSASize": 2048, "PerSourcePenalties": True}
    kex = ["mlkem768x25519-sha256", "sntrup761x25519-sha512@openssh.com", "curve25519-sha256"]
    wanted = sshd_settings.Parameters(settings_if_known=optional, algorithms={"KexAlgorithms": kex})
    monkeypatch.setattr(sshd_settings, "which", lambda name: None if name == "ssh" else name)
    lacks = {
        "bookworm": ["PerSourcePenalties", "mlkem768x25519-sha256"],
        "trixie": [],
        "testing": ["GSSAPIAuthentication"],
    }
    if site.release in lacks:
        planned = site.applied(wanted)
        assert planned.unknown == lacks[site.release]
        (offered,) = site.effective("alice")["kexalgorithms"]
        assert offered.split(",") == [name for name in kex if name not in planned.unknown]
        complaints = site.sshd().unknown(site.drop_in.read_text(), [str(site.folder / "host_key")])
        assert complaints == set()


def test_second_factor_stays_for_those_who_had_it(site: SiteFiles) -> None:
    site.says(MFA)
    before = {account: ways_in(site.effective(account)) for account in ("ops", "alice")}
    site.applied(parameters())
    assert {account: ways_in(site.effective(account)) for account in before} == before
    assert before["alice"] == [("publickey", "keyboard-interactive")]
    assert site.effective("alice")["passwordauthentication"] == ["no"]


def test_site_that_takes_its_second_factor_out_does_not_lock_its_automation_out(site: SiteFiles) -> None:
    site.says(MFA)
    site.applied(parameters())
    site.says("KbdInteractiveAuthentication no\n")
    assert ways_in(site.effective("ops")) == [("publickey",)]
    site.applied(parameters())
    assert site.effective("ops")["authenticationmethods"] == ["publickey"]


def test_second_factor_of_a_group_stays_possible_and_others_need_their_key(site: SiteFiles) -> None:
    site.says(
        "KbdInteractiveAuthentication yes\n"
        "Match Group data\n    AuthenticationMethods publickey,keyboard-interactive\n"
    )
    site.applied(parameters())
    assert ways_in(site.effective("alice")) == [("publickey", "keyboard-interactive")]
    assert ways_in(site.effective("legacyftp")) == [("publickey",)]


def test_second_factor_that_the_operator_switches_off_would_lock_out(site: SiteFiles) -> None:
    site.says(MFA)
    with pytest.raises(RefusedError, match=r"cannot be satisfied.*kept.*ssh_hardening_extra_options"):
        site.plan(parameters(overrides={"KbdInteractiveAuthentication": False}))


def test_two_factors_without_a_key_are_not_replaced_by_one(site: SiteFiles) -> None:
    site.says("AuthenticationMethods password,keyboard-interactive\nKbdInteractiveAuthentication yes\n")
    with pytest.raises(RefusedError, match=r"40-site\.conf:1.*ssh_hardening_extra_options"):
        site.plan(parameters())
    site.applied(parameters(overrides={"AuthenticationMethods": "publickey"}))
    assert ways_in(site.effective("alice")) == [("publickey",)]


def test_keys_that_the_site_revoked_stay_revoked(site: SiteFiles) -> None:
    revoked = site.folder / "revoked"
    revoked.touch()
    site.says(f"RevokedKeys {revoked}\n")
    assert site.applied(parameters()).kept == []
    assert site.effective("alice")["revokedkeys"] == [str(revoked)]
    with pytest.raises(RefusedError, match=r"40-site\.conf:1.*ssh_hardening_revoked_keys"):
        site.plan(parameters({"RevokedKeys": "/etc/ssh/temper_revoked_keys"}))


@pytest.mark.parametrize(
    ("criteria", "named"),
    [
        ("Group sftponly", "legacyftp"),
        ("User legacyftp,alice", "alice"),
        ("User deploy-*", "deploy-x"),
        ("User newcomer", "newcomer"),
        ("Group nobodys", "whom it meets"),
        ("Address 10.1.0.0/16", "from 10.1.0.1"),
        ("Address *,!198.51.100.0/24", "from "),
        ("User alice Address 10.1.*", "alice from 10.1.1.1"),
        ("LocalPort 2222", "by password"),
    ],
)
def test_block_that_lets_somebody_in_by_password_is_refused(
    site: SiteFiles, criteria: str, named: str
) -> None:
    site.main.write_text(f"{site.head}Match {criteria}\n{BY_PASSWORD}")
    with pytest.raises(RefusedError) as refused:
        site.plan(parameters())
    words = str(refused.value)
    assert f"{site.main}:4 (Match {criteria})" in words
    assert named in words
    assert f"ssh_hardening_accepted_matches: {json.dumps([criteria])}" in words
    assert site.plan(parameters(accepted_matches=[criteria]))


@pytest.mark.parametrize(
    "line",
    [
        "AllowTcpForwarding local",
        "X11Forwarding yes",
        "PermitEmptyPasswords yes",
        "AuthenticationMethods keyboard-interactive\n    KbdInteractiveAuthentication yes",
    ],
)
def test_block_that_leaves_more_than_the_role_allows_is_refused(site: SiteFiles, line: str) -> None:
    site.says(f"Match User alice\n    {line}\n")
    with pytest.raises(RefusedError, match=r"40-site\.conf:2 \(Match User alice\)"):
        site.plan(parameters())


def test_block_that_lets_root_in_from_an_address_is_refused(site: SiteFiles) -> None:
    site.says("Match Address 10.0.0.5\n    PermitRootLogin prohibit-password\n")
    # Before OpenSSH 10.6 sshd calls it without-password.
    with pytest.raises(RefusedError, match=r"root from 10\.0\.0\.5 PermitRootLogin \w+-password"):
        site.plan(parameters())


@pytest.mark.parametrize(
    "text",
    [
        "Match User alice\n    PasswordAuthentication yes\n",  # AuthenticationMethods demands the key
        "Match Group sftponly\n    ForceCommand internal-sftp\n    MaxSessions 2\n",
        "Match User alice\n    AllowTcpForwarding yes\n    DisableForwarding yes\n",
        "Match User ops\n    MaxAuthTries 3\n",
        "Match all\n",
    ],
)
def test_block_that_opens_nothing_is_taken(site: SiteFiles, text: str) -> None:
    site.says(text)
    assert site.plan(parameters())


def test_two_blocks_that_only_together_let_somebody_in_are_refused(site: SiteFiles) -> None:
    site.says(
        "Match Group sftponly\n    PasswordAuthentication yes\n"
        "Match User legacyftp,alice\n    AuthenticationMethods password publickey\n"
    )
    with pytest.raises(RefusedError, match="lets legacyftp in by password") as refused:
        site.plan(parameters())
    assert "lets alice in" not in str(refused.value)


def test_block_in_a_file_that_a_block_includes_is_found(site: SiteFiles) -> None:
    (site.folder / "inner").write_text(f"Match User alice\n{BY_PASSWORD}")
    site.main.write_text(f"{site.head}Match Address 10.0.0.0/8\n    Include {site.folder}/inner\n")
    with pytest.raises(RefusedError, match=r"inner:2 \(Match User alice\) lets alice from 10\.0\.0\.1 in"):
        site.plan(parameters())


def test_account_that_could_only_log_in_by_what_goes_is_not_locked_out_silently(site: SiteFiles) -> None:
    site.says("Match User alice\n    AuthenticationMethods password\n")
    with pytest.raises(RefusedError, match=r"lock alice out \(.*40-site\.conf:1\)"):
        site.plan(parameters())


def test_forwarding_of_the_roles_own_groups_is_no_weaker_way(site: SiteFiles) -> None:
    site.says("Match User ops\n    X11Forwarding no\n    AllowTcpForwarding no\n")
    blocks = {"Group data": {"AllowTcpForwarding": "local"}}
    site.applied(parameters(blocks=blocks))
    assert site.effective("alice")["allowtcpforwarding"] == ["local"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The logins that sshd is asked for; None is the one that drives us."""
    found: list[str | None] = []
    whole = Sshd.whole

    def noted(self: Sshd, text: str | None, who: str | None = None) -> Any:
        found.append(who)
        return whole(self, text, who)

    monkeypatch.setattr(Sshd, "whole", noted)
    return found


def test_sshd_is_asked_for_a_bounded_number_of_logins(
    site: SiteFiles, asked: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.says("".join(f"Match User user{number}\n    X11Forwarding no\n" for number in range(80)))
    monkeypatch.setattr(sshd_settings, "MOST_LOGINS", 3)
    plan = site.plan(parameters())
    assert len([who for who in asked if who and who.startswith("user=")]) == 3
    assert plan.unasked == 80 - 3


@pytest.mark.parametrize("text", ["", "MaxAuthTries 2\n"])
def test_site_without_blocks_costs_no_further_question(
    site: SiteFiles, asked: list[str | None], text: str
) -> None:
    site.says(text)
    site.plan(parameters())
    assert asked == [None, None]


def test_blocks_about_something_else_are_not_asked_for(site: SiteFiles, asked: list[str | None]) -> None:
    site.says("Match Group sftponly\n    ForceCommand internal-sftp\n    MaxAuthTries 6\n")
    site.plan(parameters())
    assert asked == [None, sshd_matches.NO_LOGIN, None]


@pytest.mark.parametrize(
    ("site_says", "wanted", "named"),
    [
        ("", {"AllowUsers": "ops"}, ["alice"]),
        ("DenyUsers alice\n", {"AllowUsers": "ops"}, []),
        ("", {"AllowUsers": ["ops", "alice"]}, []),
        ("PasswordAuthentication yes\n", {}, ["legacyftp"]),
        ("PasswordAuthentication yes\nDenyUsers legacyftp\n", {}, []),
        ("PasswordAuthentication yes\nAuthenticationMethods publickey\n", {}, []),
    ],
    ids=["new", "kept-out-before", "let-in", "password", "password-denied", "key-demanded"],
)
def test_others_who_are_kept_out_from_now_on_are_named(
    site: SiteFiles,
    monkeypatch: pytest.MonkeyPatch,
    site_says: str,
    wanted: dict[str, Any],
    named: list[str],
) -> None:
    """Of all others, alice and root have keys, and legacyftp a password; root never gets in."""

    def account(name: str, *_: Any) -> Account:
        has_key = name in ("alice", "root")
        return Account(
            name,
            int(name != "root"),
            (name,),
            False,
            False,
            False,
            has_key=has_key,
            has_password=name == "legacyftp",
        )

    monkeypatch.setattr(sshd_settings, "read_account", account)
    # The first value counts.
    site.says(f"{site_says}PermitRootLogin no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n")
    plan = site.plan(parameters(wanted))
    found = sshd_settings.locked_out(site.sshd(), plan, LOGIN)
    assert [name for name in ACCOUNTS if any(f"account {name}" in why for why in found)] == named
    assert len(found) == len(named)


@pytest.mark.parametrize(
    ("name", "said", "keywords"),
    [
        ("00-a.conf", "PermitRootLogin yes\n", ["permitrootlogin"]),
        (
            "00-a.conf",
            "# a\n  x11forwarding = yes\n\nPermitRootLogin yes\n",
            ["permitrootlogin", "x11forwarding"],
        ),
        # As it was called before.
        ("00-a.conf", "ChallengeResponseAuthentication yes\n", ["kbdinteractiveauthentication"]),
        ("00-a.conf", "PermitRootLogin yes\nMatch User alice\n    X11Forwarding yes\n", ["permitrootlogin"]),
    ],
)
def test_the_command_that_is_printed_takes_away_what_wins_over_ours(
    site: SiteFiles, name: str, said: str, keywords: list[str]
) -> None:
    site.applied(parameters())
    site.says(said, name)
    with pytest.raises(RefusedError, match=f"{name}:[0-9]") as refused:
        site.plan(parameters(accepted_matches=("User alice",)))
    comments = [words for words in refused.value.repair if words[0] == "comment-out-sshd"]
    assert sorted(words[2].split("|")[0] for words in comments) == keywords
    for words in comments:
        # The table of repairs knows the folder of a node alone.
        command = command_of([*words[:3], f"/etc/ssh/sshd_config.d/{name}"])
        assert command
        subprocess.run(
            ["sh", "-c", command.replace("/etc/ssh/sshd_config.d", str(site.drop_ins))], check=True
        )
    site.plan(parameters(accepted_matches=("User alice",)))
    assert site.effective("alice")["permitrootlogin"] == ["no"]
    kept = (site.drop_ins / name).read_text()
    assert kept.replace("# ", "").split() == said.replace("# ", "").split()


@pytest.mark.parametrize("name", ["00-site.conf", "90-site.conf"])
@pytest.mark.parametrize(("said", "keyword"), [("Port 2222\n", "Port"), ("AllowUsers alice\n", "AllowUsers")])
def test_a_line_that_somebody_may_get_in_by_is_left_to_a_person(
    site: SiteFiles, name: str, said: str, keyword: str
) -> None:
    wanted = parameters({"Port": 22, "AllowUsers": ["bob"]})
    site.applied(wanted)
    site.says(said, name)
    with pytest.raises(RefusedError, match=keyword) as refused:
        site.plan(wanted)
    assert refused.value.repair == []


@pytest.mark.component
def test_command_line_of_sshd_wins_over_our_file_and_is_refused_where_it_is_weaker(site: SiteFiles) -> None:
    wanted = sshd_settings.Parameters(algorithms={"Ciphers": ["aes256-ctr", "aes128-ctr"]})
    asked = site.sshd()
    asked.started_with = ["-oCiphers=aes128-ctr,aes128-cbc"]
    with pytest.raises(RefusedError, match=r"Ciphers is aes128-ctr,aes128-cbc.*\(sshd's command line"):
        sshd_settings.plan(wanted, asked, asked.whole(None))
    asked.started_with = ["-oCiphers=aes128-ctr"]
    assert sshd_settings.plan(wanted, asked, asked.whole(None)).effective["ciphers"] == ["aes128-ctr"]
