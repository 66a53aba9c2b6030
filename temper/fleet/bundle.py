"""What a helper needs to run slices: this checkout, which has the payload's source, and the Python packages.

It is made once a run and goes to each helper once: a helper that has it, by its digest, is not sent it again.
The helper needs a Python of the same minor version, SSH, and nothing from any network.

    python3 -m temper.fleet.bundle    # on a helper, in its bundle: remove those that nobody has used for long
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from temper.base import ROOT

#: What a run reads of the checkout.
PARTS = (
    "ansible.cfg",
    "data",
    "library",
    "module_utils",
    "monitoring",
    "playbooks",
    "plugins",
    "pull",
    "requirements",
    "roles",
    "site.yml",
    "temper",
    "tools",
    "validation",
)
#: The controller's packages.
REQUIREMENTS = ROOT / "requirements" / "controller.txt"
SITE = "site-packages"
#: A bundle is `bundle-` and its digest; what is longer was not unpacked, or not removed, to its end.
PREFIX = "bundle-"
WHOLE = re.compile(rf"{PREFIX}[0-9a-f]{{16}}")
#: The newest that a helper keeps, as several controllers may share it.
KEPT = 3
#: One that was used within this time stays: its run may begin another slice at any moment.
UNUSED_S = 24 * 3600.0
COMMANDS = {
    "ansible-playbook": "ansible.cli.playbook",
    "ansible-inventory": "ansible.cli.inventory",
    "ansible": "ansible.cli.adhoc",
}


class BundleError(Exception):
    """The bundle cannot be made; the message is a sentence."""


def python_version() -> str:
    """Return the Python that the packages are for, as a helper must have it: `3.11-x86_64`."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}-{sysconfig.get_platform().rpartition('-')[2]}"


def files(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield the files of the checkout, with their names in the bundle, in order."""
    for part in PARTS:
        path = root / part
        if path.is_file():
            yield path, part
        elif path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file, str(file.relative_to(root))
        else:
            raise BundleError(f"{path} is missing: a helper needs it.")


def packages() -> Iterator[tuple[Path, str]]:
    """Yield the files of the controller's Python packages, with their names in the bundle."""
    named = re.findall(r"^([A-Za-z0-9._-]+)==", REQUIREMENTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for name in sorted(named):
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system than this one
        for file in sorted(distribution.files or ()):
            path = Path(str(distribution.locate_file(file)))
            # Commands of the environment are not below the packages, and name its Python.
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                yield path, f"{SITE}/{file}"


def bundle() -> tuple[str, bytes]:
    """Return the bundle's name, which has its digest, and the bundle (tar, gzip). Raises BundleError."""
    digest = hashlib.sha256(python_version().encode())
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=6) as archive:
        for path, name in (*files(), *packages()):
            content = path.read_bytes()
            _add(archive, digest, name, content, executable=bool(path.stat().st_mode & 0o100))
        for command, module in COMMANDS.items():
            program = f"#!/usr/bin/env python3\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            _add(archive, digest, f"bin/{command}", program.encode(), executable=True)
    return f"{PREFIX}{digest.hexdigest()[:16]}", memory.getvalue()


def _add(
    archive: tarfile.TarFile, digest: hashlib._Hash, name: str, content: bytes, *, executable: bool
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if executable else 0o644
    digest.update(f"{name}\0{entry.mode}\0{entry.size}\0".encode() + content)
    archive.addfile(entry, io.BytesIO(content))


@contextlib.contextmanager
def in_use(folder: Path = ROOT) -> Iterator[None]:
    """Keep the bundle that this program is from; a checkout that is none is left alone. Raises OSError."""
    if not WHOLE.fullmatch(folder.name):
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Shared by all slices; the kernel ends it with their processes.
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.utime(handle)
        yield
    finally:
        os.close(handle)


def prune(cache: Path, now_s: float) -> list[str]:
    """Remove the bundles that nobody uses but the newest, and unfinished ones; returns their names."""
    found = sorted((path.stat().st_mtime, path) for path in cache.glob(f"{PREFIX}*") if path.is_dir())
    newest = [path for _, path in found if WHOLE.fullmatch(path.name)][-KEPT:]
    old = [path for used_s, path in found if path not in newest and now_s - used_s > UNUSED_S]
    return [path.name for path in old if _remove(path)]


def _remove(folder: Path) -> bool:
    """Remove a bundle, unless it is in use. It loses its name first: nobody is to find half of it."""
    with contextlib.suppress(OSError):  # in use, or somebody else is removing it
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            going = folder
            if WHOLE.fullmatch(folder.name):
                going = folder.rename(folder.with_name(f"{folder.name}.removed"))
            shutil.rmtree(going)
            return True
        finally:
            os.close(handle)
    return False


if __name__ == "__main__":
    prune(ROOT.parent, time.time())
