"""The payload's folders import in the order that validation/__init__.py lists, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

import validation

PACKAGE = Path(validation.__file__).parent
ORDER = re.findall(r"^    (\w+)  ", validation.__doc__ or "", re.MULTILINE)


def modules(package: Path) -> dict[str, Path]:
    """The modules of a package by their name; a package itself has the name of its folder."""
    names = {path.relative_to(package.parent).with_suffix(""): path for path in package.rglob("*.py")}
    return {
        ".".join(name.parent.parts if name.name == "__init__" else name.parts): path
        for name, path in names.items()
    }


def imports(package: Path) -> dict[str, set[str]]:
    """Which modules of the package each of them imports: at once, late, or for its types only."""
    known = modules(package)
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name} imports relatively: this test reads absolute imports only"
                for alias in node.names:
                    member = f"{node.module}.{alias.name}"
                    targets.add(member if member in known else str(node.module))
        found[name] = targets & known.keys()
    return found


def against_the_order(package: Path, order: list[str]) -> list[str]:
    """Imports from a folder that comes later in the order, or that it does not have."""

    def place(module: str) -> int:
        folder = module.split(".")[1]
        return order.index(folder) if folder in order else -1

    return [
        f"{name} imports {target}"
        for name, targets in sorted(imports(package).items())
        for target in sorted(targets)
        if "." in name and not name.endswith(".__main__") and "." in target
        if place(name) < place(target) or -1 in {place(name), place(target)}
    ]


def test_the_list_names_every_folder_with_code() -> None:
    assert sorted(ORDER) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_imports_follow_the_order() -> None:
    assert against_the_order(PACKAGE, ORDER) == []


def test_no_import_goes_in_a_circle() -> None:
    graphlib.TopologicalSorter(imports(PACKAGE)).prepare()


@pytest.mark.parametrize(
    "line",
    [
        "from package.high import module",
        "from package.high.module import name",
        "import package.high.module",
        "def late():\n    from package.high import module",
        "if TYPE_CHECKING:\n    from package.high.module import name",
    ],
)
def test_an_import_against_the_order_is_found(tmp_path: Path, line: str) -> None:
    for folder in ("low", "high"):
        (tmp_path / "package" / folder).mkdir(parents=True)
        (tmp_path / "package" / folder / "module.py").write_text("")
    (tmp_path / "package/low/module.py").write_text(f"{line}\n")
    assert against_the_order(tmp_path / "package", ["low", "high"]) == [
        "package.low.module imports package.high.module"
    ]
    assert not against_the_order(tmp_path / "package", ["high", "low"])
    (tmp_path / "package/high/module.py").write_text("from package.low import module\n")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imports(tmp_path / "package")).prepare()
