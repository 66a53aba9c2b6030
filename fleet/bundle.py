"""What a helper needs to run slices: this checkout, the payload, and the Python packages, in one file.

It is made once a run and goes to each helper once: a helper that has it, by its digest, is not sent it again.
The helper needs a Python of the same minor version, SSH, and nothing from any network.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
#: What a run reads of the checkout.
PARTS = (
    "action_plugins",
    "ansible.cfg",
    "callback_plugins",
    "compliance",
    "console",
    "data",
    "filter_plugins",
    "fleet",
    "library",
    "lookup_plugins",
    "module_utils",
    "monitoring",
    "pages",
    "planning",
    "playbooks",
    "pull",
    "requirements",
    "roles",
    "rollout",
    "site.yml",
    "tools",
    "validation",
    ".cache/temper-validation.pyz",
)
#: The controller's packages.
REQUIREMENTS = ROOT / "requirements" / "controller.txt"
SITE = "site-packages"
COMMANDS = {
    "ansible-playbook": "ansible.cli.playbook",
    "ansible-inventory": "ansible.cli.inventory",
    "ansible": "ansible.cli.adhoc",
}


class BundleError(Exception):
    """The bundle cannot be made; the message is a sentence."""


def python_version() -> str:
    """The Python that the packages are for, as a helper must have it: `3.11-x86_64`."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}-{sysconfig.get_platform().rpartition('-')[2]}"


def files(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """The files of the checkout, with their names in the bundle, in order."""
    for part in PARTS:
        path = root / part
        if path.is_file():
            yield path, part
        elif path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file, str(file.relative_to(root))
        else:
            made = " (make payload makes it)" if part.startswith(".cache") else ""
            raise BundleError(f"{path} is missing{made}: a helper needs it.")


def packages() -> Iterator[tuple[Path, str]]:
    """The files of the controller's Python packages, with their names in the bundle."""
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
    """The bundle's name, which has its digest, and the bundle (tar, gzip). Raises BundleError."""
    digest = hashlib.sha256(python_version().encode())
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=6) as archive:
        for path, name in (*files(), *packages()):
            content = path.read_bytes()
            _add(archive, digest, name, content, executable=bool(path.stat().st_mode & 0o100))
        for command, module in COMMANDS.items():
            program = f"#!/usr/bin/env python3\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            _add(archive, digest, f"bin/{command}", program.encode(), executable=True)
    return f"bundle-{digest.hexdigest()[:16]}", memory.getvalue()


def _add(
    archive: tarfile.TarFile, digest: hashlib._Hash, name: str, content: bytes, *, executable: bool
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if executable else 0o644
    digest.update(f"{name}\0{entry.mode}\0{entry.size}\0".encode() + content)
    archive.addfile(entry, io.BytesIO(content))
