"""The operating system's hardening on real nodes: nobody is locked out, tuning wins, all can be taken back.

What no node has (auditing, AppArmor, a kernel that acts on its parameters) is judged by files only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
NODES = ("gpu01", "gpu02")  # Debian 12 and 13
ENVIRONMENT = {
    **os.environ,
    "LAB_NAME": "oshardtst",
    "LAB_NODES": str(len(NODES)),
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "LC_ALL": "C.UTF-8",
}
# What check mode must leave alone.
PLACES = """
    /etc/pam.d /etc/login.defs /etc/security /etc/sudoers /etc/sudoers.d /etc/sysctl.d /etc/modprobe.d
    /etc/issue /etc/issue.net /etc/profile.d /etc/temper /etc/systemd /usr/share/pam-configs
"""
PARAMETERS = "kernel/sysrq kernel/yama/ptrace_scope fs/suid_dumpable net/ipv4/conf/*/* net/ipv6/conf/*/*"
STATE = f"""
find {" ".join(PLACES.split())} -type f,d -exec stat -c '%n %a %U:%G' {{}} + -exec md5sum {{}} + 2>/dev/null |
    sort
findmnt --list --noheadings --output TARGET,VFS-OPTIONS | grep -v /run | sort
cd /proc/sys && grep -s . {PARAMETERS}
"""
GUESSES = """
for n in 1 2 3 4 5 6; do
    echo wrong | runuser -u nobody -- su {account} -c true
done 2>/dev/null || true
"""
TUNING = """
echo kernel.perf_event_paranoid = -1 >/etc/sysctl.d/95-temper-tuning.conf
sysctl --quiet --load /etc/sysctl.d/95-temper-tuning.conf
"""
# As a job has its image below /tmp while its node is hardened.
JOB = "mkdir -p /tmp/job && mount -t tmpfs job /tmp/job && echo running >/tmp/job/data"
# Stands for whatever nobody could foresee: sudo fails as soon as a file of ours is there that everybody sees.
TRAP = """
cat >/usr/local/bin/sudo <<'END'
#!/bin/sh
[ "$*" = "-n true" ] && [ -e /etc/modprobe.d/temper-hardening.conf ] && exit 1
exec /usr/bin/sudo "$@"
END
chmod 755 /usr/local/bin/sudo
"""


class Fleet:
    """The lab's nodes: Ansible's way in, and the side door."""

    def __init__(self) -> None:
        status = json.loads(self.lab("status", "--json"))
        self.status: dict[str, Any] = status
        self.addresses = {node["name"]: node["address"] for node in status["nodes"]}

    def lab(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tests.lab", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True, text=True
        ).stdout

    def side_door(self, node: str, command: str) -> str:
        return self.lab("shell", node, "sh", "-c", command)

    def playbook(self, name: str, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            f"playbooks/{name}.yml",
            "--extra-vars",
            json.dumps({"preflight_plan_file": ""} | variables),
            *arguments,
        ]
        return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    def harden(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return self.playbook("harden", "--tags=os_hardening", *arguments, **variables)

    def login(self, node: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command over a new SSH connection, by key, as the administrator."""
        options = {
            "BatchMode": "yes",
            "IdentityFile": self.status["ssh_key"],
            "UserKnownHostsFile": self.status["known_hosts"],
        }
        arguments = [f"-o{name}={value}" for name, value in options.items()]
        return subprocess.run(
            ["ssh", "-F/dev/null", *arguments, f"ops@{self.addresses[node]}", command],
            check=False,
            capture_output=True,
            text=True,
        )


def changed(run: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The number of changed tasks by node, as the recap has it."""
    assert run.returncode == 0, run.stdout + run.stderr
    recap = run.stdout.partition("PLAY RECAP")[2].splitlines()
    lines = [line.split(":", 1) for line in recap if " changed=" in line]
    return {name.strip(): int(counts.split("changed=")[1].split()[0]) for name, counts in lines}


NOTHING = dict.fromkeys(NODES, 0)
each_node = pytest.mark.parametrize("node", NODES)


@pytest.fixture(scope="module")
def bare() -> Iterator[Fleet]:
    command = [sys.executable, "-m", "tests.lab"]
    subprocess.run([*command, "up"], cwd=ROOT, env=ENVIRONMENT, check=True)
    try:
        yield Fleet()
    finally:
        subprocess.run([*command, "down"], cwd=ROOT, env=ENVIRONMENT, check=True)


@pytest.fixture(scope="module")
def before(bare: Fleet) -> dict[str, str]:
    return {node: bare.side_door(node, STATE) for node in NODES}


@pytest.fixture(scope="module")
def fleet(bare: Fleet, before: dict[str, str]) -> Fleet:
    """Hardened, beside a file such as os_tuning writes; check mode first, which must work on bare nodes."""
    assert bare.harden("--check", "--diff").returncode == 0
    assert {node: bare.side_door(node, STATE) for node in NODES} == before
    for node in NODES:
        bare.side_door(node, TUNING)
        bare.side_door(node, JOB)
    assert changed(bare.harden()) != NOTHING
    return bare


def test_second_run_changes_nothing(fleet: Fleet) -> None:
    assert changed(fleet.harden()) == NOTHING


@each_node
def test_what_is_mounted_below_tmp_stays_in_sight(fleet: Fleet, node: str) -> None:
    assert fleet.side_door(node, "cat /tmp/job/data").strip() == "running"


@each_node
def test_key_and_sudo_work_while_wrong_passwords_close_the_account(fleet: Fleet, node: str) -> None:
    fleet.side_door(node, f"echo ops:Right-9-password | chpasswd; {GUESSES.format(account='ops')}")
    try:
        tallies = fleet.side_door(node, "faillock --user ops | grep -c V$ || true")
        assert int(tallies) >= 4
        right = "echo Right-9-password | runuser -u nobody -- su ops -c true 2>&1 || true"
        assert "locked" in fleet.side_door(node, right)
        assert fleet.login(node, "sudo -n true").returncode == 0
    finally:
        fleet.side_door(node, "faillock --user ops --reset; passwd --quiet --lock ops")


@each_node
def test_wrong_passwords_never_close_root(fleet: Fleet, node: str) -> None:
    fleet.side_door(node, f"echo root:Right-9-password | chpasswd; {GUESSES.format(account='root')}")
    try:
        right = "echo Right-9-password | runuser -u nobody -- su root -c 'echo in' 2>/dev/null"
        assert fleet.side_door(node, right).strip() == "in"
    finally:
        fleet.side_door(node, "passwd --quiet --lock root")


@each_node
def test_users_files_are_not_for_everybody_and_those_that_sudo_makes_are(fleet: Fleet, node: str) -> None:
    mask, of_root = fleet.login(node, "umask; sudo sh -c umask").stdout.split()
    assert mask.endswith("7")
    assert of_root == "0022"


@each_node
def test_automatic_updates_would_leave_drivers_and_kernels_alone(fleet: Fleet, node: str) -> None:
    said = fleet.side_door(node, "unattended-upgrade --dry-run --debug 2>&1")
    blacklist = next(line for line in said.splitlines() if line.startswith("Initial blacklist"))
    assert {"nvidia-", "libnvidia-", "cuda-", "linux-image-"} <= set(blacklist.split())
    origins = next(line for line in said.splitlines() if line.startswith("Allowed origins"))
    assert origins.count("origin=") == origins.count("label=Debian-Security") == 2


@each_node
def test_audit_rules_neither_halt_the_node_nor_let_anybody_wait(fleet: Fleet, node: str) -> None:
    fleet.side_door(node, "augenrules; visudo -c")
    rules = fleet.side_door(node, "grep -v '^#' /etc/audit/audit.rules").split("\n")
    # The last one wins: lost events are logged, and nobody waits.
    assert [line for line in rules if line.startswith("-f")][-1] == "-f 1"
    assert [line for line in rules if line.startswith("--backlog_wait_time")][-1] == "--backlog_wait_time 0"


@each_node
def test_no_unit_has_failed(fleet: Fleet, node: str) -> None:
    assert fleet.side_door(node, "systemctl --failed --no-legend").strip() == ""


def test_tuning_wins_and_all_is_in_force_after_a_reboot(fleet: Fleet) -> None:
    for node in NODES:
        fleet.lab("reboot", node)
        values = fleet.side_door(
            node, "sysctl -n kernel.perf_event_paranoid kernel.sysrq net.ipv4.conf.eth0.send_redirects"
        )
        assert values.split() == ["-1", "176", "0"]
        for path in ("/tmp", "/var/tmp", "/dev/shm"):
            options = fleet.side_door(node, f"findmnt --noheadings --output VFS-OPTIONS --mountpoint {path}")
            assert {"nodev", "nosuid"} <= set(options.strip().split(","))
        fleet.side_door(node, "cp /bin/true /tmp/program && /tmp/program && rm /tmp/program")
    assert changed(fleet.harden()) == NOTHING


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"os_hardening_waivers": [{"id": "core-dump", "reason": "x"}]}, "did you mean core-dumps?"),
        ({"os_hardening_waivers": [{"id": "core-dumps", "reason": ""}]}, "expected a reason, found none"),
    ],
    ids=["unknown", "no reason"],
)
def test_bad_waiver_is_refused_before_anything_changes(
    fleet: Fleet, variables: dict[str, Any], reason: str
) -> None:
    run = fleet.harden(**variables)
    assert run.returncode != 0
    assert reason in " ".join(run.stdout.split())


def test_masked_unit_is_refused_before_anything_changes(fleet: Fleet) -> None:
    for node in NODES:
        fleet.side_door(node, "systemctl disable --now apt-daily.timer; systemctl mask apt-daily.timer")
    try:
        for arguments in ([], ["--check"]):
            run = fleet.harden(*arguments, os_hardening_profile="cis-level1")
            assert "apt-daily.timer is masked" in " ".join(run.stdout.split())
            assert "or waive the control updates" in " ".join(run.stdout.split())
        for node in NODES:
            assert "cron.allow" not in fleet.side_door(node, "ls /etc")
    finally:
        for node in NODES:
            fleet.side_door(node, "systemctl unmask apt-daily.timer")
    assert changed(fleet.harden()) == dict.fromkeys(NODES, 1)


def test_waiver_takes_its_settings_back_and_is_listed(fleet: Fleet) -> None:
    waivers = [{"id": "core-dumps", "reason": "We debug."}]
    assert changed(fleet.harden(os_hardening_waivers=waivers)) == dict.fromkeys(NODES, 1)
    for node in NODES:
        listed = fleet.side_door(node, "cat /etc/temper/os_hardening_waivers.txt; ls /etc/security/limits.d")
        assert "waived by the operator: We debug." in listed
        assert "10-temper-hardening.conf" not in listed


def test_change_that_takes_sudo_from_us_is_undone(fleet: Fleet) -> None:
    fleet.harden(os_hardening_state="absent")
    for node in NODES:
        fleet.side_door(node, TRAP)
    try:
        run = fleet.harden()
        assert "could no longer become root, so they were undone" in " ".join(run.stdout.split())
        for node in NODES:
            left = fleet.side_door(node, "ls /etc/sudoers.d /etc/modprobe.d /etc/temper 2>&1; true")
            assert "hardening" not in left
    finally:
        for node in NODES:
            fleet.side_door(node, "rm /usr/local/bin/sudo")
    assert changed(fleet.harden()) != NOTHING


def test_strictest_profile_locks_nobody_out_either(fleet: Fleet) -> None:
    assert changed(fleet.harden(os_hardening_profile="anssi-high")) != NOTHING
    assert changed(fleet.harden(os_hardening_profile="anssi-high")) == NOTHING
    for node in NODES:
        assert fleet.login(node, "sudo -n true").returncode == 0
