"""Which nodes take part: from an inventory's groups and the plans that preflight made."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from temper.base import DATA
from temper.plan.convert import build, checked, from_node
from temper.plan.distro_source import kernel_problem
from temper.plan.inventory import InventoryError, ansible, last_words, read
from temper.plan.preview import Transaction
from temper.plan.tables import Tables, load_tables
from temper.rollout.machine import leave_out
from temper.rollout.model import Mode, NodeState, Record, Rollout, RolloutNode
from temper.rollout.node_step import KernelSaid
from temper.rollout.planner import limits_of, waves
from temper.rollout.policy import Policy


@dataclass(frozen=True)
class Candidate:
    """A node as preflight planned it. With `problems` it takes no part.

    `jump_level` is its turn among the nodes that others are reached through, 0 for none of them. `address` is
    what its problems call it, if it was not reached.
    """

    name: str
    groups: tuple[str, ...]
    cohort: str = ""
    problems: tuple[str, ...] = ()
    transaction: tuple[str, ...] = ()
    jump_level: int = 0
    address: str = ""


def candidates(
    documents: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]],
    previews: Mapping[str, Any] | None = None,
    *,
    only_kernel: bool = False,
) -> list[Candidate]:
    """Return every node of preflight's file (its key `nodes`), by name. `groups` are those of each node.

    `previews` are what nodes have said of kernels (`preflight`), if these are upgraded; with `only_kernel`,
    the stack stays what each node has.
    """
    tables = load_tables(DATA) if previews is not None else None
    found = []
    others = {group for node, own in groups.items() for group in own if group != node}
    for name, document in sorted(documents.items()):
        given = tuple(groups.get(name, ()))
        if name in others:
            # Each step is taken with --limit, to which it is the group.
            problem = "a group of other hosts has its name, and a step would be theirs: rename one"
            found.append(Candidate(name, given, problems=(problem,)))
            continue
        level = int(document.get("jump_level", 0))
        if previews is None or not tables or document.get("problems") or not document.get("driver"):
            found.append(
                replace(_candidate(name, document, given), jump_level=level, address=_address(document))
            )
            continue
        change = kernel_change(document, previews.get(name, {}), tables)
        stack = Candidate(name, given) if only_kernel else _candidate(name, document, given)
        found.append(replace(_with_kernel(stack, document, change), jump_level=level))
    return found


@dataclass(frozen=True)
class KernelChange:
    """What of a node's kernel would change, or why nothing does."""

    former: str = ""
    release: str = ""
    lines: tuple[str, ...] = ()
    settled: str = ""
    problem: str = ""


@dataclass(frozen=True)
class KernelPreview(KernelSaid):
    """What the module says of such a kernel before a roll-out, the way to it included."""

    running: str = ""
    version: str = ""
    install: tuple[str, ...] = ()
    upgrade: tuple[str, ...] = ()
    download_bytes: int = 0
    warning: str = ""
    problem: str = ""


def kernel_change(document: Mapping[str, Any], preview: Mapping[str, Any], tables: Tables) -> KernelChange:
    """Return what a node has said about its next kernel, and what planning knows against that one."""
    try:
        said = from_node({"kernel": preview.get("kernel") or {}}, "node_kernel")
        kernel = checked(KernelPreview, said["kernel"], "node_kernel.kernel")
    except ValueError as error:
        return KernelChange(problem=f"it has said in another form which kernel it gets: {error}")
    assert isinstance(kernel, KernelPreview)
    if kernel.settled:
        return KernelChange(settled=kernel.settled)
    if not kernel.release:
        return KernelChange(problem=kernel.problem or "it has not said which kernel it gets")
    problem = kernel_problem(str(document.get("source")), str(document.get("system")), kernel.release, tables)
    size_mib = kernel.download_bytes // 2**20
    lines = [
        f"kernel {kernel.running} -> {kernel.release} ({kernel.version}), {size_mib} MiB to download",
        f"install {', '.join(kernel.install)}",
    ]
    lines += [f"upgrade {', '.join(kernel.upgrade)}"] if kernel.upgrade else []
    lines += [kernel.warning] if kernel.warning else []
    return KernelChange(kernel.running, kernel.release, tuple(lines), problem=problem)


def _with_kernel(stack: Candidate, document: Mapping[str, Any], change: KernelChange) -> Candidate:
    """Return a node that gets another kernel, with its stack or alone."""
    if change.problem:
        return replace(stack, problems=(*stack.problems, change.problem))
    only_kernel = not stack.cohort
    if change.settled:
        return replace(stack, problems=(*stack.problems, change.settled)) if only_kernel else stack
    cohort = stack.cohort or f"{_hardware(document)}, {document.get('system')}"
    moved = f"{cohort}, {change.former} -> {change.release}"
    # A stack that is there already is no reason to leave the node out.
    return replace(stack, cohort=moved, problems=(), transaction=(*stack.transaction, *change.lines))


def _address(document: Mapping[str, Any]) -> str:
    """Return the address at which a node did not answer; empty for one that did."""
    facts = (one.get("facts", {}) for one in document.get("refusals", ()))
    return next((str(one["address"]) for one in facts if "address" in one), "")


def _hardware(document: Mapping[str, Any]) -> str:
    """Return the GPUs of a node, for people."""
    gpus = [f"{gpu['count']}x {gpu['name']}" for gpu in document.get("gpus", ())]
    gpus += [f"10de:{device}" for device in document.get("unknown_gpus", ())]
    return " + ".join(gpus) or "no GPU"


def _candidate(name: str, document: Mapping[str, Any], groups: tuple[str, ...]) -> Candidate:
    driver = document.get("driver")
    problems = list(document.get("problems") or ())
    if not problems and not driver:
        problems = ["its plan has no driver"]
    if not problems and document.get("settled"):
        problems = [f"it has stack {document.get('stack')} already"]
    if problems or not driver:
        return Candidate(name, groups, problems=tuple(problems))
    transaction = build(Transaction, document.get("transaction") or {}, name)
    moved = (*transaction.upgrade, *transaction.downgrade)
    former = next((change.from_ for change in moved if change.to == driver["package_version"]), "no driver")
    cohort = ", ".join(
        (
            _hardware(document),
            str(document.get("system")),
            f"{former} -> {driver['package_version']}",
        )
    )
    return Candidate(name, groups, cohort, transaction=tuple(transaction.lines()))


def proposal(
    found: Sequence[Candidate],
    policy: Policy,
    stack: str,
    now: datetime,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Rollout:
    """Return a roll-out of these nodes that has not begun; those with problems are left out.

    `groups` are those of each node of the inventory, as policies are the fleet's and a roll-out may be of one
    node. Raises InventoryError where a limit of the policy names groups that no node is in.
    """
    nodes = {
        node.name: RolloutNode(node.name, node.cohort, node.groups, place) for place, node in enumerate(found)
    }
    known = {group for node in found for group in node.groups}.union(*(groups or {}).values())
    for pattern in policy.group_limits:
        if not limits_of(tuple(known), ((pattern, 1),)):
            raise InventoryError(
                "group_limits: expected a pattern of groups of the inventory, or of racks by nodes' variable "
                f"`rack`, found {pattern}"
            )
    for window in policy.windows:
        if unknown := sorted(window.groups - known):
            raise InventoryError(f"windows: expected groups of the inventory, found {', '.join(unknown)}")
    taking_part = [nodes[node.name] for node in found if not node.problems]
    numbers = waves(taking_part, policy, {node.name: node.jump_level for node in found})
    records = {name: Record(NodeState.PENDING, now, wave=numbers.get(name, 0)) for name in nodes}
    for node in found:
        if node.problems:
            records[node.name] = leave_out(records[node.name], "; ".join(node.problems), now)
    return Rollout(stack, policy, nodes, records, Mode.RUNNING)


def _first(reasons: Path) -> str:
    """Return the first of the reasons that a run has kept for the program that started it."""
    if not reasons.is_file():
        return ""
    with reasons.open(encoding="utf-8") as lines:
        return str(json.loads(next(lines, "{}")).get("text", ""))


def preflight(
    inventory: Sequence[str], stack: str, limit: str = "", wish: str = ""
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what is planned for each node with this stack and what it says of its next kernel, by name.

    Reads the nodes and changes nothing. Without `stack`, the inventory's is meant; without a `wish`, no node
    is asked for kernels (None). One that preflight refuses, or that is silent, has its problems, no kernel.
    `limit` is as Ansible takes it, or has a node in each line.

    Raises InventoryError where it made no plans at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        plans, kernels = Path(folder) / "plan.json", Path(folder) / "kernels.json"
        variables = {
            # Nodes have work: a roll-out drains them before anything changes.
            "nvidia_stack_busy_ok": True,
            # It reboots them in a step of its own.
            "__preflight_installs": False,
            "preflight_plan_file": str(plans),
            **({"nvidia_stack_name": stack} if stack else {}),
            **({"kernel_preview_wish": wish, "kernel_preview_file": str(kernels)} if wish else {}),
        }
        if "\n" in limit:  # the names of a large fleet are more than one word of a command line may have
            (names := Path(folder) / "limit").write_text(limit, encoding="utf-8")
            limit = f"@{names}"
        playbook = f"playbooks/{'kernel_preview' if wish else 'preflight'}.yml"
        chosen = ["--limit", limit] if limit else []
        reasons = Path(folder) / "reasons"
        words = (playbook, "-e", json.dumps(variables), *chosen)
        done = ansible("ansible-playbook", inventory, *words, TEMPER_REASONS_FILE=str(reasons))
        if not plans.is_file():
            read(inventory, limit)  # its sentence, where there is no node to plan
            raise InventoryError(f"preflight made no plans: {_first(reasons) or last_words(done)}")
        document = json.loads(plans.read_text(encoding="utf-8"))
        said = json.loads(kernels.read_text(encoding="utf-8")) if kernels.is_file() else {}
    return document["nodes"], said if wish else None
