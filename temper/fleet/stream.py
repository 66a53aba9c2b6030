"""What the worker of a slice sends, read as the word of a stranger: bounded, and of its own nodes alone.

The form is that of ansible-runner: a line of JSON for each status and event, `{"zipfile": BYTES}` and the
archive in base64, and `{"eof": true}` behind it. ansible-runner's own reader follows links in archives and
takes modes from them; here the files that a slice hands over are read out of it, and nothing else is written.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

COLLECTED, OUTPUT = "collected", "stdout"
#: What a slice may send, and what its archive may hold, unpacked: of its own, and for each of its nodes.
MOST_BYTES, MOST_BYTES_A_NODE = 32 << 20, 4 << 20
MOST_ENTRIES = 10_000
#: Files that roles hand over. A name that begins with a dot is hidden from people.
HANDED_OVER = re.compile(rf"{COLLECTED}/[\w][\w.-]{{0,100}}", re.ASCII)
MOST_HANDED_OVER = 100
PLANS, VALIDATED = f"{COLLECTED}/plan.json", f"{COLLECTED}/validation.json"
MOST_DEPTH = 32
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class StreamError(Exception):
    """What was sent is not what a slice sends; the message goes on after a colon."""


class Received:
    """The stream of one slice, taken line by line.

    Args:
        folder: gets `stdout` and the folder `collected`.
        nodes: those of the slice.
        event: takes each event.
    """

    def __init__(
        self, folder: Path, nodes: Collection[str], event: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self.folder = folder
        self.nodes = frozenset(nodes)
        self.event = event
        #: What may still come.
        self.left = MOST_BYTES + MOST_BYTES_A_NODE * len(self.nodes)
        #: Whether all that the run has left is here.
        self.whole = False
        self._archive = 0

    def line(self, line: bytes) -> None:
        """Take a line. Raises StreamError, OSError."""
        self.left -= len(line)
        if self.left < 0:
            raise StreamError("it has sent more than a slice of so many nodes can have to say")
        try:
            if self._archive:
                encoded = 4 * -(-self._archive // 3)
                self._archive = 0
                content, line = base64.b64decode(line[:encoded], validate=True), line[encoded:]
                self.unpack(content)
            if line:
                self._document(json.loads(line))
        except (*UNREADABLE, zipfile.BadZipFile) as error:
            raise StreamError(f"what it sent is no run of Ansible: {error}") from error

    def _document(self, document: Any) -> None:
        if not isinstance(document, dict):
            raise StreamError(f"what it sent is no run of Ansible: {type(document).__name__}")
        if "zipfile" in document:
            size = document["zipfile"]
            if type(size) is not int or not 0 < size <= self.left or self.whole:
                raise StreamError(f"what it sent is no run of Ansible: an archive of {size!r} bytes")
            self._archive = size
        elif isinstance(document.get("event_data"), dict):
            self.event(document)

    def unpack(self, content: bytes) -> None:
        """Write what a run has left on this machine. Raises StreamError, OSError and as `zipfile` does."""
        room = MOST_BYTES + MOST_BYTES_A_NODE * len(self.nodes)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            for entry in entries:
                require_plain(entry)
            wanted = [one for one in entries if one.filename == OUTPUT or HANDED_OVER.fullmatch(one.filename)]
            names = {one.filename for one in wanted}
            if len(entries) > MOST_ENTRIES or len(wanted) > MOST_HANDED_OVER or len(names) < len(wanted):
                raise StreamError(f"its archive has {len(entries)} files, {len(wanted)} of them to be kept")
            (self.folder / COLLECTED).mkdir(mode=0o700)
            for entry in wanted:
                with archive.open(entry) as file:
                    text = file.read(room + 1)
                room -= len(text)
                if room < 0:
                    raise StreamError("its archive has more than a slice of so many nodes can have")
                require_own(entry.filename, text, self.nodes)
                path = self.folder / entry.filename
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with os.fdopen(handle, "wb") as kept:
                    kept.write(text)
        self.whole = True


#: What JSON, archives and documents of another form are told by.
UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    *(EOFError, RuntimeError, NotImplementedError, zlib.error),
)


def require_plain(entry: zipfile.ZipInfo) -> None:
    """Refuse an entry that is no file or folder below the archive's own. Raises StreamError."""
    mode, name = entry.external_attr >> 16, entry.filename
    if name.startswith("/") or ".." in name.split("/") or "\\" in entry.orig_filename or "\0" in name:
        raise StreamError(f"its archive has a file outside of itself, {name[:200]!r}")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise StreamError(f"its archive has {name[:200]!r}, a link or a device: expected files and folders")
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise StreamError(f"its archive has {name[:200]!r} with another account's rights (mode {mode:o})")
    if entry.compress_type not in METHODS or entry.flag_bits & 1:
        raise StreamError(f"its archive has {name[:200]!r}, compressed or encrypted in an unknown way")


def require_own(name: str, text: bytes, nodes: Collection[str]) -> None:
    """Refuse a document that says something of nodes of other slices. Raises StreamError, `UNREADABLE`."""
    named = NODES_IN.get(name)
    if not named:
        return
    # Late: the worker of a slice reads no documents.
    from validation.model.contract import parse

    # As reports read it: what they cannot read costs this slice, and not all nodes their report.
    document = parse(text)
    if others := sorted(set(named(document)) - set(nodes)):
        raise StreamError(f"its {name} is about {str(others[0])[:100]!r}, which is not one of its nodes")
    if name != VALIDATED:
        require_shallow(document)
    if name == PLANS:
        from temper.plan.fleet import digest

        # Slices share these by their digests.
        for shared in ("settings", "waived"):
            if any(digest(json.dumps(value)) != key for key, value in document[shared].items()):
                raise StreamError(f"its {name} has {shared} under another name than their own")
    if name == VALIDATED:
        from validation.checks.registry import TESTS
        from validation.model.expectations import fleet_from

        measured = document["document"]
        expected = fleet_from(measured["expectations"], TESTS).nodes
        if unknown := sorted(measured["results"].keys() - expected.keys()):
            raise StreamError(f"its {name} has a result of {unknown[0]}, and expects nothing of it")


def require_shallow(value: object, depth: int = MOST_DEPTH) -> None:
    """Refuse lists and objects so deep inside each other that nobody can walk through them."""
    if isinstance(value, dict | list):
        if not depth:
            raise StreamError(f"what it handed over has more than {MOST_DEPTH} lists inside each other")
        for inner in value.values() if isinstance(value, dict) else value:
            require_shallow(inner, depth - 1)


def _validated(document: Any) -> list[str]:
    measured = document["document"]
    return [*measured["expectations"]["nodes"], *measured["results"]]


#: The nodes that a document is about.
NODES_IN: Mapping[str, Callable[[Any], list[str]]] = {
    f"{COLLECTED}/compliance.json": lambda document: [node["name"] for node in document["nodes"]],
    f"{COLLECTED}/identity.json": lambda document: list(document["nodes"]),
    PLANS: lambda document: list(document["nodes"]),
    VALIDATED: _validated,
}
