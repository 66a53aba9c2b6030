"""Rules of sudo that a node's own sudo may not know: sudo-rs has some since a version, and some never.

Source: sudo-rs's CHANGELOG (umask and umask_override came with 0.2.7) and its sudoers(5), read 2026-11-26.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.files import candidate
from ansible.module_utils.temper.process import complete, printable, shown, which

# What stands before the lines of a control.
OF_CONTROL = re.compile(r"# ([a-z-]+): ")
UNKNOWN = re.compile(r"unknown (setting|default)|unrecognized", re.IGNORECASE)


def is_another_sudo(visudo: str) -> bool:
    """Return whether the program is a link, as alternatives make it.

    The first sudo's is a file of its own.
    """
    path = Path(visudo)
    return path.resolve() != path.parent.resolve() / path.name


def refusal(visudo: str, line: str) -> str:
    """Return what visudo says of a rule that it does not know; empty where it takes it."""
    with candidate(f"{line}\n".encode()) as path:
        done = complete([visudo, "-cf", path])
        # What follows shows the line, and where in it.
        said = (done.stderr or done.stdout).replace(path, "").strip().split("\n")[0]
    return said if done.returncode and UNKNOWN.search(said) else ""


def version(visudo: str) -> str:
    """Name the sudo that a visudo is of, with its version: sudo-rs 0.2.5."""
    program = Path(visudo).resolve()
    sudo = program.with_name(program.name.replace("visudo", "sudo"))
    with contextlib.suppress(OSError):
        done = complete([str(sudo), "--version"])
        # sudo-rs says it among its errors.
        if done.returncode == 0 and (words := (done.stdout or done.stderr).split("\n")[0]):
            return printable(words)
    return str(program)


def unknown_controls(content: str) -> dict[str, str]:
    """Return the controls with a rule that this node's sudo does not know, and what it says.

    Raises OutputError, subprocess.TimeoutExpired.
    """
    visudo = which("visudo")
    if not visudo or not is_another_sudo(visudo):
        return {}
    found: dict[str, str] = {}
    for control, line in lines_of_controls(content):
        if line.startswith("Defaults") and control not in found and (said := refusal(visudo, line)):
            found[control] = f"{version(visudo)} does not know its rule ({line}): {shown(said)}"
    return found


def lines_of_controls(content: str) -> list[tuple[str, str]]:
    """Return the lines of a file, each with the control that it is of."""
    control, found = "", []
    for line in content.splitlines():
        if match := OF_CONTROL.match(line):
            control = match[1]
        found.append((control, line))
    return found


def known_here(
    items: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return the settings of a role without those of controls that this node's sudo does not know, and why.

    A control goes as a whole: a mask for users alone would be root's, too, where sudo cannot set another.
    Raises OutputError, subprocess.TimeoutExpired.
    """
    unknown: dict[str, str] = {}
    for item in items:
        if is_sudoers(item):
            unknown |= unknown_controls(item["wanted"]["content"])
    if not unknown:
        return list(items), {}
    kept: list[Mapping[str, Any]] = []
    for item in items:
        controls = [name for name in item["controls"] if name not in unknown]
        if item["controls"] and not controls:
            continue
        changed: dict[str, Any] = {"controls": controls}
        if is_sudoers(item):
            lines = lines_of_controls(item["wanted"]["content"])
            text = "".join(f"{line}\n" for control, line in lines if control not in unknown)
            changed["wanted"] = {**item["wanted"], "content": text}
        kept.append({**item, **changed})
    return kept, unknown


def is_sudoers(item: Mapping[str, Any]) -> bool:
    """Return whether a setting is a file of rules."""
    return item["kind"] == "file" and "/sudoers.d/" in item["key"] and bool(item["wanted"])
