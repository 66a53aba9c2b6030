"""The plan of one node: what it is, what it gets, and every setting of every role.

Made once on the controller (Ansible keeps it as the fact `preflight_plan`); a role carries out its part and
derives nothing. As JSON it has the form of schemas/node-plan.schema.json. Reading is strict: an unknown
field, a missing one or a wrong type raises validation.model.contract.ContractError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from temper.plan.convert import plain
from temper.plan.model import Driver, Environment, Gpu, ModuleStream, Payload, Pin, Repository, Runtime
from temper.plan.refusals import CatalogueError, Refusal, refusal, texts
from temper.plan.tables import LockedClocks
from temper.plan.wanted import Kind, Wanted, check, read
from validation.model.contract import ContractError, StringEnum, decode, parse
from validation.model.expectations import Expectation

SCHEMA_VERSION = 2


class Stage(StringEnum):
    """The playbook that carries a role out."""

    PROVISION = "provision"
    TUNE = "tune"
    HARDEN = "harden"


@dataclass(frozen=True)
class SettingHead:
    """One thing of a node that a role sets, without what it shall be.

    `key` names it among those of its kind. `why` is the reason in a sentence, `controls` the ids of
    data/os_controls that ask for it, `waiver` why it does less than they ask, `way_in` whether a mistake
    could lock the operator out. `order` is how its values stand (data/strictness.yml): what the node has that
    is stricter stays.
    """

    kind: Kind
    key: str
    why: str
    controls: tuple[str, ...] = ()
    waiver: str | None = None
    way_in: bool = False
    order: str = "exactly"


@dataclass(frozen=True)
class PlannedSetting(SettingHead):
    """One thing of a node that a role sets. `wanted` is what it shall be (None: absent), by its kind."""

    wanted: Wanted = field(kw_only=True)

    def __post_init__(self) -> None:
        check(self.kind, self.key, self.wanted)

    @classmethod
    def from_json(cls, value: object) -> PlannedSetting:
        """Return the setting from JSON. Raises ContractError."""
        if not isinstance(value, dict) or "wanted" not in value:
            raise ContractError(f"expected a setting with what is wanted, found {str(value)[:60]}")
        head = decode(SettingHead, {name: one for name, one in value.items() if name != "wanted"})
        return cls(**vars(head), wanted=read(head.kind, head.key, value["wanted"]))


@dataclass(frozen=True)
class Reaction:
    """A command that is due when one of these paths changes; a path that ends in "/" stands for all below.

    It is left out where its program is not installed, or, with `unit`, while that unit does not run. One that
    is `live` concerns the running system alone; an image has none.
    """

    paths: tuple[str, ...]
    command: tuple[str, ...]
    unit: str | None = None
    live: bool = True


@dataclass(frozen=True)
class RoleOptions:
    """How the settings of a role are made.

    `busy_ok` allows what disturbs containers with a GPU, `rollback_after_s` is for ways in, `atomic` undoes
    what a run has made where one setting fails, and `absent` takes back what the role has ever set. Files of
    /etc/sysctl.d that sort after `sysctl_file` win, as they do at boot. What is not `live` is written,
    installed and enabled, and nothing of the running system changes: the tree of an image. An `obstacle` says
    why the node cannot have the role; a run that has it refuses before it changes anything for other roles.
    """

    busy_ok: bool = False
    rollback_after_s: int = 120
    atomic: bool = False
    absent: bool = False
    sysctl_file: str | None = None
    live: bool = True
    obstacle: str = ""


@dataclass(frozen=True)
class RolePlan:
    """What one role sets on a node. Only the order within a kind matters."""

    role: str
    stage: Stage
    settings: tuple[PlannedSetting, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    options: RoleOptions = field(default_factory=RoleOptions)


@dataclass(frozen=True)
class WaivedControl:
    """A control of data/os_controls that a node does not fulfil: why, and whose decision that is."""

    id: str
    title: str
    references: str
    reason: str
    by: str


@dataclass(frozen=True)
class NodePlan:
    """What one node gets. With `refusals`, none of it must be carried out.

    Of a node that could not be read nothing is known, not even its `architecture`.
    docs/operate/nvidia_stack.md describes the fields of the stack.
    """

    schema_version: int = SCHEMA_VERSION
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = ""
    hint: str = ""
    settled: bool = False
    # The node; `machine` are digests of what only this machine has by its own word, `host_keys` are what this
    # machine has made sure of (temper/plan/identity.py)
    machine: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()
    # Its turn among the nodes that others are reached through, which reboot last; 0 for none of them
    jump_level: int = 0
    system: str | None = None
    package_manager: str | None = None
    architecture: str | None = None
    # Whether it is the tree of an image, planned for the GPUs that the operator names
    image: bool = False
    gpus: tuple[Gpu, ...] = ()
    unknown_gpus: tuple[str, ...] = ()
    # PCI ids of GPUs for a monitor that the driver leaves alone
    undriven_gpus: tuple[str, ...] = ()
    # PCI addresses of GPUs that another driver has, for a virtual machine: they are not counted as the node's
    given_gpus: tuple[str, ...] = ()
    # Products that gpu_settings_mig names, and whether the node has them
    mig_products: dict[str, bool] = field(default_factory=dict)
    fabric: str = "none"
    locked_clocks: LockedClocks = field(default_factory=lambda: LockedClocks(graphics=False, memory=False))
    environment: Environment = field(default_factory=lambda: Environment(1, {}))
    # The stack
    source: str | None = None
    stack: str = ""
    driver: Driver | None = None
    cuda: str | None = None
    payload: Payload | None = None
    packages: dict[str, str] = field(default_factory=dict)
    present: dict[str, str] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    repositories: tuple[Repository, ...] = ()
    module_streams: tuple[ModuleStream, ...] = ()
    services: tuple[str, ...] = ()
    runtime: Runtime = field(default_factory=Runtime)
    mok: bool = False
    # Why the driver is loaded only by a reboot; empty where it is loaded without one
    reboot: str = ""
    # What the package manager says that it would do
    transaction: dict[str, Any] | None = None
    resolved: dict[str, str] = field(default_factory=dict)
    # What is set, relaxed and expected
    roles: tuple[RolePlan, ...] = ()
    waived: tuple[WaivedControl, ...] = ()
    expectation: Expectation | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values: beside the refusals `problems`, which are their sentences."""
        found = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return found | {"problems": list(self.problems)}

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the node is refused, in sentences for the operator."""
        return texts(self.refusals)

    def as_fact(self) -> dict[str, Any]:
        """As Ansible keeps it: each role's part is a text by the role's name.

        Templates would walk through thousands of values of which only the node has a use.
        """
        roles = {role.role: json.dumps(plain(role)) for role in self.roles}
        return replace(self, roles=()).as_dict() | {"roles": roles}

    @classmethod
    def from_fact(cls, fact: Mapping[str, Any]) -> NodePlan:
        """Return the plan from the fact `preflight_plan`. Raises as `from_dict` does."""
        parts = fact.get("roles")
        if not isinstance(parts, Mapping):
            raise ContractError(f"roles: expected a text for each role, found {str(parts)[:60]}")
        roles = tuple(_role_plan(str(name), str(text)) for name, text in parts.items())
        for name, role in zip(parts, roles, strict=True):
            if name != role.role:
                raise ContractError(
                    f"roles.{name}: expected the part of this role, found that of {role.role}"
                )
        waived = _waived(json.dumps(plain(fact.get("waived", []))))
        return replace(cls.from_dict({**fact, "roles": [], "waived": []}), roles=roles, waived=waived)

    @classmethod
    def from_dict(cls, value: Any) -> NodePlan:
        """Return the plan from JSON values.

        Raises ContractError, also for a plan of another schema version.
        """
        document = plain(value)
        if isinstance(document, dict):
            # They are made of the refusals, or the refusals of them where somebody has only sentences.
            said = decode(_Said, {"problems": document.pop("problems", [])}).problems
            document.setdefault("refusals", [plain(refusal("other", reason=one)) for one in said])
        plan = decode(cls, document)
        try:
            texts(plan.refusals)
        except CatalogueError as error:
            raise ContractError(f"refusals: {error}") from error
        if plan.schema_version != SCHEMA_VERSION:
            raise ContractError(
                f"a plan of schema version {plan.schema_version}; this program reads version {SCHEMA_VERSION}"
            )
        return plan

    def role(self, name: str) -> RolePlan:
        """Return the part of one role. Raises KeyError where the plan has none."""
        return {role.role: role for role in self.roles}[name]


def refused(fact: Mapping[str, Any], *refusals: Refusal) -> dict[str, Any]:
    """Return the fact of a plan with more refusals."""
    return {
        **fact,
        "refusals": [*fact.get("refusals", ()), *map(plain, refusals)],
        "problems": [*fact.get("problems", ()), *texts(refusals)],
    }


@dataclass(frozen=True)
class _Said:
    problems: tuple[str, ...]


@lru_cache(maxsize=1024)
def _role_plan(name: str, text: str) -> RolePlan:
    """Return a role's part: the same object for all nodes that have the same, which are most of a fleet."""
    return decode(RolePlan, parse(text), f"roles.{name}")


@dataclass(frozen=True)
class _Waived:
    waived: tuple[WaivedControl, ...]


@lru_cache(maxsize=1024)
def _waived(text: str) -> tuple[WaivedControl, ...]:
    """Likewise what is waived."""
    return decode(_Waived, {"waived": parse(text)}).waived
