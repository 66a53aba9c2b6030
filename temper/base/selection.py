"""What a command line selects: nodes and tags. A run that selects nothing has proven nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from temper.base.nodes import counted

#: Tags that Ansible gives a meaning of its own.
SPECIAL_TAGS = frozenset(("all", "always", "never", "tagged", "untagged"))
#: How alike a name has to be to be proposed: gpunodes and gpu-nodes are like gpu_nodes, login is not.
ALIKE = 0.7
#: Likewise of an option: --limti is like --limit, Ansible's own --inventory-file not like --inventory.
NEARLY = 0.84
#: The name of a group or a node; other patterns combine or match names.
PLAIN = re.compile(r"[\w.-]+")
#: What makes a pattern match names; all else is a name.
MATCHING = re.compile(r"^[~@]|[*?\[]")
#: Positions in a group, to Ansible: node[1:3] is no range of names in a --limit.
POSITIONS = re.compile(r"(?<=.)\[(?:-?[0-9]+|[0-9]+[:-][0-9]*)\]$")
#: Names that Ansible knows without an inventory.
LOCAL = ("all", "ungrouped", "localhost", "127.0.0.1")
#: What callers add where the run has not begun.
NOTHING_DONE = "Nothing was done."


def unknown_tags(option: str, asked: Collection[str], known: Collection[str]) -> str:
    """Return a sentence about the tags of `option` (--tags, --skip-tags) that no task has; empty if none."""
    unknown = sorted({*asked} - {*known} - SPECIAL_TAGS)
    if not unknown:
        return ""
    close = difflib.get_close_matches(unknown[0], sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known)) or 'no tag'}."
    return f"{option}: no task of this playbook has the tag {', '.join(unknown)}; {hint}"


def limit_to(nodes: Iterable[str]) -> str:
    """Return a pattern of Ansible's for these nodes alone, as --limit and `ansible` take it.

    Ansible cuts an IPv6 address with a zone at its colons, unless the pattern has a comma.
    """
    text = ",".join(nodes)
    return f"{text}," if ":" in text and "," not in text else text


def unknown_names(limit: str, split: Callable[[str], Iterable[str]], known: Collection[str]) -> str:
    """Return a sentence about the names in a --limit that no node and no group has; empty if none.

    `split` is Ansible's. It warns alone, and then leaves out what was asked for, or takes what was excluded.
    """
    words = [pattern.lstrip("!&") for pattern in split(limit)]
    names = {word: POSITIONS.sub("", word) for word in words}
    unknown = [
        word for word, name in names.items() if not MATCHING.search(name) and name not in (*LOCAL, *known)
    ]
    if not unknown:
        return ""
    name = names[unknown[0]]
    if "::" in limit and "," not in limit and limit not in words:
        hint = f"Ansible cuts {limit} at its colons: put commas between names, or one behind a single name."
    elif name != unknown[0]:
        hint = "[] are positions in a group: give a group, or each name."
    elif close := difflib.get_close_matches(name, sorted(known), n=1, cutoff=ALIKE):
        hint = f"did you mean {close[0]}?"
    else:
        hint = "correct the name, or leave it out."
    return f"--limit: no node and no group has the name {', '.join(unknown)}; {hint}"


def misspelt(words: Iterable[str], known: Collection[str]) -> str:
    """Return a sentence about the first word that is nearly one of the `known` options; empty if none is."""
    for word in words:
        close = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=NEARLY)
        if word.startswith("--") and close:
            return f"there is no option {word.partition('=')[0]}; did you mean {close[0]}?"
    return ""


def no_nodes(
    patterns: Iterable[str], limit: str, groups: Mapping[str, Collection[str]], sources: Iterable[str]
) -> str:
    """Return why a run that is for `patterns` has no node.

    `groups` are the nodes of the inventory's groups, whatever the limit.
    """
    wanted = list(dict.fromkeys(patterns))
    place = ", ".join(sources) or "the inventory"
    for pattern in wanted:
        if groups.get(pattern):
            return (
                f"--limit {limit} matches no node of the group {pattern} ({counted(groups[pattern])}), and "
                "this run is for those."
            )
        if pattern in groups:
            return f"The group {pattern} of {place} has no nodes. Put the nodes into it."
    name = wanted[0] if wanted else "all"
    if not PLAIN.fullmatch(name):
        limited = f" and --limit {limit}" if limit else ""
        return f"No node of {place} matches the pattern {name}{limited}, and this run is for those."
    own = [group for group in groups if group not in ("all", "ungrouped")]
    close = difflib.get_close_matches(name, own, n=1, cutoff=ALIKE)
    hint = (
        f"did you mean {name} where it has {close[0]}? Rename that group, or make it a child of {name}"
        if close
        else f"it has {', '.join(sorted(own)) or 'no group'}. Put the nodes into the group {name}"
    )
    return f"{place} has no group {name}, and this run is for its nodes; {hint}."
