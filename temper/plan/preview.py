"""What the package manager's simulation adds to a plan, and the words for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from temper.plan.convert import build, from_node
from temper.plan.distro_source import resolved_driver
from temper.plan.node_plan import NodePlan
from temper.plan.refusals import refusal
from validation.model.printable import first_of

KERNEL = re.compile(r"^(linux-image-|linux-modules-(?!nvidia-)|kernel(-64k|-rt)?(-core|-modules)?$)")
# The headers of a kernel: apt has a package for each kernel, dnf one with its versions.
HEADERS = re.compile(r"linux-headers-\d.*"), re.compile(r"kernel-(\S+-)?devel")
NAMES_SHOWN = 6
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Change:
    """A package of a transaction; `from_` and `to` are versions where it replaces another one."""

    name: str
    from_: str = ""
    to: str = ""

    def __str__(self) -> str:
        """Return the package, and its way from one version to another."""
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
        """Return it in a few lines: how much, and by name what an operator wants to know before."""
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
            *(f"  {what}: {first_of(names, NAMES_SHOWN)}" for what, names in named.items() if names),
        ]


@dataclass(frozen=True)
class Lacking:
    """A package that no repository offers; `version` is the one that none has, empty where none has any."""

    name: str
    version: str = ""


@dataclass(frozen=True)
class Preview:
    """What module package_preview returned, or only a message where it broke.

    `not_offered` are the packages that no repository has.
    `unresolved`: the package manager finds no transaction, and no rule of the node's owner is why.
    """

    transaction: Transaction | None = None
    resolved: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unresolved: bool = False
    not_offered: tuple[Lacking, ...] = ()
    msg: str = ""

    @property
    def lacks_headers(self) -> bool:
        """Whether the repositories of today have the headers of the running kernel no more."""
        return any(HEADERS[bool(one.version)].fullmatch(one.name) for one in self.not_offered)

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
    """Return the plan with what the simulation says.

    Its problems refuse the node, and a module that broke does: what nobody could simulate is not tried.
    """
    problems = [*plan.refusals, *(refusal("transaction", reason=one) for one in preview.problems)]
    if plan.hint and preview.unresolved:
        problems.append(refusal("transaction-hint", reason=plan.hint))
    if preview.lacks_headers:
        upgrade = "dnf upgrade" if plan.package_manager == "dnf" else "apt-get dist-upgrade"
        problems.append(refusal("kernel-headers-gone", command=upgrade))
    if preview.transaction is None:
        reason = one_line(preview.msg) or "it returned nothing"
        problems.append(refusal("transaction-not-simulated", reason=reason))
    transaction = preview.transaction or Transaction()
    if problems and transaction.kernels:
        problems.append(refusal("kernel-would-come"))
    problems += [refusal("engine-settings", reason=one_line(one)) for one in preview.refused]
    driver, runtime = plan.driver and resolved_driver(plan.driver, preview.resolved), plan.runtime
    if driver and runtime.fabric_manager:
        runtime = replace(runtime, fabric_manager=driver.version)
    return replace(
        plan,
        driver=driver,
        runtime=runtime,
        resolved=preview.resolved,
        refusals=tuple(problems),
        text="\n".join([plan.text, *transaction.lines()]),
    )


def one_line(message: str) -> str:
    """Return a message without its line breaks and its full stop."""
    return " ".join(message.split()).rstrip(".")


def size(number: int) -> str:
    """Bytes for people."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
