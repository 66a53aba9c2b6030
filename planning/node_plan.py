"""The plan of one node: what it is, what it gets, and every setting of every role.

Made once on the controller (Ansible keeps it as the fact `preflight_plan`); a role carries out its part and
derives nothing. As JSON it has the form of schemas/node-plan.schema.json. Reading is strict: an unknown
field, a missing one or a wrong type raises validation.contract.ContractError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planning.plain import plain
from validation.model.contract import ContractError, StringEnum, decode
from validation.model.expectations import Expectation  # noqa: TC001 - from_dict resolves the types of fields

SCHEMA_VERSION = 1


class Stage(StringEnum):
    """The playbook that carries a role out."""

    PROVISION = "provision"
    TUNE = "tune"
    HARDEN = "harden"


class Kind(StringEnum):
    """What a setting is made of; module_utils/settings has a class for each."""

    REPOSITORY = "repository"
    FILE = "file"
    KEYWORD = "keyword"
    PAM = "pam"
    ACCESS = "access"
    PACKAGE = "package"
    PACKAGE_CHOICE = "package_choice"
    PIN = "pin"
    MODULE_STREAM = "module_stream"
    HOLD_VERSION = "hold_version"
    DRIVER = "driver"
    SYSCTL = "sysctl"
    MOUNT = "mount"
    UNIT = "unit"
    CONTAINER_ENGINE = "container_engine"
    GPU = "gpu"
    ACCOUNT = "account"
    FIREWALL = "firewall"
    SSHD = "sshd"
    SSHD_ALGORITHM = "sshd_algorithm"
    SSHD_PARAMETER = "sshd_parameter"


@dataclass(frozen=True)
class PlannedSetting:
    """One thing of a node that a role sets.

    `key` names it among those of its kind, `wanted` is what it shall be (None: absent). `why` is the reason
    in a sentence, `controls` the ids of data/os_controls that ask for it, `waiver` why it does less than
    they ask, `way_in` whether a mistake could lock the operator out.
    """

    kind: Kind
    key: str
    wanted: Any
    why: str
    controls: tuple[str, ...] = ()
    waiver: str | None = None
    way_in: bool = False


@dataclass(frozen=True)
class Reaction:
    """A command that is due when one of these paths changes; a path that ends in "/" stands for all below.

    It is left out where its program is not installed, or, with `unit`, while that unit does not run.
    """

    paths: tuple[str, ...]
    command: tuple[str, ...]
    unit: str | None = None


@dataclass(frozen=True)
class RoleOptions:
    """How the settings of a role are made.

    `busy_ok` allows what disturbs containers with a GPU, `rollback_after_s` is for ways in, `atomic` undoes
    what a run has made where one setting fails, and `absent` takes back what the role has ever set. Files of
    /etc/sysctl.d that sort after `sysctl_file` win, as they do at boot.
    """

    busy_ok: bool = False
    rollback_after_s: int = 120
    atomic: bool = False
    absent: bool = False
    sysctl_file: str | None = None


@dataclass(frozen=True)
class RolePlan:
    """What one role sets on a node. Only the order within a kind matters."""

    role: str
    stage: Stage
    settings: tuple[PlannedSetting, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    options: RoleOptions = field(default_factory=RoleOptions)


@dataclass(frozen=True)
class Driver:
    """The driver that is planned. `dkms` is the name of its module for DKMS, None where that builds none."""

    version: str
    package_version: str
    branch: int
    modules: str
    end_of_life: str | None = None
    dkms: str | None = None


@dataclass(frozen=True)
class PlannedGpus:
    """GPUs of one model, a key of data/gpu_models.yml."""

    model: str
    name: str
    architecture: str
    count: int


@dataclass(frozen=True)
class Pin:
    """Patterns of packages that stay at one version."""

    packages: str
    version: str


@dataclass(frozen=True)
class ModuleStream:
    """A stream of a dnf module."""

    name: str
    stream: str


@dataclass(frozen=True)
class LockedClocks:
    """Which clocks all GPUs of the node can lock."""

    graphics: bool
    memory: bool


@dataclass(frozen=True)
class Environment:
    """Thread counts for one process a GPU, and NCCL's variables."""

    omp_num_threads: int
    nccl: dict[str, Any]


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
    """What one node gets. With `problems`, none of it must be carried out.

    `gpus` is None for a node that could not be read, of which nothing is known. docs/nvidia_stack.md
    describes the fields of the stack.
    """

    schema_version: int = SCHEMA_VERSION
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = ""
    hint: str = ""
    settled: bool = False
    # The node
    system: str | None = None
    package_manager: str | None = None
    architecture: str | None = None
    gpus: tuple[PlannedGpus, ...] | None = None
    unknown_gpus: tuple[str, ...] = ()
    fabric: str = "none"
    locked_clocks: LockedClocks | None = None
    environment: Environment | None = None
    # The stack
    source: str | None = None
    stack: str = ""
    driver: Driver | None = None
    cuda: str | None = None
    torch: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    repositories: tuple[dict[str, Any], ...] = ()
    module_streams: tuple[ModuleStream, ...] = ()
    services: tuple[str, ...] = ()
    runtime: dict[str, str | None] = field(default_factory=dict)
    mok: bool = False
    # What the package manager says that it would do
    transaction: dict[str, Any] | None = None
    resolved: dict[str, str] = field(default_factory=dict)
    # What is set, relaxed and expected
    roles: tuple[RolePlan, ...] = ()
    waived: tuple[WaivedControl, ...] = ()
    expectation: Expectation | None = None

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        found: dict[str, Any] = plain(self)
        return found

    @classmethod
    def from_dict(cls, value: Any) -> NodePlan:
        """The plan from JSON values. Raises ContractError, also for a plan of another schema version."""
        plan = decode(cls, plain(value))
        if plan.schema_version != SCHEMA_VERSION:
            raise ContractError(
                f"a plan of schema version {plan.schema_version}; this program reads version {SCHEMA_VERSION}"
            )
        return plan

    def role(self, name: str) -> RolePlan:
        """The part of one role. Raises KeyError where the plan has none."""
        return {role.role: role for role in self.roles}[name]
