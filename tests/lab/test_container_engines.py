"""Real engines on real nodes: Debian's dockerd, containerd and podman, configured, restarted and read back.

What the nodes cannot show: the simulated `nvidia-container-runtime` only runs runc, so GPUs reach containers
through CDI here, which is real; the machine below may not let anybody raise the limit of locked memory, so
containers that are started ask for a lower one; and CRI-O is in no Debian.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import fleet as fleets
from tests.lab.fleet import Run, on_node
from tests.lab.hardening import changed as tasks_by_node
from tests.lab.node import run_inside
from tests.lab.settings import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="docked")
FLEET = fleets.Fleet(LAB)
BY_NAME = {node.name: node for node in LAB.nodes(2)}
OLD, NEW = NODES = tuple(BY_NAME)  # Debian 12: too old for CDI; Debian 13
ALL = ["docker", "containerd", "podman"]
ENGINES = ["docker.io", "containerd", "podman"]
DOCKER = {"container_engines_manage": ["docker"]}
DAEMON_JSON = "/etc/docker/daemon.json"
LIMITS = "/etc/systemd/system/containerd.service.d/50-temper.conf"
PLAY = """\
- hosts: gpu_nodes
  gather_facts: false
  become: true
  vars: {preflight_plan_file: ""}
  tasks:
    - ansible.builtin.import_role: {name: preflight, rolespec_validate: false}
      vars: {__preflight_simulate: false}
    - ansible.builtin.import_role: {name: container_engines, rolespec_validate: false}
"""
# Docker without its command: Debian 13 has it in a package of its own.
ASK = """\
import http.client, socket, sys
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/docker.sock")
connection.request("GET", sys.argv[1])
print(connection.getresponse().read().decode())
"""
DUMP = """\
import json, subprocess, tomllib
dump = subprocess.run(["containerd", "config", "dump"], check=True, capture_output=True, text=True).stdout
print(json.dumps(tomllib.loads(dump)))
"""
RUN = "docker run --rm --network=none --ulimit memlock=8388608:8388608"


class Fleet:
    """The lab's nodes, by the side door and by the role."""

    def __init__(self, directory: Path) -> None:
        self.play = directory / "engines.yml"
        self.play.write_text(PLAY)

    def sh(self, node: str, script: str) -> str:
        return on_node(BY_NAME[node], script).strip()

    def playbook(self, play: Path | str, *arguments: str, **variables: Any) -> Run:
        return FLEET.run(["ansible-playbook", str(play), "--extra-vars", json.dumps(variables), *arguments])

    def role(self, *arguments: str, **variables: Any) -> Run:
        return self.playbook(self.play, *arguments, **{"container_engines_manage": ALL, **variables})

    def info(self, node: str) -> dict[str, Any]:
        info: dict[str, Any] = json.loads(run_inside(BY_NAME[node], ["python3", "-c", ASK, "/info"]))
        return info

    def containerd(self, node: str) -> dict[str, Any]:
        dump: dict[str, Any] = json.loads(run_inside(BY_NAME[node], ["python3", "-c", DUMP]))
        cri: dict[str, Any] = dump["plugins"]["io.containerd.grpc.v1.cri"]
        return cri

    def main_pid(self, node: str, unit: str) -> str:
        return self.sh(node, f"systemctl show --property=MainPID --value {unit}")

    def daemon_json(self, node: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.sh(node, f"cat {DAEMON_JSON}"))
        return document


def changed(run: Run) -> dict[str, int]:
    assert run.status == 0, run.output
    return tasks_by_node(run)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, lab: None) -> Fleet:
    """Nodes without a stack or an engine."""
    return Fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def provisioned(bare: Fleet) -> tuple[Fleet, str]:
    """The nodes with the stack and all engines of Debian, and what Ansible said."""
    # One node has the engines already, the other gets them from the role.
    bare.sh(OLD, f"apt-get install -qq --no-install-recommends {' '.join(ENGINES)} >/dev/null 2>&1")
    result = bare.playbook(
        "playbooks/provision.yml",
        container_engines_install=ENGINES,
        container_engines_manage=ALL,
        nvidia_stack_reboot_ok=True,
    )
    assert result.status == 0, result.output
    for node in NODES:
        # A root file system of one program; Debian's own dash is linked to libc.
        bare.sh(
            node,
            "apt-get install -qq --no-install-recommends busybox-static crun >/dev/null 2>&1;"
            'mkdir -p /root/tiny/bin; cp "$(command -v busybox)" /root/tiny/bin/sh;'
            "tar --create --file=/root/tiny.tar --directory=/root/tiny .;"
            "docker import - tiny </root/tiny.tar",
        )
    return bare, result.said


@pytest.fixture
def fleet(provisioned: tuple[Fleet, str]) -> Iterator[Fleet]:
    """The nodes, for tests that change them: none counts on what another has left, but on no container."""
    fleet, _ = provisioned
    yield fleet
    for node in NODES:
        fleet.sh(node, "docker ps --quiet | xargs --no-run-if-empty docker rm --force >/dev/null")


def test_a_bare_node_without_an_engine_is_left_alone(bare: Fleet) -> None:
    assert changed(bare.role(container_engines_manage=[])) == {OLD: 0, NEW: 0}


def test_check_mode_works_on_a_bare_node(bare: Fleet) -> None:
    assert changed(bare.role("--check")) == {OLD: 0, NEW: 0}


RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd"
TOOLKIT = "/etc/nvidia-container-runtime"
ROOTLESS = """\
# of the users' own Docker
[nvidia-container-cli]
no-cgroups = true # rootless
root = "/run/nvidia/driver"

[nvidia-container-runtime]
mode = "legacy"
"""
UNITS = "/usr/local/lib/systemd/system"
UNIT = "[Service]\nExecStart=/opt/rke2/bin/rke2 600\n"


def test_rke2_is_named_and_the_toolkits_file_gives_its_containers_the_gpus(bare: Fleet) -> None:
    bare.sh(
        OLD,
        f"mkdir -p {RKE2} {TOOLKIT} /opt/rke2/bin {UNITS}; cp /usr/bin/sleep /opt/rke2/bin/rke2;"
        f"echo 'version = 3' >{RKE2}/config.toml; cat >{TOOLKIT}/config.toml <<'END'\n{ROOTLESS}END\n"
        f"cat >{UNITS}/rke2-agent.service <<'END'\n{UNIT}END\n"
        "systemctl daemon-reload; systemctl start rke2-agent",
    )
    try:
        limit = ("--limit", OLD)
        first = bare.role(*limit, container_engines_manage=[])
        assert changed(first) == {OLD: 1}
        said = first.said
        assert f"RKE2 is there ({UNITS}/rke2-agent.service)" in said
        assert "restart rke2-agent or rke2-server" in said
        expected = ROOTLESS.replace("no-cgroups = true", "no-cgroups = false")
        expected = expected.replace("/run/nvidia/driver", "/")
        assert bare.sh(OLD, f"cat {TOOLKIT}/config.toml") == expected.strip()
        assert changed(bare.role(*limit, container_engines_manage=[])) == {OLD: 0}
        absent = bare.role(*limit, container_engines_manage=[], container_engines_state="absent")
        assert changed(absent) == {OLD: 1}
        assert bare.sh(OLD, f"cat {TOOLKIT}/config.toml") == ROOTLESS.strip()
        bare.sh(OLD, f"echo 'BinaryName = \"/usr/bin/nvidia-container-runtime\"' >>{RKE2}/config.toml")
        assert "RKE2 is there" not in bare.role("--check", *limit, container_engines_manage=[]).output
    finally:
        bare.sh(
            OLD,
            f"systemctl stop rke2-agent; rm -r {RKE2} {TOOLKIT} /opt/rke2 {UNITS}/rke2-agent.service;"
            "systemctl daemon-reload",
        )


@pytest.mark.parametrize("node", NODES)
def test_docker_knows_the_runtime(node: str, provisioned: tuple[Fleet, str]) -> None:
    info = provisioned[0].info(node)
    assert info["Runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert info["DefaultRuntime"] == "runc"


@pytest.mark.parametrize("node", NODES)
def test_new_containers_get_shared_memory_and_limits(node: str, provisioned: tuple[Fleet, str]) -> None:
    created = provisioned[0].sh(node, "docker inspect $(docker create tiny /bin/sh)")
    host = json.loads(created)[0]["HostConfig"]
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert host["ShmSize"] == 1 << 30
    assert limits == {"memlock": (-1, -1), "stack": (64 << 20, 64 << 20)}


@pytest.mark.parametrize("node", NODES)
def test_a_container_runs_under_the_runtime(node: str, provisioned: tuple[Fleet, str]) -> None:
    shown = provisioned[0].sh(node, f"{RUN} --runtime=nvidia tiny /bin/sh -c 'ulimit -s; df -k /dev/shm'")
    assert shown.splitlines()[0] == str((64 << 20) // 1024)
    assert shown.split()[-5:-3] == [str((1 << 30) // 1024), "0"]


def test_a_container_gets_the_gpus_through_cdi(provisioned: tuple[Fleet, str]) -> None:
    fleet, _ = provisioned
    loaded = fleet.sh(NEW, "cat /sys/module/nvidia/version")
    shown = fleet.sh(
        NEW, f"{RUN} --device nvidia.com/gpu=all tiny /bin/sh -c 'echo /dev/nvidia* /usr/lib/*/*'"
    )
    assert "/dev/nvidia0" in shown
    assert "/dev/nvidiactl" in shown
    assert f"libcuda.so.{loaded}" in shown


def test_podman_gives_the_gpus_through_cdi(provisioned: tuple[Fleet, str]) -> None:
    # Its overlay driver does not work on the node's own overlay, and the node has no limits of processes.
    podman = "podman --root=/var/tmp/podman --runroot=/run/podman-test --storage-driver=vfs"
    options = "--rm --network=none --runtime=crun --cgroups=disabled --device=nvidia.com/gpu=all"
    shown = provisioned[0].sh(
        NEW,
        f"{podman} import --quiet /root/tiny.tar tiny >/dev/null;"
        f"{podman} run {options} tiny /bin/sh -c 'echo /dev/nvidia*'",
    )
    assert "/dev/nvidia0" in shown


def test_engines_that_are_too_old_for_cdi_are_said_to_be(provisioned: tuple[Fleet, str]) -> None:
    fleet, said = provisioned
    assert "Docker 20.10.24 does not read CDI specifications of the toolkit's version (expected 26.1" in said
    assert "containerd 1.6.20 does not read CDI specifications" in said
    assert "Podman 4.3.1 does not read CDI specifications" in said
    assert "features" not in fleet.daemon_json(OLD)
    assert fleet.info(NEW)["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"]


@pytest.mark.parametrize("node", NODES)
def test_containerd_has_the_runtime_and_keeps_everything_else(
    node: str, provisioned: tuple[Fleet, str]
) -> None:
    fleet, _ = provisioned
    cri = fleet.containerd(node)
    runtimes = cri["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert runtimes["runc"]["runtime_type"] == "io.containerd.runc.v2"
    # Of Debian's own config.toml; a drop-in that names the plugin alone would lose it in containerd 1.6.
    assert cri["cni"]["bin_dir"] == "/usr/lib/cni"
    assert cri.get("enable_cdi", False) is (node == NEW)
    assert "cri linux/amd64 ok" in " ".join(fleet.sh(node, "ctr plugins ls").split())
    assert fleet.sh(node, "systemctl show --property=LimitMEMLOCK --value containerd") == "infinity"


def test_the_second_run_changes_nothing(fleet: Fleet) -> None:
    assert changed(fleet.role()) == {OLD: 0, NEW: 0}


def test_containerds_cgroup_driver_is_copied_from_runc(fleet: Fleet) -> None:
    config = "/etc/containerd/config.toml"
    section = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
    before = fleet.sh(NEW, f"cat {config}")
    fleet.sh(
        NEW,
        f"cat >>{config} <<'END'\n[{section}]\nruntime_type = \"io.containerd.runc.v2\"\n"
        f"[{section}.options]\nSystemdCgroup = true\nEND",
    )
    try:
        assert changed(fleet.role()) == {OLD: 0, NEW: 1}
        runtimes = fleet.containerd(NEW)["containerd"]["runtimes"]
        assert {name: entry["options"]["SystemdCgroup"] for name, entry in runtimes.items()} == {
            "nvidia": True,
            "runc": True,
        }
    finally:
        fleet.sh(NEW, f"cat >{config} <<'END'\n{before}\nEND")


def test_a_change_that_docker_takes_over_live_restarts_nothing(fleet: Fleet) -> None:
    daemons = {node: fleet.main_pid(node, "docker") for node in NODES}
    fleet.sh(NEW, f"{RUN} --detach --device nvidia.com/gpu=all tiny /bin/sh -c 'sleep 600'")
    assert changed(fleet.role(**DOCKER, container_engines_default_runtime=True)) == {
        OLD: 1,
        NEW: 1,
    }
    assert {node: fleet.info(node)["DefaultRuntime"] for node in NODES} == dict.fromkeys(NODES, "nvidia")
    assert {node: fleet.main_pid(node, "docker") for node in NODES} == daemons


def test_docker_is_not_restarted_under_a_container_with_a_gpu(fleet: Fleet) -> None:
    daemon = fleet.main_pid(NEW, "docker")
    fleet.sh(NEW, f"{RUN} --detach --device nvidia.com/gpu=all tiny /bin/sh -c 'sleep 600'")
    before = fleet.daemon_json(NEW)
    refused = fleet.role("--limit", NEW, **DOCKER, container_engines_shm_size="2G")
    assert refused.status != 0
    said = refused.said
    assert (
        "docker must be restarted for a changed configuration, and containers with a GPU are running" in said
    )
    assert "set container_engines_busy_ok: true" in said
    assert fleet.daemon_json(NEW) == before
    assert fleet.main_pid(NEW, "docker") == daemon
    allowed = fleet.role(
        "--limit", NEW, **DOCKER, container_engines_shm_size="2G", container_engines_busy_ok=True
    )
    assert changed(allowed) == {NEW: 1}
    assert fleet.main_pid(NEW, "docker") != daemon


def test_docker_is_not_restarted_under_containers_that_would_end(fleet: Fleet) -> None:
    fleet.sh(OLD, f"{RUN} --detach tiny /bin/sh -c 'sleep 600'")
    refused = fleet.role("--limit", OLD, **DOCKER, container_engines_shm_size="2G")
    assert "a restart of Docker would end its 1 running containers" in refused.said


def test_a_configuration_that_docker_refuses_is_taken_back(fleet: Fleet) -> None:
    drop_in = "/etc/systemd/system/docker.service.d/refuse.conf"
    before = fleet.sh(OLD, f"cat {DAEMON_JSON}")
    fleet.sh(
        OLD,
        f"mkdir -p $(dirname {drop_in}); cat >{drop_in} <<'END'\n[Service]\n"
        f"ExecStartPre=/bin/sh -c '! grep -q 3G {DAEMON_JSON}'\nEND\nsystemctl daemon-reload",
    )
    try:
        refused = fleet.role("--limit", OLD, **DOCKER, container_engines_shm_size="3G")
    finally:
        fleet.sh(OLD, f"rm {drop_in}; systemctl daemon-reload")
    assert refused.status != 0
    said = refused.said
    assert "docker does not work with its new configuration" in said
    assert "its former configuration is back" in said
    assert fleet.sh(OLD, f"cat {DAEMON_JSON}") == before
    assert "nvidia" in fleet.info(OLD)["Runtimes"]


def test_an_option_of_the_unit_that_stands_against_the_file_is_refused(fleet: Fleet) -> None:
    fleet.role("--limit", OLD, **DOCKER, container_engines_shm_size="")
    fleet.sh(OLD, "echo 'DOCKER_OPTS=--default-shm-size=2G' >/etc/default/docker; systemctl restart docker")
    try:
        refused = fleet.role("--limit", OLD, **DOCKER)
    finally:
        fleet.sh(OLD, "rm /etc/default/docker; systemctl restart docker")
    assert refused.status != 0
    assert "docker.service starts dockerd with --default-shm-size=2G" in refused.said


def test_a_conflict_is_found_in_preflight_before_another_stack_is_installed(fleet: Fleet) -> None:
    assert fleet.role("--limit", OLD, **DOCKER).status == 0
    before = fleet.sh(OLD, f"cat {DAEMON_JSON}")
    fleet.sh(OLD, f'sed -i \'s/"1G"/"64M"/\' {DAEMON_JSON}')
    wish = {"nvidia_stack_name": "r580-cuda12.9", "preflight_plan_file": ""}
    try:
        refused = fleet.playbook("playbooks/preflight.yml", "--limit", OLD, **wish)
    finally:
        fleet.sh(OLD, f"cat >{DAEMON_JSON} <<'END'\n{before}\nEND")
    assert refused.status != 0
    assert 'default-shm-size is "64M", set by somebody else' in refused.said
    assert " changed=0 " in refused.output


def test_a_specification_of_another_driver_is_renewed(fleet: Fleet) -> None:
    loaded = fleet.sh(NEW, "cat /sys/module/nvidia/version")
    fleet.sh(NEW, f"sed -i s/{loaded}/535.1.1/ /var/run/cdi/nvidia.yaml")
    result = fleet.role("--limit", NEW, container_engines_manage=["podman"])
    assert changed(result) == {NEW: 1}
    assert f"libcuda.so.{loaded}" in fleet.sh(NEW, "cat /var/run/cdi/nvidia.yaml")


def test_absent_takes_out_what_the_role_put_in_and_nothing_else(fleet: Fleet) -> None:
    assert fleet.role().status == 0
    for node in NODES:
        fleet.sh(node, f"sed -i '1s/{{/{{\\n    \"debug\": true,/' {DAEMON_JSON}")
    # An engine that the role has installed goes, but not with containers in it.
    assert "has containers" in fleet.role("--limit", NEW, container_engines_state="absent").output
    fleet.sh(NEW, "docker rm $(docker ps --all --quiet)")
    assert changed(fleet.role(container_engines_state="absent")) == {OLD: 1, NEW: 1}
    for node in NODES:
        assert fleet.daemon_json(node) == {"debug": True}
        assert fleet.sh(node, f"ls {LIMITS} 2>/dev/null || true") == ""
    assert fleet.sh(NEW, "command -v dockerd containerd podman || true") == ""
    assert "nvidia" not in fleet.info(OLD)["Runtimes"]
    assert list(fleet.containerd(OLD)["containerd"]["runtimes"]) == ["runc"]
    assert fleet.sh(OLD, "dpkg --verify containerd") == ""
    assert changed(fleet.role(container_engines_state="absent")) == {OLD: 0, NEW: 0}
