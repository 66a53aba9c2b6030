"""Whether the nodes that are not good have their rack in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import comb

#: How often chance alone may put so many into any one rack.
CHANCE = 0.01


def in_common(racks: Mapping[str, Collection[str]], bad: Collection[str]) -> str:
    """Say in which rack most of the bad nodes are, where chance does not explain that; empty where it does.

    `racks` are those of each node, of which some may be rows or roles. A rack is told by the hypergeometric
    distribution: how probable it is that as many of the bad nodes, drawn from all, are in it, times the
    number of racks. Of several, it is the least probable one.
    """
    known = {node: names for node, names in racks.items() if names}
    of_bad = [node for node in bad if node in known]
    sizes = Counter(name for names in known.values() for name in names)
    found = Counter(name for node in of_bad for name in known[node])
    chances = {
        rack: chance(count, len(of_bad), sizes[rack], len(known))
        for rack, count in found.items()
        if 2 * count > len(bad)
    }
    rack = min(chances, key=lambda name: chances[name], default="")
    if not rack or chances[rack] * len(sizes) >= CHANCE:
        return ""
    return (
        f"{found[rack]} of the {len(bad)} nodes that are not good are in {rack}, which has {sizes[rack]} "
        f"of {len(known)} nodes: look there for one cause, such as power, cooling or a switch."
    )


def chance(count: int, drawn: int, size: int, total: int) -> float:
    """Return the probability that `count` or more of `drawn` nodes out of `total` are among `size` ones."""
    ways = sum(
        comb(size, one) * comb(total - size, drawn - one) for one in range(count, min(drawn, size) + 1)
    )
    return ways / comb(total, drawn)
