"""What passes between the functions of this package: what a source answers, and parts of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from temper.plan.convert import plain

if TYPE_CHECKING:
    from temper.plan.refusals import Refusal


@dataclass(frozen=True)
class Gpu:
    """GPUs of one model in a node. `model` is a key in the tables: of what they are, or are planned like."""

    model: str
    name: str
    architecture: str
    count: int


@dataclass(frozen=True)
class Driver:
    """A driver and the flavour of its kernel modules: `open` or `proprietary`."""

    version: str
    package_version: str
    branch: int
    modules: str
    end_of_life: str | None
    dkms: str


@dataclass(frozen=True)
class Repository:
    """A repository whose signing keys are pinned; None where an option is left out."""

    name: str
    kind: str
    uri: str
    suite: str | None = None
    components: tuple[str, ...] | None = None
    signed_by: str | None = None
    key_url: str | None = None
    fingerprints: tuple[str, ...] | None = None
    signed: str | None = None
    exclude: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the options that are given."""
        options = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Pin:
    """The version that the package manager may choose for packages of these names (shell patterns)."""

    packages: str
    version: str


@dataclass(frozen=True)
class ModuleStream:
    """A stream of a module of Enterprise Linux."""

    name: str
    stream: str


@dataclass(frozen=True)
class Runtime:
    """Versions that libraries and daemons themselves must report; None where there is nothing to ask."""

    cudnn: str | None = None
    nccl: str | None = None
    fabric_manager: str | None = None
    cuda_driver: str | None = None


@dataclass(frozen=True)
class Payload:
    """What runs the payload: torch, and the version of its Python, empty where nobody can tell.

    Where there is no environment yet, `interpreter` makes one, once `packages` are installed; else it is
    empty. `requirements` is the file with the hashes of torch and of all that comes with it, empty where
    there is none.
    """

    torch: str
    python: str = ""
    interpreter: str = ""
    packages: tuple[str, ...] = ()
    requirements: str = ""


@dataclass(frozen=True)
class FleetNetworks:
    """The networks that join the fleet's nodes, in CIDR notation.

    `wanted` are those of the inventory, `reached` those in which the node has an interface that works, `used`
    is that of NCCL's interface: empty where the inventory names one in none of them, or more than one.
    """

    wanted: tuple[str, ...]
    reached: tuple[str, ...]
    used: str


@dataclass(frozen=True)
class Environment:
    """Thread counts and NCCL's settings; `why` this interface, where the fleet's networks are given."""

    omp_num_threads: int
    nccl: dict[str, str]
    why: str = ""
    networks: FleetNetworks | None = None


@dataclass(frozen=True)
class Target:
    """What the controller knows of a node; without `today`, no end of support is judged."""

    address: str = ""
    user: str = ""  # empty where nobody names the account
    today: str = ""  # "2026-11-21"
    mok_sha256: str = ""  # of the operator's certificate for Secure Boot
    port: str = ""  # of its sshd; empty where nobody names it
    now_s: float = 0.0  # by the controller's clock as the node answered; 0 where nobody compares

    @classmethod
    def from_dict(cls, known: Mapping[str, Any], mok_sha256: str = "") -> Target:
        """Return the target of a node from what preflight's `known` says of it."""
        port = str(known.get("port") or "")
        now_s = float(known.get("now_s", 0))
        return cls(known["address"], known["user"], known["today"], mok_sha256, port, now_s)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a source answers: its part of the plan. With refusals, the rest must not be carried out.

    docs/operate/nvidia_stack.md explains the fields.
    """

    stack: str
    driver: Driver | None = None
    cuda: str | None = None
    torch: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    present: dict[str, str] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    repositories: tuple[Repository, ...] = ()
    module_streams: tuple[ModuleStream, ...] = ()
    services: tuple[str, ...] = ()
    runtime: Runtime = Runtime()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    hint: str = ""  # what the operator should know where the package manager cannot carry the plan out
