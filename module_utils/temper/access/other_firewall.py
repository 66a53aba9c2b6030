"""Filters beside our table: refused by name; ufw and firewalld can be ended here, and brought back."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper import records
from ansible.module_utils.temper.access.packet_filters import XTABLES, Chain, ClosingChain, closing_chains
from ansible.module_utils.temper.access.sshd import is_active
from ansible.module_utils.temper.process import CommandError, printable, run, succeeds, which
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.units import unit_states

# Which one was ended here, until it is brought back.
ENDED = Path("/var/lib/temper/other-firewall.json")
ETC = Path("/etc")
NFT_UNIT = "nftables.service"
#: What ufw hands to iptables-restore.
UFW_FILES = ("ufw/before.rules", "ufw/before6.rules", "ufw/after.rules", "ufw/after6.rules")
#: What nftables.service loads, on Debian and on Enterprise Linux.
NFT_FILES = ("nftables.conf", "nftables.d/*", "sysconfig/nftables.conf", "nftables/*.nft")
#: Services that load rules by iptables, and the operator's command that keeps them from it.
LOADERS = {
    "csf.service": "csf -x",
    "shorewall.service": "systemctl disable shorewall && shorewall clear",
    "shorewall6.service": "systemctl disable shorewall6 && shorewall6 clear",
    "netfilter-persistent.service": "systemctl disable netfilter-persistent",
    "iptables.service": "systemctl disable iptables",
    "ip6tables.service": "systemctl disable ip6tables",
}
#: What a zone of firewalld has only while it runs, because NetworkManager says so.
RUNTIME_ONLY = ("interfaces",)


@dataclass(frozen=True)
class OtherFirewall:
    """A program whose rules filter beside ours.

    `at_boot` says whether the next boot starts it, `by_hand` has the operator's commands that end it and
    bring it back.
    """

    name: str
    at_boot: bool
    by_hand: tuple[str, str]

    @property
    def end(self) -> list[list[str]]:
        """The commands that end it, now and at boot. None makes systemd read all units anew."""
        if self.name == "ufw":
            return [["ufw", "disable"]]
        return [
            ["systemctl", "--no-reload", "disable", "firewalld.service"],
            ["systemctl", "stop", "firewalld.service"],
        ]

    @property
    def back(self) -> list[list[str]]:
        """The commands that bring it back as it was."""
        if self.name == "ufw":
            return [["ufw", "--force", "enable"]]
        enable = [["systemctl", "--no-reload", "enable", "firewalld.service"]] if self.at_boot else []
        # An undo at boot runs before what firewalld waits for.
        return [*enable, ["systemctl", "--no-block", "start", "firewalld.service"]]


def in_shell(commands: list[list[str]]) -> str:
    """Commands without a character that a shell reads otherwise, as one line of it."""
    return " && ".join(" ".join(command) for command in commands)


def known(name: str, *, at_boot: bool) -> OtherFirewall:
    """Return one of the two by its name."""
    by_hand = {
        "ufw": ("ufw disable", "ufw enable"),
        "firewalld": ("systemctl disable --now firewalld", "systemctl enable --now firewalld"),
    }
    return OtherFirewall(name, at_boot, by_hand[name])


def other_firewall() -> OtherFirewall | None:
    """Return the program that filters what comes in and can be ended here, if one is active."""
    # ufw.service is active even where ufw is not.
    if which("ufw") and "Status: active" in run(["ufw", "status"]):
        return known("ufw", at_boot=True)
    if which("firewalld") and is_active("firewalld.service"):
        enabled = succeeds(["systemctl", "--quiet", "is-enabled", "firewalld.service"])
        return known("firewalld", at_boot=enabled)
    return None


def refuse(other: OtherFirewall) -> None:
    """Raise RefusedError: a packet has to pass its rules as well."""
    ends, returns = other.by_hand
    raise RefusedError(
        f"{other.name} filters here as well, and a packet has to pass both: what this firewall opens may "
        "stay closed; nothing was changed. Set firewall_disable_other: true, and the run ends "
        f"{other.name} once its own rules are loaded; or run `{ends}` on the node and this again "
        f"(`{returns}` brings it back); or keep {other.name} and set firewall_state: absent."
    )


def refuse_forwarding(other: OtherFirewall) -> None:
    """Raise RefusedError where the other also translates or forwards: with it, that would end.

    An operator may come by such a port. The kernel keeps ufw's translations until the next boot, so that no
    new connection would show it.
    """
    if other.name == "ufw":
        found, remedy = ufw_translations(), "take these lines out"
    else:
        found = [
            f"{one} ({'; '.join(what)})"
            for one, has in firewalld_active().items()
            if (what := forwarded(has))
        ]
        remedy = (
            "take it out (`firewall-cmd --permanent --zone=ZONE --remove-masquerade`, "
            "`--remove-forward-port=...`, `--delete-policy=POLICY`, then `firewall-cmd --reload`)"
        )
    if found:
        raise RefusedError(
            f"{other.name} also translates addresses or forwards for others here: {', '.join(found)}. This "
            f"firewall does not, so that would end with {other.name}; nothing was changed. If nobody needs "
            f"it, {remedy} and run this again; or keep {other.name} and set firewall_state: absent."
        )


def ufw_translations() -> list[str]:
    """Return the rules of ufw's files that translate addresses, each with its place."""
    found = []
    for path in (path for name in UFW_FILES if (path := ETC / name).is_file()):
        table = ""
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            if line.startswith("*"):
                table = line[1:].strip()
            elif table == "nat" and line.startswith(("-A", "-I")):
                found.append(f"{path}:{number} ({printable(line.strip())})")
    return found


def runtime_only(other: OtherFirewall | None) -> list[str]:
    """Return the zones and policies of firewalld that run with more, or less, than its files have."""
    if not other or other.name != "firewalld":
        return []
    found = []
    for one, has in firewalld_active().items():
        kind, name = one.split()
        try:
            kept = listed(run(["firewall-cmd", "--permanent", f"--info-{kind}={name}"]))
        except CommandError:  # firewalld's files do not have it
            kept = {}
        words = sorted((has.keys() | kept.keys()) - {*RUNTIME_ONLY})
        if differing := [word for word in words if has.get(word) != kept.get(word)]:
            found.append(f"{one} ({', '.join(differing)})")
    return found


def firewalld_active() -> dict[str, dict[str, list[str]]]:
    """Return what each zone and policy at work has: {"zone public": {"services": ["ssh"], ...}}."""
    # Interfaces without a zone are in the default one, which old releases do not call active for that.
    zones = [run(["firewall-cmd", "--get-default-zone"]), run(["firewall-cmd", "--get-active-zones"])]
    names = [f"zone {name}" for name in dict.fromkeys(headings("".join(zones)))]
    with contextlib.suppress(CommandError):  # firewalld before 0.9 has no policies
        names += [f"policy {name}" for name in headings(run(["firewall-cmd", "--get-active-policies"]))]
    return {name: listed(run(["firewall-cmd", f"--info-{name.replace(' ', '=')}"])) for name in names}


def headings(text: str) -> list[str]:
    """Return the names in a list of firewall-cmd's: the lines that are not indented, without a remark."""
    return [line.split()[0] for line in text.splitlines() if line[:1].strip()]


def listed(text: str) -> dict[str, list[str]]:
    """Read `firewall-cmd --info-zone`: `  key: words`, or an item in each indented line that follows."""
    found: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith("\t"):
            found[key].append(line.strip())
        elif line.startswith("  "):
            key, _, words = line.strip().partition(":")
            found[key] = words.split()
    return {key: sorted(words) for key, words in found.items() if words}


def forwarded(has: dict[str, list[str]]) -> list[str]:
    """Return what a zone or policy does with packets of others."""
    masquerade = ["masquerade"] if has.get("masquerade") == ["yes"] else []
    rules = [rule for rule in has.get("rich rules", []) if "masquerade" in rule or "forward-port" in rule]
    egress = [zone for zone in has.get("egress-zones", []) if zone != "HOST"]
    to = [f"to {' '.join(egress)}"] if egress else []
    return [*masquerade, *has.get("forward-ports", []), *rules, *to]


def refuse_closing_chains(other: OtherFirewall | None) -> None:
    """Raise RefusedError where the kernel holds chains that close the node, beside those of `other` and ours.

    Raises CommandError where nobody can tell.
    """
    found = [one for one in closing_chains() if not other or made_by(one) != other.name]
    if not found:
        return
    loaders = dict(filter(None, (loader(one.chain) for one in found)))
    commands = [*loaders.values(), *(one.removal for one in found)]
    origin = f"{' and '.join(loaders)}, most likely" if loaders else "a program that Temper does not know"
    raise RefusedError(
        f"{'; '.join(f'{one.chain} filters here as well: {one.how}' for one in found)}; a packet has to pass "
        f"that and ours, so what this firewall opens may stay closed; nothing was changed. It comes from "
        f"{origin}. Add what has to stay open to firewall_rules, run "
        f"{', '.join(f'`{command}`' for command in commands)} on the node, and this again; or keep it and "
        "set firewall_state: absent (firewall_disable_other ends only ufw and firewalld)."
    )


def made_by(closing: ClosingChain) -> str:
    """Return which of the two has made a chain, by the names that they use; empty where neither has."""
    if any(name.startswith(("ufw-", "ufw6-")) for name in closing.calls):
        return "ufw"
    return "firewalld" if closing.chain.table == "firewalld" or "INPUT_ZONES" in closing.calls else ""


def loader(chain: Chain) -> tuple[str, str] | None:
    """Return the service that loads a chain's table at boot, most likely, and the command against it."""
    states = unit_states([NFT_UNIT, *LOADERS])
    at_work = [
        unit
        for unit, state in states.items()
        if state["UnitFileState"] == "enabled" or state["ActiveState"] == "active"
    ]
    if NFT_UNIT in at_work and chain.variant != "legacy":
        for path in (path for pattern in NFT_FILES for path in sorted(ETC.glob(pattern)) if path.is_file()):
            if names_table(path.read_text(encoding="utf-8", errors="replace"), chain):
                return f"{NFT_UNIT} ({path})", "systemctl disable nftables"
    if chain.table not in XTABLES:
        return None
    return next(((unit, LOADERS[unit]) for unit in LOADERS if unit in at_work), None)


def names_table(text: str, chain: Chain) -> bool:
    """Return whether a file in nft's language has a chain's table. The family ip need not be named."""
    family = rf"(?:{chain.family}\s+)" + ("?" if chain.family == "ip" else "")
    table = rf"^\s*(?:add\s+)?table\s+{family}{re.escape(chain.table)}\b"
    return re.search(table, text, re.MULTILINE) is not None


def ended() -> OtherFirewall | None:
    """Return the one that was ended here, if any. Raises RecordError where nobody can tell which."""
    remedy = (
        "bring the firewall that Temper has ended here back yourself (`ufw enable`, or `systemctl enable "
        "--now firewalld`), remove the file, and run again"
    )
    _, data = records.load(ENDED, {"name": str, "at_boot": bool}, remedy=remedy)
    if not os.path.lexists(ENDED):
        return None
    try:
        return known(data["name"], at_boot=data["at_boot"])
    except KeyError as error:
        raise records.damaged(ENDED, f"expected a firewall's name, found {error}", remedy) from error


def note_end(other: OtherFirewall) -> None:
    """Write down which one is about to be ended, unless another is written there already."""
    if not os.path.lexists(ENDED):
        records.store(ENDED, {"name": other.name, "at_boot": other.at_boot})


def end(other: OtherFirewall) -> None:
    """Have it filter no more, now and after a reboot."""
    note_end(other)
    for command in other.end:
        run(command)


def bring_back(other: OtherFirewall) -> None:
    """Have it filter again as it did, and forget that it was ended."""
    for command in other.back:
        run(command)
    with contextlib.suppress(FileNotFoundError):
        ENDED.unlink()
