"""What the package manager's simulation adds to a plan, and the words for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from temper.plan.convert import build, from_node
from temper.plan.distro_source import resolved_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from temper.plan.node_plan import NodePlan

KERNEL = re.compile(r"^(linux-image-|linux-modules-(?!nvidia-)|kernel(-64k|-rt)?(-core|-modules)?$)")
# The running kernel's headers, which repositories of today have no more.
HEADERS_GONE = re.compile(
    r"No repository of this node offers (a package linux-headers-\d|kernel-(\S+-)?devel \d)"
)
NAMES_SHOWN = 6
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Change:
    """A package of a transaction; `from_` and `to` are versions where it replaces another one."""

    name: str
    from_: str = ""
    to: str = ""

    def __str__(self) -> str:
        """The package, and its way from one version to another."""
        return f"{self.name} {self.from_} -> {self.to}" if self.from_ else self.name


@dataclass(frozen=True)
class Transaction:
    """What the package manager would change."""

    install: tuple[Change, ...] = ()
    upgrade: tuple[Change, ...] = ()
    downgrade: tuple[Change, ...] = ()
    remove: tuple[Change, ...] = ()
    download_bytes: int = 0
    disk_bytes: int = 0

    @property
    def kernels(self) -> list[str]:
        """The kernels that it would install."""
        return [change.name for change in (*self.install, *self.upgrade) if KERNEL.match(change.name)]

    def lines(self) -> list[str]:
        """It in a few lines: how much, and by name what an operator wants to know before."""
        if not (self.install or self.upgrade or self.downgrade or self.remove):
            return []
        named = {
            "upgrades": [str(change) for change in self.upgrade],
            "downgrades": [str(change) for change in self.downgrade],
            "removes": [change.name for change in self.remove],
            "brings a kernel": self.kernels,
        }
        return [
            f"transaction: {len(self.install)} to install, {len(self.upgrade)} to upgrade; "
            f"{size(self.download_bytes)} to download, {size(self.disk_bytes)} on disk",
            *(f"  {what}: {shown(names)}" for what, names in named.items() if names),
        ]


@dataclass(frozen=True)
class Preview:
    """What module package_preview returned, or only a message where it broke.

    `unresolved`: the package manager finds no transaction, and no rule of the node's owner is why.
    """

    transaction: Transaction | None = None
    resolved: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unresolved: bool = False
    msg: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preview:
        """From the task's result. One of another form is none, and says so."""
        try:
            asked = {one.name: data[one.name] for one in fields(cls) if one.name in data}
            said = from_node(asked | {"msg": str(data.get("msg") or "")}, "package_preview")
            return build(cls, said, "package_preview")
        except ValueError as error:
            return cls(msg=str(error))


def with_preview(plan: NodePlan, preview: Preview) -> NodePlan:
    """The plan with what the simulation says.

    Its problems refuse the node, and a module that broke does: what nobody could simulate is not tried.
    """
    problems = [*plan.problems, *preview.problems]
    if plan.hint and preview.unresolved:
        problems.append(plan.hint)
    if any(map(HEADERS_GONE.match, preview.problems)):
        upgrade = "dnf upgrade" if plan.package_manager == "dnf" else "apt-get dist-upgrade"
        problems.append(
            "the headers of the running kernel are offered no more, and no driver module can be built: "
            f"boot a kernel that the distribution still offers ({upgrade}, then reboot)"
        )
    if preview.transaction is None:
        reason = one_line(preview.msg) or "it returned nothing"
        problems.append(f"the transaction cannot be simulated: {reason}. Correct it and run again")
    transaction = preview.transaction or Transaction()
    if problems and transaction.kernels:
        problems.append(
            "the packages that follow the kernel would install a newer one: upgrade the kernel and reboot "
            "first, or set nvidia_stack_follow_kernels: false to build for the running kernel only"
        )
    problems += map(one_line, preview.refused)
    driver, runtime = plan.driver and resolved_driver(plan.driver, preview.resolved), plan.runtime
    if driver and runtime.fabric_manager:
        runtime = replace(runtime, fabric_manager=driver.version)
    return replace(
        plan,
        driver=driver,
        runtime=runtime,
        resolved=preview.resolved,
        problems=tuple(problems),
        text="\n".join([plan.text, *transaction.lines()]),
    )


def one_line(message: str) -> str:
    """A message without its line breaks and its full stop."""
    return " ".join(message.split()).rstrip(".")


def shown(names: Iterable[str]) -> str:
    """Some of the names, and how many more there are."""
    every = list(names)
    rest = len(every) - NAMES_SHOWN
    return ", ".join(every[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def size(number: int) -> str:
    """Bytes for people."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
