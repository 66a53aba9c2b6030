"""What the package manager's simulation adds to a plan, and the words for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from planning.distro import resolved_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from planning.model import Facts

KERNEL = re.compile(r"^(linux-image-|linux-modules-|kernel(-core|-modules)?$)")
NAMES_SHOWN = 6
GIB, MIB = 2**30, 2**20


def with_preview(plan: Facts, result: Facts) -> dict[str, Any]:
    """The plan with what module package_preview returned.

    Its problems refuse the node, and a module that broke does: what nobody could simulate is not tried.
    """
    problems = [*plan["problems"], *result.get("problems", ())]
    if problems and plan["hint"]:
        problems.append(plan["hint"])
    transaction = result.get("transaction")
    if transaction is None:
        reason = " ".join(str(result.get("msg") or "it returned nothing").split()).rstrip(".")
        problems.append(f"the transaction cannot be simulated: {reason}. Correct it and run again")
        transaction = {}
    if problems and new_kernels(transaction):
        problems.append(
            "the headers that follow the kernel bring a newer one than the running kernel: upgrade it and "
            "reboot first, or set nvidia_stack_follow_kernels: false to build for the running one only"
        )
    resolved = result.get("resolved", {})
    return {
        **plan,
        "driver": resolved_driver(plan["driver"], resolved),
        "transaction": transaction,
        "resolved": resolved,
        "problems": problems,
        "text": "\n".join([plan["text"], *transaction_lines(transaction)]),
    }


def with_engines(plan: Facts, result: Facts) -> dict[str, Any]:
    """The plan with what module container_engine returned in check mode: a refusal refuses the node."""
    message = " ".join(str(result.get("msg") or "").split()).rstrip(".")
    return {**plan, "problems": [*plan["problems"], *([message] if message else [])]}


def transaction_lines(transaction: Facts) -> list[str]:
    """A transaction in a few lines: how much, and by name what an operator wants to know before."""
    install, upgrade = transaction.get("install", ()), transaction.get("upgrade", ())
    downgrade, remove = transaction.get("downgrade", ()), transaction.get("remove", ())
    if not (install or upgrade or downgrade or remove):
        return []
    sizes = f"{size(transaction.get('download_bytes', 0))} to download, "
    sizes += f"{size(transaction.get('disk_bytes', 0))} on disk"
    lines = [f"transaction: {len(install)} to install, {len(upgrade)} to upgrade; {sizes}"]
    if upgrade:
        lines.append(f"  upgrades: {shown(step(change) for change in upgrade)}")
    if downgrade:
        lines.append(f"  downgrades: {shown(step(change) for change in downgrade)}")
    if remove:
        lines.append(f"  removes: {shown(change['name'] for change in remove)}")
    if kernels := new_kernels(transaction):
        lines.append(f"  brings a kernel: {shown(kernels)}")
    return lines


def new_kernels(transaction: Facts) -> list[str]:
    """The kernels that a transaction would install."""
    changes = [*transaction.get("install", ()), *transaction.get("upgrade", ())]
    return [change["name"] for change in changes if KERNEL.match(change["name"])]


def step(change: Facts) -> str:
    """A package's way from one version to another."""
    return f"{change['name']} {change['from']} -> {change['to']}"


def shown(names: Iterable[str]) -> str:
    """Some of the names, and how many more there are."""
    every: Sequence[str] = list(names)
    rest = len(every) - NAMES_SHOWN
    return ", ".join(every[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def size(number: int) -> str:
    """Bytes for people."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
