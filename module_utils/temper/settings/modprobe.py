"""The file that keeps kernel modules from being loaded, beside those of the site."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.temper.settings.base import Fault, word_on_faults
from ansible.module_utils.temper.settings.files import WholeFile
from ansible.module_utils.temper.settings.site_lines import MOST_FILES, UnreadableError, joined, text_of

#: Where kmod looks beside /etc, the strongest first: modprobe.d(5). Of one name, the strongest file counts.
WEAKER = tuple(Path(path, "modprobe.d") for path in ("/run", "/usr/local/lib", "/usr/lib", "/lib"))
#: Commands that load nothing.
LOADS_NOTHING = ("true", "false", ":", "nologin")
#: Signs behind which a shell may find another command.
SHELL = set(";&|`$\n")
QUOTES = re.compile("[\"']")
#: The redirection of a command to or from a file, or to another descriptor.
REDIRECTION = re.compile(r"(?:(?<=\s)\d)?[<>]{1,2}(?:\s*/[\w./-]+|&\d)")


class Install(NamedTuple):
    """A line that says what is done in the place of loading a module; its name may be a pattern."""

    path: str
    number: int
    module: str
    command: str

    @property
    def loads_nothing(self) -> bool:
        """Whether the command does nothing, whatever follows it on the line."""
        command = REDIRECTION.sub(" ", QUOTES.sub("", self.command))
        program = (command.split() or [""])[0]
        return program.rpartition("/")[2] in LOADS_NOTHING and not set(command) & SHELL


def normal(module: str) -> str:
    """Return the name of a module as the kernel writes it."""
    return module.replace("-", "_")


def installs(text: str, path: str) -> Iterator[Install]:
    """Yield the install lines of a file."""
    for number, line in joined(text):
        words = line.split(None, 2)
        if len(words) == 3 and words[0] == "install":
            yield Install(path, number, normal(words[1]), words[2])


def files(own: Path) -> list[Path]:
    """Return the files of modprobe.d in the order in which kmod reads them."""
    folders = (*reversed(WEAKER), own.parent)
    by_name = {path.name: path for folder in folders for path in folder.glob("*.conf")}
    by_name[own.name] = own
    if len(by_name) > MOST_FILES:
        raise UnreadableError(f"{own.parent}: expected at most {MOST_FILES} files")
    return [path for _, path in sorted(by_name.items())]


class ModprobeFile(WholeFile):
    """A file of Temper's that has modules left out. Of several lines on one module kmod takes the first."""

    def __init__(self, path: str, content: str, **details: Any) -> None:
        details.pop("orders")
        super().__init__(path, content, **details)
        self.content = content

    def loading(self) -> list[Install]:
        """Return the lines of the site that come first and load a module that ours leaves out.

        Raises UnreadableError.
        """
        lines: list[Install] = []
        for path in files(self.path):
            lines += installs(self.content if path == self.path else text_of(path), str(path))
        found = []
        for ours in installs(self.content, str(self.path)):
            first = next(line for line in lines if fnmatch.fnmatchcase(ours.module, line.module))
            if not first.loads_nothing and first not in found:
                found.append(first)
        return found

    @cached_property
    def unreadable(self) -> str:
        """Why those lines are not known; empty where they are."""
        try:
            self.loading()
        except UnreadableError as error:
            return str(error)
        return ""

    def obstacle(self) -> str | None:
        """Likewise: what wins over ours is not known."""
        return self.unreadable or super().obstacle()

    def settled(self) -> bool:
        """Return whether it is ours, and what else there is can be read."""
        return not self.unreadable and super().settled()

    def fault(self) -> Fault | None:
        """Return those lines."""
        clauses = [
            f"{line.path}:{line.number} has `install {line.module} {line.command}`, which comes before ours"
            for line in ([] if self.unreadable else self.loading())
        ]
        return Fault("; ".join(clauses)) if clauses else None

    def warnings(self) -> list[str]:
        """Likewise: the operator takes them out."""
        return word_on_faults(str(self.path), self.fault())
