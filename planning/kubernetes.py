"""What Kubernetes needs for the GPUs of planned nodes, as files for the operator. Nothing is applied.

    python3 -m planning.kubernetes reports/plan.json reports/kubernetes

reads the plans of preflight's last run and writes a RuntimeClass and the values of NVIDIA's charts, of which
a cluster takes one: the device plugin, or the GPU operator without its own driver and toolkit. Labels of
nodes are what GPU feature discovery finds there, so that none is made here. Exit status: 0 written, 1 some
node is not ready (said on standard error), 2 nothing was read or written.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOOLKIT = "nvidia-container-toolkit"
RUNTIME = "nvidia"  # the name that nvidia-ctk registers with containerd and CRI-O
ENGINES = ("containerd", "crio")
HEADER = "# Made by Temper from the plans of {nodes}; nothing was applied.\n"
NODES_SHOWN = 8


@dataclass(frozen=True)
class KubernetesNode:
    """What of a node's plan matters to Kubernetes; `layouts` are those of MIG by GPU, empty: whole."""

    name: str
    refused: bool
    toolkit: bool
    engines: tuple[str, ...]  # that the operator names; empty for all that are installed
    excluded: tuple[str, ...]
    registered: bool
    default_runtime: bool
    layouts: dict[str, tuple[str, ...]]

    @classmethod
    def from_dict(cls, name: str, node: Mapping[str, Any], roles: Mapping[str, Any]) -> KubernetesNode:
        """From a node's document in plan.json; `roles` are the settings in it, by their digests."""
        wanted = {
            role: {setting["key"]: setting["wanted"] for setting in roles[key]["settings"]}
            for role, key in node.get("roles", {}).items()
        }
        engines, gpus = wanted.get("container_engines", {}), wanted.get("gpu_settings", {})
        layouts = gpus.get("mig") or {}
        return cls(
            name=name,
            refused=bool(node["problems"]),
            toolkit=TOOLKIT in node.get("packages", {}),
            engines=tuple(engines.get("engines") or ()),
            excluded=tuple(engines.get("exclude") or ()),
            registered="default_runtime" in engines,
            default_runtime=bool(engines.get("default_runtime")),
            layouts={
                str(gpu): tuple(found) if isinstance(found, list) else () for gpu, found in layouts.items()
            },
        )

    def obstacles(self) -> Iterator[str]:
        """Why pods would not get its GPUs, in sentences without its name."""
        if self.refused:
            yield "preflight refuses it; correct that, and run preflight again"
            return
        if not self.toolkit:
            yield f"its plan has no {TOOLKIT}; set nvidia_stack_distro_container_toolkit: true"
        if not self.registered:
            yield "no engine gets the GPUs; set container_engines_state: present"
        elif not [one for one in self.engines or ENGINES if one in ENGINES and one not in self.excluded]:
            yield (
                "neither containerd nor CRI-O gets the runtime; name one in container_engines_manage, and "
                "take it out of container_engines_exclude"
            )

    @property
    def mig_strategy(self) -> str:
        """`none`, `single` where every GPU has instances of one profile, `mixed` for all else."""
        if not any(self.layouts.values()):
            return "none"
        profiles = {profile for layout in self.layouts.values() for profile in layout}
        # A GPU that is not named is left as it is, and may be whole.
        every = "all" in self.layouts and all(self.layouts.values())
        return "single" if every and len(profiles) == 1 else "mixed"


def read_nodes(path: Path) -> list[KubernetesNode]:
    """The nodes of a file that preflight wrote. Raises ValueError where it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return [
            KubernetesNode.from_dict(name, node, document["settings"])
            for name, node in sorted(document["nodes"].items())
        ]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: expected the plans that playbooks/preflight.yml writes, found {error!r}"
        ) from error


def fleet_mig_strategy(nodes: Sequence[KubernetesNode]) -> str:
    """One value for all nodes: a device plugin that is `mixed` serves whole GPUs, too."""
    found = {node.mig_strategy for node in nodes}
    return found.pop() if len(found) == 1 else "mixed"


def files(nodes: Sequence[KubernetesNode]) -> dict[str, str]:
    """File name -> content, for at least one node that is ready."""
    names = [node.name for node in nodes]
    more = f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
    header = HEADER.format(nodes=", ".join(names[:NODES_SHOWN]) + more)
    strategy = fleet_mig_strategy(nodes)
    documents: dict[str, dict[str, object]] = {
        "runtime-class.yml": {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": RUNTIME},
            "handler": RUNTIME,
        },
        "device-plugin-values.yml": {
            **({} if all(node.default_runtime for node in nodes) else {"runtimeClassName": RUNTIME}),
            "migStrategy": strategy,
            "gfd": {"enabled": True},
        },
        # Two owners of one driver contradict each other: these parts are Temper's.
        "gpu-operator-values.yml": {
            "driver": {"enabled": False},
            "toolkit": {"enabled": False},
            "mig": {"strategy": strategy},
            "migManager": {"enabled": False},
        },
    }
    return {name: header + yaml.safe_dump(document, sort_keys=False) for name, document in documents.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, and say which nodes are not ready."""
    parser = argparse.ArgumentParser(
        prog="python3 -m planning.kubernetes", description=__doc__.split("\n")[0]
    )
    parser.add_argument("plans", type=Path, help="what preflight wrote: reports/plan.json")
    parser.add_argument("folder", type=Path, help="where the files go")
    given = parser.parse_args(arguments)
    try:
        nodes = read_nodes(given.plans)
        obstacles = {node.name: list(node.obstacles()) for node in nodes}
        ready = [node for node in nodes if not obstacles[node.name]]
        if ready:
            given.folder.mkdir(parents=True, exist_ok=True)
            for name, text in files(ready).items():
                (given.folder / name).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, found in obstacles.items():
        for obstacle in found:
            print(f"{name}: {obstacle}", file=sys.stderr)
    if not ready:
        print(f"{given.plans}: no node is ready, so that nothing was written", file=sys.stderr)
        return 2
    print(f"{given.folder}: written for {len(ready)} of {len(nodes)} nodes")
    return 1 if len(ready) < len(nodes) else 0


if __name__ == "__main__":
    sys.exit(main())
