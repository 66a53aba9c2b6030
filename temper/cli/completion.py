"""Print a script that completes commands, options and choices: `source <(temper completion bash)`.

The script is static, so that a TAB starts no Python. zsh takes it after `bashcompinit`.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Sequence

from temper.cli import main as command_line

#: A file's name is completed where no word of ours fits.
SCRIPT = """\
_temper() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command=temper words options i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$command ${{COMP_WORDS[i]}}" in
            {commands}) command+=" ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case $command in
{cases}
    esac
    [[ $word == -* ]] && words=$options
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _temper temper
"""


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(
        "temper completion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", choices=["bash"])
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    parser().parse_args(arguments)
    print(script(), end="")
    return 0


def script() -> str:
    """Return the script for all commands."""
    commands = {"temper": (list(command_line.COMMANDS), ["--help", "--version"])}
    for name, made in parsers():
        positional = (action for action in made._actions if not action.option_strings)
        words = [str(choice) for action in positional for choice in action.choices or ()]
        commands[name] = words, options(made)
    cases = (
        f"        {shlex.quote(name)}) words={shlex.quote(' '.join(words))}"
        f" options={shlex.quote(' '.join(known))} ;;"
        for name, (words, known) in commands.items()
    )
    below = " | ".join(shlex.quote(name) for name in commands if name != "temper")
    return SCRIPT.format(commands=below, cases="\n".join(cases))


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of each command, then those of the commands below it."""
    for name, command in command_line.COMMANDS.items():
        made: argparse.ArgumentParser = importlib.import_module(command.module).parser()
        if command.module == command_line.JUDGING:
            made = dict(_commands_of(made))[name]
        yield from tree(f"temper {name}", made)


def tree(name: str, made: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a command's name and parser, then those of the commands below it."""
    yield name, made
    for word, below in _commands_of(made):
        yield from tree(f"{name} {word}", below)


def options(made: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command."""
    return [option for action in made._actions for option in action.option_strings if option.startswith("--")]


def _commands_of(made: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands below a parser; argparse has no public way to them."""
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
