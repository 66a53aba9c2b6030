"""What os_tuning sets, by what the operator wants and what the node has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from temper.plan.node_plan import Reaction
from temper.plan.role_variables import role_variables
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.planning_nodes import node, system
from tests.unit.planning_nodes import plan as bare_plan
from tests.unit.planning_roles.plans import HGX, contents, enterprise, planned, wanted, whole_plan
from tests.unit.tables import specs
from tools.bare_node import bare_node

ROLE = "os_tuning"
TMPFILES = "/etc/tmpfiles.d/temper-tuning.conf"
PEERMEM = "/etc/modules-load.d/temper-peermem.conf"
IRQBALANCE = "irqbalance.service"
RULES = "/etc/udev/rules.d/90-temper-nvme.rules"
UNIT = "/etc/systemd/system/temper-os-tuning.service"
GOVERNORS = "devices/system/cpu/cpufreq/policy*/scaling_governor"
HUGEPAGES = "kernel/mm/transparent_hugepage"
NOTHING: dict[str, Any] = {name: type(value)() for name, value in bare_node()["tunables"].items()}


def tuned(**changes: Any) -> dict[str, Any]:
    """A node with these tunables and no others."""
    return node(pci=HGX, tunables={**bare_node()["tunables"], **changes})


def test_limits_are_the_same_for_logins_and_services() -> None:
    files = contents(planned("os_tuning", os_tuning_memlock="65536", os_tuning_busy_ok=True))
    assert files["/etc/security/limits.d/90-temper.conf"] == (
        "# Managed by Temper.\n"
        "* - memlock 65536\n* - nofile 1048576\n* - stack 8192\n"
        "root - memlock 65536\nroot - nofile 1048576\nroot - stack 8192\n"
    )
    assert files["/etc/systemd/system.conf.d/90-temper.conf"] == (
        "# Managed by Temper. Limits of logins do not reach services.\n"
        "[Manager]\nDefaultLimitMEMLOCK=65536K\nDefaultLimitNOFILE=1048576\n"
    )
    unlimited = contents(planned("os_tuning"))["/etc/systemd/system.conf.d/90-temper.conf"] or ""
    assert "DefaultLimitMEMLOCK=infinity\n" in unlimited


@each(
    (1048576, {}, False),
    (1048577, {}, True),
    (2097152, {"fs.nr_open": 1048576}, True),
    (2097152, {"fs.nr_open": "many"}, True),
    (2097152, {"fs.nr_open": "2097152"}, False),
)
def test_a_limit_of_files_with_which_nobody_could_log_in_is_refused(
    nofile: int, sysctls: dict[str, Any], refused: bool
) -> None:
    facts = tuned(nr_open=1048576)
    problems = bare_plan(facts, os_tuning_nofile=nofile, os_tuning_sysctls=sysctls)["problems"]
    assert bool(problems) is refused
    assert all("os_tuning_sysctls" in problem and str(nofile) in problem for problem in problems)


@each(
    ("nofile", 0, "1024 or more"),
    ("nofile", -1, "1024 or more"),
    ("stack_kib", 8, "1024 or more"),
    ("stack_kib", -1, "1024 or more"),
    ("memlock", "64G", "'64G'"),
    ("memlock", "infinity", "unlimited"),
    ("sysctls", {"kernel.numa_balancing": False}, "write 0"),
    ("sysctls", {"vm.swappiness": "1\nkernel.panic = 1"}, "vm.swappiness"),
    ("sysctls", {"vm.swappiness": None}, "vm.swappiness"),
    ("sysctls", {"vm swappiness": 1}, "vm swappiness"),
    ("irqbalance", "off", "stopped"),
    ("cpu_governor", "turbo", "performance"),
    ("transparent_hugepages", "sometimes", "madvise"),
    ("shm", "101%", "1% to 100%"),
    ("shm", "0%", "1% to 100%"),
    ("shm", "half", "such as 75%"),
    ("shm", "0G", "above 0"),
    ("network_buffer_mib", 2048, "2047"),
    ("network_buffer_mib", -1, "2047"),
    ("nvme_read_ahead_kb", -1, "65536"),
    ("nvme_read_ahead_kb", 130, "steps of 4"),
    ("nvme_scheduler", "cfq", "mq-deadline"),
)
def test_a_value_that_nobody_could_use_is_refused_before_anything_is_planned(
    name: str, value: object, words: str
) -> None:
    (problem,) = role_variables({f"os_tuning_{name}": value}, specs())["problems"]
    assert problem.startswith(f"os_tuning_{name}")
    assert words in problem


def test_parameters_are_in_effect_now_and_at_every_boot() -> None:
    found = planned("os_tuning", enterprise, os_tuning_sysctls={"vm.b": "1  2", "kernel.a": 3})
    assert wanted(found, Kind.SYSCTL) == {"vm.b": "1 2", "kernel.a": "3"}
    assert contents(found)["/etc/sysctl.d/95-temper-tuning.conf"] == (
        "# Managed by Temper.\nkernel.a = 3\nvm.b = 1  2\n"
    )


def test_what_allows_many_files_is_there_before_the_limit_that_needs_it() -> None:
    paths = list(contents(planned(ROLE, os_tuning_sysctls={"fs.nr_open": 2097152})))
    assert paths.index("/etc/sysctl.d/95-temper-tuning.conf") < paths.index(
        "/etc/security/limits.d/90-temper.conf"
    )


def test_systemd_and_logind_are_told_of_their_files() -> None:
    found = planned("os_tuning", os_tuning_busy_ok=True)
    assert found.reactions[:2] == (
        Reaction(("/etc/systemd/system.conf.d/90-temper.conf",), ("systemctl", "daemon-reexec")),
        Reaction(
            ("/etc/systemd/logind.conf.d/90-temper.conf",),
            ("systemctl", "kill", "--signal=HUP", "systemd-logind.service"),
        ),
    )
    assert contents(found)["/etc/systemd/logind.conf.d/90-temper.conf"] == (
        "# Managed by Temper. Else the shared memory of a user's job goes when the login ends.\n"
        "[Login]\nRemoveIPC=no\n"
    )
    assert found.options.busy_ok


# ---------------------------------------------------------------- values of the kernel in /sys


def test_cpus_run_at_full_clock_by_default_and_huge_pages_are_the_distributions() -> None:
    assert wanted(planned(ROLE), Kind.SYSFS) == {GOVERNORS: "performance"}


def test_values_are_in_effect_now_and_at_every_boot() -> None:
    found = planned(
        ROLE,
        os_tuning_cpu_governor="schedutil",
        os_tuning_transparent_hugepages="madvise",
        os_tuning_transparent_hugepages_defrag="defer+madvise",
    )
    values = {
        GOVERNORS: "schedutil",
        f"{HUGEPAGES}/enabled": "madvise",
        f"{HUGEPAGES}/defrag": "defer+madvise",
    }
    assert wanted(found, Kind.SYSFS) == values
    lines = (contents(found)[TMPFILES] or "").splitlines()[1:]
    assert lines == [f"w! /sys/{path} - - - - {value}" for path, value in values.items()]
    # One file that refuses its value must not keep the size of /dev/shm from being set.
    assert f"ExecStart=-/usr/bin/systemd-tmpfiles --create --boot {TMPFILES}\n" in (
        contents(found)[UNIT] or ""
    )
    assert wanted(found, Kind.UNIT)["temper-os-tuning.service"]["restart_on"] == [TMPFILES, UNIT]


KEEP = {"cpu_governor": "keep"}
DOCA = {"rdma": True, "ofed": "doca-ofed 2.9"}


@each(
    ({}, KEEP, ""),
    (
        {"cpu_governors": ["ondemand", "user"]},
        {},
        "CPU governor (there is no performance, but ondemand, user)",
    ),
    ({"tuners": ["tuned"]}, {}, "CPU governor (tuned sets it)"),
    (
        {"nvme": False, "nvme_schedulers": []},
        KEEP | {"nvme_scheduler": "none"},
        "NVMe scheduler (there is no NV",
    ),
    ({"nvme": False}, KEEP | {"nvme_read_ahead_kb": 256}, "NVMe read-ahead (there is no NVMe drive"),
    ({"shm": False}, KEEP | {"shm": "75%"}, "/dev/shm"),
    ({"irqbalance": False}, KEEP | {"irqbalance": "stopped"}, "irqbalance (it is not installed)"),
    (DOCA, KEEP | {"rdma": True}, "RDMA packages (doca-ofed 2.9 is installed and left alone)"),
    ({}, KEEP | {"rdma": True, "peermem": True}, "RDMA (there is no adapter)"),
)
def test_what_a_node_has_not_or_another_sets_is_left_alone_and_that_is_said(
    has: dict[str, Any], wishes: dict[str, Any], said: str
) -> None:
    plan = whole_plan(tuned(**has), **{f"os_tuning_{name}": wish for name, wish in wishes.items()})
    role = plan.role(ROLE)
    assert (plan.problems, said in plan.text) == ((), True)
    assert [wanted(role, kind) for kind in (Kind.SYSFS, Kind.TMPFS, Kind.UNIT, Kind.PACKAGE)] == [{}] * 4
    assert not {TMPFILES, UNIT, RULES, PEERMEM} & contents(role).keys()


def test_where_nothing_can_be_chosen_nothing_is_set_and_it_is_said_once() -> None:
    facts = node(pci=HGX, tunables=NOTHING)
    found = whole_plan(facts, os_tuning_transparent_hugepages="always")
    role = found.role(ROLE)
    assert (wanted(role, Kind.SYSFS), wanted(role, Kind.UNIT)) == ({}, {})
    assert not {TMPFILES, UNIT} & contents(role).keys()
    (line,) = [line for line in found.text.splitlines() if line.startswith("not tuned here: ")]
    assert "CPU governor" in line
    assert "huge pages (enabled)" in line
    assert not found.problems


def test_what_nobody_asks_for_is_not_missed() -> None:
    assert "not tuned here" not in whole_plan(node(tunables=NOTHING), os_tuning_cpu_governor="keep").text


def test_a_value_that_the_node_does_not_offer_is_refused_with_those_it_does() -> None:
    facts = tuned(cpu_governors=["performance", "powersave"])
    (problem,) = bare_plan(facts, os_tuning_cpu_governor="schedutil")["problems"]
    assert "os_tuning_cpu_governor asks for schedutil" in problem
    assert "performance, powersave" in problem


def test_a_governor_of_the_operators_own_is_set_beside_such_a_service_with_a_warning() -> None:
    facts = tuned(tuners=["tuned"])
    given: dict[str, Any] = {"os_tuning_cpu_governor": "performance"}
    assert wanted(planned(ROLE, facts, **given), Kind.SYSFS) == {GOVERNORS: "performance"}
    assert any("tuned" in warning for warning in bare_plan(facts, **given)["warnings"])


# ---------------------------------------------------------------- drives


def test_drives_are_set_now_and_as_they_come() -> None:
    found = planned(
        ROLE, os_tuning_cpu_governor="keep", os_tuning_nvme_scheduler="none", os_tuning_nvme_read_ahead_kb=0
    )
    assert wanted(found, Kind.SYSFS) == {
        "block/nvme*n*/queue/scheduler": "none",
        "block/nvme*n*/queue/read_ahead_kb": "0",
    }
    match = 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", KERNEL=="nvme*"'
    assert (contents(found)[RULES] or "").splitlines()[1:] == [
        f'{match}, ATTR{{queue/scheduler}}="none"',
        f'{match}, ATTR{{queue/read_ahead_kb}}="0"',
    ]
    # The kernel tells udev of a drive, and not of its several paths.
    assert "w! /sys/block/nvme*n*/queue/scheduler - - - - none\n" in (contents(found)[TMPFILES] or "")


# ---------------------------------------------------------------- the network


def test_buffers_grow_as_far_as_the_operator_says_and_own_parameters_win() -> None:
    found = planned(
        ROLE,
        os_tuning_network_buffer_mib=64,
        os_tuning_sysctls={"net.core.wmem_max": 1, "kernel.numa_balancing": 0},
    )
    values = {
        "kernel.numa_balancing": "0",
        "net.core.rmem_max": "67108864",
        "net.core.wmem_max": "1",
        "net.ipv4.tcp_rmem": "4096 131072 67108864",
        "net.ipv4.tcp_wmem": "4096 16384 67108864",
    }
    assert wanted(found, Kind.SYSCTL) == values
    lines = (contents(found)["/etc/sysctl.d/95-temper-tuning.conf"] or "").splitlines()[1:]
    assert lines == [f"{name} = {value}" for name, value in values.items()]


def test_buffers_are_the_kernels_by_default() -> None:
    assert not [name for name in wanted(planned(ROLE), Kind.SYSCTL) if "mem" in name]


# ---------------------------------------------------------------- shared memory


def test_shared_memory_has_its_size_now_and_at_every_boot_before_jobs_start() -> None:
    found = planned(ROLE, os_tuning_shm="75%", os_tuning_cpu_governor="keep")
    assert wanted(found, Kind.TMPFS) == {"/dev/shm": "75%"}
    text = contents(found)[UNIT] or ""
    assert TMPFILES not in text
    assert "size=75%%" in text
    assert {"docker.service", "kubelet.service", "slurmd.service"} <= set(
        " ".join(re.findall(r"^Before=(.*)$", text, re.MULTILINE)).split()
    )


def test_more_shared_memory_than_memory_is_refused() -> None:
    (problem,) = bare_plan(node(), os_tuning_shm="65G")["problems"]
    assert "os_tuning_shm asks for 65G" in problem
    assert "64 GiB of memory" in problem
    assert bare_plan(node(), os_tuning_shm="64G")["problems"] == []


# ---------------------------------------------------------------- interrupts and RDMA


def test_irqbalance_runs_or_is_stopped_where_that_is_wanted() -> None:
    assert IRQBALANCE not in wanted(planned(ROLE), Kind.UNIT)
    running = planned(ROLE, os_tuning_irqbalance="running")
    assert wanted(running, Kind.PACKAGE) == {"irqbalance": {"version": "", "held": False}}
    assert wanted(running, Kind.UNIT)[IRQBALANCE]["on"] is True
    stopped = planned(ROLE, tuned(irqbalance=True), os_tuning_irqbalance="stopped")
    assert (wanted(stopped, Kind.UNIT)[IRQBALANCE]["on"], wanted(stopped, Kind.PACKAGE)) == (False, {})


@each((tuned(rdma=True), "ibverbs-providers"), (system("rhel", "9.6", pci=HGX), "libibverbs"))
def test_rdma_is_the_distributions_own(facts: dict[str, Any], providers: str) -> None:
    facts = {**facts, "tunables": {**facts["tunables"], "rdma": True}}
    packages = wanted(planned(ROLE, facts, os_tuning_rdma=True), Kind.PACKAGE)
    assert {"rdma-core", "infiniband-diags", providers} <= packages.keys()
    assert wanted(planned(ROLE, facts), Kind.PACKAGE) == {}


def test_the_module_between_both_drivers_is_loaded_now_and_at_every_boot() -> None:
    found = planned(ROLE, tuned(rdma=True, ofed="doca-ofed 2.9"), os_tuning_peermem=True)
    assert (contents(found)[PEERMEM] or "").splitlines()[1:] == ["nvidia-peermem"]
    (command,) = [one.command for one in found.reactions if one.paths == (PEERMEM,)]
    assert "modprobe nvidia-peermem" in command[-1]


@pytest.mark.component
@pytest.mark.parametrize(
    ("wanted_there", "status", "called", "result"),
    [
        (True, 0, "nvidia-peermem", 0),
        (True, 1, "nvidia-peermem", 1),
        (False, 0, "-r -q nvidia-peermem", 0),
        (False, 1, "-r -q nvidia-peermem", 0),
    ],
)
def test_a_module_that_does_not_load_is_an_error_and_one_in_use_stays(
    tmp_path: Path, wanted_there: bool, status: int, called: str, result: int
) -> None:
    (command,) = [one.command for one in planned(ROLE).reactions if one.paths == (PEERMEM,)]
    file, program = tmp_path / "peermem.conf", tmp_path / "modprobe"
    executable(program, f'echo "$*" >{tmp_path}/called\nexit {status}')
    if wanted_there:
        file.touch()
    script = command[-1].replace(PEERMEM, str(file))
    done = subprocess.run(["/bin/sh", "-c", script], env={"PATH": str(tmp_path)}, check=False)
    assert (done.returncode, (tmp_path / "called").read_text().strip()) == (result, called)


@each(("doca-ofed 2.9", False), ("", True))
def test_without_an_ofed_it_may_not_load_which_is_said(ofed: str, warned: bool) -> None:
    warnings = bare_plan(tuned(rdma=True, ofed=ofed), os_tuning_peermem=True)["warnings"]
    assert any("nvidia-peermem" in warning for warning in warnings) is warned


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="systemd's own program is the judge")
def test_systemd_writes_the_values_at_boot_and_passes_over_what_is_not_there(tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        path = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor"
        path.parent.mkdir(parents=True)
        path.write_text("schedutil\n")
        files.append(path)
    text = contents(planned(ROLE, os_tuning_transparent_hugepages="never"))[TMPFILES] or ""
    (tmp_path / "tuning.conf").write_text(text)
    command = ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(tmp_path / "tuning.conf")]
    # A package's script that has all files of tmpfiles.d carried out leaves the values alone.
    subprocess.run(command, check=True)
    assert [path.read_text() for path in files] == ["schedutil\n"] * 2
    subprocess.run([*command, "--boot"], check=True)
    assert [path.read_text() for path in files] == ["performance"] * 2


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="systemd's own program is the judge")
def test_a_file_that_refuses_its_value_keeps_no_other_from_being_set(tmp_path: Path) -> None:
    first, second = (
        tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor" for number in (0, 1)
    )
    first.mkdir(parents=True)  # nobody can write to it, whoever one is
    second.parent.mkdir(parents=True)
    second.write_text("schedutil\n")
    (tmp_path / "tuning.conf").write_text(contents(planned(ROLE))[TMPFILES] or "")
    command = ["systemd-tmpfiles", "--create", "--boot", f"--root={tmp_path}", str(tmp_path / "tuning.conf")]
    assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0
    assert second.read_text() == "performance"
