"""What is read of a node, from a file tree and from programs that answer as the real ones do."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import node_facts
import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.driver import loaded_state

from temper.plan.facts import Interface, NodeFacts
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.tables import specs

Run = Callable[..., dict[str, Any]]

RELEASE = "6.1.0-37-amd64"
BOOKWORM = """\
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
HOME_URL="https://www.example.org/"
"""


class Root:
    """A file tree that stands for / of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: str | bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def cpu(self, number: int, package: int, core: int) -> None:
        topology = f"sys/devices/system/cpu/cpu{number}/topology"
        self.write(f"{topology}/physical_package_id", f"{package}\n")
        self.write(f"{topology}/core_id", f"{core}\n")

    def pci(self, address: str, vendor: str, device: str, kind: str) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        values = {
            "vendor": vendor,
            "device": device,
            "class": kind,
            "subsystem_vendor": "0x103c",
            "subsystem_device": "0x12ab",
        }
        for name, value in values.items():
            self.write(f"{folder}/{name}", f"{value}\n")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    return root


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script on PATH, which has no other program besides the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(process, "SYSTEM_PATH", str(folder))

    def add(name: str, script: str) -> None:
        executable(folder / name, script)

    return add


# ---------------------------------------------------------------- system


SNMP = """Ip: Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos
Ip: 1 64 17766 0 0 {} 0
"""


@pytest.mark.parametrize(
    ("switch", "count", "switch6", "count6", "expected"),
    [(1, 27, 0, 0, True), (0, 27, 0, 0, False), (1, 0, 1, 0, False), (0, 0, 1, 5, True), (0, 9, 0, 9, False)],
)
def test_a_router_is_a_node_that_has_forwarded(
    switch: int, count: int, switch6: int, count6: int, expected: bool, root: Root
) -> None:
    root.write("proc/sys/net/ipv4/ip_forward", f"{switch}\n")
    root.write("proc/sys/net/ipv6/conf/all/forwarding", f"{switch6}\n")
    root.write("proc/net/snmp", SNMP.format(count))
    root.write(
        "proc/net/snmp6", f"Ip6InReceives                   \t9\nIp6OutForwDatagrams             \t{count6}\n"
    )
    assert node_facts.forwards(root.path) is expected


MOUNTINFO = "36 1 8:1 / {} rw - ext4 /dev/{} rw\n37 1 0:5 / /proc rw - proc proc rw\n"


@each(
    # fstab need not name it: systemd mounts by units and by the types of partitions, too.
    ("/boot", "sdb1", "", True),
    ("/home", "dm-0", "", True),
    ("/boot", "sda1", "UUID=1 /boot ext4 defaults 0 2\n", False),
    ("/boot", "nothing", "UUID=1 /boot ext4 defaults 0 2\n", False),
    # Where somebody mounts a stick.
    ("/mnt", "sdb1", "", False),
    ("/mnt/data", "sdb1", "# UUID=1 /mnt/data ext4\n  #LABEL=b /mnt/data\nUUID=2 /\n", False),
    ("/media/usb", "sdb1", "", False),
    ("/run/media/ada/usb", "sdb1", "", False),
    ("/media2", "sdb1", "", True),
    # And the node at its boot.
    ("/mnt", "sdb1", "LABEL=a#1 /mnt/ ext4 defaults 0 2\n", True),
    (r"/mnt/my\040data", "sdb1", "LABEL=a\t/mnt//my\\040data\text4\n", True),
    ("/mnt/of-unit", "sdb1", "", True),
)
def test_a_file_system_of_the_node_on_a_usb_disk_is_found_also_below_others(
    point: str, source: str, fstab: str, expected: bool, tmp_path: Path
) -> None:
    root = Root(tmp_path)
    root.write("etc/fstab", fstab)
    root.write("etc/systemd/system/mnt-of\\x2dunit.mount", "[Mount]\nWhat=LABEL=a\nWhere=/mnt/of-unit\n")
    root.write("proc/self/mountinfo", MOUNTINFO.format(point, source))
    blocks = tmp_path / "sys/class/block"
    blocks.mkdir(parents=True)
    devices = {"sda1": "pci0/ata1/block/sda/sda1", "sdb1": "pci0/usb2/2-1/block/sdb/sdb1", "dm-0": "dm-0"}
    for name, path in devices.items():
        (tmp_path / "sys/devices" / path).mkdir(parents=True)
        (blocks / name).symlink_to(tmp_path / "sys/devices" / path)
    (blocks / "dm-0/slaves").mkdir()
    (blocks / "dm-0/slaves/sdb1").symlink_to(blocks / "sdb1")
    assert node_facts.usb_disk(tmp_path) is expected


@each(
    ("198.51.100.1", "192.0.2.9", "eth1", True),
    ("198.51.100.1", "192.0.2.9", "eth0", False),
    ("198.51.100.1", "192.0.2.9", "", False),
    # An address of loopback, as routers announce them, says nothing of the interface.
    ("198.51.100.1", "203.0.113.9", "eth1", False),
    ("198.51.100.1", "192.0.2.10", "eth1", False),
    # The controller is this node.
    ("192.0.2.9", "192.0.2.9", "lo", False),
    # IPv6, and a node that pulls: what has an address of IPv4 is asked about.
    ("2001:db8::1", "2001:db8::9", "eth1", True),
    ("", "", "eth1", True),
    ("", "", "", False),
)
def test_answers_that_take_another_interface_are_noticed(
    client: str, server: str, back: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = Login("ops", client, 1, server, 22) if client else None
    monkeypatch.setattr(node_facts, "ssh_login", lambda: login)
    monkeypatch.setattr(node_facts, "interface_to", lambda *_: back)
    found = [
        {"name": "eth0", "addresses": ["192.0.2.9", "2001:db8::9"]},
        {"name": "eth1", "addresses": ["198.51.100.9"]},
        {"name": "service", "addresses": ["192.0.2.10"], "kind": "dummy"},
    ]
    assert node_facts.answers_elsewhere(found) is expected


@each(
    ([("eth0", "192.0.2.9", ""), ("eth1", "198.51.100.9", "")], True),
    ([("eth0", "192.0.2.9", ""), ("bond0", "198.51.100.9", "bond")], True),
    # One way in; guests, tunnels and InfiniBand have no strangers' packets.
    ([("eth0", "192.0.2.9", ""), ("eth1", "2001:db8::9", "")], False),
    ([("eth0", "192.0.2.9", ""), ("docker0", "172.17.0.1", "bridge")], False),
    ([("eth0", "192.0.2.9", ""), ("wg0", "10.8.0.1", "wireguard"), ("ib0", "10.9.0.1", "infiniband")], False),
)
def test_without_a_login_the_routes_say_where_answers_leave(
    links: list[tuple[str, str, str]], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_facts, "ssh_login", lambda: None)
    monkeypatch.setattr(node_facts, "interface_to", lambda *_: "eth0")
    found = [{"name": name, "addresses": [address], "kind": kind} for name, address, kind in links]
    assert node_facts.answers_elsewhere(found) is expected


@each("0-3,8-184467440", "9" * 5000, "0-65537")
def test_list_of_more_cpus_than_a_kernel_counts_takes_no_memory(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected numbers|digits"):
        node_facts.numbers(text)


def test_os_release_with_and_without_quotes(root: Root) -> None:
    assert set(node_facts.os_release(root.path).values()) == {""}
    root.write("etc/os-release", BOOKWORM)
    assert node_facts.os_release(root.path) == {
        "id": "debian",
        "version_id": "12",
        "codename": "bookworm",
        "pretty_name": "Debian GNU/Linux 12 (bookworm)",
    }


SYSTEMCTL = """
for unit in $*; do case $unit in *.service)
    printf "LoadState=loaded\\nConditionResult=yes\\nConditionTimestampMonotonic=1\\n"
esac; case $unit in
    nvidia-persistenced.service) printf "ActiveState=active\\nUnitFileState=static\\n\\n" ;;
    nvidia-fabricmanager.service) printf "ActiveState=active\\nUnitFileState=enabled\\n\\n" ;;
    nvidia-imex.service) printf "ActiveState=inactive\\nUnitFileState=enabled\\n\\n" ;;
    nvidia-dcgm.service) printf "ActiveState=active\\nUnitFileState=disabled\\n\\n" ;;
    *.service) printf "ActiveState=inactive\\nUnitFileState=\\n\\n" ;;
esac done
"""


@pytest.mark.component
def test_services_that_run_and_start_at_boot_are_named(program: Callable[[str, str], None]) -> None:
    program("systemctl", SYSTEMCTL)
    assert node_facts.running_services() == ["nvidia-persistenced", "nvidia-fabricmanager"]


@pytest.mark.component
def test_without_systemd_no_service_runs(program: Callable[[str, str], None]) -> None:
    assert node_facts.running_services() == []


def governors(root: Root, *offered: str) -> None:
    for number, names in enumerate(offered):
        policy = f"sys/devices/system/cpu/cpufreq/policy{number}"
        root.write(f"{policy}/scaling_governor", "schedutil\n")
        root.write(f"{policy}/scaling_available_governors", f"{names}\n")


def test_of_the_kernels_values_those_count_that_can_be_chosen(root: Root) -> None:
    governors(root, "performance powersave schedutil", "performance schedutil")
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    root.write("proc/sys/fs/nr_open", "1048576\n")
    assert node_facts.tunables(root.path, ["tuned", "nvidia-imex"]) == {
        "cpu_governors": ["performance", "schedutil"],
        "hugepages": ["always", "madvise", "never"],
        "hugepages_defrag": [],
        "irqbalance": False,
        "nvme": False,
        "nvme_schedulers": [],
        "nr_open": 1048576,
        "ofed": "",
        "rdma": False,
        "shm": False,
        "tuners": ["tuned"],
    }


def test_a_cpu_that_is_switched_off_offers_no_governor_and_counts_for_none(root: Root) -> None:
    """Its policy stays, and its files answer EBUSY: read as nothing."""
    governors(root, "performance schedutil", "")
    assert node_facts.tunables(root.path, [])["cpu_governors"] == ["performance", "schedutil"]


def test_schedulers_of_nvme_drives_are_those_that_all_offer_who_offer_any(root: Root) -> None:
    root.write("sys/block/nvme0n1/queue/scheduler", "none\n")  # of several paths: its paths have schedulers
    root.write("sys/block/nvme0c0n1/queue/scheduler", "[none] mq-deadline kyber\n")
    root.write("sys/block/nvme1n1/queue/scheduler", "mq-deadline [none]\n")
    root.write("sys/block/nvme1n1/queue/read_ahead_kb", "128\n")
    root.write("sys/block/sda/queue/scheduler", "[bfq]\n")
    found = node_facts.tunables(root.path, [])
    assert (found["nvme"], found["nvme_schedulers"]) == (True, ["none", "mq-deadline"])


def test_what_the_kernel_loads_as_it_is_written_is_offered_too(root: Root) -> None:
    """Debian's kernels have kyber, bfq and most governors as modules, which no file names before."""
    for module in ("block/kyber-iosched.ko.xz", "block/bfq.ko", "drivers/cpufreq/cpufreq_ondemand.ko"):
        root.write(f"lib/modules/{RELEASE}/kernel/{module}", "")
    governors(root, "performance schedutil")
    root.write("sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline\n")
    found = node_facts.tunables(root.path, [], "", RELEASE)
    assert found["nvme_schedulers"] == ["none", "mq-deadline", "kyber", "bfq"]
    assert found["cpu_governors"] == ["performance", "schedutil", "ondemand"]
    governors(root, "performance powersave")  # intel_pstate has its own, and takes no other
    root.write("sys/block/nvme0n1/queue/scheduler", "none\n")
    found = node_facts.tunables(root.path, [], "", RELEASE)
    assert (found["cpu_governors"], found["nvme_schedulers"]) == (["performance", "powersave"], [])


@pytest.mark.parametrize(("kind", "own"), [("tmpfs", True), ("overlay", False)])
def test_shared_memory_is_a_file_system_of_its_own_where_one_is_mounted(
    kind: str, own: bool, root: Root
) -> None:
    line = f"26 23 0:23 / /dev/shm rw,nosuid,nodev shared:4 - {kind} {kind} rw,size=1k,inode64\n"
    root.write("proc/self/mountinfo", f"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n{line}")
    assert node_facts.tunables(root.path, [])["shm"] is own


def test_what_cannot_be_written_offers_nothing(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where /sys is the host's and read-only: access(2) says EROFS, also to root."""
    governors(root, "performance")
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    assert not any(node_facts.tunables(root.path, []).values())


@pytest.mark.parametrize(
    ("target", "present"), [(f"usr/src/linux-headers-{RELEASE}", True), ("usr/src/removed", False)]
)
def test_headers_count_only_where_the_link_leads_somewhere(root: Root, target: str, present: bool) -> None:
    (root.path / "usr/src" / f"linux-headers-{RELEASE}").mkdir(parents=True)
    (root.path / "lib/modules" / RELEASE).mkdir(parents=True)
    (root.path / "lib/modules" / RELEASE / "build").symlink_to(root.path / target)
    assert node_facts.kernel(root.path, RELEASE) == {"release": RELEASE, "headers_present": present}


def test_hyperthreads_share_a_core_and_sockets_number_theirs_alike(root: Root) -> None:
    for number, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)] * 2):
        root.cpu(number, package, core)
    for number in (0, 1):
        (root.path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    root.write("sys/devices/system/node/online", "0-1\n")
    found = node_facts.cpu(root.path)
    sockets = found.pop("sockets")
    assert found == {"logical": 8, "physical": 4, "numa_nodes": 2}
    assert [socket["cores"] for socket in sockets] == [2, 2]


def test_sockets_come_in_the_order_of_their_cpus_with_their_numa_nodes(root: Root) -> None:
    """Two processors whose CPUs alternate, and of which the second has two NUMA nodes."""
    for number in range(12):
        root.cpu(number, package=36 if number % 2 else 0, core=number % 6)
    for node, cpus in {0: "0,2,4,6,8,10", 1: "1,3,7,9", 10: "5,11"}.items():
        root.write(f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
    assert node_facts.cpu(root.path)["sockets"] == [
        {"cores": 3, "numa_nodes": [0]},
        {"cores": 3, "numa_nodes": [1, 10]},
    ]


def test_a_list_of_the_kernel_s_has_ranges(root: Root) -> None:
    assert node_facts.numbers("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert node_facts.numbers("\n") == []


def test_a_cpu_that_is_offline_does_not_count(root: Root) -> None:
    root.cpu(0, 0, 0)
    root.write("sys/devices/system/cpu/cpu1/online", "0\n")
    assert node_facts.cpu(root.path) == {
        "logical": 1,
        "physical": 1,
        "numa_nodes": 1,
        "sockets": [{"cores": 1, "numa_nodes": []}],
    }


def test_without_sysfs_python_counts_the_cpus(root: Root) -> None:
    count = os.cpu_count()
    expected: dict[str, Any] = {"logical": count, "physical": count, "numa_nodes": 1, "sockets": []}
    assert node_facts.cpu(root.path) == expected


def test_memory_is_in_bytes_and_zero_where_no_kernel_can_count_it(root: Root) -> None:
    assert node_facts.memory_bytes(root.path) == 0
    for total, found in (("2113456", 2113456 * 1024), ("9" * 5000, 0)):
        root.write("proc/meminfo", f"MemTotal:       {total} kB\nMemFree:          100 kB\n")
        assert node_facts.memory_bytes(root.path) == found


def test_folders_of_one_file_system_are_one_disk(root: Root) -> None:
    for name in ("usr/local", "var"):
        (root.path / name).mkdir(parents=True)
    usage = shutil.disk_usage(root.path)
    (found,) = node_facts.disks(root.path)
    assert found == {
        "path": "/",
        "total_bytes": usage.total,
        "free_bytes": pytest.approx(usage.free, abs=1 << 30),
        "read_only": False,
    }


def test_another_file_system_is_another_disk(root: Root) -> None:
    if Path("/dev/shm").stat().st_dev == root.path.stat().st_dev:
        pytest.skip("/dev/shm is no file system of its own here")
    (root.path / "opt").symlink_to("/dev/shm")
    assert [disk["path"] for disk in node_facts.disks(root.path)] == ["/", "/opt"]


def test_a_disk_that_nobody_may_write_to_is_read_only(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dict.fromkeys(("f_frsize", "f_blocks", "f_bfree", "f_bavail"), 1)
    found = SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID, **sizes)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert [disk["read_only"] for disk in node_facts.disks(root.path)] == [True]


def test_a_machine_in_its_first_boot_is_set_up_by_cloud_init(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = ["Job=73\n"]
    monkeypatch.setattr(node_facts, "run_text", lambda _: jobs[-1])
    assert not node_facts.being_set_up(root.path)  # it has no cloud-init
    (root.path / "run/cloud-init").mkdir(parents=True)
    assert node_facts.being_set_up(root.path)
    # It runs us.
    root.write("proc/self/cgroup", "0::/system.slice/cloud-final.service\n")
    assert not node_facts.being_set_up(root.path)
    root.write("proc/self/cgroup", "0::/user.slice\n")
    # An older systemd prints nothing where there is no job.
    for said in ("Job=\n", ""):
        jobs.append(said)
        assert not node_facts.being_set_up(root.path)
    jobs.append("Job=73\n")
    root.write("var/lib/cloud/instance/boot-finished", "")
    assert not node_facts.being_set_up(root.path)


# ---------------------------------------------------------------- devices


def test_nvidia_devices_are_found_by_their_ids(root: Root) -> None:
    root.pci("0000:1b:00.0", "0x10de", "0x2330", "0x030200")
    root.pci("0000:07:00.0", "0x10de", "0x22a3", "0x068000")
    root.pci("0000:00:02.0", "0x8086", "0x46a6", "0x030000")
    root.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n")
    root.write("sys/bus/pci/devices/0000:07:00.0/numa_node", "-1\n")
    (root.path / "sys/bus/pci/devices/0000:1b:00.0/driver").symlink_to("../../drivers/vfio-pci")
    folder = "proc/driver/nvidia/gpus/0000:1b:00.0"
    root.write(f"{folder}/information", "Model: \t NVIDIA H100 PCIe\nDevice Minor: \t 4\n")
    assert node_facts.pci_devices(root.path) == [
        {
            "address": address,
            "device_id": device,
            "class_id": kind,
            "numa_node": node,
            "minor": minor,
            "name": name,
            "driver": driver,
        }
        for address, device, kind, node, minor, name, driver in (
            ("0000:07:00.0", "22a3", "0680", None, None, "", ""),
            ("0000:1b:00.0", "2330", "0302", 1, 4, "NVIDIA H100 PCIe", "vfio-pci"),
        )
    ]


def test_a_machine_without_pci_has_no_devices(root: Root) -> None:
    assert node_facts.pci_devices(root.path) == []


ADDRESSES = [
    {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "addr_info": [{"local": "127.0.0.1"}]},
    {
        "ifname": "eth0",
        "flags": ["BROADCAST", "UP", "LOWER_UP"],
        "address": "02:00:00:00:00:01",
        "mtu": 1500,
        "addr_info": [
            {"local": "192.0.2.7", "prefixlen": 24, "scope": "global"},
            {"local": "fe80::7", "prefixlen": 64, "scope": "link"},
        ],
    },
    {"ifname": "ib0", "link_type": "infiniband", "flags": ["BROADCAST"], "mtu": 4092, "addr_info": []},
    {
        "ifname": "eth0.5",
        "link": "eth0",
        "linkinfo": {"info_kind": "vlan"},
        "flags": ["UP"],
        "mtu": 1500,
        "addr_info": [],
    },
]


@pytest.mark.component
def test_interfaces_but_loopback(program: Any, root: Root) -> None:
    root.write("sys/class/net/eth0/speed", "25000\n")
    device = root.path / "sys/class/net/eth0/device"
    (device / "infiniband").mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/mlx5_core")
    routes = [{"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"}]
    program(
        "ip",
        f"case $* in *address*) echo '{json.dumps(ADDRESSES)}' ;; *-4*) echo '{json.dumps(routes)}' ;; esac",
    )
    bare: dict[str, Any] = {
        "mtu": 1500,
        "up": True,
        "carrier": True,
        "speed_mbit_s": None,
        "addresses": [],
        "networks": [],
    }
    bare |= {"default_route": False, "driver": "", "mac": "", "rdma": False, "below": "", "master": ""}
    assert node_facts.interfaces(root.path) == [
        bare
        | {
            "name": "eth0",
            "kind": "",
            "speed_mbit_s": 25000,
            "addresses": ["192.0.2.7", "fe80::7"],
            "networks": ["192.0.2.0/24"],
            "default_route": True,
            "driver": "mlx5_core",
            "mac": "02:00:00:00:00:01",
            "rdma": True,
        },
        bare | {"name": "ib0", "kind": "infiniband", "mtu": 4092, "up": False},
        bare | {"name": "eth0.5", "kind": "vlan", "below": "eth0"},
    ]


NAMESPACE = """
ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && ip link set veth1 master br0
ip tuntap add tun0 mode tun && ip address add 10.9.0.1/24 dev veth0 && ip -json -details address show
"""


@pytest.mark.component
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(), reason="needs root, for a namespace"
)
def test_kinds_as_the_kernel_calls_them(program: Any, tmp_path: Path) -> None:
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # not what `program` has put there
    made = subprocess.run(
        ["/usr/bin/unshare", "-n", "sh", "-c", NAMESPACE], capture_output=True, text=True, env=path
    )
    if made.returncode:
        pytest.skip(f"needs bridges, veth and tun: {made.stderr}")
    (tmp_path / "links").write_text(made.stdout)
    program("ip", f"case $* in *address*) /bin/cat {tmp_path}/links ;; esac")
    found = {one["name"]: one for one in node_facts.interfaces(tmp_path)}
    kinds = {"br0": "bridge", "veth0": "veth", "veth1": "veth", "tun0": "tun"}
    assert {name: found[name]["kind"] for name in kinds} == kinds
    assert (found["veth1"]["master"], found["veth0"]["networks"]) == ("br0", ["10.9.0.0/24"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400000\n", 400000), ("-1\n", None), ("0\n", None), ("4294967295\n", None), ("\n", None)],
)
def test_a_speed_that_the_kernel_does_not_know_is_none(text: str, expected: int | None, root: Root) -> None:
    root.write("sys/class/net/eth0/speed", text)
    assert node_facts.link_speed(root.path, "eth0") == expected


def test_a_speed_that_refuses_to_be_read_is_none(root: Root) -> None:
    (root.path / "sys/class/net/eth0/speed").mkdir(parents=True)
    assert node_facts.link_speed(root.path, "eth0") is None


@pytest.mark.component
def test_an_interface_without_a_cable_has_no_carrier(program: Any) -> None:
    link = ADDRESSES[1] | {"flags": ["NO-CARRIER", "BROADCAST", "UP"]}
    program("ip", f"[ $3 != address ] || echo '{json.dumps([link])}'")
    (found,) = node_facts.interfaces()
    assert (found["up"], found["carrier"]) == (True, False)


@pytest.mark.component
@pytest.mark.parametrize(
    ("by_ipv4", "by_ipv6", "expected"),
    [
        ([("eth0", 200), ("eth1", 100)], [], "eth1"),
        ([("eth0", None)], [("eth1", 1024)], "eth0"),
        ([], [("eth1", 1024)], "eth1"),
    ],
)
def test_the_default_route_is_the_best_one_of_ipv4_or_else_of_ipv6(
    by_ipv4: list[Any], by_ipv6: list[Any], expected: str, program: Any
) -> None:
    def routes(of: list[Any]) -> str:
        return json.dumps([{"dev": dev} | ({"metric": metric} if metric else {}) for dev, metric in of])

    links = json.dumps([ADDRESSES[1] | {"ifname": name} for name in ("eth0", "eth1")])
    program(
        "ip",
        f"case $* in *address*) echo '{links}' ;; *-4*) echo '{routes(by_ipv4)}' ;; "
        f"*-6*) echo '{routes(by_ipv6)}' ;; esac",
    )
    assert [one["name"] for one in node_facts.interfaces() if one["default_route"]] == [expected]


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("ip"), reason="needs iproute2")
def test_the_real_ip_is_understood() -> None:
    for interface in node_facts.interfaces():
        assert interface.keys() == {field.name for field in fields(Interface)}


@pytest.mark.component
@pytest.mark.parametrize("script", [f"echo '{json.dumps(ADDRESSES)}'; exit 1", "", None])
def test_without_an_answer_of_ip_there_are_no_interfaces(script: str | None, program: Any) -> None:
    if script is not None:
        program("ip", script)
    assert node_facts.interfaces() == []


# ---------------------------------------------------------------- packages


INSTALLED = """\
libcuda1\\t580-1\\thold\\tinstalled
nvidia-modprobe\\t570-1\\tdeinstall\\tconfig-files
vim\\t9\\tinstall\\tinstalled
linux-image-6.8.0-45-generic\\t6\\thold\\tinstalled
linux-image-generic\\t6\\tinstall\\tinstalled
linux-image-5.15.0-91-generic\\t5\\tdeinstall\\tconfig-files
openssh-server\\t9.2\\tinstall\\thalf-configured
"""


@pytest.mark.component
def test_packages_of_the_family_and_all_that_are_broken(program: Any) -> None:
    program("dpkg-query", f"printf '{INSTALLED}'")
    images = {"linux-image-6.8.0-45-generic": "6", "linux-image-generic": "6"}
    assert node_facts.package_state() == ({"libcuda1": "580-1"}, ["openssh-server"], images, "")


@pytest.mark.component
@pytest.mark.parametrize("script", ["exit 2", None])
def test_without_dpkg_there_are_no_packages(script: str | None, program: Any) -> None:
    if script is not None:
        program("dpkg-query", script)
    assert node_facts.package_state() == ({}, [], {}, "")


RPMS = """\
kmod-nvidia-open-dkms\\t3:580.178.04-1.el9\\tnoarch
cuda-toolkit-13-0\\t13.0.2-1\\tx86_64
bash\\t5.1.8-9.el9\\tx86_64
"""


@pytest.mark.component
def test_packages_of_the_family_where_rpm_keeps_them(program: Any) -> None:
    program("rpm", f"printf '{RPMS}'")
    assert node_facts.package_state() == (
        {"kmod-nvidia-open-dkms": "3:580.178.04-1.el9", "cuda-toolkit-13-0": "13.0.2-1"},
        [],
        {},
        "",
    )


@pytest.mark.component
@pytest.mark.parametrize(
    ("installed", "ofed"),
    [
        ("mlnx-ofed-kernel-dkms\\t24.10\\tinstall\\tinstalled", "mlnx-ofed-kernel-dkms 24.10"),
        ("doca-ofed\\t2.9\\tinstall\\tinstalled", "doca-ofed 2.9"),
        ("doca-host\\t2.9\\tinstall\\tinstalled", ""),
        ("mlnx-ofed-kernel-dkms\\t24.10\\tdeinstall\\tconfig-files", ""),
        ("rdma-core\\t44\\tinstall\\tinstalled", ""),
    ],
)
def test_an_ofed_is_known_by_its_packages(installed: str, ofed: str, program: Any) -> None:
    program("dpkg-query", f"printf '{installed}\\n'")
    assert node_facts.package_state()[3] == ofed


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [
        ("0x15b3", "0x020700", True),
        ("0x15b3", "0x020000", True),
        ("0x15b3", "0x058000", False),
        ("0x8086", "0x020000", False),
    ],
)
def test_an_adapter_of_nvidia_is_one_for_rdma_also_without_its_driver(
    vendor: str, kind: str, found: bool, root: Root
) -> None:
    root.pci("0000:1c:00.0", vendor, "0x1021", kind)
    assert node_facts.has_rdma(root.path) is found


def test_whatever_the_kernel_drives_as_an_rdma_adapter_is_one(root: Root) -> None:
    root.write("sys/class/infiniband/irdma0/node_type", "1: CA\n")
    assert node_facts.has_rdma(root.path)


@pytest.mark.component
def test_rpm_is_not_asked_where_there_is_dpkg(program: Any) -> None:
    program("dpkg-query", f"printf '{INSTALLED}'")
    program("rpm", f"printf '{RPMS}'")
    assert node_facts.package_state()[0] == {"libcuda1": "580-1"}


@pytest.mark.component
@pytest.mark.parametrize(
    ("policy", "offered"),
    [
        (f"linux-headers-{RELEASE}:\n  Installed: (none)\n  Candidate: 6.1.140-1\n", True),
        (f"linux-headers-{RELEASE}:\n  Installed: (none)\n  Candidate: (none)\n", False),
        ("", False),
    ],
)
def test_headers_are_installable_where_apt_has_a_candidate(
    policy: str, offered: bool, root: Root, program: Any
) -> None:
    root.write("var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages.lz4", "")
    # Its caches are the node's, and no question may change them.
    caches = " ".join(
        f"-o Dir::Cache::{name}=/*/temper-apt-*/{name}.bin" for name in ("pkgcache", "srcpkgcache")
    )
    asked = f"{caches} policy linux-headers-{RELEASE}".replace(" ", "\\ ")
    program("apt-cache", f"case \"$*\" in {asked}) printf '{policy}' ;; *) exit 1 ;; esac")
    kernel = {"release": RELEASE, "headers_present": False}
    assert node_facts.installable_headers(root.path, kernel) is offered


def test_headers_that_are_present_need_no_question(root: Root, program: Any) -> None:
    root.write("var/lib/apt/lists/mirror_Packages", "")
    assert node_facts.installable_headers(root.path, {"release": RELEASE, "headers_present": True})


def test_where_apt_has_fetched_no_list_the_simulation_tells_of_the_headers(root: Root, program: Any) -> None:
    """A fresh image of a cloud."""
    root.write("var/lib/apt/lists/lock", "")
    assert node_facts.installable_headers(root.path, {"release": RELEASE, "headers_present": False})


# ---------------------------------------------------------------- the driver


BARE: dict[str, object] = {
    "loaded_version": None,
    "userspace_version": None,
    "vgpu_software": False,
    "modules": {RELEASE: None},
    "nouveau_loaded": False,
    "counters_restricted": None,
    "compute_processes": [],
    "smi_error": None,
}


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("etc/hostname", "bare\n", {}),
        ("etc/nvidia/gridd.conf", "FeatureType=0\n", {"vgpu_software": True}),
        ("etc/nvidia/gridd.conf.template", "FeatureType=0\n", {"vgpu_software": True}),
        ("sys/module/nvidia/version", "580.126.09\n", {"loaded_version": "580.126.09"}),
        ("sys/module/nouveau/initstate", "live\n", {"nouveau_loaded": True}),
        ("proc/driver/nvidia/params", "A: 1\nRmProfilingAdminOnly: 1\n", {"counters_restricted": True}),
        ("proc/driver/nvidia/params", "A: 1\nRmProfilingAdminOnly: 0\n", {"counters_restricted": False}),
    ],
)
def test_files_say_which_driver_there_is(
    path: str, text: str, said: dict[str, object], root: Root, program: Any
) -> None:
    root.write(path, text)
    assert loaded_state.nvidia_state(root.path, [RELEASE], signers=False) == BARE | said


@pytest.mark.component
def test_the_driver_is_read_after_nvidia_smi_has_loaded_it(root: Root, program: Any) -> None:
    root.write("sys/module/nvidia/version", "")
    program("nvidia-smi", f"echo 580.126.09 > {root.path}/sys/module/nvidia/version")
    assert loaded_state.nvidia_state(root.path, [], signers=False)["loaded_version"] == "580.126.09"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.580.178.04"),
        ("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.580.178.04"),
        ("usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.580.178.04"),
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "nvidia/current/libnvidia-ml.so.580.178.04"),
    ],
)
def test_the_version_of_the_installed_library_is_in_its_name(link: str, target: str, root: Root) -> None:
    path = root.path / link
    root.write(str(path.parent.relative_to(root.path) / target), "")
    path.symlink_to(target)
    assert loaded_state.userspace_version(root.path) == "580.178.04"


@pytest.mark.parametrize(
    ("vpd", "managed"), [(b"\x82\x10\x00NVIDIA\x90SW_MNG\x78", True), (b"ConnectX-7", False)]
)
def test_a_device_that_manages_nvlink_switches_says_so_in_its_vpd(
    vpd: bytes, managed: bool, root: Root
) -> None:
    root.write("sys/class/infiniband/mlx5_0/device/vpd", b"ConnectX-7")
    root.write("sys/class/infiniband/mlx5_4/device/vpd", vpd)
    assert node_facts.nvlink_switch_managed(root.path) is managed


def test_a_node_without_infiniband_manages_no_switches(root: Root) -> None:
    assert node_facts.nvlink_switch_managed(root.path) is False


def test_firmware_is_told_of_nvidias_adapters_with_virtual_functions(root: Root) -> None:
    for name, vendor, functions, firmware in (
        ("mlx5_0", "0x15b3", "8", "28.39.1002"),
        ("mlx5_1", "0x15b3", "8", "28.39.1002"),
        ("mlx5_2", "0x15b3", "0", "22.35.1012"),  # nobody has a function of it
        ("mlx5_3", "0x15b3", "", "22.35.1012"),  # it is such a function, or knows none
        ("mlx5_4", "0x15b3", "1", "no version\n"),
        ("bnxt_re0", "0x14e4", "8", "231.0.162.0"),
    ):
        root.write(f"sys/class/infiniband/{name}/fw_ver", f"{firmware}\n")
        root.write(f"sys/class/infiniband/{name}/device/vendor", f"{vendor}\n")
        if functions:
            root.write(f"sys/class/infiniband/{name}/device/sriov_numvfs", f"{functions}\n")
    assert node_facts.network_firmware(root.path) == ["28.39.1002"]


@pytest.mark.component
def test_compute_processes_by_id_and_name(program: Any) -> None:
    query = "--query-compute-apps=pid,process_name --format=csv,noheader"
    answer = "4242, /usr/bin/python3\n4243, [Not Found]\n"
    program("nvidia-smi", f"[ \"$*\" = '{query}' ] && printf '{answer}'")
    assert loaded_state.compute_processes() == (["4242 /usr/bin/python3", "4243 [Not Found]"], None)


@pytest.mark.component
def test_who_computes_or_is_a_guest_uses_gpus_though_nvidia_smi_does_not_name_it(
    root: Root, program: Any
) -> None:
    program("nvidia-smi", "echo '4242, python3'")
    groups = {8: "dcgm", 9: "nvidia-persistenced"}
    held = {
        7: ["/dev/vfio/13"],
        8: ["/dev/nvidia-uvm", "/dev/nvidia0"],
        9: ["/dev/nvidia-uvm"],
        10: ["/dev/nvidia0", "/dev/nvidiactl"],
        4242: ["/dev/nvidia-uvm"],
    }
    for pid, files in held.items():
        root.write(f"proc/{pid}/comm", "qemu-system-x86\n")
        service = groups.get(pid, "guests")
        root.write(f"proc/{pid}/cgroup", f"0::/system.slice/{service}.service\n")
        (root.path / f"proc/{pid}/fd").mkdir()
        for number, file in enumerate(files):
            (root.path / f"proc/{pid}/fd/{number}").symlink_to(file)
    guest, other, python = loaded_state.nvidia_state(root.path, [], signers=False)["compute_processes"]
    assert guest == "qemu-system-x86 (process 7, guests.service) holds /dev/vfio/13"
    assert (other.split(" holds ")[1], python) == ("/dev/nvidia-uvm, /dev/nvidia0", "4242 python3")


@pytest.mark.component
def test_the_complaint_of_nvidia_smi_is_kept(program: Any) -> None:
    program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert loaded_state.compute_processes() == (
        [],
        "Failed to initialize NVML: Driver/library version mismatch",
    )


@pytest.mark.component
def test_a_wedged_nvidia_smi_does_not_hang_the_run(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program("nvidia-smi", "while :; do :; done")
    monkeypatch.setattr(loaded_state, "COMMAND_TIMEOUT_S", 0.2)
    assert loaded_state.compute_processes() == ([], "nvidia-smi did not answer within 0.2 s")


@pytest.mark.component
def test_a_driver_that_answers_late_is_waited_for(
    root: Root, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is there at the second question, and the GPUs at the third."""
    monkeypatch.setattr(loaded_state, "DRIVER_POLL_S", 0.01)
    root.write("asked", "")
    root.write("sys/module/nvidia/version", "")
    program(
        "nvidia-smi",
        f"""echo x >> {root.path}/asked
n=0; while read _; do n=$((n + 1)); done < {root.path}/asked
[ $n -ge 2 ] && echo 580.178.04 > {root.path}/sys/module/nvidia/version
[ $n -eq 2 ] && {{ echo 'No devices were found'; exit 6; }}
exit 0""",
    )
    loaded_state.wait_for_driver(60, root.path)
    assert len((root.path / "asked").read_text().split()) == 3


@pytest.mark.component
def test_a_driver_that_never_answers_is_given_up(
    root: Root, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_state, "DRIVER_POLL_S", 0.01)
    program("nvidia-smi", f"echo x >> {root.path}/asked; echo 'No devices were found'; exit 6")
    loaded_state.wait_for_driver(0.1, root.path)
    assert (root.path / "asked").is_file()


def test_the_module_waits_for_the_driver_only_where_it_is_told_to(
    run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(node_facts, "gather", dict)
    monkeypatch.setattr(node_facts, "wait_for_driver", waits.append)
    run_module(node_facts.main)
    run_module(node_facts.main, driver_timeout_s=60)
    assert waits == [60]


# ---------------------------------------------------------------- the module


@pytest.mark.component
def test_module_returns_one_fact_and_changes_nothing(
    run_module: Run, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.write("etc/os-release", BOOKWORM)
    root.write("proc/sys/kernel/random/boot_id", "27f1b2c4-0000-4000-8000-000000000000\n")
    gather = node_facts.gather
    monkeypatch.setattr(node_facts, "gather", lambda **given: gather(root.path, **given))
    result = run_module(node_facts.main, check_mode=True)
    facts = result["ansible_facts"]["temper"]
    assert not result["changed"]
    assert facts.keys() == {field.name for field in fields(NodeFacts)}
    NodeFacts.from_dict(facts)
    assert facts["os"]["id"] == "debian"
    assert facts["boot_id"] == "27f1b2c4-0000-4000-8000-000000000000"


# ---------------------------------------------------------------- Python


def test_the_systems_own_python_comes_first(root: Root) -> None:
    for name in ("python3.9", "python3.12", "python3.11", "python3.11-config"):
        root.write(f"usr/bin/{name}", "")
    (root.path / "usr/bin/python3").symlink_to("python3.11")
    assert node_facts.pythons(root.path) == ["3.11", "3.9", "3.12"]
    assert node_facts.pythons(root.path / "elsewhere") == []


def test_a_python_that_has_no_name_beside_the_systems_own_is_none(root: Root) -> None:
    for name in ("usr/bin/python3.10", "usr/local/bin/python3.12"):
        root.write(name, "")
    (root.path / "usr/bin/python3").symlink_to("../local/bin/python3.12")
    assert node_facts.pythons(root.path) == ["3.10"]


@pytest.mark.parametrize(
    ("settings", "library", "found"),
    [
        ("home = /usr/bin\nversion = 3.11.2\n", "lib/python3.11/site-packages", ("3.11", True)),
        ("uv = 0.9\nversion_info = 3.12.3\n", "lib/python3.12/site-packages", ("3.12", True)),
        ("", "local/lib/python3.11/dist-packages", ("3.11", False)),
    ],
    ids=["venv", "uv", "a golden image"],
)
def test_the_payloads_python_is_read_from_files(
    settings: str, library: str, found: tuple[str, bool], root: Root
) -> None:
    root.write("opt/temper/venv/bin/python3", "")
    if settings:
        root.write("opt/temper/venv/pyvenv.cfg", settings)
    root.write(f"opt/temper/venv/{library}/torch-2.13.0+cpu.dist-info/METADATA", "")
    root.write(f"opt/temper/venv/{library}/torchvision-0.28.0.dist-info/METADATA", "")
    assert node_facts.payload_python(root.path, node_facts.PAYLOAD_PYTHON) == {
        "version": found[0],
        "torch": "2.13.0+cpu",
        "environment": found[1],
    }


def test_a_payload_python_that_is_not_there_or_says_nothing(root: Root) -> None:
    assert node_facts.payload_python(root.path, "/run/python3") is None
    root.write("run/python3", "#!/bin/sh\n")
    assert node_facts.payload_python(root.path, "/run/python3") == {
        "version": "",
        "torch": "",
        "environment": False,
    }


def test_an_environment_that_was_made_half_way_is_none_yet(root: Root) -> None:
    root.write("opt/temper/venv/bin/python3", "")
    root.write("opt/temper/venv/pyvenv.cfg", "version = 3.11.2\n")
    assert node_facts.payload_python(root.path, node_facts.PAYLOAD_PYTHON) is None
    root.write("opt/temper/venv/lib/python3.11/site-packages/pip/__init__.py", "")
    assert node_facts.payload_python(root.path, node_facts.PAYLOAD_PYTHON) is None
    root.write("opt/temper/venv/bin/pip", "")
    found = node_facts.payload_python(root.path, node_facts.PAYLOAD_PYTHON)
    assert found == {"version": "3.11", "torch": "", "environment": True}


def test_an_environment_that_somebody_has_made_without_pip_is_his(root: Root) -> None:
    """As uv does: another one is not made over it."""
    root.write("opt/temper/venv/bin/python3", "")
    root.write("opt/temper/venv/pyvenv.cfg", "version_info = 3.12.1\n")
    root.write("opt/temper/venv/lib/python3.12/site-packages/numpy/__init__.py", "")
    found = node_facts.payload_python(root.path, node_facts.PAYLOAD_PYTHON)
    assert found == {"version": "3.12", "torch": "", "environment": True}


def test_the_payloads_python_is_the_roles_default() -> None:
    assert specs()["gpu_validation"]["argument_specs"]["main"]["options"]["gpu_validation_python"][
        "default"
    ] == (node_facts.PAYLOAD_PYTHON)
