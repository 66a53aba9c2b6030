"""The Python tree with torch that every node sees read-only at /opt/temper/venv, as a golden image has it.

Debian 12's Python finds its library relative to its own program. So a copy of both works anywhere, on Debian
13 too, whose own Python is another version, and one tree serves all nodes.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.lab import images
from tests.lab.cache import digest, obtain
from tests.lab.process import build, step
from tests.lab.settings import BOOKWORM, Lab

REQUIREMENTS = Path(__file__).with_name("payload_requirements.txt")

_PYTHON = "python3.11"
_RECIPE = "1"


def tree(lab: Lab) -> Path:
    """The tree, built once per machine with the host's own pip settings.

    Raises:
        LabError: it could not be built; the message says why.
    """
    name = f"payload-{digest([_RECIPE, REQUIREMENTS.read_bytes()])}"
    log = lab.cache / "logs" / f"{name}.log"

    def fill(directory: Path) -> None:
        system = images.root_file_system(lab, BOOKWORM) / "usr"
        with step("Installing torch for the payload", "about 30 s where the download is fast"):
            _copy_python(system, directory)
            _install(directory, log)

    return obtain(lab.cache, name, fill)


def _copy_python(system: Path, directory: Path) -> None:
    directory.chmod(0o755)
    programs = directory / "bin"
    programs.mkdir()
    shutil.copy2(system / "bin" / _PYTHON, programs)
    for name in ("python3", "python"):
        (programs / name).symlink_to(_PYTHON)
    library = directory / "lib" / _PYTHON
    shutil.copytree(system / "lib" / _PYTHON, library, symlinks=True)
    # The first is a link to Debian's /etc; the second keeps pip off the system's packages: this is a copy.
    for name in ("sitecustomize.py", "EXTERNALLY-MANAGED"):
        (library / name).unlink(missing_ok=True)


def _install(directory: Path, log: Path) -> None:
    python = directory / "bin" / _PYTHON
    with tempfile.TemporaryDirectory() as temporary:
        # Whichever Python runs the lab: its virtual environments have a pip, and that installs for any other.
        build([sys.executable, "-m", "venv", temporary], log)
        pip = [f"{temporary}/bin/python", "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
        options = ["--no-cache-dir", "--no-warn-script-location", "--root-user-action=ignore"]
        build([*pip, "install", *options, "--requirement", str(REQUIREMENTS)], log)
    # Their first lines name the directory of the build.
    shutil.rmtree(directory / "local" / "bin")
    build([str(python), "-c", "import torch; torch.ones(1).numpy()"], log)
