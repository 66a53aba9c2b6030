"""Trials between nodes: a collective over one or another of their interfaces.

What a node sends to itself goes over loopback, so an interface is measured with others. The first node of an
order searches; the others follow it. In each trial every node has processes of its own, as in any other
trial. They meet at the first node's port, as those of the fabric measurement do, and hear there what to do.
They also meet once before, to find the interfaces, and once after, to hear what was decided.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.autotune.search import Failed
from validation.backends.factory import STARTING, make
from validation.checks.check import LEAST_PATIENCE_S
from validation.checks.collectives import RANK_PATIENCE, bus_bandwidth_factor, reduce
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.checks.node import Node
from validation.fabric.groups import Order
from validation.fabric.measure import (
    BACKENDS,
    MEETING_S,
    MEETING_S_PER_NODE,
    in_url,
    interface_towards,
    ipv4_addresses,
)
from validation.model.contract import Measured, decode
from validation.model.plans import MIB
from validation.processes.child import BEGINNING, LOADING, Request
from validation.processes.pool import Ending, ProcessOutcome, run_children

if TYPE_CHECKING:
    import torch


#: Beyond that a rendezvous of all, and a connection of each with each, take longer than what is measured.
MOST_NODES = 64
SIZE_BYTES = {"gloo": 8 * MIB, "nccl": 64 * MIB}
#: What the runs of a trial take at most, where the network is not slow, and with attempts and checks.
RUNS_S, TRIAL_S = 1.0, 10.0
#: How long ranks that have met try to reach each other over an interface, and wait for each other there.
CONNECTING_S = 30.0
WAITING = "waiting to hear what is tried"
#: The stages of a process until it has heard that.
BEFORE = (BEGINNING, LOADING, STARTING, WAITING)
#: After so many times what a meeting may take the node that searches is gone.
MEETINGS_MISSED = 3
#: What a node lets another one set for its processes.
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")


class BetweenError(Exception):
    """Nodes that cannot be tuned together; the message says why."""


@dataclass(frozen=True)
class Survey:
    """What a node says of its interfaces.

    `now` is NCCL_SOCKET_IFNAME of its jobs. `addresses`: one of each interface. `ways`: by which interface
    packets leave for each address of the others, where there is a way.
    """

    now: str
    addresses: dict[str, str]
    ways: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Nodes that are tuned together: who, and each choice of interfaces, a name for each node.

    A choice is named as the first node has it in NCCL_SOCKET_IFNAME; `start` is the one of now.
    """

    order: Order
    choices: dict[str, tuple[str, ...]]
    start: str


def choices_of(nodes: Sequence[Survey]) -> dict[str, tuple[str, ...]]:
    """By which interfaces all nodes reach all others and are reached in turn: one of each node."""
    found = {}
    for name, address in nodes[0].addresses.items():
        names = [name, *(one.ways.get(address, "") for one in nodes[1:])]
        ends = [(one, own, one.addresses.get(own, "")) for one, own in zip(nodes, names, strict=True)]
        if all(one.ways.get(to) == own for (one, own, _), (_, _, to) in itertools.permutations(ends, 2)):
            found[exactly(name)] = tuple(names)
    return found


def start_of(names: Sequence[str], nodes: Sequence[Survey]) -> tuple[str, ...]:
    """Return the interface that each node's jobs have now. Raises BetweenError where that is not one."""
    found = []
    for name, node in zip(names, nodes, strict=True):
        fits = [one for one in node.addresses if node.now in {exactly(one), one}]
        if not fits and node.now:
            fits = [one for one in node.addresses if one.startswith(node.now)]
        if len(fits) != 1:
            raise BetweenError(
                f"NCCL_SOCKET_IFNAME of {name} is {node.now!r}: expected one of its interfaces "
                f"({', '.join(map(exactly, node.addresses))})"
            )
        found += fits
    return tuple(found)


def exactly(interface: str) -> str:
    """Return an interface as NCCL is to be told: a bare name is a prefix."""
    return f"={interface}"


def group_of(order: Order, nodes: Sequence[Survey]) -> Group:
    """Return the choices that these nodes have. Raises BetweenError."""
    now = start_of([member.name for member in order.group], nodes)
    start = exactly(now[0])
    return Group(order, {**choices_of(nodes), start: now}, start)


def check(order: Order, node: Node) -> None:
    """Raise BetweenError where this node cannot take part."""
    if order.node not in {member.name for member in order.group} or order.library not in BACKENDS:
        raise BetweenError(f"the order names {order.node} and {order.library}; one of them is unknown")
    if not 2 <= len(order.group) <= MOST_NODES:
        raise BetweenError(
            f"expected 2 to {MOST_NODES} nodes to measure with each other, found {len(order.group)}: "
            "limit the run to some of those that run jobs together"
        )
    if reason := node.why_no_cuda() if order.library == "nccl" else node.why_no_torch():
        raise BetweenError(f"{order.library} cannot run here: {reason}")
    if without := [member.name for member in order.group if not member.ranks]:
        raise BetweenError(
            f"{order.library} needs a GPU in each node, and {without[0]} has none; gloo "
            "(gpu_validation_fabric_library) needs none"
        )


def survey(order: Order, node: Node) -> Group:
    """Find the interfaces, on the node that searches. Raises BetweenError."""
    outcomes = _together(order, node, {"kind": "survey"})
    found = outcomes[0].measured.details.get("nodes")
    if found is None:
        raise BetweenError(f"the nodes did not all meet at {order.group[0].address}: {_problem(outcomes)}")
    return group_of(order, [decode(Survey, one) for one in found])


def all_reduce(group: Group, node: Node, choice: str, environment: Mapping[str, str]) -> float | Failed:
    """Bus bandwidth in GB/s of all nodes over these interfaces, on the node that searches."""
    order = group.order
    names = group.choices[choice]
    sets = [{**environment, **_named(order.library, name)} for name in names]
    outcomes = _together(order, node, {"kind": "trial", "environment": sets})
    findings = [one.text for outcome in outcomes for one in outcome.measured.findings]
    if findings or any(outcome.ending is not Ending.DONE or outcome.measured.not_run for outcome in outcomes):
        over = ", ".join(dict.fromkeys(names))
        return Failed(f"no collective over {over}: {' '.join(findings) or _problem(outcomes)}")
    by_rank = [next(iter(outcome.measured.details["seconds"].values())) for outcome in outcomes]
    typical_s: float = statistics.median(map(max, zip(*by_rank, strict=True)))
    ranks = sum(member.ranks for member in order.group)
    return SIZE_BYTES[order.library] * bus_bandwidth_factor("all_reduce", ranks) / typical_s / 1e9


def _named(library: str, interface: str) -> dict[str, str]:
    if library == "nccl":
        return {"NCCL_SOCKET_IFNAME": exactly(interface)}
    return {"GLOO_SOCKET_IFNAME": interface}


def end(order: Order, node: Node, told: Mapping[str, Any]) -> None:
    """Let the others go, with what was found, or with a `problem`."""
    _together(order, node, {"kind": "end", **told})


def follow(order: Order, node: Node) -> dict[str, Any]:
    """Take part in all trials; what the node that searches says in the end. Raises BetweenError."""
    met = time.monotonic()
    while True:
        outcomes = _together(order, node, None)
        for outcome in outcomes:
            told: dict[str, Any] = outcome.measured.details.get("told", {})
            if problem := told.get("problem"):
                raise BetweenError(f"{order.group[0].name} ended the search: {problem}")
            if told:
                return told
        if any(outcome.stage not in BEFORE for outcome in outcomes):
            met = time.monotonic()
        elif time.monotonic() - met > MEETINGS_MISSED * _meeting_s(order, node):
            first = order.group[0].name
            raise BetweenError(f"{first}, which searches, was not heard of any more: {_problem(outcomes)}")


def _meeting_s(order: Order, node: Node) -> float:
    """In which time all have started what a trial needs, and met."""
    return node.stretch * (LEAST_PATIENCE_S + MEETING_S + MEETING_S_PER_NODE * len(order.group))


def _problem(outcomes: Sequence[ProcessOutcome]) -> str:
    said = (outcome.problem or outcome.measured.not_run for outcome in outcomes)
    return next(filter(None, said), "nobody says why")


def _together(order: Order, node: Node, told: Mapping[str, Any] | None) -> list[ProcessOutcome]:
    """Run this node's ranks once; `told` is what the first of all says to the others."""
    number = [member.name for member in order.group].index(order.node)
    firsts = [sum(member.ranks for member in order.group[:place]) for place in range(len(order.group))]
    meeting_s = _meeting_s(order, node)
    requests = [
        Request(
            f"{order.node} rank {firsts[number] + local}",
            f"{__name__}:take_part",
            BACKENDS[order.library],
            device=local,
            parameters={
                "rank": firsts[number] + local,
                "world_size": sum(member.ranks for member in order.group),
                "node": number,
                "firsts": firsts,
                "peer": next(member.address for member in order.group if member.name != order.node),
                "store": f"tcp://{in_url(order.group[0].address)}:{order.port}/{order.run}",
                "timeout_s": meeting_s * RANK_PATIENCE,
                "told": told if firsts[number] + local == 0 else None,
                "collectives": ["all_reduce"],
                "sizes_bytes": [SIZE_BYTES[order.library]],
                "runs": node.plan.all_reduce_runs,
                "at_most_s": RUNS_S,
                "measure_s": TRIAL_S,
                "fits": True,
            },
            environment=CUDA_ENVIRONMENT if order.library == "nccl" else {"OMP_NUM_THREADS": "1"},
        )
        for local in range(order.group[number].ranks)
    ]
    return run_children(
        requests,
        min(meeting_s + node.budget_s, node.left_s),
        together=True,
        patience_s=node.stretch * LEAST_PATIENCE_S,
        longer_s=dict.fromkeys(BEFORE, meeting_s),
    )


def take_part(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: one rank of what is done together. Raises NotRunError."""
    parameters = request.parameters
    rank, node, firsts = parameters["rank"], parameters["node"], parameters["firsts"]
    backend = make(request.backend, request.device, stage)
    from validation.backends.exchange import meet

    stage(WAITING)
    store = meet(rank, parameters["world_size"], parameters["store"], parameters["timeout_s"])
    if rank == 0:
        store.set("told", json.dumps(parameters["told"]))
    told = json.loads(store.get("told"))
    found = Measured()
    if told["kind"] == "trial":
        for name in VARIABLES:
            if name in told["environment"][node]:
                os.environ[name] = told["environment"][node][name]
        inner = {**parameters, "store": f"{parameters['store']}-trial", "timeout_s": CONNECTING_S}
        found = reduce(backend, dataclasses.replace(request, parameters=inner), stage)
    elif told["kind"] == "end":
        found = Measured(details={"told": told})
    elif rank in firsts:
        found = Measured(details={"nodes": _survey(store, node, len(firsts), parameters["peer"])})
    # Rank 0 keeps what is shared: it is the last to leave.
    if store.add("left", 1) == parameters["world_size"]:
        store.set("all left", "")
    if rank == 0:
        store.get("all left")
    return found


def _survey(store: torch.distributed.Store, node: int, nodes: int, peer: str) -> list[dict[str, Any]]:
    """Return what all nodes say of their interfaces, and of their ways to each other.

    Where nothing sets an interface, it is the one that leads to the `peer`.
    """
    now = os.environ.get("NCCL_SOCKET_IFNAME") or exactly(interface_towards(peer) or "")
    mine = Survey(now, own_addresses())
    store.set(f"addresses {node}", json.dumps(mine.addresses))
    there = [
        address
        for number in range(nodes)
        for address in json.loads(store.get(f"addresses {number}")).values()
        # One that this node has, too, is no way to another: bridges of containers are alike everywhere.
        if address not in mine.addresses.values()
    ]
    ways = {address: way for address in there if (way := interface_towards(address))}
    store.set(f"survey {node}", json.dumps(dataclasses.asdict(dataclasses.replace(mine, ways=ways))))
    return [json.loads(store.get(f"survey {number}")) for number in range(nodes)]


def own_addresses(root: Path = Path("/")) -> dict[str, str]:
    """Return an address of each interface of this node that is up: of IPv4, else a global one of IPv6."""
    found = {}
    try:
        rows = [line.split() for line in (root / "proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        rows = []
    for packed, _, _, scope, _, name in rows:
        if scope == "00":
            found[name] = ":".join(packed[place : place + 4] for place in range(0, 32, 4))
    found |= ipv4_addresses()
    return {name: address for name, address in found.items() if name != "lo" and _is_up(root, name)}


def _is_up(root: Path, name: str) -> bool:
    try:
        return (root / "sys/class/net" / name / "operstate").read_text().strip() != "down"
    except OSError:
        return False
