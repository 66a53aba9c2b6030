"""Debian's real slurmctld and slurmd, on loopback, take the gres.conf of a plan and give a job its GPUs.

The device files are links to /dev/null, and the node is said to have the processors of the plan.
"""

import contextlib
import getpass
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.planning_roles.plans import contents, planned
from tests.unit.rollout.slurm_cluster import PATIENCE_S, ROOT, programs
from tests.unit.test_slurm_gpus import FILE, ROLE, hgx
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(programs() is None, reason="python3 -m tools.bootstrap schedulers"),
]

TYPE, COUNT = "h100_sxm_80_gb", 8
CONFIGURATION = """\
ClusterName=temper
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
PluginDir={plugins}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
{types}
NodeName=gpu01 NodeAddr=127.0.0.1 Port={ports[1]} Sockets=2 CoresPerSocket=48 {gres} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports() -> list[int]:
    """Two ports that nobody has."""
    with socket.socket() as one, socket.socket() as other:
        for found in (one, other):
            found.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]


@dataclass(frozen=True)
class Cluster:
    """A folder with the configuration, and programs under the names that Slurm knows itself by."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Slurm's to its end."""
        words = [str(self.folder / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/tmp"
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run slurmctld and slurmd until the node is idle, and to the end of the block."""
        step = str(ROOT / "usr/sbin/slurmstepd-wlm")
        daemons = []
        with (self.folder / "log").open("w") as log:
            for words in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "gpu01", "-d", step]):
                command = [str(self.folder / "bin" / words[0]), *words[1:]]
                daemons.append(
                    subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd="/tmp")
                )
        try:
            wait_until(
                lambda: self.run("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle",
                f"the node is idle; see {self.folder}/log",
                PATIENCE_S,
            )
            yield
        finally:
            for daemon in daemons:
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A node with eight H100 as the plan describes it."""
    (libraries,) = (path.parent for path in ROOT.glob("usr/lib/*/slurm-wlm"))
    for name in ("bin", "dev", "state", "spool"):
        (tmp_path / name).mkdir()
    for path in [*(ROOT / "usr/bin").iterdir(), *(ROOT / "usr/sbin").iterdir()]:
        # slurmctld and slurmd look at their own names: as slurmd-wlm they pass over the node's Gres.
        (tmp_path / "bin" / path.name.removesuffix("-wlm")).symlink_to(path)
    for number in range(COUNT):
        (tmp_path / f"dev/nvidia{number}").symlink_to("/dev/null")
    text = contents(planned(ROLE, hgx(), **{f"{ROLE}_slurm_gpus": "devices"}))[FILE] or ""
    types, gres = re.search(r"GresTypes=\S+", text), re.search(r"Gres=\S+", text)
    assert types
    assert gres
    (tmp_path / "gres.conf").write_text(text.replace("/dev/", f"{tmp_path}/dev/"))
    plugins = libraries / "slurm-wlm"
    (tmp_path / "slurm.conf").write_text(
        CONFIGURATION.format(
            user=getpass.getuser(),
            ports=free_ports(),
            folder=tmp_path,
            plugins=plugins,
            types=types[0],
            gres=gres[0],
        )
    )
    own = {
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "LD_LIBRARY_PATH": f"{libraries}:{plugins}:{ROOT}/lib/{libraries.name}",
    }
    return Cluster(tmp_path, os.environ | own)


def test_slurmd_reads_every_gpu_with_its_type_files_and_cores(cluster: Cluster) -> None:
    said = cluster.run("slurmd", "-N", "gpu01", "-G").stderr
    read = re.findall(r"Type=(\S+) Count=(\d+) .*File=\S+/nvidia(\S+) Cores=(\S+)", said)
    assert read == [(TYPE, "4", "[0-3]", "0-47"), (TYPE, "4", "[4-7]", "48-95")]
    assert "WARNING" not in said
    assert "error" not in said


def test_slurmd_refuses_a_file_without_the_gpus_that_slurm_conf_names(cluster: Cluster) -> None:
    """What the test above stands on: what does not fit is said."""
    path = cluster.folder / "slurm.conf"
    path.write_text(path.read_text().replace(f"{TYPE}:{COUNT}", f"{TYPE}:{COUNT - 1}"))
    assert "more configured than expected" in cluster.run("slurmd", "-N", "gpu01", "-G").stderr


def test_jobs_get_the_gpus_that_they_ask_for_and_no_more_than_there_are(cluster: Cluster) -> None:
    with cluster.running():
        shown = cluster.run("scontrol", "show", "node").stdout
        # (S:0-1): the sockets that the cores belong to.
        assert f"Gres=gpu:{TYPE}:{COUNT}(S:0-1)" in shown
        two = cluster.run("srun", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
        assert two.stdout.strip() == "0,1", two.stderr
        every = cluster.run("srun", f"--gres=gpu:{TYPE}:{COUNT}", "printenv", "CUDA_VISIBLE_DEVICES")
        assert every.stdout.strip() == "0,1,2,3,4,5,6,7", every.stderr
        more = cluster.run("srun", f"--gres=gpu:{COUNT + 1}", "true")
        assert more.returncode != 0
        assert "not available" in more.stderr
