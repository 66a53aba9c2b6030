"""An input filter in a table of its own, now and after a reboot, and nothing of anybody else's touched."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.commit_confirm import DEFAULT_ROLLBACK_AFTER_S, ConfirmedSetting
from ansible.module_utils.temper.access.listeners import Listener, listeners
from ansible.module_utils.temper.access.network_interfaces import (
    Interface,
    interface_to,
    is_guests,
    is_own,
    own_interfaces,
    patterns,
)
from ansible.module_utils.temper.access.nftables_rules import (
    END_PROOF,
    PROOF_TABLE,
    TABLE,
    Limits,
    Rule,
    Trusted,
    check_fleet,
    interfaces,
    networks,
    parse_rule,
    parse_service,
    port_ranges,
    render,
    shortened,
    within,
)
from ansible.module_utils.temper.access.other_firewall import (
    ENDED,
    OtherFirewall,
    bring_back,
    end,
    ended,
    in_shell,
    other_firewall,
    refuse,
    refuse_closing_chains,
    refuse_forwarding,
    runtime_only,
)
from ansible.module_utils.temper.access.ssh_login import Login, ssh_login
from ansible.module_utils.temper.access.sshd import listening_ports, parse_effective
from ansible.module_utils.temper.access.tunnels import Filter, Way, tunnels, ways_from
from ansible.module_utils.temper.files import File, candidate, put_back, saved, sync
from ansible.module_utils.temper.process import CommandError, parsed, run, which
from ansible.module_utils.temper.settings.base import Difference, RefusedError, State, WayIn
from ansible.module_utils.temper.units import stop_lost

RULES = Path("/etc/temper/firewall.nft")
UNIT = "temper-firewall.service"
UNITS = Path("/etc/systemd/system")
UNIT_FILE = UNITS / UNIT
LINK = UNITS / "sysinit.target.wants" / UNIT
FLUSHING_UNIT = "nftables.service"
FLUSHING_DROP_IN = UNITS / f"{FLUSHING_UNIT}.d" / "temper.conf"
OUR_FILES = (RULES, FLUSHING_DROP_IN, LINK, UNIT_FILE)
#: Tunnels that the rules close, which may have thousands of peers: more than a warning names.
MOST_CLOSED = 6
#: A user may listen on thousands of ports.
MOST_LISTED = 40
#: How many elements a set has, which nft 1.1.7 says of its size.
COUNT = re.compile(r"^(\s*size \d+)\s+# count \d+$", re.MULTILINE)
#: What nft says of a table that is not there; its status is that of any error.
NO_TABLE = "No such file or directory"
LIMITS = tuple(limit.name for limit in fields(Limits))

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
# The rules of 10,000 nodes have room; jobs that fill the memory are ended first.
MemoryMax=4G
TasksMax=64
OOMScoreAdjust=-500
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

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


@dataclass(frozen=True)
class Parameters:
    """What is wanted of the firewall.

    SSH is open to `management_networks` at `ssh_ports` (none: those on which sshd listens), and always at the
    port of this connection. Whatever comes from `peers`, the fleet's nodes, and through `trusted_interfaces`
    is accepted. `disable_other` allows to end ufw or firewalld. With any of `unknown_peers`, nodes whose
    addresses nobody knows, nothing is changed. The outer packets of `unchecked_tunnels` are the operator's
    matter. `rules` have name, protocol, ports and sources; `services` are
    sources by a name that stands for ports.
    """

    state: str = "present"
    management_networks: list[str] = field(default_factory=list)
    ssh_ports: list[int] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    trusted_interfaces: list[str] = field(default_factory=list)
    disable_other: bool = False
    unknown_peers: list[str] = field(default_factory=list)
    unchecked_tunnels: list[str] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    services: dict[str, list[str]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Parameters:
        """From names and values, in which the limits stand among the others."""
        limits = Limits(**{name: value for name, value in params.items() if name in LIMITS})
        return cls(**{name: value for name, value in params.items() if name not in LIMITS}, limits=limits)


def sshd_ports() -> list[int]:
    """Return the ports that sshd is configured to listen on, or its default port where there is no sshd."""
    try:
        dump = run(["sshd", "-T"])
    except CommandError:
        return [22]
    return [parsed("sshd -T", port, int) for port in listening_ports(parse_effective(dump))]


def ssh_rule(wanted: Parameters, login: Login | None, trusted: Trusted, own: Collection[str] = ()) -> Rule:
    """Return the rule for SSH; raise RefusedError where it would keep Ansible itself out.

    `own` are the node's addresses.
    """
    sources = networks("management networks", wanted.management_networks)
    ports = set(wanted.ssh_ports or sshd_ports())
    if login:
        ports.add(login.server_port)
        client = ipaddress.ip_network(login.client)
        if not (
            trusted.admits_address(client)
            or any(within(client, network) for network in sources)
            or trusted.admits_interface(interface_to(login.client, own, login.server))
        ):
            raise RefusedError(
                f"This would lock Ansible out; nothing was changed: it comes from {login.client}, which is "
                f"in none of the management networks ({', '.join(map(str, sources)) or 'none'}): add its "
                "network."
            )
    elif not sources:
        raise RefusedError("management networks: expected at least one network, else nobody could use SSH.")
    return Rule("ssh", "tcp", port_ranges("SSH ports", ports), sources)


def check_ways(ways: list[Way], rules: Filter) -> None:
    """Raise RefusedError where the rules would drop the outer packets of a tunnel that Ansible comes through.

    They pass for now, and for as long as the kernel remembers their flow.
    """
    for way in ways:
        if rules.admits(way):
            continue
        outer = " and ".join(way.rules_to_add)
        let_in = f"add {outer} to firewall_rules, or " if outer else ""
        raise RefusedError(
            f"This would lock Ansible out; nothing was changed: it comes through the tunnel {way}, which "
            "ends on this node, and the rules let its outer packets in only until they pause for a minute or "
            f"two, or the node reboots: {let_in}name {way.tunnel.name} in firewall_unchecked_tunnels if the "
            "node itself opens it."
        )


def proof(lines: list[str]) -> str:
    """Return commands for `nft` that load these lines for the proof, in a table of its own."""
    body = "; ".join(("type filter hook prerouting priority raw", *lines))
    return f"{END_PROOF} table {PROOF_TABLE} {{ chain prerouting {{ {body}; }}; }}"


def live_table() -> str:
    """Return the table as the kernel has it, without what it has counted; empty where there is none."""
    try:
        return COUNT.sub(r"\1", run(["nft", "--stateless", "--terse", "list", "table", *TABLE.split()]))
    except CommandError as error:
        if NO_TABLE in str(error):
            return ""
        raise


def trial_table(text: str) -> str:
    """Return the table as the kernel would have it, by loading the text in an empty network namespace."""
    with candidate(text.encode()) as path:
        script = f'nft -f "$1" && nft --stateless --terse list table {TABLE}'
        return COUNT.sub(r"\1", run(["unshare", "--net", "sh", "-c", script, "sh", path]))


def needs_daemon_reload(*, written: bool) -> bool:
    """Return whether systemd runs the unit that flushes everything without having read our drop-in for it.

    `written` says that the drop-in is about to be.
    """
    names = "--property=ActiveState,NeedDaemonReload"
    states = set(run(["systemctl", "show", FLUSHING_UNIT, names, "--value"]).split())
    return "active" in states and (written or "yes" in states)


def reaches(rule: Rule, one: Listener) -> bool:
    """Return whether a rule is for the port that a process listens on."""
    return rule.protocol == one.protocol and any(first <= one.port <= last for first, last in rule.ports)


def cut_off(guests: list[Interface], rules: list[Rule], found: list[Listener]) -> list[str]:
    """Return a line on listening ports that containers and guests would no longer reach, and on what to set.

    The first of the rules is SSH's, which is for administrators.
    """

    def serves(rule: Rule, one: Listener, guest: Interface) -> bool:
        return reaches(rule, one) and (
            rule is rules[0]
            or rule.for_everybody
            or any(within(network, source) for network in guest.networks for source in rule.sources)
        )

    lost = {
        guest.name: [one for one in found if not any(serves(rule, one, guest) for rule in rules)]
        for guest in guests
    }
    names = [name for name, ports in lost.items() if ports]
    if not names:
        return []
    ports = sorted({str(one) for ports in lost.values() for one in ports})
    return [
        f"Once this firewall filters, containers or virtual machines behind {shortened(names)} no longer "
        f"reach {shortened(ports, MOST_LISTED)} on this node. Where they need it, add "
        f"{', '.join(patterns(names))} to firewall_trusted_interfaces, or a rule for their network to "
        "firewall_rules."
    ]


def report(rules: list[Rule], found: list[Listener]) -> list[str]:
    """Return a line on listening ports that are open to nobody, and one on open ports without a listener."""
    closed = [str(one) for one in found if not any(reaches(rule, one) for rule in rules)]
    silent = [
        f"{rule.protocol} {first if first == last else f'{first}-{last}'} ({rule.name})"
        for rule in rules
        for first, last in rule.ports
        if not any(one.protocol == rule.protocol and first <= one.port <= last for one in found)
    ]
    lines = []
    if closed:
        lines.append(f"Listening, but open to nobody outside of the fleet: {shortened(closed, MOST_LISTED)}.")
    if silent:
        lines.append(f"Open, but nothing listens there: {', '.join(silent)}.")
    return lines


@dataclass(frozen=True)
class Outlook:
    """The firewall as it should be, and what of it is missing, from one look at the node.

    `other` is the program to end, or to bring back with an `absent` firewall. `guests` are interfaces that
    lead to containers and virtual machines, and are not trusted. `from_itself` says that Ansible's login
    comes from the node. `ways` are the tunnels that it comes through, `closed` some of the others whose outer
    packets the rules do not let in.
    """

    text: str
    rules: list[Rule]
    live: str
    wanted: str
    differing: list[File]
    other: OtherFirewall | None = None
    guests: list[Interface] = field(default_factory=list)
    from_itself: bool = False
    ways: list[Way] = field(default_factory=list)
    closed: list[Way] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether kernel and files are as they should be."""
        return self.live == self.wanted and not self.differing and not self.other


class Firewall(ConfirmedSetting[Outlook]):
    """The table, its file, and the units that load it at boot and after others have flushed it."""

    key = "firewall"
    change_name = "firewall"
    subject = f"the firewall (table {TABLE})"

    def __init__(self, wanted: Mapping[str, Any], rollback_after_s: int, login: Login | None) -> None:
        super().__init__(rollback_after_s, login)
        self.wanted = dict(wanted)
        self.present = self.wanted.get("state", "present") == "present"

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> Firewall:
        """From a plan's items, which have the names of the parameters."""
        state = "absent" if options.get("absent") else "present"
        # Nothing of how a builder is reached belongs into an image.
        login = ssh_login() if options.get("live", True) else None
        return cls(
            {**items, "state": state}, options.get("rollback_after_s", DEFAULT_ROLLBACK_AFTER_S), login
        )

    def look(self) -> Outlook:
        """Everything that is written, shown and refused comes from here."""
        return self._present() if self.present else self._absent()

    def composed(self, *, reads_chains: bool = True) -> Outlook:
        """Return what is wanted, and nothing of what the kernel has of it. Raises RefusedError.

        To read the chains of others loads the kernel module nf_tables.
        """
        wanted = Parameters.of(self.wanted)
        other = other_firewall()
        if other and not wanted.disable_other:
            refuse(other)
        if other and not self.live:
            raise RefusedError(
                f"{other.name} filters in the tree of this image, and nothing is stopped there: remove it, "
                "and run again."
            )
        if other:
            refuse_forwarding(other)
        here = own_interfaces()
        own = [address for interface in here for address in interface.addresses]
        trusted = Trusted(networks("peers", wanted.peers), interfaces(wanted.trusted_interfaces))
        ssh = ssh_rule(wanted, self.login, trusted, own)
        rules = [
            *(parse_service(name, sources) for name, sources in wanted.services.items()),
            *(parse_rule(index, rule) for index, rule in enumerate(wanted.rules)),
        ]
        check_fleet(trusted.peers, own, wanted.unknown_peers)
        ways, closed = self._tunnels(here, own, [ssh, *rules], trusted, wanted)
        if self.live and reads_chains:
            refuse_closing_chains(other)
        text = render(ssh, rules, trusted, wanted.limits)
        files = [
            File(str(RULES), text, "0600", public=True),
            File(str(FLUSHING_DROP_IN), FLUSHING_DROP_IN_TEXT),
            File(str(UNIT_FILE), UNIT_TEXT),
        ]
        guests = [
            one
            for one in here
            if one.up
            and is_guests(one.name)
            and not trusted.admits_interface(one.name)
            and not any(map(trusted.admits_address, one.networks))
        ]
        return Outlook(
            text,
            [ssh, *rules],
            "",
            text,
            [file for file in files if file.differs()],
            other,
            guests,
            bool(self.login and is_own(self.login.client, own)),
            ways,
            closed,
        )

    def _present(self) -> Outlook:
        outlook = self.composed()
        if not self.live:
            return replace(outlook, wanted="")
        live = live_table() if which("nft") else ""
        # A trial would load nftables' kernel modules, and to read a bare node must not.
        return replace(outlook, live=live, wanted=trial_table(outlook.text) if live else outlook.text)

    def _tunnels(
        self, here: list[Interface], own: list[str], rules: list[Rule], trusted: Trusted, wanted: Parameters
    ) -> tuple[list[Way], list[Way]]:
        """Return the tunnels that the login comes through, and others that the rules close.

        Raises RefusedError where they close one of the login's.
        """
        if not self.live:
            return [], []
        login = self.login
        unchecked = interfaces(wanted.unchecked_tunnels, "unchecked tunnels")

        def towards(address: str) -> str:
            return interface_to(address, own, login.server if login and address == login.client else "")

        found = [one for one in tunnels([link for link in here if link.up]) if not one.named_by(unchecked)]
        packets = Filter(rules, trusted, towards)
        ways = ways_from(login.client, found, here, towards) if login and found else []
        check_ways(ways, packets)
        others = [Way(one, peer) for one in found for peer in one.peers]
        closed = (
            way
            for way in others
            if way not in ways and not packets.admits(way) and not packets.admits_overlay(way)
        )
        return ways, list(itertools.islice(closed, MOST_CLOSED))

    def _absent(self) -> Outlook:
        live = live_table() if which("nft") and self.live else ""
        other = ended() if self.live else None
        files = [File(str(path), None) for path in (*OUR_FILES, ENDED)]
        # What was purged since cannot come back.
        there = other if other and which(other.name) else None
        return Outlook("", [], live, "", [file for file in files if file.differs()], there)

    def read(self) -> State:
        """Our files as they are; the kernel's table is what they say."""
        return {str(path): saved(path) for path in (*OUR_FILES, ENDED)}

    def settled(self) -> bool:
        """Return whether the kernel holds the rules, and the next boot loads them."""
        return self.outlook.settled and (LINK.is_symlink() or not self.present)

    def change(self) -> list[Difference]:
        """Return the files, and the kernel's table where only that one differs."""
        outlook = self.outlook
        lines = [Difference(file.path, *file.before_and_after()) for file in outlook.differing]
        if (
            self.present
            and outlook.live != outlook.wanted
            and str(RULES) not in [line.name for line in lines]
        ):
            lines.append(Difference(f"table {TABLE} in the kernel", outlook.live, outlook.wanted))
        if outlook.other:
            states = ("filters", "ended") if self.present else ("ended", "filters")
            lines.append(Difference(outlook.other.name, *states))
        return lines

    def reason(self) -> str:
        """Return a reason for a unit that somebody has disabled, which is no text that differs."""
        if not self.present or LINK.is_symlink():
            return ""
        return f"{UNIT} is not enabled: after the next boot there is no firewall"

    def way_in(self) -> WayIn | None:
        """Other rules in the kernel. To take them away opens the node, which needs no proof.

        The undo of a first change closes what it opens: the other firewall is back before our rules go.
        """
        outlook = self.outlook
        if not self.present:
            if not outlook.other:
                return None
            # Its rules may be older than sshd's port.
            live = [in_shell(outlook.other.end), RELOAD_IN_SHELL]
            return WayIn(self.change_name, self.subject, [*OUR_FILES, ENDED], live)
        end_proof = [f"nft '{END_PROOF}'"] if outlook.ways else []
        if outlook.other:
            live = [*end_proof, in_shell(outlook.other.back), RELOAD_IN_SHELL]
            return WayIn(self.change_name, self.subject, [RULES, ENDED], live)
        if outlook.live == outlook.wanted:
            return None
        return WayIn(self.change_name, self.subject, [RULES], [*end_proof, RELOAD_IN_SHELL])

    def prepare(self) -> None:
        """Have a bare node's kernel accept the rules, and notice the connections that are open."""
        if self.present and not self.outlook.live:
            trial_table(self.outlook.text)
            if self.live:
                run(["nft", WATCH])
                time.sleep(WATCH_S)

    def prove(self) -> None:
        """Have no outer packet of the login's tunnels pass as part of a flow that the kernel knows.

        What confirms the change has then passed the rules alone, in all its layers.
        """
        if lines := [line for way in self.outlook.ways if not way.peer.dialled for line in way.untracked]:
            run(["nft", proof(lines)])

    def apply(self) -> None:
        """Write the files and load them, or take all away. The node always has one of the firewalls."""
        outlook = self.outlook
        try:
            if self.present:
                self._persist(outlook.differing)
                if outlook.live != outlook.wanted:
                    # By the unit, so that what is confirmed is what the next boot does.
                    run(["systemctl", "reload-or-restart", UNIT])
                if outlook.other:
                    self._end(outlook.other)
            else:
                if outlook.other:
                    bring_back(outlook.other)
                self._remove(outlook.live, keep_folder=bool(outlook.other))
        finally:
            self.forget()

    def _persist(self, differing: list[File]) -> None:
        """Write and enable. No daemon-reload: it can cost running containers their GPUs."""
        if self.live:
            stop_lost([UNIT])
        for file in differing:
            file.write()
        if not LINK.is_symlink():
            LINK.parent.mkdir(mode=0o755, exist_ok=True)
            LINK.symlink_to(UNIT_FILE)
            sync(LINK.parent)

    def _end(self, other: OtherFirewall) -> None:
        """End the other one, and have our rules still there."""
        ours = live_table()
        end(other)
        if live_table() != ours:
            run(["systemctl", "reload-or-restart", UNIT])

    def _remove(self, live: str, *, keep_folder: bool = False) -> None:
        """Take rules and files away. An undo needs the folders that it writes to."""
        if UNIT_FILE.exists() and self.live:
            run(["systemctl", "stop", UNIT])
        if live:
            run(["nft", REMOVE])
        for path in (*OUR_FILES, ENDED):
            path.unlink(missing_ok=True)
        if keep_folder:
            return
        with contextlib.suppress(OSError):  # it holds a drop-in of somebody else, or is not there
            FLUSHING_DROP_IN.parent.rmdir()

    def restore(self, state: State) -> None:
        """Bring the files and the rules of before back."""
        if (other := ended()) and not state.get(str(ENDED)):
            bring_back(other)
        if state.get(str(RULES)) is None:
            self._remove(live_table() if which("nft") and self.live else "")
        for path in (*OUR_FILES, ENDED):
            put_back(path, state.get(str(path)))
        if RULES.exists() and self.live:
            run(["systemctl", "reload-or-restart", UNIT])
        self.forget()

    def warnings(self) -> list[str]:
        """Whom the change cuts off, what proves nothing, and when the firewall would go."""
        if not self.present:
            return []
        lines = []
        outlook = self.outlook
        if self.live and outlook.guests and not outlook.live:
            lines += cut_off(outlook.guests, outlook.rules, listeners())
        if outlook.closed:
            lines.append(
                "The rules do not let in the outer packets of tunnels that end on this node: "
                f"{shortened(outlook.closed)}. Nothing reaches the node through these once they pause for a "
                "minute or two, or the node reboots. Let them in with firewall_rules or "
                "firewall_peer_addresses, or name those that the node itself opens in "
                "firewall_unchecked_tunnels."
            )
        if self.login and outlook.from_itself and self.way_in():
            lines.append(
                f"Ansible comes from the node itself ({self.login.client}), which the firewall always lets "
                "in: the new connection that confirms this change proves nothing about other ways. Check "
                "that firewall_management_networks has those who come from outside, and that the agent or "
                "tunnel that Ansible comes through needs no port that is closed."
            )
        if unsaved := runtime_only(outlook.other):
            lines.append(
                f"firewalld runs with other rules than its files have: {', '.join(unsaved)}. Once ended, it "
                "comes back with those of its files: restart then what has set the others (podman, libvirt), "
                "or keep them first with `firewall-cmd --runtime-to-permanent`."
            )
        flushing = [file for file in outlook.differing if file.path == str(FLUSHING_DROP_IN)]
        if self.live and needs_daemon_reload(written=bool(flushing)):
            lines.append(
                f"{FLUSHING_UNIT} was running before the firewall came. Until the node's next boot, or "
                "`systemctl daemon-reload`, its restart takes the firewall away."
            )
        return lines

    def result(self) -> dict[str, Any]:
        """Ports that listen or are open, but not both."""
        return {"report": report(self.outlook.rules, listeners()) if self.present and self.live else []}
