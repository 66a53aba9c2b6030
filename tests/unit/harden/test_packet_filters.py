"""Chains of others in the kernel: which of them close the node, and what is said of them.

The rules are in `rulesets`. recorded_nft.json has what nft 1.0.6 and iptables 1.8.9 printed of them, by the
commands that were asked.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.access import firewall, other_firewall, packet_filters
from ansible.module_utils.temper.access.packet_filters import Chain, ClosingChain, closing_chains
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.settings.observe import observed

from tests.unit.each import each
from tests.unit.needs import root_and
from tests.waiting import wait_until

HERE = Path(__file__).parent
RULESETS = HERE / "rulesets"
RECORDED: dict[str, dict[str, str]] = json.loads((HERE / "recorded_nft.json").read_text())
#: Chain, and what closes it.
CLOSING = {
    "cloud_image": ("chain INPUT of table ip filter (hook input)", "rule 5 of chain INPUT: reject"),
    "policy_drop": ("chain incoming of table inet site (hook input)", "policy drop"),
    "jump": ("chain incoming of table inet site (hook input)", "rule 3 of chain public: reject"),
    "ipv6_raw": ("chain pre of table ip6 early (hook prerouting)", "rule 3 of chain pre: drop"),
    "all_but_some": ("chain incoming of table inet site (hook input)", "rule 2 of chain incoming: drop"),
    "ingress": ("chain early of table netdev site (hook ingress)", "policy drop"),
    "by_interface": ("chain INPUT of table ip filter (hook input)", "rule 2 of chain INPUT: drop"),
}
OPEN = ("default", "neighbours", "narrow", "accepts_first", "shut_off")
BY_IPTABLES = {
    "iptables_nft": ("chain INPUT of table ip filter (hook input)", "rule 2 of chain site: drop"),
    "iptables_without_nft": ("chain INPUT of table ip filter (hook input)", "rule 2 of chain site: drop"),
    "iptables_legacy": (
        "chain INPUT of table iptables-legacy filter (hook input)",
        "rule 2 of chain site: drop",
    ),
    "iptables_reject_seen_by_nft": (
        "chain INPUT of table ip filter (hook input)",
        "rule 2 of chain INPUT: reject",
    ),
}

needs_kernel = root_and("nft")


def replay(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the programs answer as they did; returns the list of what is asked."""
    said, asked = RECORDED[case], []

    def answer(command: list[str]) -> str:
        asked.append(" ".join(command))
        return said[asked[-1]]

    programs = {command.split()[0] for command in said}
    monkeypatch.setattr(packet_filters, "run", answer)
    monkeypatch.setattr(packet_filters, "which", lambda name: name if name in programs else None)
    (tmp_path / "net").mkdir(parents=True)
    (tmp_path / "net/ip_tables_names").write_text("filter\n" if "iptables-legacy-save" in programs else "")
    monkeypatch.setattr(packet_filters, "PROC", tmp_path)
    return asked


def found() -> list[tuple[str, str]]:
    return [(str(one.chain), one.how) for one in closing_chains()]


@each(*CLOSING, *BY_IPTABLES)
def test_chain_that_closes_the_node_is_found(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(case, tmp_path, monkeypatch)
    assert found() == [{**CLOSING, **BY_IPTABLES}[case]]


@each(*OPEN)
def test_chain_that_leaves_the_node_open_is_not_reported(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(case, tmp_path, monkeypatch)
    assert found() == []


def test_rules_of_chains_that_no_packet_to_the_node_passes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replay("neighbours", tmp_path, monkeypatch)
    assert closing_chains() == []
    assert [command.rpartition(" ")[2] for command in asked] == ["chains", "INPUT", "PREROUTING", "f2b-chain"]


def test_our_own_table_is_nobody_elses() -> None:
    chain = {"family": "inet", "table": "temper", "name": "input", "hook": "input", "policy": "drop"}
    assert packet_filters.base_chains(json.dumps({"nftables": [{"chain": chain}]})) == []


@each(
    ("! -s 10.0.0.0/8 -j DROP", True),
    ("! -s 10.0.0.0/8 -p tcp -j REJECT --reject-with tcp-reset", True),
    ("-m iprange ! --src-range 10.0.0.1-10.0.0.9 -j DROP", True),
    ("-m set ! --match-set fleet src -j DROP", True),
    ("-p tcp -m multiport ! --dports 22,443 -j DROP", True),
    ("-p tcp -m tcp ! --dport 22 -j DROP", True),
    ("-p tcp -m tcp --dport 1024:65535 -j DROP", True),
    ("-p tcp -m multiport --dports 80,2000:65000 -j DROP", True),
    ("-p tcp -m tcp --sport 1024:65535 --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", True),
    ("-s 10.0.0.0/8 -j DROP", False),
    ("-m set --match-set banned src -j DROP", False),
    ("! -s 10.0.0.0/8 -p tcp -m tcp --dport 3306 -j DROP", False),
    ("-p tcp -m tcp --dport 1:1023 -j DROP", False),
    ("! -d 192.0.2.9/32 -j DROP", False),
    ("-p tcp -m multiport ! --dports 1:65535 -j DROP", False),
)
def test_rule_of_iptables_closes_the_node_by_how_much_it_is_for(rule: str, closes: bool) -> None:
    text = f":INPUT ACCEPT [0:0]\n-A INPUT {rule}\n"
    (found,) = packet_filters.read_saved(text, "").rules_of("INPUT")
    assert found.broad is closes


@each(
    ("ip saddr", "!=", {"prefix": {"addr": "10.0.0.0", "len": 8}}, True),
    ("ip6 saddr", "!=", "@fleet", True),
    ("tcp dport", "!=", {"set": [22, 443]}, True),
    ("tcp dport", "==", {"set": [80, {"range": [1024, 65535]}]}, True),
    ("tcp dport", ">=", 1024, True),
    ("tcp dport", "<", 1024, False),
    ("tcp dport", "==", "@closed", False),
    ("ip saddr", "==", {"prefix": {"addr": "10.0.0.0", "len": 8}}, False),
    ("ip daddr", "!=", "192.0.2.9", False),
    ("ip protocol", "!=", "vrrp", True),
)
def test_match_of_nft_closes_the_node_by_how_much_it_is_for(
    field: str, operator: str, right: Any, closes: bool
) -> None:
    protocol, name = field.split()
    left = {"payload": {"protocol": protocol, "field": name}}
    assert packet_filters.broad_match(operator, left, right) is closes


def closing(table: str = "filter", calls: tuple[str, ...] = (), variant: str = "") -> ClosingChain:
    chain = Chain("ip", table, "INPUT", "input", "drop", variant)
    return ClosingChain(chain, "policy drop", chain.opening, frozenset(calls))


@each(
    (closing(calls=("ufw-before-input",)), "ufw"),
    (closing("firewalld"), "firewalld"),
    (closing(calls=("INPUT_ZONES",)), "firewalld"),
    (closing(), ""),
)
def test_chains_of_the_firewall_that_may_be_ended_are_its_own(
    one: ClosingChain, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert other_firewall.made_by(one) == maker
    monkeypatch.setattr(other_firewall, "closing_chains", lambda: [one])
    monkeypatch.setattr(other_firewall, "unit_states", states())
    if maker:
        other_firewall.refuse_closing_chains(other_firewall.known(maker, at_boot=True))
    with pytest.raises(RefusedError, match="chain INPUT of table ip"):
        other_firewall.refuse_closing_chains(None)


#: `firewall-cmd --info-zone` and `--info-policy` of firewalld 1.3.3.
ZONE = """public (active)
  target: default
  interfaces: eth0
  services: dhcpv6-client ssh
  forward: yes
  masquerade: {masquerade}
  forward-ports: {ports}
  rich rules: {rules}
"""
POLICY = """allow-host-ipv6 (active)
  ingress-zones: ANY
  egress-zones: {egress}
  masquerade: no
  rich rules:
\trule family="ipv6" icmp-type name="redirect" accept
"""


@each(
    ({}, ""),
    ({"masquerade": "yes"}, "zone public (masquerade)"),
    ({"ports": "\n\tport=80:proto=tcp:toport=8080:toaddr=192.0.2.9"}, "zone public (port=80:proto=tcp"),
    ({"rules": '\n\trule family="ipv4" masquerade'}, 'zone public (rule family="ipv4" masquerade)'),
    ({"rules": '\n\trule family="ipv4" service name="http" accept'}, ""),
    ({"egress": "libvirt"}, "policy allow-host-ipv6 (to libvirt)"),
)
def test_what_firewalld_does_for_others_keeps_it_from_being_ended(
    has: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"masquerade": "no", "ports": "", "rules": "", "egress": "HOST"}
    answers = {
        "--get-default-zone": "public\n",
        "--get-active-zones": "public\n  interfaces: eth0\n",
        "--get-active-policies": "allow-host-ipv6\n  ingress-zones: ANY\n",
        "--info-zone=public": ZONE.format(**words | has),
        "--info-policy=allow-host-ipv6": POLICY.format(**words | has),
        "--permanent --info-zone=public": ZONE.format(**words).replace("eth0", ""),
        "--permanent --info-policy=allow-host-ipv6": POLICY.format(**words),
    }
    monkeypatch.setattr(other_firewall, "run", lambda command: answers[" ".join(command[1:])])
    firewalld = other_firewall.known("firewalld", at_boot=True)
    assert len(other_firewall.runtime_only(firewalld)) == bool(has)
    refused = pytest.raises(RefusedError, match=re.escape(named)) if named else contextlib.nullcontext()
    with refused:
        other_firewall.refuse_forwarding(firewalld)


#: From ufw-framework(8), after the rules that Debian ships.
BEFORE_RULES = """*filter
:ufw-before-input - [0:0]
-A ufw-before-input -i lo -j ACCEPT
COMMIT
{}
"""


@each(
    ("", ""),
    ("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT", ""),
    ("*mangle\n-A PREROUTING -j MARK --set-mark 1\nCOMMIT", ""),
    ("*nat\n# -A\n-A PREROUTING -p tcp --dport 2200 -j REDIRECT --to-port 22\nCOMMIT", "before.rules:7 (-A "),
)
def test_what_ufw_translates_keeps_it_from_being_ended(
    rules: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ufw").mkdir()
    (tmp_path / "ufw/before.rules").write_text(BEFORE_RULES.format(rules))
    monkeypatch.setattr(other_firewall, "ETC", tmp_path)
    refused = pytest.raises(RefusedError, match=re.escape(named)) if named else contextlib.nullcontext()
    with refused:
        other_firewall.refuse_forwarding(other_firewall.known("ufw", at_boot=True))


def states(**enabled: str) -> Any:
    """Stand for systemd, with these units and their states."""
    return lambda names: {
        name: {"UnitFileState": enabled.get(name.partition(".")[0].replace("-", "_"), ""), "ActiveState": ""}
        for name in names
    }


@each(
    ({"nftables": "enabled", "iptables": "enabled"}, "", "nftables.service"),
    ({"nftables": "enabled", "netfilter_persistent": "enabled"}, "legacy", "netfilter-persistent"),
    ({"csf": "enabled"}, "", "csf.service"),
    ({"shorewall": "enabled"}, "nft", "shorewall.service"),
    ({"nftables": "disabled"}, "", None),
)
def test_service_that_loads_the_chain_is_named_where_it_is_enabled(
    enabled: dict[str, str],
    variant: str,
    service: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "nftables.conf").write_text("flush ruleset\ntable filter {\n}\n")
    monkeypatch.setattr(other_firewall, "ETC", tmp_path)
    monkeypatch.setattr(other_firewall, "unit_states", states(**enabled))
    named = other_firewall.loader(closing(variant=variant).chain)
    assert (named is None) == (service is None)
    assert named is None or named[0].startswith(str(service))


def test_nftables_service_is_not_named_for_a_table_that_its_file_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nftables.conf").write_text("table inet filter {\n}\ntable filter2 {\n}\n")
    monkeypatch.setattr(other_firewall, "ETC", tmp_path)
    monkeypatch.setattr(other_firewall, "unit_states", states(nftables="enabled"))
    assert other_firewall.loader(closing().chain) is None


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A network namespace, with the words that begin a command in it; nft is asked there."""
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as holder:
        own = Path("/proc/self/ns/net").readlink()
        entry = Path(f"/proc/{holder.pid}")
        wait_until(
            lambda: (entry / "ns/net").readlink() != own and (entry / "comm").read_text() == "sleep\n",
            "the namespace is there",
        )
        enter = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        for module in (packet_filters, firewall):
            monkeypatch.setattr(module, "run", lambda command: process.run([*enter, *command]))
        monkeypatch.setattr(packet_filters, "PROC", Path(f"/proc/{holder.pid}"))
        yield enter
        holder.kill()


@pytest.mark.component
@needs_kernel
@pytest.mark.parametrize("case", [*CLOSING, *OPEN])
def test_kernels_rules_are_read_as_they_were_recorded(case: str, namespace: list[str]) -> None:
    process.run([*namespace, "nft", "-f", str(RULESETS / f"{case}.nft")])
    assert found() == ([CLOSING[case]] if case in CLOSING else [])


@pytest.mark.component
@needs_kernel
@pytest.mark.parametrize("case", CLOSING)
def test_named_command_opens_the_chain(case: str, namespace: list[str]) -> None:
    process.run([*namespace, "nft", "-f", str(RULESETS / f"{case}.nft")])
    process.run([*namespace, *shlex.split(closing_chains()[0].removal)])
    assert closing_chains() == []


@pytest.mark.component
@needs_kernel
def test_rules_of_a_cloud_image_are_refused_and_fail_the_compliance_check(
    namespace: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(RULESETS / "cloud_image.nft", tmp_path / "nftables.conf")
    monkeypatch.setattr(other_firewall, "ETC", tmp_path)
    monkeypatch.setattr(other_firewall, "unit_states", states(nftables="enabled"))
    monkeypatch.setattr(firewall, "other_firewall", lambda: None)
    wanted = {"management_networks": ["192.0.2.0/24"], "ssh_ports": [22]}
    assert firewall.Firewall(wanted, 120, None).obstacle() is None
    process.run([*namespace, "nft", "-f", str(tmp_path / "nftables.conf")])
    said = firewall.Firewall(wanted, 120, None).obstacle() or ""
    facts = (
        *CLOSING["cloud_image"],
        f"nftables.service ({tmp_path}/nftables.conf)",
        "`systemctl disable nftables`",
        "`nft delete rule ip filter INPUT handle 6`",
        "firewall_state: absent",
    )
    assert [fact for fact in facts if fact not in said] == []
    answer = observed(firewall.Firewall(wanted, 120, None), [], {})
    assert (answer["state"], answer["reason"]) == ("fail", said)
