"""Trials of lock-outs: a site's awkward state, a run that hardens, and then the operator's next login.

Whatever a run ends with, the operator who became root by a new login before it does so after it. Each trial
has a node of its own, Debian 12 and 13 in turn, and ends with what would have locked the operator out there:
the same login has to fail then, else the trial could not have shown it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import lab as labs
from tests.lab import node as machine
from tests.lab.fleet import Fleet, Run, new_key, on_node
from tests.lab.hardening import SOON, wait_until
from tests.lab.process import run
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.settings import Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="lock")
KEYS, RIGHTS = "/home/ops/.ssh/authorized_keys", "/etc/sudoers.d/90-cloud-init-users"
SSHD, SUDOERS = "/etc/ssh/sshd_config.d/10-site.conf", "/etc/sudoers.d/10-site"
ROLLBACK = "/var/lib/temper/rollback"
PASSWORD = "Qz7-kfw9-Tba"
PATIENCE_S = 90
WITHOUT_CONTROLS = "--skip-tags=os_hardening"
INSTALL = "apt-get update -qq; apt-get install -qq -y --no-install-recommends {} >/dev/null"


class End(Enum):
    """What a run comes to.

    All is made; or it ends with an error before the last role; or it changes nothing; or the node undoes it.
    """

    DONE = "done"
    STOPPED = "stopped"
    REFUSED = "refused"
    UNDONE = "undone"


@dataclass(frozen=True)
class Way:
    """How the operator gets in: ssh's options, Ansible's variables, and the password for sudo, if any."""

    options: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    password: str = ""
    terminal: bool = False


@dataclass(frozen=True)
class Trial:
    """`site` is what a site has done, `locks` what locks the operator out in that state; both are scripts.

    `first` are the variables of a run before it. `way` makes the way in, with a node and an empty folder.
    `said` is a part of the last word of the run.
    """

    site: str
    locks: str
    ends: tuple[End, ...] = (End.DONE,)
    variables: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    controls: bool = False
    way: Callable[[Node, Path], Way] = lambda _node, _folder: Way()
    first: dict[str, Any] | None = None
    after_first: str = ""
    reboots: bool = False
    #: How long nobody may ask, where each try counts.
    pause_s: float = 0


def write(path: str, text: str, mode: str = "644") -> str:
    """Return a script that writes a file."""
    return f"mkdir -p {Path(path).parent}; printf %s {shlex.quote(text)} >{path}; chmod {mode} {path}\n"


def sshd(text: str) -> str:
    """Return a script by which the site's own file says something to sshd."""
    return write(SSHD, text) + "systemctl restart ssh\n"


def sudo(text: str) -> str:
    """Return a script that adds rules of the site's."""
    return write(SUDOERS, text, "440")


def profile(name: str, text: str) -> str:
    """Return a script that adds a profile to PAM's stacks, as a package does."""
    return write(f"/usr/share/pam-configs/{name}", text) + f"pam-auth-update --package --enable {name}\n"


def by_password(_node: Node, _folder: Path) -> Way:
    """Sudo asks."""
    return Way(variables={"ansible_become_password": PASSWORD}, password=PASSWORD)


def at_port(number: int) -> Callable[[Node, Path], Way]:
    """Sshd is reached at a port."""
    return lambda node, _folder: Way({"Port": str(number), "HostKeyAlias": node.address})


def by_ipv6(node: Node, _folder: Path) -> Way:
    """The operator has no IPv4."""
    return Way({"HostKeyAlias": node.address}, {"ansible_host": node.address6})


def operator_with(*groups: str) -> dict[str, Any]:
    """List the operator as an administrator with these groups."""
    return {"admin_accounts_users": [{"name": "ops", "keys": ["{{ operator_key }}"], "groups": [*groups]}]}


def keygen(*arguments: str | Path) -> None:
    run(["ssh-keygen", "-q", *map(str, arguments)])


def after_other_keys(_node: Node, folder: Path) -> Way:
    """The operator's agent offers six keys of other places first."""
    others = [new_key(folder, f"other{number}") for number in range(6)]
    keys = " ".join(map(str, [*others, LAB.ssh_key]))
    return Way({"IdentityFile": keys}, {"ansible_ssh_private_key_file": str(others[0])})


def by_certificate(node: Node, folder: Path) -> Way:
    """The site's authority lets administrators in; there is no list of keys."""
    authority, key = new_key(folder, "authority"), new_key(folder, "key")
    keygen("-s", authority, "-I", "ops", "-n", "administrators", "-V", "-1h:+1d", f"{key}.pub")
    public = Path(f"{authority}.pub").read_text()
    on_node(node, write("/etc/ssh/site_authority.pub", public))
    return Way({"IdentityFile": str(key)}, {"ansible_ssh_private_key_file": str(key)})


def by_host_certificates(node: Node, folder: Path) -> Way:
    """The operator knows the site's authority alone; one certificate has expired, and nobody has noticed."""
    authority = new_key(folder, "authority")
    for kind, validity in (("ed25519", "-2d:-1d"), ("ecdsa", "-1h:+1d")):
        public = f"/etc/ssh/ssh_host_{kind}_key.pub"
        file = folder / f"{kind}.pub"
        file.write_text(on_node(node, f"cat {public}"))
        keygen("-s", authority, "-h", "-I", node.name, "-n", node.address, "-V", validity, file)
        on_node(node, write(public.replace(".pub", "-cert.pub"), (folder / f"{kind}-cert.pub").read_text()))
    known = folder / "known_hosts"
    known.write_text(f"@cert-authority * {Path(f'{authority}.pub').read_text()}")
    # The one that has expired is not offered while another is.
    return Way(
        {
            "UserKnownHostsFile": str(known),
            "HostKeyAlgorithms": "ecdsa-sha2-nistp256-cert-v01@openssh.com,ssh-ed25519-cert-v01@openssh.com",
        }
    )


def by_another_interface(node: Node, _folder: Path) -> Way:
    """What the operator sends comes by one interface, and what the node answers leaves by another."""
    side, address = f"{LAB.name}-side", f"10.213.{LAB.number}.200"
    run(["ip", "link", "add", side, "type", "veth", "peer", "name", "eth1", "netns", node.unique_name])
    run(["ip", "-netns", node.unique_name, "address", "add", f"{address}/32", "dev", "eth1"])
    run(["ip", "-netns", node.unique_name, "link", "set", "eth1", "up"])
    run(["ip", "link", "set", side, "up"])
    run(["ip", "route", "add", f"{address}/32", "dev", side, "src", LAB.address])
    return Way({"HostKeyAlias": node.address}, {"ansible_host": address})


ASKS = sudo("") + f"echo ops:{PASSWORD} | chpasswd; echo 'ops ALL=(ALL:ALL) ALL' >{RIGHTS}\n"
FAILS = "for n in 1 2 3 4 5 6; do echo wrong | runuser -u nobody -- su ops -c true 2>/dev/null || :; done\n"
COUNTS = profile(
    "site-faillock",
    "Name: Site's count\nDefault: no\nPriority: 0\nAuth-Type: Primary\n"
    "Auth:\n\t[default=die]\tpam_faillock.so authfail\n",
) + profile(
    "site-faillock-notify",
    "Name: Site's limit\nDefault: no\nPriority: 1024\nAuth-Type: Primary\n"
    "Auth:\n\trequisite\tpam_faillock.so preauth\n"
    "Account-Type: Primary\nAccount:\n\trequired\tpam_faillock.so\n",
)
STAFF = profile(
    "site-staff",
    "Name: Staff alone\nDefault: no\nPriority: 0\nAccount-Type: Additional\n"
    "Account:\n\trequired\tpam_succeed_if.so quiet user ingroup staff\n",
)
SUDO_RS = (
    INSTALL.format("sudo-rs")
    + "; dpkg-divert --quiet --rename --divert /usr/bin/sudo.first --add /usr/bin/sudo; "
    "ln -s /usr/lib/cargo/bin/sudo /usr/bin/sudo\n"
)
UFW = INSTALL.format("ufw iptables") + "; ufw allow 22/tcp; ufw allow 2200/tcp\n"
REDIRECT = (
    "cat >>/etc/ufw/before.rules <<'END'\n*nat\n:PREROUTING ACCEPT [0:0]\n"
    "-A PREROUTING -p tcp --dport 2200 -j REDIRECT --to-ports 22\nCOMMIT\nEND\n"
)
KEPT = {"firewall_state": "absent"}
ENDED = {"firewall_disable_other": True}
TRIALS = {
    "attempts-below-the-sites-limit": Trial(
        f"{ASKS}{COUNTS}printf 'deny = 10\\nunlock_time = 0\\nfail_interval = 86400\\n' "
        f">>/etc/security/faillock.conf\n{FAILS}",
        f"sed -i /pam_faillock/d /etc/pam.d/common-account\n{FAILS}",
        variables={"os_hardening_profile": "cis-level2"},
        controls=True,
        way=by_password,
    ),
    "password-of-years-ago": Trial(
        f"{ASKS}chage -d 2020-01-01 ops",
        "chage -M 365 ops",
        variables={"os_hardening_profile": "anssi-high"},
        controls=True,
        way=by_password,
        reboots=True,
    ),
    "stack-that-sshd-did-not-ask": Trial(
        "usermod -p '*' ops; echo '-:ALL:ALL' >/root/access.conf; sed -i '/pam_nologin/a account required "
        f"pam_access.so accessfile=/root/access.conf' /etc/pam.d/sshd\n{sshd('UsePAM no')}",
        sshd("UsePAM yes"),
        (End.UNDONE,),
    ),
    "group-that-pam-asks-for": Trial(
        f"usermod -aG staff ops\n{STAFF}",
        "gpasswd --delete ops staff",
        variables={"os_hardening_profile": "cis-level2", **operator_with("adm")},
        controls=True,
        reboots=True,
    ),
    "stack-changed-by-hand": Trial(
        f"{ASKS}sed -i 's/^auth.*success=1.*pam_unix.so.*/auth [success=2 default=ignore] pam_unix.so\\n"
        "auth [success=1 default=ignore] pam_debug.so auth=perm_denied/' /etc/pam.d/common-auth",
        "sed -i '/pam_debug/a auth required pam_faillock.so authfail' /etc/pam.d/common-auth",
        (End.STOPPED,),
        variables={"os_hardening_profile": "cis-level1"},
        said="was changed by hand",
        controls=True,
        way=by_password,
    ),
    "terminal-that-sudo-asks-for": Trial(
        sudo("Defaults requiretty\n"),
        sshd("PermitTTY no"),
        variables={"os_hardening_profile": "cis-level2", "ansible_pipelining": False},
        controls=True,
        way=lambda _node, _folder: Way(terminal=True),
    ),
    "log-that-sudo-cannot-write": Trial(
        "mkdir /var/log/sudo.log",
        sudo("Defaults !ignore_logfile_errors\n"),
        variables={"os_hardening_profile": "cis-level1"},
        controls=True,
    ),
    "group-that-a-site-gave-since": Trial(
        "",
        "gpasswd --delete ops staff",
        variables={"admin_accounts_state": "absent"},
        first=operator_with(),
        after_first=f"usermod -aG staff ops\n{sshd('AllowGroups staff')}",
    ),
    "group-that-a-site-keeps-out": Trial(
        f"groupadd contractors\n{sshd('DenyGroups contractors')}",
        "usermod -aG contractors ops",
        (End.UNDONE,),
        variables=operator_with("contractors"),
    ),
    "sudo-of-another-kind-than-its-visudo": Trial(
        SUDO_RS,
        f"mv {RIGHTS} /root",
        variables={"os_hardening_profile": "cis-level2"},
        controls=True,
        reboots=True,
    ),
    "ufw-that-counts-logins": Trial(
        f"{UFW}ufw limit 22/tcp; ufw --force enable",
        "ufw delete limit 22/tcp",
        (End.DONE, End.UNDONE),
        variables=KEPT,
        pause_s=31,
    ),
    "ufw-that-redirects-a-port": Trial(
        f"{UFW}{REDIRECT}ufw --force enable",
        "iptables -t nat -F PREROUTING",
        (End.REFUSED,),
        variables=ENDED,
        said="ufw also translates addresses",
        way=at_port(2200),
        reboots=True,
    ),
    "operator-who-comes-by-ipv6": Trial(
        f"{UFW}ufw --force enable",
        "sed -i s/IPV6=yes/IPV6=no/ /etc/default/ufw; ufw reload",
        (End.REFUSED,),
        variables=ENDED,
        said="in none of the management networks",
        way=by_ipv6,
    ),
    "firewalld-for-one-port": Trial(
        f"{INSTALL.format('firewalld')}; systemctl enable --now firewalld",
        "firewall-cmd --zone=public --remove-service=ssh",
        (End.UNDONE,),
        variables=KEPT | {"ssh_hardening_ports": [2222]},
    ),
    "socket-at-another-port": Trial(
        write("/etc/systemd/system/ssh.socket.d/port.conf", "[Socket]\nListenStream=\nListenStream=2200\n")
        + "systemctl daemon-reload; systemctl disable ssh.service; systemctl enable ssh.socket; "
        "systemctl stop ssh.service; systemctl start ssh.socket",
        "systemctl stop ssh.socket ssh.service",
        way=at_port(2200),
        reboots=True,
    ),
    "host-certificate-that-has-expired": Trial(
        sshd(
            "HostCertificate /etc/ssh/ssh_host_ed25519_key-cert.pub\n"
            "HostCertificate /etc/ssh/ssh_host_ecdsa_key-cert.pub\n"
        ),
        sshd("HostKey /etc/ssh/ssh_host_ed25519_key\nHostCertificate /etc/ssh/ssh_host_ed25519_key-cert.pub"),
        (End.UNDONE,),
        way=by_host_certificates,
    ),
    "authority-in-the-place-of-the-sites": Trial(
        write("/etc/ssh/principals/ops", "administrators\n")
        + sshd(
            "TrustedUserCAKeys /etc/ssh/site_authority.pub\n"
            "AuthorizedPrincipalsFile /etc/ssh/principals/%u\nAuthorizedKeysFile none\n"
        ),
        sshd("AuthorizedKeysFile none\n"),
        (End.UNDONE,),
        variables={"ssh_hardening_user_ca_keys": ["{{ operator_key }}"]},
        way=by_certificate,
    ),
    "few-logins-at-a-time": Trial(
        sshd("MaxStartups 3:100:3\nMaxSessions 1"),
        write("/etc/ssh/sshd_config.d/00-a.conf", "MaxSessions 0\n") + "systemctl restart ssh",
    ),
    "keys-that-come-late": Trial(
        sshd("MaxAuthTries 20"), sshd("MaxAuthTries 4"), (End.UNDONE,), way=after_other_keys
    ),
    "users-of-one-network": Trial(
        sshd("AllowUsers ops@10.213.0.0/16"),
        sshd("AllowUsers ops@192.0.2.0/24"),
        (End.REFUSED,),
        variables={"ssh_hardening_allow_users": ["ops@192.0.2.0/24", "alice"]},
        said="AllowUsers is",
    ),
    "answers-by-another-interface": Trial(
        "mkdir /run/own; mount -t proc own /run/own; "
        "mount --bind /run/own/sys/net/ipv4/conf /proc/sys/net/ipv4/conf",
        "sysctl -w net.ipv4.conf.all.rp_filter=1",
        variables={"os_hardening_profile": "cis-level1"},
        controls=True,
        way=by_another_interface,
    ),
}
NAMES = list(TRIALS)
FLEET = Fleet(LAB, size=len(TRIALS))


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        yield


def options_of(node: Node, way: Way) -> list[str]:
    """Return ssh's options, the operator's own or not."""
    usual = {
        "UserKnownHostsFile": str(node.lab.known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": str(node.lab.ssh_key),
    }
    found = usual | way.options
    several = [("IdentityFile", file) for file in found.pop("IdentityFile").split()]
    return [f"-o{name}={value}" for name, value in [*found.items(), *several]]


def becomes_root(node: Node, way: Way = Way()) -> bool:
    """Return whether the operator becomes root by a new login."""
    address = way.variables.get("ansible_host", node.address)
    become = "sudo -S -p '' id -u" if way.password else "sudo -n id -u"
    command = ["ssh", "-F/dev/null", *options_of(node, way), "-oBatchMode=yes", "-oConnectTimeout=20"]
    done = subprocess.run(
        [*command, *(["-tt"] if way.terminal else []), f"ops@{address}", become],
        input=f"{way.password}\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.strip() == "0"


def harden(node: Node, way: Way, folder: Path, *arguments: str, **variables: Any) -> Run:
    """Harden one node; of the way in the others have nothing."""
    common = {"ansible_ssh_common_args": " ".join(["-F/dev/null", *options_of(node, way)])}
    inventory = folder / "operator.yml"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {node.name: common | way.variables}}}))
    given = {
        "preflight_plan_file": "",
        "firewall_management_networks": ["10.213.0.0/16"],
        "operator_key": LAB.ssh_key.with_suffix(".pub").read_text(),
    }
    command = ["ansible-playbook", "playbooks/harden.yml", "--limit", node.name, *arguments]
    command += ["--inventory", "inventory/lab", "--inventory", str(inventory)]
    return FLEET.run([*command, "--extra-vars", json.dumps(given | variables)])


def pending(node: Node) -> bool:
    return bool(on_node(node, f"ls -d {ROLLBACK}/*/ 2>/dev/null || :").strip())


def reboot(node: Node) -> None:
    """Reboot a node; the lab's own way waits for port 22."""
    before = labs.boot_id(node)
    machine.shut_down(node, "reboot")
    wait_until(lambda: labs.boot_id(node) not in (None, before), f"{node.name} is back")


def end_of(done: Run, node: Node) -> End:
    if done.status == 0:
        return End.DONE
    if on_node(node, f"cat {ROLLBACK}/*.undone 2>/dev/null || :"):
        return End.UNDONE
    return End.STOPPED if done.changed(node) else End.REFUSED


@pytest.mark.parametrize("name", NAMES)
def test_the_operator_gets_in_after_a_run(name: str, tmp_path: Path) -> None:
    trial, node = TRIALS[name], LAB.node(NAMES.index(name) + 1)
    parts = [] if trial.controls else [WITHOUT_CONTROLS]
    way = trial.way(node, tmp_path)
    on_node(node, trial.site)
    if trial.first is not None:
        first = harden(node, way, tmp_path, *parts, **trial.first)
        assert first.status == 0, first.output
        on_node(node, trial.after_first)
    assert becomes_root(node, way), "the operator got in before"

    variables = trial.variables | (SOON if End.UNDONE in trial.ends else {})
    done = harden(node, way, tmp_path, *parts, **variables)
    wait_until(lambda: not pending(node), "the change is confirmed or undone")
    end = end_of(done, node)
    assert end in trial.ends, done.output
    assert trial.said in done.said, done.output
    time.sleep(trial.pause_s)
    wait_until(lambda: becomes_root(node, way), f"the operator gets in: {done.output}", PATIENCE_S)
    if trial.reboots:
        reboot(node)
        wait_until(lambda: becomes_root(node, way), f"the operator gets in again: {done.output}", PATIENCE_S)
    on_node(node, trial.locks)
    assert not becomes_root(node, way), "what locks the operator out does so"
