"""On a node: its ranks of a collective between nodes."""

from __future__ import annotations

import fcntl
import socket
import struct
import time

from validation.backends.sampling import MOST_ATTEMPTS
from validation.checks.check import LEAST_PATIENCE_S
from validation.checks.collectives import RANK_PATIENCE, SIZES_SHARE, UNMET, longest_run_s, place
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.checks.node import Node
from validation.fabric.groups import Order, Part, Rank
from validation.model.contract import FABRIC_VERSION
from validation.probes.network_links import link_gb_s
from validation.probes.topology import Topology
from validation.processes.child import Request
from validation.processes.pool import PATIENCE, Ending, ProcessOutcome, run_children

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
#: Beside the budget, until all ranks have met: to load torch from a cold disk, and for each node of the round
#: the time in which it is started. Ansible starts a thousand in 40 to 150 s.
MEETING_S = 30.0
MEETING_S_PER_NODE = 0.2
#: What runs may take of the budget; the rest is for warming up and checking.
RUNS_SHARE = 0.5
#: The first size, from which the time of the larger ones is estimated. Even 10 Mb/s manage it in time.
PROBE_BYTES = 1 << 20


def run_part(order: Order, node: Node) -> Part:
    """Take part in a group with this node's ranks, and say what came of each."""
    reason = node.why_no_cuda() if order.library == "nccl" else node.why_no_torch()
    if reason:
        return Part(FABRIC_VERSION, order.node, not_run=reason)
    before = 0
    for me in order.group:
        if me.name == order.node:
            break
        before += me.ranks
    budget_s = node.plan.fabric_budget_s
    meeting_s = MEETING_S + MEETING_S_PER_NODE * order.nodes_in_round
    all_s, measure_s = meeting_s + budget_s, SIZES_SHARE * budget_s
    gloo, nccl = node.plan.fabric_gloo_bytes, (PROBE_BYTES, *node.plan.gpu_all_reduce_bytes[:3])
    sizes = gloo if order.library == "gloo" else nccl
    steps = len(node.plan.collectives) * len(sizes)
    # A slow network is to run less often, not to look as if it hung.
    at_most_s = min(node.plan.all_reduce_s, RUNS_SHARE * budget_s / (MOST_ATTEMPTS * steps))
    started, started_at = time.monotonic(), time.time()
    others = [member.address for member in order.group if member.name != order.node]
    requests = [
        Request(
            f"{order.node} rank {before + local}",
            "validation.checks.collectives:measure",
            BACKENDS[order.library],
            device=local,
            parameters={
                "rank": before + local,
                "world_size": sum(member.ranks for member in order.group),
                "store": f"tcp://{in_url(order.group[0].address)}:{order.port}/{order.run}",
                "timeout_s": all_s * RANK_PATIENCE,
                "collectives": list(node.plan.collectives),
                "sizes_bytes": list(sizes),
                "runs": node.plan.all_reduce_runs,
                "at_most_s": at_most_s,
                "measure_s": measure_s,
            },
            environment=_environment(order.library, others[0]),
        )
        for local in range(me.ranks)
    ]
    outcomes = run_children(
        requests,
        all_s,
        together=True,
        patience_s=node.stretch * max(LEAST_PATIENCE_S, PATIENCE * longest_run_s(measure_s)),
        # Who is there first waits for who is last, and shows no progress meanwhile.
        longer_s=dict.fromkeys(UNMET, node.stretch * PATIENCE * meeting_s),
    )
    for outcome in outcomes:
        # Somebody else has the memory, say: no rank died, and no network is to blame.
        if reason := outcome.measured.not_run:
            return Part(FABRIC_VERSION, order.node, not_run=f"{outcome.request.name}: {reason}")
    ranks = tuple(_rank(outcome, started_at + outcome.ended_at - started) for outcome in outcomes)
    return Part(
        FABRIC_VERSION,
        order.node,
        ranks,
        tuple(node.plan.collectives),
        tuple(sizes),
        left_out=tuple(next((outcome.measured.details.get("left_out", ()) for outcome in outcomes), ())),
        link_gb_s=_link_gb_s(order, node, others[0]),
    )


def _link_gb_s(order: Order, node: Node, peer: str) -> float | None:
    """Return what this node's links carry; looked at only after it has measured."""
    if order.library != "nccl":
        return link_gb_s(order.library, interface_towards(peer), ())
    topology = node.topology
    if isinstance(topology, Topology):
        return link_gb_s(order.library, interface_towards(peer), topology.rdma_ports)
    return None


def _rank(outcome: ProcessOutcome, ended_at: float) -> Rank:
    seconds = {step: tuple(runs) for step, runs in outcome.measured.details.get("seconds", {}).items()}
    problem = outcome.problem
    if outcome.ending in {Ending.HUNG, Ending.SLOW} and outcome.stage not in UNMET:
        problem += f", {place(outcome.steps)}"
    return Rank(
        outcome.ending,
        outcome.stage,
        problem,
        ended_at,
        seconds,
        outcome.measured.findings,
        outcome.steps,
        outcome.halted,
    )


def _environment(library: str, peer: str) -> dict[str, str]:
    """Gloo must be told its interface, else it takes what the host's name stands for, often loopback.

    NCCL finds its own, or has been told by /etc/nccl.conf.
    """
    if library == "nccl":
        return CUDA_ENVIRONMENT
    name = interface_towards(peer)
    return {"OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": name} if name else {})}


def interface_towards(address: str) -> str | None:
    """Return the interface whose address packets to `address` carry; None where it cannot be found."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # a datagram socket sends nothing here
            own = probe.getsockname()[0]
    except OSError:
        return None
    if family == socket.AF_INET6:
        return _interface_of_ipv6(own)
    return next((name for name, address in ipv4_addresses().items() if address == own), None)


def ipv4_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _interface_of_ipv6(own: str) -> str | None:
    packed = socket.inet_pton(socket.AF_INET6, own.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6") as table:  # noqa: PTH123 - a file of the kernel
            rows = [line.split() for line in table]
    except OSError:
        return None
    return next((row[5] for row in rows if row[0] == packed), None)


def in_url(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address
