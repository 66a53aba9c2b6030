"""The roles' interface and its documentation agree: argument specs, defaults, names and READMEs."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit import prose
from tests.unit.each import each
from tools import role_files, schemas

ROLES = sorted(path for path in role_files.ROLES.iterdir() if path.is_dir())
CHECKOUT = role_files.ROLES.parent
RECIPE = (CHECKOUT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
DOCUMENTS = {
    path: text
    for generator in re.findall(r"-m (tools\.\w+)", RECIPE)
    for path, text in importlib.import_module(generator).documents().items()
}
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "roles/*/*.md")
    for page in CHECKOUT.glob(pattern)
)
#: What people write by hand and read: not the roles' READMEs, which are made, and not the list of changes.
READ = [page for page in PAGES if page.name != "CHANGELOG.md" and "roles" not in page.parts]
MOST_WORDS = 40_000
MOST_WORDS_OF_A_SENTENCE = 30
THREE_SCREENS = 120
WIDTH_OF_A_SCREEN = 100
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # to a file: neither an anchor alone nor an address
READER_AND_TASK = re.compile(r"# .+\n\n\*For .+: .+\*\n\n")
each_role = each(*ROLES)


def main_options(role: Path) -> dict[str, Any]:
    """Return the role's public variables, as its argument specs give them."""
    options: dict[str, Any] = role_files.entry_points(role)["main"].get("options", {})
    return options


@each(*DOCUMENTS)
def test_file_is_what_make_docs_writes(path: Path) -> None:
    assert path.read_text() == DOCUMENTS[path], "out of date: run `make docs`"


def test_no_other_schema_of_the_payload_is_left() -> None:
    assert set(schemas.VALIDATION.iterdir()) <= set(DOCUMENTS)


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


def test_documentation_is_read_in_a_day() -> None:
    count = {page.relative_to(CHECKOUT): prose.words(prose.text(page)) for page in READ}
    assert sum(count.values()) <= MOST_WORDS, sorted(count.items(), key=lambda item: -item[1])[:10]


def test_each_page_begins_with_its_reader_and_task() -> None:
    pages = [page for page in READ if page != CHECKOUT / "README.md"]
    assert [page for page in pages if not READER_AND_TASK.match(page.read_text())] == []


def test_sentences_are_short() -> None:
    assert [
        f"{page.relative_to(CHECKOUT)}: {' '.join(sentence.split())}"
        for page in READ
        for sentence in prose.sentences(prose.text(page))
        if prose.words(sentence) > MOST_WORDS_OF_A_SENTENCE
    ] == []


def test_readme_fits_three_screens() -> None:
    lines = (CHECKOUT / "README.md").read_text().splitlines()
    assert len(lines) <= THREE_SCREENS
    assert [line for line in lines if len(line) > WIDTH_OF_A_SCREEN] == []


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    named = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (CHECKOUT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(CHECKOUT).as_posix() for page in PAGES]
    wanted = [page for page in pages if not re.match(r"roles/|docs/explain/decisions/\d", page)]
    assert sorted(named) == wanted


def test_prose_is_what_is_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\nOne `a. b` two. Three [four](five.md)\nsix.\n\n- seven\n\n```\nno word\n```\n"
        "<!-- t: made by `make docs` from x -->\n| no |\n<!-- end of t -->\n| eight | nine ten |\n"
    )
    assert [" ".join(one.split()) for one in prose.sentences(prose.text(page))] == [
        *("# A page", "One CODE two", "Three four six", "- seven", "eight", "nine ten")
    ]
    assert prose.words(prose.text(page)) == 13


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
