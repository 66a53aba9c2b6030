"""Which leaf and which pod of the network each node hangs on: a file of the operator's, Slurm's, or groups.

A leaf is what nodes share first: a switch, or the set of rail switches of a scalable unit. A pod is what
leaves share. Pure, but for reading the file.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

#: More names than one expression may stand for: a typo in a range is not to fill the memory.
MOST_NAMES = 100_000
SLURM_WORD = re.compile(r'\b(\w+)\s*=\s*("[^"]*"|\S+)')
YAML_FORM = (
    "expected such as `leaves: {leaf01: 'gpu[001-032]'}` and, where there are, `pods: {pod1: 'leaf01'}`"
)


class TreeError(ValueError):
    """A topology that says no tree; the message says what is wrong, where, and what was expected."""


@dataclass(frozen=True)
class Place:
    """Where a node hangs; `pod` is empty in a network without pods."""

    leaf: str
    pod: str = ""


@dataclass(frozen=True)
class Tree:
    """Places by node. `strict`: it was written for these nodes, so that a name that no node has is a typo."""

    places: dict[str, Place] = field(default_factory=dict)
    strict: bool = False


def read_tree(path: Path) -> Tree:
    """The tree in a file: Slurm's topology.conf where it has lines `SwitchName=...`, else YAML.

    Raises TreeError.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeError) as error:
        raise TreeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        if re.search(r"(?im)^\s*SwitchName\s*=", text):
            return _from_slurm(text)
        return _from_yaml(text)
    except TreeError as error:
        raise TreeError(f"{path}: {error}") from error


def tree_of_groups(groups: Mapping[str, Iterable[str]], leaves: str, pods: str) -> Tree:
    """The tree that groups of the inventory say: `groups` by node; the patterns are those of a shell.

    Nodes in no leaf are left out. Raises TreeError.
    """
    places: dict[str, Place] = {}
    pod_of: dict[str, str] = {}
    for node, given in groups.items():
        names = sorted(given)
        leaf = _only(node, "leaf", [name for name in names if fnmatch.fnmatchcase(name, leaves)])
        pod = _only(node, "pod", [name for name in names if pods and fnmatch.fnmatchcase(name, pods)])
        if not leaf:
            continue
        if pod_of.setdefault(leaf, pod) != pod:
            raise TreeError(
                f"leaf {leaf} is in {_pod(pod_of[leaf])} and, with {node}, in {_pod(pod)}; expected one"
            )
        places[node] = Place(leaf, pod)
    return _checked(places)


def find_places(tree: Tree, nodes: Iterable[str], known: Iterable[str]) -> dict[str, Place]:
    """The places of these nodes. Raises TreeError for one that has none, and for a name not `known`."""
    nodes, known = list(nodes), list(known)
    if missing := [node for node in nodes if node not in tree.places]:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise TreeError(
            f"{missing[0]}{more} in no leaf; name a leaf for every node that is measured with others"
        )
    strangers = sorted(tree.places.keys() - set(known)) if tree.strict else []
    if strangers:
        near = difflib.get_close_matches(strangers[0], known, 1)
        hint = f"; did you mean {near[0]}?" if near else "; take it out"
        raise TreeError(
            f"leaf {tree.places[strangers[0]].leaf} names {strangers[0]}, which no inventory has{hint}"
        )
    return {node: tree.places[node] for node in nodes}


def expand(expression: str) -> list[str]:
    """The names that a hostlist expression stands for: `gpu[001-032,040],login1`, as Slurm writes it.

    Raises TreeError.
    """
    names: list[str] = []
    for term in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]", expression.strip()):
        parts = re.split(r"\[([^\[\]]*)\]", term.strip())
        if "[" in "".join(parts[::2]) or "]" in "".join(parts[::2]) or not term.strip():
            raise TreeError(f"expected names such as gpu[001-032,040], found {expression.strip()!r}")
        choices = [_numbers(part, expression) if place % 2 else [part] for place, part in enumerate(parts)]
        count = 1
        for one in choices:
            count *= len(one)
        if len(names) + count > MOST_NAMES:
            raise TreeError(
                f"{expression.strip()!r} stands for more than {MOST_NAMES:,} names; check its ranges"
            )
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names


def _numbers(ranges: str, expression: str) -> list[str]:
    """`001-003,7`: the numbers as they are written, with leading zeros."""
    found: list[str] = []
    for one in ranges.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", one)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise TreeError(
                f"expected numbers such as [001-032,040] in {expression.strip()!r}, found {one!r}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_NAMES:
            raise TreeError(
                f"{expression.strip()!r} stands for more than {MOST_NAMES:,} names; check its ranges"
            )
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found


def _from_yaml(text: str) -> Tree:
    import yaml  # late: a node's Python seldom has it, and a node reads no topology

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no date, or lists too deep
        raise TreeError(f"it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("leaves"), dict):
        raise TreeError(f"{YAML_FORM}, found no leaves")
    if more := sorted(map(str, content.keys() - {"leaves", "pods"})):
        raise TreeError(f"{YAML_FORM}, found also {more[0]}")
    leaves = {str(leaf): members for leaf, members in content["leaves"].items()}
    pod_of: dict[str, str] = {}
    pods = content.get("pods") or {}
    if not isinstance(pods, dict):
        raise TreeError(f"{YAML_FORM}, found no names under pods")
    for pod, members in pods.items():
        for leaf in _names(members, f"pod {pod}"):
            if leaf not in leaves:
                raise TreeError(f"pod {pod} names leaf {leaf}, which is not under leaves")
            if leaf in pod_of:
                raise TreeError(f"leaf {leaf} is in pods {pod_of[leaf]} and {pod}; expected one")
            pod_of[leaf] = str(pod)
    places: dict[str, Place] = {}
    for leaf, members in leaves.items():
        for node in _names(members, f"leaf {leaf}"):
            _put(places, node, Place(leaf, pod_of.get(leaf, "")))
    return _checked(places, strict=True)


def _names(members: Any, of: str) -> list[str]:
    items = members if isinstance(members, list) else [members]
    if not items or not all(isinstance(item, str) for item in items):
        raise TreeError(f"{of}: expected names such as gpu[001-032], or a list of them, found {members!r}")
    return [name for item in items for name in expand(item)]


def _from_slurm(text: str) -> Tree:
    """Slurm's topology.conf(5): SwitchName with Nodes, or with Switches below it; other words are left."""
    nodes: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    # slurm.conf(5): comments end with their line; a backslash at its end goes on with the next one.
    for words in re.sub(r"\\[ \t]*\n", "", re.sub(r"#.*", "", text)).splitlines():
        given = {name.lower(): value.strip('"') for name, value in SLURM_WORD.findall(words)}
        if "switchname" not in given:
            continue
        if more := SLURM_WORD.sub("", words).strip():
            raise TreeError(f"switch {given['switchname']}: expected NAME=VALUE only, found {more}")
        for switch in expand(given["switchname"]):
            if switch in nodes or switch in below:
                raise TreeError(f"switch {switch} is there twice; expected one line for it")
            if ("nodes" in given) == ("switches" in given):
                raise TreeError(f"switch {switch}: expected either Nodes= or Switches=")
            if "nodes" in given:
                nodes[switch] = expand(given["nodes"])
            else:
                below[switch] = expand(given["switches"])
    above: dict[str, str] = {}
    for switch, children in below.items():
        for child in children:
            if child not in nodes and child not in below:
                raise TreeError(f"switch {switch} names switch {child}, which has no line")
            if child in above:
                raise TreeError(f"switch {child} is below {above[child]} and below {switch}; expected a tree")
            above[child] = switch
    for switch in below:
        path = [switch]
        while (upper := above.get(path[-1])) is not None:
            if upper in path:
                raise TreeError(f"switch {switch} is above itself, by {' and '.join(path)}; expected a tree")
            path.append(upper)
    places: dict[str, Place] = {}
    for leaf, names in nodes.items():
        for node in names:
            _put(places, node, Place(leaf, above.get(leaf, "")))
    return _checked(places)


def _put(places: dict[str, Place], node: str, place: Place) -> None:
    if node in places and places[node].leaf != place.leaf:
        raise TreeError(f"{node} is in leaves {places[node].leaf} and {place.leaf}; expected one")
    places[node] = place


def _only(node: str, what: str, names: list[str]) -> str:
    if len(names) > 1:
        raise TreeError(f"{node} is in {what} groups {names[0]} and {names[1]}; expected one")
    return names[0] if names else ""


def _pod(name: str) -> str:
    return f"pod {name}" if name else "no pod"


def _checked(places: dict[str, Place], *, strict: bool = False) -> Tree:
    """A tree with pods for all leaves or for none: one pod for all says nothing."""
    if not places:
        raise TreeError("it names no leaf with a node; expected which leaf each node hangs on")
    pods = {place.pod for place in places.values()}
    if len(pods) == 1:
        return Tree({node: Place(place.leaf) for node, place in places.items()}, strict)
    if "" in pods:
        leaf = next(place.leaf for place in places.values() if not place.pod)
        raise TreeError(f"leaf {leaf} is in no pod, and others are; name a pod for every leaf, or for none")
    return Tree(places, strict)
