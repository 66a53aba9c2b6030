"""The file that sets kernel parameters at boot: what the site has that is stricter is what it says, too."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ansible.module_utils.files import File
from ansible.module_utils.settings.files import WholeFile
from ansible.module_utils.settings.system import IN_FORCE, AtBoot, sysctls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ansible.module_utils.settings.system import Sysctl


class SysctlFile(WholeFile):
    """A file of Temper's in /etc/sysctl.d; `orders` has those of its parameters, by name or pattern."""

    def __init__(self, path: str, content: str, orders: Mapping[str, str], **details: Any) -> None:
        self.content = content
        self.orders = orders
        self.at_boot = AtBoot()
        self.originals: Mapping[str, Mapping[str, Any]] = {}
        super().__init__(path, content, **details)

    def recall(self, originals: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the record has of the file and of the parameters."""
        super().recall(originals)
        self.originals = originals

    @cached_property
    def file(self) -> File:
        """With the values that are as strict as the site's."""
        lines = [line for text in self.content.splitlines() for line in self.lines(text)]
        return File(str(self.path), "".join(f"{line}\n" for line in lines), self.mode, public=True)

    def lines(self, text: str) -> Iterator[str]:
        """The lines in the place of one: of a pattern also those of single parameters that differ from it."""
        name, _, value = text.partition(" = ")
        if name not in self.orders or "*" in name:
            yield text
        if name in self.orders:
            for parameter in sysctls(name, value):
                yield from self.line(parameter, self.orders[name], "*" in name)

    def line(self, parameter: Sysctl, order: str, by_pattern: bool) -> Iterator[str]:
        """The line of a parameter, if its pattern does not say the same."""
        parameter.order, parameter.live, parameter.at_boot = order, self.live, self.at_boot
        parameter.recall(self.originals)
        if parameter.value == parameter.wanted and by_pattern:
            return
        if parameter.value != parameter.at_least:
            yield IN_FORCE
        yield f"{parameter.name} = {parameter.value}"
