"""Bit for bit: the same product on equal GPUs, and on one GPU at all times.

cuBLAS gives the same bits at every run, on GPUs of one architecture with as many SMs, from one version of it
to no other, while one stream is active (its manual, "Results Reproducibility"): which is how products are
taken here. So another checksum under equal conditions is silent data corruption. The driver is not among
what the manual names, but it compiles kernels that a library does not bring for a newer GPU: what differs
together with the driver condemns nobody.

Three equals at least, because of two nobody can say which is wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.comparison import Comparison, conditions_key, label
from validation.contract import Finding, State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from validation.contract import Digest, GpuIdentity, NodeResult, TestResult

LEAST_MEMBERS = 3
TAKE_OUT = "take the node out: it computes wrong without an error message"
COMPARE = "run again, and compare with another node of this model"
#: Findings that say that bits are not to be trusted.
CODES = frozenset({"gpu-differs", "differs-from-fleet", "differs-from-own-past", "not-repeatable"})


def odd_ones(values: Sequence[str]) -> tuple[State, ...]:
    """Of values that should be one, how each stands: those against a majority fail.

    Without a majority nobody can say which of them is wrong: then none is condemned, and all are named.
    """
    counts = Counter(values)
    if len(counts) <= 1:
        return (State.PASS,) * len(values)
    usual, most = counts.most_common(1)[0]
    if 2 * most <= len(values):
        return (State.DEGRADED,) * len(values)
    return tuple(State.PASS if value == usual else State.FAIL for value in values)


def product(digest: Digest) -> str:
    """`bf16 product of 8192 x 8192 x 8192`."""
    shape = " x ".join(str(digest.conditions[edge]) for edge in ("m", "n", "k") if edge in digest.conditions)
    return f"{label(digest.name)} product" + (f" of {shape}" if shape else "")


def gpu_of(digest: Digest, result: NodeResult) -> GpuIdentity | None:
    """The GPU that a checksum was taken on."""
    return next((gpu for gpu in result.gpus if gpu.index == digest.device), None)


def changed(before: TestResult, now: TestResult) -> Iterator[Finding]:
    """What one GPU computed in two rounds of one run, and not the same."""
    was = {(one.name, one.device, conditions_key(one.conditions)): one for one in before.digests}
    for digest in now.digests:
        other = was.get((digest.name, digest.device, conditions_key(digest.conditions)))
        if other and other.value != digest.value:
            text = (
                f"GPU {digest.device}: its {product(digest)} had checksum {other.value}, and in a later "
                f"round {digest.value}"
            )
            yield Finding("not-repeatable", State.FAIL, text, TAKE_OUT, digest.device)


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
    states = odd_ones([member.digest.value for member in members])
    if len(members) < LEAST_MEMBERS and set(states) == {State.PASS}:
        why = f"fewer than {LEAST_MEMBERS} equal GPUs with the same software"
        return [_not_compared(why)] * len(members)
    usual = [member for member, state in zip(members, states, strict=True) if state is State.PASS]
    return [
        Comparison() if state is State.PASS else Comparison((_differs(member, state, usual, len(members)),))
        for member, state in zip(members, states, strict=True)
    ]


def _differs(member: _Member, state: State, usual: list[_Member], count: int) -> Finding:
    whose = f"GPU {member.digest.device} of {member.node}"
    text = f"{whose}: its {product(member.digest)} is not bit for bit that of "
    if state is State.DEGRADED:
        text += f"all {count} equal GPUs of the fleet, of which no majority agrees"
        return _finding(member.digest, state, text, COMPARE)
    text += f"{len(usual)} of {count} equal GPUs of the fleet"
    drivers = sorted({str(other.driver) for other in usual})
    if str(member.driver) in drivers:
        return _finding(member.digest, State.FAIL, text, TAKE_OUT)
    text += f"; driver {member.driver} here, {', '.join(drivers)} there"
    return _finding(member.digest, State.DEGRADED, text, "run again with the same driver")


def _finding(digest: Digest, state: State, text: str, action: str) -> Finding:
    return Finding("differs-from-fleet", state, text, action, digest.device)


def _not_compared(why: str) -> Comparison:
    return Comparison(notes=(f"its products were not compared bit for bit with other nodes: {why}",))
