"""A node that pulls, and its operator: real git and real keys, and a stand-in for ansible-playbook."""

import atexit
import functools
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pull.agent import Agent
from pull.configuration import Configuration
from pull.result import Result
from tests.unit.executables import executable
from tests.unit.pull.origin import Origin, configuration, key, line, origin

#: Writes the statement of a node on which the controls in the file `drift` fail, and repairs as `tune` does.
PLAYBOOK = """
import json, os, pathlib, sys
home = pathlib.Path({home!r})
playbook = sys.argv[1]
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with (home / "calls").open("a") as calls:
    calls.write(json.dumps([playbook, options, str(pathlib.Path.cwd())]) + "\\n")
variables = json.loads(options["--extra-vars"])
drift = (home / "drift").read_text().split() if (home / "drift").exists() else []
if playbook.endswith("tune.yml"):
    if (home / "stuck").exists():
        pathlib.Path(os.environ["TEMPER_REASONS_FILE"]).write_text((home / "stuck").read_text())
        sys.exit(2)
    kept = [one for one in drift if one.split("/")[0] not in options["--tags"].split(",")]
    (home / "drift").write_text(" ".join(kept))
else:
    folder = pathlib.Path(variables["compliance_reports_directory"], "latest")
    folder.mkdir(parents=True)
    controls = [dict(id=one, state="fail", reason="it drifted") for one in drift]
    controls += [dict(id="os_tuning/x", state="pass"), dict(id="validation/last", state="not-checked")]
    nodes = [dict(node="gpu01", controls=controls)]
    (folder / "statement.json").write_text(json.dumps(dict(nodes=nodes)))
    sys.exit(1)
"""


@functools.cache
def beginning() -> tuple[Path, str]:
    """Make what every world begins with, once: two keys, and a repository with one signed commit."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    ada, _ = key(folder, "ada"), key(folder, "mallory")
    return folder, origin(folder).commit(ada, "inventory/mine/hosts.yml")


class World:
    """A node, its operator, and what the stand-in was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        begun, self.commit = beginning()
        shutil.copytree(begun, folder, dirs_exist_ok=True)
        self.source = Origin(folder / "origin", folder)
        self.ada, self.mallory = folder / "ada", folder / "mallory"
        self.trust(line("ada", self.ada))
        programs = folder / "environment" / "bin"
        executable(programs / "python3", f'exec {sys.executable} "$@"')
        (programs / "ansible-playbook").write_text(PLAYBOOK.format(home=str(folder)))
        self.wanted: Configuration = configuration(folder, self.source, python=str(programs / "python3"))
        self.state, self.lease = folder / "state", folder / "lease.json"

    def trust(self, *lines: str) -> None:
        """Write the keyring."""
        (self.folder / "keyring").write_text("".join(lines))

    def run(self, **values: Any) -> Result:
        """Let the node pull once, with these values of its configuration."""
        result, self.problem = Agent(replace(self.wanted, **values), self.state, self.lease).run()
        return result

    def drift(self, *controls: str) -> None:
        """Have controls fail."""
        (self.folder / "drift").write_text(" ".join(controls))

    def away(self) -> None:
        """Take the server away."""
        (self.source.folder / ".git").rename(self.folder / "away")

    @property
    def calls(self) -> list[tuple[str, dict[str, str], str]]:
        """What ansible-playbook was asked to do: playbook, options, folder."""
        path = self.folder / "calls"
        return [tuple(json.loads(call)) for call in path.read_text().splitlines()] if path.exists() else []

    @property
    def playbooks(self) -> list[str]:
        """The names of the playbooks that were run."""
        return [Path(name).stem for name, _, _ in self.calls]

    @property
    def accepted(self) -> dict[str, Any]:
        """What the node never goes behind."""
        found: dict[str, Any] = json.loads((self.state / "accepted.json").read_text())
        return found
