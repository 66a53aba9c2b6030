"""Files of variables that Ansible passes over without a word, because of their names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from temper.base import ROOT, typed
from temper.base.selection import ALIKE, NEARLY
from validation.model.grouping import by_key

#: The folders of such files beside an inventory, and what their files are named after.
KINDS = {"group_vars": "group", "host_vars": "host"}
#: How their names end, in the order in which Ansible looks for them. It reads the first that is there.
ENDINGS = ("", ".yml", ".yaml", ".json")
#: How the names of inventories end.
INVENTORIES = (*ENDINGS, ".ini", ".toml")
#: What operators copy as a whole and use in part.
EXAMPLE = ROOT / "inventory" / "example"
#: Questions of one folder: the hosts that a fleet once had may have left thousands of files.
MOST_QUESTIONS = 4
#: Of names that may be another inventory's, as many are compared with ours: a large fleet's take minutes.
MOST_COMPARED = 20


def questions(sources: Iterable[str], groups: Collection[str], hosts: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each file beside inventories that Ansible ignores, with what may be meant.

    `groups` and `hosts` are all those of the inventories.
    """
    names = {"group_vars": {"all", "ungrouped", *groups}, "host_vars": {"localhost", "127.0.0.1", *hosts}}
    paths = [Path(source) for source in sources if "," not in source]
    for folder in dict.fromkeys(path if path.is_dir() else path.parent for path in paths):
        found = _listed(folder)
        # What belongs to none of these may be for another inventory of the folder.
        shared = folder not in paths and any(
            one.suffix in INVENTORIES and one.is_file() and one not in paths for one in found
        )
        for path in found:
            close = difflib.get_close_matches(path.name, KINDS, n=1, cutoff=NEARLY)
            if path.name in KINDS:
                yield from islice(_ignored(path, names[path.name], shared), MOST_QUESTIONS)
            elif close and path.is_dir():
                yield f"{typed(path)}: Ansible reads no folder of this name; did you mean {close[0]}?"


def _ignored(folder: Path, names: Collection[str], shared: bool) -> Iterator[str]:
    """Yield what Ansible ignores in a folder whose files are named after `names`, and maybe after others."""
    files = ((_named(path, names), path) for path in _listed(folder))
    own = by_key((name, path) for name, path in files if name)
    without, strange = sorted({*names} - own.keys()), own.keys() - {*names}
    for name, paths in own.items():
        if name in names:
            first, *others = sorted(paths, key=lambda path: ENDINGS.index(path.name.removeprefix(name)))
            for path in others:
                yield f"{typed(path)}: Ansible ignores it, because it reads {typed(first)}; keep one of them"
            continue
        of_others = shared or _is_example(paths[0])
        if of_others and len(strange) > MOST_COMPARED:
            continue
        close = difflib.get_close_matches(name, without, n=2, cutoff=NEARLY if of_others else ALIKE)
        if close or not of_others:
            hint = f"did you mean {' or '.join(close)}?" if close else "rename it, or remove it"
            yield f"{typed(paths[0])} belongs to no {KINDS[folder.name]}, so Ansible ignores it; {hint}"


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, but for hidden files and backups; nothing where it cannot be read."""
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.name[0] != "." and path.name[-1] != "~")
    return []


def _named(path: Path, names: Collection[str]) -> str:
    """Return the name whose variables a file or folder is meant to have; empty for other files."""
    if path.name in names or path.is_dir():
        return path.name
    return path.stem if path.suffix in ENDINGS else ""


def _is_example(path: Path) -> bool:
    """Return whether a file is the example's, unchanged: it is for a group that the operator left out."""
    with suppress(OSError):
        return path.read_bytes() == (EXAMPLE / path.parent.name / path.name).read_bytes()
    return False
