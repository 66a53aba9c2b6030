"""A cluster of Debian 12's Slurm: jobs that hold a node, a reboot that Slurm sees, GPUs as device files.

Odd nodes of the lab are Debian 12: the first is the controller, the others compute. The drainer runs here; it
asks scontrol and squeue of the controller through the lab's side door.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from temper.rollout.drain.base import DrainError, wait_until_idle
from temper.rollout.drain.slurm import Slurm
from tests.lab import hardening

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
wait_until = partial(hardening.wait_until, patience_s=PATIENCE_S)
CONTROLLER, COMPUTE = "gpu01", ("gpu03", "gpu05")
ENVIRONMENT = {**os.environ, "LAB_NAME": "drained", "LAB_NODES": "5"}
CONFIGURATION = """\
ClusterName=temper
SlurmctldHost=gpu01
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=0
GresTypes=gpu
NodeName=gpu03,gpu05 CPUs=2 Gres=gpu:h100:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
# Left to itself, slurmd 22.05 looks for one version of control groups, and ends where the host has both.
CGROUPS = "CgroupPlugin=cgroup/v1\n"
DEVICES = "Name=gpu Type=h100 File=/dev/fakegpu[0-7]\n"


def lab(*arguments: str, text: str | None = None) -> str:
    command = [sys.executable, "-m", "tests.lab", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sh(node: str, script: str) -> str:
    return lab("shell", node, "sh", "-euc", script).strip()


def state(node: str) -> str:
    return sh(CONTROLLER, f"sinfo --noheader --Node --nodes={node} --format=%T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    lab("up")
    try:
        install = (
            "apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends"
        )
        write = f"printf %s {shlex.quote(CONFIGURATION)} >/etc/slurm/slurm.conf"
        sh(CONTROLLER, f"{install} slurmctld slurm-client munge >/dev/null 2>&1; {write}")
        key = sh(CONTROLLER, "base64 -w0 /etc/munge/munge.key")
        for node in COMPUTE:
            sh(
                node,
                f"{install} slurmd slurm-client munge >/dev/null 2>&1; {write};"
                f"printf %s {shlex.quote(DEVICES)} >/etc/slurm/gres.conf;"
                f"printf %s {shlex.quote(CGROUPS)} >/etc/slurm/cgroup.conf;"
                "for gpu in 0 1 2 3 4 5 6 7; do touch /dev/fakegpu$gpu; done;"
                f"printf %s {key} | base64 -d >/etc/munge/munge.key; systemctl restart munge;"
                "mkdir -p /var/lib/slurm/slurmd; systemctl restart slurmd",
            )
        sh(CONTROLLER, "systemctl restart munge; systemctl restart slurmctld")
        for node in COMPUTE:
            wait_until(lambda node=node: state(node) == "idle", f"{node} is idle")  # type: ignore[misc]
        yield
    finally:
        lab("down")


@pytest.fixture
def slurm(cluster: None, tmp_path: Path) -> Slurm:
    def through_the_side_door(program: str) -> str:
        path = tmp_path / program
        words = shlex.join([sys.executable, "-m", "tests.lab", "shell", CONTROLLER, program])
        path.write_text(f'#!/bin/sh\ncd {ROOT}\nLAB_NAME={ENVIRONMENT["LAB_NAME"]} exec {words} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return Slurm(
        "night-7", scontrol=through_the_side_door("scontrol"), squeue=through_the_side_door("squeue")
    )


def submit(node: str) -> str:
    options = f"--parsable --chdir=/tmp --nodelist={node} --gres=gpu:1 --job-name='a|b'"
    job = sh(CONTROLLER, f"sbatch {options} --wrap='sleep 1000'")
    wait_until(lambda: sh(CONTROLLER, f"squeue --noheader --jobs={job} --format=%T") == "RUNNING", "it runs")
    return job


def test_a_node_with_a_job_is_named_waited_for_and_returned(slurm: Slurm) -> None:
    job = submit("gpu03")
    before = slurm.look("gpu03")
    assert before.in_service
    slurm.drain("gpu03", before, "upgrade")
    assert state("gpu03") == "draining"
    with pytest.raises(DrainError, match=rf"job {job} \(a\|b\) of root is RUNNING"):
        wait_until_idle(slurm, "gpu03", 0)
    sh(CONTROLLER, f"scancel {job}")
    wait_until_idle(slurm, "gpu03", PATIENCE_S)
    assert state("gpu03") == "drained"
    # On a busy machine slurmctld may still wait for slurmd's answer. A job runs only after that.
    assert "gpu03 is back" in slurm.give_back("gpu03", before)
    sh(CONTROLLER, f"scancel {submit('gpu03')}")


def test_a_reboot_that_slurm_sees_leaves_our_mark_and_the_node_comes_back(slurm: Slurm) -> None:
    before = slurm.look("gpu05")
    slurm.drain("gpu05", before, "upgrade")
    # `slurmd -b` reports a reboot: https://slurm.schedmd.com/slurmd.html
    sh("gpu05", "systemctl stop slurmd; slurmd -b")
    wait_until(lambda: "NOT_RESPONDING" not in slurm.look("gpu05").state, "slurmd has registered again")
    assert slurm.look("gpu05").ours
    slurm.give_back("gpu05", before)
    wait_until(lambda: state("gpu05") == "idle", "it is idle")


def test_what_an_operator_drained_survives_our_work_on_the_node(slurm: Slurm) -> None:
    sh(CONTROLLER, "scontrol update NodeName=gpu05 State=DRAIN Reason='broken fan'")
    before = slurm.look("gpu05")
    slurm.drain("gpu05", before, "upgrade")
    assert "stays drained" in slurm.give_back("gpu05", before)
    assert slurm.look("gpu05").reason == "broken fan"
    sh(CONTROLLER, "scontrol update NodeName=gpu05 State=RESUME")


def test_gpus_that_are_missing_when_slurmd_starts_are_an_obstacle(slurm: Slurm) -> None:
    """The driver was not loaded yet: Slurm takes the node out, and the roll-out must not begin with it."""
    sh(
        "gpu03",
        "systemctl stop slurmd; sed -i 's/0-7/0-6/' /etc/slurm/gres.conf; systemctl start slurmd || true",
    )
    wait_until(lambda: slurm.look("gpu03").obstacle != "" or not slurm.look("gpu03").in_service, "it is seen")
