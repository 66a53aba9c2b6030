"""Processes that hold GPUs are named, with their container or service."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_holders
import pytest
from ansible.module_utils.temper.driver import holders

from tests.unit.each import each
from tests.waiting import wait_until

Run = Callable[..., dict[str, Any]]

ID = "0123456789ab" + "c" * 52


class Proc:
    """A /proc of our own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sys = path / "sys"

    def device(self, address: str, group: int, driver: str = "vfio-pci", vendor: str = "0x10de") -> Path:
        """A PCI device in a group of IOMMU."""
        device = self.sys / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        self.group(device, group)
        return device

    def group(self, device: Path, number: int) -> None:
        device.mkdir(parents=True, exist_ok=True)
        group = self.sys / f"kernel/iommu_groups/{number}"
        group.mkdir(parents=True, exist_ok=True)
        (device / "iommu_group").symlink_to(group)

    def add(self, pid: int, name: str, *open_files: str, cgroup: str = "/user.slice/session-1.scope") -> None:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        for number, target in enumerate(open_files):
            (folder / "fd" / str(number)).symlink_to(target)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(holders, "PROC", tmp_path)
    monkeypatch.setattr(holders, "SYS", tmp_path / "sys")
    (tmp_path / "meminfo").write_text("")
    return Proc(tmp_path)


def test_a_process_that_only_keeps_a_device_open_is_named(proc: Proc, run_module: Run) -> None:
    proc.add(7, "python3", "/dev/nvidia0", "/dev/nvidiactl", "/dev/null")
    proc.add(8, "bash", "/dev/null")
    found = run_module(gpu_holders.main)
    assert [one["pid"] for one in found["holders"]] == [7]
    assert found["sentences"] == ["python3 (process 7) holds /dev/nvidia0, /dev/nvidiactl"]
    assert not found["changed"]


def test_only_names_of_device_files_count(proc: Proc, run_module: Run) -> None:
    """A user has any names in /dev, in a namespace of its own."""
    proc.add(
        7, "python3", *(f"/dev/nvidia0{'x' * length}" for length in range(1, 9)), "/dev/nvidia1 (deleted)"
    )
    proc.add(8, "python3", "/dev/nvidia-caps/../../etc/shadow")
    (one,) = run_module(gpu_holders.main)["holders"]
    assert one["devices"] == ["/dev/nvidia1"]


def test_the_drivers_own_services_are_left_out(proc: Proc, run_module: Run) -> None:
    ours = ("persistenced", "fabricmanager", "imex", "dcgm", "dcgm-exporter")
    for pid, service in enumerate([*(f"nvidia-{name}" for name in ours), "jupyter"], 1):
        proc.add(pid, service, "/dev/nvidia0", cgroup=f"/system.slice/{service}.service")
    (one,) = run_module(gpu_holders.main)["holders"]
    assert one["unit"] == "jupyter.service"


def test_pods_that_watch_stay_through_a_drain_and_those_that_compute_are_named(
    proc: Proc, run_module: Run
) -> None:
    pod = (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-{ID}.scope"
    )
    proc.add(7, "nvidia-device-plugin", "/dev/nvidia0", "/dev/nvidiactl", cgroup=pod)
    proc.add(8, "dcgm-exporter", "/dev/nvidia0", "/dev/nvidiactl", cgroup=f"/kubepods/burstable/pod2/{ID}")
    proc.add(9, "python3", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", cgroup=pod)
    proc.add(10, "python3", "/dev/nvidia0", cgroup=f"/docker/{ID}")
    # A user may call a group of his own as he likes.
    proc.add(11, "python3", "/dev/nvidia0", cgroup="/user.slice/user-1000.slice/user@1000.service/kubepods")
    found = run_module(gpu_holders.main)["holders"]
    assert [(one["pid"], one["container"], one["in_pod"]) for one in found] == [
        (9, ID[:12], True),
        (10, ID[:12], False),
        (11, "", False),
    ]


def test_a_virtual_machine_is_named_with_the_gpus_that_it_has(proc: Proc, run_module: Run) -> None:
    proc.device("0000:19:00.0", 13)
    proc.device("0000:19:00.1", 13, driver="snd_hda_intel")
    (proc.device("0000:3b:00.0", 14) / "vfio-dev/vfio2").mkdir(parents=True)
    files = ("/dev/vfio/vfio", "/dev/vfio/13", "/dev/vfio/devices/vfio2", "/dev/kvm")
    proc.add(7, "qemu-system-x86", *files, cgroup=f"/kubepods/pod1/{ID}")
    found = run_module(gpu_holders.main)
    assert found["sentences"] == [
        f"qemu-system-x86 (process 7, container {ID[:12]}) holds /dev/vfio/13, /dev/vfio/devices/vfio2 "
        "(0000:19:00.0, driver vfio-pci; 0000:3b:00.0, driver vfio-pci)"
    ]


@pytest.mark.parametrize("file", ["/dev/vfio/7", "/dev/vfio/noiommu-7"])
def test_a_virtual_gpu_is_its_gpus(proc: Proc, file: str) -> None:
    gpu = proc.device("0000:19:00.0", 13, driver="nvidia")
    proc.group(gpu / "4b20d080-1b54-4048-85b3-a6a62d165c01", 7)
    proc.add(7, "qemu", file)
    assert [one.gpus for one in holders.holders(computing=True)] == [["0000:19:00.0, driver nvidia"]]


def test_a_group_without_a_gpu_is_nobodys_use_of_one_and_an_unknown_group_is(proc: Proc) -> None:
    proc.device("0000:19:00.0", 13)
    proc.device("0000:c1:00.0", 14, vendor="0x15b3")
    proc.add(7, "dpdk", "/dev/vfio/vfio", "/dev/vfio/14")
    proc.add(8, "qemu", "/dev/vfio/15")
    assert [one.name for one in holders.holders(computing=True)] == ["qemu"]


@pytest.mark.parametrize("driver", ["nouveau", "nvidia"])
def test_who_renders_without_a_display_would_lose_work_and_a_display_none(proc: Proc, driver: str) -> None:
    gpu = proc.device("0000:19:00.0", 13, driver=driver)
    for folder in ("renderD129", "card1/card1-DP-1"):
        (gpu / "drm" / folder).mkdir(parents=True)
    proc.add(7, "ffmpeg", "/dev/dri/renderD129")
    proc.add(8, "Xorg", "/dev/dri/card0")  # of another maker's GPU
    proc.add(9, "kwin_wayland", "/dev/dri/card1", "/dev/dri/renderD129")
    assert [one.pid for one in holders.holders()] == [7, 9]
    assert [str(one) for one in holders.holders(computing=True)] == [
        f"ffmpeg (process 7) holds /dev/dri/renderD129 (0000:19:00.0, driver {driver})"
    ]


class Containers:
    """Processes with roots of their own."""

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.root("host", "nvidia0", "mem")
        (proc.path / "self").mkdir()
        (proc.path / "self/root").symlink_to(proc.path / "roots/host")

    def root(self, name: str, *files: str) -> None:
        folder = self.proc.path / "roots" / name / "dev"
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file).touch()

    def add(self, pid: int, root: str, *open_files: str, cgroup: str = f"/docker/{ID}") -> None:
        self.proc.add(pid, root, *open_files, cgroup=cgroup)
        (self.proc.path / f"{pid}/root").symlink_to(self.proc.path / "roots" / root)


POD = f"/kubepods/burstable/pod2/{ID}"


@pytest.mark.parametrize(
    ("files", "processes", "pids"),
    [
        # A notebook that has not begun.
        (("nvidia0", "nvidiactl", "null"), ((),), [7]),
        # One container is named once, by its first process.
        (("nvidia0",), ((), ()), [7]),
        # Its exporter watches: it is no user, and neither are the processes beside it.
        (("nvidia0",), (("/dev/nvidia0",), ()), []),
        (("nvidia0",), ((), ("/dev/nvidia-uvm",)), [8]),
        # All of the host's devices are no sign of a wish for one.
        (("nvidia0", "mem"), ((),), []),
        (("nvidia0", "kmsg"), ((),), []),
        (("null",), ((),), []),
    ],
)
def test_a_container_that_has_been_given_a_gpu_would_lose_it(
    proc: Proc, files: tuple[str, ...], processes: tuple[tuple[str, ...], ...], pids: list[int]
) -> None:
    containers = Containers(proc)
    containers.root("one", *files)
    for pid, open_files in enumerate(processes, 7):
        containers.add(pid, "one", *open_files)
    assert [one.pid for one in holders.holders(computing=True)] == pids


def test_an_idle_container_is_said_to_be_idle_and_a_pod_is_left_to_its_scheduler(proc: Proc) -> None:
    containers = Containers(proc)
    for number, cgroup in enumerate((f"/docker/{ID}", POD)):
        containers.root(f"c{number}", "nvidia0")
        containers.add(7 + number, f"c{number}", cgroup=cgroup)
    assert [str(one) for one in holders.holders(computing=True)] == [
        f"c0 (process 7, container {ID[:12]}) holds idle /dev/nvidia0"
    ]


def test_a_process_whose_first_thread_has_ended_still_holds(proc: Proc) -> None:
    proc.add(7, "python3")
    (proc.path / "7/task/9/fd").mkdir(parents=True)
    (proc.path / "7/task/9/fd/3").symlink_to("/dev/nvidia-uvm")
    assert [one.pid for one in holders.holders(computing=True)] == [7]


def test_a_device_file_in_another_root_counts_and_a_file_of_its_name_does_not(proc: Proc) -> None:
    folder = proc.path / "srv/dev"
    folder.mkdir(parents=True)
    (folder / "nvidia-uvm").symlink_to("/dev/null")
    (folder / "nvidia0").touch()
    proc.add(7, "chrooted", str(folder / "nvidia-uvm"), str(folder / "nvidia0"))
    (one,) = holders.holders(computing=True)
    assert one.devices == ["/dev/nvidia-uvm"]


def test_every_way_of_nvidias_stack_is_a_use_or_none(proc: Proc) -> None:
    """Files that programs of NVIDIA's stack have open, and whether a reboot would take work from them."""
    watching = ("/dev/nvidiactl", "/dev/nvidia0")
    cuda = (*watching, "/dev/nvidia-uvm")
    rows: dict[str, tuple[tuple[str, ...], bool]] = {
        "cuda": (cuda, True),
        "importer of CUDA IPC": (cuda, True),
        "in a MIG instance": ((*cuda, "/dev/nvidia-caps/nvidia-cap12"), True),
        "nvidia-cuda-mps-server": (cuda, True),
        "client of MPS": (cuda, True),
        "nvidia-cuda-mps-control": ((), False),
        "nvidia-smi": (watching, False),
        "dcgm": ((*watching, "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-nvswitchctl"), False),
        "Xorg": ((*watching, "/dev/nvidia-modeset", "/dev/dri/card0"), False),
    }
    for pid, (name, (files, _)) in enumerate(rows.items(), 7):
        proc.add(pid, name, *files)
    assert {one.name for one in holders.holders(computing=True)} == {
        name for name, (_, used) in rows.items() if used
    }


def test_one_gpu_is_held_by_its_files_in_dev_dri_too(proc: Proc) -> None:
    for minor, address in enumerate(("0000:19:00.0", "0000:3b:00.0")):
        (proc.device(address, minor, driver="nvidia") / f"drm/renderD{minor}").mkdir(parents=True)
        information = proc.path / f"driver/nvidia/gpus/{address}/information"
        information.parent.mkdir(parents=True)
        information.write_text(f"GPU UUID: GPU-{minor}\nDevice Minor: {minor}\n")
        proc.add(10 + minor, "ffmpeg", f"/dev/dri/renderD{minor}")
    assert [one.pid for one in holders.holders(uuid="GPU-1")] == [11]


def test_the_server_that_shares_gpus_among_processes_computes(proc: Proc) -> None:
    proc.add(7, "nvidia-cuda-mps-server", "/dev/nvidia0", "/dev/nvidia-uvm")
    proc.add(8, "imex", "/dev/nvidia-caps-imex-channels/channel0")
    assert [one.pid for one in holders.holders(computing=True)] == [7]
    assert [one.pid for one in holders.holders()] == [7, 8]


def test_a_group_with_a_carriage_return_in_its_name_is_no_service_of_the_driver(proc: Proc) -> None:
    group = "/user.slice/user-7.slice/user@7.service/a\r0::/system.slice/nvidia-persistenced.service"
    proc.add(7, "python3", "/dev/nvidia0", cgroup=group)
    assert [one.unit for one in holders.holders()] == ["user@7.service"]


def test_the_name_of_a_process_is_one_line(proc: Proc) -> None:
    proc.add(7, "a\x1b[2J\rb", "/dev/nvidia0")
    assert [one.name for one in holders.holders()] == ["a?[2J?b"]


@each(
    (f"/system.slice/docker-{ID}.scope", ("0123456789ab", "")),
    (f"/docker/{ID}", ("0123456789ab", "")),
    (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", ("0123456789ab", "")),
    (f"/machine.slice/libpod-{ID}.scope/container", ("0123456789ab", "")),
    ("/system.slice/slurmstepd.scope/job_7", ("", "")),
    ("/system.slice/ssh.service", ("", "ssh.service")),
    ("/user.slice/user-7.slice/user@7.service/app.slice/nvidia-persistenced.service", ("", "user@7.service")),
    (f"/docker-{ID}.scope/system.slice/nvidia-persistenced.service", ("0123456789ab", "")),
    ("/user.slice/user-7.slice/user@7.service/a\r/nvidia-persistenced.service", ("", "user@7.service")),
    ("", ("", "")),
)
def test_a_control_group_says_whose_a_process_is(cgroup: str, belongs: tuple[str, str]) -> None:
    assert holders.belongs_to(f"0::{cgroup}\n") == belongs


def test_a_real_process_is_found_by_what_it_has_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no GPU; any device file will do."""
    monkeypatch.setattr(holders, "DEVICE", re.compile(re.escape(str(tmp_path / "nvidia0"))))
    with (tmp_path / "nvidia0").open("w"):
        assert os.getpid() in [one.pid for one in holders.holders()]
    assert os.getpid() not in [one.pid for one in holders.holders()]


@pytest.mark.component
def test_a_stopped_process_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "DEVICE", re.compile(re.escape(str(tmp_path / "nvidia0"))))
    (tmp_path / "nvidia0").touch()
    program = "import os, signal, sys; file = open(sys.argv[1]); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "nvidia0")]) as stopped:
        try:
            os.waitpid(stopped.pid, os.WUNTRACED)
            assert stopped.pid in [one.pid for one in holders.holders()]
        finally:
            stopped.kill()


@pytest.mark.component
def test_a_real_process_whose_first_thread_has_ended_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "DEVICE", re.compile(re.escape(str(tmp_path / "nvidia0"))))
    program = (
        "import ctypes, sys, threading; file = open(sys.argv[1], 'w')\n"
        "def wait():\n    print('open', flush=True); sys.stdin.read()\n"
        "threading.Thread(target=wait, daemon=True).start(); ctypes.CDLL(None).pthread_exit(None)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "nvidia0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        wait_until(
            lambda: "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text(),
            "its first thread has ended",
        )
        assert process.pid in [one.pid for one in holders.holders()]
        process.kill()


@pytest.mark.component
def test_a_real_process_is_found_by_the_group_that_it_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file can be made in /dev/vfio, so that one of our own stands for it."""
    node = Proc(tmp_path)
    node.device("0000:19:00.0", 13)
    monkeypatch.setattr(holders, "VFIO", f"{tmp_path}/vfio/")
    (tmp_path / "vfio").mkdir()
    program = "import sys; file = open(sys.argv[1], 'w'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(tmp_path / "vfio/13")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guest:
        assert guest.stdout
        guest.stdout.readline()
        found = {one.pid: one for one in holders.holders(computing=True, sysfs=node.sys)}
        guest.communicate()
    assert found[guest.pid].gpus == ["0000:19:00.0, driver vfio-pci"]
