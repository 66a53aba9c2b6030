"""Which machine a node is: an inventory may have one under two names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from temper.plan.preview import shown
from temper.plan.refusals import Refusal, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from temper.plan.facts import NodeFacts


def machine_of(node: NodeFacts) -> tuple[str, ...]:
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
    names: dict[str, list[str]] = defaultdict(list)
    for name, ids in machines.items():
        for one in ids:
            names[one].append(name)
    others: dict[str, set[str]] = defaultdict(set)
    for same in names.values():
        for name in same:
            others[name] |= {*same} - {name}
    return {
        name: refusal("node-named-twice", node=name, others=shown(sorted(same)))
        for name, same in others.items()
        if same
    }
