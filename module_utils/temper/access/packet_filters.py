"""Other packet filters on the node, found by the rules that the kernel holds.

A packet has to pass every base chain on its way in. Read are the chains, and only the rules of those that may
close: a node of Kubernetes has tens of thousands of rules elsewhere.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.network_interfaces import is_guests
from ansible.module_utils.temper.access.nftables_rules import LAST_PORT, TABLE
from ansible.module_utils.temper.process import parsed, printable, run, which

PROC = Path("/proc")
FAMILIES = ("ip", "ip6", "inet", "netdev")
#: Where a packet to the node itself passes. What is forwarded, and what the node sends, is nothing of ours.
HOOKS = ("ingress", "prerouting", "input")
#: The tables of iptables. Their chains that a packet to the node passes have the names of the hooks.
XTABLES = ("raw", "mangle", "filter", "security")
#: Chains of programs that only drop what comes from listed addresses, or concerns containers and guests.
GUESTS_CHAINS = ("KUBE-*", "cali-*", "CILIUM*", "CNI-*", "FLANNEL*", "DOCKER*", "LIBVIRT_*", "f2b-*", "ts-*")
#: What nft's language takes without quotes.
NAME = re.compile(r"[A-Za-z_][\w/\\.-]*", re.ASCII)
CLOSES = ("drop", "reject")
INTERFACE_KEYS = ("iif", "iifname")
#: What says where a packet comes from, in nft's words and in those of iptables with how many values follow. A
#: rule for all but some sources is for nearly every packet.
SOURCES = ("saddr",)
SOURCE_OPTIONS = {"-s": 1, "--src-range": 1, "--match-set": 2, "--src-cc": 1, "--source-country": 1}
PORTS = ("dport", "sport")
PORT_OPTIONS = ("--dport", "--dports", "--sport", "--sports", "--ports")
#: A rule for more ports than this is for most of them.
MOST_OF_SOME = 1 << 15
#: Statements that decide nothing about a packet.
SILENT = {"counter", "log", "comment"}


@dataclass(frozen=True)
class FilterRule:
    """What a rule does with a packet.

    `verdict` is drop, reject, accept, return, jump or goto, or empty. `broad` says that it is for every new
    connection, or for all of a protocol or an interface, `always` that nothing limits it, `one_interface`
    that it is for what comes by named interfaces. `removal` is the operator's command that takes it away.
    """

    verdict: str
    target: str = ""
    broad: bool = True
    always: bool = True
    one_interface: bool = False
    removal: str = ""


@dataclass(frozen=True)
class Chain:
    """A base chain. `variant` says which iptables it was read by: legacy, nft, or empty where nft read it."""

    family: str
    table: str
    name: str
    hook: str
    policy: str
    variant: str = ""

    def __str__(self) -> str:
        family = f"{iptables(self.family)}-legacy" if self.variant == "legacy" else self.family
        table = printable(f"{family} {self.table}")
        return f"chain {printable(self.name)} of table {table} (hook {self.hook})"

    @property
    def opening(self) -> str:
        """The operator's command that has it accept what no rule decides."""
        if self.variant:
            return f"{iptables(self.family)}-{self.variant} -t {self.table} -P {self.name} ACCEPT"
        return printable(f"nft 'add chain {self.family} {self.table} {self.name} {{ policy accept; }}'")


@dataclass(frozen=True)
class ClosingChain:
    """A base chain that drops or rejects what no rule of it accepts.

    `how` says by what, in words, `removal` is the operator's command that takes that away. `calls` are the
    chains that it jumps to.
    """

    chain: Chain
    how: str
    removal: str
    calls: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SavedTable:
    """A table of iptables: the policies of its base chains, and the rules of all its chains."""

    policies: dict[str, str]
    rules: dict[str, list[FilterRule]]

    def rules_of(self, name: str) -> list[FilterRule]:
        """Return the rules of a chain."""
        return self.rules.get(name, [])


def closing_chains() -> list[ClosingChain]:
    """Return the base chains of others that close the node. Raises CommandError."""
    found = []
    if which("nft"):
        text = run(["nft", "--json", "list", "chains"])
        for chain in parsed("nft --json list chains", text, base_chains):
            found.append(closing(chain, functools.partial(nft_rules, chain)))
    for family in ("ip", "ip6"):
        # Where nft is still to be installed, iptables may tell.
        tables = legacy_tables(family) if which("nft") else [*legacy_tables(family), ("nft", "filter")]
        for variant, name in tables:
            save = f"{iptables(family)}-{variant}-save"
            if which(save):
                table = saved_table(save, name)
                found += [closing(chain, table.rules_of) for chain in hooked(family, variant, name, table)]
    return [one for one in found if one]


def base_chains(text: str) -> list[Chain]:
    """Read `nft --json list chains`: those that a packet to the node passes, without our own."""
    return [
        Chain(found["family"], found["table"], found["name"], found["hook"], found.get("policy", "accept"))
        for found in objects(text, "chain")
        if found.get("hook") in HOOKS
        and found["family"] in FAMILIES
        and not is_guests(str(found.get("dev", "")))
        and f"{found['family']} {found['table']}" != TABLE
    ]


def objects(text: str, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind that nft prints as JSON."""
    items = json.loads(text)["nftables"] if text.strip() else []
    return [item[kind] for item in items if kind in item]


def closing(chain: Chain, rules_of: Callable[[str], list[FilterRule]]) -> ClosingChain | None:
    """Return the chain with what closes it, if anything does."""
    calls: set[str] = set()
    decided: dict[str, tuple[FilterRule, str] | None] = {}

    def end(name: str) -> tuple[FilterRule, str] | None:
        """Return the rule that decides on a packet that no narrow rule of a chain matches, and its place."""
        accepts = False
        for number, rule in enumerate(rules_of(name), 1):
            accepts = accepts or rule.verdict == "accept"
            if rule.target:
                calls.add(rule.target)
                if not rule.broad or any(
                    fnmatch.fnmatchcase(rule.target, pattern) for pattern in GUESTS_CHAINS
                ):
                    continue
                if rule.target not in decided:
                    decided[rule.target] = None
                    decided[rule.target] = end(rule.target)
                decision = decided[rule.target]
                if decision and (decision[0].verdict in CLOSES or rule.always):
                    return decision
                if rule.always and rule.verdict == "goto":
                    return None
            # To shut an interface off (a BMC's) is no filter of what comes by it.
            elif rule.broad and rule.verdict in CLOSES and (accepts or not rule.one_interface):
                return rule, f"rule {number} of chain {printable(name)}: {rule.verdict}"
            elif rule.always and rule.verdict == "accept":
                return rule, ""
            elif rule.always and rule.verdict == "return":
                return None
        return None

    decision = end(chain.name)
    if decision:
        rule, how = decision
        return ClosingChain(chain, how, rule.removal, frozenset(calls)) if how else None
    if chain.policy == "drop":
        return ClosingChain(chain, "policy drop", chain.opening, frozenset(calls))
    return None


def nft_rules(chain: Chain, name: str) -> list[FilterRule]:
    """Return the rules of a chain in a base chain's table."""
    if not all(NAME.fullmatch(word) for word in (chain.table, name)):
        return []
    words = ["list", "chain", chain.family, chain.table, name]
    text = run(["nft", "--json", "--terse", *words])
    save = f"{iptables(chain.family)}-nft-save"
    if '"xt"' in text and chain.table in XTABLES and which(save):
        # What nft cannot say of iptables' own matches and targets, iptables can.
        return saved_table(save, chain.table).rules_of(name)
    return parsed(f"nft --json {' '.join(words)}", text, listed_rules)


def listed_rules(text: str) -> list[FilterRule]:
    """Read the rules that `nft --json list chain` prints (libnftables-json(5))."""
    return [
        replace(
            listed_rule(found["expr"]),
            removal=f"nft delete rule {found['family']} {found['table']} {found['chain']} "
            f"handle {found['handle']}",
        )
        for found in objects(text, "rule")
    ]


def listed_rule(statements: list[dict[str, Any]]) -> FilterRule:
    """Read one rule."""
    verdict, target, broad, always, one_interface = "", "", True, True, False
    for statement in statements:
        ((kind, value),) = statement.items()
        if kind in {"accept", "drop", "reject", "return"}:
            verdict = kind
        elif kind in {"jump", "goto"}:
            verdict, target = kind, value["target"]
        elif kind == "xt" and value and value.get("type") == "target":
            verdict = {"DROP": "drop", "REJECT": "reject"}.get(value.get("name"), "")
        elif kind == "match":
            always = False
            broad = broad and broad_match(value["op"], value["left"], value["right"])
            key = value["left"].get("meta", {}).get("key")
            one_interface = one_interface or (key in INTERFACE_KEYS and value["op"] != "!=")
        elif kind not in SILENT:
            always = broad = False
    return FilterRule(verdict, target, broad, always, one_interface)


def broad_match(operator: str, left: dict[str, Any], right: Any) -> bool:
    """Return whether a match covers new connections of most sources and to most ports.

    It may restrict the protocol or the interface.
    """
    ports = right
    right = right.get("set", []) if isinstance(right, dict) else right
    values = {item for item in (right if isinstance(right, list) else [right]) if isinstance(item, str)}
    negated = operator == "!="
    if "&" in left:  # TCP's flags with a mask
        left = left["&"][0]
    ((kind, what),) = left.items()
    key = what.get("key") or what.get("field") if isinstance(what, dict) else ""
    if kind == "concat" or (kind, key in SOURCES) == ("payload", True):
        return negated
    if kind == "payload" and key in PORTS:
        return most_ports(listed_ports(operator, ports)) != negated
    if (kind, key) == ("ct", "state"):
        return ("new" in values) != negated
    if kind == "meta" and key in INTERFACE_KEYS:
        return negated or any(name != "lo" and not is_guests(name) for name in values)
    if kind in {"meta", "payload"} and key in {"l4proto", "nfproto", "protocol", "nexthdr"}:
        return bool({"tcp", "udp", "ipv4", "ipv6"} & values) != negated
    # To drop a connection's first packet is to drop it; other flags are a scanner's.
    return (kind, key, negated) == ("payload", "flags", False) and values == {"syn"}


def listed_ports(operator: str, right: Any) -> list[tuple[int, int]]:
    """Return the ranges of ports that a match names; none of a named set."""
    if operator in {">", ">=", "<", "<="}:
        right = {"range": [right, LAST_PORT] if operator[0] == ">" else [0, right]}
    items = right["set"] if isinstance(right, dict) and isinstance(right.get("set"), list) else [right]
    ranges = [one["range"] if isinstance(one, dict) and "range" in one else [one, one] for one in items]
    return [(first, last) for first, last in ranges if type(first) is type(last) is int]


def most_ports(ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether these are more than half of all ports."""
    return sum(last - first + 1 for first, last in ranges) > MOST_OF_SOME


def iptables(family: str) -> str:
    """Return the name of a family's program."""
    return {"ip": "iptables", "ip6": "ip6tables"}.get(family, family)


def legacy_tables(family: str) -> list[tuple[str, str]]:
    """Return the tables of legacy iptables, each with the name of that variant."""
    try:
        # The kernel lists what is loaded. To ask iptables would load it.
        loaded = (PROC / "net" / f"{family}_tables_names").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return []
    return [("legacy", name) for name in XTABLES if name in loaded.split()]


def hooked(family: str, variant: str, name: str, table: SavedTable) -> list[Chain]:
    """Return the base chains of a table of iptables that a packet to the node passes."""
    return [
        Chain(family, name, hook, hook.lower(), table.policies[hook].lower(), variant)
        for hook in ("PREROUTING", "INPUT")
        if hook in table.policies
    ]


def saved_table(save: str, table: str) -> SavedTable:
    """Return a table as iptables-save prints it."""
    command = [save, "-t", table]
    remove = f"{save[: -len('-save')]} -t {table} -D"
    return parsed(" ".join(command), run(command), lambda text: read_saved(text, remove))


def read_saved(text: str, remove: str) -> SavedTable:
    """Read what iptables-save prints of one table. `remove` begins the command that takes a rule away."""
    policies: dict[str, str] = {}
    found: dict[str, list[FilterRule]] = {}
    for line in text.split("\n"):
        if line.startswith(":"):
            name, policy, *_ = line[1:].split()
            policies[name] = policy
        elif line.startswith("-A "):
            _, name, *words = shlex.split(line)
            rule = saved_rule(words)
            if rule.target and rule.target not in policies:  # a target of iptables, which decides nothing
                rule = replace(rule, verdict="", target="")
            before = found.setdefault(name, [])
            before.append(replace(rule, removal=f"{remove} {name} {len(before) + 1}"))
    return SavedTable(policies, found)


def saved_rule(words: list[str]) -> FilterRule:
    """Read the words of a rule, in which a target and its options come last."""
    broad = always = True
    negated = one_interface = False
    rest = iter(words)
    for word in rest:
        if word in {"-j", "-g"}:
            target = next(rest, "")
            if target in {"ACCEPT", "DROP", "REJECT", "RETURN"}:
                return FilterRule(target.lower(), "", broad, always, one_interface)
            return FilterRule("goto" if word == "-g" else "jump", target, broad, always)
        if word in {"-m", "--comment"}:
            next(rest, "")
        elif word != "!":
            always = False
            broad = broad and broad_option(word, rest, negated=negated)
            one_interface = one_interface or (word == "-i" and not negated)
        negated = word == "!"
    return FilterRule("", "", broad, always)


def broad_option(word: str, values: Iterator[str], *, negated: bool) -> bool:
    """Return whether an option of iptables matches new connections of most sources and to most ports."""
    if word in SOURCE_OPTIONS:
        for _ in range(SOURCE_OPTIONS[word]):
            next(values, "")
        return negated
    if word in PORT_OPTIONS:
        ends = [part.partition(":") for part in next(values, "").split(",")]
        return most_ports((int(first), int(last or first)) for first, _, last in ends) != negated
    if word == "--syn":
        return not negated
    if word == "--tcp-flags":
        return (next(values, ""), next(values, "")) == ("FIN,SYN,RST,ACK", "SYN") and not negated
    if word in {"--state", "--ctstate"}:
        return ("NEW" in next(values, "").split(",")) != negated
    if word == "-p":
        return (next(values, "") in {"tcp", "udp", "all"}) != negated
    if word == "-i":
        name = next(values, "")
        return negated or (name != "lo" and not is_guests(name))
    return False
