"""A statement as its JSON (schemas/statement.schema.json), and back.

Of nodes that are alike, one has all its controls; the others name it, and have what is their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from temper.compliance.alike import Once
from temper.compliance.model import ControlResult, State, Statement, WaivedBy
from validation.model.contract import ContractError, encoded, json_text, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temper.compliance.model import NodeStatement

#: A node that differs in more than this part of its controls from the one before it that had all of them is
#: written whole, and those after it may be like it.
MOST_DIFFERING = 0.25


def text(statement: Statement) -> Iterator[str]:
    """The document, in pieces."""
    text_of = Once[ControlResult, str](encoded)
    nodes = (
        vars(replace(node)) | {"controls": [text_of(control) for control in node.controls]}
        for node in shortened(statement.nodes)
    )
    yield from json_text(vars(statement) | {"nodes": nodes}, lists=2)


def read(content: str | bytes) -> Statement:
    """The statement of a document, with all controls of each node. Raises ContractError."""
    statement = loads(Statement, content)
    known: dict[str, NodeStatement] = {}
    for node in statement.nodes:
        known[node.node] = whole(node, known) if node.like else node
    return replace(statement, nodes=tuple(known[node.node] for node in statement.nodes))


def whole(node: NodeStatement, known: dict[str, NodeStatement]) -> NodeStatement:
    """A node with all its controls, from the nodes before it. Raises ContractError."""
    if node.like not in known:
        raise ContractError(f"{node.node} is like {node.like}: expected that node before it, found none")
    own = {control.id: control for control in node.controls}
    controls = tuple(own.get(control.id, control) for control in known[node.like].controls)
    return replace(node, controls=controls, like="")


def shortened(nodes: tuple[NodeStatement, ...]) -> Iterator[NodeStatement]:
    """Each node, without the controls that it shares with the one that it is like."""
    ids = Once[tuple[ControlResult, ...], tuple[str, ...]](lambda ones: tuple(one.id for one in ones))
    others: dict[tuple[str, ...], NodeStatement] = {}
    for node in nodes:
        names = ids(node.controls)
        other = others.get(names)
        # Two controls with one id could not be told apart.
        if other and len(set(names)) == len(names):
            pairs = zip(node.controls, other.controls, strict=True)
            own = tuple(mine for mine, its in pairs if always(mine) or not (mine is its or mine == its))
            if len(own) <= MOST_DIFFERING * len(names):
                yield replace(node, controls=own, like=other.node)
                continue
        others[names] = node
        yield node


def always(control: ControlResult) -> bool:
    """Whether a node has it in the document in any case, so that nobody has to look for it elsewhere."""
    return control.state in (State.FAIL, State.NOT_CHECKED) or control.waived_by is WaivedBy.OPERATOR
