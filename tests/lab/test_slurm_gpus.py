"""Debian's own Slurm, 22.05 and 24.11, takes the gres.conf that the role wrote, and gives jobs its GPUs.

Each node is a cluster of its own. The GPUs are links to /dev/null; control groups, which would keep a job
from the others' GPUs, are not the lab's to make.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lab import hardening
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.settings import Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="gres")
FLEET = Fleet(LAB)
NODES = LAB.nodes(2)
PATIENCE_S, INSTALL_S = 120, 1200
wait_until = partial(hardening.wait_until, patience_s=PATIENCE_S)
# Debian 12 with eight H100, Debian 13 with one L4: the type in the tables, and how many.
GPUS = {NODES[0].name: ("h100_sxm_80_gb", 8), NODES[1].name: ("l4", 1)}
# Left to itself, slurmd looks for one version of control groups, and ends where the host has both.
CGROUP_PLUGIN = {NODES[0].name: "cgroup/v1", NODES[1].name: "disabled"}
OPERATORS = "# The operator's own.\n"
PLAY = """\
- hosts: gpu_nodes
  gather_facts: false
  become: true
  vars:
    preflight_plan_file: ""
  tasks:
    - ansible.builtin.import_role: {name: preflight, rolespec_validate: false}
      vars: {__preflight_simulate: false}
    - ansible.builtin.import_role: {name: compute_environment, rolespec_validate: false}
"""
CONFIGURATION = """\
ClusterName=temper
SlurmctldHost={name}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
{types}
{node} {gres} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
each_node = pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)


def settle(play: Path, **variables: object) -> Run:
    """Have the role settle both nodes."""
    cgroup = {"CgroupPlugin": "{{ plugins[inventory_hostname] }}", "ConstrainDevices": True}
    words = {"plugins": CGROUP_PLUGIN, "compute_environment_slurm_cgroup": cgroup, **variables}
    return FLEET.run(["ansible-playbook", str(play), "--extra-vars", json.dumps(words)])


def start(node: Node) -> None:
    """Make the node a cluster: slurm.conf from what slurmd and the role's file say that it needs."""
    needs = on_node(node, "cat /etc/slurm/gres.conf")
    types, gres = re.search(r"GresTypes=\S+", needs), re.search(r"Gres=\S+", needs)
    assert types
    assert gres
    # Newer ones also print what they detect themselves.
    line = re.search(r"^NodeName=.*", on_node(node, "slurmd -C"), re.MULTILINE)
    assert line
    own = " ".join(word for word in line[0].split() if not word.startswith("Gres="))
    text = CONFIGURATION.format(name=node.name, types=types[0], node=own, gres=gres[0])
    on_node(
        node,
        f"printf %s {shlex.quote(text)} >/etc/slurm/slurm.conf;"
        "mkdir -p /var/lib/slurm/slurmd /var/lib/slurm/slurmctld; chown slurm: /var/lib/slurm/slurmctld;"
        "systemctl restart munge slurmctld slurmd",
        timeout_s=INSTALL_S,
    )
    # Before the controller answers, sinfo fails.
    asked = "sinfo --noheader --format=%T || true"
    wait_until(lambda: on_node(node, asked).strip() == "idle", f"{node.name} is idle")


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Clusters that run with the role's files; the play that settles them."""
    play = tmp_path_factory.mktemp("play") / "slurm.yml"
    play.write_text(PLAY)
    with FLEET.booted():
        for node in NODES:
            _, count = GPUS[node.name]
            on_node(
                node,
                "apt-get update -qq; apt-get install -qq --no-install-recommends "
                "slurmctld slurmd slurm-client munge >/dev/null 2>&1;"
                f"printf %s {shlex.quote(OPERATORS)} >/etc/slurm/gres.conf;"
                f"for number in $(seq 0 {count - 1}); do ln -s /dev/null /dev/nvidia$number; done",
                timeout_s=INSTALL_S,
            )
        run = settle(play, compute_environment_slurm_gpus="devices")
        assert run.status == 0, run.output
        for node in NODES:
            start(node)
        yield play


@each_node
def test_slurmd_reads_every_gpu_with_its_type_and_device_file(settled: Path, node: Node) -> None:
    kind, count = GPUS[node.name]
    read = on_node(node, "slurmd -G 2>&1")
    lines = [line for line in read.splitlines() if f"Type={kind}" in line]
    assert sum(int(number) for line in lines for number in re.findall(r"Count=(\d+)", line)) == count
    assert all("File=/dev/nvidia" in line for line in lines)


@each_node
def test_the_node_offers_what_the_controller_was_told(settled: Path, node: Node) -> None:
    kind, count = GPUS[node.name]
    shown = on_node(node, "scontrol show node")
    assert re.search(rf"Gres=gpu:{kind}:{count}\b", shown)
    assert "INVAL" not in shown


@each_node
def test_a_job_gets_the_gpus_that_it_asks_for(settled: Path, node: Node) -> None:
    kind, count = GPUS[node.name]
    every = on_node(node, f"srun --chdir=/tmp --gres=gpu:{kind}:{count} printenv CUDA_VISIBLE_DEVICES")
    assert every.strip() == ",".join(map(str, range(count)))
    one = on_node(node, "srun --chdir=/tmp --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES")
    assert one.strip() == "0"


@each_node
def test_a_job_for_more_gpus_than_there_are_is_refused(settled: Path, node: Node) -> None:
    _, count = GPUS[node.name]
    said = on_node(node, f"srun --immediate=5 --gres=gpu:{count + 1} true 2>&1 || echo refused")
    assert "refused" in said
    assert "not available" in said


def test_a_second_run_changes_nothing_and_restarts_nothing(settled: Path) -> None:
    before = [on_node(node, "systemctl show --property=MainPID slurmd") for node in NODES]
    run = settle(settled, compute_environment_slurm_gpus="devices")
    assert [run.changed(node) for node in NODES] == [0, 0], run.output
    assert [on_node(node, "systemctl show --property=MainPID slurmd") for node in NODES] == before


def test_the_operator_s_own_file_comes_back(settled: Path) -> None:
    run = settle(settled, compute_environment_slurm_gpus="none")
    assert run.status == 0, run.output
    for node in NODES:
        assert on_node(node, "cat /etc/slurm/gres.conf").strip() == OPERATORS.strip()
