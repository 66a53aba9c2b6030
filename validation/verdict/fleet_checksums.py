"""Checksums of the products of a fleet's equal GPUs, bit for bit; model/checksums.py says why they are equal.

The driver is not among what cuBLAS's manual names, but it compiles kernels that a library does not bring for
a newer GPU: what differs together with the driver says so. Three equals at least, because of two nobody can
say which is wrong. Nobody fails for other bits alone, because another kernel may have made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validation.findings.catalogue import finding
from validation.model.checksums import Standing, computes_wrong, gpu_of, product, standings
from validation.model.quantities import conditions_key
from validation.verdict.baseline import Comparison

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from validation.model.contract import Digest, Finding, NodeResult, TestResult

LEAST_MEMBERS = 3


@dataclass(frozen=True)
class _Member:
    node: str
    test: TestResult
    digest: Digest
    driver: str | None


def among_nodes(results: Mapping[str, NodeResult]) -> dict[tuple[str, str], Comparison]:
    """What the products of the fleet say of each test (node, test id) that took checksums."""
    equals: dict[Hashable, list[_Member]] = {}
    for name in sorted(results):
        for key, member in _members(name, results[name]):
            equals.setdefault(key, []).append(member)
    said: dict[tuple[str, str], Comparison] = {}
    for members in equals.values():
        for member, found in zip(members, _judge(members), strict=True):
            place = (member.node, member.test.id)
            said[place] = said.get(place, Comparison()) + found
    return said


def _members(node: str, result: NodeResult) -> Iterator[tuple[Hashable, _Member]]:
    for test in result.tests:
        for digest in test.digests:
            if gpu := gpu_of(digest, result):
                key = (
                    test.id,
                    test.method,
                    digest.name,
                    conditions_key(digest.conditions),
                    gpu.pci_id,
                    gpu.name,
                )
                yield key, _Member(node, test, digest, result.machine.driver)


def _judge(members: list[_Member]) -> list[Comparison]:
    """What is to be said of each of these equals."""
    if len({member.node for member in members}) == 1:
        # Its own GPUs have been compared where they were measured.
        return [_not_compared("no other node has equal GPUs with the same software")] * len(members)
    found = standings([member.digest.value for member in members])
    if len(members) < LEAST_MEMBERS and set(found) == {Standing.USUAL}:
        why = f"fewer than {LEAST_MEMBERS} equal GPUs with the same software"
        return [_not_compared(why)] * len(members)
    usual = [member for member, one in zip(members, found, strict=True) if one is Standing.USUAL]
    return [
        Comparison() if one is Standing.USUAL else Comparison((_differs(member, usual, len(members)),))
        for member, one in zip(members, found, strict=True)
    ]


def _differs(member: _Member, usual: list[_Member], count: int) -> Finding:
    """What to say of one that differs from the `usual` of so many, or from the rest where none are usual."""
    facts: dict[str, Any] = {"node": member.node, "product": product(member.digest), "count": count}
    gpu, drivers = member.digest.device, sorted({str(other.driver) for other in usual})
    if computes_wrong(gpu, member.test.findings):
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
