"""The pristine sysctl tree that every node boots with: the host's keys, a Debian kernel's values."""

import re
import shutil
from pathlib import Path

DEBIAN_DEFAULTS = Path(__file__).with_name("debian_sysctls.conf")

_PROC_SYS = Path("/proc/sys")
# Not copied: the kernel's random numbers (real on nodes) and the host's table of binary formats.
_LEFT_OUT = ("kernel/random", "fs/binfmt_misc")
_PER_INTERFACE = re.compile(r"net/ipv[46]/(conf|neigh)/(?P<interface>[^/]+)")
_NODE_INTERFACES = ("all", "default", "lo")


def write(target: Path) -> None:
    """Write the tree into a new directory.

    Keys that only a Debian kernel has are added. Of the host's network interfaces only those remain that a
    node has too; the node's eth0 starts with the values of `default`.
    """
    target.mkdir(parents=True)
    _copy(_PROC_SYS, target)
    for family in ("ipv4", "ipv6"):
        for kind in ("conf", "neigh"):
            default = target / "net" / family / kind / "default"
            if default.is_dir():
                shutil.copytree(default, default.with_name("eth0"))
    for key, value in _defaults():
        for path in _paths(target, key):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    (target / "kernel/random").mkdir()


def _copy(source: Path, target: Path) -> None:
    for path in source.iterdir():
        name = str(path.relative_to(_PROC_SYS))
        match = _PER_INTERFACE.fullmatch(name)
        if name in _LEFT_OUT or (match and match["interface"] not in _NODE_INTERFACES):
            continue
        copy = target / path.name
        if path.is_dir():
            copy.mkdir()
            _copy(path, copy)
        else:
            try:
                copy.write_bytes(path.read_bytes())
            except OSError:
                # Keys that can only be written, and those without a value yet.
                copy.touch()
            copy.chmod(path.stat().st_mode & 0o777)


def _defaults() -> list[tuple[str, str]]:
    lines = (line.partition("#")[0].strip() for line in DEBIAN_DEFAULTS.read_text().splitlines())
    pairs = (line.split("=", 1) for line in lines if line)
    return [(key.strip(), value.strip()) for key, value in pairs]


def _paths(target: Path, key: str) -> list[Path]:
    """The files of a key; a `*` in it stands for every network interface."""
    name = key.replace(".", "/")
    return sorted(target.glob(name)) if "*" in name else [target / name]
