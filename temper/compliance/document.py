"""A statement as its JSON (schemas/statement.schema.json), and back."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from temper.compliance.alike import Once
from temper.compliance.model import ControlResult, NodeStatement, Statement
from validation.model.contract import ContractError, decode, encoded, json_text, parse
from validation.processes.files import write_atomically

#: The statement without its nodes, for who asks for the verdict alone.
SUMMARY = "summary.json"
FILE, COMPRESSED = "statement.json", "statement.json.gz"
#: A statement of more nodes is compressed: a node has 80 kB, and 11 kB compressed.
MOST_PLAIN = 1000
#: Versions in which a node may be `like` another, or in which no node is.
FORMER = (1, 2)


def write(folder: Path, statement: Statement) -> None:
    """Write the document into the folder of a report. Raises OSError."""
    name = file_name(statement)
    written = text(statement)
    write_atomically(folder / name, written if name == FILE else b"".join(_compressed(written)))


def file_name(statement: Statement) -> str:
    """Return the name of the document in the folder of a report."""
    return FILE if len(statement.nodes) <= MOST_PLAIN else COMPRESSED


def text(statement: Statement) -> Iterator[str]:
    """Return the document, in pieces."""
    text_of = Once[ControlResult, str](encoded)
    nodes = (
        vars(replace(node)) | {"controls": [text_of(control) for control in node.controls]}
        for node in statement.nodes
    )
    yield from json_text(vars(statement) | {"nodes": nodes}, lists=2)


def _compressed(pieces: Iterator[str]) -> Iterator[bytes]:
    # The best level takes twice as long, and a fifth less space.
    compressor = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield compressor.compress(piece.encode(errors="backslashreplace"))
    yield compressor.flush()


def of_report(folder: Path) -> Statement:
    """Return the statement in the folder of a report. Raises ContractError, OSError."""
    if (folder / FILE).is_file() or not (folder / COMPRESSED).is_file():
        return of_file(folder / FILE)
    try:
        return of_file(folder / COMPRESSED, gzip.decompress)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ContractError(f"{folder / COMPRESSED}: it cannot be decompressed: {error}") from error


def of_file(path: Path, opened: Callable[[bytes], bytes] = bytes) -> Statement:
    """Return the statement of a file, whose bytes are `opened`. Raises ContractError, OSError."""
    content = opened(path.read_bytes())
    try:
        return read(content)
    except ContractError as error:
        raise ContractError(f"{path}: expected a statement of compliance: {error}") from error


def read(content: str | bytes) -> Statement:
    """Return the statement of a document of this version or an earlier one. Raises ContractError."""
    value = parse(content)
    if isinstance(value, dict) and value.get("schema_version") in FORMER:
        return _whole(decode(_FormerStatement, value))
    return decode(Statement, value)


@dataclass(frozen=True)
class _FormerNode(NodeStatement):
    """A node that has the controls of the node that it is `like`, but for those of the same id of its own."""

    like: str = ""


@dataclass(frozen=True)
class _FormerStatement(Statement):
    nodes: tuple[_FormerNode, ...]


def _whole(statement: _FormerStatement) -> Statement:
    """Return the statement with all controls of each node. Raises ContractError."""
    nodes: dict[str, NodeStatement] = {}
    for node in statement.nodes:
        controls = node.controls
        if node.like:
            if node.like not in nodes:
                raise ContractError(
                    f"{node.node} is like {node.like}: expected that node before it, found none"
                )
            own = {control.id: control for control in controls}
            controls = tuple(own.get(control.id, control) for control in nodes[node.like].controls)
        nodes[node.node] = NodeStatement(
            node.node, node.verdict, node.reason, node.system, node.gpus, node.driver, controls
        )
    return Statement(**(vars(statement) | {"nodes": tuple(nodes[node.node] for node in statement.nodes)}))
