"""temper-rank: real processes on this machine's CPUs, with another /sys and an nvidia-smi of the test's.

Larger machines are a plan's input alone: their CPUs are given in place of the kernel's answer.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import rank

from tests.unit.executables import executable
from tests.unit.needs import TORCH_PYTHON, needs_torch
from tests.unit.rollout.slurm_cluster import programs
from tests.unit.test_slurm_takes_gpus import Cluster, cluster

pytestmark = pytest.mark.component

__all__ = ["cluster"]

PROGRAM = Path(__file__).resolve().parents[2] / "module_utils/temper/rank.py"
HERE = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(HERE) < 2, reason="one CPU leaves nothing to choose from")
SHOW = (
    "import json, os; print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get('OMP_NUM_THREADS')]))"
)
H100 = "NVIDIA H100 80GB HBM3"
LISTED = "#!/bin/sh\ncase $1 in -L) cat {0}/instances ;; *) echo $$ >>{0}/asked; cat {0}/listed ;; esac\n"


@dataclass
class Machine:
    """A folder in place of / and in PATH."""

    root: Path
    addresses: list[str] = field(default_factory=list)

    def gpus(self, *beside: str, names: Iterable[str] = (), mig: str = "Disabled") -> None:
        """Have these GPUs, each with the CPUs beside it."""
        lines = []
        for index, (cpus, name) in enumerate(zip(beside, names or [H100] * len(beside), strict=True)):
            address = f"0000:{index + 0x1A:02x}:00.0"
            folder = self.root / "sys/bus/pci/devices" / address
            folder.mkdir(parents=True)
            (folder / "local_cpulist").write_text(f"{cpus}\n")
            lines.append(f"GPU-{index}0c0ffee-{index}, 0000{address.upper()}, {mig}, {name}\n")
            self.addresses.append(address)
        (self.root / "listed").write_text("".join(lines))
        self.program("nvidia-smi", LISTED.format(self.root))

    def program(self, name: str, text: str) -> None:
        """A program in PATH."""
        executable(self.root / "bin" / name, text)

    def cores(self, *siblings: str) -> None:
        """Have cores with these CPUs each."""
        for line in siblings:
            for cpu in rank.cpu_list(line):
                folder = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(f"{line}\n")

    def number(self, threads: int) -> None:
        """The number that the node's role has written."""
        path = self.root / "etc/temper/compute.env"
        path.parent.mkdir(parents=True)
        path.write_text(f"# Managed by Temper.\nOMP_NUM_THREADS={threads}\n")

    @property
    def installed(self) -> str:
        """The path of temper-rank."""
        return str(self.root / "bin/temper-rank")

    def environment(self, **given: str) -> dict[str, str]:
        """What a process on this machine has."""
        path = f"{self.root / 'bin'}:/usr/bin:/bin"
        return {"PATH": path, "TEMPER_RANK_ROOT": str(self.root), **given}

    def run(self, *command: str, **given: Any) -> subprocess.CompletedProcess[str]:
        """Run the program with these words; variables are given by name, other arguments as `process`."""
        more = given.pop("process", {})
        return subprocess.run(
            [self.installed, *command],
            env=self.environment(**given),
            capture_output=True,
            text=True,
            timeout=60,
            **more,
        )

    def finds(self, **given: Any) -> tuple[list[int], str | None]:
        """The CPUs and the threads that a command has."""
        done = self.run(sys.executable, "-c", SHOW, **given)
        assert (done.returncode, done.stderr) == (0, "")
        cpus, threads = json.loads(done.stdout)
        return cpus, threads


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path / "machine")
    found.program("temper-rank", PROGRAM.read_text())
    return found


LAUNCHERS = {
    "torchrun": {"LOCAL_RANK": "{}", "LOCAL_WORLD_SIZE": "2"},
    "open-mpi": {"OMPI_COMM_WORLD_LOCAL_RANK": "{}", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "hydra": {"MPI_LOCALRANKID": "{}", "MPI_LOCALNRANKS": "2"},
    "slurm": {"SLURM_LOCALID": "{}", "SLURM_GTIDS": "4,5", "SLURM_STEP_ID": "0"},
}


def as_rank(number: int, launcher: str = "torchrun") -> dict[str, str]:
    return {name: value.format(number) for name, value in LAUNCHERS[launcher].items()}


# ---------------------------------------------------------------- processes


@two_cpus
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_rank_runs_on_the_cpus_beside_its_gpu(machine: Machine, launcher: str) -> None:
    machine.gpus(str(HERE[0]), str(HERE[1]))
    assert [machine.finds(**as_rank(number, launcher)) for number in (0, 1)] == [
        ([cpu], "1") for cpu in HERE[:2]
    ]
    assert len((machine.root / "asked").read_text().splitlines()) == 2  # nvidia-smi, once a rank


@two_cpus
def test_the_command_takes_the_place_of_the_program(machine: Machine) -> None:
    machine.gpus(str(HERE[1]))
    with subprocess.Popen(
        [machine.installed, "sh", "-c", "echo $$"], env=machine.environment(), stdout=subprocess.PIPE
    ) as done:
        output, _ = done.communicate(timeout=60)
    assert int(output) == done.pid


@two_cpus
def test_narrower_cpus_of_a_scheduler_win(machine: Machine) -> None:
    machine.gpus(f"{HERE[0]},{HERE[1]}")
    narrow = {"preexec_fn": lambda: os.sched_setaffinity(0, {HERE[1]})}
    assert machine.finds(process=narrow)[0] == [HERE[1]]


@two_cpus
def test_cpus_that_are_all_elsewhere_stay_and_that_is_said(machine: Machine) -> None:
    machine.gpus(str(HERE[0]))
    narrow = {"preexec_fn": lambda: os.sched_setaffinity(0, {HERE[1]})}
    done = machine.run(sys.executable, "-c", SHOW, process=narrow)
    assert json.loads(done.stdout) == [[HERE[1]], "1"]
    assert re.search(rf"not bound: .*{HERE[1]} is beside .*{machine.addresses[0]}", done.stderr)


def no_gpus(machine: Machine) -> None:
    machine.gpus()


def no_program(machine: Machine) -> None:
    pass


def broken_program(machine: Machine) -> None:
    machine.program("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML'; exit 9\n")


def strange_program(machine: Machine) -> None:
    machine.program("nvidia-smi", "#!/bin/sh\necho what; printf '\\377'\n")


def no_device(machine: Machine) -> None:
    machine.gpus("0")
    (machine.root / "sys/bus/pci/devices" / machine.addresses[0] / "local_cpulist").unlink()


def several_models(machine: Machine) -> None:
    machine.gpus("0", "0", names=[H100, "NVIDIA L4"])


def divided(machine: Machine) -> None:
    machine.gpus("0", "0", mig="Enabled")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (no_gpus, "no GPU is visible"),
        (no_program, "nvidia-smi: No such file"),
        (broken_program, "Failed to initialize NVML"),
        (strange_program, ""),
        (no_device, "local_cpulist"),
        (several_models, "CUDA_DEVICE_ORDER"),
        (divided, "MIG"),
    ],
)
def test_what_keeps_it_from_binding_is_one_line_and_the_command_runs(
    machine: Machine, prepare: Any, said: str
) -> None:
    prepare(machine)
    done = machine.run(sys.executable, "-c", SHOW, **as_rank(0))
    assert json.loads(done.stdout)[0] == HERE
    assert done.stderr.startswith("temper-rank: rank 0: not bound: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_nvidia_smi_that_hangs_delays_the_command_only(machine: Machine) -> None:
    machine.program("nvidia-smi", "#!/bin/sh\nexec sleep 600\n")
    impatient = PROGRAM.read_text().replace("ANSWER_S = 60", "ANSWER_S = 0.1")
    machine.program("temper-rank", impatient)
    words = ["temper-rank", "sh", "-c", "echo runs; ps --no-headers --ppid $$ --format comm"]
    done = subprocess.run(words, env=machine.environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["runs", "ps"]  # and nothing is left of it
    assert done.stderr == "temper-rank: not bound: nvidia-smi did not answer in 0.1 s\n"


def test_a_fault_of_its_own_keeps_no_command_from_running(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(environment: dict[str, str]) -> None:
        raise RuntimeError("boom")

    started = []
    monkeypatch.setattr(rank, "RankPlan", broken)
    monkeypatch.setattr(os, "execvpe", lambda *words: started.append(words[1]))
    monkeypatch.setattr(signal, "signal", lambda *words: None)
    rank.main(["true"])
    assert started == [["true"]]
    assert "boom" in capfd.readouterr().err


def test_the_jobs_python_is_not_the_programs(machine: Machine) -> None:
    machine.gpus(str(HERE[0]))
    (machine.root / "subprocess.py").write_text("raise SystemExit('of the job')\n")
    done = machine.run("printenv", "PYTHONHOME", PYTHONHOME="/nowhere", PYTHONPATH=str(machine.root))
    assert (done.stdout, done.stderr) == ("/nowhere\n", "")


def test_the_command_gets_what_the_program_was_started_with(machine: Machine) -> None:
    """Its environment in a C locale, pipes that end it, and descriptors such as Hydra's PMI_FD."""
    machine.gpus(str(HERE[0]))
    reading, writing = os.pipe()
    script = "env; grep SigIgn /proc/self/status; echo here >/dev/fd/$0"
    done = machine.run("sh", "-c", script, str(writing), OMP_NUM_THREADS="7", process={"pass_fds": [writing]})
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "here\n"
    assert "OMP_NUM_THREADS=7\n" in done.stdout
    assert "LC_CTYPE" not in done.stdout
    assert int(done.stdout.split()[-1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "expected a command"),
        (["--pirnt"], 2, "expected a command"),
        (["--print", "true"], 2, "expected a command"),
        (["--"], 2, "expected a command"),
        (["nothing-of-this-name"], 127, "nothing-of-this-name: no such command"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (["--", "sh", "-c", "exit 3"], 3, ""),
    ],
)
def test_a_wrong_call_is_one_sentence_and_a_status_of_its_own(
    machine: Machine, words: list[str], status: int, said: str
) -> None:
    machine.gpus(str(HERE[0]))
    done = machine.run(*words)
    assert (done.returncode, said in done.stderr) == (status, True)
    assert done.stderr.count("\n") == (1 if said else 0)


def test_an_operator_sees_in_one_line_what_a_rank_would_get(machine: Machine) -> None:
    machine.gpus(str(HERE[0]), str(HERE[0]))
    done = machine.run("--print", **as_rank(1))
    assert done.stdout == f"rank 1 of 2: GPU 0000:1b:00.0, CPUs {HERE[0]}; OMP_NUM_THREADS=1\n"
    done = machine.run("--print", OMP_NUM_THREADS="5")
    assert re.fullmatch(
        r"no rank: not bound: no launcher .*; OMP_NUM_THREADS=5 \(set already\)\n", done.stdout
    )


# ---------------------------------------------------------------- launchers


def torchrun(machine: Machine, *command: str, **given: str) -> str:
    """What two ranks of a real torchrun print."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", *command]
    done = subprocess.run(
        [TORCH_PYTHON, *words], env=machine.environment(**given), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([sum(os.sched_getaffinity(0)) + 1])
dist.all_reduce(total)
dist.barrier()  # gloo ends a rank whose peer has gone
dist.destroy_process_group()
print(f"{sorted(os.sched_getaffinity(0))} {total.item()}\\n", end="")
"""


@two_cpus
@needs_torch
def test_ranks_of_torchrun_reduce_each_on_its_own_cpus(machine: Machine) -> None:
    machine.gpus(str(HERE[0]), str(HERE[1]))
    shown = torchrun(machine, "temper-rank", TORCH_PYTHON, "-c", ALL_REDUCE)
    total = HERE[0] + HERE[1] + 2
    assert sorted(shown.splitlines()) == sorted(f"[{cpu}] {total}" for cpu in HERE[:2])


@needs_torch
def test_the_one_thread_that_torchrun_sets_is_no_users_own(machine: Machine) -> None:
    """A shell between torchrun and the program is not taken for torchrun."""
    machine.gpus(str(HERE[0]), str(HERE[0]))
    machine.program("both", "#!/bin/sh\ntemper-rank --print\nexec temper-rank --print\n")
    assert torchrun(machine, "both").count("OMP_NUM_THREADS=1\n") == 4
    own = torchrun(machine, "temper-rank", "--print", OMP_NUM_THREADS="1")
    assert own.count("OMP_NUM_THREADS=1 (set already)\n") == 2


@pytest.mark.skipif(programs() is None, reason="python3 -m tools.bootstrap schedulers")
def test_tasks_of_slurm_have_the_gpus_of_their_numbers(machine: Machine, cluster: Cluster) -> None:
    machine.gpus(*[str(HERE[0])] * 8)
    cluster.environment.update(machine.environment())
    with cluster.running():
        done = cluster.run("srun", "--ntasks=3", "--gres=gpu:3", machine.installed, "--print")
        shown = re.findall(r"rank (\d) of (\d): GPU (\S+),", done.stdout)
        assert sorted(shown) == [(str(n), "3", machine.addresses[n]) for n in range(3)], done.stderr
        # Each task with one GPU; without control groups, nvidia-smi lists all of them.
        one = cluster.run("srun", "--ntasks=2", "--gpus-per-task=1", machine.installed, "--print")
        shown = re.findall(r"rank (\d) of 2: GPU (\S+),", one.stdout)
        assert sorted(shown) == [(str(n), machine.addresses[n]) for n in range(2)], one.stderr


# ---------------------------------------------------------------- which GPU


@pytest.fixture
def asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that this process itself looks at."""
    monkeypatch.setattr(rank, "ROOT", machine.root)
    monkeypatch.setenv("PATH", f"{machine.root / 'bin'}:/usr/bin:/bin")
    return machine


@pytest.mark.parametrize(
    ("visible", "number", "expected"),
    [
        ("3,1", 0, 3),
        ("3,1", 1, 1),
        ("2", 5, 2),  # one is visible: every rank has that one
        ("GPU-2", 0, 2),
        ("GPU-30c0ffee-3,GPU-1", 1, 1),
        (" 1 , 2 ", 1, 2),
        ("1,9,2", 0, 1),  # CUDA's list ends at the first that is not there
        ("1,9,2", 7, 1),
        ("1,-1,2", 7, 1),
    ],
)
def test_a_rank_has_the_gpu_that_cuda_shows_it(
    asked: Machine, visible: str, number: int, expected: int
) -> None:
    asked.gpus("0", "0", "0", "0")
    plan = rank.RankPlan({"CUDA_VISIBLE_DEVICES": visible, **as_rank(number)})
    assert plan.gpu
    assert plan.gpu.address == asked.addresses[expected]


@pytest.mark.parametrize("visible", ["", "-1", "GPU-9", "GPU-"])
def test_a_rank_without_a_gpu_is_not_bound(asked: Machine, visible: str) -> None:
    asked.gpus("0", "0")
    assert rank.RankPlan({"CUDA_VISIBLE_DEVICES": visible, **as_rank(0)}).unbound == "no GPU is visible"


@pytest.mark.parametrize("status", [0, 14])
def test_a_warning_of_nvidia_smi_is_no_gpu(asked: Machine, status: int) -> None:
    asked.gpus("0", "0")
    warning = "WARNING: infoROM is corrupted at gpu 0000:1B:00.0"
    asked.program("nvidia-smi", f"#!/bin/sh\ncat {asked.root}/listed\necho '{warning}'\nexit {status}\n")
    plan = rank.RankPlan(as_rank(1))
    assert (plan.unbound, plan.gpu and plan.gpu.address) == ("", asked.addresses[1])


def test_a_rank_beyond_the_gpus_is_not_bound(asked: Machine) -> None:
    asked.gpus("0", "0")
    assert rank.RankPlan({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}).unbound == (
        "rank 2 has no GPU of its own: 2 are visible"
    )


@pytest.mark.parametrize("launcher", ["slurm", "open-mpi", "hydra"])
def test_one_task_that_sees_several_gpus_is_not_bound_to_the_first(asked: Machine, launcher: str) -> None:
    """A torchrun that srun starts, or a server over all GPUs: its workers would share the CPUs of one."""
    asked.gpus("0", "0")
    size = {"open-mpi": "OMPI_COMM_WORLD_LOCAL_SIZE", "hydra": "MPI_LOCALNRANKS"}.get(launcher)
    alone = {size: "1"} if size else {"SLURM_GTIDS": "4"}
    assert rank.RankPlan({**as_rank(0, launcher), **alone}).unbound == (
        "the node's only rank, and 2 GPUs are visible: it may use them all"
    )


def test_several_models_are_told_apart_by_uuid_or_in_the_order_of_pci(asked: Machine) -> None:
    asked.gpus("0", "0", names=["NVIDIA L4", H100])
    for given in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}):
        plan = rank.RankPlan({**given, **as_rank(1)})
        assert plan.gpu
        assert plan.gpu.address == asked.addresses[1]
    assert "CUDA_DEVICE_ORDER" in rank.RankPlan({"CUDA_VISIBLE_DEVICES": "1"}).unbound


def test_an_instance_of_mig_has_the_cpus_of_its_gpu(asked: Machine) -> None:
    asked.gpus("0", "0", mig="Enabled")
    (asked.root / "instances").write_text(
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00c0ffee-0)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-aaaa-1)\n"
        "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-10c0ffee-1)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-bbbb-1)\n"
    )
    plan = rank.RankPlan({"CUDA_VISIBLE_DEVICES": "MIG-bbbb-1", **as_rank(0)})
    assert plan.gpu
    assert plan.gpu.address == asked.addresses[1]


def test_a_domain_of_pci_is_written_as_in_sys() -> None:
    assert rank.Gpu("GPU-1, 00000001:0A:00.0, [N/A], L4").address == "0001:0a:00.0"
    assert rank.Gpu("GPU-1, 00010000:0A:00.0, [N/A], L4").address == "10000:0a:00.0"


# ---------------------------------------------------------------- which rank


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"SLURM_LOCALID": "0", "SLURM_GTIDS": "0", **as_rank(1, "open-mpi")}, (1, 2)),
        ({**as_rank(1, "slurm"), "LOCAL_RANK": "1"}, (1, 2)),  # a script's own export
        ({"LOCAL_RANK": "3"}, (3, None)),
        ({"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "x"}, (None, None)),
        ({"SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}, (None, None)),  # a batch script
        ({"SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_STEP_ID": "4294967291"}, (None, None)),
        ({"SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_STEP_ID": "4294967290"}, (None, None)),
    ],
)
def test_the_innermost_launcher_says_which_rank_it_is(given: dict[str, str], expected: Any) -> None:
    found = rank.Rank(given)
    assert (found.number, found.ranks) == expected


# ---------------------------------------------------------------- how many threads

# Two sockets of 24 cores with two threads each, GPUs 0 to 3 beside the first.
NODE = [set(range(24)) | set(range(48, 72)), set(range(24, 48)) | set(range(72, 96))]
ALL = NODE[0] | NODE[1]


@pytest.fixture
def hgx(asked: Machine) -> Machine:
    asked.gpus(*["0-23,48-71"] * 4, *["24-47,72-95"] * 4)
    asked.cores(*(f"{cpu},{cpu + 48}" for cpu in range(48)))
    return asked


def threads(monkeypatch: pytest.MonkeyPatch, own: set[int], launcher: set[int], **given: str) -> int:
    """The threads of a rank that may use its own CPUs and whose launcher may use these."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: launcher if process else own)
    environment = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", **given}
    return rank.RankPlan(environment).threads


def test_ranks_share_the_cores_beside_their_gpus(hgx: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads(monkeypatch, ALL, ALL) == 6  # 24 cores, 4 ranks
    assert threads(monkeypatch, ALL, ALL, LOCAL_WORLD_SIZE="2") == 12
    assert threads(monkeypatch, ALL, ALL, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0") == 24
    # torchrun --numa-binding=node, mpirun --map-by numa: the same CPUs, and still shared by four
    assert threads(monkeypatch, NODE[0], ALL) == 6


def test_cpus_that_a_launcher_gave_one_rank_alone_are_not_divided_again(
    hgx: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {6, 7, 8, 9, 10, 11, 54, 55, 56, 57, 58, 59}
    assert threads(monkeypatch, own, ALL) == 6
    assert threads(monkeypatch, own, ALL, CUDA_VISIBLE_DEVICES="1") == 6  # one GPU a task


def test_cpus_that_all_ranks_were_given_together_are_divided(
    hgx: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {0, 1, 2, 3, 48, 49, 50, 51}  # taskset 0-3,48-51 torchrun --nproc-per-node=2
    assert threads(monkeypatch, few, few, LOCAL_WORLD_SIZE="2") == 2
    assert threads(monkeypatch, few, few) == 1


def test_each_task_of_slurm_that_sees_its_own_gpu_alone_has_its_part(
    hgx: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads(monkeypatch, ALL, ALL, CUDA_VISIBLE_DEVICES="1") == 6


def test_the_nodes_number_is_not_exceeded(hgx: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    hgx.number(4)
    assert threads(monkeypatch, ALL, ALL) == 4


def test_a_users_own_number_wins(hgx: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads(monkeypatch, ALL, ALL, OMP_NUM_THREADS="40") == 0
    assert threads(monkeypatch, ALL, ALL, OMP_NUM_THREADS="") == 6


@pytest.mark.parametrize(
    ("written", "expected"), [("1600000 100000", 2), ("100000 100000", 1), ("max 100000", 6)]
)
def test_a_quota_of_the_cgroup_is_divided_by_the_ranks(
    hgx: Machine, monkeypatch: pytest.MonkeyPatch, written: str, expected: int
) -> None:
    path = hgx.root / "sys/fs/cgroup/cpu.max"
    path.parent.mkdir(parents=True)
    path.write_text(f"{written}\n")
    assert threads(monkeypatch, ALL, ALL) == expected


def test_a_rank_that_is_not_bound_has_its_part_of_all_cores(
    hgx: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hgx.program("nvidia-smi", "#!/bin/sh\nexit 1\n")
    assert threads(monkeypatch, ALL, ALL) == 6  # 48 cores, 8 ranks


@pytest.mark.parametrize("text", ["0-23,48-71", "3", "0,2,4-5"])
def test_lists_of_cpus_are_the_kernels(text: str) -> None:
    assert rank.written(rank.cpu_list(f"{text}\n")) == text
    assert rank.cpu_list("\n") == set()
