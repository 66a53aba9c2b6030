"""What gpu_settings, compute_environment and os_tuning set."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from temper.plan.node_plan import Reaction
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.planning_nodes import system
from tests.unit.planning_roles.plans import HGX, PROGRAMS, contents, planned, wanted

ROLE = "compute_environment"
MANAGER = "/etc/systemd/system.conf.d/91-temper-compute.conf"
PROLOG = "/usr/local/lib/temper/slurm-task-prolog"
CUDA = """\
# Managed by Temper. At the end: what a job, an environment or the distribution brings comes first.
if [ -d /usr/local/cuda/bin ]; then
    case ":$PATH:" in
    *:/usr/local/cuda/bin:*) ;;
    *) PATH="$PATH:/usr/local/cuda/bin" ;;
    esac
fi
"""
JSON = "/etc/temper/gpu-settings.json"
UNIT = "/etc/systemd/system/temper-gpu-settings.service"


def test_settings_of_gpus_are_in_effect_now_and_at_every_boot() -> None:
    found = planned("gpu_settings", gpu_settings_power_limit_w=300, gpu_settings_clocks={"graphics": 1410})
    settings = {
        "clocks": {"graphics": 1410},
        "power_limit_w": 300,
        "locked_clocks": {"graphics": True, "memory": True},
    }
    assert wanted(found, Kind.GPU) == settings
    files = contents(found)
    assert files[JSON] == json.dumps(settings, indent=4, sort_keys=True) + "\n"
    assert '"power_limit_w": 300\n' in (files[JSON] or "")
    assert "ExecStart=/usr/bin/python3 -B /usr/local/lib/temper/gpu_settings.py " + JSON in (
        files[UNIT] or ""
    )


def test_what_is_not_asked_for_is_no_setting_and_orders_nothing() -> None:
    found = planned("gpu_settings")
    assert wanted(found, Kind.GPU).keys() == {"clocks", "power_limit_w", "locked_clocks"}
    assert "Before=" not in (contents(found)[UNIT] or "")


def test_layouts_are_made_before_those_who_use_gpus_start() -> None:
    layouts = {"0": ["3g.40gb"], "all": "disabled"}
    found = planned(
        "gpu_settings",
        gpu_settings_mig=layouts,
        gpu_settings_power_limit_percent=80,
        gpu_settings_ecc=False,
        gpu_settings_compute_mode="default",
    )
    settings = wanted(found, Kind.GPU)
    assert (settings["mig"], settings["mig_change_ok"], settings["ecc"]) == (layouts, False, False)
    assert (settings["power_limit_percent"], settings["compute_mode"]) == (80, "default")
    before = " ".join(re.findall(r"^Before=(.*)$", contents(found)[UNIT] or "", re.MULTILINE)).split()
    assert {"docker.service", "containerd.service", "kubelet.service", "slurmd.service"} <= set(before)


def test_the_program_of_the_unit_is_installed_with_what_it_needs() -> None:
    files = wanted(planned("gpu_settings"), Kind.FILE)
    folder = "/usr/local/lib/temper/"
    assert {path: (file["content"], file["mode"]) for path, file in files.items() if folder in path} == {
        f"{folder}{name}.py": (PROGRAMS[f"{name}.py"], "0755" if name == "gpu_settings" else "0644")
        for name in ("gpu_settings", "holders", "mig", "smi", "process")
    }


def test_the_unit_is_restarted_when_what_it_applies_has_changed() -> None:
    units = wanted(planned("gpu_settings"), Kind.UNIT)
    assert units["temper-gpu-settings.service"]["restart_on"] == [JSON, UNIT]
    assert units["nvidia-persistenced.service"]["restart_on"] == []


def test_threads_and_nccl_are_those_of_the_plan() -> None:
    found = planned(ROLE, compute_environment_nccl={"NCCL_TOPO_FILE": "/etc/topology.xml"})
    assert contents(found) == {
        "/etc/nccl.conf": (
            "# Managed by Temper. A variable in a process's environment wins over this file.\n"
            "NCCL_SOCKET_IFNAME==eth0\nNCCL_TOPO_FILE=/etc/topology.xml\n"
        ),
        "/etc/temper/compute.env": (
            "# Managed by Temper. One process a GPU: physical cores divided by GPUs.\nOMP_NUM_THREADS=4\n"
        ),
        "/usr/local/bin/temper-rank": PROGRAMS["rank.py"],
        "/etc/profile.d/temper-cuda.sh": CUDA,
    }


def test_programs_run_by_a_python_that_is_new_enough() -> None:
    """Enterprise Linux 8 has 3.6 as /usr/bin/python3, and 3.11 beside it for Ansible and the payload."""
    node = system("rhel", "8.10", pci=HGX)
    for pythons, python in (
        (("3.6", "3.11"), "/usr/bin/python3.11"),
        (("3.9", "3.11"), "/usr/bin/python3"),
        (("3.6",), "/usr/bin/python3"),  # where Ansible has another one elsewhere
        ((), "/usr/bin/python3"),
    ):
        here = node | {"pythons": list(pythons)}
        assert f"ExecStart={python} -B " in (contents(planned("gpu_settings", here))[UNIT] or "")
        rank = contents(planned(ROLE, here))["/usr/local/bin/temper-rank"]
        assert (rank or "").startswith(f"#!{python} -IS\n")


def test_what_users_start_gets_the_threads_where_they_are_wanted() -> None:
    files = contents(planned(ROLE, compute_environment_profile=True))
    assert files["/etc/profile.d/temper-compute.sh"] == (
        '# Managed by Temper. What a user has set wins.\nexport OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"\n'
    )
    assert files["/etc/environment.d/50-temper-compute.conf"] == (
        "# Managed by Temper. What a user has set wins.\nOMP_NUM_THREADS=${OMP_NUM_THREADS:-4}\n"
    )


def test_services_that_are_named_ask_systemd_for_the_threads() -> None:
    found = planned(ROLE, compute_environment_services=["triton", "hub@1.service", "triton.service"])
    files = contents(found)
    assert [line for line in (files[MANAGER] or "").splitlines() if not line.startswith("#")] == [
        "[Manager]",
        "ManagerEnvironment=OMP_NUM_THREADS=4",
    ]
    drop_ins = {path: text for path, text in files.items() if ".service.d/" in path}
    assert sorted(drop_ins) == [
        "/etc/systemd/system/hub@1.service.d/50-temper-compute.conf",
        "/etc/systemd/system/triton.service.d/50-temper-compute.conf",
    ]
    assert all("[Service]\nPassEnvironment=OMP_NUM_THREADS\n" in (text or "") for text in drop_ins.values())
    assert Reaction((MANAGER,), ("systemctl", "daemon-reexec")) in found.reactions


def task_prolog(tmp_path: Path, *cpus: int, **given: str) -> str:
    """What the script prints for a task that slurmstepd has bound to these CPUs."""
    script = contents(planned(ROLE, compute_environment_slurm_task_prolog=True))[PROLOG]
    path = executable(tmp_path / "task-prolog", script or "")
    done = subprocess.run(
        [path],
        env={"SLURM_STEP_ID": "0", **given},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus or os.sched_getaffinity(0)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.component
def test_a_task_of_slurm_gets_as_many_threads_as_it_has_cpus_up_to_its_part_of_the_node(
    tmp_path: Path,
) -> None:
    assert task_prolog(tmp_path, min(os.sched_getaffinity(0))) == "export OMP_NUM_THREADS=1\n"
    expected = min(4, len(os.sched_getaffinity(0)))
    assert task_prolog(tmp_path) == f"export OMP_NUM_THREADS={expected}\n"
    assert task_prolog(tmp_path, OMP_NUM_THREADS="3") == ""


@pytest.mark.component
@pytest.mark.parametrize("step", ["", "-5", "4294967291", "4294967290"])
def test_a_batch_script_gets_no_threads_to_hand_on(tmp_path: Path, step: str) -> None:
    assert task_prolog(tmp_path, SLURM_STEP_ID=step) == ""


def search_path(tmp_path: Path, before: str, *, installed: bool) -> str:
    """The search path of a shell that has read the file for CUDA."""
    folder = tmp_path / "cuda/bin"
    if installed:
        folder.mkdir(parents=True, exist_ok=True)
    script = CUDA.replace("/usr/local/cuda/bin", str(folder))
    shown = subprocess.run(
        ["/bin/sh", "-euc", f"{script}\necho $PATH"],
        env={"PATH": before},
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.strip().replace(str(folder), "CUDA")


@pytest.mark.component
def test_cudas_programs_come_last_and_once_where_they_are(tmp_path: Path) -> None:
    assert search_path(tmp_path, "/bin", installed=False) == "/bin"
    assert search_path(tmp_path, "/bin", installed=True) == "/bin:CUDA"
    before = f"{tmp_path}/cuda/bin:/bin"
    assert search_path(tmp_path, before, installed=True) == "CUDA:/bin"


def test_a_distributions_own_toolkit_needs_no_path() -> None:
    found = planned(ROLE, nvidia_stack_source="distro")
    assert "/etc/profile.d/temper-cuda.sh" not in contents(found)
    assert "/etc/profile.d/temper-cuda.sh" not in contents(planned(ROLE, compute_environment_cuda_path=False))


NCCL = {"NCCL_IB_TC": 106, "NCCL_OOB_NET_IFNAME": "eth0", "NCCL_NET_PLUGIN": "aws", "NCCL_X": "/etc/x"}


@each(
    ("none", None),
    ("portable", ["NCCL_IB_TC"]),
    ("all", ["NCCL_IB_TC", "NCCL_NET_PLUGIN", "NCCL_OOB_NET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_X"]),
)
def test_containers_get_of_nccls_settings_what_is_true_of_them(
    wanted_there: str, names: list[str] | None
) -> None:
    given: dict[str, Any] = {
        "compute_environment_nccl": NCCL,
        "compute_environment_container_nccl": wanted_there,
    }
    files = contents(planned(ROLE, **given))
    lines = (files.get("/etc/temper/container-nccl.conf") or "").splitlines()[1:]
    assert [line.partition("=")[0] for line in lines] == (names or [])
    assert ("/usr/local/lib/temper/cdi_nccl.py" in files) is (names is not None)
    drop_in = files.get("/etc/systemd/system/nvidia-cdi-refresh.service.d/50-temper.conf", "")
    started = "[Service]\nExecStartPost=/usr/bin/python3 -B /usr/local/lib/temper/cdi_nccl.py\n"
    assert (started in (drop_in or "")) is (names is not None)


@each(
    {},
    {"compute_environment_nccl": {"NCCL_IB_TC": 1}, "container_engines_cdi": False},
    {"compute_environment_nccl": {"NCCL_IB_TC": 1}, "container_engines_state": "absent"},
    {
        "compute_environment_nccl": {"NCCL_IB_TC": 1},
        "nvidia_stack_source": "distro",
        "nvidia_stack_distro_container_toolkit": False,
    },
)
def test_the_cdi_specification_is_left_alone_where_there_is_nothing_to_add(given: dict[str, Any]) -> None:
    assert not [path for path in contents(planned(ROLE, **given)) if "cdi" in path or "container" in path]
