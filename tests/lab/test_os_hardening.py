"""The operating system's hardening on real nodes: nobody is locked out, tuning wins, all can be taken back.

What no node has (auditing, AppArmor, a kernel that acts on its parameters) is judged by files only.
"""

import json
import subprocess
from typing import Any

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.hardening import changed as tasks_by_node
from tests.lab.settings import Lab, Node

pytestmark = pytest.mark.lab

LAB = Lab(name="oshardtst")
FLEET = Fleet(LAB)
NODES = LAB.nodes(2)  # Debian 12 and 13
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


def harden(*arguments: str, **variables: Any) -> Run:
    """Harden all nodes; what they say stands in no reports."""
    given = {"preflight_plan_file": "", **variables}
    command = ["ansible-playbook", "playbooks/harden.yml", "--tags=os_hardening", *arguments]
    return FLEET.run([*command, "--extra-vars", json.dumps(given)])


def login(node: Node, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command over a new SSH connection, by key, as the administrator."""
    options = ["-F/dev/null", "-oBatchMode=yes", f"-oIdentityFile={LAB.ssh_key}"]
    options.append(f"-oUserKnownHostsFile={LAB.known_hosts}")
    ssh = ["ssh", *options, f"ops@{node.address}", command]
    return subprocess.run(ssh, check=False, capture_output=True, text=True)


def changed(run: Run) -> dict[str, int]:
    """The number of changed tasks by node."""
    assert run.status == 0, run.output
    return tasks_by_node(run)


NOTHING, ONE = ({node.name: number for node in NODES} for number in (0, 1))
each_node = pytest.mark.parametrize("node", NODES, ids=[node.name for node in NODES])


@pytest.fixture(scope="module", autouse=True)
def hardened(lab: None) -> None:
    """Hardened, beside a file such as os_tuning writes; check mode first, which must work on bare nodes."""
    before = [on_node(node, STATE) for node in NODES]
    assert harden("--check", "--diff").status == 0
    assert [on_node(node, STATE) for node in NODES] == before
    for node in NODES:
        on_node(node, TUNING)
        on_node(node, JOB)
    assert changed(harden()) != NOTHING


def test_second_run_changes_nothing() -> None:
    assert changed(harden()) == NOTHING


@each_node
def test_what_is_mounted_below_tmp_stays_in_sight(node: Node) -> None:
    assert on_node(node, "cat /tmp/job/data").strip() == "running"


@each_node
def test_key_and_sudo_work_while_wrong_passwords_close_the_account(node: Node) -> None:
    on_node(node, f"echo ops:Right-9-password | chpasswd; {GUESSES.format(account='ops')}")
    try:
        tallies = on_node(node, "faillock --user ops | grep -c V$ || true")
        assert int(tallies) >= 4
        right = "echo Right-9-password | runuser -u nobody -- su ops -c true 2>&1 || true"
        assert "locked" in on_node(node, right)
        assert login(node, "sudo -n true").returncode == 0
    finally:
        on_node(node, "faillock --user ops --reset; passwd --quiet --lock ops")


@each_node
def test_wrong_passwords_never_close_root(node: Node) -> None:
    on_node(node, f"echo root:Right-9-password | chpasswd; {GUESSES.format(account='root')}")
    try:
        right = "echo Right-9-password | runuser -u nobody -- su root -c 'echo in' 2>/dev/null"
        assert on_node(node, right).strip() == "in"
    finally:
        on_node(node, "passwd --quiet --lock root")


@each_node
def test_users_files_are_not_for_everybody_and_those_that_sudo_makes_are(node: Node) -> None:
    mask, of_root = login(node, "umask; sudo sh -c umask").stdout.split()
    assert mask.endswith("7")
    assert of_root == "0022"


@each_node
def test_automatic_updates_would_leave_drivers_and_kernels_alone(node: Node) -> None:
    said = on_node(node, "unattended-upgrade --dry-run --debug 2>&1")
    blacklist = next(line for line in said.splitlines() if line.startswith("Initial blacklist"))
    assert {"nvidia-", "libnvidia-", "cuda-", "linux-image-"} <= set(blacklist.split())
    origins = next(line for line in said.splitlines() if line.startswith("Allowed origins"))
    assert origins.count("origin=") == origins.count("label=Debian-Security") == 2


@each_node
def test_audit_rules_neither_halt_the_node_nor_let_anybody_wait(node: Node) -> None:
    on_node(node, "augenrules; visudo -c")
    rules = on_node(node, "grep -v '^#' /etc/audit/audit.rules").split("\n")
    # The last one wins: lost events are logged, and nobody waits.
    assert [line for line in rules if line.startswith("-f")][-1] == "-f 1"
    assert [line for line in rules if line.startswith("--backlog_wait_time")][-1] == "--backlog_wait_time 0"


@each_node
def test_no_unit_has_failed(node: Node) -> None:
    assert on_node(node, "systemctl --failed --no-legend").strip() == ""


def test_tuning_wins_and_all_is_in_force_after_a_reboot() -> None:
    for node in NODES:
        labs.reboot(node)
        values = on_node(
            node, "sysctl -n kernel.perf_event_paranoid kernel.sysrq net.ipv4.conf.eth0.send_redirects"
        )
        assert values.split() == ["-1", "176", "0"]
        for path in ("/tmp", "/var/tmp", "/dev/shm"):
            options = on_node(node, f"findmnt --noheadings --output VFS-OPTIONS --mountpoint {path}")
            assert {"nodev", "nosuid"} <= set(options.strip().split(","))
        on_node(node, "cp /bin/true /tmp/program && /tmp/program && rm /tmp/program")
    assert changed(harden()) == NOTHING


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"os_hardening_waivers": [{"id": "core-dump", "reason": "x"}]}, "did you mean core-dumps?"),
        ({"os_hardening_waivers": [{"id": "core-dumps", "reason": ""}]}, "expected a reason, found none"),
    ],
    ids=["unknown", "no reason"],
)
def test_bad_waiver_is_refused_before_anything_changes(variables: dict[str, Any], reason: str) -> None:
    run = harden(**variables)
    assert run.status != 0
    assert reason in run.said


def test_masked_unit_is_refused_before_anything_changes() -> None:
    for node in NODES:
        on_node(node, "systemctl disable --now apt-daily.timer; systemctl mask apt-daily.timer")
    try:
        for arguments in ([], ["--check"]):
            run = harden(*arguments, os_hardening_profile="cis-level1")
            assert "apt-daily.timer is masked" in run.said
            assert "or waive the control updates" in run.said
        for node in NODES:
            assert "cron.allow" not in on_node(node, "ls /etc")
    finally:
        for node in NODES:
            on_node(node, "systemctl unmask apt-daily.timer")
    assert changed(harden()) == ONE


def test_waiver_takes_its_settings_back_and_is_listed() -> None:
    waivers = [{"id": "core-dumps", "reason": "We debug."}]
    assert changed(harden(os_hardening_waivers=waivers)) == ONE
    for node in NODES:
        listed = on_node(node, "cat /etc/temper/os_hardening_waivers.txt; ls /etc/security/limits.d")
        assert "waived by the operator: We debug." in listed
        assert "10-temper-hardening.conf" not in listed


def test_change_that_takes_sudo_from_us_is_undone() -> None:
    harden(os_hardening_state="absent")
    for node in NODES:
        on_node(node, TRAP)
    try:
        run = harden()
        assert "could no longer become root, so they were undone" in run.said
        for node in NODES:
            left = on_node(node, "ls /etc/sudoers.d /etc/modprobe.d /etc/temper 2>&1 || true")
            assert "hardening" not in left
    finally:
        for node in NODES:
            on_node(node, "rm /usr/local/bin/sudo")
    assert changed(harden()) != NOTHING


def test_strictest_profile_locks_nobody_out_either() -> None:
    assert changed(harden(os_hardening_profile="anssi-high")) != NOTHING
    assert changed(harden(os_hardening_profile="anssi-high")) == NOTHING
    for node in NODES:
        assert login(node, "sudo -n true").returncode == 0
