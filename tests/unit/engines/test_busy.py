"""Containers with a GPU are found by their device files, whoever runs them, computing or not."""

from pathlib import Path

import pytest
from ansible.module_utils.temper.driver import holders
from ansible.module_utils.temper.engines import busy

HOST_GROUP = "0::/system.slice/ssh.service\n"
DOCKER_GROUP = f"0::/system.slice/docker-{'ab' * 32}.scope\n"


class Proc:
    """A process table."""

    def __init__(self, path: Path) -> None:
        self.path = path / "proc"
        self.host = path / "host"
        (self.host / "dev").mkdir(parents=True)
        (self.host / "dev/nvidia0").touch()
        self.add("self", self.host)

    def add(self, pid: str, root: Path | None, group: str = HOST_GROUP, *open_files: str) -> None:
        process = self.path / pid
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text("python3\n")
        (process / "cgroup").write_text(group)
        if root:
            (process / "root").symlink_to(root)
        for number, name in enumerate(open_files):
            (process / "fd" / str(number)).symlink_to(name)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    table = Proc(tmp_path)
    monkeypatch.setattr(busy, "PROC", table.path)
    return table


def root(path: Path, *devices: str) -> Path:
    (path / "dev").mkdir(parents=True)
    for name in devices:
        (path / "dev" / name).touch()
    return path


def pids() -> list[int]:
    return [process.pid for process in busy.gpu_processes()]


def test_an_idle_container_with_a_gpu_is_found(proc: Proc, tmp_path: Path) -> None:
    proc.add("10", root(tmp_path / "container", "null", "nvidiactl", "nvidia3"))
    assert pids() == [10]
    assert str(busy.gpu_processes()[0]) == "python3 (process 10)"


def test_a_container_without_a_gpu_is_none(proc: Proc, tmp_path: Path) -> None:
    proc.add("10", root(tmp_path / "container", "null"), DOCKER_GROUP)
    assert pids() == []


@pytest.mark.parametrize(
    "group",
    [
        "0::/system.slice/snap.canonical-livepatch.canonical-livepatchd.service\n",
        "0::/user.slice/user-1000.slice/snap.firefox.firefox-ab12.scope\n",
        "2:devices:/system.slice/snap.lxd.daemon.service\n0::/system.slice/snap.lxd.daemon.service\n",
    ],
)
def test_a_snap_that_sees_the_hosts_devices_is_no_container(proc: Proc, tmp_path: Path, group: str) -> None:
    core = root(tmp_path / "core22", "null", "nvidiactl", "nvidia0")
    proc.add("10", core, group)
    assert pids() == []
    proc.add("11", core, group, "/dev/nvidia0")
    proc.add("12", root(tmp_path / "container", "nvidia0"), f"0::/snap.docker.dockerd/docker/{'ab' * 32}\n")
    assert pids() == [11, 12]


def test_a_process_of_the_host_that_uses_a_gpu_is_none(proc: Proc) -> None:
    proc.add("10", proc.host, HOST_GROUP, "/dev/nvidia0")
    assert pids() == []


@pytest.mark.parametrize(
    "group",
    [
        DOCKER_GROUP,
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'ab' * 32}.scope\n",
        f"12:devices:/docker/{'ab' * 32}\n",
        f"0::/machine.slice/libpod-{'ab' * 32}.scope/container\n",
        f"0::/machine.slice/crio-{'ab' * 32}.scope\n",
    ],
)
def test_a_container_that_hides_its_device_files_is_found_by_what_it_has_open(proc: Proc, group: str) -> None:
    proc.add("10", proc.host, group, "/etc/hosts", "/dev/nvidia-uvm")
    assert pids() == [10]


def test_a_folder_of_device_files_is_looked_through_only_so_far(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user makes his own, with as many names as he likes."""
    proc.add("10", root(tmp_path / "container", "nvidia0"))
    monkeypatch.setattr(holders, "MOST_DEVICES", 0)
    assert pids() == []


def test_what_ends_while_we_look_and_kernel_threads_are_passed_over(proc: Proc) -> None:
    proc.add("2", None)
    (proc.path / "3").mkdir()
    assert pids() == []
