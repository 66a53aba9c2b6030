"""Units of systemd: what it knows of them, how it starts them, and what it must not meet."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ansible.module_utils.temper.process import parsed, run

# Longer than the units that we start give themselves: the fabric manager of an HGX board takes minutes.
TIMEOUT_S = 600
# States of a unit file whose unit is started at boot, by itself or by another.
STARTS_AT_BOOT = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
PROPERTIES = "LoadState,UnitFileState,ActiveState,ConditionResult,ConditionTimestampMonotonic"
COMMAND = re.compile(r"path=(.*?) ; argv\[\]=(.*?) ; ")
#: In Environment= of `systemctl show`, and in a file of EnvironmentFile= (systemd.exec(5)).
VARIABLE = re.compile(r'(?:^| )"?(\w+)=(.*?)"?(?= "?\w+=|$)')
VARIABLE_LINE = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def unit_states(names: Sequence[str], properties: str = PROPERTIES) -> dict[str, dict[str, str]]:
    """Return properties of units, asked in one call."""
    if not names:
        return {}
    output = run(["systemctl", "show", f"--property={properties}", "--", *names])
    return parsed("systemctl show", output, lambda text: blocks(text, names, properties.split(",")))


def blocks(text: str, names: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read the properties of units from `systemctl show`. Raises ValueError where any is missing."""
    found = [dict(line.split("=", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    if len(found) != len(names) or not all(name in block for block in found for name in properties):
        raise ValueError(f"expected {', '.join(properties)} of {len(names)} units")
    return dict(zip(names, found))  # noqa: B905 - strict= is not in Python 3.9


def command_of(unit: str) -> tuple[str, list[str]]:
    """Return the program that systemd starts for a unit, and its arguments with the values of variables.

    systemctl prints an argument with a space as several. Raises CommandError and OutputError.
    """
    output = run(["systemctl", "show", "--property=ExecStart,Environment,EnvironmentFiles", "--", unit])
    variables: dict[str, str] = {}
    program = ""
    words: list[str] = []
    lines = [line.partition("=") for line in output.splitlines()]
    for name, _, value in sorted(lines, key=lambda line: line[0]):  # files come after Environment=
        if name == "Environment":
            variables.update(VARIABLE.findall(value))
        elif name == "EnvironmentFiles":
            for path in sorted(glob.glob(value.rpartition(" (ignore_errors=")[0])):  # noqa: PTH207 - absolute
                variables.update(parsed(path, _content(path), environment))
        elif match := COMMAND.search(value):
            program, words = match[1], match[2].split()[1:]
    return program, [part for word in words for part in _expanded(word, variables)]


def _content(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def environment(text: str) -> dict[str, str]:
    """Read a file of EnvironmentFile=. Raises ValueError where a quote does not end."""
    found = VARIABLE_LINE.findall(text.replace("\\\n", ""))
    return {name: shlex.split(value)[0] if value[:1] in ("'", '"') else value for name, value in found}


def _expanded(word: str, variables: dict[str, str]) -> list[str]:
    """Return the words that systemd makes of one."""
    if alone := re.fullmatch(r"\$(\w+)", word):
        return parsed(word, variables.get(alone[1], ""), shlex.split)
    return [re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], ""), word)]


def stop_lost(names: Sequence[str]) -> None:
    """Stop those that run although their file is gone; to be called before it comes back.

    systemd 252 does not load the new file while such a unit runs: "Device or resource busy". It knows no
    command to stop it by, so what a unit of one command has done stays done.
    """
    states = unit_states(names)
    lost = [
        name
        for name, state in states.items()
        if (state["LoadState"], state["ActiveState"]) == ("not-found", "active")
    ]
    if lost:
        run(["systemctl", "stop", "--", *lost], TIMEOUT_S)
