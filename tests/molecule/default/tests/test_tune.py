"""What jobs meet: GPUs that stay awake at full clocks, and the limits and settings that NCCL needs."""

import json

import pytest
from testinfra.host import Host

CAP_SYS_RESOURCE = 24  # capabilities(7); the number is the kernel's
CLOCK_STEP_MHZ = 15  # clocks move in steps: a locked one may be off by that much


def query(host: Host, *fields: str) -> list[list[str]]:
    """Return what nvidia-smi reports, a row for each GPU."""
    rows = host.check_output(f"nvidia-smi --query-gpu={','.join(fields)} --format=csv,noheader,nounits")
    return [row.split(", ") for row in rows.splitlines()]


def test_every_gpu_is_in_persistence_mode(host: Host) -> None:
    assert {row[0] for row in query(host, "persistence_mode")} == {"Enabled"}


def test_every_gpu_runs_at_its_highest_graphics_clock(host: Host) -> None:
    clocks = query(host, "clocks.current.graphics", "clocks.max.graphics")
    assert [row for row in clocks if abs(int(row[0]) - int(row[1])) > CLOCK_STEP_MHZ] == []


def test_power_limit_is_the_default(host: Host) -> None:
    assert [row for row in query(host, "power.limit", "power.default_limit") if row[0] != row[1]] == []


@pytest.mark.parametrize("unit", ["nvidia-persistenced", "temper-gpu-settings"])
def test_unit_is_active_and_starts_at_boot(host: Host, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_nccl_settings_are_assignments_that_every_user_can_read(login: Host) -> None:
    lines = login.file("/etc/nccl.conf").content_string.splitlines()
    settings = [line for line in lines if not line.startswith("#")]
    assert settings
    assert [line for line in settings if not line.startswith("NCCL_") or "=" not in line] == []


def test_the_thread_setting_is_a_positive_number(host: Host) -> None:
    lines = host.file("/etc/temper/compute.env").content_string.splitlines()
    threads = dict(line.split("=") for line in lines if not line.startswith("#"))
    assert threads.keys() == {"OMP_NUM_THREADS"}
    assert int(threads["OMP_NUM_THREADS"]) >= 1


def test_a_login_finds_cudas_compiler_and_is_given_no_threads(login: Host) -> None:
    assert login.check_output("bash -lc 'command -v nvcc'").startswith("/usr/local/cuda/bin/")
    assert login.check_output("bash -lc 'echo ${OMP_NUM_THREADS-none}'") == "none"


def capability_to_raise_limits(host: Host) -> bool:
    """Say whether the node may raise hard limits: it cannot where the machine that runs the lab cannot."""
    capabilities = int(host.check_output("sed -n 's/^CapEff:[[:space:]]*//p' /proc/1/status"), base=16)
    return bool(capabilities >> CAP_SYS_RESOURCE & 1)


def test_a_login_may_lock_memory_and_open_many_files(host: Host, login: Host) -> None:
    if not capability_to_raise_limits(host):
        pytest.skip("the machine that runs the lab has no CAP_SYS_RESOURCE, so no node can raise a limit")
    assert login.check_output("ulimit -l; ulimit -n").split() == ["unlimited", "1048576"]


def test_a_service_may_lock_memory_and_open_many_files(host: Host) -> None:
    limits = host.check_output("systemd-run --wait --pipe --quiet sh -c 'ulimit -l; ulimit -n'").split()
    if capability_to_raise_limits(host):
        assert limits == ["unlimited", "1048576"]
    else:
        assert limits == host.check_output("ulimit -H -l; ulimit -H -n").split()


def test_shared_memory_of_a_job_survives_its_login(host: Host) -> None:
    manager = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    assert (
        json.loads(host.check_output(f"busctl --json=short get-property {manager} RemoveIPC"))["data"]
        is False
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("kernel.numa_balancing", "0"), ("net.ipv4.neigh.default.gc_thresh3", "16384")],
)
def test_kernel_parameter_is_in_effect(host: Host, key: str, value: str) -> None:
    assert host.check_output(f"sysctl --values {key}") == value
