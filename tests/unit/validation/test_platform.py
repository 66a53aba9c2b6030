"""The platform: a made-up sysfs is read as the kernel means it, and what slows data down is found."""

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.validation.samples import node
from validation.checks.platform import Platform
from validation.model.contract import State
from validation.probes import kernel_log, machine, nvlink, topology
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.probes.nvlink import Links
from validation.probes.reading import ReadingError
from validation.probes.topology import PciePort, RdmaPort, SlowLink, Topology
from validation.processes import command

GPU = "0000:1b:00.0"
BRIDGE = "0000:1a:01.0"


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def config_space(acs_control: int | None) -> bytes:
    """4096 bytes of a bridge: advanced error reporting, and then access control with this control word."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | (0x148 << 20 if acs_control is not None else 0))
    if acs_control is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x5F, acs_control)
    return bytes(space)


@pytest.fixture
def machine_tree(tmp_path: Path) -> Path:
    """A server with one GPU behind a bridge, two NUMA nodes, IOMMU in pass-through, one InfiniBand port."""
    bridge = tmp_path / "sys/devices/pci0000:1a" / BRIDGE
    write(bridge / "config", config_space(0))
    write(bridge / GPU / "numa_node", "1\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / GPU).symlink_to(bridge / GPU)
    for number in (0, 1):
        (tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    write(tmp_path / "sys/kernel/iommu_groups/7/type", "identity\n")
    write(tmp_path / "proc/cpuinfo", "flags\t\t: fpu vme\n")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, content in (
        ("state", "4: ACTIVE\n"),
        ("phys_state", "5: LinkUp\n"),
        ("rate", "400 Gb/sec (4X NDR)\n"),
        ("link_layer", "InfiniBand\n"),
    ):
        write(port / name, content)
    write(tmp_path / "sys/class/infiniband/mlx5_0/hca_type", "MT4129\n")
    return tmp_path


def test_a_machine_is_read_as_it_is(machine_tree: Path) -> None:
    found = topology.read((GPU,), machine_tree)
    assert (found.numa_nodes, found.gpu_numa_node, found.iommu, found.virtual) == (
        2,
        {GPU: 1},
        "passthrough",
        False,
    )
    assert found.redirecting_bridges == ()
    assert found.rdma_ports == (RdmaPort("mlx5_0/1", "MT4129 InfiniBand", "ACTIVE", "LinkUp", 400.0),)


@pytest.mark.parametrize(("control", "redirects"), [(None, False), (0, False), (0x01, False), (0x1D, True)])
def test_access_control_is_read_from_the_bridge(
    control: int | None, redirects: bool, machine_tree: Path
) -> None:
    write(machine_tree / "sys/devices/pci0000:1a" / BRIDGE / "config", config_space(control))
    assert topology.read((GPU,), machine_tree).redirecting_bridges == ((BRIDGE,) if redirects else ())


@pytest.mark.parametrize(("size", "unread"), [(64, True), (256, False), (4096, False)])
def test_registers_that_the_kernel_does_not_show_are_no_good_ones(
    size: int, unread: bool, machine_tree: Path
) -> None:
    write(machine_tree / "sys/devices/pci0000:1a" / BRIDGE / "config", config_space(0)[:size])
    assert topology.read((GPU,), machine_tree).unread_bridges == ((BRIDGE,) if unread else ())


def link(
    device: Path, speed: str, width: int, speed_max: str = "32.0 GT/s PCIe", width_max: int = 16
) -> None:
    for name, value in (
        ("current_link_speed", speed),
        ("current_link_width", width),
        ("max_link_speed", speed_max),
        ("max_link_width", width_max),
    ):
        write(device / name, f"{value}\n")


FULL = "32.0 GT/s PCIe"


@pytest.fixture
def switch(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """A root port, a PCIe switch below it, and a GPU and an adapter below that: all links at full speed."""
    root_port = tmp_path / "sys/devices/pci0000:15/0000:15:01.0"
    upstream = root_port / "0000:16:00.0"
    gpu, adapter = upstream / "0000:17:00.0" / GPU, upstream / "0000:17:01.0" / "0000:1c:00.0"
    for device in (root_port, upstream, gpu.parent, gpu, adapter.parent, adapter):
        link(device, FULL, 16)
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / GPU).symlink_to(gpu)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(adapter)
    return root_port, upstream, gpu, adapter


def slow(tmp_path: Path) -> list[tuple[str, str]]:
    return [(found.above, found.address) for found in topology.read((GPU,), tmp_path).slow_links]


def test_the_port_above_a_gpu_is_known_by_what_it_can_carry(
    switch: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    _, _, gpu, _ = switch
    assert topology.pcie_ports([GPU], tmp_path) == {GPU: PciePort(16, 5)}
    link(gpu.parent, "2.5 GT/s PCIe", 8, "8.0 GT/s PCIe", 8)
    assert topology.pcie_ports([GPU], tmp_path) == {GPU: PciePort(8, 3)}
    (gpu.parent / "max_link_speed").write_text("Unknown\n")
    assert topology.pcie_ports([GPU, "0000:99:00.0"], tmp_path) == {GPU: PciePort(8)}
    (gpu.parent / "max_link_width").unlink()
    assert topology.pcie_ports([GPU], tmp_path) == {}


def test_links_at_full_speed_and_that_of_an_idle_gpu_are_no_slow_ones(
    switch: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    _, _, gpu, _ = switch
    link(gpu, "2.5 GT/s PCIe", 16)
    link(gpu.parent, "2.5 GT/s PCIe", 16)
    assert slow(tmp_path) == []


@pytest.mark.parametrize(("speed", "width"), [("16.0 GT/s PCIe", 16), (FULL, 8)])
def test_a_link_above_a_switch_that_lost_speed_or_lanes_is_named_once(
    speed: str, width: int, switch: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    root_port, upstream, _, _ = switch
    link(root_port, speed, width)
    link(upstream, speed, width)
    assert slow(tmp_path) == [(f"the PCIe switch of the GPU at {GPU}", "0000:16:00.0")]


def test_an_adapter_in_a_slot_that_cannot_do_more_is_no_slow_one(
    switch: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    adapter = switch[3]
    link(adapter, "16.0 GT/s PCIe", 8)
    assert slow(tmp_path) == [("mlx5_0", "0000:1c:00.0")]
    link(adapter.parent, "16.0 GT/s PCIe", 8, "16.0 GT/s PCIe", 8)
    assert slow(tmp_path) == []


def test_a_link_of_which_nobody_says_its_speed_is_no_slow_one(
    switch: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    link(switch[3], "Unknown", 16, "Unknown")
    assert slow(tmp_path) == []


def test_a_config_space_that_points_to_itself_ends(machine_tree: Path) -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x100 << 20)
    write(machine_tree / "sys/devices/pci0000:1a" / BRIDGE / "config", bytes(space))
    assert topology.read((GPU,), machine_tree).redirecting_bridges == ()


def test_a_virtual_machine_and_a_translating_iommu_are_known(machine_tree: Path) -> None:
    write(machine_tree / "proc/cpuinfo", "flags\t\t: fpu hypervisor vme\n")
    write(machine_tree / "sys/kernel/iommu_groups/8/type", "DMA-FQ\n")
    found = topology.read((GPU,), machine_tree)
    assert (found.virtual, found.iommu) == (True, "translating")


def test_a_machine_that_says_nothing_is_read_too(tmp_path: Path) -> None:
    found = topology.read((GPU,), tmp_path)
    assert (found.numa_nodes, found.gpu_numa_node, found.iommu) == (1, {GPU: None}, "off")


def port(name: str, **changes: Any) -> RdmaPort:
    values: dict[str, Any] = {
        "kind": "MT4129 InfiniBand",
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate_gb": 400.0,
    }
    return RdmaPort(name, **values | changes)


SLOW = SlowLink("mlx5_0", "0000:1c:00.0", 16.0, 32.0, 16, 16)
GOOD = (port("mlx5_0/1"), port("mlx5_1/1"), port("mlx5_2/1"))


@each(
    (Topology(), []),
    (Topology(numa_nodes=2, gpu_numa_node={GPU: 1}), []),
    (Topology(numa_nodes=2, gpu_numa_node={GPU: None}), ["numa-unknown"]),
    (Topology(redirecting_bridges=(BRIDGE,)), ["acs-redirects"]),
    (Topology(unread_bridges=(BRIDGE,)), ["acs-unknown"]),
    (Topology(unread_bridges=(BRIDGE,), virtual=True), []),
    (Topology(iommu="translating"), ["iommu-translates"]),
    (Topology(iommu="translating", architecture="aarch64"), []),
    (Topology(iommu="translating", redirecting_bridges=(BRIDGE,), virtual=True), []),
    (Topology(slow_links=(SLOW,)), ["pcie-uplink-slow"]),
    (Topology(slow_links=(SLOW,), virtual=True), []),
    (Topology(rdma_ports=GOOD), []),
    (Topology(rdma_ports=(*GOOD, port("x/1", state="DOWN", physical="Disabled"))), ["rdma-port-down"]),
    (Topology(rdma_ports=(*GOOD, port("x/1", state="DOWN", kind="other"))), ["rdma-port-not-active"]),
    (Topology(rdma_ports=(*GOOD, port("x/1", state="DOWN", kind="other", physical="Polling"))), []),
    (Topology(rdma_ports=(*GOOD, port("x/1", state="INIT"))), ["rdma-port-not-active"]),
    (Topology(rdma_ports=(*GOOD, port("x/1", rate_gb=100.0))), ["rdma-port-slow"]),
)
def test_what_slows_data_down_is_found_and_nothing_else(found: Topology, codes: list[str]) -> None:
    result = Platform().run(node(topology=lambda gpus: found))
    assert [finding.code for finding in result.findings] == codes
    assert result.state is (State.DEGRADED if codes else State.PASS)
    assert all(finding.action for finding in result.findings)


def test_access_control_matters_only_where_devices_talk_to_each_other() -> None:
    redirecting = Topology(redirecting_bridges=(BRIDGE,))
    facts: dict[str, Any] = {
        "pci_gpus": (machine.PciGpu(GPU, "2330"),),
        "topology": lambda gpus: redirecting,
    }
    assert Platform().run(node(**facts)).findings == ()


def test_a_machine_without_gpus_is_not_run() -> None:
    assert Platform().run(node(pci_gpus=())).state is State.NOT_RUN


def test_links_are_read_with_those_that_are_down() -> None:
    text = (
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: NVIDIA H100 (UUID: GPU-2)\n\t Link 0: 26.562 GB/s\n"
    )
    assert nvlink.parse(text) == {0: Links(1, (1,)), 1: Links(1, ())}
    states = ("50 GB/s", "0.000 GB/s", "0 GB/s", "Disabled", "N/A", "<sleep>", "53.125 GB/s (new)")
    lines = "".join(f"\t Link {number}: {state}\n" for number, state in enumerate(states))
    assert nvlink.parse(f"GPU 0: x\n{lines}") == {0: Links(2, (1, 2, 3, 4, 5))}


@pytest.mark.component
def test_links_that_cannot_be_looked_at_are_an_error_and_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NvidiaSmiError):
        nvlink.query()


def test_versions_of_libraries_are_those_of_the_files_behind_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    write(folder / "libcuda.so.580.178.04", "")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.178.04")
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.gone")
    assert machine.driver_libraries(tmp_path) == {"libcuda.so.1": "580.178.04"}


def program(folder: Path, name: str, *lines: str) -> None:
    executable(folder / name, "\n".join(lines))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PATH, and no log of the kernel."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kernel_log, "KMSG", tmp_path / "kmsg")
    return tmp_path


@pytest.mark.component
def test_the_fabric_manager_says_its_version(fake: Path) -> None:
    assert machine.fabric_manager_version() is None
    program(fake, "nv-fabricmanager", "echo 'Fabric Manager version is : 580.178.04'")
    assert machine.fabric_manager_version() == "580.178.04"


def process(root: Path, number: int, words: str, *users: int) -> None:
    """A process of root, or of these users: real, effective, saved and of its file system."""
    write(root / f"proc/{number}/cmdline", words)
    uids = "\t".join(map(str, users or (0, 0, 0, 0)))
    write(root / f"proc/{number}/status", f"Name:\tx\nUmask:\t0022\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")


@each(
    ({1: "/sbin/init", 77: "/usr/bin/nv-fabricmanager\0-c\0/etc/x.cfg"}, True),
    ({1: "/sbin/init", 77: "vi\0nv-fabricmanager"}, False),
    ({77: "bash"}, None),
)
def test_whether_the_fabric_manager_runs_is_seen_where_processes_can_be_seen(
    processes: dict[int, str], runs: bool | None, tmp_path: Path
) -> None:
    for number, words in processes.items():
        process(tmp_path, number, words)
    assert machine.fabric_manager_runs(tmp_path) is runs


@each(
    ({"NVIDIA_VISIBLE_DEVICES": "GPU-1f2e-3d,GPU-2a"}, machine.Grant("NVIDIA_VISIBLE_DEVICES", 2)),
    ({"NVIDIA_VISIBLE_DEVICES": "0"}, machine.Grant("NVIDIA_VISIBLE_DEVICES", 1)),
    ({"NVIDIA_VISIBLE_DEVICES": "void", "SLURM_JOB_GPUS": "0-2, 5"}, machine.Grant("SLURM_JOB_GPUS", 4)),
    ({"NVIDIA_VISIBLE_DEVICES": "all"}, None),
    ({"NVIDIA_VISIBLE_DEVICES": ""}, None),
    ({}, None),
)
def test_how_many_gpus_a_container_or_a_job_was_given(
    environment: dict[str, str], granted: machine.Grant | None
) -> None:
    assert machine.granted_gpus(environment) == granted


@each(((0, 0, 0, 0), True), ((1000, 1000, 1000, 1000), False), ((1000, 0, 0, 0), False))
def test_a_program_that_a_user_runs_is_no_fabric_manager(
    users: tuple[int, ...], runs: bool, tmp_path: Path
) -> None:
    """Nor is one that is setuid, whose folder in /proc is root's."""
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 77, "nv-fabricmanager\0-c\0", *users)
    assert machine.fabric_manager_runs(tmp_path) is runs


def test_a_fabric_manager_is_told_by_its_program_where_that_can_be_seen(tmp_path: Path) -> None:
    """Sudo waits for a password as root, and has the name that its user gives it."""
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 77, "nv-fabricmanager\0")
    (tmp_path / "proc/77/exe").symlink_to("/usr/bin/sudo")
    assert machine.fabric_manager_runs(tmp_path) is False
    process(tmp_path, 78, "x\0")
    (tmp_path / "proc/78/exe").symlink_to("/usr/bin/nv-fabricmanager (deleted)")
    assert machine.fabric_manager_runs(tmp_path) is True


@each("0-3,8-184467440", "0-", "a", "0-3;8", "-1", "\u0663", "0-99999," * 9)
def test_a_list_of_cpus_that_is_none_is_an_error_and_takes_no_memory(text: str) -> None:
    with pytest.raises(ReadingError, match="expected a list of CPUs such as 0-2,8, found"):
        machine.cpu_list(text)


def test_a_command_line_that_is_no_text_hides_no_process(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 20, "")
    odd = tmp_path / "proc/20/cmdline"
    odd.write_bytes(b"vim\0caf\xe9\0")
    assert machine.fabric_manager_runs(tmp_path) is False


LINE = "NVRM: Xid (PCI:0000:1b:00): 95, pid=7, Uncontained: FBHUB"


def buffer(folder: Path, *messages: str, priority: int = 4) -> None:
    """The kernel's own buffer as /dev/kmsg shows it."""
    records = (f"{priority},{number},{number}000,-;{message}" for number, message in enumerate(messages))
    write(folder / "kmsg", "".join(f"{record}\n SUBSYSTEM=pci\n" for record in records))


@pytest.mark.component
@pytest.mark.parametrize(
    ("journalctl", "messages"),
    [
        ([f"""echo '{{"MESSAGE": "{LINE}"}}'"""], []),
        ([f"""echo '{{"MESSAGE": {list(LINE.encode())}}}'"""], []),
        (["exit 1"], [LINE]),
        (None, [LINE]),
    ],
)
def test_xids_are_found_in_the_journal_or_in_the_kernels_buffer(
    journalctl: list[str] | None, messages: list[str], fake: Path
) -> None:
    if journalctl is not None:
        program(fake, "journalctl", *journalctl)
    buffer(fake, *messages)
    assert kernel_log.read_kernel_log().events == (
        kernel_log.Event("0000:1b:00", 95, "pid=7, Uncontained: FBHUB"),
    )


@pytest.mark.component
def test_only_the_kernel_itself_is_asked_for_its_lines(fake: Path) -> None:
    """Systemd and others write to its log, too."""
    program(fake, "journalctl", f'echo "$@" >>{fake}/asked; exit 1')
    buffer(fake, LINE, priority=(3 << 3) + 4)
    assert kernel_log.read_kernel_log().events == ()
    assert all("SYSLOG_FACILITY=0" in line.split() for line in (fake / "asked").read_text().splitlines())


LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build"
FELL = "GPU has fallen off the bus."


@each(
    # The kernel wrote this, as a user in a namespace of his own.
    f"overlay: filesystem on {LINE} not supported as upperdir",
    f"overlay: filesystem on [  1.2] {LINE} not supported as upperdir",
    f"overlay: filesystem on {LOADED} not supported as upperdir",
    "overlay: filesystem on nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30",
    f"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/{LINE},task=x,pid=7,uid=1000",
    # These begin with the name of a process, of 15 characters.
    "NVRM: Xid (PCI:[77]: segfault at 0 ip 0 sp 0 error 4 in 0000:1b:00): 79, pid=1, x[400000+1000]",
    "NVRM: Xid (1b:0 (77): drop_caches: 3",
    f"NVRM: GPU 1b:00[77]: segfault at 0 ip 0 sp 0 error 4 in {FELL}[400000+1000]",
    "NVRM: x[77]: segfault at 0 ip 0 sp 0 error 4 in x fallen off the bus and is not responding[4000]",
    "NVRM: x[77]: segfault in installed in this system has fallen off the bus and is not responding",
    f"NVRM: loading N[77]: segfault at 0 ip 0 sp 0 error 4 in {LOADED}[400000+1000]",
    "nvidia-nvswitch[77]: segfault in 3: SXid (PCI:0000:c1:00.0): 20034, Fatal, x[400000+1000]",
)
def test_words_of_a_user_in_a_line_of_the_kernel_set_no_error_and_forget_none(message: str) -> None:
    real = [LINE, "NVRM: The NVIDIA GPU 0000:43:00.0"]
    assert kernel_log.events([*real, message]) == kernel_log.events(real)
    assert len(kernel_log.events([*real, f"[  12.3] {message}"])) == 1


@pytest.mark.component
@pytest.mark.parametrize("words", [LINE.replace("1b", "43"), LOADED])
def test_a_line_break_in_the_words_of_a_user_begins_no_message(words: str, fake: Path) -> None:
    buffer(fake, LINE, f"overlay: filesystem on x\\x0a{words}\\x0a not supported as upperdir")
    assert [event.address for event in kernel_log.read_kernel_log().events] == ["0000:1b:00"]
    for other in ("\r", "\x0b", "\x85", "\u2028"):
        buffer(fake, LINE, f"overlay: filesystem on x{other}{words} not supported as upperdir")
        assert [event.address for event in kernel_log.read_kernel_log().events] == ["0000:1b:00"]
    assert not re.search(kernel_log.OF_THE_DRIVER, f"overlay: filesystem on x\n{words}\n"), "journalctl's"
    assert re.search(kernel_log.OF_THE_DRIVER, words)
    # A process of this name, and a mapped file of that one: journalctl finds its message.
    crash = f"NVRM: x[77]: segfault at 0 ip 0 sp 0 error 4 in a\n{words}[400000+1000]"
    entries = "\n".join(json.dumps({"MESSAGE": message}) for message in (LINE, crash))
    write(fake / "entries", f"{entries}\n")
    program(fake, "journalctl", f"/bin/cat {fake}/entries")
    buffer(fake)
    found = kernel_log.read_kernel_log()
    assert ([event.address for event in found.events], found.unreadable) == (["0000:1b:00"], "")


@pytest.mark.component
def test_a_journal_of_another_form_is_said(fake: Path) -> None:
    program(fake, "journalctl", "echo NVRM: x")
    assert "journalctl: expected an entry as JSON" in kernel_log.read_kernel_log().unreadable


@pytest.mark.component
def test_a_container_without_the_kernels_device_is_asked_through_dmesg(fake: Path) -> None:
    daemon = LINE.replace("1b", "43")
    program(fake, "journalctl", "exit 1")
    program(fake, "dmesg", f"echo '<4>[   12.3] {LINE}'", f"echo '<28>[   12.4] {daemon}'")
    assert [event.address for event in kernel_log.read_kernel_log().events] == ["0000:1b:00"]


@each("", "[    T1] ", "[   C12] ")
def test_a_line_of_dmesg_is_read_behind_its_time(thread: str) -> None:
    assert kernel_log.events([f"[   12.345678] {thread}{LINE}"]) == kernel_log.events([LINE])


def test_a_log_with_very_many_xids_is_as_short_as_what_it_says() -> None:
    storm = ["NVRM: Xid (PCI:0000:1B:00): 31, first", *["NVRM: Xid (PCI:0000:1b:00): 31, pid=7"] * 99_999]
    found = kernel_log.events([*storm, LINE, LINE.replace("1b:00", "43:00")])
    assert found == (
        kernel_log.Event("0000:1b:00", 31, "pid=7", count=100_000),
        kernel_log.Event("0000:1b:00", 95, "pid=7, Uncontained: FBHUB"),
        kernel_log.Event("0000:43:00", 95, "pid=7, Uncontained: FBHUB"),
    )


@each("GPU-I:05", "GPU-I:05 GPU-CI:02")
def test_an_xid_of_a_mig_instance_is_one_of_its_gpu(instance: str) -> None:
    (found,) = kernel_log.events([f"NVRM: Xid (PCI:0000:01:00 {instance}): 94, pid=7, Contained: SM"])
    assert found == kernel_log.Event("0000:01:00", 94, "pid=7, Contained: SM")


NVLINK5 = "NVRM: Xid (PCI:0000:1b:00): {}, {} XC0 i0 Link 13 (0x0409a0c2 0x{:08x} 0x0 0x0 0x0 0x0)"


@each(
    (NVLINK5.format(149, "NETIR_LINK_EVT  Fatal  ", 0), "xid"),
    (NVLINK5.format(145, "RLW_RXPIPE Nonfatal", 8), "nonfatal"),
    (NVLINK5.format(145, "RLW_RXPIPE Non-fatal", 8), "nonfatal"),
    (NVLINK5.format(144, "SAW_MVB Nonfatal", 4), "harmless"),
    (NVLINK5.format(145, "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal", 8), "nonfatal"),
    (NVLINK5.format(145, "pid='<unknown>', name=<unknown>, RLW_SRC_TRACK Nonfatal", 2), "harmless"),
    (NVLINK5.format(145, "pid=4, name=a, X Nonfatal, RLW_SRC_TRACK Fatal", 1), "xid"),
    (NVLINK5.format(145, "pid=4, name=a fatal thing, RLW_SRC_TRACK Fatal", 1), "xid"),
    (NVLINK5.format(146, "TLW_RX/TLW_RX_PIPE0 Nonfatal", 1), "harmless"),
    *(
        (NVLINK5.format(149, "NETIR_LINK_EVT Fatal", 0).replace("0x0409a0c2", information), kind)
        for information, kind in (
            ("0x004505c6", "xid"),
            ("0x025525c6", "xid"),
            ("0x026001c6", "nonfatal"),
            ("0x028001c6", "nonfatal"),
        )
    ),
    ("NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", "xid"),
    ("NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Nonfatal XC 1 i 2 Link 01 [0x0000000a]", "nonfatal"),
    ("NVRM: Xid (PCI:0000:1b:00): 145, something without a word for it", "xid"),
    ("NVRM: Xid (0000:1B:00): 62, of an old driver", "xid"),
)
def test_an_nvlink_error_is_as_bad_as_it_says(line: str, kind: str) -> None:
    (event,) = kernel_log.events([line])
    assert (event.address, event.kind) == ("0000:1b:00", kind)


def test_an_error_that_was_not_fatal_hides_none_that_was() -> None:
    fatal, handled = (
        NVLINK5.format(149, "NETIR_LINK_EVT Fatal", 0),
        NVLINK5.format(149, "NETIR_BER_EVENT Nonfatal", 1),
    )
    found = kernel_log.events([handled, fatal, handled, handled])
    assert [(event.kind, event.count) for event in found] == [("xid", 1), ("nonfatal", 3)]


@each(
    ["NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."],
    ["NVRM: GPU at 0000:1b:00.0 has fallen off the bus."],
    [
        "NVRM: The NVIDIA GPU 0000:1b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_a_gpu_that_fell_off_the_bus_without_an_xid_is_an_event(lines: list[str]) -> None:
    (event,) = kernel_log.events(lines)
    assert (event.address, event.kind, event.name) == ("0000:1b:00", "off-the-bus", "off the bus")
    fallen = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."
    assert [event.number for event in kernel_log.events([fallen, *lines])] == [79], "it is said once"


#: The driver prints it at once (open-gpu-kernel-modules, osinit.c); so it is one message with line breaks.
GONE_AT_LOAD = (
    "NVRM: The NVIDIA GPU 0000:1b:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)


@pytest.mark.component
def test_a_gpu_that_is_gone_when_the_driver_loads_is_found_in_one_message_of_three_lines(fake: Path) -> None:
    write(fake / "entries", json.dumps({"MESSAGE": GONE_AT_LOAD}) + "\n")
    program(fake, "journalctl", f"/bin/cat {fake}/entries")
    from_journal = kernel_log.read_kernel_log().events
    (fake / "journalctl").unlink()
    buffer(fake, GONE_AT_LOAD.replace("\n", "\\x0a"))
    assert [(event.address, event.kind) for event in from_journal] == [("0000:1b:00", "off-the-bus")]
    assert kernel_log.read_kernel_log().events == from_journal


@pytest.mark.component
def test_the_rest_of_a_message_that_was_cut_in_two_begins_none(fake: Path) -> None:
    """The kernel prints the name of a control group, which a user may choose, as a part of its own."""
    rest = LINE.replace("1b", "43")
    write(fake / "kmsg", f"4,1,1000,-;{LINE}\n6,2,2000,-;oom-kill:cpuset=\n4,4,2500,c;{rest}\n")
    assert [event.address for event in kernel_log.read_kernel_log().events] == ["0000:1b:00"]


@pytest.mark.component
def test_a_device_that_shows_no_message_is_no_quiet_log(fake: Path) -> None:
    """What systemd-nspawn and kind put in the place of /dev/kmsg has none."""
    os.mkfifo(fake / "kmsg")
    assert f"{fake}/kmsg: it shows no message" in kernel_log.read_kernel_log().unreadable


@pytest.mark.component
def test_a_quiet_kernel_log_has_no_event(fake: Path) -> None:
    program(fake, "journalctl", "exit 1")
    buffer(fake, "booted")
    assert kernel_log.read_kernel_log() == kernel_log.KernelLog()


@pytest.mark.component
def test_a_journal_that_shows_this_user_nothing_is_not_a_quiet_one(fake: Path) -> None:
    """With --quiet, journalctl says nothing at all to a user who may not read the system's journal."""
    program(fake, "journalctl", "exit 1")
    assert "journalctl: it shows no line of the kernel" in kernel_log.read_kernel_log().unreadable


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        ("Linux version 6.8.0-87-generic", False),
        (LOADED, False),
        ("br0: port 1 entered disabled state", True),
        ("overlay: filesystem on Linux version 6.8.0-87-generic not supported as upperdir", True),
    ],
)
@pytest.mark.parametrize("xids", [(), (LINE,)])
def test_without_the_journals_answer_the_kernels_buffer_says_all_only_from_its_beginning(
    first: str, lost: bool, xids: tuple[str, ...], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: list[str], timeout_s: float) -> command.Done:
        if words[0] == "journalctl":
            raise command.CommandTimeoutError("no answer within 5 s")
        return command.run(words, timeout_s)

    monkeypatch.setattr(kernel_log, "run", run)
    buffer(fake, first, *xids)
    found = kernel_log.read_kernel_log()
    assert found.events == kernel_log.events(xids)
    reason = f"journalctl: no answer within 5 s; {fake}/kmsg: it has lost its beginning"
    assert found.unreadable == (reason if lost else "")


@pytest.mark.component
def test_a_quiet_journal_is_enough_where_the_kernels_buffer_is_closed(fake: Path) -> None:
    program(fake, "journalctl", 'case "$*" in *--lines=1*) echo booted;; *) exit 1;; esac')
    assert kernel_log.read_kernel_log() == kernel_log.KernelLog()


@pytest.mark.component
def test_a_log_that_nobody_may_read_is_not_a_quiet_one(fake: Path) -> None:
    assert f"{fake}/kmsg: No such file" in kernel_log.read_kernel_log().unreadable
