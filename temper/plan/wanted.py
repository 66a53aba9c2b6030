"""What a setting is to be: a type for each kind, and for each parameter of what is made as a whole.

The form in JSON is what module_utils/temper/settings reads on the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeAlias, TypedDict, cast, get_type_hints

from temper.plan.convert import plain
from temper.plan.model import ModuleStream, Repository, Runtime
from temper.plan.tables import LockedClocks
from temper.plan.variables import FirewallRule
from validation.model.contract import ContractError, StringEnum, decode


class Kind(StringEnum):
    """What a setting is made of; module_utils/temper/settings has a class for each."""

    REPOSITORY = "repository"
    FILE = "file"
    KEYWORD = "keyword"
    PAM = "pam"
    AUTHSELECT = "authselect"
    ACCESS = "access"
    PACKAGE = "package"
    PACKAGE_CHOICE = "package_choice"
    PIN = "pin"
    MODULE_STREAM = "module_stream"
    HOLD_VERSION = "hold_version"
    DRIVER = "driver"
    SYSCTL = "sysctl"
    SYSFS = "sysfs"
    MOUNT = "mount"
    TMPFS = "tmpfs"
    UNIT = "unit"
    CONTAINER_ENGINE = "container_engine"
    GPU = "gpu"
    ACCOUNT = "account"
    FIREWALL = "firewall"
    SSHD = "sshd"
    SSHD_ALGORITHM = "sshd_algorithm"
    SSHD_PARAMETER = "sshd_parameter"


@dataclass(frozen=True)
class FileWanted:
    """A whole file; without content there must be none, and what is None is left out.

    `encoding` `der` has its content as PEM. Only machines of one architecture (`machine`) get it, if any is
    named. A `secret` file is not shown, and its content travels from `source`, a file of the controller.
    `orders` are those of the keys in it.
    """

    content: str | None = None
    mode: str = "0644"
    validate: tuple[str, ...] | None = None
    orders: dict[str, str] | None = None
    encoding: str | None = None
    machine: str | None = None
    secret: bool | None = None
    source: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what is said, as plain JSON values."""
        found = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None or name == "content"}


@dataclass(frozen=True)
class PamWanted:
    """Words of a profile of pam-auth-update, in one of PAM's stacks."""

    stack: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class AccessWanted:
    """The most that a path may allow, and the groups that it may belong to."""

    mode: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class PackageWanted:
    """A package, of any version where none is named."""

    version: str
    held: bool


@dataclass(frozen=True)
class ChoiceWanted:
    """Alternative packages: one is enough. If none is installed, the first is installed."""

    any: tuple[str, ...]


@dataclass(frozen=True)
class PinWanted:
    """The version that the package manager may choose."""

    version: str


@dataclass(frozen=True)
class DriverWanted:
    """The driver that must be loaded, and built for every kernel; `kernel` is named in an image alone."""

    version: str
    dkms: str
    package_manager: str | None
    mok_certificate: str
    runtime: Runtime
    kernel: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what is said, as plain JSON values."""
        found = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        if self.kernel is None:
            del found["kernel"]
        return found


@dataclass(frozen=True)
class MountWanted:
    """Options of a mount point, which is made one where it is none (`bind`)."""

    options: tuple[str, ...]
    bind: bool


@dataclass(frozen=True)
class UnitWanted:
    """A unit that runs and is enabled, or neither.

    It is left alone where one of `unless` is there, and restarted when a file of `restart_on` changes.
    """

    on: bool
    made_here: bool = False
    unless: tuple[str, ...] = ()
    restart_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class AccountWanted:
    """An administrator's account."""

    keys: tuple[str, ...]
    sudo: bool
    groups: tuple[str, ...]
    state: str


#: A value of a keyword of sshd_config.
KeywordValue = bool | int | str | tuple[bool | int | str, ...]


@dataclass(frozen=True)
class KeywordWanted:
    """A keyword of sshd_config, within a Match block or outside; `if_known`: where this sshd knows it."""

    value: KeywordValue
    if_known: bool
    block: str | None


class FirewallParameters(TypedDict):
    """The firewall, which is made as a whole."""

    disable_other: bool
    management_networks: tuple[str, ...]
    ssh_ports: tuple[int, ...]
    peers: tuple[str, ...] | None
    unknown_peers: tuple[str, ...]
    trusted_interfaces: tuple[str, ...]
    unchecked_tunnels: tuple[str, ...]
    services: dict[str, tuple[str, ...]]
    rules: tuple[FirewallRule, ...]
    ssh_new_per_minute: int
    ssh_connections: int
    new_per_second: int
    connections: int
    log_per_minute: int


class EngineChoice(TypedDict):
    """Which container engines are set up."""

    engines: tuple[str, ...]
    exclude: tuple[str, ...]


class EngineParameters(TypedDict):
    """What the container engines get; a limit or an option of the toolkit that is not named is left alone."""

    default_runtime: bool
    cdi: bool
    shm_size: str
    ulimits: dict[str, int]
    toolkit: dict[str, bool | str]
    toolkit_expected: bool


#: Clocks by a word, or in MHz; the profiles of a GPU's instances, or that it has none.
Clocks = str | dict[str, int]
Layout = str | tuple[str, ...]


class GpuParameters(TypedDict, total=False):
    """The settings of the GPUs; what is not named is left alone."""

    clocks: Clocks
    power_limit_w: int | float | None
    locked_clocks: LockedClocks
    power_limit_percent: int | float
    compute_mode: str
    ecc: bool
    mig: dict[str, Layout]
    mig_change_ok: bool


class SshdParameters(TypedDict):
    """What sshd is made with beside keywords and algorithms."""

    host_key_types: tuple[str, ...]
    minimum_modulus_bits: int
    user_ca_keys: tuple[str, ...]
    revoked_keys: tuple[str, ...]
    overrides: dict[str, KeywordValue]
    accepted_matches: tuple[str, ...]
    forwarding_decided: bool


class SshdBanner(TypedDict):
    """The text shown before a login."""

    banner: str


#: A value of one of these parameters.
Parameter: TypeAlias = bool | int | float | str | tuple[object, ...] | dict[str, object] | LockedClocks | None
Wanted: TypeAlias = (
    Repository
    | FileWanted
    | PamWanted
    | AccessWanted
    | PackageWanted
    | ChoiceWanted
    | PinWanted
    | ModuleStream
    | DriverWanted
    | MountWanted
    | UnitWanted
    | AccountWanted
    | KeywordWanted
    | Parameter
)
#: The type of what is wanted, by kind;
TYPES: Mapping[Kind, Any] = {
    Kind.REPOSITORY: Repository,
    Kind.FILE: FileWanted,
    Kind.KEYWORD: str,
    Kind.PAM: PamWanted,
    Kind.AUTHSELECT: bool,
    Kind.ACCESS: AccessWanted,
    Kind.PACKAGE: PackageWanted,
    Kind.PACKAGE_CHOICE: ChoiceWanted,
    Kind.PIN: PinWanted,
    Kind.MODULE_STREAM: ModuleStream,
    Kind.HOLD_VERSION: bool,
    Kind.DRIVER: DriverWanted,
    Kind.SYSCTL: str,
    Kind.SYSFS: str,
    Kind.MOUNT: MountWanted,
    Kind.TMPFS: str,
    Kind.UNIT: UnitWanted,
    Kind.ACCOUNT: AccountWanted,
    Kind.SSHD: KeywordWanted,
}
#: and of a parameter of what is made as a whole, by its key.
PARAMETERS: Mapping[Kind, tuple[type, ...]] = {
    Kind.CONTAINER_ENGINE: (EngineChoice, EngineParameters),
    Kind.GPU: (GpuParameters,),
    Kind.FIREWALL: (FirewallParameters,),
    Kind.SSHD_PARAMETER: (SshdParameters, SshdBanner),
}
ALGORITHMS = tuple[str, ...]


@cache
def parameters_of(kind: Kind) -> Mapping[str, object]:
    """Return the types of a kind's parameters by their keys; empty for a kind that has none."""
    return {key: hint for one in PARAMETERS.get(kind, ()) for key, hint in get_type_hints(one).items()}


def type_of(kind: Kind, key: str) -> object:
    """Return the type of what is wanted of a setting.

    Raises KeyError where the kind has no such parameter.
    """
    if kind is Kind.SSHD_ALGORITHM:
        return ALGORITHMS
    return TYPES[kind] if kind in TYPES else parameters_of(kind)[key]


def check(kind: Kind, key: str, wanted: Wanted) -> None:
    """Refuse what is not of the kind's type. Raises TypeError: a fault of this program."""
    expected = TYPES.get(kind)
    if wanted is not None and expected is not None and not isinstance(wanted, expected):
        raise TypeError(f"{kind}:{key}: expected {expected.__name__}, found {type(wanted).__name__}")
    if expected is None and kind in PARAMETERS and key not in parameters_of(kind):
        raise TypeError(f"{kind}:{key}: no such parameter")


def read(kind: Kind, key: str, value: object) -> Wanted:
    """Return what is wanted, from JSON. Raises ContractError."""
    if value is None:
        return None
    try:
        expected = type_of(kind, key)
    except KeyError as error:
        raise ContractError(f"{kind}:{key[:60]}: no such parameter") from error
    return cast("Wanted", decode(cast("type", expected), value, f"{kind}:{key[:60]}"))
