"""What nvidia_stack, container_engines and profiling_tools set."""

from temper.plan.convert import plain
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_nodes import B200, gpus, node, system
from tests.unit.planning_roles.plans import (
    CERTIFICATE,
    bookworm,
    contents,
    enterprise,
    planned,
    trixie,
    wanted,
    whole_plan,
)

GATE = """\
# Managed by Temper.
[Unit]
Wants=nvidia-persistenced.service
After=nvidia-persistenced.service
"""
DROP_IN = "/etc/systemd/system/{}.service.d/temper.conf"
SOURCES = "/etc/apt/sources.list.d"


@each(bookworm, trixie)
def test_the_stack_is_one_transaction_of_the_plan(facts: dict[str, object]) -> None:
    plan = whole_plan(facts)
    stack = plan.role("nvidia_stack")
    assert plan.driver
    assert list(wanted(stack, Kind.REPOSITORY)) == ["nvidia-cuda", "nvidia-container-toolkit"]
    packages = wanted(stack, Kind.PACKAGE)
    assert packages["nvidia-driver-cuda"] == {"version": plan.driver.package_version, "held": True}
    assert packages["linux-headers-amd64"] == {"version": "", "held": False}
    assert packages.keys() == {*plan.packages, *plan.present}
    assert wanted(stack, Kind.PIN)["libnccl*"] == {"version": plan.packages["libnccl2"]}
    assert wanted(stack, Kind.HOLD_VERSION) == {plan.driver.package_version: True}
    assert wanted(stack, Kind.DRIVER) == {
        "nvidia": {
            "version": plan.driver.version,
            "dkms": "nvidia",
            "package_manager": "apt",
            "mok_certificate": "",
            "runtime": plain(plan.runtime),
        }
    }


def test_sources_of_apt_that_the_plan_does_not_have_must_not_exist() -> None:
    files = contents(planned("nvidia_stack"))
    absent = {path for path, content in files.items() if path.startswith(SOURCES) and content is None}
    assert f"{SOURCES}/cuda-debian12-x86_64.list" in absent
    assert f"{SOURCES}/temper-debian-security.sources" in absent
    assert f"{SOURCES}/temper-nvidia-cuda.sources" not in files


def test_nouveau_stays_away_from_the_next_boot_on() -> None:
    stack = planned("nvidia_stack")
    path = "/etc/modprobe.d/temper-nouveau.conf"
    assert contents(stack)[path] == (
        "# Managed by Temper. nouveau, or nova that follows it, and the NVIDIA driver cannot share a GPU.\n"
        "blacklist nouveau\nblacklist nova_core\nblacklist nova_drm\noptions nouveau modeset=0\n"
    )
    (reaction,) = [one for one in stack.reactions if one.paths == (path,)]
    assert "update-initramfs -u -k all" in reaction.command[2]
    assert "dracut --force --regenerate-all" in reaction.command[2]


def test_the_module_that_nvlink_5_switches_need_is_loaded_now_and_at_every_boot() -> None:
    path = "/etc/modules-load.d/temper-nvlink5.conf"
    stack = planned("nvidia_stack", node(pci=gpus(*[B200] * 8), nvlink_switch_managed=True))
    assert contents(stack)[path] == "# Managed by Temper.\nib_umad\n"
    (command,) = [one.command for one in stack.reactions if one.paths == (path,)]
    assert "modprobe ib_umad" in command[-1]
    assert contents(planned("nvidia_stack"))[path] is None


def test_services_start_only_where_their_hardware_is() -> None:
    stack = planned("nvidia_stack", nvidia_stack_dcgm=True)
    files = contents(stack)
    switches = "ConditionDirectoryNotEmpty=/proc/driver/nvidia-nvswitch/devices\n"
    assert files[DROP_IN.format("nvidia-fabricmanager")] == GATE + switches
    loaded = "ConditionPathExists=/proc/driver/nvidia/version\n"
    assert files[DROP_IN.format("nvidia-dcgm")] == GATE + loaded
    assert files[DROP_IN.format("nvidia-imex")] is None
    assert list(wanted(stack, Kind.UNIT)) == [
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-dcgm.service",
    ]
    assert contents(planned("nvidia_stack", node()))[DROP_IN.format("nvidia-fabricmanager")] is None


def test_pins_keep_what_the_stack_depends_on() -> None:
    plan = whole_plan()
    text = contents(plan.role("nvidia_stack"))["/etc/apt/preferences.d/temper-nvidia"] or ""
    assert text.startswith("# Managed by Temper. What the stack depends on stays")
    pin = plan.pins[-1]
    assert text.endswith(f"\nPackage: {pin.packages}\nPin: version {pin.version}\nPin-Priority: 1001\n")
    assert text.count("\n\nPackage: ") == len(plan.pins)


def test_the_private_key_is_no_part_of_the_plan() -> None:
    stack = planned("nvidia_stack", mok=True, nvidia_stack_mok_private_key="/home/ops/mok.key")
    key, certificate = "/var/lib/temper/module-signing/mok.key", "/var/lib/temper/module-signing/mok.der"
    files = wanted(stack, Kind.FILE)
    assert files[key] == {"content": None, "mode": "0600", "secret": True, "source": "/home/ops/mok.key"}
    assert files[certificate] == {"content": CERTIFICATE, "mode": "0644", "encoding": "der"}
    assert contents(stack)["/etc/dkms/framework.conf.d/temper.conf"] == (
        "# Managed by Temper. The key pair that DKMS signs modules with.\n"
        f'mok_signing_key="{key}"\nmok_certificate="{certificate}"\n'
    )
    assert wanted(stack, Kind.DRIVER)["nvidia"]["mok_certificate"] == CERTIFICATE
    unsigned = wanted(planned("nvidia_stack"), Kind.FILE)
    # The key that goes is a secret like the one that comes: neither shown nor recorded.
    assert unsigned[key] == {"content": None, "mode": "0600", "secret": True}
    assert unsigned[certificate] is None
    assert unsigned["/etc/dkms/framework.conf.d/temper.conf"] is None


def test_dnf_has_streams_and_nothing_of_apt() -> None:
    stack = planned("nvidia_stack", enterprise)
    assert wanted(stack, Kind.MODULE_STREAM) == {
        "nvidia-driver": {"name": "nvidia-driver", "stream": "580-open"}
    }
    assert not [path for path in contents(stack) if path.startswith(("/etc/apt", "/etc/needrestart"))]
    assert wanted(stack, Kind.DRIVER)["nvidia"]["package_manager"] == "dnf"


def test_without_a_driver_there_is_nothing_to_set() -> None:
    assert planned("nvidia_stack", node(os=bookworm["os"] | {"id": "plan9"})).settings == ()


def test_engines_get_the_gpus_as_the_operator_wishes() -> None:
    engines = planned(
        "container_engines",
        container_engines_ulimits={"memlock": -1},
        container_engines_toolkit={"mode": "auto", "accept_envvar": False},
    )
    assert wanted(engines, Kind.CONTAINER_ENGINE) == {
        "engines": [],
        "exclude": [],
        "default_runtime": False,
        "cdi": True,
        "shm_size": "1G",
        "ulimits": {"memlock": -1},
        "toolkit": {"mode": "auto", "accept_envvar": False},
        "toolkit_expected": True,
    }
    assert wanted(engines, Kind.PACKAGE) == {}


@each(
    (bookworm, "docker.io", ["docker.io"]),
    (trixie, "docker.io", ["docker.io", "docker-cli"]),
    (system("ubuntu", "24.04"), "docker.io", ["docker.io"]),
    (trixie, "podman", ["podman"]),
)
def test_docker_comes_with_its_command(facts: dict[str, object], engine: str, packages: list[str]) -> None:
    engines = planned("container_engines", facts, container_engines_install=[engine])
    assert list(wanted(engines, Kind.PACKAGE)) == packages


def test_profilers_come_only_where_they_are_wanted() -> None:
    without = planned("profiling_tools")
    assert without.settings == ()
    # Options of the module that a former run has set go, from the initramfs too.
    assert without.reactions == planned("profiling_tools", profiling_tools_install=True).reactions


@each(
    (bookworm, "nvidia", ["cuda-nsight-systems-13-0", "cuda-nsight-compute-13-0", "linux-perf"]),
    (bookworm, "distro", ["nsight-systems", "nsight-compute", "linux-perf"]),
    (enterprise, "nvidia", ["cuda-nsight-systems-13-0", "cuda-nsight-compute-13-0", "perf"]),
)
def test_profilers_have_the_names_of_their_source(
    facts: dict[str, object], source: str, packages: list[str]
) -> None:
    tools = planned("profiling_tools", facts, profiling_tools_install=True, nvidia_stack_source=source)
    assert list(wanted(tools, Kind.PACKAGE)) == [*packages, "atop", "sysstat"]


def test_profilers_record_and_counters_are_for_whom_the_operator_says() -> None:
    closed = planned("profiling_tools", profiling_tools_install=True)
    assert contents(closed) == {
        "/etc/default/sysstat": '# Managed by Temper.\nENABLED="true"\n',
        "/etc/modprobe.d/temper-profiling.conf": None,
        "/etc/sysctl.d/96-temper-profiling.conf": None,
    }
    assert wanted(closed, Kind.SYSCTL) == {}
    assert list(wanted(closed, Kind.UNIT)) == [
        "sysstat.service",
        "sysstat-collect.timer",
        "sysstat-summary.timer",
        "atop.service",
    ]
    opened = planned(
        "profiling_tools",
        profiling_tools_install=True,
        profiling_tools_gpu_counters=True,
        profiling_tools_perf_event_paranoid=1,
    )
    assert contents(opened)["/etc/modprobe.d/temper-profiling.conf"] == (
        "# Managed by Temper. Users without privileges may read the GPU's performance counters.\n"
        "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n"
    )
    assert contents(opened)["/etc/sysctl.d/96-temper-profiling.conf"] == (
        "# Managed by Temper.\nkernel.perf_event_paranoid = 1\n"
    )
    assert wanted(opened, Kind.SYSCTL) == {"kernel.perf_event_paranoid": "1"}
    (reaction,) = opened.reactions
    assert reaction.paths == ("/etc/modprobe.d/temper-profiling.conf",)
    other = planned("nvidia_stack").reactions[0]
    assert reaction.command == other.command  # on any distribution
