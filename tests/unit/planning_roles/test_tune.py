"""What gpu_settings, compute_environment and os_tuning set."""

from __future__ import annotations

import json
import re

from planning.node_plan import Kind, Reaction
from tests.unit.planning_roles.plans import PROGRAMS, contents, enterprise, planned, wanted

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
        folder + "gpu_settings.py": (PROGRAMS["gpu_settings.py"], "0755"),
        folder + "process.py": (PROGRAMS["process.py"], "0644"),
    }


def test_the_unit_is_restarted_when_what_it_applies_has_changed() -> None:
    units = wanted(planned("gpu_settings"), Kind.UNIT)
    assert units["temper-gpu-settings.service"]["restart_on"] == [JSON, UNIT]
    assert units["nvidia-persistenced.service"]["restart_on"] == []


def test_threads_and_nccl_are_those_of_the_plan() -> None:
    found = planned("compute_environment", compute_environment_nccl={"NCCL_DEBUG": "WARN"})
    assert contents(found) == {
        "/etc/nccl.conf": (
            "# Managed by Temper. A variable in a process's environment wins over this file.\n"
            "NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0\n"
        ),
        "/etc/temper/compute.env": (
            "# Managed by Temper. One process a GPU: physical cores divided by GPUs.\n"
            "OMP_NUM_THREADS=4\nMKL_NUM_THREADS=4\n"
        ),
        "/etc/profile.d/temper-compute.sh": None,
    }


def test_login_shells_get_the_threads_where_they_are_wanted() -> None:
    found = planned("compute_environment", compute_environment_profile=True)
    assert contents(found)["/etc/profile.d/temper-compute.sh"] == (
        "# Managed by Temper. What a job sets itself wins.\n"
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"\n'
        'export MKL_NUM_THREADS="${MKL_NUM_THREADS:-4}"\n'
    )


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


def test_parameters_are_in_effect_now_and_at_every_boot() -> None:
    found = planned("os_tuning", enterprise, os_tuning_sysctls={"vm.b": "1  2", "kernel.a": 3})
    assert wanted(found, Kind.SYSCTL) == {"vm.b": "1 2", "kernel.a": "3"}
    assert contents(found)["/etc/sysctl.d/95-temper-tuning.conf"] == (
        "# Managed by Temper.\nkernel.a = 3\nvm.b = 1  2\n"
    )


def test_systemd_and_logind_are_told_of_their_files() -> None:
    found = planned("os_tuning", os_tuning_busy_ok=True)
    assert found.reactions == (
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
