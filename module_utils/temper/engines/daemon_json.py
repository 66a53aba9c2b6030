"""Docker's daemon.json: our keys merged into somebody's file, and taken out again.

Not by nvidia-ctk, which has no drop-in for Docker. Its version 1.20.0 replaces `features` by {"cdi": true},
so that containerd-snapshotter is lost, overwrites a runtime of the same name, sorts all keys, knows no shared
memory and no limits, and takes nothing out again (pkg/config/engine/docker/docker.go; seen with the program).
"""

from __future__ import annotations

import copy
import json
import re
import typing
from dataclasses import dataclass

from ansible.module_utils.temper.settings.base import RefusedError

Document = dict[str, typing.Any]


@dataclass(frozen=True)
class WantedKey:
    """One key as it should be, and what to do where somebody else has set it otherwise."""

    path: tuple[str, ...]
    value: typing.Any
    remedy: str

    @property
    def name(self) -> str:
        """The key as one writes it."""
        return ".".join(self.path)


@dataclass
class DockerRecord:
    """What we put into the file: keys with their values, objects that were made for them, the file itself."""

    keys: list[tuple[tuple[str, ...], typing.Any]]
    objects: list[tuple[str, ...]]
    created: bool

    @classmethod
    def load(cls, data: dict[str, typing.Any]) -> DockerRecord:
        """From the node's state file."""
        return cls(
            [(tuple(path), value) for path, value in data.get("keys", [])],
            [tuple(path) for path in data.get("objects", [])],
            bool(data.get("created", False)),
        )

    def dump(self) -> dict[str, typing.Any]:
        """For the node's state file."""
        return {
            "keys": [[list(path), value] for path, value in self.keys],
            "objects": [list(path) for path in self.objects],
            "created": self.created,
        }


def shortening(keys: typing.Sequence[tuple[str, ...]] = ()) -> list[list[str]]:
    """Return the repair that takes keys out of the file, and keeps the file as it was beside it."""
    return [["shorten-daemon-json", *("/".join(key) for key in keys)]]


def parse(text: str, where: str) -> Document:
    """Read a daemon.json. Docker takes an empty one; a key that stands twice would be lost on writing."""

    def once(pairs: list[tuple[str, typing.Any]]) -> Document:
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RefusedError(
                f"{where}: {', '.join(twice)} stands twice; Docker takes the last. Leave one and run again.",
                shortening(),
            )
        return dict(pairs)

    if not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            f"{where} is not valid JSON ({error}); dockerd would not start with it. Correct it and run "
            "again.",
            [["move-daemon-json"]],
        ) from error
    if not isinstance(document, dict):
        raise RefusedError(
            f"{where}: expected a JSON object, found {type(document).__name__}.", [["move-daemon-json"]]
        )
    return document


def render(document: Document, before: str) -> str:
    """Return the document as text, indented as it was, in the order of its keys."""
    indent = re.search(r"\n([ \t]+)\S", before)
    text = json.dumps(document, indent=indent[1] if indent else 4, ensure_ascii=False)
    return text if before.strip() and not before.endswith("\n") else f"{text}\n"


def merge(
    document: Document, settings: list[WantedKey], record: DockerRecord, where: str
) -> tuple[Document, DockerRecord]:
    """Return the document with our settings, and what of it is ours.

    A key that somebody else has set to another value is never overwritten.
    """
    wanted = {setting.path for setting in settings}
    leaving = DockerRecord(
        [key for key in record.keys if key[0] not in wanted], record.objects, record.created
    )
    merged, objects = _remove(document, leaving)
    ours = dict(record.keys)
    keys: list[tuple[tuple[str, ...], typing.Any]] = []
    for setting in settings:
        parent = merged
        for depth, name in enumerate(setting.path[:-1], start=1):
            if name not in parent:
                parent[name] = {}
                objects.append(setting.path[:depth])
            parent = parent[name]
            if not isinstance(parent, dict):
                raise RefusedError(
                    f"{where}: expected an object as {'.'.join(setting.path[:depth])}, found "
                    f"{json.dumps(parent)}. Correct it and run again.",
                    shortening(in_the_way(document, settings, ours)),
                )
        name = setting.path[-1]
        found = parent.get(name)
        mine = setting.path in ours and ours[setting.path] == found
        if name in parent and _same(found, setting.value):
            if mine:
                keys.append((setting.path, found))
            continue
        if name in parent and not mine:
            raise RefusedError(
                f"{where}: {setting.name} is {json.dumps(found)}, set by somebody else; expected "
                f"{json.dumps(setting.value)}. Remove it there, or {setting.remedy}.",
                shortening(in_the_way(document, settings, ours)),
            )
        parent[name] = setting.value
        keys.append((setting.path, setting.value))
    return merged, DockerRecord(keys, objects, record.created)


def in_the_way(
    document: Document, settings: list[WantedKey], ours: dict[tuple[str, ...], typing.Any]
) -> list[tuple[str, ...]]:
    """Return all keys that somebody else has set to another value, or to none that can have ours below it."""
    found: dict[tuple[str, ...], None] = {}
    for setting in settings:
        place: typing.Any = document
        for depth, name in enumerate(setting.path, start=1):
            if not isinstance(place, dict):
                found[setting.path[: depth - 1]] = None
                break
            if name not in place:
                break
            place = place[name]
        else:
            if not _same(place, setting.value) and ours.get(setting.path) != place:
                found[setting.path] = None
    return list(found)


def remove(document: Document, record: DockerRecord) -> Document:
    """Return the document without what is ours; what somebody has changed since is theirs."""
    return _remove(document, record)[0]


def _remove(document: Document, record: DockerRecord) -> tuple[Document, list[tuple[str, ...]]]:
    left = copy.deepcopy(document)
    for path, value in record.keys:
        parent = _object(left, path[:-1])
        if parent is not None and parent.get(path[-1]) == value:
            del parent[path[-1]]
    objects = []
    for path in sorted(record.objects, key=len, reverse=True):
        parent = _object(left, path[:-1])
        if parent is not None and parent.get(path[-1]) == {}:
            del parent[path[-1]]
        else:
            objects.append(path)
    return left, objects


def _object(document: Document, path: tuple[str, ...]) -> Document | None:
    place: typing.Any = document
    for name in path:
        place = place.get(name) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else None


def _same(found: typing.Any, wanted: typing.Any) -> bool:
    """Return whether two values are the same to Docker: sizes in any unit, a runtime's name or its path."""
    if isinstance(found, str) and isinstance(wanted, str) and size_bytes(wanted) is not None:
        return size_bytes(found) == size_bytes(wanted)
    if isinstance(found, dict) and isinstance(wanted, dict) and "path" in wanted:
        program = str(found.get("path", "")).rpartition("/")
        usual = program[0] in ("", "/usr/bin") and program[2] == wanted["path"]
        return usual and not found.get("args") and not found.get("runtimeArgs") and "runtimeType" not in found
    return bool(found == wanted)


def size_bytes(text: str) -> int | None:
    """Bytes of a size as Docker writes it (1G, 512m, 64MB, 1GiB), or None where it is no size."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", text.strip().lower())
    if not match:
        return None
    return int(match[1]) * int(1024 ** " kmgt".index(match[2] or " "))
