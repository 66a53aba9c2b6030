"""Which machine a node is: an inventory may have one under two names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temper.plan.convert import build, from_node
from temper.plan.facts import Interface, NodeFacts
from temper.plan.preview import NAMES_SHOWN
from temper.plan.refusals import Refusal, refusal
from validation.model.grouping import by_key
from validation.model.printable import first_of

#: What says that nodes are one machine: a host key that they share, or they alone.
PROOF = "its ids, addresses, network cards and SSH host key"
CLAIM = "what both say of their ids, addresses and cards (known_hosts has no keys that tell them apart)"


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


def machine_of(node: Identity | NodeFacts) -> tuple[str, ...]:
    """Return digests of what only one machine has; none where that is unknown.

    An id alone may be that of several: containers share a boot id, and machines made of one image a machine
    id. The ids of a boot and addresses change; the id of the machine and its network cards outlast a reboot.
    """
    addresses = sorted({address for one in node.interfaces for address in one.addresses})
    cards = sorted({one.mac for one in node.interfaces if one.mac and (one.driver or one.default_route)})
    ids = ((node.boot_id, addresses), (node.machine_id, cards))
    texts = [" ".join((one, *others)) for one, others in ids if one and others]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts)


class Known(Protocol):
    """A node as the controller knows it: what it says of itself, and what it has proven."""

    @property
    def machine(self) -> tuple[str, ...]:
        """What `machine_of` returns: a node can say the same as another one."""

    @property
    def host_keys(self) -> tuple[str, ...]:
        """What ssh_client.host_keys returns: no node can have those of another one."""


@dataclass(frozen=True)
class Node:
    """A node, with these two facts alone."""

    machine: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Node:
        """From a plan or an answer, which need have neither. What is no list of texts says nothing."""
        lists = (data.get(key) for key in ("machine", "host_keys"))
        return cls(
            *(
                tuple(one for one in found if isinstance(one, str)) if isinstance(found, list | tuple) else ()
                for found in lists
            )
        )


@dataclass(frozen=True)
class Twins:
    """A refusal for each name of a machine that has several, and warnings about nodes that only say so."""

    refused: dict[str, Refusal]
    warnings: tuple[str, ...]


def twins(nodes: Mapping[str, Known]) -> Twins:
    """Return which nodes are one machine, and which only say so.

    Two that say the same are one, unless their host keys prove that they are not: otherwise a node could keep
    others from being worked on by what it says.

    Without keys of one type they are refused: one machine may be known by a key of another type under each
    name. Asking each node for its other keys proves nothing, because a second sshd of one machine, with keys
    of its own, answers as a node does that lies. Two runs at once can leave a machine unbootable or out of
    reach, while a node that is refused wrongly stays as it is, and the refusal says how to tell it apart.
    """
    same: dict[str, set[str]] = defaultdict(set)
    lying: set[frozenset[str]] = set()
    for names in by_key((one, name) for name, node in nodes.items() for one in node.machine).values():
        others_of = alike({name: nodes[name].host_keys for name in names})
        for name, others in others_of.items():
            same[name] |= others
        apart = frozenset(name for name, others in others_of.items() if len(others) < len(others_of) - 1)
        lying |= {apart} if apart else set()
    refused = {}
    for name, others in same.items():
        if not others:
            continue
        proven = all(set(nodes[name].host_keys) & set(nodes[other].host_keys) for other in others)
        refused[name] = refusal(
            "node-named-twice",
            node=name,
            others=first_of(sorted(others), NAMES_SHOWN),
            evidence=PROOF if proven else CLAIM,
            unproven=not proven,
        )
    most = [sorted(names) for names in lying if not any(names < others for others in lying)]
    return Twins(refused, tuple(map(warning, sorted(most))))


def alike(host_keys: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return for each name the others that its host keys do not prove to be other machines.

    They prove it where some are of one type, and none is the same. No pair is looked at that they tell apart:
    any node can say that it is all others.
    """
    keys = {name: set(own) for name, own in host_keys.items()}
    having = by_key((key, name) for name, own in keys.items() for key in own)
    types = {name: frozenset(key.partition(" ")[0] for key in own) for name, own in keys.items()}
    of_types = by_key((own, name) for name, own in types.items())
    incomparable = {
        own: [name for others, names in of_types.items() if not own & others for name in names]
        for own in of_types
    }
    return {
        name: {*incomparable[types[name]], *(other for key in own for other in having[key])} - {name}
        for name, own in keys.items()
    }


def warning(names: Sequence[str]) -> str:
    """Say that nodes claim to be one machine."""
    return (
        f"{first_of(names, NAMES_SHOWN)} say that they are one machine (same ids, same addresses or network "
        "cards). Their different SSH host keys prove that they are not, so none is refused for it: one is a "
        "copy, or says what is not so. Compare /etc/machine-id and `ip address` there"
    )
