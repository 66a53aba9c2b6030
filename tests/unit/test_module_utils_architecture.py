"""The folders of module_utils import in the order that pyproject.toml has, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from pathlib import Path

from tests.unit.each import each

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "module_utils/temper"
NAME = "ansible.module_utils.temper"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["temper"]
ORDER: list[str] = SETTINGS["module-utils-order"]


def imports(package: Path) -> dict[str, set[str]]:
    """Which modules of the package each of them imports: at once, late, or for its types only."""
    known = {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name} imports relatively: Ansible ships what is imported absolutely"
                targets |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[name] = {target.removeprefix(f"{NAME}.") for target in targets} & known.keys()
    return found


def place(module: str, order: list[str]) -> int:
    """Where a module stands: itself or its folder; -1 where neither is listed."""
    listed = [name for name in (module, module.partition(".")[0]) if name in order]
    return order.index(listed[0]) if listed else -1


def against_the_order(package: Path, order: list[str]) -> list[str]:
    """Imports from what comes later in the order, or is not in it."""
    return [
        f"{name} imports {target}"
        for name, targets in sorted(imports(package).items())
        for target in sorted(targets)
        if place(name, order) < place(target, order) or -1 in {place(name, order), place(target, order)}
    ]


def test_the_architecture_lists_them_in_the_same_order() -> None:
    document = (ROOT / "docs/explain/architecture.md").read_text()
    listed = document.partition("\nmodule_utils/")[2].partition("\nvalidation/")[0]
    assert re.findall(r"^  ([\w.]+)  ", listed, re.MULTILINE) == ORDER


def test_the_order_has_every_module_and_folder() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(ORDER) == rooms | modules | {"settings.base", "settings.strictness"}


def test_imports_follow_the_order() -> None:
    assert against_the_order(PACKAGE, ORDER) == []


def test_no_import_goes_in_a_circle() -> None:
    graphlib.TopologicalSorter(imports(PACKAGE)).prepare()


@each(
    "from ansible.module_utils.temper.high import module",
    "from ansible.module_utils.temper.high.module import name",
    "import ansible.module_utils.temper.high.module",
    "def late():\n    from ansible.module_utils.temper.high import module",
    "if TYPE_CHECKING:\n    from ansible.module_utils.temper.high.module import name",
)
def test_an_import_against_the_order_is_found(line: str, tmp_path: Path) -> None:
    for folder in ("low", "high"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("")
    (tmp_path / "low/module.py").write_text(f"{line}\n")
    assert against_the_order(tmp_path, ["low", "high"]) == ["low.module imports high.module"]
    assert not against_the_order(tmp_path, ["high", "low"])


def test_every_module_is_used() -> None:
    """What no module of Ansible and no other part of the repository imports would be shipped for nothing."""
    text = "".join(
        path.read_text()
        for folder in ("library", "plugins", "temper", "tools", "tests/lab")
        for path in (ROOT / folder).rglob("*.py")
    )
    used = {target for targets in imports(PACKAGE).values() for target in targets}
    assert [
        name for name in imports(PACKAGE) if name not in used and name.rpartition(".")[2] not in text
    ] == []
