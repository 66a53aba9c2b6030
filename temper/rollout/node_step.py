"""What Ansible carries out on a node for a step of a roll-out, and what it reports."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from temper.plan.convert import build
from validation.model.contract import StringEnum

#: A boot id, the release of a kernel, the name of a stack: some become extra variables of the next run, which
#: Ansible renders as templates.
WORD = re.compile(r"[A-Za-z0-9_.+~:-]{0,128}")


class NodeStep(StringEnum):
    """A part of a step of a roll-out that works on the node: a file of playbooks/upgrade_steps/ each."""

    LEASE = "lease"
    LOOK = "look"
    STAGE = "stage"
    HOLDERS = "holders"
    SETTINGS = "settings"
    SNAPSHOT = "snapshot"
    INSTALL = "install"
    LEAVE = "leave"
    BOOT = "boot"
    LOAD = "load"
    SETTLE = "settle"
    WATCH = "watch"
    CLEAN = "clean"
    FREE = "free"

    @property
    def playbook(self) -> str:
        """The playbook that carries it out."""
        return "upgrade_settle" if self is NodeStep.SETTLE else "upgrade_step"


@dataclass(frozen=True)
class KernelSaid:
    """What module node_kernel says of the kernel that a node would get."""

    release: str = ""
    settled: str = ""


@dataclass(frozen=True)
class NodeStepResult:
    """What action step_result reports; most of it are the node's own words.

    `boot_id`, `stack`, `source`, `system` and `settled` are of the plan, where the step has made one.
    """

    fencing: int | None = None
    boot_id: str = ""
    stack: str = ""
    source: str = ""
    system: str = ""
    settled: bool | None = None
    kernel: KernelSaid = field(default_factory=KernelSaid)
    said: str = ""
    holders: tuple[str, ...] = ()
    settings: str = ""
    snapshot: str = ""
    health: str = ""

    @classmethod
    def read(cls, value: object) -> NodeStepResult:
        """Return the result from what the action reports. Raises ValueError, which says where."""
        where = "the result of the step"
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, found {str(value)[:60]!r}")  # noqa: TRY004 - as any other form
        found = build(cls, value, where)
        for name, word in (
            ("boot_id", found.boot_id),
            ("stack", found.stack),
            ("kernel", found.kernel.release),
        ):
            if not WORD.fullmatch(word):
                raise ValueError(
                    f"{where}: expected {name} of letters, digits and ._+~:-, found {word[:60]!r}"
                )
        return found
