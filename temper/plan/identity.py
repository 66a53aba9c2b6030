"""Which machine a node is: an inventory may have one under two names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from temper.plan.convert import build, from_node
from temper.plan.facts import Interface
from temper.plan.preview import shown
from temper.plan.refusals import Refusal, refusal
from validation.model.grouping import by_key


class Machine(Protocol):
    """What tells one machine from others."""

    @property
    def boot_id(self) -> str:
        """The id of the boot."""

    @property
    def machine_id(self) -> str:
        """The id of /etc/machine-id."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The network interfaces."""


@dataclass(frozen=True)
class Identity:
    """What module node_facts says of it alone (`identity: true`)."""

    boot_id: str
    machine_id: str
    interfaces: tuple[Interface, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Identity:
        """From the fact. Raises ValueError where it is not what the module reports."""
        return build(cls, from_node(data, "node_facts"), "node_facts")


def machine_of(node: Machine) -> tuple[str, ...]:
    """Return digests of what only one machine has; none where that is unknown.

    An id alone may be that of several: containers share a boot id, and machines made of one image a machine
    id. The ids of a boot and addresses change; the id of the machine and its network cards outlast a reboot.
    """
    addresses = sorted({address for one in node.interfaces for address in one.addresses})
    cards = sorted({one.mac for one in node.interfaces if one.mac and (one.driver or one.default_route)})
    ids = ((node.boot_id, addresses), (node.machine_id, cards))
    texts = [" ".join((one, *others)) for one, others in ids if one and others]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts)


def twins(machines: Mapping[str, Iterable[str]]) -> dict[str, Refusal]:
    """Return a refusal for each name of a machine that has several in the inventory."""
    names = by_key((one, name) for name, ids in machines.items() for one in ids)
    others: dict[str, set[str]] = defaultdict(set)
    for same in names.values():
        for name in same:
            others[name] |= {*same} - {name}
    return {
        name: refusal("node-named-twice", node=name, others=shown(sorted(same)))
        for name, same in others.items()
        if same
    }
