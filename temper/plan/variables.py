"""The effective public variables of all roles, typed: what the operator asks for, every default in place.

A class for each role, with the role's variables without their prefix: `Variables.firewall.ssh_ports` is
`firewall_ssh_ports`. Types, defaults and documentation are those of roles/*/meta/argument_specs.yml.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from temper.plan.convert import build

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["present", "absent"]


@dataclass(frozen=True)
class Administrator:
    """One entry of `admin_accounts_users`."""

    name: str
    keys: tuple[str, ...] = ()
    sudo: bool = True
    groups: tuple[str, ...] = ()
    state: State = "present"


@dataclass(frozen=True)
class AdminAccounts:
    """Variables of the role admin_accounts."""

    state: State
    users: tuple[Administrator, ...]
    rollback_after_s: int


@dataclass(frozen=True)
class Compliance:
    """Variables of the role compliance. temper/compliance/waivers.py reads `waivers`, once for all nodes."""

    metrics_directory: str
    outside: bool
    outside_addresses: tuple[str, ...]
    reports_directory: str
    signing_key: str
    timeout_s: int
    validation_max_age_days: int
    waivers: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class ComputeEnvironment:
    """Variables of the role compute_environment."""

    state: State
    nccl: dict[str, Any]
    nccl_socket_ifname: str
    fleet_networks: tuple[str, ...]
    omp_num_threads: int
    profile: bool
    services: tuple[str, ...]
    slurm_task_prolog: bool
    slurm_gpus: Literal["none", "devices", "nvml"]
    slurm_cgroup: dict[str, Any]
    slurm_directory: str
    container_nccl: Literal["none", "portable", "all"]
    cuda_path: bool
    busy_ok: bool


@dataclass(frozen=True)
class Ulimits:
    """`container_engines_ulimits`: bytes or counts, -1 for no limit, None to leave a limit alone."""

    memlock: int | None = None
    stack: int | None = None
    nofile: int | None = None


@dataclass(frozen=True)
class ContainerToolkit:
    """`container_engines_toolkit`: values of its own file, None or empty to leave what is found."""

    no_cgroups: bool | None = None
    mode: Literal["", "auto", "cdi", "jit-cdi", "legacy", "csv"] = ""
    accept_envvar: bool | None = None
    accept_volume_mounts: bool | None = None


@dataclass(frozen=True)
class ContainerEngines:
    """Variables of the role container_engines."""

    state: State
    install: tuple[str, ...]
    manage: tuple[str, ...]
    exclude: tuple[str, ...]
    default_runtime: bool
    cdi: bool
    shm_size: str
    ulimits: Ulimits
    toolkit: ContainerToolkit
    busy_ok: bool


@dataclass(frozen=True)
class FirewallRule:
    """One entry of `firewall_rules`."""

    name: str
    sources: tuple[str, ...]
    ports: tuple[str, ...] = ()
    protocol: Literal["tcp", "udp", "ah", "esp", "gre", "ipip", "ospf", "sit", "vrrp"] = "tcp"


@dataclass(frozen=True)
class Firewall:
    """Variables of the role firewall. `peer_addresses` is None for the addresses of the whole fleet."""

    state: State
    disable_other: bool
    management_networks: tuple[str, ...]
    ssh_ports: tuple[int, ...]
    peer_addresses: tuple[str, ...] | None
    trusted_interfaces: tuple[str, ...]
    unchecked_tunnels: tuple[str, ...]
    services: dict[str, tuple[str, ...]]
    rules: tuple[FirewallRule, ...]
    ssh_new_per_minute: int
    ssh_connections: int
    new_per_second: int
    connections: int
    log_per_minute: int
    rollback_after_s: int
    busy_ok: bool


@dataclass(frozen=True)
class GpuSettings:
    """Variables of the role gpu_settings. Clocks: max, default, efficient, or MHz of `graphics` and `memory`.

    MIG: an index, a product's name or `all` -> profiles of its instances, or disabled.
    """

    busy_ok: bool
    clocks: Any
    power_limit_w: float | None
    power_limit_percent: float | None
    compute_mode: str | None
    ecc: bool | None
    mig: dict[str, Any] | None
    mig_change_ok: bool


@dataclass(frozen=True)
class GpuValidation:
    """Variables of the role gpu_validation."""

    required_tests: tuple[str, ...]
    plan: str
    hours: float
    storage_paths: tuple[str, ...]
    storage_floor_gb_s: float
    traces: bool
    tensorflow_python: str
    timeout_s: int
    fail_on_degraded: bool
    python: str
    torch_version: str
    torch_requirements: str
    pip_args: str
    fabric: bool
    fabric_library: str
    fabric_pairs: str
    fabric_pair_rounds: int
    fabric_floor_gb_s: float
    fabric_port: int
    reports_directory: str
    metrics_directory: str


@dataclass(frozen=True)
class Monitoring:
    """Variables of the role monitoring."""

    enabled: bool
    interval_s: int
    scrapers: tuple[str, ...]
    busy_ok: bool


@dataclass(frozen=True)
class NvidiaStack:
    """Variables of the role nvidia_stack."""

    source: Literal["nvidia", "distro"]
    name: str
    kernel_modules: Literal["auto", "open", "proprietary"]
    fabric: Literal["auto", "none", "nvswitch", "nvlink5"]
    follow_kernels: bool
    imex: bool
    graphics: bool
    cuda_repository_url: str
    cuda_key_url: str
    cuda_key_fingerprints: tuple[str, ...]
    container_repository_url: str
    container_key_url: str
    container_key_fingerprints: tuple[str, ...]
    distro_mirror_url: str
    distro_security_mirror_url: str
    distro_driver: str
    distro_cuda_toolkit: bool
    distro_container_toolkit: bool
    dcgm: bool
    dcgm_exporter: bool
    mok_certificate: str
    mok_private_key: str
    busy_ok: bool
    reboot_ok: bool
    reboot_timeout_s: int


@dataclass(frozen=True)
class Waiver:
    """One entry of `os_hardening_waivers`."""

    id: str
    reason: str


@dataclass(frozen=True)
class OsHardening:
    """Variables of the role os_hardening."""

    state: State
    profile: str
    waivers: tuple[Waiver, ...]
    banner: str
    busy_ok: bool
    upgrade_kernels: bool


@dataclass(frozen=True)
class OsTuning:
    """Variables of the role os_tuning."""

    state: State
    busy_ok: bool
    cpu_governor: str
    irqbalance: str
    network_buffer_mib: int
    nvme_read_ahead_kb: int | None
    nvme_scheduler: str
    peermem: bool
    rdma: bool
    shm: str
    memlock: str
    nofile: int
    stack_kib: int
    sysctls: dict[str, Any]
    transparent_hugepages: str
    transparent_hugepages_defrag: str


@dataclass(frozen=True)
class ImageGpu:
    """One entry of `preflight_image_gpus`: a model or a PCI id, and how many of it."""

    gpu: str
    count: int = 1


@dataclass(frozen=True)
class Preflight:
    """Variables of the role preflight."""

    image: bool
    image_gpus: tuple[ImageGpu, ...]
    image_kernel: str
    minimum_free_gib: int
    plan_file: str
    secure_boot_ok: bool
    unknown_gpu_ok: bool


@dataclass(frozen=True)
class ProfilingTools:
    """Variables of the role profiling_tools."""

    install: bool
    gpu_counters: bool
    perf_event_paranoid: int | None
    busy_ok: bool


@dataclass(frozen=True)
class PullSigner:
    """One entry of `pull_signers`; days in UTC, such as 2026-12-01, None for no limit."""

    name: str
    key: str
    valid_from: str | None = None
    valid_until: str | None = None


@dataclass(frozen=True)
class Pull:
    """Variables of the role pull. Files are the node's."""

    enabled: bool
    url: str
    branch: str
    tags: str
    inventory: str
    interval_minutes: int
    signers: tuple[PullSigner, ...]
    python: str
    repair: tuple[str, ...]
    known_hosts: tuple[str, ...]
    ssh_key: str
    ca_file: str
    report_to: str
    report_ca_file: str
    report_ssh_key: str
    report_token_file: str
    busy_ok: bool


@dataclass(frozen=True)
class SshHardening:
    """Variables of the role ssh_hardening."""

    state: State
    ports: tuple[int, ...]
    allow_users: tuple[str, ...]
    allow_groups: tuple[str, ...]
    tcp_forwarding: Literal["no", "local", "remote", "yes"]
    forwarding_groups: tuple[str, ...]
    max_auth_tries: int
    penalty_exempt_networks: tuple[str, ...]
    banner: str
    host_key_types: tuple[str, ...]
    user_ca_keys: tuple[str, ...]
    revoked_keys: tuple[str, ...]
    kex_algorithms: tuple[str, ...]
    ciphers: tuple[str, ...]
    macs: tuple[str, ...]
    accepted_matches: tuple[str, ...]
    extra_options: dict[str, Any]
    rollback_after_s: int


# Defaults that are another role's variable. The argument specs have them as templates, which nobody has
# evaluated here: a text in the place of a list is one. A list that is empty is an answer.
FALLBACKS = {
    "firewall_ssh_ports": "ssh_hardening_ports",
    "ssh_hardening_penalty_exempt_networks": "firewall_management_networks",
}


@dataclass(frozen=True)
class Variables:
    """The variables of all roles for one node, by the role's name."""

    admin_accounts: AdminAccounts
    compliance: Compliance
    compute_environment: ComputeEnvironment
    container_engines: ContainerEngines
    firewall: Firewall
    gpu_settings: GpuSettings
    gpu_validation: GpuValidation
    monitoring: Monitoring
    nvidia_stack: NvidiaStack
    os_hardening: OsHardening
    os_tuning: OsTuning
    preflight: Preflight
    profiling_tools: ProfilingTools
    pull: Pull
    ssh_hardening: SshHardening

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Variables:
        """The variables from what function role_variables returns as `values`: name -> converted value."""
        resolved = {name: values[other] for name, other in FALLBACKS.items() if isinstance(values[name], str)}
        values = {**values, **resolved}
        roles = {
            role.name: {
                name.removeprefix(f"{role.name}_"): value
                for name, value in values.items()
                if name.startswith(f"{role.name}_")
            }
            for role in fields(cls)
        }
        return build(cls, roles, "variables")
