"""Checksums of the products of a fleet's equal GPUs, bit for bit; model/checksums.py says why they are equal.

The driver is not among what cuBLAS's manual names, but it compiles kernels that a library does not bring for
a newer GPU: what differs together with the driver says so. Three equals at least, because of two nobody can
say which is wrong. Nobody fails for other bits of a product alone, because another kernel may have made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from validation.findings.catalogue import finding
from validation.model.checksums import Standing, computes_wrong, gpu_of, product, rounds, standings
from validation.model.contract import Digest, Finding, NodeResult
from validation.verdict.baseline import Comparison
from validation.verdict.cohort import MOST_VOTES

LEAST_MEMBERS = 3


class Product(NamedTuple):
    """What must have the same bits wherever it was computed."""

    test: str
    method: int
    name: str
    conditions: tuple[tuple[str, str], ...]
    pci_id: str
    model: str


class Member(NamedTuple):
    """The checksum of a product on one GPU. `wrong`: that GPU is known to compute wrongly."""

    node: str
    gpu: int | None
    value: str
    driver: str | None
    wrong: bool


def compare(results: Mapping[str, NodeResult]) -> dict[tuple[str, str], Comparison]:
    """Compare the products of a fleet; return what they say of each test (node, test id) with checksums."""
    equals: dict[Product, list[Member]] = {}
    places: dict[tuple[str, str], dict[Product, list[int]]] = {}
    for node, result in results.items():
        for of, member in _members(node, result):
            members = equals.setdefault(of, [])
            places.setdefault((node, of.test), {}).setdefault(of, []).append(len(members))
            members.append(member)
    said = {of: _judge(of, members) for of, members in equals.items()}
    return {
        where: Comparison.of(said[of][place] for of, found in products.items() for place in found)
        for where, products in places.items()
    }


def _members(node: str, result: NodeResult) -> Iterator[tuple[Product, Member]]:
    for test in result.tests:
        for digest in test.digests:
            if gpu := gpu_of(digest, result):
                conditions = digest.taken
                wrong = computes_wrong(digest.device, test.findings)
                yield (
                    Product(test.id, test.method, digest.name, conditions, gpu.pci_id, gpu.name),
                    Member(node, digest.device, digest.value, result.machine.driver, wrong),
                )


def _judge(of: Product, members: list[Member]) -> list[Comparison]:
    """Return a sentence for each of these equals."""
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
    """Return what to say of one that differs from the `usual` of so many, or from the rest if none is."""
    digest = Digest(of.name, member.value, conditions=dict(of.conditions))
    facts: dict[str, Any] = {"node": member.node, "product": product(digest), "count": count}
    gpu, drivers = member.gpu, sorted({str(other.driver) for other in usual})
    outvoted = len(usual) > 1 and str(member.driver) in drivers and not rounds(digest)
    if outvoted or member.wrong:
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
