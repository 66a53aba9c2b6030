"""What the node's own programs say of its plan (module node_programs): not applicable, or refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from temper.plan import role_variables  # noqa: F401 - makes module_utils/ importable
from temper.plan.convert import build, from_node
from temper.plan.node_plan import WaivedControl
from temper.plan.os_controls import references
from temper.plan.preview import one_line
from temper.plan.refusals import Refusal, advice, refusal

# isort: split

from ansible.module_utils.temper.settings.in_place import digest

#: Who waives a control that a program does not know.
BY = "the node's programs"
#: Sentences of each kind that a plan has.
MOST = 40


@dataclass(frozen=True)
class RefusedText:
    """What the node would not take: the role that wants it, and why, which may say what to do, too."""

    role: Literal["firewall", "ssh_hardening", "os_hardening"]
    said: str
    advises: bool = False

    @property
    def refusal(self) -> Refusal:
        """Why the node is refused, and what to do."""
        waives = self.role == "os_hardening"
        remedy = advice("waive-control") if waives else advice("correct-role", role=self.role)
        return refusal("program-refuses", None if self.advises else remedy, reason=one_line(self.said))


@dataclass(frozen=True)
class Programs:
    """What module node_programs returned, or only a message where it broke."""

    unknown: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    refused: tuple[RefusedText, ...] = ()
    unasked: dict[str, str] = field(default_factory=dict)
    msg: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Programs:
        """From the module's result. One of another form is none, and says so."""
        try:
            asked = {one.name: data[one.name] for one in fields(cls) if one.name in data}
            return build(cls, from_node(asked | {"msg": str(data.get("msg") or "")}, "node_programs"), "said")
        except ValueError as error:
            return cls(msg=str(error))

    def refusals(self) -> list[Refusal]:
        """Return why the node is refused."""
        return [one.refusal for one in self.refused[:MOST]]

    def lines(self) -> list[str]:
        """Return what the plan says of the rest."""
        return [
            *([f"the node's programs were not asked: {one_line(self.msg)}"] if self.msg else []),
            *(f"{one_line(name)} was not asked: {one_line(why)}" for name, why in self.unasked.items()),
            *(f"not applicable here: {one_line(one)}" for one in self.without),
        ][:MOST]

    def waived(
        self, controls: Mapping[str, Any], system: str, asked: Collection[str]
    ) -> tuple[WaivedControl, ...]:
        """Return the controls that do not apply, of those that a program was `asked` about."""
        return tuple(
            WaivedControl(name, controls[name]["title"], references(name, controls[name], system), why, BY)
            for name, why in zip(self.unknown, map(one_line, self.unknown.values()), strict=True)
            if name in asked
        )


def to_be_asked(parts: Iterable[str], in_place: Collection[str]) -> list[str]:
    """Return the roles' parts of a plan that the node is not at: its programs have taken the others.

    `in_place` has the digests that the node reports.
    """
    return [part for part in parts if digest(json.loads(part)) not in in_place]
