"""The profilers on a real node: installed, recording, and open to those who were meant."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
NODE = "gpu01"
ENVIRONMENT = {
    **os.environ,
    "LAB_NAME": "profiling",
    "LAB_NODES": "1",
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "LC_ALL": "C.UTF-8",
}
WISH = {
    "profiling_tools_install": True,
    "profiling_tools_gpu_counters": True,
    "profiling_tools_perf_event_paranoid": 1,
    "nvidia_stack_reboot_ok": True,
}


def lab(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.lab", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def inside(script: str) -> str:
    return lab("shell", NODE, "sh", "-euc", script).strip()


def provision(**variables: Any) -> str:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "playbooks/provision.yml", "--extra-vars", json.dumps(variables)]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def output() -> Iterator[str]:
    """What Ansible said when it installed the tools."""
    lab("up")
    yield provision(**WISH)
    lab("down")


@pytest.mark.usefixtures("output")
def test_the_tools_are_there() -> None:
    installed = inside(
        "ls /usr/bin/perf /usr/bin/atop /usr/bin/sar /opt/nvidia/*/*/ncu /opt/nvidia/*/*/bin/nsys"
    )
    assert len(installed.splitlines()) == 5
    # Of the stack's CUDA release, 13.0 where the stack is the default one.
    assert (
        inside("dpkg-query --show --showformat='${db:Status-Status}' cuda-nsight-compute-13-0") == "installed"
    )


@pytest.mark.usefixtures("output")
def test_atop_and_sysstat_record() -> None:
    units = "sysstat sysstat-collect.timer sysstat-summary.timer atop"
    assert set(inside(f"systemctl is-active {units}; systemctl is-enabled {units}").split()) == {
        "active",
        "enabled",
    }
    inside("systemctl start sysstat-collect.service; sar -u | grep -q CPU")


@pytest.mark.usefixtures("output")
def test_the_kernel_parameter_is_set() -> None:
    assert inside("cat /proc/sys/kernel/perf_event_paranoid") == "1"


def test_a_reboot_for_the_counters_is_said_to_be_due_and_not_done(output: str) -> None:
    assert inside("cat /proc/driver/nvidia/params") == "RmProfilingAdminOnly: 1"
    assert "reboot required. Access to the GPU's performance counters changes" in output
    lab("reboot", NODE)
    assert inside("cat /proc/driver/nvidia/params") == "RmProfilingAdminOnly: 0"
    again = provision(**WISH)
    assert "reboot required" not in again
    assert "changed=0" in again
    closed = provision(**{**WISH, "profiling_tools_gpu_counters": False})
    assert "until then it is everybody who may read them" in closed
