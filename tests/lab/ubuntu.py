"""Nodes with the shape of Ubuntu: Debian's programs, and what Ubuntu's packages put into /etc and switch on.

Hardening meets Ubuntu's name, files, defaults and units there, not Ubuntu's versions of programs. Sources of
what is written, read 2026-11-26: base-files (os-release, lsb-release, issue, motd-news), procps
(debian/sysctl.d), shadow (debian/login.defs), openssh (ssh.socket), unattended-upgrades
(data/50unattended-upgrades.Ubuntu), apport and whoopsie (units' names), cloud-init
(50-cloud-init.conf, 90-cloud-init-users), netplan, rsyslog (its files are syslog's, /var/log its group's);
99-protect-links.conf by published outputs of `sysctl --system` on 24.04 (2026-11-27).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import look_alikes
from tests.lab.fleet import on_node

if TYPE_CHECKING:
    from tests.lab.settings import Node

UBUNTU_SSH = Path(__file__).with_name("ubuntu_ssh")
SOCKET, GENERATOR = "/etc/systemd/system/ssh.socket", "/etc/systemd/system-generators/sshd-socket-generator"
#: Debian's packages of what an installed Ubuntu server has.
PACKAGES = "cron needrestart rsyslog ufw unattended-upgrades"


@dataclass(frozen=True)
class Ubuntu:
    """A release, as its os-release names it; `socket`: systemd listens in sshd's place."""

    version: str
    name: str
    codename: str
    debian: str
    socket: bool = True
    yescrypt: bool = True

    @property
    def os_release(self) -> str:
        """The text of /etc/os-release."""
        return f"""\
PRETTY_NAME="Ubuntu {self.version} LTS"
NAME="Ubuntu"
VERSION_ID="{self.version}"
VERSION="{self.version} LTS ({self.name})"
VERSION_CODENAME={self.codename}
ID=ubuntu
ID_LIKE=debian
HOME_URL="https://www.ubuntu.com/"
SUPPORT_URL="https://help.ubuntu.com/"
BUG_REPORT_URL="https://bugs.launchpad.net/ubuntu/"
PRIVACY_POLICY_URL="https://www.ubuntu.com/legal/terms-and-policies/privacy-policy"
UBUNTU_CODENAME={self.codename}
"""


JAMMY = Ubuntu("22.04", "Jammy Jellyfish", "jammy", "bookworm/sid", socket=False, yescrypt=False)
NOBLE = Ubuntu("24.04", "Noble Numbat", "noble", "trixie/sid")
RESOLUTE = Ubuntu("26.04", "Resolute Raccoon", "resolute", "forky/sid")

UPDATES = """\
Unattended-Upgrade::Allowed-Origins {
	"${distro_id}:${distro_codename}";
	"${distro_id}:${distro_codename}-security";
	"${distro_id}ESMApps:${distro_codename}-apps-security";
	"${distro_id}ESM:${distro_codename}-infra-security";
//	"${distro_id}:${distro_codename}-updates";
};
Unattended-Upgrade::Package-Blacklist {
};
Unattended-Upgrade::DevRelease "auto";
"""
#: A unit that stands for a program of Ubuntu's.
UNIT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\n[Install]\nWantedBy=multi-user.target\n"
FILES = {
    "/etc/apt/apt.conf.d/50unattended-upgrades": UPDATES,
    "/etc/apt/apt.conf.d/20auto-upgrades": (
        'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n'
    ),
    "/etc/sysctl.d/10-console-messages.conf": "kernel.printk = 4 4 1 7\n",
    "/etc/sysctl.d/10-kernel-hardening.conf": "kernel.kptr_restrict = 1\n",
    "/etc/sysctl.d/10-magic-sysrq.conf": "kernel.sysrq = 176\n",
    "/etc/sysctl.d/10-network-security.conf": (
        "net.ipv4.conf.default.rp_filter=2\nnet.ipv4.conf.all.rp_filter=2\n"
    ),
    "/etc/sysctl.d/10-ptrace.conf": "kernel.yama.ptrace_scope = 1\n",
    "/etc/sysctl.d/10-zeropage.conf": "vm.mmap_min_addr = 65536\n",
    "/usr/lib/sysctl.d/99-protect-links.conf": (
        "fs.protected_fifos = 1\nfs.protected_hardlinks = 1\n"
        "fs.protected_regular = 2\nfs.protected_symlinks = 1\n"
    ),
    "/etc/ssh/sshd_config.d/50-cloud-init.conf": "PasswordAuthentication yes\n",
    "/etc/sudoers.d/90-cloud-init-users": "ops ALL=(ALL) NOPASSWD:ALL\n",
    "/etc/netplan/50-cloud-init.yaml": "network: {version: 2}\n",
    "/etc/default/motd-news": 'ENABLED=1\nURLS="https://motd.ubuntu.com"\nWAIT=5\n',
    "/etc/default/apport": "enabled=1\n",
    "/usr/lib/systemd/system/apport.service": UNIT,
    "/usr/lib/systemd/system/whoopsie.service": UNIT,
    "/usr/lib/systemd/system/whoopsie.path": (
        "[Path]\nPathExistsGlob=/var/crash/*.upload\n[Install]\nWantedBy=paths.target\n"
    ),
}
MODES = {
    "/etc/sudoers.d/90-cloud-init-users": "440",
    "/etc/netplan/50-cloud-init.yaml": "600",
    GENERATOR: "755",
}


def dress(node: Node, ubuntu: Ubuntu) -> None:
    """Give a bare node the shape of a release of Ubuntu."""
    text = f"Ubuntu {ubuntu.version} LTS"
    files = FILES | {
        "/usr/lib/os-release": ubuntu.os_release,
        "/etc/lsb-release": (
            f"DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE={ubuntu.version}\nDISTRIB_CODENAME={ubuntu.codename}\n"
            f'DISTRIB_DESCRIPTION="{text}"\n'
        ),
        "/etc/debian_version": f"{ubuntu.debian}\n",
        "/etc/issue": f"{text} \\n \\l\n\n",
        "/etc/issue.net": f"{text}\n",
    }
    if ubuntu.socket:
        files |= {path: (UBUNTU_SSH / Path(path).name).read_text() for path in (SOCKET, GENERATOR)}
    look_alikes.install(node, PACKAGES)
    look_alikes.put(node, files, MODES)
    script = ["groupadd --system --force syslog; chgrp syslog /var/log; chmod 775 /var/log"]
    script.append(
        "useradd --system --gid syslog --shell /usr/sbin/nologin syslog; "
        "systemctl stop syslog.socket rsyslog; rm --force /var/log/syslog; "
        "sed -i 's/^$FileOwner root/$FileOwner syslog/' /etc/rsyslog.conf"
    )
    if not ubuntu.yescrypt:
        script.append("sed -i 's/^ENCRYPT_METHOD.*/ENCRYPT_METHOD SHA512/; /YESCRYPT/d' /etc/login.defs")
    script.append("systemctl daemon-reload; systemctl enable --now apport whoopsie.path rsyslog cron")
    if ubuntu.socket:
        script.append(
            "systemctl disable ssh.service; "
            "systemctl enable ssh.socket; systemctl stop ssh.service; systemctl start ssh.socket"
        )
    on_node(node, "\n".join(script))
