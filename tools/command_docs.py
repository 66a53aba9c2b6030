"""Write docs/reference/commands.md: every command with its options, every playbook, every target of make.

    python3 -m tools.command_docs    write the page and name it if it changed

From the parsers of the programs, the first comment of each playbook, and the Makefile.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from temper.cli import completion
from temper.cli import main as command_line
from tools.documents import ROOT, write
from validation.cli import arguments

PAGE = ROOT / "docs/reference/commands.md"
INTRODUCTION = """\
# Commands

*For operators and contributors: find a command, and its options.*

<!-- Made by `make docs` from the programs' parsers, the playbooks and the Makefile: change those. -->

`COMMAND --help` says what each option means. [exit_statuses.md](exit_statuses.md) has the exit statuses.
"""


def purposes(made: argparse.ArgumentParser) -> dict[str, str]:
    """Return what the commands right below a parser are for."""
    return {
        choice.dest: choice.help or ""
        for action in made._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }


def rows(commands: Iterable[tuple[str, argparse.ArgumentParser]], does: dict[str, str]) -> Iterator[str]:
    """Yield the row of each command; `does` has the purposes, by name, of those that no parser tells."""
    for name, made in commands:
        does |= {f"{name} {word}": purpose for word, purpose in purposes(made).items()}
        known = ", ".join(f"`{option}`" for option in completion.options(made) if option != "--help")
        yield f"| `{name}` | {does.get(name, '')} | {known} |"


def playbooks() -> Iterator[str]:
    """Yield the row of each playbook: its first comment, without the page that it names."""
    for path in [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]:
        comment = path.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
        yield f"| `{path.relative_to(ROOT)}` | {re.sub(r' See docs/.*', '', comment)} |"


def targets() -> Iterator[str]:
    """Yield the row of each target that `make help` lists."""
    listed = re.findall(
        r"^([a-z-]+):.*?## (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    yield from (f"| `make {target}` | {says} |" for target, says in listed)


def page() -> str:
    """Return the page."""
    of_temper = {f"temper {name}": command.does for name, command in command_line.COMMANDS.items()}
    of_payload = completion.tree("python3 -m validation", arguments.parser())
    tables = {
        "temper": ("Options", rows(completion.parsers(), of_temper)),
        "The payload, on a node": ("Options", list(rows(of_payload, {}))[1:]),
        "Playbooks": ("", playbooks()),
        "make": ("", targets()),
    }
    text = INTRODUCTION
    for heading, (third, lines) in tables.items():
        head = f"| Command | What it does |{f' {third} |' if third else ''}"
        text += "\n".join(["", f"## {heading}", "", head, re.sub("[^|]+", "---", head), *lines, ""])
    return text


def documents() -> dict[Path, str]:
    """Return the content of the page."""
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(write(documents()))
