"""A real slurmctld on loopback, without any slurmd: nodes take orders, and run no jobs."""

import contextlib
import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / ".cache/slurm-cluster"
PATIENCE_S = 60
CONFIGURATION = """\
ClusterName=temper
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
PluginDir={plugins}
MpiDefault=none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SchedulerType=sched/builtin
SlurmdTimeout=0
NodeName=gpu0[1-3] NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
PartitionName=more Nodes=ALL State=UP
"""


def programs() -> Path | None:
    """The folder with Slurm's commands, where `python3 -m tools.bootstrap schedulers` has unpacked them."""
    return ROOT / "usr/bin" if (ROOT / "usr/sbin/slurmctld-wlm").exists() else None


@contextlib.contextmanager
def controller(folder: Path) -> Iterator[dict[str, str]]:
    """Run slurmctld; yields the environment in which Slurm's commands find it."""
    (libraries,) = (path.parent for path in ROOT.glob("usr/lib/*/slurm-wlm"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = folder / "slurm.conf"
    values = {"user": getpass.getuser(), "port": port, "folder": folder, "plugins": libraries / "slurm-wlm"}
    configuration.write_text(CONFIGURATION.format(**values))
    (folder / "state").mkdir()
    environment = {
        "SLURM_CONF": str(configuration),
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}:{ROOT}/lib/{libraries.name}",
    }
    log = folder / "slurmctld.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [ROOT / "usr/sbin/slurmctld-wlm", "-D", "-c"],
            env=os.environ | environment,
            stdout=said,
            stderr=said,
        )
    try:
        ping = [str(ROOT / "usr/bin/scontrol"), "ping"]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = subprocess.run(ping, env=os.environ | environment, capture_output=True, text=True)
            if "is UP" in answer.stdout:
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"slurmctld did not answer: {log.read_text()}"
            time.sleep(0.1)
        yield environment
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
