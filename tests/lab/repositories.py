"""The simulated NVIDIA repositories of a lab: built once per machine, served on the lab's bridge."""

import json
import subprocess
import sys
from pathlib import Path

from tests.lab.cache import locked, obtain
from tests.lab.cgroups import ROOT, Group
from tests.lab.gpu_simulator import repository
from tests.lab.settings import REPOSITORY_PORT, Lab

_SERVER = Path(__file__).with_name("repository_server.py")


def publish(lab: Lab) -> list[str]:
    """Let the lab's www lead to the repositories, built if need be; return their keys' fingerprints."""

    def fill(directory: Path) -> None:
        # One key for all repositories of this machine, made by the first build.
        with locked(lab.cache / "locks/gnupg", "Waiting for another process that signs a repository"):
            made = repository.build(directory / "www", lab.cache / "gnupg")
        (directory / "fingerprints.json").write_text(json.dumps(made["fingerprints"]))

    built = obtain(lab.cache, f"repository-{repository.content_key()}", fill)
    link = lab.state / ".www.unfinished"
    link.unlink(missing_ok=True)
    link.symlink_to(built / "www")
    link.rename(_www(lab))
    fingerprints: list[str] = json.loads((built / "fingerprints.json").read_text())
    return fingerprints


def served(lab: Lab) -> bool:
    """Whether the lab's server runs."""
    return bool(_group(lab).processes())


def serve(lab: Lab) -> None:
    """Start the lab's server, which outlives this process, unless it runs already."""
    if served(lab):
        return
    server = [sys.executable, str(_SERVER), lab.address, str(REPOSITORY_PORT), str(_www(lab))]
    with (lab.state / "repository.log").open("ab") as log:
        subprocess.Popen(
            _group(lab).command(server),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def stop(lab: Lab) -> None:
    """End the lab's server."""
    _group(lab).kill()


def _group(lab: Lab) -> Group:
    return Group(f"{ROOT}/{lab.name}/repository")


def _www(lab: Lab) -> Path:
    return lab.state / "www"
