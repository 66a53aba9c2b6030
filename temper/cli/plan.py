"""Show what site.yml would do to the nodes: packages, settings, and every reason to refuse a node.

The nodes are read and nothing is changed on them. --waived reads no node: it lists which controls of the
hardening the last plan leaves out on which nodes, and why. Other options, such as --ask-become-pass, are
given to ansible-playbook.

Exit status: 0 every node has a plan, 1 a node is refused or does not answer, 2 no plan was made, 130
interrupted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base.nodes import READING, counted, number_of, printable
from temper.base.selection import misspelt
from temper.cli import json_document, playbook
from temper.cli.main import BAD, GOOD, NOT_CARRIED_OUT, refused
from temper.plan.inventory import InventoryError, chosen, read, require_present

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = ROOT / "playbooks" / "preflight.yml"
#: As preflight writes it by itself.
PLANS = ROOT / "reports" / "plan.json"
OPTIONS = ("--inventory", "--limit", "--waived", "--json")
#: As ansible-playbook ends where a node is refused.
REFUSED = 2
#: As it ends where it cannot read an inventory, or nothing of it is chosen.
BROKEN = (1, 4)


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = playbook.parser("plan", __doc__)
    made.add_argument(
        "--waived", action="store_true", help="list the controls that the last plan leaves out, with reasons"
    )
    json_document.add_option(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    given, others = parser().parse_known_args(arguments)
    if wrong := misspelt(others, OPTIONS):
        return refused("plan", wrong)
    if given.waived:
        return _waived(given)
    try:
        require_present(chosen(given.inventory))
    except InventoryError as error:
        return refused("plan", error)
    if not given.json:
        return _status(_plans(given, others, PLANS))
    with tempfile.TemporaryDirectory() as folder:
        plans = _plans(given, others, Path(folder) / "plan.json", progress=sys.stderr.fileno())
    if plans:
        print(json_document.dumps(plans))
    return _status(plans)


def _waived(given: argparse.Namespace) -> int:
    """List what the plans of the last run leave out of the hardening."""
    try:
        plans = json.loads(PLANS.read_text(encoding="utf-8"))
        nodes: dict[str, list[str]] = {}
        for name, node in plans["nodes"].items():
            if digest := node.get("waived"):
                nodes.setdefault(digest, []).append(name)
        waived = [{"nodes": names, "controls": plans["waived"][digest]} for digest, names in nodes.items()]
        blocks = [
            "\n".join(
                [
                    f"{counted(one['nodes'])}: {number_of(len(one['controls']), 'control')} waived",
                    *(
                        f"  {control['id']}: {control['title']}\n    by {control['by']}: {control['reason']}"
                        for control in one["controls"]
                    ),
                ]
            )
            for one in waived
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        return refused("plan", f"{PLANS} has no plans to read: {reason}; temper plan makes them")
    json_document.show(given, {"waived": waived}, printable("\n".join(blocks) or "No control is waived."))
    return GOOD


def _status(plans: dict[str, Any] | None) -> int:
    if not plans or not plans["nodes"]:
        return NOT_CARRIED_OUT
    return BAD if any(node["problems"] for node in plans["nodes"].values()) else GOOD


def _plans(
    given: argparse.Namespace, others: Sequence[str], path: Path, progress: int | None = None
) -> dict[str, Any] | None:
    """Run preflight, whose text goes to the file descriptor `progress`; None where it wrote no plans."""
    before = _written(path)
    variables = json.dumps({"preflight_plan_file": str(path)})
    print(READING, file=sys.stderr, flush=True)
    status = playbook.run(PLAYBOOK, ["-e", variables], given, others, progress)
    if status is None:
        return None
    # Another run may have written its plans beside this one.
    if status not in (GOOD, REFUSED) or _written(path) in (None, before):
        why = "ansible-playbook says above why"
        try:
            if status in BROKEN:
                read(chosen(given.inventory), given.limit)
        except InventoryError as error:
            why = str(error)
        refused("plan", f"no plan was made: {why}")
        return None
    plans: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return plans


def _written(path: Path) -> tuple[int, int] | None:
    """Return what changes whenever a file is replaced; None where it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
