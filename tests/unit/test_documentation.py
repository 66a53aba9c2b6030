"""The roles' interface and its documentation agree: argument specs, defaults, names and READMEs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tools import role_readme

ROLES = sorted(path for path in role_readme.ROLES.iterdir() if path.is_dir())
CHECKOUT = role_readme.ROLES.parent
PAGES = sorted(page for folder in (".", "docs", "roles/*") for page in CHECKOUT.glob(f"{folder}/*.md"))
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # to a file: neither an anchor alone nor an address
each_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def main_options(role: Path) -> dict[str, Any]:
    """Return the role's public variables, as its argument specs give them."""
    options: dict[str, Any] = role_readme.entry_points(role)["main"].get("options", {})
    return options


@each_role
def test_readme_is_what_make_docs_writes(role: Path) -> None:
    assert (role / "README.md").read_text() == role_readme.readme(role), "out of date: run `make docs`"


@each_role
def test_role_says_what_it_is_for(role: Path) -> None:
    assert role_readme.load(role / "meta" / "main.yml")["galaxy_info"]["description"]


@each_role
def test_defaults_are_those_in_the_argument_specs(role: Path) -> None:
    documented = {
        name: option.get("default")
        for name, option in main_options(role).items()
        if not option.get("required")
    }
    assert role_readme.load(role / "defaults" / "main.yml") == documented


@each_role
def test_public_variables_carry_the_roles_name(role: Path) -> None:
    assert [name for name in main_options(role) if not name.startswith(f"{role.name}_")] == []


@each_role
def test_internal_variables_carry_the_roles_name_and_two_underscores(role: Path) -> None:
    internal = [name for path in (role / "vars").glob("*.yml") for name in role_readme.load(path)]
    assert [name for name in internal if not name.startswith(f"__{role.name}_")] == []


@each_role
def test_every_variable_is_described(role: Path) -> None:
    assert [name for name, option in main_options(role).items() if not option.get("description")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_nested_options_choices_and_long_defaults_are_in_the_table(tmp_path: Path) -> None:
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
                  port: {type: int, required: true, description: The port.}
              example_mode: {choices: [fast, slow], default: fast, description: [How., And C(why -x).]}
              example_text: {type: str, description: Free., default: "%s"}
        """ % ("x" * 100))  # fmt: skip
    table = role_readme.readme(role).split("| --- |\n")[-1].splitlines()
    assert table == [
        "| `example_rules` | list of dict | `[]` | Rules, a\\|b. |",
        "| `example_rules[].port` | int | **required** | The port. |",
        "| `example_mode` | str | `fast` | How. And `why -x`. One of: `fast`, `slow`. |",
        "| `example_text` | str | see [defaults](defaults/main.yml) | Free. |",
    ]
