"""The winners as variables of an inventory, for an operator to read, change and commit.

A proposal is written to a place that is free, or that holds an earlier proposal which nobody has touched: its
first lines have a checksum of the rest. A file of the operator's is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from validation.autotune.evidence import Evidence, brought, held, shown, verdict
from validation.autotune.knobs import KINDS, environment_of
from validation.autotune.search import KnobVerdict
from validation.model.printable import one_line
from validation.processes.files import write_atomically

MARK = "# Proposed by Temper's autotune; the sha256 of all lines below is "
#: The line of a proposal that says whose it is.
MEASURED = "# Measured on {node} at "
MEASURED_LINE = re.compile("^" + MEASURED.format(node=r"(\S+)"), re.MULTILINE)
VARIABLE = re.compile(r"^(\w+): \S+$", re.MULTILINE)


class ProposalError(Exception):
    """A place where no proposal may be written; the message says why, and what to do."""


def text(evidence: Evidence, earlier: str = "") -> str:
    """Return the file: variables of roles, and as comments the evidence and what a job has to set.

    Of an `earlier` proposal the variables stay that this one does not replace: they were the start of it.
    """
    # A node's words stand in comments: a line of their own would be a variable of the inventory.
    below = "".join(
        f"{one_line(line)}\n" if line.startswith("#") else f"{line}\n" for line in _lines(evidence, earlier)
    )
    return f"{MARK}{_digest(below)}\n{below}"


def write(path: Path, evidence: Evidence) -> bool:
    """Write a proposal, unless nothing was kept; whether it did. Raises ProposalError and OSError."""
    if not held(evidence.decision):
        return False
    _refuse_to_hide(path)
    try:
        before = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        before = None
    except UnicodeDecodeError as error:
        raise ProposalError(_taken(path)) from error
    if before is not None:
        first, _, below = before.partition("\n")
        if first != f"{MARK}{_digest(below)}":
            raise ProposalError(_taken(path))
        if (found := MEASURED_LINE.search(before)) and found[1] != evidence.node:
            raise ProposalError(
                f"{path} has the proposal of {found[1]}, expected one of {evidence.node} or none: "
                "name a place for each node"
            )
    write_atomically(path, text(evidence, before or ""))
    return True


def _taken(path: Path) -> str:
    return (
        f"{path} was written or changed by somebody and stays as it is: move it away, or take the proposal "
        "from the report"
    )


def _refuse_to_hide(path: Path) -> None:
    """Ansible reads no host_vars/NODE.yml beside a folder host_vars/NODE. Raises ProposalError."""
    if path.parent.parent.name != "host_vars" or path.parent.exists():
        return
    for suffix in ("", ".yml", ".yaml", ".json"):
        other = path.parent.with_name(path.parent.name + suffix)
        if other.is_file():
            raise ProposalError(
                f"{other} would no longer be read beside a folder of this name: move it to "
                f"{path.parent / 'main.yml'} first"
            )


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _lines(evidence: Evidence, earlier: str) -> Iterator[str]:
    machine = evidence.machine
    yield "# Read it, change what you know better, and commit it; or delete it."
    measured = MEASURED.format(node=evidence.node)
    yield f"{measured}{evidence.started_at}: {machine.cpu_model}, {machine.cpus} CPUs,"
    yield f"# torch {machine.torch}, driver {machine.driver or 'none'}; processes: {evidence.processes}."
    if evidence.nodes:
        yield f"# Measured with {evidence.library} between {', '.join(evidence.nodes)}."
        yield "# Give these values to all nodes that run jobs together, or to none: they meet there."
    yield "---"
    kept = [knob for knob in evidence.decision.knobs if knob.kept is not None]
    if kept:
        yield "# All of it together, measured again at the end against the start:"
        yield from (f"#   {brought(one)}" for one in held(evidence.decision))
    else:
        yield "# Nothing is worth a change: no variable is set here."
    for knob in kept:
        yield from _proposed(knob, between=bool(evidence.nodes))
    replaced = {KINDS[knob.name].variable for knob in kept}
    if carried := [found for found in VARIABLE.finditer(earlier) if found[1] not in replaced]:
        yield ""
        yield "# Of an earlier proposal:"
        yield from (found[0] for found in carried)
    left = [knob for knob in evidence.decision.knobs if knob.kept is None]
    if left or evidence.left_out:
        yield ""
        yield "# Left as it is:"
    for knob in left:
        yield f"#   {knob.name}: {verdict(knob)}"
    yield from (f"#   {one.name}: not tried: {one.reason}" for one in evidence.left_out)


def _proposed(knob: KnobVerdict, *, between: bool) -> Iterator[str]:
    """Yield a variable with its evidence, or advice where no role has a variable for it."""
    kind = KINDS[knob.name]
    yield ""
    yield f"# {kind.sets}: {knob.kept} in place of {shown(knob.start)}"
    yield f"#   {brought(knob.tried[-1])}"
    if kind.variable:
        yield f"{kind.variable}: {_scalar(knob.kept or '')}"
    else:
        yield f"# For you to set: {_advice(knob, between=between)}"


def _scalar(value: str) -> str:
    return value if value.isascii() and value.isdigit() else json.dumps(value)


def _advice(knob: KnobVerdict, *, between: bool) -> str:
    """Return what a job, or an administrator, has to set."""
    value = knob.kept or ""
    if variables := environment_of({knob.name: value}):
        words = " ".join(f"{name}={found}" for name, found in variables.items())
        alone = "NCCL" in words and not between
        through = "; measured over this node's own sockets, not between nodes" if alone else ""
        return f"in the job's environment, {words}{through}"
    if knob.name == "loader_workers":
        return f"in the job, DataLoader(num_workers={value})"
    if knob.name == "loader_pin_memory":
        return "in the job, DataLoader(pin_memory=True)"
    return (
        f"for all NVMe drives of this node, os_tuning_nvme_read_ahead_kb: {value}; for one disk, a rule of "
        f'udev: ACTION=="add|change", KERNEL=="DISK", ATTR{{queue/{knob.name}}}="{value}"'
    )
