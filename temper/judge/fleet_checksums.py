"""Checksums of the products of a fleet's equal GPUs, bit for bit; model/checksums.py says why they are equal.

The driver is not among what cuBLAS's manual names, but it compiles kernels that a library does not bring for
a newer GPU: what differs together with the driver says so. Three equals at least, because of two nobody can
say which is wrong. Nobody fails for other bits alone, because another kernel may have made them.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from validation.findings.catalogue import finding
from validation.model.checksums import Standing, computes_wrong, gpu_of, product, standings
from validation.model.contract import Digest
from validation.verdict.baseline import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from validation.model.contract import Finding, NodeResult

LEAST_MEMBERS = 3
#: Of one node so many GPUs have a vote, which are all that most servers have: one that was taken over may
#: claim more than all others have together.
MOST_VOTES = 16


class Product(NamedTuple):
    """What must have the same bits wherever it was computed."""

    test: str
    method: int
    name: str
    conditions: tuple[tuple[str, str], ...]
    pci_id: str
    model: str


class Member(NamedTuple):
    """The checksum of a product on one GPU. `wrong`: that GPU is known to compute wrongly.

    `place` is its place among the checksums of its test.
    """

    node: str
    place: int
    gpu: int | None
    value: str
    driver: str | None
    wrong: bool


#: The checksums of some nodes of a fleet, by what they are of.
Checksums = dict[Product, list[Member]]


def checksums_of(results: Mapping[str, NodeResult]) -> Checksums:
    """The checksums in some nodes' results."""
    found: Checksums = {}
    for node, result in results.items():
        for of, member in _members(node, result):
            found.setdefault(of, []).append(member)
    return found


def among_nodes(parts: Iterable[Checksums]) -> dict[tuple[str, str], Comparison]:
    """What the products of the fleet say of each test (node, test id) that took checksums."""
    equals: Checksums = {}
    for part in parts:
        for of, members in part.items():
            equals.setdefault(of, []).extend(members)
    said: dict[tuple[str, str], list[tuple[int, list[Comparison]]]] = {}
    for of, members in equals.items():
        of_nodes: dict[str, tuple[int, list[Comparison]]] = {}
        for member, found in zip(members, _judge(of, members), strict=True):
            of_nodes.setdefault(member.node, (member.place, []))[1].append(found)
        for node, of_node in of_nodes.items():
            said.setdefault((node, of.test), []).append(of_node)
    # As they were measured: the order in which a fleet is cut into parts says nothing.
    return {
        where: Comparison.of(chain.from_iterable(found for _, found in sorted(products, key=itemgetter(0))))
        for where, products in said.items()
    }


def _members(node: str, result: NodeResult) -> Iterator[tuple[Product, Member]]:
    for test in result.tests:
        for place, digest in enumerate(test.digests):
            if gpu := gpu_of(digest, result):
                conditions = digest.taken
                wrong = computes_wrong(digest.device, test.findings)
                yield (
                    Product(test.id, test.method, digest.name, conditions, gpu.pci_id, gpu.name),
                    Member(node, place, digest.device, digest.value, result.machine.driver, wrong),
                )


def _judge(of: Product, members: list[Member]) -> list[Comparison]:
    """What is to be said of each of these equals."""
    if len({member.node for member in members}) == 1:
        # Its own GPUs have been compared where they were measured.
        return [_not_compared("no other node has equal GPUs with the same software")] * len(members)
    found = _standings(members)
    if len(members) < LEAST_MEMBERS and set(found) == {Standing.USUAL}:
        why = f"fewer than {LEAST_MEMBERS} equal GPUs with the same software"
        return [_not_compared(why)] * len(members)
    usual = [member for member, one in zip(members, found, strict=True) if one is Standing.USUAL]
    return [
        Comparison() if one is Standing.USUAL else Comparison((_differs(of, member, usual, len(members)),))
        for member, one in zip(members, found, strict=True)
    ]


def _standings(members: list[Member]) -> list[Standing]:
    heard: Counter[str] = Counter()
    votes: list[str] = []
    for member in members:
        heard[member.node] += 1
        if heard[member.node] <= MOST_VOTES:
            votes.append(member.value)
    found = dict(zip(votes, standings(votes), strict=True))
    return [found.get(member.value, Standing.MINORITY) for member in members]


def _differs(of: Product, member: Member, usual: list[Member], count: int) -> Finding:
    """What to say of one that differs from the `usual` of so many, or from the rest where none are usual."""
    facts: dict[str, Any] = {
        "node": member.node,
        "product": product(Digest(of.name, member.value, conditions=dict(of.conditions))),
        "count": count,
    }
    gpu, drivers = member.gpu, sorted({str(other.driver) for other in usual})
    if member.wrong:
        return finding("differs-from-fleet", "wrong", gpu=gpu, **facts)
    if not usual:
        return finding("differs-from-fleet", "undecided", gpu=gpu, **facts)
    if str(member.driver) in drivers:
        return finding("differs-from-fleet", "minority", gpu=gpu, alike=len(usual), **facts)
    return finding(
        "differs-from-fleet",
        "other-driver",
        gpu=gpu,
        alike=len(usual),
        driver=member.driver,
        drivers=", ".join(drivers),
        **facts,
    )


def _not_compared(why: str) -> Comparison:
    return Comparison(notes=(f"its products were not compared bit for bit with other nodes: {why}",))
