"""A site that is stricter than the hardening stays so: after a run, after a reboot, and in compliance."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import Lab

pytestmark = pytest.mark.lab

FLEET = Fleet(Lab(name="oldsite"), size=2)
NODES = FLEET.lab.nodes(2)  # Debian 12 and 13
# Before and after our file; a mount point from fstab; a keyword; a unit that is off.
SITE = """
echo kernel.kptr_restrict = 2 >/etc/sysctl.d/10-site.conf
printf 'kernel.yama.ptrace_scope = 2\\nkernel.sysrq = 16\\n' >/etc/sysctl.d/99-site.conf
sed -i '/^UMASK/d' /etc/login.defs
echo UMASK 077 >>/etc/login.defs
echo 'tmpfs /var/tmp tmpfs noexec,size=64m 0 0' >>/etc/fstab
cat >/etc/systemd/system/cron.service <<'END'
[Service]
ExecStart=sleep infinity
[Install]
WantedBy=multi-user.target
END
"""
LOOK = """
sysctl -n kernel.kptr_restrict kernel.yama.ptrace_scope kernel.sysrq
awk '$1 == "UMASK" {print $2}' /etc/login.defs
systemctl is-enabled cron.service || :
findmnt --noheadings --output VFS-OPTIONS --mountpoint /var/tmp | tr , '\\n' | grep '^no' | sort
"""
BEFORE = ["2", "2", "16", "077", "disabled", "noexec"]
AFTER = ["2", "2", "16", "077", "disabled", "nodev", "noexec", "nosuid"]
KEPT = ("kernel-pointers", "ptrace-scope", "sysrq", "umask", "tmp-options", "cron", "send-redirects")
WEAKEN = """
sysctl --quiet --write kernel.kptr_restrict=1
sed -i 's/^UMASK.*/UMASK 022/' /etc/login.defs
mount --options remount,bind,dev,nosuid none /var/tmp
"""


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[None]:
    with FLEET.booted():
        for node in NODES:
            on_node(node, SITE)
            FLEET.command("reboot", node.name)
            assert seen(node) == BEFORE
        yield


def seen(node: Any) -> list[str]:
    return on_node(node, LOOK).replace("nosymfollow", "").split()


def harden(*arguments: str) -> Any:
    return FLEET.run(["ansible-playbook", "playbooks/harden.yml", "--tags=os_hardening", *arguments])


def states(reports: Path, names: Collection[str] = KEPT, **variables: Any) -> list[dict[str, str]]:
    """What compliance says of the controls that the site is stricter in, node by node."""
    FLEET.playbook("compliance", compliance_reports_directory=str(reports), **variables)
    told = json.loads((reports / "latest" / "statement.json").read_text())["nodes"]
    wanted = {f"os_hardening/{name}": name for name in names}
    return [
        {wanted[one["id"]]: one["state"] for one in node["controls"] if one["id"] in wanted} for node in told
    ]


def assert_settled() -> None:
    run = harden()
    assert [run.changed(node) for node in NODES] == [0, 0], run.output


@pytest.mark.smoke
def test_what_is_stricter_stays_and_is_named() -> None:
    checked = harden("--check")
    assert "kept: " in checked.said
    assert [seen(node) for node in NODES] == [BEFORE] * 2
    first = harden()
    assert first.status == 0, first.output
    # Ansible breaks lines at hyphens, too.
    said = "".join(first.output.split())
    for clause in (
        "kernel.kptr_restrict 2 (/etc/sysctl.d/10-site.conf)",
        "UMASK in /etc/login.defs 077",
        "noexec of /var/tmp",
    ):
        assert clause.replace(" ", "") in said
    assert [seen(node) for node in NODES] == [AFTER] * 2
    assert_settled()


def test_it_stays_after_a_reboot_fails_once_it_is_weaker_and_is_given_back(tmp_path: Path) -> None:
    """On the nodes as the test above leaves them."""
    for node in NODES:
        FLEET.command("reboot", node.name)
    assert [seen(node) for node in NODES] == [AFTER] * 2
    assert_settled()
    passed = states(tmp_path / "reports")
    assert all("fail" not in of_node.values() for of_node in passed), passed
    for node in NODES:
        on_node(node, WEAKEN)
    failed = states(tmp_path / "reports")
    assert all(
        {of_node[name] for name in ("kernel-pointers", "umask", "tmp-options")} == {"fail"}
        for of_node in failed
    ), failed
    taken_back = harden("--extra-vars", json.dumps({"os_hardening_state": "absent"}))
    assert taken_back.status == 0, taken_back.output
    for node in NODES:
        FLEET.command("reboot", node.name)
    # The mask was weakened by hand, and never Temper's.
    assert [seen(node) for node in NODES] == [[*BEFORE[:3], "022", *BEFORE[4:]]] * 2


FILES = {
    "/etc/sudoers.d/10-site": "Defaults timestamp_timeout=0\nDefaults logfile=/var/log/site-sudo",
    "/etc/audit/rules.d/site.rules": "-b 32768\n-f 2",
    "/etc/systemd/journald.conf.d/10-site.conf": "[Journal]\nSystemMaxUse=50M",
    "/etc/security/limits.d/50-site.conf": "* hard nproc 4096\n* hard core 0",
    "/etc/security/pwquality.conf.d/10-site.conf": "minlen = 20",
    "/etc/profile.d/site.sh": "TMOUT=300",
    "/etc/issue": "Property of the site. All is recorded.",
    "/etc/cron.allow": "",
    "/etc/apt/apt.conf.d/40site": 'Unattended-Upgrade::Origins-Pattern:: "origin=Site";',
}
# What programs make of it: a script, and what it prints where the site is as strict as it was.
SAID = {
    "sudo -V | sed -n 's/.*timestamp timeout: //p'": "0.0 minutes",
    "sudo -V | sed -n 's/^Path to log file: //p'": "/var/log/site-sudo",
    "augenrules >/dev/null; grep -- '^-[bf]' /etc/audit/audit.rules | sort": "-b 32768\n-f 2",
    "systemd-analyze cat-config systemd/journald.conf | sed -n 's/^SystemMaxUse=//p' | tail -n 1": "50M",
    "runuser -l ops -c 'ulimit -Hc; ulimit -Hu'": "0\n4096",
    "bash -lc 'echo $TMOUT'": "300",
    "cat /etc/issue": "Property of the site. All is recorded.",
    "echo ops:Qz7-kfw9-Tbx4-mP | chpasswd 2>&1 | grep -o 'shorter than 20' | sort -u": "shorter than 20",
    "wc --bytes </etc/cron.allow": "0",
    "apt-config dump | grep -o origin=Site": "origin=Site",
}
WEAKEN_FILES = """
sed -i 's/timeout=0/timeout=60/' /etc/sudoers.d/10-site
echo '-f 0' >/etc/audit/rules.d/zz.rules
echo 'minlen = 8' >/etc/security/pwquality.conf
chmod 666 /etc/cron.allow
echo '* hard core unlimited' >>/etc/security/limits.d/50-site.conf
"""
WEAKENED = ("sudo-timeout", "audit", "password-quality", "cron-users", "core-dumps")
PLACES = " ".join(path.rpartition("/")[0] for path in FILES if path.count("/") > 2)
LEVEL = {"os_hardening_profile": "cis-level2"}


def test_files_of_a_stricter_site_stay_in_force(tmp_path: Path) -> None:
    wanted = ("--extra-vars", json.dumps(LEVEL))
    for node in NODES:
        for path, text in FILES.items():
            lines, mode = f"{text}\n" if text else "", 440 if "sudoers" in path else 444
            folder = path.rpartition("/")[0]
            on_node(node, f"mkdir -p {folder}\nprintf %s '{lines}' >{path}\nchmod {mode} {path}")
    first = harden(*wanted)
    assert first.status == 0, first.output
    kept = [path for path in FILES if path not in first.said]
    assert kept == ["/etc/security/limits.d/50-site.conf", "/etc/profile.d/site.sh"]
    for _ in ("at once", "after a reboot"):
        again = harden(*wanted)
        assert [again.changed(node) for node in NODES] == [0, 0]
        for node in NODES:
            assert {script: on_node(node, f"{script} || :").strip() for script in SAID} == SAID
            on_node(node, "visudo -c")
            FLEET.command("reboot", node.name)
    assert [{*found.values()} for found in states(tmp_path, WEAKENED, **LEVEL)] == [{"pass"}] * 2
    for node in NODES:
        on_node(node, WEAKEN_FILES)
    assert [{*found.values()} for found in states(tmp_path, WEAKENED, **LEVEL)] == [{"fail"}] * 2
    # What a role can change it changes; it names what wins over that.
    again = harden(*wanted)
    for line in (
        "audit/rules.d/zz.rules:1 sets -f 0",
        "pwquality.conf:1 sets minlen 8",
        "50-site.conf:3 sets",
    ):
        assert line in again.said
    for node in NODES:
        timeout = "sudo -V | sed -n 's/.*timestamp timeout: //p'; cat /etc/cron.allow"
        assert on_node(node, timeout).split() == ["15.0", "minutes", "root"]
    harden("--extra-vars", json.dumps({"os_hardening_state": "absent"}))
    for node in NODES:
        assert "temper" not in on_node(node, f"ls {PLACES}")
        assert on_node(node, "cat /etc/issue /etc/cron.allow").strip() == FILES["/etc/issue"]


# The site counts wrong passwords by a profile of its own, and has changed arguments in stacks by hand.
PAM = """
cat >/usr/share/pam-configs/site-faillock <<'END'
Name: The site counts failed passwords
Default: no
Priority: 0
Auth-Type: Primary
Auth:
	[default=die]	pam_faillock.so authfail deny=3 unlock_time=1800
END
cat >/usr/share/pam-configs/site-faillock-notify <<'END'
Name: The site refuses passwords after too many that failed
Default: no
Priority: 1024
Auth-Type: Primary
Auth:
	requisite	pam_faillock.so preauth deny=3 unlock_time=1800
END
pam-auth-update --package --enable site-faillock site-faillock-notify
sed -i '/^[^#]/s/nullok//' /etc/pam.d/common-auth
sed -i '/^[^#]/s/yescrypt/yescrypt rounds=6/' /etc/pam.d/common-password
echo 'install cramfs /bin/true' >/etc/modprobe.d/00-site.conf
echo 'APT::Periodic::Unattended-Upgrade "12h";' >/etc/apt/apt.conf.d/10site
"""
# How often su takes a wrong password before it says that the account is closed.
TRIES = """
faillock --user ops --reset
for try in 1 2 3 4 5 6; do
    echo wrong | runuser -u nobody -- su ops -c true 2>&1 | grep -q locked && { echo $try; exit; }
done
echo more
"""
ARGUMENTS = "grep '^[^#].*nullok' /etc/pam.d/common-auth || grep -o 'rounds=.' /etc/pam.d/common-password"
JUDGED = ("failed-logins", "password-hash", "umask", "unused-filesystems", "updates")
WEAKEN_ARGUMENTS = """
sed -i 's/deny=3 unlock_time=1800/deny=50 unlock_time=1/' /etc/pam.d/common-auth
sed -i 's/yescrypt rounds=6/md5/' /etc/pam.d/common-password
echo 'session optional pam_umask.so umask=000' >>/etc/pam.d/sshd
echo 'install cramfs /sbin/modprobe --ignore-install cramfs' >/etc/modprobe.d/00-site.conf
echo 'APT::Periodic::Enable "0";' >/etc/apt/apt.conf.d/99site
"""


def test_arguments_of_pam_and_of_modprobe_are_kept_and_judged(tmp_path: Path) -> None:
    for node in NODES:
        on_node(node, PAM)
        assert on_node(node, TRIES).strip() == "4"
    first = harden()
    assert first.status == 0, first.output
    said = "".join(first.output.split())
    for clause in (
        "deny 3 (/etc/pam.d/common-auth:",
        "unlock_time 1800 (",
        "FACTOR 6 (/etc/pam.d/common-pass",
    ):
        assert clause.replace(" ", "") in said
    for node in NODES:
        assert on_node(node, TRIES).strip() == "4"
        assert on_node(node, ARGUMENTS).split() == ["rounds=6"]
        assert '"12h"' in on_node(node, "apt-config dump | grep Periodic::Unattended-Upgrade")
    second = harden()
    assert [second.changed(node) for node in NODES] == [0, 0]
    assert [{*found.values()} for found in states(tmp_path, JUDGED)] == [{"pass"}] * 2
    for node in NODES:
        on_node(node, WEAKEN_ARGUMENTS)
        assert on_node(node, TRIES).strip() == "more"
    assert states(tmp_path, JUDGED) == [dict.fromkeys(JUDGED, "fail")] * 2
    again = "".join(harden().output.split())
    for clause in (
        "has pam_faillock.so take 50 for deny, not 4",
        "has pam_unix.so take MD5 for ENCRYPT_METHOD",
        "has pam_umask.so take 000 for UMASK, not 027",
        "/etc/modprobe.d/00-site.conf:1 has",
        "/etc/apt/apt.conf.d/99site:1 sets APT::Periodic::Enable 0",
    ):
        assert clause.replace(" ", "") in again
    for node, masked in zip(NODES, ("apt-daily-upgrade.service", "apt-daily-upgrade.timer"), strict=True):
        on_node(node, f"rm /etc/apt/apt.conf.d/99site; systemctl mask {masked}")
    assert {found["updates"] for found in states(tmp_path, JUDGED)} == {"fail"}
