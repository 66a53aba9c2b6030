"""The profilers on a real node: installed, recording, and open to those who were meant."""

from typing import Any

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.settings import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="profiling")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
WISH = {
    "profiling_tools_install": True,
    "profiling_tools_gpu_counters": True,
    "profiling_tools_perf_event_paranoid": 1,
    "nvidia_stack_reboot_ok": True,
}


def inside(script: str) -> str:
    return on_node(NODE, script).strip()


def provision(**variables: Any) -> Run:
    run = FLEET.playbook("provision", **variables)
    assert run.status == 0, run.output
    return run


@pytest.fixture(scope="module")
def output(lab: None) -> str:
    """What Ansible said when it installed the tools."""
    return provision(**WISH).said


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
    labs.reboot(NODE)
    assert inside("cat /proc/driver/nvidia/params") == "RmProfilingAdminOnly: 0"
    again = provision(**WISH)
    assert "reboot required" not in again.said
    assert again.changed(NODE) == 0
    closed = provision(**{**WISH, "profiling_tools_gpu_counters": False})
    assert "until then it is everybody who may read them" in closed.said
