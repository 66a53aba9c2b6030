"""What the node's own programs say of its plan (module node_programs): not applicable, or refused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from temper.plan.convert import build, from_node
from temper.plan.node_plan import WaivedControl
from temper.plan.os_controls import references
from temper.plan.preview import one_line
from temper.plan.refusals import Refusal, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Who waives a control that a program does not know.
BY = "the node's programs"


@dataclass(frozen=True)
class Programs:
    """What module node_programs returned, or only a message where it broke."""

    unknown: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
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
        return [refusal("program-refuses", reason=one_line(one)) for one in self.refused]

    def lines(self) -> list[str]:
        """Return what the plan says of the rest."""
        asked = [f"the node's programs were not asked: {one_line(self.msg)}"] if self.msg else []
        return [*asked, *(f"not applicable here: {one}" for one in self.without)]

    def waived(self, controls: Mapping[str, Any], system: str) -> tuple[WaivedControl, ...]:
        """Return the controls that do not apply."""
        return tuple(
            WaivedControl(name, controls[name]["title"], references(name, controls[name], system), reason, BY)
            for name, reason in self.unknown.items()
            if name in controls
        )
