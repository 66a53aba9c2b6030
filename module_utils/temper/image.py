"""The tree of an image: whether a machine is one, its kernel, and what of its builder must not stay in it.

Copies of an image start on many machines. What identifies one of them (machine-id(5), SSH host keys, seeds
of random numbers, leases), what is secret, and the builder's caches and logs are taken away. What Temper has
to know of the tree, to do no more than is needed and to take it back one day, stays.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper import process, records
from ansible.module_utils.temper.driver.kernel_modules import installed_kernels
from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.mounts import mounts
from ansible.module_utils.temper.packaging import services

DETECT = ["systemd-detect-virt", "--container"]
MACHINE_ID = "etc/machine-id"
#: Of the running kernel, as the tree sees it.
MOUNTINFO = "proc/self/mountinfo"
#: Without its file Debian's iSCSI daemon does not start; with this word in it, that script makes a name.
ISCSI_NAME, DEBIANS_ISCSI = "etc/iscsi/initiatorname.iscsi", "lib/open-iscsi/startup-checks.sh"
MAKE_A_NAME = "GenerateName=yes"
RECORDS = "var/lib/temper"
#: What stays of RECORDS: what was there before Temper changed it, which packages are held, and that the
#: driver has not been proven on the machine yet.
KEPT_RECORDS = (
    "admin_accounts.json",
    "container_engines.json",
    "held-packages",
    "os_hardening.json",
    "other-firewall.json",
    "settings",
    "unproven-packages",
)
#: Subject -> patterns below the root. Nothing of these remains.
PERSONAL = {
    "SSH host keys": ("etc/ssh/ssh_host_*", "etc/ssh/.temper-first-boot"),
    "the second machine id": ("var/lib/dbus/machine-id",),
    "the host name": ("etc/hostname",),
    "ids of storage": (ISCSI_NAME, "etc/nvme/hostid", "etc/nvme/hostnqn"),
    # Their daemons make them at their first start, which a tree that has been booted again has behind it.
    "ids of container engines": (
        "etc/docker/key.json",
        "var/lib/docker/engine-id",
        "var/lib/containerd/*introspection*/uuid",
    ),
    "seeds and secrets": (
        "var/lib/systemd/random-seed",
        "var/lib/systemd/credential.secret",
        "boot/loader/random-seed",
        "boot/efi/loader/random-seed",
        "efi/loader/random-seed",
        "var/lib/temper/module-signing",
        # The pair that DKMS has made for itself: each machine makes another.
        "var/lib/dkms/mok.*",
        "var/lib/shim-signed/mok/*",
    ),
    "memory of programs": ("var/lib/systemd/coredump/*", "var/crash/*"),
    "leases": (
        "var/lib/dhcp/*",
        "var/lib/dhclient/*",
        "var/lib/dhcpcd/*",
        "var/lib/NetworkManager/*",
        "var/lib/systemd/network/*",
    ),
    "state of cloud-init": tuple(
        f"var/lib/cloud/{name}" for name in ("instance", "instances", "data", "sem")
    ),
    "caches of packages": (
        "var/cache/apt/archives/*.deb",
        "var/cache/apt/archives/partial/*",
        "var/cache/apt/*.bin",
        "var/lib/apt/lists/*_*",
        "var/lib/apt/lists/partial/*",
        "var/cache/dnf/*",
        "var/cache/libdnf5/*",
    ),
    "stamps of timers": ("var/lib/systemd/timers/*",),
    "traces of people": tuple(
        f"{home}/{name}"
        for home in ("root", "home/*")
        for name in (
            ".bash_history",
            ".zsh_history",
            ".python_history",
            ".lesshst",
            ".viminfo",
            ".wget-hsts",
            ".ansible",
        )
    ),
}
#: Programs of the running tree write to these while they are emptied: that none is left is not promised.
LOGS = "var/log"
TEMPORARY = (
    "tmp/*",
    "var/tmp/*",
    # Who has logged in: Debian 13 no longer has that in /var/log.
    "var/lib/lastlog/*",
    "var/lib/wtmpdb/*",
    # What the builder has measured of itself, for its exporter.
    "var/lib/prometheus/node-exporter/*.prom",
)
#: Of the programs that run, this module among them.
IN_USE = ("ansible", "systemd-private-")
FIRST_BOOT = "temper-first-boot.service"
FIRST_BOOT_TEXT = """\
# Managed by Temper.
# A machine that boots from this image has no SSH host keys yet; systemd itself makes the machine id.
[Unit]
Description=Make the SSH host keys of a machine that has booted from an image
Documentation=man:ssh-keygen(1)
# Where there is no key, or the boot that made them was cut off: one that is there is no proof of the others.
ConditionPathExistsGlob=|!/etc/ssh/ssh_host_*_key
ConditionPathExists=|/etc/ssh/.temper-first-boot
DefaultDependencies=no
RequiresMountsFor=/etc/ssh
After=local-fs.target systemd-random-seed.service
Before=sockets.target ssh.service sshd.service sshd-keygen.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/touch /etc/ssh/.temper-first-boot
ExecStart=/usr/bin/ssh-keygen -A
ExecStart=/usr/bin/sync --file-system /etc/ssh
ExecStart=/usr/bin/rm --force /etc/ssh/.temper-first-boot
MemoryMax=256M
TasksMax=32
OOMScoreAdjust=0
CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER CAP_FSETID CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass
class Sealed:
    """What a seal has done, or would do.

    `removed` is subject -> paths, `left` what is still there although it must not be.
    """

    removed: dict[str, list[str]] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    first_boot: bool = False
    left: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether the image is another one now; logs that were written meanwhile make none."""
        return bool(self.removed) or self.first_boot


def kernel_of(root: Path, named: str | None) -> str:
    """Return the kernel that the image boots: the named one, else the newest installed one, else ""."""
    installed = [str(kernel["release"]) for kernel in installed_kernels(root, None)]
    return named or max(installed, key=in_order, default="")


def in_order(release: str) -> list[tuple[int, int, str]]:
    """Return a key by which 6.12.9 comes before 6.12.57."""
    parts = re.findall(r"\d+|\D+", release)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def refusal(root: Path, release: str) -> str:
    """Return why this is no tree of an image, or none that could get a driver; empty where it is one."""
    answer = process.complete(DETECT).stdout.strip() if process.which(DETECT[0]) else ""
    if answer in ("", "none"):
        return (
            "preflight_image is set, and this is a running machine and no container (`systemd-detect-virt "
            "--container` says none): boot the tree of the image with systemd-nspawn and run there, or take "
            "preflight_image away for this host"
        )
    if not (root / "run/systemd/system").is_dir():
        return (
            f"preflight_image is set, and no systemd runs in this container ({answer}): systemd-nspawn --boot"
        )
    if (root / "dev/nvidiactl").exists():
        return (
            "preflight_image is set, and this container has GPUs (/dev/nvidiactl): an image is built without "
            "any; take preflight_image away for this host"
        )
    installed = [str(kernel["release"]) for kernel in installed_kernels(root, None)]
    if release not in installed:
        return (
            f"expected the kernel {release or 'of the image'} in its tree, found "
            f"{', '.join(installed) or 'no kernel'}: install the package of its image there, or name another "
            "in preflight_image_kernel"
        )
    return ""


def unfinished(root: Path) -> list[str]:
    """Roles of which a run was cut off, or whose record is damaged: an image of it would be half of one."""
    found = []
    for path in sorted((root / RECORDS / "settings").glob("*.json")):
        try:
            pending = records.load(path, {})[1].get("pending")
        except records.RecordError:
            pending = True
        if pending:
            found.append(path.stem)
    return found


def personal(root: Path) -> dict[str, list[Path]]:
    """Return what must not be in an image, by its subject."""
    found = {
        subject: sorted(path for pattern in patterns for path in root.glob(pattern))
        for subject, patterns in PERSONAL.items()
    }
    # A link to the one that is empty is none of its own.
    found["the second machine id"] = [p for p in found["the second machine id"] if not p.is_symlink()]
    found["ids of storage"] = [path for path in found["ids of storage"] if not makes_a_name(path, root)]
    records = root / RECORDS
    found["records of this machine"] = sorted(
        path
        for path in (records.iterdir() if records.is_dir() else ())
        if path.name not in KEPT_RECORDS and path.name != "module-signing"
    )
    policy = root / services.POLICY.relative_to("/")
    if policy.is_file() and policy.read_bytes() == services.TEXT:
        found["a policy of a run that was cut off"] = [policy]
    machine_id = root / MACHINE_ID
    if machine_id.is_file() and machine_id.stat().st_size:
        found["the machine id"] = [machine_id]
    return {subject: paths for subject, paths in found.items() if paths}


def makes_a_name(path: Path, root: Path) -> bool:
    """Return whether it is the file of iSCSI, and has the machine make a name."""
    return path == root / ISCSI_NAME and MAKE_A_NAME in path.read_text(encoding="utf-8").splitlines()


def logs(root: Path) -> list[Path]:
    """Files below /var/log that say something, the journal's among them."""
    files = (path for path in sorted((root / LOGS).rglob("*")) if path.is_file() and not path.is_symlink())
    return [path for path in files if path.stat().st_size]


def temporary(root: Path) -> Iterator[Path]:
    """Yield what somebody has left in folders for a while; what lies in memory is in no image."""
    for pattern in TEMPORARY:
        for path in root.glob(pattern):
            in_memory = any(kind == "tmpfs" for _, kind in crossed(root, path))
            if not in_memory and not path.name.lstrip(".").startswith(IN_USE):
                yield path


def crossed(root: Path, path: Path) -> list[tuple[str, str]]:
    """Return the file systems, other than the tree's own, that a path lies on or has within: place and kind.

    A mount of the same device as the tree's is another one, too: what the builder binds into it.
    """
    try:
        mounted = mounts(root / MOUNTINFO)
    except FileNotFoundError:
        return []
    place = path.parent.resolve() / path.name  # the path itself may be a link, which is what would go
    found = []
    for mount in mounted:
        point = root / mount.point.lstrip("/")
        if point != root and (point in (place, *place.parents) or place in point.parents):
            found.append((mount.point, mount.kind))
    return found


def foreign(root: Path) -> list[str]:
    """Mounts with something that a seal would take away: whether they are its own, nobody can tell."""
    paths = [*logs(root), *temporary(root), *(path for paths in personal(root).values() for path in paths)]
    return sorted(
        {f"{process.printable(point)} ({kind})" for path in paths for point, kind in crossed(root, path)}
    )


def seal(root: Path, *, check: bool) -> Sealed:
    """Take away what is personal, have a first boot make anew what a machine needs, and look again.

    Raises OSError, CommandError. With `check` nothing is done.
    """
    found = personal(root)
    records = root / RECORDS
    unit = File(str(root / "etc/systemd/system" / FIRST_BOOT), FIRST_BOOT_TEXT)
    link = root / "etc/systemd/system/multi-user.target.wants" / FIRST_BOOT
    sealed = Sealed(
        removed={subject: [named(root, path) for path in paths] for subject, paths in found.items()},
        logs=[named(root, path) for path in logs(root)],
        kept=[named(root, records / name) for name in KEPT_RECORDS if (records / name).exists()],
        first_boot=unit.differs() or not link.is_symlink(),
    )
    if check:
        return sealed
    unit.write()
    if not link.is_symlink():
        link.parent.mkdir(mode=0o755, exist_ok=True)
        link.symlink_to(f"/etc/systemd/system/{FIRST_BOOT}")
    if process.which("journalctl"):
        # Further messages go to memory: what was flushed to disk can go.
        process.succeeds(["journalctl", "--relinquish-var"])
    for path in [*logs(root), *temporary(root)]:
        discard(path, root)
    for paths in found.values():
        for path in paths:
            discard(path, root)
    sealed.left = [named(root, path) for paths in personal(root).values() for path in paths]
    return sealed


def discard(path: Path, root: Path) -> None:
    """Remove it, or empty it where programs expect the file: the machine id, and logs but the journal's."""
    if path == root / ISCSI_NAME and (root / DEBIANS_ISCSI).exists():
        path.write_text(f"{MAKE_A_NAME}\n", encoding="utf-8")
    elif path == root / MACHINE_ID or (
        root / LOGS in path.parents and "journal" not in path.relative_to(root / LOGS).parts
    ):
        path.write_bytes(b"")
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def named(root: Path, path: Path) -> str:
    """Return the path as the machine will have it."""
    return f"/{path.relative_to(root)}"
