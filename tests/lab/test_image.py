"""An image made of a tree that has no GPU, then a machine that boots from it, with GPUs and keys of its own.

One node is both: at first its hardware description is taken away, and its upper layer is the tree. A second
kernel is put there, which nobody runs: what the driver is built for must not follow the builder.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import node as machine
from tests.lab.fleet import Fleet, Run, assert_refused, installed, on_node
from tests.lab.gpu_simulator import profiles
from tests.lab.settings import CHECKOUT, Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="image"), size=1)
(TREE,) = FLEET.lab.nodes(1)
DRIVER = "580.178.04"
KERNEL = "6.1.0-99-amd64"
IMAGE: dict[str, Any] = {
    "preflight_image": True,
    "preflight_image_kernel": KERNEL,
    "preflight_image_gpus": [{"gpu": "h100_sxm_80gb", "count": 8}],
    "nvidia_stack_fabric": "nvswitch",
}
# The driver is there from the first boot on: nothing is rebooted for it.
MACHINE = {"nvidia_stack_fabric": "nvswitch", "nvidia_stack_reboot_ok": False}
# What only a machine has: a driver to prove, GPUs for containers, cores and a network, the payload.
LEFT_TO_THE_MACHINE = {
    "nvidia_stack : Install and hold the stack, and prove that it is loaded",
    "container_engines : Give the container engines the GPUs",
    "compute_environment : Write the NCCL and thread settings",
    "gpu_validation : Copy the payload to the node",
}
SHUTDOWN_S = 60
# Packages start these by themselves whatever a policy says: NVIDIA's toolkit calls `systemctl enable --now`.
STARTED_BY_PACKAGES = re.compile(r"nvidia-cdi-refresh\.(path|service)")
LIVE = {
    # Not what counts or draws lots.
    "sysctls": "sysctl -a 2>/dev/null | grep -Ev 'random|^fs\\.|nf_conntrack|ns_last_pid|loadavg|entropy'",
    "services": "systemctl list-units --type=service,socket,timer,path --state=active --plain --no-legend"
    " | cut -d' ' -f1 | sort",
    "rules": "nft list ruleset 2>/dev/null || true",
    "modules": "ls /sys/module | grep -E '^(nvidia|nouveau)' || true",
    "sshd": "systemctl show ssh --property=ExecMainStartTimestampMonotonic",
    "boot": "cat /proc/sys/kernel/random/boot_id",
    "mounts": "findmnt --noheadings --raw --output TARGET,OPTIONS /tmp /dev/shm /home /var/tmp || true",
}


def live_state() -> dict[str, set[str]]:
    """What of the running tree must stay as it is."""
    return {
        name: {line for line in on_node(TREE, script).splitlines() if not STARTED_BY_PACKAGES.match(line)}
        for name, script in LIVE.items()
    }


def build(*arguments: str) -> Run:
    """Run the playbook for images on the tree."""
    command = ["ansible-playbook", "playbooks/image.yml", "--extra-vars", json.dumps(IMAGE)]
    return FLEET.run([*command, *arguments])


def power_off() -> None:
    """Shut the tree down as an operator does, and wait until nothing of it runs."""
    machine.shut_down(TREE, "poweroff")
    wait_until(lambda: not machine.group(TREE).processes(), f"{TREE.name} is off", SHUTDOWN_S)


def upper(path: str) -> Path:
    """A path of the tree, as it lies on the disk."""
    return TREE.state / "upper" / path


def host_keys() -> list[str]:
    return sorted(path.name for path in upper("etc/ssh").glob("ssh_host_*_key"))


def verdict() -> dict[str, str]:
    """State by node in the newest report of the checkout."""
    summary = json.loads((CHECKOUT / "reports/latest/summary.json").read_text())
    return {node["node"]: node["state"] for node in summary["nodes"]}


def changed_tasks(run: Run) -> list[str]:
    """The names of the tasks that changed something, as Ansible prints them."""
    blocks = re.split(r"^TASK \[", run.output, flags=re.MULTILINE)[1:]
    return [block.partition("]")[0] for block in blocks if re.search(r"^changed: ", block, re.MULTILINE)]


def units_enabled(*names: str) -> list[str]:
    return on_node(TREE, f"systemctl is-enabled {' '.join(names)} || true").split()


@pytest.fixture(scope="module")
def tree() -> Iterator[None]:
    """A bare tree without a GPU, with a kernel that nobody runs; nothing is left of it afterwards."""
    FLEET.command("down")
    FLEET.command("up")
    on_node(
        TREE,
        f"rm /var/lib/gpu-simulator/hardware.json; mkdir -p /lib/modules/{KERNEL}/build; "
        f"touch /boot/vmlinuz-{KERNEL}",
    )
    FLEET.command("reboot", TREE.name)
    yield
    FLEET.command("down")


@pytest.fixture(scope="module")
def built(tree: None) -> tuple[Run, dict[str, set[str]], dict[str, set[str]]]:
    """The first run, without the seal, and the state of the running tree before and after it."""
    before = live_state()
    run = build("--skip-tags", "seal")
    assert run.status == 0, run.output
    return run, before, live_state()


@pytest.fixture(scope="module")
def sealed(built: object) -> Run:
    """A whole run, which ends with the seal; then the tree is shut down."""
    run = build()
    assert run.status == 0, run.output
    power_off()
    return run


@pytest.fixture(scope="module")
def first_boot(sealed: Run) -> dict[str, str]:
    """A machine with eight GPUs has booted from the sealed tree; the keys and the id that it has made."""
    hardware = json.dumps(profiles.hardware("hgx-h100-8", TREE.name))
    upper("var/lib/gpu-simulator/hardware.json").write_text(hardware)
    FLEET.command("up")
    return {
        "keys": on_node(TREE, "cat /etc/ssh/ssh_host_*_key.pub"),
        "machine-id": on_node(TREE, "cat /etc/machine-id").strip(),
    }


def test_an_image_needs_the_names_of_its_gpus(tree: None) -> None:
    variables = {**IMAGE, "preflight_image_gpus": []}
    run = FLEET.run(["ansible-playbook", "playbooks/image.yml", "--extra-vars", json.dumps(variables)])
    assert_refused(run, "preflight_image_gpus names no GPU", "nothing was changed on it")


def test_a_kernel_that_is_not_in_the_tree_is_refused(tree: None) -> None:
    variables = {**IMAGE, "preflight_image_kernel": "6.1.0-98-amd64"}
    run = FLEET.run(["ansible-playbook", "playbooks/image.yml", "--extra-vars", json.dumps(variables)])
    assert_refused(run, "expected the kernel 6.1.0-98-amd64 in its tree", KERNEL)


def test_a_machine_that_nobody_calls_an_image_is_refused_by_the_playbook(tree: None) -> None:
    variables = {"preflight_image": False}
    run = FLEET.run(["ansible-playbook", "playbooks/image.yml", "--extra-vars", json.dumps(variables)])
    assert run.status != 0, run.output
    assert run.changed(TREE) == 0


def test_nothing_of_the_running_tree_changes(built: tuple[Run, dict[str, Any], dict[str, Any]]) -> None:
    _, before, after = built
    for name in LIVE:
        # The session of a login comes and goes.
        sessions = {line for line in before[name] ^ after[name] if line.startswith(("session-", "user"))}
        assert (before[name] ^ after[name]) - sessions == set(), name


def test_the_module_is_built_for_the_named_kernel(built: object) -> None:
    module = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
    vermagic = on_node(TREE, f"modinfo -F vermagic {module}").split()[0]
    assert (vermagic, on_node(TREE, f"modinfo -F version {module}").strip()) == (KERNEL, DRIVER)


def test_packages_are_held_and_units_enabled(built: object) -> None:
    held = on_node(TREE, "apt-mark showhold").split()
    assert {"libcuda1", "nvidia-driver-cuda", "nvidia-fabricmanager"} <= {*held}, held
    units = ("temper-gpu-settings", "nvidia-persistenced", "nvidia-fabricmanager", "temper-firewall")
    assert units_enabled(*units) == ["enabled"] * len(units)
    assert on_node(TREE, "ls /usr/sbin/policy-rc.d 2>/dev/null || echo none").strip() == "none"


def test_a_second_run_changes_nothing(built: object) -> None:
    run = build("--skip-tags", "seal")
    assert (run.status, run.changed(TREE)) == (0, 0), run.output


def test_the_seal_changes_one_thing_and_says_what(sealed: Run) -> None:
    assert sealed.changed(TREE) == 1, sealed.output
    assert "SSH host keys" in sealed.said
    assert "/etc/ssh/ssh_host_ed25519_key" in sealed.said


def test_nothing_personal_lies_on_the_disk_of_a_sealed_tree(sealed: Run) -> None:
    assert host_keys() == []
    assert upper("etc/machine-id").read_bytes() == b""
    assert not upper("etc/hostname").is_file() or upper("etc/hostname").is_char_device()
    assert list(upper("var/cache/apt/archives").glob("*.deb")) == []
    records = {path.name for path in upper("var/lib/temper").iterdir()}
    assert records <= {
        "admin_accounts.json",
        "container_engines.json",
        "held-packages",
        "settings",
        "unproven-packages",
    }
    assert "unproven-packages" in records


def test_a_machine_makes_its_own_keys_and_id(first_boot: dict[str, str]) -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", first_boot["machine-id"])
    assert "ssh-ed25519" in first_boot["keys"]
    assert on_node(TREE, "systemctl is-active ssh").strip() == "active"
    assert on_node(TREE, "systemctl is-active temper-first-boot").strip() == "active"


def test_the_firewall_of_the_image_is_there_at_the_first_boot(first_boot: dict[str, str]) -> None:
    assert "table inet temper" in on_node(TREE, "nft list tables")


def test_site_on_the_machine_ends_in_pass_and_again_changes_nothing(first_boot: dict[str, str]) -> None:
    command = ["ansible-playbook", "site.yml", "--extra-vars", json.dumps(MACHINE)]
    packages = installed(TREE)
    first = FLEET.run(command)
    assert first.status == 0, first.output
    assert set(changed_tasks(first)) <= LEFT_TO_THE_MACHINE, first.output
    assert installed(TREE) == packages
    assert verdict() == {TREE.name: "pass"}
    second = FLEET.run(command)
    assert (second.status, second.changed(TREE)) == (0, 0), second.output


def test_a_machine_keeps_its_keys_at_the_next_boot(first_boot: dict[str, str]) -> None:
    FLEET.command("reboot", TREE.name)
    assert on_node(TREE, "cat /etc/ssh/ssh_host_*_key.pub") == first_boot["keys"]
    assert on_node(TREE, "cat /etc/machine-id").strip() == first_boot["machine-id"]
