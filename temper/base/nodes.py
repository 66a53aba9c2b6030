"""Many nodes in few words: ranges of names, texts that are alike but for the node, times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

from validation.model.grouping import by_key

# Words of nodes are made printable here and in the payload by one function; so are numbers with their nouns.
from validation.model.printable import number_of as number_of
from validation.model.printable import printable as printable

#: What stands for a node's own name and address in a text that several nodes share.
NODE = "NODE"
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
#: What a command says at once that asks nodes: Ansible takes longer than a second to its first word.
READING = "Reading the inventory and its nodes; nothing is changed."
#: Groups whose names begin so are racks, as NetBox's inventory and `group_limits` of a roll-out have them.
RACK = "rack"
#: Variables of a host that name its rack. NetBox's inventory gives a list of one.
RACK_VARIABLES = ("rack", "racks")


def ranges(names: Iterable[str]) -> str:
    """Return names in order, three or more that follow each other as a range: `gpu01-gpu12, gpu14, login`.

    The number that counts is the last one in front of the first dot. `gpu9` and `gpu10` follow each other,
    and so do `gpu09` and `gpu10`.
    """
    parts = sorted(_split(name) for name in set(names))
    found: list[str] = []
    for _, same in groupby(parts, key=lambda part: part[:2]):
        # Of names that follow each other, number and place differ by the same.
        for _, run in groupby(enumerate(same), key=lambda item: item[1][2] - item[0]):
            members = [name for _, (*_, name) in run]
            found += [f"{members[0]}-{members[-1]}"] if len(members) > 2 else members
    return ", ".join(found)


def _split(name: str) -> tuple[str, str, int, str]:
    """Return what stands before the number and behind it, the number, and the name itself."""
    host = name if name[:1].isdigit() else name.partition(".")[0]
    found = re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", host, flags=re.DOTALL)
    if not found:
        return name, "", -1, name
    before, digits, behind = found.groups()
    return before, behind + name[len(host) :], int(digits), name


def counted(names: Iterable[str]) -> str:
    """Return one node by its name, several with their number: `12 nodes: gpu01-gpu12`."""
    members = set(names)
    return ranges(members) if len(members) == 1 else f"{number_of(len(members), 'node')}: {ranges(members)}"


def generic(text: str, own: Iterable[str]) -> str:
    """Return the text with NODE for each of a node's `own` names and addresses that is a whole word."""
    found = sorted((word for word in own if word and word in text), key=len, reverse=True)
    words = "|".join(map(re.escape, found))
    return re.sub(rf"(?<![\w.-])(?:{words})(?![\w-])", NODE, text) if words else text


def alike(texts: Mapping[str, str], own: Mapping[str, Iterable[str]]) -> list[tuple[tuple[str, ...], str]]:
    """Nodes of which the same is said, and the text, in the order of the first; one node's stays its own."""
    groups = by_key((generic(text, own.get(node, (node,))), node) for node, text in texts.items())
    return [
        (tuple(sorted(nodes)), text if len(nodes) > 1 else texts[nodes[0]]) for text, nodes in groups.items()
    ]


def with_rack(groups: Iterable[str], variables: Mapping[str, Any]) -> list[str]:
    """Return a node's groups, with the rack that a variable names: `rack: r12` is `rack_r12`.

    A group whose name begins so may be no rack (`rackspace`), so it does not take the variable's place.
    """
    found = [str(name) for name in groups]
    for variable in RACK_VARIABLES:
        try:
            given = variables.get(variable)
        # Whatever Ansible raises where it resolves a template: that costs no report.
        except Exception:  # noqa: BLE001, S112
            continue
        for value in given if isinstance(given, list) else [given]:
            name = (
                printable(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""
            )
            if name:
                found.append(name if name.startswith(RACK) else f"{RACK}_{name}")
    return list(dict.fromkeys(found))


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `41 s`, `4 min 10 s`, `2 h 5 min`, `1 d 3 h`."""
    whole = int(seconds)
    for (large, size), (small, part) in pairwise(UNITS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def utc(instant: datetime) -> str:
    """Return an instant as documents have it: `2026-11-26T16:30:00Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
