"""The layers under every node: Debian's root file system, and the little that makes it a node of the lab."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from tests.lab import host_apt, sysctl_tree
from tests.lab.cache import digest, obtain, tree_parts
from tests.lab.process import LabError, build, step
from tests.lab.settings import ADMINISTRATOR, Lab, Release

HERE = Path(__file__).parent
LAYER = HERE / "layer"
SIMULATOR_NODE = HERE / "gpu_simulator" / "node"

# What a Debian server with SSH has.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "udev", "kmod", "procps", "tzdata", "less"),
    *("openssh-server", "sudo", "python3", "python3-apt", "ca-certificates"),
    *("iproute2", "iputils-ping", "netbase", "nftables"),
)

# Every apt command reads all lists, and nobody reads translated descriptions here.
_NO_TRANSLATIONS = 'Acquire::Languages "none";\n'

# Raised when the way of building changes, so that nothing built the old way is used.
_ROOT_RECIPE = "1"
_LAYER_RECIPE = "1"


def root_file_system(lab: Lab, release: Release) -> Path:
    """A bare Debian server of this release with fresh package lists, from the host's mirror.

    Raises:
        LabError: it could not be built; the message says why.
    """
    apt = host_apt.read()
    if release.unchecked:
        apt = replace(apt, options=(*apt.options, ("Acquire::Check-Valid-Until", "false")))
    sources = apt.sources_text(release.codename)
    key = digest(
        [_ROOT_RECIPE, *PACKAGES, *release.packages, sources, apt.options_text(), *map(str, apt.proxies)]
    )
    name = f"rootfs-{release.codename}-{key}"
    log = lab.cache / "logs" / f"{name}.log"

    def fill(root: Path) -> None:
        with step(f"Building the {release} root file system", "about 30 s"):
            _debootstrap(release, root, sources, apt, log)

    return obtain(lab.cache, name, fill)


def _debootstrap(release: Release, root: Path, sources: str, apt: host_apt.HostApt, log: Path) -> None:
    root.chmod(0o755)
    included = ",".join([*PACKAGES, *release.packages])
    command = [
        *("mmdebstrap", "--mode=root", "--variant=apt", f"--include={included}"),
        # The result is thrown away if anything goes wrong, so dpkg need not wait for the disk.
        "--dpkgopt=force-unsafe-io",
        # Nodes start with package lists; without them each would fetch its own.
        "--skip=cleanup/apt/lists",
        *(f'--aptopt={name} "{value}"' for name, value in apt.options),
        *(release.codename, str(root), "-"),
    ]
    try:
        build(command, log, text=sources)
    except LabError as error:
        if "NO_PUBKEY" in log.read_text(errors="replace"):
            raise LabError(
                f"This machine's Debian keyring does not know the keys of {release}: "
                f"apt-get install --only-upgrade debian-archive-keyring. Details: {log}"
            ) from error
        raise
    # Under the names that a Debian server has; mmdebstrap's own are for its run.
    for leftover in (
        *root.glob("etc/apt/sources.list"),
        *root.glob("etc/apt/sources.list.d/*"),
        *root.glob("etc/apt/apt.conf.d/99mmdebstrap"),
        *root.glob("etc/dpkg/dpkg.cfg.d/99mmdebstrap"),
        # Each node gets its own.
        *root.glob("etc/ssh/ssh_host_*"),
    ):
        leftover.unlink()
    (root / "etc/apt/sources.list.d/debian.sources").write_text(sources)
    (root / "etc/apt/apt.conf.d/90mirror").write_text(apt.options_text() + _NO_TRANSLATIONS)
    for source in apt.sources:
        if not (root / source.keyring.lstrip("/")).exists():
            target = root / source.keyring.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.keyring, target)


def lab_layer(lab: Lab, root: Path) -> Path:
    """The layer over a root file system that all nodes share.

    It holds the administrator, the settings that a cloud image would have, the sysctl tree, the GPU simulator
    and the certificates that the host trusts.
    """
    certificates = host_apt.extra_certificates()
    defaults = sysctl_tree.DEBIAN_DEFAULTS.read_text()
    parts = [_LAYER_RECIPE, root.name, os.uname().release, defaults, *certificates, *tree_parts(LAYER)]
    name = f"layer-{digest([*parts, *tree_parts(SIMULATOR_NODE)])}"

    def fill(directory: Path) -> None:
        upper = directory / "upper"
        for path in (upper, directory / "work", directory / "merged"):
            path.mkdir()
        upper.chmod(0o755)
        for tree in (LAYER, SIMULATOR_NODE):
            copy_tree(tree, upper)
        for path in (upper / "etc/sudoers.d").iterdir():
            path.chmod(0o440)
        sysctl_tree.write(upper / "usr/lib/lab/sysctl")
        # A Debian server has its kernel's headers from a package; the kernel here is not Debian's.
        (upper / "usr/lib/modules" / os.uname().release / "build").mkdir(parents=True)
        local = upper / "usr/local/share/ca-certificates"
        local.mkdir(parents=True)
        for number, certificate in enumerate(certificates, 1):
            (local / f"host-{number:02d}.crt").write_text(f"{certificate}\n")
        build(
            ["sh", "-eu", str(HERE / "fill_layer.sh"), str(root), str(directory), ADMINISTRATOR],
            lab.cache / "logs" / f"{name}.log",
        )

    return obtain(lab.cache, name, fill) / "upper"


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree of the checkout into a root file system: owned by root, links kept, modes 0755 or 0644.

    git keeps no other modes, and a checkout made under another umask must give the same node.
    """
    for path in sorted(source.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        copy = target / path.relative_to(source)
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_dir():
            copy.mkdir(exist_ok=True)
            copy.chmod(0o755)
        else:
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
