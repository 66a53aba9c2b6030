"""The effective public variables of all roles, typed: what the operator asks for, every default in place.

A class for each role, with the role's variables without their prefix: `Variables.firewall.ssh_ports` is
`firewall_ssh_ports`. Made by `make docs` from roles/*/meta/argument_specs.yml: change those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class AdminAccountsUser:
    """One entry of `admin_accounts_users`."""

    name: str
    keys: tuple[str, ...] = ()
    sudo: bool = True
    groups: tuple[str, ...] = ()
    state: Literal["present", "absent"] = "present"


@dataclass(frozen=True)
class AdminAccounts:
    """Variables of the role admin_accounts."""

    state: Literal["present", "absent"]
    users: tuple[AdminAccountsUser, ...]
    rollback_after_s: int


@dataclass(frozen=True)
class ComplianceWaiver:
    """One entry of `compliance_waivers`."""

    control: str
    reason: str
    owner: str
    approver: str
    ticket: str
    expires: Any
    valid_from: Any = None
    nodes: tuple[str, ...] = ()
    compensating: str = ""


@dataclass(frozen=True)
class Compliance:
    """Variables of the role compliance."""

    metrics_directory: str
    outside: bool
    outside_addresses: tuple[str, ...]
    reports_directory: str
    signing_key: str
    timeout_s: int
    validation_max_age_days: int
    waivers: tuple[ComplianceWaiver, ...]


@dataclass(frozen=True)
class ComputeEnvironment:
    """Variables of the role compute_environment."""

    state: Literal["present", "absent"]
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
class ContainerEnginesUlimits:
    """The content of `container_engines_ulimits`."""

    memlock: int | None = None
    stack: int | None = None
    nofile: int | None = None


@dataclass(frozen=True)
class ContainerEnginesToolkit:
    """The content of `container_engines_toolkit`."""

    no_cgroups: bool | None = None
    mode: Literal["auto", "cdi", "jit-cdi", "legacy", "csv"] | None = None
    accept_envvar: bool | None = None
    accept_volume_mounts: bool | None = None


@dataclass(frozen=True)
class ContainerEngines:
    """Variables of the role container_engines."""

    state: Literal["present", "absent"]
    install: tuple[str, ...]
    manage: tuple[str, ...]
    exclude: tuple[str, ...]
    default_runtime: bool
    cdi: bool
    shm_size: str
    ulimits: ContainerEnginesUlimits
    toolkit: ContainerEnginesToolkit
    busy_ok: bool


@dataclass(frozen=True)
class FirewallRule:
    """One entry of `firewall_rules`."""

    name: str
    sources: tuple[str, ...]
    protocol: Literal["tcp", "udp", "ah", "esp", "gre", "ipip", "ospf", "sit", "vrrp"] = "tcp"
    ports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Firewall:
    """Variables of the role firewall."""

    state: Literal["present", "absent"]
    disable_other: bool
    management_networks: tuple[str, ...]
    ssh_ports: tuple[int, ...]
    peer_addresses: tuple[str, ...] | None
    trusted_interfaces: tuple[str, ...]
    unchecked_tunnels: tuple[str, ...]
    services: dict[str, Any]
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
    """Variables of the role gpu_settings."""

    state: Literal["present", "absent"]
    busy_ok: bool
    clocks: Any
    compute_mode: str | None
    ecc: bool | None
    mig: dict[str, Any] | None
    mig_change_ok: bool
    power_limit_percent: float | None
    power_limit_w: float | None


@dataclass(frozen=True)
class GpuValidation:
    """Variables of the role gpu_validation."""

    required_tests: tuple[str, ...]
    plan: Literal["quick", "standard", "burn-in", "corruption"]
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
    fabric_library: Literal["nccl", "gloo"]
    fabric_pairs: Literal["auto", "always", "never"]
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

    state: Literal["present", "absent"]
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
class OsHardeningWaiver:
    """One entry of `os_hardening_waivers`."""

    id: str
    reason: str


@dataclass(frozen=True)
class OsHardening:
    """Variables of the role os_hardening."""

    state: Literal["present", "absent"]
    profile: Literal[
        "gpu",
        "cis-level1",
        "cis-level2",
        "anssi-intermediary",
        "anssi-enhanced",
        "anssi-high",
        "stig",
    ]
    waivers: tuple[OsHardeningWaiver, ...]
    banner: str
    busy_ok: bool
    upgrade_kernels: bool


@dataclass(frozen=True)
class OsTuning:
    """Variables of the role os_tuning."""

    state: Literal["present", "absent"]
    busy_ok: bool
    cpu_governor: Literal["auto", "keep", "performance", "powersave", "schedutil", "ondemand", "conservative"]
    irqbalance: Literal["keep", "running", "stopped"]
    memlock: str
    network_buffer_mib: int
    nofile: int
    nvme_read_ahead_kb: int | None
    nvme_scheduler: Literal["keep", "none", "mq-deadline", "kyber", "bfq"]
    peermem: bool
    rdma: bool
    shm: str
    stack_kib: int
    sysctls: dict[str, Any]
    transparent_hugepages: Literal["keep", "always", "madvise", "never"]
    transparent_hugepages_defrag: Literal["keep", "always", "defer", "defer+madvise", "madvise", "never"]


@dataclass(frozen=True)
class PreflightImageGpu:
    """One entry of `preflight_image_gpus`."""

    gpu: str
    count: int = 1


@dataclass(frozen=True)
class Preflight:
    """Variables of the role preflight."""

    image: bool
    image_gpus: tuple[PreflightImageGpu, ...]
    image_kernel: str
    minimum_free_gib: int
    plan_file: str
    secure_boot_ok: bool
    unknown_gpu_ok: bool


@dataclass(frozen=True)
class ProfilingTools:
    """Variables of the role profiling_tools."""

    install: bool
    busy_ok: bool
    gpu_counters: bool
    perf_event_paranoid: int | None


@dataclass(frozen=True)
class PullSigner:
    """One entry of `pull_signers`."""

    name: str
    key: str
    valid_from: str | None = None
    valid_until: str | None = None


@dataclass(frozen=True)
class Pull:
    """Variables of the role pull."""

    enabled: bool
    url: str
    branch: str
    tags: str
    inventory: str
    interval_minutes: Literal[15, 30, 60, 120, 180, 240, 360, 720, 1440]
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

    state: Literal["present", "absent"]
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
