"""Write what follows from the roles' argument specs: defaults, READMEs and the planner's typed variables.

    python3 -m tools.role_files    write the files and name those that changed

tests/unit/test_documentation.py fails when a file is not what this would write.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import yaml

from temper.plan.tables import read_yaml
from tools.documents import ROOT, write

ROLES = ROOT / "roles"
SPECS = "meta/argument_specs.yml"
MODULE = ROOT / "temper" / "plan" / "variables.py"
INDEX = ROOT / "docs/reference/variables.md"
INDEX_HEAD = """\
# Variables

*For operators: find a variable of any role, its default, and its role.*

<!-- Made by `make docs` from roles/*/meta/argument_specs.yml: change those. -->

Each role's README has the types, the choices, the nested entries and the whole text.
"""
HEAD = """\
\"\"\"The effective public variables of all roles, typed: what the operator asks for, every default in place.

A class for each role, with the role's variables without their prefix: `Variables.firewall.ssh_ports` is
`firewall_ssh_ports`. Made by `make docs` from roles/*/meta/argument_specs.yml: change those.
\"\"\"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
"""
CODE = re.compile(r"\b[CMOV]\(([^()]*)\)")  # Ansible's markup for constants, modules, options and values
LONGEST_DEFAULT = 60  # characters that a table's cell carries well
LONGEST_FIELD = 106  # characters of a line of Python, beside its indentation
TYPES = {"dict": "dict[str, Any]", "path": "str", "raw": "Any"}  # what Python calls Ansible's types


def load(path: Path) -> Any:
    """Return the content of a YAML file; an empty mapping for an empty or absent one."""
    return (read_yaml(path) if path.exists() else None) or {}


def entry_points(role: Path) -> dict[str, Any]:
    """Return the role's argument specs by the name of their entry point."""
    specs: dict[str, Any] = load(role / SPECS).get("argument_specs", {})
    return specs


def paragraphs(description: str | list[str]) -> list[str]:
    """Return a description's paragraphs, each in one line; a spec gives a string or a list of them."""
    texts = [description] if isinstance(description, str) else description
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"Expected text in a description, found {text!r}: quote what holds ': '.")
    return [CODE.sub(r"`\1`", " ".join(text.split())) for text in texts]


def cell(text: str) -> str:
    """Return the text as it may stand in a table's cell."""
    return text.replace("|", "\\|")


def default_cell(option: dict[str, Any]) -> str:
    """Return what a variable is when nobody sets it."""
    if option.get("required"):
        return "**required**"
    if option.get("default") is None:
        return "unset"
    value = option["default"]
    if isinstance(value, str):
        text = value or '""'
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
        text = text.removesuffix("\n").removesuffix("\n...")
    if len(text) > LONGEST_DEFAULT or "\n" in text:
        return "see [defaults](defaults/main.yml)"
    return f"`{cell(text)}`"


def type_cell(option: dict[str, Any]) -> str:
    """Return a variable's type as a reader says it: `list of str`."""
    kind = option.get("type", "str")
    return f"list of {option['elements']}" if kind == "list" and "elements" in option else str(kind)


def rows(options: dict[str, Any], parent: str = "") -> list[str]:
    """Return a table row for each option and, after it, for those nested in it."""
    lines = []
    for name, option in options.items():
        path = f"{parent}{name}"
        description = " ".join(paragraphs(option.get("description", "")))
        if choices := option.get("choices"):
            description += f" One of: {', '.join(f'`{choice}`' for choice in choices)}."
        lines.append(f"| `{path}` | {type_cell(option)} | {default_cell(option)} | {cell(description)} |")
        mark = "[]." if option.get("type") == "list" else "."
        lines += rows(option.get("options", {}), parent=f"{path}{mark}")
    return lines


def readme(role: Path) -> str:
    """Return the README of the role in the folder `role`."""
    description = load(role / "meta" / "main.yml").get("galaxy_info", {}).get("description", "")
    lines = [
        f"# {role.name}",
        "",
        *paragraphs(description),
        "",
        "<!-- Made by `make docs` from meta/main.yml and meta/argument_specs.yml: change those. -->",
    ]
    for name, spec in entry_points(role).items():
        lines += ["", "## Variables" if name == "main" else f"## Variables of the entry point `{name}`"]
        for paragraph in paragraphs(spec.get("description", spec.get("short_description", ""))):
            lines += ["", paragraph]
        if options := spec.get("options"):
            lines += [
                "",
                "| Variable | Type | Default | Meaning |",
                "| --- | --- | --- | --- |",
                *rows(options),
            ]
        else:
            lines += ["", "None of its own."]
    return "\n".join(lines) + "\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    return re.split(r"(?<=[.?]) (?=[A-Z`])", text, maxsplit=1)[0]


def index(roles: Iterable[Path]) -> str:
    """Return the page with the variables of all roles."""
    lines = [INDEX_HEAD]
    for role in roles:
        lines += [f"## [{role.name}](../../roles/{role.name}/README.md)", ""]
        lines += ["| Variable | Default | Meaning |", "| --- | --- | --- |"]
        for name, option in entry_points(role)["main"].get("options", {}).items():
            default = re.sub(r"see \[.*", "see its README", default_cell(option))
            says = first_sentence(paragraphs(option["description"])[0])
            lines.append(f"| `{name}` | {default} | {cell(says)} |")
        lines.append("")
    return "\n".join(lines)


def defaults(role: Path) -> str:
    """Return the role's defaults, each as its argument spec writes it."""
    text = (role / SPECS).read_text(encoding="utf-8")
    options = yaml.compose(text)
    for key in ("argument_specs", "main", "options"):
        options = children(options)[key]
    lines = [f"# Made by `make docs` from {SPECS}, which describes each variable: change that.", "---"]
    for name, option in children(options).items():
        lines.append(f"{name}:")
        if default := children(option).get("default"):
            start = default.start_mark
            value = text[start.index : default.end_mark.index].rstrip()
            if isinstance(default, yaml.CollectionNode) and not default.flow_style:
                lines.append(indent(dedent(" " * start.column + value), "  "))
            else:
                lines[-1] += f" {value}".rstrip()
    return "\n".join(lines) + "\n"


def children(node: Any) -> dict[str, Any]:
    """Return the nodes in a YAML mapping by their keys."""
    return {key.value: value for key, value in node.value}


def class_name(name: str) -> str:
    """Return the name of the class of a role, or of the options nested in a variable."""
    return name.title().replace("_", "")


def literal(value: Any) -> str:
    """Return a value as Python writes it, a list as a tuple."""
    if isinstance(value, list):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def type_hint(option: dict[str, Any], nested: str) -> str:
    """Return the type of a variable; `nested` is the class of the options nested in it."""
    is_list = option["type"] == "list"
    kind = option["elements" if is_list else "type"]
    hint = nested if "options" in option else TYPES.get(kind, kind)
    if is_list:
        hint = f"tuple[{hint}, ...]"
    elif "choices" in option:
        hint = f"Literal[{', '.join(map(literal, option['choices']))}]"
    unset = option.get("default") is None and not option.get("required")
    return f"{hint} | None" if unset and hint != "Any" else hint


def dataclass(name: str, says: str, fields: Iterable[str]) -> str:
    """Return the text of a frozen dataclass."""
    lines = "".join(f"    {field}\n" for field in fields)
    return f'\n\n@dataclass(frozen=True)\nclass {class_name(name)}:\n    """{says}"""\n\n{lines}'


def classes(name: str, says: str, options: dict[str, Any], *, is_role: bool = False) -> Iterator[str]:
    """Yield the class of these options, after those of the options nested in them."""
    fields = []
    for key, option in sorted(options.items(), key=lambda item: not item[1].get("required")):
        path = f"{name}_{key}"
        one = path.removesuffix("s") if option["type"] == "list" else path
        if "options" in option:
            part = "The content" if one == path else "One entry"
            yield from classes(one, f"{part} of `{path}`.", option["options"])
        field = f"{key}: {type_hint(option, class_name(one))}"
        # A plan has a value for every variable of a role.
        if not is_role and not option.get("required"):
            field += f" = {literal(option.get('default'))}"
        if len(field) > LONGEST_FIELD and "Literal[" in field:  # one choice a line
            before, choices, after = re.split(r"(?<=Literal\[)(.*)(?=\])", field)
            lines = [f"        {choice}," for choice in choices.split(", ")]
            field = "\n".join([before, *lines, f"    {after}"])
        fields.append(field)
    yield dataclass(name, says, fields)


def variables(roles: Iterable[Path]) -> str:
    """Return the Python module with a class for each role."""
    text, fields = HEAD, []
    for role in roles:
        options = entry_points(role)["main"]["options"]
        own = {name.removeprefix(f"{role.name}_"): option for name, option in options.items()}
        text += "".join(classes(role.name, f"Variables of the role {role.name}.", own, is_role=True))
        fields.append(f"{role.name}: {class_name(role.name)}")
    says = "The variables of all roles for one node, by the role's name."
    return text + dataclass("variables", says, fields)


def documents() -> dict[Path, str]:
    """Return the content of each file."""
    roles = sorted(path for path in ROLES.iterdir() if path.is_dir())
    readmes = {role / "README.md": readme(role) for role in roles}
    values = {role / "defaults" / "main.yml": defaults(role) for role in roles}
    return readmes | values | {MODULE: variables(roles), INDEX: index(roles)}


if __name__ == "__main__":
    sys.exit(write(documents()))
