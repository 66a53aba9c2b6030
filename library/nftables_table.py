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
  trusted_interfaces:
    description: Interfaces from which everything is accepted. A name that ends with * stands for several.
    type: list
    elements: str
    default: []
  unknown_peers:
    description: Names of nodes of the fleet whose addresses nobody knows. With any, nothing is changed.
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
  services:
    description:
      - Services that have a name, and the networks and addresses that they are open to. Known are slurmctld,
        slurmd, slurmdbd, srun, node_exporter and dcgm_exporter.
    type: dict
    default: {}
  ssh_new_per_minute:
    description: New SSH connections that one source may make in a minute; 0 for no limit.
    type: int
    default: 0
  ssh_connections:
    description: SSH connections that one source may have open; 0 for no limit.
    type: int
    default: 0
  new_per_second:
    description: Like O(ssh_new_per_minute), in a second, for rules that are open to everybody.
    type: int
    default: 0
  connections:
    description: Like O(ssh_connections), for rules that are open to everybody.
    type: int
    default: 0
  log_per_minute:
    description: How many dropped packets a minute go to the kernel's log at most; 0 for none.
    type: int
    default: 0
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
report:
  description: Ports that listen and are open to nobody, and ports that are open and where nothing listens.
  returned: always
  type: list
  elements: str
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
nftables_missing:
  description: Whether nothing was done because the package nftables is not installed.
  returned: always
  type: bool
"""

import contextlib
import dataclasses
import ipaddress
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.access.commit_confirm import ARGUMENTS, Change, CommandError, RefusedError, run
from ansible.module_utils.access.listeners import Listener, listeners
from ansible.module_utils.access.nftables_rules import (
    TABLE,
    Limits,
    Rule,
    check_fleet,
    interfaces,
    networks,
    parse_rule,
    parse_service,
    port_ranges,
    render,
)
from ansible.module_utils.access.ssh_login import ssh_login
from ansible.module_utils.access.sshd import listening_ports, parse_effective
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible.module_utils.access.ssh_login import Login

RULES = Path("/etc/temper/firewall.nft")
UNIT = "temper-firewall.service"
UNITS = Path("/etc/systemd/system")
UNIT_FILE = UNITS / UNIT
LINK = UNITS / "sysinit.target.wants" / UNIT
FLUSHING_UNIT = "nftables.service"
FLUSHING_DROP_IN = UNITS / f"{FLUSHING_UNIT}.d" / "temper.conf"
LIMITS = tuple(field.name for field in dataclasses.fields(Limits))

REMOVE = f"add table {TABLE}; delete table {TABLE};"  # "add" first: deleting a missing table is an error
# Until a rule asks for connections, the kernel knows none, and what comes on an open one looks new to it.
WATCH = (
    f"table {TABLE} {{ chain input {{ type filter hook input priority 0; ct state established accept; }}; }}"
)
WATCH_S = 3
# The unit is stopped, too: one that is active without rules would fail every start of nftables.service.
RELOAD_IN_SHELL = (
    f"if [ -e {RULES} ]; then nft -f {RULES}; elif systemctl --quiet is-active {UNIT}; then "
    f"systemctl stop {UNIT}; else nft '{REMOVE}'; fi"
)

UNIT_TEXT = f"""\
# Managed by Temper.
[Unit]
Description=Firewall (nftables table {TABLE})
DefaultDependencies=no
# Not stopped at shutdown: the node stays closed until its network is gone.
RequiresMountsFor={RULES.parent}
Wants=network-pre.target
Before=network-pre.target
After={FLUSHING_UNIT}
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

LOAD_AGAIN = (
    f"/bin/sh -c 'if systemctl --quiet is-active {UNIT} && [ -e {RULES} ]; then exec nft -f {RULES}; fi'"
)
FLUSHING_DROP_IN_TEXT = f"""\
# Managed by Temper. Whatever this unit does flushes all tables, so that {UNIT}'s is loaded again.
[Service]
ExecStartPost={LOAD_AGAIN}
ExecReload={LOAD_AGAIN}
ExecStopPost={LOAD_AGAIN}
"""


def sshd_ports() -> list[int]:
    """Return the ports that sshd is configured to listen on, or its default port where there is no sshd."""
    try:
        dump = run(["sshd", "-T"])
    except (CommandError, FileNotFoundError):
        return [22]
    return [int(port) for port in listening_ports(parse_effective(dump))]


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
    """Return the table as the kernel has it, without what it has counted; empty where there is none."""
    try:
        return run(["nft", "--stateless", "--terse", "list", "table", *TABLE.split()])
    except CommandError as error:
        if "No such file or directory" in str(error):
            return ""
        raise


def trial_table(text: str) -> str:
    """Return the table as the kernel would have it, by loading the text in an empty network namespace."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        script = f'nft -f "$1" && nft --stateless --terse list table {TABLE}'
        return run(["unshare", "--net", "sh", "-c", script, "sh", file.name])


def own_addresses() -> list[str]:
    """Return the node's addresses, without those of loopback and of links alone."""
    try:
        interfaces = json.loads(run(["ip", "-json", "address", "show"]))
    except FileNotFoundError:  # iproute2 is not installed
        return []
    return [
        entry["local"]
        for interface in interfaces
        for entry in interface.get("addr_info", [])
        if entry.get("scope") == "global"
    ]


def needs_daemon_reload() -> bool:
    """Whether systemd runs the unit that flushes everything without having read our drop-in for it."""
    names = "--property=ActiveState,NeedDaemonReload"
    return set(run(["systemctl", "show", FLUSHING_UNIT, names, "--value"]).split()) == {"active", "yes"}


def report(rules: list[Rule], found: list[Listener]) -> list[str]:
    """Return a line on listening ports that are open to nobody, and one on open ports without a listener."""

    def reaches(rule: Rule, one: Listener) -> bool:
        return rule.protocol == one.protocol and any(first <= one.port <= last for first, last in rule.ports)

    closed = [
        f"{one.protocol} {one.port} ({one.process})"
        for one in found
        if not any(reaches(rule, one) for rule in rules)
    ]
    silent = [
        f"{rule.protocol} {first if first == last else f'{first}-{last}'} ({rule.name})"
        for rule in rules
        for first, last in rule.ports
        if not any(one.protocol == rule.protocol and first <= one.port <= last for one in found)
    ]
    lines = []
    if closed:
        lines.append(f"Listening, but open to nobody outside of the fleet: {', '.join(closed)}.")
    if silent:
        lines.append(f"Open, but nothing listens there: {', '.join(silent)}.")
    return lines


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
    ssh, peers = ssh_rule(params, login), networks("peers", params["peers"])
    rules = [
        *(parse_service(name, sources) for name, sources in params["services"].items()),
        *(parse_rule(index, rule) for index, rule in enumerate(params["rules"])),
    ]
    check_fleet(peers, own_addresses(), params["unknown_peers"])
    limits = Limits(**{name: params[name] for name in LIMITS})
    text = render(ssh, rules, peers, limits, interfaces(params["trusted_interfaces"]))
    files = [
        File(str(RULES), text, "0600", public=True),
        File(str(FLUSHING_DROP_IN), FLUSHING_DROP_IN_TEXT),
        File(str(UNIT_FILE), UNIT_TEXT),
    ]

    if {"0.0.0.0/0", "::/0"} & set(params["management_networks"]):
        module.warn(
            "Every address may use SSH: name the administrators' networks in firewall_management_networks."
        )

    missing = not module.get_bin_path("nft")
    if missing and not module.check_mode:
        return {"changed": False, "confirm": False, "nftables_missing": True, "report": []}
    live = "" if missing else live_table()
    # Check mode leaves a bare node's kernel alone: a trial would load its nftables modules.
    wanted = text if module.check_mode and not live else trial_table(text)

    differing = [file for file in files if file.differs()]
    result: dict[str, Any] = {
        "changed": live != wanted or bool(differing) or not LINK.is_symlink(),
        "confirm": False,
        "nftables_missing": missing,
        "report": report([ssh, *rules], listeners()),
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
    if not live:
        run(["nft", WATCH])
        time.sleep(WATCH_S)
    with change.armed([RULES], [RELOAD_IN_SHELL], params["rollback_after_s"], login):
        persist(module, files)
        # By the unit, so that what is confirmed is what the next boot does.
        run(["systemctl", "reload-or-restart", UNIT])
    return {**result, "confirm": True}


def ensure_absent(module: AnsibleModule) -> dict[str, Any]:
    """Remove table, file and unit. This opens the node, so there is nothing to confirm."""
    live = live_table() if module.get_bin_path("nft") else ""
    files = [File(str(path), None) for path in (RULES, FLUSHING_DROP_IN, LINK, UNIT_FILE)]
    differing = [file for file in files if file.differs()]
    result = {
        "changed": bool(live or differing),
        "confirm": False,
        "nftables_missing": False,
        "report": [],
        "diff": [file.diff() for file in differing],
    }
    if result["changed"] and not module.check_mode:
        if UNIT_FILE.exists():
            run(["systemctl", "stop", UNIT])
        if live:
            run(["nft", REMOVE])
        for file in files:
            file.write(module)
        with contextlib.suppress(OSError):  # it holds a drop-in of somebody else, or is not there
            FLUSHING_DROP_IN.parent.rmdir()
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "management_networks": {"type": "list", "elements": "str", "default": []},
            "ssh_ports": {"type": "list", "elements": "int", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "trusted_interfaces": {"type": "list", "elements": "str", "default": []},
            "unknown_peers": {"type": "list", "elements": "str", "default": []},
            "services": {"type": "dict", "default": {}},
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
            **{name: {"type": "int", "default": 0} for name in LIMITS},
        },
        supports_check_mode=True,
    )
    change = Change("firewall", f"the firewall (table {TABLE})")
    login = ssh_login()
    try:
        change.settle_the_past(module)
        if module.params["state"] == "present":
            result = ensure_present(module, change, login)
            if needs_daemon_reload():
                module.warn(
                    f"{FLUSHING_UNIT} was running before the firewall came. Until the node's next boot, or "
                    "`systemctl daemon-reload`, its restart takes the firewall away."
                )
            module.exit_json(**result)
        module.exit_json(**ensure_absent(module))
    except (RefusedError, CommandError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
