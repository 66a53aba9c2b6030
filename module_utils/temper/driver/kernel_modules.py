"""Installed kernels and the nvidia module that each of them would load: from files, without a driver."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import process

DKMS_TREE = "var/lib/dkms"
# NVIDIA's packages call the module nvidia; Debian's add what tells their series apart (nvidia-current,
# nvidia-current-open, nvidia-tesla-535, nvidia-legacy-390xx).
MODULE = re.compile(
    r"^(\S*/nvidia(?:-current|-current-open|-tesla|-tesla-\d+|-legacy-\w+)?\.ko(?:\.gz|\.xz|\.zst)?):",
    re.MULTILINE,
)
DKMS_MODULES = "nvidia*"
# GPUDirect Storage: another module, which DKMS builds beside the driver's.
NO_DRIVERS = ("nvidia-fs",)
MODINFO_TIMEOUT_S = 60


def installed_kernels(root: Path, running: str | None) -> list[dict[str, Any]]:
    """Return every kernel that the node could boot: its `release` and whether its headers are there.

    A folder in /lib/modules alone is no kernel: DKMS leaves modules behind that outlive theirs. An image
    (/boot, or beside the modules) or modules.builtin, which comes with the image's package, makes it one;
    the running kernel is one wherever it came from. None runs in the tree of an image.
    """
    base = root / "lib/modules"
    found = {running} if running else set()
    for directory in base.iterdir() if base.is_dir() else ():
        release = directory.name
        marks = (root / f"boot/vmlinuz-{release}", directory / "vmlinuz", directory / "modules.builtin")
        if any(mark.exists() for mark in marks):
            found.add(release)
    return [
        {"release": release, "headers_present": (base / release / "build").exists()}
        for release in sorted(found)
    ]


def module_path(root: Path, release: str) -> Path | None:
    """Return the nvidia module that modprobe would load into this kernel.

    Modprobe knows modules.dep, no other.
    """
    base = root / "lib/modules" / release
    try:
        match = MODULE.search((base / "modules.dep").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    # Absolute where depmod was told so, else below the kernel's directory.
    path = base / match[1] if match else None
    return path if path and path.is_file() else None


def nvidia_modules(
    root: Path, releases: list[str], *, signers: bool
) -> dict[str, dict[str, str | None] | None]:
    """Return the nvidia module of each kernel.

    Its `version`, and its `signer` and `signing_key` (a serial number).

    None where there is no module. DKMS's record has the version. The module itself is read only where there
    is no record, or where `signers` matter: a compressed one takes seconds to unpack.
    """
    paths = {release: module_path(root, release) for release in releases}
    versions = dkms_versions(root)
    result: dict[str, dict[str, str | None] | None] = {}
    to_read: dict[str, Path] = {}
    for release, path in paths.items():
        if path is None:
            result[release] = None
        elif release in versions and not signers:
            result[release] = {"version": versions[release], "signer": None, "signing_key": None}
        else:
            to_read[release] = path
    read = modinfo(list(to_read.values()))
    for release, path in to_read.items():
        fields = read.get(str(path), {})
        result[release] = {
            "version": fields.get("version") or versions.get(release),
            "signer": fields.get("signer") or None,
            "signing_key": fields.get("sig_key") or None,
        }
    return {release: result[release] for release in releases}


def vermagic(root: Path, release: str) -> str | None:
    """Return the kernel release that this kernel's nvidia module was built for, as the file says."""
    path = module_path(root, release)
    fields = modinfo([path]).get(str(path), {}) if path else {}
    return fields.get("vermagic", "").partition(" ")[0] or None


def modinfo(paths: list[Path]) -> dict[str, dict[str, str]]:
    """Fields of module files by path, in one call; no entry for a file that modinfo cannot read."""
    if not paths:
        return {}
    try:
        output = process.complete(["modinfo", *map(str, paths)], MODINFO_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in output.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            continue
        if name == "filename":
            fields = found.setdefault(value.strip(), {})
        fields.setdefault(name, value.strip())
    return found


def dkms_records(root: Path) -> list[dict[str, str | None]]:
    """Return what DKMS knows of NVIDIA's modules: module, version, kernel, architecture, state.

    `state` is DKMS's word: added, built or installed; an added one has no kernel. This is what `dkms status`
    prints, from the tree that it reads. The command itself compares hundreds of megabytes of modules each
    time, and words its lines differently in 2.8, 3.0 and 3.2; the tree has been the same in all of them.
    """
    records: list[dict[str, str | None]] = []
    for version_directory in sorted((root / DKMS_TREE).glob(f"{DKMS_MODULES}/*")):
        # Beside the versions are links for kernels, and original_module.
        if not (version_directory / "source").is_symlink():
            continue
        name, version = version_directory.parent.name, version_directory.name
        built = sorted(path.parent for path in version_directory.glob("*/*/module") if path.is_dir())
        for place in built:
            kernel, architecture = place.parent.name, place.name
            link = version_directory.parent / f"kernel-{kernel}-{architecture}"
            target = link.readlink() if link.is_symlink() else None
            installed = target is not None and target.parts[:1] == (version,)
            records.append(
                {
                    "module": name,
                    "version": version,
                    "kernel": kernel,
                    "architecture": architecture,
                    "state": "installed" if installed else "built",
                }
            )
        if not built:
            records.append(
                {"module": name, "version": version, "kernel": None, "architecture": None, "state": "added"}
            )
    return records


def dkms_versions(root: Path) -> dict[str, str]:
    """Kernel -> version of the nvidia module that DKMS has installed for it."""
    return {
        str(record["kernel"]): str(record["version"])
        for record in dkms_records(root)
        if record["state"] == "installed" and record["module"] not in NO_DRIVERS
    }
