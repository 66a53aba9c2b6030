"""The roles' interface and its documentation agree: argument specs, defaults, names and READMEs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tools import role_files

ROLES = sorted(path for path in role_files.ROLES.iterdir() if path.is_dir())
CHECKOUT = role_files.ROLES.parent
DOCUMENTS = role_files.documents()
PAGES = sorted(
    page
    for folder in (".", "docs", "docs/*", "docs/explain/decisions", "examples", "roles/*")
    for page in CHECKOUT.glob(f"{folder}/*.md")
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # to a file: neither an anchor alone nor an address
each_role = each(*ROLES)


def main_options(role: Path) -> dict[str, Any]:
    """Return the role's public variables, as its argument specs give them."""
    options: dict[str, Any] = role_files.entry_points(role)["main"].get("options", {})
    return options


@each(*DOCUMENTS)
def test_file_is_what_make_docs_writes(path: Path) -> None:
    assert path.read_text() == DOCUMENTS[path], "out of date: run `make docs`"


@each_role
def test_role_says_what_it_is_for(role: Path) -> None:
    assert role_files.load(role / "meta" / "main.yml")["galaxy_info"]["description"]


@each_role
def test_defaults_are_those_in_the_argument_specs(role: Path) -> None:
    documented = {
        name: option.get("default")
        for name, option in main_options(role).items()
        if not option.get("required")
    }
    assert role_files.load(role / "defaults" / "main.yml") == documented


@each_role
def test_public_variables_carry_the_roles_name(role: Path) -> None:
    assert [name for name in main_options(role) if not name.startswith(f"{role.name}_")] == []


@each_role
def test_internal_variables_carry_the_roles_name_and_two_underscores(role: Path) -> None:
    internal = [name for path in (role / "vars").glob("*.yml") for name in role_files.load(path)]
    assert [name for name in internal if not name.startswith(f"__{role.name}_")] == []


@each_role
def test_every_variable_is_described(role: Path) -> None:
    assert [name for name, option in main_options(role).items() if not option.get("description")] == []


@each(*PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Return the folder of a role with one variable of each kind."""
    role = tmp_path / "example"
    (role / "meta").mkdir(parents=True)
    (role / "meta" / "main.yml").write_text("galaxy_info: {description: Does one thing.}")
    (role / "meta" / "argument_specs.yml").write_text("""
        argument_specs:
          main:
            short_description: Sets it.
            options:
              example_rules:
                type: list
                elements: dict
                default: []
                description: Rules, a|b.
                options:
                  hosts: {type: list, elements: path, default: [a, b], description: The hosts.}
                  port: {type: int, required: true, description: The port.}
              example_mode: {type: str, choices: [fast, slow], default: fast, description: [How., Or C(-x).]}
              example_text: {type: str, description: Free., default: "%s"}
        """ % ("x" * 100))  # fmt: skip
    return role


def test_nested_options_choices_and_long_defaults_are_in_the_table(example: Path) -> None:
    table = role_files.readme(example).split("| --- |\n")[-1].splitlines()
    assert table == [
        "| `example_rules` | list of dict | `[]` | Rules, a\\|b. |",
        "| `example_rules[].hosts` | list of path | `[a, b]` | The hosts. |",
        "| `example_rules[].port` | int | **required** | The port. |",
        "| `example_mode` | str | `fast` | How. Or `-x`. One of: `fast`, `slow`. |",
        "| `example_text` | str | see [defaults](defaults/main.yml) | Free. |",
    ]


def test_variables_have_a_class_for_the_role_and_for_nested_options(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_files, "LONGEST_FIELD", 27)
    text = role_files.variables([example]).removeprefix(role_files.HEAD)
    assert [line for line in text.splitlines() if line and not line.strip().startswith(("@", '"""'))] == [
        "class ExampleRule:",
        "    port: int",
        '    hosts: tuple[str, ...] = ("a", "b")',
        "class Example:",
        "    rules: tuple[ExampleRule, ...]",
        "    mode: Literal[",
        '        "fast",',
        '        "slow",',
        "    ]",
        "    text: str",
        "class Variables:",
        "    example: Example",
    ]
