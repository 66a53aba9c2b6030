"""Leaves of a lab's network: a bridge for each, with its nodes on it and one uplink to the lab's bridge.

What passes between nodes of one leaf stays on the leaf's bridge; all else crosses two uplinks. Any link can
be given a rate, which both its directions then have.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.lab.settings import Lab, Node

#: A token bucket has to hold what comes between two turns of its timer, and the largest packet.
BURST = "256kb"
#: So long a packet waits for its turn at most; TCP sees a full queue as loss.
QUEUE = "50ms"


@dataclass(frozen=True)
class Link:
    """A cable: its two ends, each an interface and the network namespace that it is in, empty on the host."""

    ends: tuple[tuple[str, str], ...]

    def shape(self, rate_gb_s: float) -> None:
        """Let so much through, in each direction, in GB/s (1e9 bytes)."""
        rate = f"{round(rate_gb_s * 8e9)}bit"
        for interface, namespace in self.ends:
            where = ["-n", namespace] if namespace else []
            change = ["qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate]
            run(["tc", *where, *change, "burst", BURST, "latency", QUEUE])


@dataclass(frozen=True)
class Leaves:
    """Nodes by leaf, as they hang now."""

    lab: Lab
    nodes: dict[str, list[Node]]

    @staticmethod
    def node_link(node: Node) -> Link:
        """The cable of a node."""
        return Link(((node.unique_name, ""), ("eth0", node.unique_name)))

    def uplink(self, leaf: str) -> Link:
        """The cable between a leaf and the lab's bridge."""
        return Link(tuple((name, "") for name in self._uplink(leaf)))

    def shape(self, rate_gb_s: float) -> None:
        """A healthy network: each node has this rate, each uplink what the nodes of its leaf can send."""
        for leaf, nodes in self.nodes.items():
            self.uplink(leaf).shape(rate_gb_s * len(nodes))
            for node in nodes:
                self.node_link(node).shape(rate_gb_s)

    @property
    def topology(self) -> dict[str, object]:
        """What a topology file says of it."""
        return {"leaves": {leaf: [node.name for node in nodes] for leaf, nodes in self.nodes.items()}}

    def _bridge(self, leaf: str) -> str:
        return f"{leaf}-{self.lab.name}"

    def _uplink(self, leaf: str) -> tuple[str, str]:
        return f"{leaf}u-{self.lab.name}", f"{leaf}d-{self.lab.name}"

    def _wire(self) -> None:
        commands = []
        for leaf, nodes in self.nodes.items():
            bridge, (up, down) = self._bridge(leaf), self._uplink(leaf)
            commands += [
                f"link add {bridge} type bridge forward_delay 0",
                f"link set {bridge} up",
                f"link add {up} type veth peer name {down}",
                f"link set {up} master {bridge} up",
                f"link set {down} master {self.lab.bridge} up",
                *(f"link set {node.unique_name} master {bridge}" for node in nodes),
            ]
        run(["ip", "-batch", "-"], text="\n".join(commands) + "\n")

    def _unwire(self) -> None:
        for leaf, nodes in self.nodes.items():
            for node in nodes:
                if Path("/sys/class/net", node.unique_name).exists():
                    run(["ip", "link", "set", node.unique_name, "master", self.lab.bridge])
            for interface in (self._uplink(leaf)[0], self._bridge(leaf)):
                if Path("/sys/class/net", interface).exists():
                    run(["ip", "link", "delete", interface])


@contextlib.contextmanager
def wired(lab: Lab, sizes: Sequence[int]) -> Iterator[Leaves]:
    """The first nodes of a lab in leaves of these sizes; on its one bridge again afterwards.

    A node's link keeps its rate.
    """
    numbers = iter(range(1, sum(sizes) + 1))
    nodes = {
        f"lf{place}": [lab.node(next(numbers)) for _ in range(size)] for place, size in enumerate(sizes, 1)
    }
    leaves = Leaves(lab, nodes)
    leaves._unwire()  # of a test that was killed
    leaves._wire()
    try:
        yield leaves
    finally:
        leaves._unwire()
