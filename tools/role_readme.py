"""Write each role's README from its meta/main.yml and meta/argument_specs.yml, so that they cannot disagree.

    python3 -m tools.role_readme    write roles/*/README.md and name the files that changed

tests/unit/test_documentation.py fails when a README is not what this would write.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import yaml

from tools.documents import ROOT, write

if TYPE_CHECKING:
    from pathlib import Path

ROLES = ROOT / "roles"
CODE = re.compile(r"\b[CMOV]\(([^()]*)\)")  # Ansible's markup for constants, modules, options and values
LONGEST_DEFAULT = 60  # characters that a table's cell carries well


def load(path: Path) -> Any:
    """Return the content of a YAML file; an empty mapping for an empty or absent one."""
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def entry_points(role: Path) -> dict[str, Any]:
    """Return the role's argument specs by the name of their entry point."""
    specs: dict[str, Any] = load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
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
            lines += ["", "None."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write({role / "README.md": readme(role) for role in sorted(ROLES.iterdir()) if role.is_dir()}))
