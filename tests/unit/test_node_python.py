"""What runs on a node keeps to Python 3.9: Enterprise Linux 9 has no newer one of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.each import each

ROOT = Path(__file__).parents[2]
NODE_CODE = sorted(
    path for name in ("library", "module_utils", "pull") for path in (ROOT / name).rglob("*.py")
)
# Arguments and names that came after Python 3.9, of functions and modules that one is likely to reach for.
NEWER_ARGUMENTS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only", "match_args"}}
NEWER_NAMES = {"pairwise", "StrEnum", "ExceptionGroup", "Self", "TypeAlias", "file_digest", "bit_count"}
TYPES = {"bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple", "Any", "Path"}


def outside_annotations(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it that are evaluated: with `annotations` from the future, annotations are not."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from outside_annotations(child)


def is_type(node: ast.expr) -> bool:
    base = node.value if isinstance(node, ast.Subscript) else node
    return (isinstance(base, ast.Name) and base.id in TYPES) or (
        isinstance(base, ast.Constant) and base.value is None
    )


def too_new(source: str) -> list[str]:
    """What Python 3.9 does not understand, as "line: what"."""
    try:
        tree = ast.parse(source, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    found = []
    for node in outside_annotations(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            newer = NEWER_ARGUMENTS.get(node.func.id, set()) & {word.arg or "" for word in node.keywords}
            found += [f"{node.lineno}: {node.func.id}({name}=)" for name in sorted(newer)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            if is_type(node.left) or is_type(node.right):
                found.append(f"{node.lineno}: a union of types with |")
        elif isinstance(node, ast.ImportFrom):
            newer = NEWER_NAMES & {alias.name for alias in node.names}
            found += [f"{node.lineno}: {name}" for name in sorted(newer)]
        elif isinstance(node, ast.Attribute) and node.attr in NEWER_NAMES:
            found.append(f"{node.lineno}: {node.attr}")
    if len(tree.body) > 1 and "from __future__ import annotations" not in source:
        found.append("1: annotations are evaluated without `from __future__ import annotations`")
    return found


@each(*NODE_CODE)
def test_code_for_nodes_keeps_to_python_3_9(path: Path) -> None:
    assert too_new(path.read_text(encoding="utf-8")) == []


FUTURE = "from __future__ import annotations\n"


@each(
    ("zip(a, b, strict=True)", "2: zip(strict=)"),
    ("@dataclass(slots=True)\nclass C: ...", "2: dataclass(slots=)"),
    ("Alias = str | None", "2: a union of types with |"),
    ("isinstance(a, list[str] | dict)", "2: a union of types with |"),
    ("from itertools import pairwise", "2: pairwise"),
    ("match a:\n    case 1: ...", "3: Pattern matching is only supported in Python 3.10 and greater"),
)
def test_what_is_newer_is_found(source: str, found: str) -> None:
    assert too_new(FUTURE + source) == [found]


def test_an_annotation_may_be_a_union() -> None:
    assert too_new(FUTURE + "def f(a: str | None) -> dict[str, int | None]: ...") == []
