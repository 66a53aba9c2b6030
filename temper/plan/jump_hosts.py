"""Which nodes are reached through which, and what that asks of the plans of those."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from temper.plan.convert import build
from temper.plan.ssh_ways import Hop, Way
from temper.plan.variables import SshHardening
from validation.model.printable import first_of

#: Plays of playbooks/harden.yml for jump hosts. Deeper ones share the last.
MOST_LEVELS = 3
#: Nodes behind a jump host to which a new connection is opened, from first to last of them.
SAMPLE = 8
NAMES_SHOWN = 4
#: Nodes that a controller works on at the same time, and what it opens on the jump host for each: connections
#: at once (one stays, one confirms), and in a minute (a login, what confirms three roles, what proves them).
MOST_AT_ONCE = 256
OPEN, NEW_IN_A_MINUTE = 2, 6


@dataclass(frozen=True)
class SshNode:
    """What a node is called in the inventory and by ssh, and how ssh reaches it; None where it does not."""

    names: frozenset[str]
    way: Way | None


@dataclass(frozen=True)
class JumpHost:
    """A node that others are reached through. `level` is 1 where nobody behind it is a jump host, too.

    `ports` and `users` are those that sshd forwards for; none where a program on the node does, and port 0
    where nobody can tell.
    """

    behind: tuple[str, ...]
    level: int
    ports: tuple[int, ...] = ()
    users: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: object) -> JumpHost:
        """From its JSON form. Raises ValueError."""
        return build(cls, data if isinstance(data, Mapping) else {}, "jump host")

    @property
    def forwards(self) -> bool:
        """Whether sshd there has to forward."""
        return bool(self.ports)

    @property
    def sample(self) -> tuple[str, ...]:
        """Some of the nodes behind it, from the whole range."""
        number = len(self.behind)
        return (
            tuple(self.behind[place * number // SAMPLE] for place in range(SAMPLE))
            if number > SAMPLE
            else self.behind
        )


def named(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    return first_of(names, NAMES_SHOWN)


def _same(name: str) -> str:
    """Return a name or an address in the form in which it is compared."""
    try:
        return ipaddress.ip_address(name.strip("[]")).compressed
    except ValueError:
        return name.lower()


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def jump_hosts(
    nodes: Mapping[str, SshNode], resolve: Callable[[Collection[str]], Mapping[str, Collection[str]]]
) -> dict[str, JumpHost]:
    """Return the nodes that others are reached through, by their names in the inventory.

    `resolve` says the addresses of names. It is asked where a jump host is no node by name.
    """
    behind: dict[str, set[str]] = defaultdict(set)
    ports: dict[str, set[int]] = defaultdict(set)
    users: dict[str, set[str]] = defaultdict(set)
    ways = {name: node.way for name, node in nodes.items() if node.way and node.way.hops}
    holders = _holders({name: node.names for name, node in nodes.items()})
    hops = {hop for one in ways.values() for hop in one.hops}
    strange = {name for hop in hops if not _held(hop, holders) for name in hop.names if hop.port}
    if strange:
        addresses = resolve({*strange, *(name for node in nodes.values() for name in node.names)})
        known = {
            name: {found for one in node.names for found in addresses.get(one, ())}
            for name, node in nodes.items()
        }
        by_address = _holders(known)
        for hop in hops:
            for name in strange.intersection(hop.names):
                for address in addresses.get(name, ()):
                    holders.setdefault(_same(name), set()).update(by_address.get(_same(address), ()))
    for node, one in ways.items():
        for hop in one.hops:
            for jump in _nodes_of(hop, nodes, holders) - {node}:
                behind[jump].add(node)
                if hop.forwards:
                    ports[jump].add(hop.port)
                    users[jump] |= {hop.user} - {""}
    levels = _levels(behind)
    return {
        jump: JumpHost(
            tuple(name for name in nodes if name in behind[jump]),
            levels[jump],
            tuple(sorted(ports[jump])),
            tuple(sorted(users[jump])),
        )
        for jump in nodes
        if jump in behind
    }


def _holders(names: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return the nodes that have each name."""
    found: dict[str, set[str]] = {}
    for node, own in names.items():
        for name in own:
            found.setdefault(_same(name), set()).add(node)
    return found


def _held(hop: Hop, holders: Mapping[str, set[str]]) -> set[str]:
    return {node for name in hop.names for node in holders.get(_same(name), ())}


def _nodes_of(hop: Hop, nodes: Mapping[str, SshNode], holders: Mapping[str, set[str]]) -> set[str]:
    """Return the nodes that a hop may be. Nodes that share an address (NAT) are told apart by their ports."""
    found = _held(hop, holders)
    if not hop.port:
        return found
    ports = {name: one.port for name in found if (one := nodes[name].way)}
    exact = {name for name, port in ports.items() if port == hop.port}
    # Behind another port of a shared address is none of them: the machine that has it, say.
    shared = len({*ports.values()}) > 1 or any(map(_is_loopback, hop.names))
    return exact or (set() if shared else found)


def _levels(behind: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return how many jump hosts stand one behind the other from each, as far as there are plays.

    Those of a circle have the last one.
    """
    levels = dict.fromkeys(behind, 1)
    for _ in range(MOST_LEVELS - 1):
        levels = {jump: 1 + max(levels.get(name, 0) for name in behind[jump]) for jump in behind}
    return levels


def planned_forwarding(wanted: str, jump: JumpHost | None) -> str:
    """Return the AllowTcpForwarding of a node: what is wanted, and at least what those behind it need."""
    if not jump or not jump.forwards:
        return wanted
    return {"no": "local", "remote": "yes"}.get(wanted, wanted)


def with_room(limit: int, jump: JumpHost | None, each: int = 1) -> int:
    """Return a limit of one source's connections, with so many for each node behind; 0 is no limit."""
    return limit + each * min(len(jump.behind), MOST_AT_ONCE) if jump and limit else limit


def _first(value: object) -> str:
    """Return the value of a keyword as sshd reads it: the first line counts."""
    item = value[0] if isinstance(value, list | tuple) and value else value
    return ("no", "yes")[item] if isinstance(item, bool) else str(item).strip().lower()


def problems(jump: JumpHost, wish: SshHardening, given: Collection[str]) -> Iterator[str]:
    """Say which variables would cut off the nodes behind. `given` are those that the inventory sets."""
    if not jump.forwards or wish.state == "absent":
        return
    others = named(jump.behind)
    harm = f"through this node, this machine reaches {others}, which would be cut off"
    extra = {key.lower(): _first(value) for key, value in wish.extra_options.items()}
    name, value = "ssh_hardening_tcp_forwarding", str(wish.tcp_forwarding)
    if "allowtcpforwarding" in extra:
        name, value = "ssh_hardening_extra_options: AllowTcpForwarding", extra["allowtcpforwarding"]
    if value in ("no", "remote") and (name in given or "allowtcpforwarding" in extra):
        yield f"{name} is {value}: {harm}. Set it to local, or have ssh go another way"
    if extra.get("disableforwarding") == "yes":
        yield f"ssh_hardening_extra_options: DisableForwarding is yes: {harm}. Take it out"
    if wish.ports and (closed := sorted(set(jump.ports) - {0, *wish.ports})):
        ports = ", ".join(map(str, closed))
        yield f"ssh_hardening_ports has no {ports}: {harm}. Keep it until ssh here goes by another port"
    patterns = [pattern.partition("@")[0] for pattern in wish.allow_users]
    for user in jump.users:
        if patterns and not any(fnmatchcase(user, pattern) for pattern in patterns):
            yield f"ssh_hardening_allow_users has no {user}: as {user}, {harm}. Add it"


def read(known: object) -> dict[str, JumpHost]:
    """Return the jump hosts from the result of action fleet_ways, which may have had no turn."""
    found = known.get("jump_hosts") if isinstance(known, Mapping) else None
    return {str(name): JumpHost.from_dict(one) for name, one in (found or {}).items()}


def forbidden(names: Sequence[str], jumps: Sequence[str]) -> str:
    """Say that a jump host does not forward, and what lets it."""
    jump = named(jumps)
    return (
        f"{named(names)} {'is' if len(names) == 1 else 'are'} reached through {jump}, which forbids "
        f"forwarding. Set ssh_hardening_tcp_forwarding: local for {jump}; see also the Match blocks of its "
        "sshd, and the options of the key there (restrict, no-port-forwarding)"
    )


def kept_open(name: str, jumps: Sequence[str]) -> str:
    """Say that a connection which ssh keeps open has the settings of its time."""
    jump = named(jumps)
    return (
        f"a new connection through {jump} gets as far as the sshd of {name}. Where ssh keeps an older one "
        f"open to {jump} (ControlMaster), it has the settings of its time: end it (ssh -O exit)"
    )


def cut_off(names: Sequence[str], jump: str, said: str) -> str:
    """Say that nodes are no longer reached through a jump host."""
    return (
        f"{named(names)}: no new connection gets there through {jump} any more, as before this change "
        f"({said or 'ssh gave no reason'}). Compare the accounts, ports and networks that the change takes "
        "away with those of the way (ProxyJump, ProxyCommand)"
    )


def plan_line(jump: JumpHost) -> str:
    """Say of whom a node is the jump host."""
    forwards = "; its sshd goes on forwarding to them (AllowTcpForwarding)" if jump.forwards else ""
    return f"jump host of {named(jump.behind)}{forwards}; hardened after them"
