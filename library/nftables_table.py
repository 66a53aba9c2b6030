#!/usr/bin/python3
"""A table of our own that drops what may not reach the node, now and after a reboot, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nftables_table
short_description: An input filter in a table of its own, kept over reboots
description:
  - Renders C(table inet temper), loads it in one transaction, and installs a unit that loads it at boot
    before the network is up. No other table is touched, so the rules of Docker, Kubernetes and libvirt stay.
    Only input is filtered.
  - What the kernel holds is compared with what it should hold, so that a rule changed by hand is put right.
  - A change is undone by a timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: Whether the table, its file and its unit exist.
    type: str
    choices: [present, absent]
    default: present
  management_networks:
    description: Networks and addresses that may use SSH.
    type: list
    elements: str
    default: []
  ssh_ports:
    description:
      - Ports of SSH; without any, those on which sshd listens. The port of this connection always is one.
    type: list
    elements: int
    default: []
  peers:
    description: Addresses and networks of the fleet's nodes. Everything that comes from them is accepted.
    type: list
    elements: str
    default: []
  rules:
    description: Further things to accept.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What the rule is for; it becomes the rule's comment.
        type: str
        required: true
      protocol:
        description: The protocol.
        type: str
        choices: [tcp, udp]
        default: tcp
      ports:
        description: Ports (9100) and ranges ("6000-6100").
        type: list
        elements: str
        required: true
      sources:
        description: Networks and addresses that it is open to.
        type: list
        elements: str
        required: true
  log_per_minute:
    description: How many dropped packets a minute go to the kernel's log at most; 0 for none.
    type: int
    default: 10
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Allow SSH from the office and Prometheus from its server
  nftables_table:
    management_networks: [192.0.2.0/24, "2001:db8::/48"]
    rules:
      - name: node exporter
        ports: [9100]
        sources: [198.51.100.7]
"""

RETURN = r"""
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
nftables_missing:
  description: Whether nothing was done because the package nftables is not installed.
  returned: always
  type: bool
"""

import ipaddress
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commit_confirm import Change, CommandError, Login, run, ssh_login
from ansible.module_utils.files import File

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RULES = Path("/etc/temper/firewall.nft")
UNIT = "temper-firewall.service"
UNIT_FILE = Path("/etc/systemd/system") / UNIT
LINK = UNIT_FILE.parent / "sysinit.target.wants" / UNIT
TABLE = "inet temper"
LAST_PORT = 65535

REMOVE = f"add table {TABLE}; delete table {TABLE};"  # "add" first: deleting a missing table is an error
RELOAD_IN_SHELL = f"if [ -e {RULES} ]; then nft -f {RULES}; else nft '{REMOVE}'; fi"

UNIT_TEXT = f"""\
# Managed by Temper.
[Unit]
Description=Firewall (nftables table {TABLE})
DefaultDependencies=no
# Not stopped at shutdown: the node stays closed until its network is gone.
RequiresMountsFor={RULES.parent}
Wants=network-pre.target
Before=network-pre.target
# nftables.service flushes the whole ruleset: follow it at boot, when it restarts and when it reloads.
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service
ConditionPathExists={RULES}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f {RULES}
ExecReload=/usr/sbin/nft -f {RULES}
ExecStop=/usr/sbin/nft '{REMOVE}'

[Install]
WantedBy=sysinit.target
"""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class RefusedError(Exception):
    """The rules are refused before anything was touched; the message says why and what to do."""


def networks(where: str, items: Iterable[str]) -> list[Network]:
    """Return addresses and networks without overlaps (nft refuses them), IPv4 first."""
    found: list[Network] = []
    for item in items:
        try:
            found.append(ipaddress.ip_network(item))
        except ValueError as error:
            hint = ""
            if "host bits" in str(error):
                hint = f"; its network is {ipaddress.ip_network(item, strict=False)}"
            raise RefusedError(
                f"{where}: expected an address or a network such as 192.0.2.0/24 or 2001:db8::/48, "
                f"found {item!r}{hint}."
            ) from None
    version_4 = [network for network in found if isinstance(network, ipaddress.IPv4Network)]
    version_6 = [network for network in found if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(version_4), *ipaddress.collapse_addresses(version_6)]


def port_ranges(where: str, items: Iterable[int | str]) -> list[tuple[int, int]]:
    """Return ports and ranges as (first, last), sorted and without overlaps."""
    ranges = []
    for item in items:
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", str(item))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= LAST_PORT:
            raise RefusedError(
                f"{where}: expected a port from 1 to {LAST_PORT} or a range like 6000-6100, found {item!r}."
            )
        ranges.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


@dataclass(frozen=True)
class Rule:
    """Accept a protocol on ports from networks."""

    name: str
    protocol: str
    ports: list[tuple[int, int]]
    sources: list[Network]

    def lines(self) -> list[str]:
        """Return the rule in nft's language, one line for each IP version that it has sources in."""
        ports = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ports)
        return [
            f'{source}{self.protocol} dport {{ {ports} }} counter accept comment "{self.name}"'
            for source in source_matches(self.sources)
        ]


def parse_rule(index: int, rule: Mapping[str, Any]) -> Rule:
    """Check one of the further rules; raise RefusedError with a sentence that names it."""
    name = rule["name"]
    where = f"rule {index + 1} ({name})"
    if not re.fullmatch(r"[\w .,:/()+-]{1,60}", name, re.ASCII):
        raise RefusedError(
            f"{where}: expected a name of 1 to 60 letters, digits, blanks and .,:/()+-_ (it is a comment)."
        )
    for key in ("ports", "sources"):
        if not rule[key]:
            everyone = " (for everyone: 0.0.0.0/0 and ::/0)" if key == "sources" else ""
            raise RefusedError(f"{where}: expected at least one item in {key}{everyone}, found none.")
    return Rule(
        name=name,
        protocol=rule["protocol"],
        ports=port_ranges(f"{where}, ports", rule["ports"]),
        sources=networks(f"{where}, sources", rule["sources"]),
    )


def source_matches(sources: list[Network]) -> list[str]:
    """Return how nft rules for these sources begin: one for each IP version, or an empty one for everyone."""
    everything = {network.version for network in sources if network.prefixlen == 0}
    if everything == {4, 6}:
        return [""]
    matches = []
    for version, word in ((4, "ip"), (6, "ip6")):
        # A single address without its prefix length, the way nft prints it.
        texts = [
            str(network).removesuffix(f"/{network.max_prefixlen}")
            for network in sources
            if network.version == version
        ]
        if version in everything:
            matches.append(f"meta nfproto ipv{version} ")
        elif texts:
            matches.append(f"{word} saddr {{ {', '.join(texts)} }} ")
    return matches


def render(rules: list[Rule], peers: list[Network], log_per_minute: int) -> str:
    """Return a file for `nft -f` that replaces the table in one transaction."""
    accepted = [line for rule in rules for line in rule.lines()]
    accepted += [f'{source}counter accept comment "fleet"' for source in source_matches(peers)]
    log = (
        f'limit rate {log_per_minute}/minute log prefix "temper drop: " level info' if log_per_minute else ""
    )
    errors = "echo-request, destination-unreachable, time-exceeded, parameter-problem"
    chain = [
        "type filter hook input priority filter; policy drop;",
        'iif "lo" accept',
        "ct state vmap { established : accept, related : accept, invalid : drop }",
        "# Errors that path MTU discovery and traceroute need, and ping.",
        f"icmp type {{ {errors} }} counter accept",
        f"icmpv6 type {{ packet-too-big, {errors} }} counter accept",
        "# No neighbour discovery, no IPv6. Only the link itself can send it with this hop limit (RFC 4861).",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } "
        "ip6 hoplimit 255 counter accept",
        "icmpv6 type { mld-listener-query } ip6 saddr fe80::/10 counter accept",
        "# The answer to a DHCPv6 request comes from another address than the request went to.",
        "ip6 saddr fe80::/10 udp sport 547 udp dport 546 counter accept",
        *accepted,
        "# Noise of the link, not worth a line in the log.",
        "meta pkttype { broadcast, multicast } counter drop",
        *([log] if log else []),
        'counter comment "dropped"',
    ]
    body = "\n".join(f"\t\t{line}" for line in chain)
    return (
        "# Managed by Temper: input to this node. Loaded at boot and reloaded by temper-firewall.service.\n"
        f"table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n\tchain input {{\n{body}\n\t}}\n}}\n"
    )


def sshd_ports() -> list[int]:
    """Return the ports that sshd is configured to listen on, or its default port where there is no sshd."""
    try:
        dump = run(["sshd", "-T"])
    except (CommandError, FileNotFoundError):
        return [22]
    return [int(line.split()[1]) for line in dump.splitlines() if line.startswith("port ")]


def ssh_rule(params: Mapping[str, Any], login: Login | None) -> Rule:
    """Return the rule for SSH; raise RefusedError where it would keep Ansible itself out."""
    sources = networks("management networks", params["management_networks"])
    ports = set(params["ssh_ports"] or sshd_ports())
    if login:
        ports.add(login.server_port)
        client = ipaddress.ip_address(login.client)
        trusted = [*sources, *networks("peers", params["peers"])]
        if not any(client in network for network in trusted):
            raise RefusedError(
                f"This would lock Ansible out; nothing was changed: it comes from {client}, which is in none "
                f"of the management networks ({', '.join(map(str, sources)) or 'none'}): add its network."
            )
    elif not sources:
        raise RefusedError("management networks: expected at least one network, else nobody could use SSH.")
    return Rule("ssh", "tcp", port_ranges("SSH ports", ports), sources)


def live_table() -> str:
    """Return the table as the kernel has it, without counters' values; empty where there is none."""
    try:
        return run(["nft", "--stateless", "list", "table", *TABLE.split()])
    except CommandError as error:
        if "No such file or directory" in str(error):
            return ""
        raise


def trial_table(text: str) -> str:
    """Return the table as the kernel would have it, by loading the text in an empty network namespace."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        script = f'nft -f "$1" && nft --stateless list table {TABLE}'
        return run(["unshare", "--net", "sh", "-c", script, "sh", file.name])


def persist(module: AnsibleModule, files: list[File]) -> None:
    """Write the files and enable the unit. No daemon-reload: it can cost running containers their GPUs."""
    for file in files:
        if file.differs():
            file.write(module)
    if not LINK.is_symlink():
        LINK.parent.mkdir(mode=0o755, exist_ok=True)
        LINK.symlink_to(UNIT_FILE)


def ensure_present(module: AnsibleModule, change: Change, login: Login | None) -> dict[str, Any]:
    """Bring table, file and unit to the wanted state; returns the module's result."""
    params = module.params
    rules = [
        ssh_rule(params, login),
        *(parse_rule(index, rule) for index, rule in enumerate(params["rules"])),
    ]
    text = render(rules, networks("peers", params["peers"]), params["log_per_minute"])
    files = [File(str(RULES), text, "0600"), File(str(UNIT_FILE), UNIT_TEXT)]

    if {"0.0.0.0/0", "::/0"} & set(params["management_networks"]):
        module.warn(
            "Every address may use SSH: name the administrators' networks in firewall_management_networks."
        )

    missing = not module.get_bin_path("nft")
    if missing and not module.check_mode:
        return {"changed": False, "confirm": False, "nftables_missing": True}
    live = "" if missing else live_table()
    # Check mode leaves a bare node's kernel alone: a trial would load its nftables modules.
    wanted = text if module.check_mode and not live else trial_table(text)

    differing = [file for file in files if file.differs()]
    result: dict[str, Any] = {
        "changed": live != wanted or bool(differing) or not LINK.is_symlink(),
        "confirm": False,
        "nftables_missing": missing,
        "diff": [file.diff() for file in differing],
    }
    if live != wanted and files[0] not in differing:
        header = f"table {TABLE} in the kernel"
        result["diff"].append(
            {"before_header": header, "after_header": header, "before": live, "after": wanted}
        )
    if module.check_mode or not result["changed"]:
        return result
    if live == wanted:
        persist(module, files)
        return result
    with change.armed([RULES], [RELOAD_IN_SHELL], params["rollback_after_s"], login):
        persist(module, files)
        # By the unit, so that what is confirmed is what the next boot does.
        run(["systemctl", "reload-or-restart", UNIT])
    return {**result, "confirm": True}


def ensure_absent(module: AnsibleModule) -> dict[str, Any]:
    """Remove table, file and unit. This opens the node, so there is nothing to confirm."""
    live = live_table() if module.get_bin_path("nft") else ""
    files = [File(str(path), None) for path in (RULES, LINK, UNIT_FILE)]
    differing = [file for file in files if file.differs()]
    result = {
        "changed": bool(live or differing),
        "confirm": False,
        "nftables_missing": False,
        "diff": [file.diff() for file in differing],
    }
    if result["changed"] and not module.check_mode:
        if UNIT_FILE.exists():
            run(["systemctl", "stop", UNIT])
        if live:
            run(["nft", REMOVE])
        for file in files:
            file.write(module)
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "management_networks": {"type": "list", "elements": "str", "default": []},
            "ssh_ports": {"type": "list", "elements": "int", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "rules": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "protocol": {"type": "str", "choices": ["tcp", "udp"], "default": "tcp"},
                    "ports": {"type": "list", "elements": "str", "required": True},
                    "sources": {"type": "list", "elements": "str", "required": True},
                },
            },
            "log_per_minute": {"type": "int", "default": 10},
            "rollback_after_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    change = Change("firewall", f"the firewall (table {TABLE})")
    login = ssh_login()
    try:
        if change.pending and module.check_mode:
            module.warn("An earlier change still waits for its confirmation; a run would undo it first.")
        elif change.pending:
            change.undo("another run began before it was confirmed")
        if past := change.past_rollback(keep=module.check_mode):
            module.warn(past)
        if module.params["state"] == "present":
            module.exit_json(**ensure_present(module, change, login))
        module.exit_json(**ensure_absent(module))
    except (RefusedError, CommandError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
