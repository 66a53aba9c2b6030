"""The lab's own behaviour, on labs of these tests' own: it boots, reboots, recovers and leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import cgroups, network
from tests.lab import node as machine
from tests.lab.settings import CHECKOUT, PAYLOAD_TREE_ON_NODE, Lab
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

LAB = Lab("selftest")
# Killed in the middle of things, so that the other lab need not suffer.
VICTIM = Lab("victim")
HOST_SETTINGS = ("net/ipv4/ip_forward", "fs/inotify/max_user_instances")


def command(lab: Lab, *arguments: str, nodes: int = 2, checkout: Path = CHECKOUT) -> subprocess.Popen[str]:
    """Start a command of the lab."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lab", *arguments],
        cwd=checkout,
        env={**os.environ, "LAB_NAME": lab.name, "LAB_NODES": str(nodes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(lab: Lab, *arguments: str, nodes: int = 2) -> str:
    """Run a command of the lab and return what it prints; the test fails if the command does."""
    with command(lab, *arguments, nodes=nodes) as process:
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return output


def inside(node: str, *arguments: str) -> str:
    """Run a command in a node through the side door."""
    return run(LAB, "shell", node, *arguments).strip()


def ssh(node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a node as its administrator, with host keys checked."""
    status = json.loads(run(LAB, "status", "--json"))
    address = next(entry["address"] for entry in status["nodes"] if entry["name"] == node)
    return subprocess.run(
        [
            *(
                "ssh",
                "-F",
                "/dev/null",
                "-i",
                status["ssh_key"],
                "-o",
                "BatchMode=yes",
                "-o",
                "ConnectTimeout=2",
            ),
            *("-o", f"UserKnownHostsFile={status['known_hosts']}", "-o", "StrictHostKeyChecking=yes"),
            *(f"ops@{address}", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )


def boot_id(node: str) -> str:
    return inside(node, "cat", "/proc/sys/kernel/random/boot_id")


def inventory(lab: Lab, checkout: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    """Run the inventory of a lab as Ansible does."""
    return subprocess.run(
        [sys.executable, str(checkout / "inventory/lab/hosts.py")],
        env={**os.environ, "LAB_NAME": lab.name},
        capture_output=True,
        text=True,
        timeout=30,
    )


def traces(lab: Lab) -> list[str]:
    """Everything on this machine that carries the lab's name, and should not outlive it."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                commands.append(
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
    seen = {
        "process": [line for line in commands if f"{lab.state}/" in line],
        "mount": [
            line for line in Path("/proc/mounts").read_text().splitlines() if f"{lab.name}-gpu" in line
        ],
        "namespace": network.namespaces(lab),
        "link": [
            path.name
            for path in Path("/sys/class/net").iterdir()
            if path.name == lab.bridge or path.name.startswith(f"{lab.name}-")
        ],
        "nftables": [
            line
            for line in subprocess.run(
                ["nft", "list", "tables"], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if line.endswith(f" {lab.nft_table}")
        ],
        "control group": [name for name in cgroups.children(cgroups.ROOT) if name == lab.name],
        "state": [str(lab.state)] if lab.state.exists() else [],
    }
    return [f"{kind}: {item}" for kind, items in seen.items() for item in items]


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two fresh nodes for all tests of this file; nothing of them stays."""
    run(LAB, "down")
    run(LAB, "up")
    yield
    run(LAB, "down")


@pytest.mark.parametrize(("node", "version"), [("gpu01", "12"), ("gpu02", "13")])
def test_node_lets_its_administrator_in_and_become_root(node: str, version: str) -> None:
    result = ssh(node, "sudo", "sh", "-c", "'. /etc/os-release; echo $ID $VERSION_ID $(id -un) $(hostname)'")

    assert result.stdout.split() == ["debian", version, "root", node], result.stderr


def test_nodes_have_no_failed_unit() -> None:
    states = {entry["name"]: entry["state"] for entry in json.loads(run(LAB, "status", "--json"))["nodes"]}

    assert states == {"gpu01": "running", "gpu02": "running"}


@pytest.mark.parametrize("node", ["gpu01", "gpu02"])
def test_node_reaches_the_package_mirror(node: str) -> None:
    assert ssh(node, "sudo", "apt-get", "-q", "--error-on=any", "update").returncode == 0


def test_nodes_reach_each_other_by_name_and_over_ipv6() -> None:
    neighbour = next(node for node in LAB.nodes(2) if node.name == "gpu02")

    assert ssh("gpu01", "ping", "-q", "-c1", "-W5", "gpu02").returncode == 0
    assert ssh("gpu01", "ping", "-q", "-c1", "-W5", neighbour.address6).returncode == 0


def test_nodes_reach_the_simulated_repositories() -> None:
    url = f"{LAB.repository_url}/libnvidia-container/gpgkey"
    script = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=5).read()[:36].decode())"

    assert "BEGIN PGP PUBLIC KEY" in inside("gpu02", "python3", "-c", script)


@pytest.mark.parametrize("node", ["gpu01", "gpu02"])
def test_payload_python_has_torch(node: str) -> None:
    result = ssh(
        node, f"{PAYLOAD_TREE_ON_NODE}/bin/python3", "-c", "'import torch; print(torch.ones(2).sum())'"
    )

    assert result.stdout.strip() == "tensor(2.)", result.stderr


def test_up_leaves_running_nodes_alone() -> None:
    before = [boot_id("gpu01"), boot_id("gpu02")]

    run(LAB, "up")

    assert [boot_id("gpu01"), boot_id("gpu02")] == before


def test_up_starts_a_node_that_was_switched_off_with_what_it_had_stored() -> None:
    inside("gpu02", "touch", "/etc/kept")
    machine.shut_down(LAB.node(2), "poweroff")
    wait_until(lambda: not cgroups.Group(f"{cgroups.ROOT}/{LAB.name}/gpu02").processes(), "it is off", 60)
    other = boot_id("gpu01")

    run(LAB, "up")

    assert inside("gpu02", "ls", "/etc/kept") == "/etc/kept"
    assert boot_id("gpu01") == other


def test_reboot_from_inside_brings_the_node_back_with_a_new_boot_id() -> None:
    before = boot_id("gpu01")

    run(LAB, "reboot", "gpu01")

    assert boot_id("gpu01") not in ("", before)
    assert ssh("gpu01", "true").returncode == 0


def test_reboot_forgets_firewall_rules_and_the_side_door_needs_no_network() -> None:
    inside(
        "gpu02",
        "nft",
        "add table inet shut; add chain inet shut door { type filter hook input priority 0; policy drop; }",
    )
    assert ssh("gpu02", "true").returncode == 255

    run(LAB, "reboot", "gpu02")

    assert inside("gpu02", "nft", "list", "ruleset") == ""
    assert ssh("gpu02", "true").returncode == 0


def test_sysctls_are_each_nodes_own_and_end_with_its_boot() -> None:
    host = Path("/proc/sys/vm/swappiness")
    before = host.read_text()

    inside("gpu01", "sysctl", "-q", "-w", "vm.swappiness=7", "net.ipv4.ip_forward=1")

    assert inside("gpu01", "sysctl", "-n", "vm.swappiness") == "7"
    assert inside("gpu02", "sysctl", "-n", "vm.swappiness", "net.ipv4.ip_forward").split() == ["60", "0"]
    assert host.read_text() == before
    # One value that is shorter than the kernel's, which a file would keep the end of.
    inside("gpu01", "sh", "-c", "echo kernel.sysrq = 0 >/etc/sysctl.d/shorter.conf")
    run(LAB, "reboot", "gpu01")
    assert inside("gpu01", "sysctl", "-n", "vm.swappiness", "net.ipv4.ip_forward").split() == ["60", "0"]
    assert inside("gpu01", "cat", "/proc/sys/kernel/sysrq") == "0"
    inside("gpu01", "rm", "/etc/sysctl.d/shorter.conf")


@pytest.mark.parametrize("key", ["kernel.sysrq", "kernel.yama.ptrace_scope", "kernel.kexec_load_disabled"])
def test_sysctls_are_those_of_a_debian_kernel(key: str) -> None:
    assert inside("gpu02", "sysctl", "-n", key).isdecimal()


@pytest.mark.parametrize("node", ["gpu01", "gpu02"])
def test_all_sysctls_are_listed(node: str) -> None:
    """On Debian 12 that needs `.` to be the first entry of each directory."""
    listed = inside(node, "timeout", "20", "sysctl", "--all", "--names").split()
    assert {"kernel.random.boot_id", "kernel.hostname", "vm.swappiness"} <= set(listed)


def test_unknown_sysctl_fails() -> None:
    with command(LAB, "shell", "gpu01", "sysctl", "-w", "vm.unheard_of=1") as process:
        _, errors = process.communicate(timeout=30)

    assert "cannot stat" in errors
    assert process.returncode != 0


def test_faults_can_be_switched() -> None:
    speed = "/sys/bus/pci/devices/0000:1b:00.0/current_link_speed"
    before = inside("gpu01", "cat", speed)

    run(LAB, "fault", "gpu01", "pcie-gen1", "on")
    during = inside("gpu01", "cat", speed)
    run(LAB, "fault", "gpu01", "pcie-gen1", "off")

    assert (during, inside("gpu01", "cat", speed)) == ("2.5 GT/s PCIe", before)


def test_inventory_lists_the_nodes_and_how_to_reach_them() -> None:
    found: dict[str, Any] = json.loads(inventory(LAB).stdout)

    assert found["gpu_nodes"]["hosts"] == ["gpu01", "gpu02"]
    assert found["_meta"]["hostvars"]["gpu02"] == {"ansible_host": LAB.node(2).address}
    assert len(found["gpu_nodes"]["vars"]["lab_key_fingerprints"]) == 1


def test_inventory_of_a_lab_that_is_down_fails_and_says_how_to_start_it() -> None:
    result = inventory(Lab("nobodys"))

    assert result.returncode == 1
    assert "The lab is not running. Start it with: make lab-up" in result.stderr


@pytest.fixture
def other_checkout(tmp_path: Path) -> Path:
    """A second checkout of the project."""
    checkout = tmp_path / "other"
    for name in ("tests/lab", "inventory/lab"):
        shutil.copytree(CHECKOUT / name, checkout / name, symlinks=True)
    # Without it, the package would be that of the checkout whose environment runs it.
    shutil.copy(CHECKOUT / "tests/__init__.py", checkout / "tests")
    return checkout


@pytest.mark.parametrize("arguments", [["up"], ["down"], ["reset"]])
def test_another_checkout_is_told_who_holds_the_lab(other_checkout: Path, arguments: list[str]) -> None:
    with command(LAB, *arguments, checkout=other_checkout) as process:
        _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert f"is running for the checkout {CHECKOUT}" in errors
    assert "LAB_NAME=other" in errors


def test_inventory_of_another_checkout_fails_and_says_who_holds_the_lab(other_checkout: Path) -> None:
    result = inventory(LAB, other_checkout)

    assert result.returncode == 1
    assert f"is running for the checkout {CHECKOUT}" in result.stderr


def test_reset_makes_nodes_bare_again() -> None:
    inside("gpu01", "touch", "/etc/stored")

    run(LAB, "reset")

    assert inside("gpu01", "find", "/etc", "-name", "stored") == ""


@pytest.fixture
def victim() -> Iterator[None]:
    """A lab to be killed; nothing of it stays."""
    run(VICTIM, "down")
    yield
    run(VICTIM, "down")


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param((VICTIM.state / "nodes/.gpu01.unfinished").exists, id="creating-the-node"),
        pytest.param(lambda: network.namespaces(VICTIM), id="connecting-it"),
        pytest.param(lambda: cgroups.children(f"{cgroups.ROOT}/{VICTIM.name}/gpu01"), id="starting-it"),
        pytest.param((VICTIM.state / "nodes/gpu01/upper/var/log/journal").exists, id="booting-it"),
    ],
)
def test_up_recovers_from_an_up_that_was_killed(moment: Callable[[], object]) -> None:
    with command(VICTIM, "up", nodes=1) as killed:
        wait_until(moment, "its moment comes", 60, pause_s=0.002)
        killed.kill()

    run(VICTIM, "up", nodes=1)

    assert json.loads(run(VICTIM, "status", "--json"))["nodes"][0]["state"] == "running"


@pytest.mark.usefixtures("victim")
def test_up_recovers_a_lab_whose_processes_were_all_killed() -> None:
    run(VICTIM, "up", nodes=1)
    for process in cgroups.Group(f"{cgroups.ROOT}/{VICTIM.name}").processes():
        os.kill(process, signal.SIGKILL)

    run(VICTIM, "up", nodes=1)

    assert json.loads(run(VICTIM, "status", "--json"))["nodes"][0]["state"] == "running"


@pytest.mark.usefixtures("victim")
def test_nodes_start_bare_after_a_restart_of_the_host() -> None:
    run(VICTIM, "up", nodes=1)
    run(VICTIM, "shell", "gpu01", "touch", "/etc/stored")
    cgroups.Group(f"{cgroups.ROOT}/{VICTIM.name}").kill()
    description = json.loads(VICTIM.description.read_text())
    VICTIM.description.write_text(json.dumps({**description, "host_boot_id": "another"}))

    assert "they start bare" in run(VICTIM, "up", nodes=1)

    assert run(VICTIM, "shell", "gpu01", "find", "/etc", "-name", "stored") == ""


@pytest.mark.usefixtures("victim")
def test_lab_of_a_checkout_that_is_gone_is_taken_over() -> None:
    run(VICTIM, "up", nodes=1)
    description = json.loads(VICTIM.description.read_text())
    VICTIM.description.write_text(json.dumps({**description, "checkout": "/gone"}))

    assert "started 0 of 1" in run(VICTIM, "up", nodes=1)


@pytest.mark.usefixtures("victim")
def test_a_second_up_waits_for_the_first() -> None:
    with command(VICTIM, "up", nodes=1) as first:
        wait_until(VICTIM.description.exists, "the first begins", 60, pause_s=0.002)
        second = run(VICTIM, "up", nodes=1)

    assert first.returncode == 0
    assert f"held by process {first.pid}" in second
    assert "started 0 of 1" in second


def test_down_leaves_nothing_behind() -> None:
    others = [name for name in cgroups.children(cgroups.ROOT) if name != VICTIM.name]
    settings = {name: Path("/proc/sys", name).read_text() for name in HOST_SETTINGS}
    run(VICTIM, "up", nodes=2)
    assert len(traces(VICTIM)) > 5

    run(VICTIM, "down")

    assert traces(VICTIM) == []
    # Another lab still needs the host's settings: this file's own.
    assert others
    assert {name: Path("/proc/sys", name).read_text() for name in HOST_SETTINGS} == settings
