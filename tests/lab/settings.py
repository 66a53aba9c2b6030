"""Names, addresses and paths of one lab and of its nodes: all derived, nothing looked up."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.lab.process import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "temper"
DEFAULT_CACHE = Path("/var/cache/temper-lab")
STATE_ROOT = Path("/var/lib/temper-lab")
RUNTIME_ROOT = Path("/run/temper-lab")
MAX_NODES = 99
REPOSITORY_PORT = 8080
ADMINISTRATOR = "ops"
# Of all labs: `network` and `prefix6` are parts of them.
NETWORKS = ["10.213.0.0/16", "fd74:656d:7000::/40"]
PAYLOAD_TREE_ON_NODE = "/opt/temper/venv"


@dataclass(frozen=True)
class Release:
    """A Debian release that nodes can run.

    `packages` are those that a server has without being asked on other releases; `unchecked` takes a mirror's
    lists that have expired.
    """

    codename: str
    version: int
    packages: tuple[str, ...] = ()
    unchecked: bool = False

    def __str__(self) -> str:
        return f"Debian {self.version}"


BOOKWORM = Release("bookworm", 12)
TRIXIE = Release("trixie", 13)
#: A look ahead: what becomes the next one. A mirror that is some weeks old does.
TESTING = Release("testing", 14, packages=("mount", "passwd"), unchecked=True)


@dataclass(frozen=True)
class Lab:
    """One lab: its name decides every other name and address, so that labs never meet.

    Its nodes run Debian 12 and 13, or all of them Debian testing.
    """

    name: str = DEFAULT_NAME
    cache: Path = DEFAULT_CACHE
    testing: bool = False

    def __post_init__(self) -> None:
        # NAME-gpu01 has to fit into the 15 characters of an interface's name.
        if not re.fullmatch(r"[a-z][a-z0-9]{0,8}", self.name):
            raise LabError(
                "LAB_NAME must be a small letter followed by at most 8 small letters or digits; "
                f"it is {self.name!r}."
            )

    @classmethod
    def from_environment(cls) -> Lab:
        """The lab that LAB_NAME, TEMPER_LAB_CACHE and LAB_TESTING ask for."""
        return cls(
            name=os.environ.get("LAB_NAME") or DEFAULT_NAME,
            cache=Path(os.environ.get("TEMPER_LAB_CACHE") or DEFAULT_CACHE).absolute(),
            testing=bool(os.environ.get("LAB_TESTING")),
        )

    @property
    def number(self) -> int:
        """Third octet of the lab's network: 0 for the default lab, 1-255 for the others."""
        return 0 if self.name == DEFAULT_NAME else 1 + zlib.crc32(self.name.encode()) % 255

    @property
    def network(self) -> str:
        """The lab's IPv4 network."""
        return f"10.213.{self.number}.0/24"

    @property
    def address(self) -> str:
        """The bridge's IPv4 address: the nodes' gateway, and where the repositories are served."""
        return f"10.213.{self.number}.1"

    @property
    def prefix6(self) -> str:
        """The lab's IPv6 prefix (unique local, /64), up to the interface part."""
        return f"fd74:656d:70{self.number:02x}::"

    @property
    def repository_url(self) -> str:
        """Root URL of the simulated NVIDIA repositories."""
        return f"http://{self.address}:{REPOSITORY_PORT}"

    @property
    def bridge(self) -> str:
        """Name of the bridge."""
        return f"br-{self.name}"

    @property
    def nft_table(self) -> str:
        """Name of the host's nftables table (family inet) that holds the lab's NAT."""
        return f"lab_{self.name}"

    @property
    def state(self) -> Path:
        """What outlives a reboot of the host: node upper layers, keys, lab.json."""
        return STATE_ROOT / self.name

    @property
    def runtime(self) -> Path:
        """What does not: mount points."""
        return RUNTIME_ROOT / self.name

    @property
    def description(self) -> Path:
        """lab.json: what this lab consists of and which checkout it belongs to."""
        return self.state / "lab.json"

    @property
    def ssh_key(self) -> Path:
        """Private key of the administrator of all nodes."""
        return self.state / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all nodes."""
        return self.state / "ssh" / "known_hosts"

    def node(self, number: int) -> Node:
        """The node with this number, 1 or more."""
        return Node(self, number)

    def nodes(self, count: int) -> list[Node]:
        """The first `count` nodes."""
        return [Node(self, number) for number in range(1, count + 1)]


@dataclass(frozen=True)
class Node:
    """One node of a lab. Odd nodes are Debian 12 with eight GPUs, even ones Debian 13 with one."""

    lab: Lab
    number: int

    @property
    def name(self) -> str:
        """Host name."""
        return f"gpu{self.number:02d}"

    @property
    def release(self) -> Release:
        """The node's distribution."""
        return TESTING if self.lab.testing else BOOKWORM if self.number % 2 else TRIXIE

    @property
    def profile(self) -> str:
        """The GPU simulator's name for the node's hardware."""
        return "hgx-h100-8" if self.number % 2 else "l4-1"

    @property
    def address(self) -> str:
        """IPv4 address."""
        return f"10.213.{self.lab.number}.{10 + self.number}"

    @property
    def address6(self) -> str:
        """IPv6 address: the same last digits as the IPv4 address."""
        return f"{self.lab.prefix6}{10 + self.number}"

    @property
    def mac_address(self) -> str:
        """Hardware address of eth0: it stays, so that nobody has to learn a node's address anew."""
        return f"02:00:0a:d5:{self.lab.number:02x}:{10 + self.number:02x}"

    @property
    def unique_name(self) -> str:
        """Name of the node's network namespace, of its interface on the host and of its machine."""
        return f"{self.lab.name}-{self.name}"

    @property
    def state(self) -> Path:
        """The node's directory: node.json, upper layer, console log."""
        return self.lab.state / "nodes" / self.name

    @property
    def console_log(self) -> Path:
        """What the node has written to its console."""
        return self.state / "console.log"


def wanted_nodes() -> int:
    """How many nodes LAB_NODES asks for.

    Raises:
        LabError: it is no number between 1 and 99.
    """
    text = os.environ.get("LAB_NODES") or "2"
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise LabError(f"LAB_NODES must be a number from 1 to {MAX_NODES}; it is {text!r}.")
    return int(text)
