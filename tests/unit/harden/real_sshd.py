"""A real sshd over a site's files in a folder of a test, with accounts of its own."""

from __future__ import annotations

import grp
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible.module_utils.temper.access import sshd, sshd_matches, sshd_settings
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.access.sshd_settings import Parameters, SshdPlan

from tests.unit.executables import executable

LAB_ROOTS = Path("/var/cache/temper-lab")
LOGIN = Login("ops", "198.51.100.7", 40000, "198.51.100.9", 22)
ACCOUNTS = {"root": 0, "sshd": 998, "ops": 1001, "alice": 1002, "legacyftp": 1003}
GROUPS = {"sftponly": ["legacyftp"], "data": ["alice"], "nobodys": []}
# Its own user database: sshd asks for it where a Match line names a group.
MOUNTED = "mount --bind passwd /etc/passwd && mount --bind group /etc/group && echo && read -r _"


def programs() -> dict[str, str]:
    """Return how each sshd of this machine is started: its own one, and those of the lab's nodes."""
    found = {}
    if own := shutil.which("sshd"):
        found["own"] = own
    for program in sorted(LAB_ROOTS.glob("rootfs-*/usr/sbin/sshd")):
        root = program.parents[2]
        libraries = f"{root}/lib/x86_64-linux-gnu:{root}/usr/lib/x86_64-linux-gnu"
        found[root.name.split("-")[1]] = (
            f"{root}/lib64/ld-linux-x86-64.so.2 --library-path {libraries} {program}"
        )
    return found


class Users:
    """Accounts, groups and a host key in a folder, and the mount namespace that has these accounts alone."""

    users = tuple(
        pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh")) for name, uid in ACCOUNTS.items()
    )
    groups = (
        *(grp.struct_group((name, "x", uid, [])) for name, uid in ACCOUNTS.items()),
        *(grp.struct_group((name, "x", gid, them)) for gid, (name, them) in enumerate(GROUPS.items(), 2000)),
    )

    def __init__(self, folder: Path, namespace: str) -> None:
        self.folder, self.namespace = folder, namespace

    @classmethod
    @contextmanager
    def made(cls, folder: Path) -> Iterator[Users]:
        """Have a process keep the namespace."""
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", folder / "host_key"], check=True)
        (folder / "passwd").write_text("".join(":".join(map(str, user)) + "\n" for user in cls.users))
        (folder / "group").write_text(
            "".join(f"{one.gr_name}:x:{one.gr_gid}:{','.join(one.gr_mem)}\n" for one in cls.groups)
        )
        command = ["unshare", "--mount", "sh", "-c", MOUNTED]
        with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
            assert keeper.stdout
            assert keeper.stdout.readline() == b"\n"
            yield cls(folder, f"/proc/{keeper.pid}/ns/mnt")


class SiteFiles:
    """The files of a site, and what the role would make of them."""

    def __init__(
        self, folder: Path, users: Users, command: str, monkeypatch: pytest.MonkeyPatch, release: str
    ) -> None:
        self.folder, self.release = folder, release
        self.drop_ins = folder / "sshd_config.d"
        self.drop_ins.mkdir()
        self.main = folder / "sshd_config"
        self.drop_in = self.drop_ins / "00-temper.conf"
        for name in ("host_key", "host_key.pub"):
            shutil.copy(users.folder / name, folder)
        self.head = f"Include {self.drop_ins}/*.conf\nHostKey {folder}/host_key\n"
        self.main.write_text(self.head)
        self.program = folder / "sshd"
        executable(self.program, f'exec nsenter --mount={users.namespace} {command} "$@"')
        monkeypatch.setattr(pwd, "getpwall", lambda: users.users)
        monkeypatch.setattr(grp, "getgrall", lambda: users.groups)
        for module in (sshd, sshd_matches, sshd_settings):
            for name, value in (("MAIN", self.main), ("DROP_IN", self.drop_in)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(sshd_matches.site_lines, "__defaults__", (self.main, self.drop_in))

    def says(self, text: str, name: str = "40-site.conf") -> None:
        """Have the site say this in a file of its own."""
        (self.drop_ins / name).write_text(text)

    def sshd(self) -> sshd.Sshd:
        """Return sshd as the role asks it."""
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        return sshd.Sshd(str(self.program), LOGIN, scratch)

    def plan(self, wanted: Parameters) -> SshdPlan:
        """Return what the role makes of the site's files; raise RefusedError as it does."""
        asked = self.sshd()
        return sshd_settings.plan(wanted, asked, asked.whole(None))

    def applied(self, wanted: Parameters) -> SshdPlan:
        """Make our drop-in as well."""
        plan = self.plan(wanted)
        text = plan.files[self.drop_in]
        assert text
        self.drop_in.write_text(text)
        return plan

    def effective(self, account: str) -> dict[str, list[str]]:
        """Return what is in force for an account."""
        address = LOGIN.client
        asked = f"user={account},host={address},addr={address},laddr={LOGIN.server},lport=22"
        answer = subprocess.run(
            [self.program, "-T", "-f", self.main, "-C", asked], capture_output=True, text=True, check=True
        )
        return sshd.parse_effective(answer.stdout)
