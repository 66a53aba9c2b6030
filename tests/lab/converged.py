"""Layers with the result of site.yml on a node: nodes of any lab can start from them, as from a golden image.

A layer holds the addresses of the lab that made it. The playbook that a test runs next replaces them. It
finds packages, driver and hardening in place; installing those is what takes long.
"""

import json
from pathlib import Path

from tests.lab import node as machine
from tests.lab.cache import digest, obtain, remove_tree, tree_parts
from tests.lab.gpu_simulator import repository
from tests.lab.process import LabError, run
from tests.lab.settings import CHECKOUT, STATE_ROOT, Node

# Raised when the way of building changes, so that nothing built the old way is used.
_RECIPE = "1"
# What decides on the result of site.yml, beside the layers below and the simulated repositories.
_FILES = ("ansible.cfg", "site.yml")
_TREES = (
    "data",
    "inventory/lab",
    "library",
    "module_utils",
    "playbooks",
    "plugins",
    "requirements",
    "roles",
    "temper",
    "validation",
)
# A layer has some 100 MiB, and every change of a role needs a new one.
_KEPT = 3


def layer(node: Node, below: machine.Layers) -> Path:
    """Where the layer for such a node is, or would be."""
    parts: list[str | bytes] = [_RECIPE, below.root.name, below.lab.parent.name, below.payload.name]
    parts += [repository.content_key(), *((CHECKOUT / name).read_bytes() for name in _FILES)]
    for name in _TREES:
        parts += [name, *tree_parts(CHECKOUT / name)]
    return node.lab.cache / f"{_name(node)}{digest(parts)}"


def keep(node: Node) -> None:
    """Switch a node off, and keep what it has stored, unless there is a layer already.

    Raises:
        LabError: it is not the result of this checkout on a bare node.
    """
    below = machine.layers(node)
    made = layer(node, below)
    if below.converged or below.result != made:
        began = "an earlier result" if below.converged else "another checkout"
        raise LabError(
            f"{node.name} was started from {began}: what it has stored is not what site.yml of this checkout "
            "makes of a bare node. `reset` starts it anew."
        )
    machine.stop(node)

    def fill(directory: Path) -> None:
        # The attributes that overlayfs has set come along: what the node deleted stays deleted.
        run(["cp", "--archive", "--reflink=auto", f"{node.state}/upper/.", str(directory)])

    obtain(node.lab.cache, made.name, fill)
    descriptions = STATE_ROOT.glob("*/nodes/*/node.json")
    used = {json.loads(path.read_text()).get("converged") for path in descriptions}
    layers = [path for path in node.lab.cache.glob(f"{_name(node)}*") if not path.suffix]
    for path in sorted(layers, key=lambda path: path.stat().st_ctime)[:-_KEPT]:
        if str(path) not in used:
            remove_tree(path)


def _name(node: Node) -> str:
    return f"converged-{node.name}-"
