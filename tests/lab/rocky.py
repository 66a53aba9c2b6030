"""Nodes with the shape of Rocky Linux 8, 9 and 10: Debian's programs, Enterprise Linux's files and units.

rpm and dnf are Debian's and manage the node: apt and dpkg are out of sight. What the database says is
installed are empty packages with the names of Enterprise Linux; a repository on the node has others. The
files of `rocky_files` are as published, read 2026-11-27: rocky-release, openssh (sshd_config, 50-redhat.conf,
40-redhat-crypto-policies.conf, sshd.service, sysconfig), pam, authselect (profile minimal), sudo, setup,
shadow-utils, cronie, dnf, dnf-automatic, grub2. In place of authselect, update-crypto-policies and SELinux's
commands are programs of the lab with their interface. OpenSSH of release 8 is Debian's, but knows no
`Include`, and no keyword after `ssh -Q`, as 8.0.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import look_alikes
from tests.lab.fleet import on_node
from tests.lab.rpm_archive import Rpm, RpmArchive
from tests.unit import openpgp_keys

if TYPE_CHECKING:
    from tests.lab.settings import Node

FILES = Path(__file__).with_name("rocky_files")
ALGORITHM = "rsa3072"
REPOSITORY = "/usr/share/rocky-repository"
#: Debian's packages of what an installed server has.
PACKAGES = "auditd chrony cron dnf dnf-plugins-core firewalld libpam-pwquality logrotate rpm rsyslog sudo"
#: What a database of packages has; nothing of them is on the disk.
INSTALLED = (
    "audit authselect bash chrony cracklib-dicts cronie crypto-policies crypto-policies-scripts dnf "
    "dnf-automatic dnf-plugins-core firewalld grub2-tools kernel libpwquality logrotate nftables "
    "openssh openssh-clients openssh-server pam policycoreutils policycoreutils-python-utils "
    "python3-dnf-plugin-versionlock rpm rsyslog selinux-policy-targeted shadow-utils sudo systemd"
)
#: What the repository has besides.
OFFERED = "aide audispd-plugins gnutls-utils nss-tools sssd tmux"
#: Debian's package manager, which no program of the node may meet.
HIDDEN = "apt apt-cache apt-config apt-get apt-key apt-mark dpkg dpkg-deb dpkg-divert dpkg-query dpkg-split"
#: Debian's names of services, and Enterprise Linux's.
SERVICES = {"ssh": "sshd", "cron": "crond", "chrony": "chronyd"}
APT_TIMERS = "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer"
DEFAULT_SERVICES = "chronyd crond firewalld rsyslog sshd"


@dataclass(frozen=True)
class Rocky:
    """A release, as its os-release names it."""

    version: str
    name: str
    cpe: str
    end: str
    profile: str = "minimal"
    password_hash: str = "sha512"

    @property
    def major(self) -> str:
        """Return 9 of 9.4."""
        return self.version.partition(".")[0]

    @property
    def release(self) -> str:
        """Return the text of /etc/redhat-release."""
        return f"Rocky Linux release {self.version} ({self.name})\n"

    @property
    def os_release(self) -> str:
        """Return the text of /etc/os-release."""
        vendor = 'VENDOR_NAME="RESF"\nVENDOR_URL="https://resf.org/"\n' if self.major != "8" else ""
        return f"""\
NAME="Rocky Linux"
VERSION="{self.version} ({self.name})"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="{self.version}"
PLATFORM_ID="platform:el{self.major}"
PRETTY_NAME="Rocky Linux {self.version} ({self.name})"
ANSI_COLOR="0;32"
LOGO="fedora-logo-icon"
CPE_NAME="{self.cpe}"
HOME_URL="https://rockylinux.org/"
{vendor}BUG_REPORT_URL="https://bugs.rockylinux.org/"
SUPPORT_END="{self.end}"
ROCKY_SUPPORT_PRODUCT="Rocky-Linux-{self.major}"
ROCKY_SUPPORT_PRODUCT_VERSION="{self.version}"
REDHAT_SUPPORT_PRODUCT="Rocky Linux"
REDHAT_SUPPORT_PRODUCT_VERSION="{self.version}"
"""


GREEN_OBSIDIAN = Rocky("8.10", "Green Obsidian", "cpe:/o:rocky:rocky:8:GA", "2029-05-31")
BLUE_ONYX = Rocky("9.6", "Blue Onyx", "cpe:/o:rocky:rocky:9::baseos", "2032-05-31")
RED_QUARTZ = Rocky(
    "10.0",
    "Red Quartz",
    "cpe:/o:rocky:rocky:10::baseos",
    "2035-05-31",
    profile="local",
    password_hash="yescrypt",
)


def repository(folder: Path, rocky: Rocky) -> None:
    """Build the packages that the node has, and those that it could have, with the key that signs them."""
    release = f"1.el{rocky.major}"
    provided = (
        f"Provides: system-release = {rocky.version}",
        f"Provides: system-release(releasever) = {rocky.major}",
    )
    packages = [Rpm(name, f"1-{release}") for name in f"{INSTALLED} {OFFERED}".split()]
    packages.append(Rpm("rocky-release", f"{rocky.version}-{release}", provided))
    with openpgp_keys.made(ALGORITHM) as ring:
        archive = RpmArchive(folder / "packages", ring, ALGORITHM)
        archive.path.mkdir(parents=True)
        archive.add_all(packages)
        archive.publish()
        (archive.path / "key").write_bytes(ring.export(ALGORITHM))
    shutil.rmtree(folder / "work")


def dress(node: Node, rocky: Rocky) -> None:
    """Give a bare node the shape of a release of Rocky Linux."""
    key = f"/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-{rocky.major}"
    files, modes = look_alikes.read(FILES / "all", FILES / rocky.major)
    kernel = f"{'0' * 32}-5.14.0-1.el{rocky.major}.x86_64"
    files |= {
        "/usr/lib/os-release": rocky.os_release,
        "/etc/rocky-release": rocky.release,
        "/etc/issue": "\\S\nKernel \\r on an \\m\n\n",
        "/etc/issue.net": "\\S\nKernel \\r on an \\m\n",
        "/etc/rpm/macros": "%_dbpath /usr/lib/sysimage/rpm\n"
        if rocky.major == "10"
        else "%_dbpath /var/lib/rpm\n",
        f"/boot/loader/entries/{kernel}.conf": (
            f"title Rocky Linux ({rocky.version})\nversion 5.14.0-1.el{rocky.major}.x86_64\n"
            "options $kernelopts\ngrub_users $grub_users\ngrub_arg --unrestricted\ngrub_class rocky\n"
        ),
        "/etc/yum.repos.d/rocky.repo": (
            f"[baseos]\nname=Rocky Linux $releasever - BaseOS\nbaseurl=file://{REPOSITORY}\n"
            f"gpgcheck=1\nenabled=1\ncountme=1\nmetadata_expire=6h\ngpgkey=file://{key}\n"
        ),
    }
    modes |= {"/etc/sudoers": "440", "/etc/ssh/sshd_config": "600", "/etc/sysconfig/sshd": "640"}
    with tempfile.TemporaryDirectory() as scratch:
        repository(Path(scratch), rocky)
        target = look_alikes.root(node) / REPOSITORY.lstrip("/")
        shutil.copytree(Path(scratch) / "packages", target, dirs_exist_ok=True)
    look_alikes.install(node, PACKAGES)
    on_node(node, "cp --preserve /usr/sbin/sshd /usr/bin/ssh /usr/lib/lab/")
    look_alikes.put(node, files, modes)
    installed = " ".join(f"{REPOSITORY}/{name}-[0-9]*.rpm" for name in [*INSTALLED.split(), "rocky-release"])
    stacks = "/usr/share/authselect/default"
    script = [
        f"mkdir -p /etc/pki/rpm-gpg; cp {REPOSITORY}/key {key}; rm -f /etc/debian_version",
        "ln -sf rocky-release /etc/redhat-release; ln -sf rocky-release /etc/system-release",
        # Accounts and places.
        "groupadd --system --force wheel; groupdel sudo || :; groupadd --system --force ssh_keys",
        "mkdir -p /etc/selinux/targeted /usr/libexec; rm -f /etc/bash.bashrc",
        "ln -sfn ../lib/openssh /usr/libexec/openssh",
        # PAM: what Debian's services include, they include from system-auth.
        f"sed -i s/@HASH@/{rocky.password_hash}/ {stacks}/minimal/*",
        f"test {rocky.profile} = minimal || mv {stacks}/minimal {stacks}/{rocky.profile}",
        *(
            f"sed -i 's/^@include common-{kind}.*/{kind} include system-auth/' /etc/pam.d/*"
            for kind in ("auth", "account", "password", "session")
        ),
        f"rm -f /etc/pam.d/common-*; authselect select {rocky.profile} --force",
        "update-crypto-policies --lab-ship; update-crypto-policies",
        # Services by their names there.
        f"systemctl disable --quiet --now {APT_TIMERS} {' '.join(SERVICES)}",
        "cd /usr/lib/systemd/system; mv chrony.service /tmp/chronyd",
        *(
            f"rm -f {old}.service /etc/init.d/{old} /etc/systemd/system/{new}.service"
            for old, new in SERVICES.items()
        ),
        f"mv /tmp/chronyd chronyd.service; rm -f ssh.socket /etc/systemd/system/ssh.*.wants/* {APT_TIMERS}",
        "rm -f apt-daily.service apt-daily-upgrade.service dpkg-db-backup.service",
        # What the database of packages has; only then is Debian's manager gone.
        f"mkdir -p $(rpm --eval %_dbpath); rpm --import {key}",
        # Debian 12's rpm asks for that option, Debian 13's does not know it.
        f"record='rpm -U --justdb --nodeps'; $record --force-debian {installed} 2>/dev/null || "
        f"$record {installed}",
        "printf '[main]\\nenabled=0\\n' >/etc/dnf/plugins/local.conf 2>/dev/null || :",
        f"mkdir -p /usr/lib/lab/debian; for name in {HIDDEN}; do "
        "test ! -e /usr/bin/$name || mv /usr/bin/$name /usr/lib/lab/debian/; done; "
        "mv /usr/sbin/pam-auth-update /usr/lib/lab/debian/",
        f"systemctl daemon-reload; systemctl enable --quiet {DEFAULT_SERVICES}",
        f"systemctl restart {DEFAULT_SERVICES}",
    ]
    on_node(node, "\n".join(script))
