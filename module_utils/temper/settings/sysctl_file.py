"""The file that sets kernel parameters at boot: what the site has that is stricter is what it says, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.settings.files import OrderedFile
from ansible.module_utils.temper.settings.system import IN_FORCE, AtBoot, Sysctl, sysctls


class SysctlFile(OrderedFile):
    """A file of Temper's in /etc/sysctl.d; `orders` has those of its parameters, by name or pattern."""

    at_boot: AtBoot
    originals: Mapping[str, Mapping[str, Any]]

    def recall(self, originals: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the record has of the file and of the parameters."""
        super().recall(originals)
        self.originals = originals

    @cached_property
    def file(self) -> File:
        """With the values that are as strict as the site's."""
        lines = [line for text in self.content.splitlines() for line in self.lines(text)]
        return File(str(self.path), "".join(f"{line}\n" for line in lines), self.mode, public=True)

    def kept(self) -> list[str]:
        """Return what the tree of an image keeps: on a running system, the parameters themselves say it."""
        texts = [] if self.live else self.content.splitlines()
        return [clause for text in texts for one in self.parameters(text) for clause in one.kept()]

    def lines(self, text: str) -> Iterator[str]:
        """Yield the lines in the place of one.

        In the place of a pattern also those of single parameters that differ from it.
        """
        name = text.partition(" = ")[0]
        by_pattern = "*" in name
        if name not in self.orders or by_pattern:
            yield text
        for parameter in self.parameters(text):
            if parameter.value == parameter.wanted and by_pattern:
                continue
            if parameter.value != parameter.at_least:
                yield IN_FORCE
            yield f"{parameter.name} = {parameter.value}"

    def parameters(self, text: str) -> Iterator[Sysctl]:
        """Yield the parameters of a line, where their values have an order."""
        name, _, value = text.partition(" = ")
        for parameter in sysctls(name, value) if name in self.orders else ():
            parameter.order, parameter.live, parameter.at_boot = self.orders[name], self.live, self.at_boot
            parameter.recall(self.originals)
            yield parameter
