"""What a process finds in its environment, by each way in which a job starts; a user's own value wins.

On Debian 12 nothing is installed but the settings; Debian 13 has the stack, Podman, Docker and containerd,
which are new enough for CDI there. containerd is asked through its CRI plugin, as kubelet does, and by ctr.
NCCL itself is not asked: that a variable wins over /etc/nccl.conf is in its source.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.process import LabError
from tests.lab.settings import ADMINISTRATOR, CHECKOUT, Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="reach")
FLEET = Fleet(LAB)
NODES = LAB.nodes(2)
BARE, PROVISIONED = NODES  # Debian 12, Debian 13
THREADS, OWN = "3", "7"
WISH = {
    "compute_environment_omp_num_threads": int(THREADS),
    "compute_environment_nccl": {"NCCL_IB_TC": 106},
    "compute_environment_profile": True,
    "compute_environment_services": ["reach", "reach-own"],
    "compute_environment_slurm_task_prolog": True,
}
PLAY = """\
- hosts: gpu_nodes
  gather_facts: false
  become: true
  vars: {preflight_plan_file: ""}
  tasks:
    - ansible.builtin.import_role: {name: preflight, rolespec_validate: false}
      vars: {__preflight_simulate: false}
    - ansible.builtin.import_role: {name: compute_environment, rolespec_validate: false}
"""
SHOW = "echo ${OMP_NUM_THREADS-none}"
SHOW_IN_UNIT = SHOW.replace("$", "$$")  # else systemd puts in what it knows
SERVICE = '[Service]\\nType=oneshot\\n%sExecStart=/bin/sh -c "%s >%s"\\n'
PODMAN = "podman --root=/var/tmp/podman --runroot=/run/podman-test --storage-driver=vfs"
IMAGE = "docker.io/library/tiny:latest"
JOB = f"{{options}} {IMAGE} {{command}}"
# No network, and nothing that the node's kernel does not lend: limits of processes, of locked memory above
# its own, shares of the CPUs, an overlay on its own. ctr can lose the output of a short job, its log cannot.
RUN = {
    "podman": f"{PODMAN} run --rm --network=none --runtime=crun --cgroups=disabled {JOB}",
    "docker": f"docker run --rm --network=none --ulimit=memlock=8388608:8388608 {JOB}",
    "cri": f"python3 /root/cri/run.py {JOB}",
    "ctr": "ctr run --rm --snapshotter=native --cpu-shares=0 --log-uri=file:///root/job-$$.log "
    f"{JOB.replace(IMAGE, f'{IMAGE} job-$$')}; cat /root/job-$$.log",
}
# The same for the CRI plugin, by its configuration. A pod's own process runs the image's command.
CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
disable_cgroup = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""
GPU = "--device=nvidia.com/gpu=all"
PROLOG = "/usr/local/lib/temper/slurm-task-prolog"
NCCL, SETTING = "grep -v ^# /etc/nccl.conf", "NCCL_IB_TC=106"
MOUNTED = "/var/run/cdi/temper-nccl.conf"
# A specification of the test's own, with a variable: Temper's has none.
VARIABLE = f"""\
cdiVersion: 0.5.0
kind: lab.test/thing
devices: [{{name: one, containerEdits: {{env: [OMP_NUM_THREADS={THREADS}]}}}}]
"""
WITH_CDI = ("podman", "docker", "cri")
each_engine = pytest.mark.parametrize("engine", WITH_CDI)
each_node = pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)


def services(folder: str, output: str) -> str:
    """A script that writes two services, which print their threads: one says nothing of them, one its own."""
    own = f"Environment=OMP_NUM_THREADS={OWN}\\n"
    return f"mkdir -p {folder}; " + "; ".join(
        f"printf '{SERVICE % (more, SHOW_IN_UNIT, f'{output}/{name}')}' >{folder}/{name}.service"
        for name, more in (("reach", ""), ("reach-own", own))
    )


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nodes with all that an operator may want; the play that settles them."""
    play = tmp_path_factory.mktemp("play") / "environment.yml"
    play.write_text(PLAY)
    with FLEET.booted():
        prepare_containerd()
        provision = {
            "container_engines_install": ["docker.io", "podman"],
            "container_engines_manage": ["docker", "containerd", "podman"],
        }
        run = FLEET.playbook("provision", PROVISIONED, **provision, nvidia_stack_reboot_ok=True)
        assert run.status == 0, run.output
        on_node(
            PROVISIONED,
            'mkdir -p /root/tiny/bin; cp "$(command -v busybox)" /root/tiny/bin/sh;'
            "tar --create --file=/root/tiny.tar --directory=/root/tiny .;"
            f"{PODMAN} import --quiet /root/tiny.tar {IMAGE};"
            f"docker import --change 'CMD /bin/sh -c \"sleep 600\"' - {IMAGE} </root/tiny.tar;"
            f"docker save --output=/root/image.tar {IMAGE};"
            "for space in default k8s.io; do"
            " ctr --namespace=$space images import --snapshotter=native /root/image.tar; done",
            timeout_s=1800,
        )
        for node in NODES:
            on_node(node, services("/etc/systemd/system", "/run"))
        run = settle(play)
        assert run.status == 0, run.output
        yield play


def prepare_containerd() -> None:
    """Install containerd as it works in a lab's node, and what speaks to its CRI plugin."""
    packages = "containerd crun busybox-static protobuf-compiler python3-protobuf python3-grpcio"
    cri = CHECKOUT / "tests/lab/cri"
    files = {f"/root/cri/{name}": (cri / name).read_text() for name in ("run.py", "runtime.proto")}
    files["/etc/containerd/config.toml"] = CONTAINERD
    on_node(
        PROVISIONED,
        f"apt-get update -qq; apt-get install -qq --no-install-recommends {packages} >/dev/null 2>&1;"
        "mkdir -p /root/cri /etc/cdi\n"
        + "".join(f"cat >{path} <<'END'\n{text}END\n" for path, text in files.items())
        + "protoc --proto_path=/root/cri --python_out=/root/cri runtime.proto; systemctl restart containerd",
        timeout_s=1800,
    )


def settle(play: Path, **variables: object) -> Run:
    """Have the role settle both nodes."""
    words = ["--extra-vars", json.dumps({**WISH, **variables})]
    return FLEET.run(["ansible-playbook", str(play), *words])


def ssh(node: Node, command: str = "", script: str = "") -> str:
    """What a command prints over a new connection; without one, a login shell that reads the script."""
    options = (
        f"-i{LAB.ssh_key}",
        f"-oUserKnownHostsFile={LAB.known_hosts}",
        "-oBatchMode=yes",
        "-oControlPath=none",
        "-oIdentitiesOnly=yes",
    )
    words = [
        "ssh",
        "-F/dev/null",
        "-T",
        *options,
        f"{ADMINISTRATOR}@{node.address}",
        *filter(None, [command]),
    ]
    done = subprocess.run(words, input=script, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def container(engine: str, options: str, command: str) -> str:
    """What a command prints in a container."""
    script = RUN[engine].format(options=options, command=f"/bin/sh -c '{command}'")
    return on_node(PROVISIONED, script).strip()


@pytest.mark.usefixtures("settled")
@each_node
def test_a_login_shell_has_the_threads_and_the_users_own_win(node: Node) -> None:
    assert ssh(node, script=SHOW) == THREADS
    assert ssh(node, f"OMP_NUM_THREADS={OWN} bash -lc '{SHOW}'") == OWN


@pytest.mark.usefixtures("settled")
@each_node
def test_a_command_over_ssh_has_them_where_it_asks_for_a_login_shell(node: Node) -> None:
    assert ssh(node, SHOW) == "none"
    assert ssh(node, f"bash -lc '{SHOW}'") == THREADS
    assert ssh(node, "cat /etc/nccl.conf").startswith("NCCL_SOCKET_IFNAME==")


@pytest.mark.usefixtures("settled")
@each_node
def test_a_service_that_is_named_has_them_and_no_other_service(node: Node) -> None:
    on_node(node, "systemctl start reach reach-own")
    assert on_node(node, "cat /run/reach /run/reach-own").split() == [THREADS, OWN]
    assert on_node(node, f"systemd-run --wait --pipe --quiet sh -c '{SHOW_IN_UNIT}'").strip() == "none"


@pytest.mark.usefixtures("settled")
@each_node
def test_a_users_service_has_them_and_its_own_win(node: Node) -> None:
    # The manager may have started before the settings were there.
    script = (
        f"set -e; {services('~/.config/systemd/user', '/tmp/user')}; mkdir -p /tmp/user;"
        "systemctl --user daemon-reload; systemctl --user start reach reach-own;"
        "echo $(cat /tmp/user/reach /tmp/user/reach-own)"
    )
    assert ssh(node, script=script) == f"{THREADS} {OWN}"


@pytest.mark.usefixtures("settled")
@each_node
def test_slurms_task_has_them_up_to_its_cpus_and_its_own_win(node: Node) -> None:
    cpu = ssh(node, "taskset -cp $$ | sed 's/.*: \\([0-9]*\\).*/\\1/'")
    task = "env -i SLURM_STEP_ID=0"
    assert ssh(node, f"{task} taskset -c {cpu} {PROLOG}") == "export OMP_NUM_THREADS=1"
    cpus = min(int(THREADS), int(ssh(node, "nproc")))
    assert ssh(node, f"{task} {PROLOG}") == f"export OMP_NUM_THREADS={cpus}"
    assert ssh(node, f"{task} OMP_NUM_THREADS={OWN} {PROLOG}; echo nothing") == "nothing"
    assert ssh(node, f"env -i SLURM_STEP_ID=-5 {PROLOG}; echo nothing") == "nothing"


@pytest.mark.usefixtures("settled")
@each_node
def test_a_rank_has_the_threads_up_to_its_cores_and_its_own_win(node: Node) -> None:
    """The lab's GPUs are none of the kernel's: /sys says nothing of them, and the command runs unbound."""
    cores = int(ssh(node, "cat /sys/devices/system/cpu/cpu*/topology/thread_siblings_list | sort -u | wc -l"))
    assert ssh(node, f"temper-rank sh -c '{SHOW}' 2>/dev/null") == str(min(int(THREADS), cores))
    assert ssh(node, f"OMP_NUM_THREADS={OWN} temper-rank sh -c '{SHOW}' 2>/dev/null") == OWN
    assert ssh(node, "temper-rank true 2>&1").startswith("temper-rank: not bound: ")


@pytest.mark.usefixtures("settled")
def test_a_rank_runs_on_the_cpus_beside_its_gpu() -> None:
    """The simulated nvidia-smi, and a /sys of the test's that has the GPU beside the last CPU."""
    cpu = int(ssh(PROVISIONED, "nproc --all")) - 1
    query = "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader"
    address = ssh(PROVISIONED, query).lower().removeprefix("0000")
    device = f"/var/tmp/root/sys/bus/pci/devices/{address}"
    on_node(
        PROVISIONED, f"mkdir -p {device}; echo {cpu} >{device}/local_cpulist; ln -s /etc /var/tmp/root/etc"
    )
    rank = "TEMPER_RANK_ROOT=/var/tmp/root LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 temper-rank"
    shown = ssh(
        PROVISIONED, f"{rank} sh -c 'taskset -cp $$ | cut -d: -f2; echo $OMP_NUM_THREADS' 2>&1 | xargs"
    )
    assert shown == f"{cpu} 1"
    assert ssh(PROVISIONED, f"{rank} --print").startswith(f"rank 0 of 1: GPU {address}, CPUs {cpu}; ")


@pytest.mark.usefixtures("settled")
def test_a_login_shell_finds_cudas_compiler_where_it_is_installed() -> None:
    assert ssh(PROVISIONED, script="command -v nvcc") == "/usr/local/cuda/bin/nvcc"
    assert "/usr/local/cuda" not in ssh(BARE, script="echo $PATH")


@pytest.mark.usefixtures("settled")
@each_engine
def test_a_container_with_a_gpu_has_nccls_settings_and_no_other_container(engine: str) -> None:
    assert container(engine, GPU, f"{NCCL} || echo none") == SETTING
    assert container(engine, "", f"{NCCL} || echo none") == "none"
    assert container(engine, f"{GPU} --env=NCCL_IB_TC={OWN}", "echo $NCCL_IB_TC") == OWN


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(("engine", "wins"), [("podman", SETTING), ("docker", "own"), ("cri", SETTING)])
def test_which_mount_of_nccls_file_wins(engine: str, wins: str) -> None:
    on_node(PROVISIONED, "echo own >/root/own.conf")
    assert container(engine, f"{GPU} --volume=/root/own.conf:/etc/nccl.conf", NCCL) == wins


@pytest.mark.usefixtures("settled")
@each_engine
def test_a_variable_in_a_cdi_specification_would_replace_the_users_own(engine: str) -> None:
    on_node(PROVISIONED, f"cat >/etc/cdi/lab.yaml <<'END'\n{VARIABLE}END")
    own = f"--env=OMP_NUM_THREADS={OWN}"
    assert container(engine, f"{own} --device=lab.test/thing=one", SHOW) == THREADS
    assert container(engine, f"{own} {GPU}", SHOW) == OWN


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("engine", ["podman", "docker", "ctr"])
def test_a_container_has_the_threads_where_it_is_given_the_file(engine: str) -> None:
    given = "--env-file=/etc/temper/compute.env"
    assert container(engine, "", SHOW) == "none"
    assert container(engine, given, SHOW) == THREADS
    assert container(engine, f"{given} --env=OMP_NUM_THREADS={OWN}", SHOW) == OWN


@pytest.mark.usefixtures("settled")
def test_ctr_knows_no_cdi_and_has_nccls_settings_where_it_is_given_the_file() -> None:
    with pytest.raises(LabError, match="error stating device path"):
        container("ctr", GPU, NCCL)
    mount = f"--mount=type=bind,src={MOUNTED},dst=/etc/nccl.conf,options=rbind:ro"
    assert container("ctr", mount, NCCL) == SETTING
    assert container("ctr", f"{mount} --env=NCCL_IB_TC={OWN}", "echo $NCCL_IB_TC") == OWN


@pytest.mark.usefixtures("settled")
def test_services_and_containers_have_them_after_a_reboot() -> None:
    labs.reboot(PROVISIONED)
    on_node(PROVISIONED, "systemctl start reach nvidia-cdi-refresh")
    assert on_node(PROVISIONED, "cat /run/reach").strip() == THREADS
    for engine in WITH_CDI:
        assert container(engine, GPU, NCCL) == SETTING


def test_the_second_run_changes_nothing_and_what_nobody_wants_any_more_goes(settled: Path) -> None:
    again = settle(settled)
    assert again.recap.keys() == {node.name for node in NODES}
    assert [again.changed(node) for node in NODES] == [0, 0], again.output
    gone = settle(settled, compute_environment_state="absent")
    assert gone.status == 0, gone.output
    for node in NODES:
        left = (
            "/etc/nccl.conf /etc/temper/*.env /etc/environment.d/*temper* /etc/profile.d/temper-* "
            "/usr/local/bin/temper-rank " + PROLOG
        )
        # containerd's 50-temper.conf is another role's.
        drop_ins = "/etc/systemd/system/*.d/50-temper-compute* /etc/systemd/system/nvidia-cdi*.d/50-temper*"
        manager = "/etc/systemd/system.conf.d/91-temper*"
        assert on_node(node, f"ls -d {left} {drop_ins} {manager} 2>/dev/null || true") == ""
        on_node(node, "systemctl start reach")
        assert on_node(node, "cat /run/reach").strip() == "none"
        assert ssh(node, script=SHOW) == "none"
    for engine in WITH_CDI:
        assert container(engine, GPU, "ls /etc/nccl.conf 2>/dev/null || echo none") == "none"
