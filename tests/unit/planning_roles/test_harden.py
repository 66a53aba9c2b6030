"""What admin_accounts, firewall, ssh_hardening and os_hardening set."""

import json
from typing import Any

from temper.plan.node_plan import NodePlan, PlannedSetting
from temper.plan.os_controls import STRICTEST, concerns, lacking, settings_of
from temper.plan.role_variables import content_problems
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_nodes import system
from tests.unit.planning_roles.plans import (
    CONTROLS,
    bookworm,
    enterprise,
    planned,
    setting,
    wanted,
    whole_plan,
)

REVOKED = {"keys": [], "sudo": True, "groups": [], "state": "absent"}


def test_an_administrator_is_an_account() -> None:
    found = planned("admin_accounts", admin_accounts_users=[{"name": "ada", "state": "absent"}])
    assert wanted(found, Kind.ACCOUNT) == {"ada": REVOKED}


@each(
    (None, ["192.0.2.7", "192.0.2.8"], ["gpu9"]),
    ([], [], []),
    (["192.0.2.0/24"], ["192.0.2.0/24"], []),
)
def test_the_firewall_is_open_to_the_fleet_unless_the_inventory_names_peers(
    given: list[str] | None, peers: list[str], unknown: list[str]
) -> None:
    """An empty list says that nobody is a peer; who names peers needs no address of each node."""
    rules = wanted(planned("firewall", firewall_peer_addresses=given), Kind.FIREWALL)
    assert (rules["peers"], rules["unknown_peers"]) == (peers, unknown)


def test_the_firewall_has_the_operators_rules_and_its_package() -> None:
    rule = {"name": "metrics", "ports": ["9100"], "sources": ["192.0.2.9"], "protocol": "udp"}
    found = planned(
        "firewall",
        firewall_rules=[rule],
        firewall_services={"node_exporter": ["192.0.2.9"]},
        ssh_hardening_ports=[2222],
        firewall_rollback_after_s=60,
    )
    assert wanted(found, Kind.PACKAGE) == {"nftables": {"version": "", "held": False}}
    rules = wanted(found, Kind.FIREWALL)
    assert (rules["rules"], rules["ssh_ports"]) == ([rule], [2222])
    assert rules["services"] == {"node_exporter": ["192.0.2.9"]}
    assert (rules["peers"], rules["unknown_peers"]) == (["192.0.2.7", "192.0.2.8"], ["gpu9"])
    assert found.options.rollback_after_s == 60


def keywords(**given: Any) -> dict[str, Any]:
    return {key: item["value"] for key, item in wanted(planned("ssh_hardening", **given), Kind.SSHD).items()}


def test_sshd_takes_keys_alone_and_closes_what_nobody_asked_for() -> None:
    found = keywords()
    assert (
        found.items()
        >= {
            "PermitRootLogin": False,
            "PasswordAuthentication": False,
            "AuthenticationMethods": "publickey",
            "AllowTcpForwarding": "no",
            "MaxStartups": "30:30:100",
        }.items()
    )
    assert not found.keys() & {"Port", "AllowUsers", "AllowGroups"}
    given = {"ports": [22, 2222], "allow_groups": ["ops"], "max_auth_tries": 6}
    found = keywords(**{f"ssh_hardening_{name}": value for name, value in given.items()})
    assert (found["Port"], found["AllowGroups"], found["MaxAuthTries"]) == ([22, 2222], ["ops"], 6)


def test_keywords_that_some_releases_lack_are_optional() -> None:
    items = wanted(planned("ssh_hardening"), Kind.SSHD)
    assert {key for key, item in items.items() if item["if_known"]} == {
        "RequiredRSASize",
        "DebianBanner",
        "GSSAPIAuthentication",
        "KerberosAuthentication",
        "PerSourcePenalties",
        "PerSourcePenaltyExemptList",
    }


@each(
    (["0.0.0.0/0", "::/0"], "none"),
    (["198.51.100.0/24", "192.0.2.0/24", "::/0"], "192.0.2.0/24,198.51.100.0/24"),
)
def test_nobody_is_exempt_from_penalties_where_everybody_would_be(networks: list[str], exempt: str) -> None:
    assert keywords(firewall_management_networks=networks)["PerSourcePenaltyExemptList"] == exempt


def test_groups_that_may_forward_have_a_block() -> None:
    items = wanted(planned("ssh_hardening", ssh_hardening_forwarding_groups=["data", "ml"]), Kind.SSHD)
    block = "Group data,ml"
    assert items[f"{block}/AllowTcpForwarding"] == {"value": "local", "if_known": False, "block": block}
    assert items["AllowTcpForwarding"]["value"] == "no"


def test_algorithms_and_files_of_sshd_are_the_operators() -> None:
    found = planned(
        "ssh_hardening",
        ssh_hardening_banner="Keep out.",
        ssh_hardening_extra_options={"UseDNS": True},
        ssh_hardening_accepted_matches=["Group sftponly"],
    )
    algorithms = wanted(found, Kind.SSHD_ALGORITHM)
    assert algorithms.keys() == {"KexAlgorithms", "Ciphers", "MACs"}
    assert algorithms["Ciphers"][0] == "aes256-gcm@openssh.com"
    assert wanted(found, Kind.SSHD_PARAMETER) == {
        "host_key_types": ["ed25519", "rsa"],
        "minimum_modulus_bits": 3072,
        "banner": "Keep out.",
        "user_ca_keys": [],
        "revoked_keys": [],
        "overrides": {"UseDNS": True},
        "accepted_matches": ["Group sftponly"],
        "forwarding_decided": False,
    }


def test_what_sshd_relaxes_says_why() -> None:
    found = planned("ssh_hardening")
    startups = setting(found, "MaxStartups")
    assert startups.controls == ("sshd-max-startups",)
    assert "MaxStartups is 30:30:100" in (startups.waiver or "")
    assert setting(found, "banner").waiver
    assert setting(planned("ssh_hardening", ssh_hardening_banner="Keep out."), "banner").waiver is None
    groups = setting(planned("ssh_hardening", ssh_hardening_allow_groups=["ops"]), "AllowGroups")
    assert (groups.controls, groups.waiver) == (("sshd-access",), None)


def test_the_controls_are_made_as_a_whole_but_for_what_the_operator_waives() -> None:
    found = planned("os_hardening", os_hardening_busy_ok=True)
    assert (found.options.atomic, found.options.busy_ok) == (True, True)
    assert wanted(found, Kind.SYSCTL)["kernel.randomize_va_space"] == "2"
    assert wanted(found, Kind.PACKAGE_CHOICE)["chrony"]["any"][0] == "chrony"
    assert "/etc/temper/os_hardening_waivers.txt" in wanted(found, Kind.FILE)
    waived = planned("os_hardening", os_hardening_waivers=[{"id": "aslr", "reason": "We debug."}])
    assert "kernel.randomize_va_space" not in wanted(waived, Kind.SYSCTL)


def test_every_control_that_sets_something_is_named_by_a_setting() -> None:
    for facts in (bookworm, enterprise):
        plan = whole_plan(facts, os_hardening_profile="anssi-high")
        settings: tuple[PlannedSetting, ...] = plan.role("os_hardening").settings
        named = {name for found in settings for name in found.controls}
        assert named == {
            name
            for name, control in CONTROLS.items()
            if concerns(control, plan.system) and not lacking(control, plan.system)
            if settings_of(control, STRICTEST)
        }


def test_daemons_read_their_files_anew_while_they_run() -> None:
    due = {reaction.paths[0]: reaction for reaction in planned("os_hardening").reactions}
    assert due["/etc/systemd/journald.conf.d/"].unit == "systemd-journald.service"
    assert "augenrules --load" in due["/etc/audit/rules.d/"].command[2]
    assert due["/etc/audit/auditd.conf"].command[:2] == ("systemctl", "kill")


def test_values_of_one_keyword_may_differ_in_type() -> None:
    """Sshd takes a number and an address for PermitListen; the plan passes through JSON on its way."""
    options = {"PermitListen": [8080, "localhost:9090"]}
    made = whole_plan(bookworm, ssh_hardening_extra_options=options)
    again = NodePlan.from_dict(json.loads(json.dumps(made.as_dict())))
    assert wanted(again.role("ssh_hardening"), Kind.SSHD_PARAMETER)["overrides"] == options


@each(
    ("ssh_hardening_extra_options", {"UseDNS": None}, "UseDNS: expected text"),
    ("ssh_hardening_extra_options", {"LoginGraceTime": 1.5}, "found 1.5"),
    ("firewall_services", {111: ["192.0.2.7"]}, "service 111: expected one of"),
)
def test_what_yaml_makes_of_a_value_is_refused(name: str, value: object, fact: str) -> None:
    (problem,) = content_problems(name, value)
    assert fact in problem


def test_a_system_without_controls_says_so_in_its_plan_unless_they_are_to_be_taken_back() -> None:
    assert planned("os_hardening").options.obstacle == ""
    assert planned("os_hardening", enterprise).options.obstacle == ""
    rebuild = planned("os_hardening", system("rocky", "9.6"))
    assert wanted(rebuild, Kind.AUTHSELECT) and "audit" in wanted(rebuild, Kind.PACKAGE_CHOICE)
    unknown = system("sles", "15.6")
    refused = whole_plan(unknown)
    reason = refused.role("os_hardening").options.obstacle
    assert "sles-15" in reason
    back = whole_plan(unknown, os_hardening_state="absent")
    assert back.role("os_hardening").options.obstacle == ""
