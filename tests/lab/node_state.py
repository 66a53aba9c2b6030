"""The whole state of a node, to compare with another time or another node: every file, and what is in force.

It knows nothing of how Temper stores anything: it reads the root file system and asks the programs that act.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.lab import node as machine
from tests.lab.settings import Node

State = dict[str, str]

# Runs on the node. Other file systems are left out: what is mounted over a folder hides what is compared.
_WALK = """
import hashlib, json, os, stat, sys
texts, skipped = tuple(json.loads(sys.argv[1])), set(json.loads(sys.argv[2]))
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")} - {"/"}
found = {}
def look(path):
    info = os.lstat(path)
    kind, owner = stat.filemode(info.st_mode), f"{info.st_uid}:{info.st_gid}"
    what = ""
    if stat.S_ISLNK(info.st_mode):
        what = "-> " + os.readlink(path)
    elif stat.S_ISREG(info.st_mode):
        data = open(path, "rb").read()
        what = hashlib.sha256(data).hexdigest()
        if path.startswith(texts) and len(data) < 65536:
            what += "\\n" + data.decode(errors="replace")
    elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        what = f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    found[path] = f"{kind} {owner} {what}"
for folder, folders, files in os.walk("/"):
    folders[:] = sorted(name for name in folders if os.path.join(folder, name) not in mounts | skipped)
    for name in folders + files:
        try:
            look(os.path.join(folder, name))
        except FileNotFoundError:
            pass  # a service has removed it since the folder was read
json.dump(found, sys.stdout)
"""
_SKIPPED = ("/proc", "/sys", "/run", "/tmp", "/dev")
# So that a difference can be read, not only counted.
_TEXTS = ("/etc/", "/var/lib/temper/")

# What is in force: a command, and what separates the name of a fact from its value in each line. Without a
# separator, its whole output is one fact. A program that is not there yet says nothing.
_IN_FORCE = {
    "sshd": ("sshd -T", " "),
    # Without what rules note in dynamic sets: whose connections they count now.
    "nftables": (
        r"nft --stateless list ruleset | awk '/^\tset / { dynamic = 0 } /flags .*dynamic/ { dynamic = 1 } "
        r"dynamic && /elements = \{/ { notes = 1 } !notes { print } /\}/ { notes = 0 }'",
        None,
    ),
    "sysctl": ("sysctl -a", " ="),
    "unit file": ("systemctl list-unit-files --no-legend --plain --full", " "),
    # Those that only another one names come and go with what systemd has looked up.
    "active unit": (
        "systemctl list-units --state=active --no-legend --plain --full --type=service,socket,timer | "
        "cut -d' ' -f1",
        " ",
    ),
    "account": ("getent passwd", ":"),
    "group": ("getent group", ":"),
    "password": ("getent shadow", ":"),
    "package": (
        "dpkg-query --show --showformat '${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\\n'",
        " ",
    ),
    "rpm": ("rpm -qa --qf '%{NAME} %{EVR}\\n'", " "),
    "package mark": ("apt-mark showhold | sed 's/$/ held/'; apt-mark showauto | sed 's/$/ automatic/'", " "),
    "mount": (
        "findmnt --raw --noheadings --output TARGET,FSTYPE,VFS-OPTIONS | grep -vE '^/(proc|sys|run)'",
        " ",
    ),
    "kernel module": ("grep -s . /sys/module/nvidia*/version", ":"),
    "GPU": (
        "nvidia-smi --format=csv,noheader --query-gpu=index,persistence_mode,power.limit,ecc.mode.current,"
        "mig.mode.current,clocks.applications.graphics,clocks.applications.memory",
        ", ",
    ),
}


@dataclass(frozen=True)
class Exemption:
    """A difference that may be, and why: of facts whose whole name matches a pattern.

    With `only` it is about less: `new` facts, or the `content` of a file that both states have, of one type,
    mode and owner.
    """

    pattern: str
    reason: str
    only: Literal["new", "content"] | None = None

    def covers(self, difference: Difference) -> bool:
        """Whether it is about this difference."""
        if not re.fullmatch(self.pattern, difference.name):
            return False
        match self.only:
            case "new":
                return difference.before is None
            case "content":
                return _attributes(difference.before) == _attributes(difference.after)
            case None:
                return True


def _attributes(file: str | None) -> list[str]:
    """Type, mode and owner."""
    return (file or "").split(" ")[:2]


@dataclass(frozen=True)
class Difference:
    """One fact that two states do not share; None stands for not there."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            there = self.after if self.before is None else self.before
            return f"{'new' if self.before is None else 'gone'}: {self.name} {(there or '').strip()}"
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "before", "after", lineterm="", n=0
        )
        return "\n    ".join([f"changed: {self.name}", *lines])


def capture(node: Node) -> State:
    """Read a running node through the side door: four seconds on an idle machine."""
    arguments = (json.dumps(_TEXTS), json.dumps(_SKIPPED))
    files = json.loads(machine.run_inside(node, ["python3", "-c", _WALK, *arguments], 300))
    state: State = {f"file {path}": what for path, what in files.items()}
    for kind, (command, separator) in _IN_FORCE.items():
        listing = machine.run_inside(node, ["sh", "-c", f"{{ {command}; }} 2>/dev/null; true"])
        if separator is None:
            state[kind] = listing
            continue
        # Several lines of one name, as sshd's ListenAddress, are one fact.
        values: dict[str, list[str]] = {}
        for line in listing.splitlines():
            name, _, value = line.partition(separator)
            values.setdefault(name, []).append(value.strip())
        state |= {f"{kind} {name}": "\n".join(sorted(several)) for name, several in values.items()}
    return state


def capture_all(nodes: Sequence[Node]) -> dict[Node, State]:
    """Read several nodes at a time."""
    with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
        return dict(zip(nodes, pool.map(capture, nodes), strict=True))


def compare(before: State, after: State, exemptions: Iterable[Exemption] = ()) -> list[Difference]:
    """What differs beyond the exemptions, by name."""
    differences = [
        Difference(name, before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    allowed = tuple(exemptions)
    return [each for each in differences if not any(exemption.covers(each) for exemption in allowed)]


# What two looks at one node do not share, whatever was done in between.
VOLATILE = (
    Exemption(r"file /var/log(/.*)?", "logs"),
    Exemption(r"file /var/(cache|lib)/apt(/.*)?", "apt's lists and caches follow the repositories"),
    Exemption(r"file /var/cache/ldconfig/aux-cache", "ldconfig's cache has times in it"),
    Exemption(r"file /var/lib/systemd/timers(/.*)?", "when a timer last came"),
    Exemption(r"file /var/tmp/systemd-private-.*", "of a service, as long as it runs"),
    Exemption(
        r"file /var/lib/dpkg/(status|diversions|statoverride)-old", "dpkg's copy of before its last change"
    ),
    Exemption(r"file /var/backups(/.*)?", "dpkg's daily copies"),
    Exemption(r"file /etc/(passwd|group|shadow|gshadow|subuid|subgid)-", "copies of before the last change"),
    Exemption(r"unit file session-.*\.scope", "somebody is logged in"),
    Exemption(r"sysctl kernel\.random\..*", "random"),
    Exemption(r"sysctl fs\.(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota\..*)", "counters"),
    Exemption(r"sysctl kernel\.(ns_last_pid|pty\.nr)", "counters"),
    Exemption(
        r"active unit (user@|user-runtime-dir@|session-|systemd-(hostnamed|timedated|localed)|apt-daily|"
        r"dpkg-db-backup|systemd-tmpfiles-clean|nvidia-cdi-refresh).*",
        "runs while somebody is logged in, asks, or a timer has come",
    ),
)


_PURGED = "a purge of Debian's packages leaves it"
# What packages leave that came and were purged again.
PURGED = (
    Exemption(r"(account|group|password) (nvpd|prometheus|_chrony)", _PURGED, only="new"),
    Exemption(
        r"file /etc/(passwd|group|shadow|gshadow|subuid|subgid)",
        "accounts and groups are compared one by one",
        only="content",
    ),
    Exemption(r"file /var/lib/(ucf|pam)/.*", _PURGED),
    Exemption(r"file /var/cache/debconf/.*", _PURGED),
    Exemption(r"file /var/cache/(cracklib|apparmor)(/.*)?", _PURGED, only="new"),
    Exemption(r"file /etc/ld\.so\.cache", _PURGED, only="content"),
    Exemption(r"file /var/lib/dkms(/mok\.(key|pub))?", "somebody may have enrolled the key", only="new"),
    Exemption(r"file /usr/lib/modules/[^/]+/(modules\..*|updates(/dkms)?)", "depmod's, or empty", only="new"),
)
# What auditd, atop and chrony leave that are removed and not purged, with their folders.
_LEFT = (
    r"package (auditd|atop|chrony):.*",
    r"file /etc/(cron\.d|apparmor\.d(/local)?)",
    r"file /etc/(dhcp|network|ppp)(/(dhclient-exit-hooks|i[fp]-[a-z-]+)\.d)?",
    r"file /etc/(audit|chrony)(/.*)?",
    r"file /etc/(.*/)?([KS]\d\d|usr\.sbin\.)?(atop|audit|chrony)\w*(-rotate|-rules)?(\.(service|timer))?",
    r"file /var/lib/systemd/deb-systemd-helper-enabled/.*(atop|audit|chrony).*",
    r"file /var/lib/dpkg/info/(atop|auditd|chrony)\..*",
)
REMOVED = (
    *(Exemption(pattern, "configuration and data are the operator's to delete", "new") for pattern in _LEFT),
    Exemption(r"file /var/lib/dpkg/(status|statoverride|triggers/File)", "dpkg's notes on these", "content"),
)


def store(state: State, path: Path) -> None:
    """Keep a state for whoever looks into a difference."""
    path.write_text(json.dumps(state, indent=1, sort_keys=True))
