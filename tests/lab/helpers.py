"""Lab nodes as helpers: machines from which slices of a run are carried out."""

from collections.abc import Iterable
from pathlib import Path

from tests.lab import lab as labs
from tests.lab.fleet import BIN, Fleet, on_node
from tests.lab.settings import ADMINISTRATOR, Node


def equip(fleet: Fleet, helpers: Iterable[Node]) -> None:
    """Give nodes a key for the others. An operator gives helpers keys of their own; here it is the lab's."""
    status = labs.status(fleet.lab)
    for path in (status["ssh_key"], status["known_hosts"]):
        folder, text = Path(path).parent, Path(path).read_text(encoding="utf-8")
        for helper in helpers:
            on_node(
                helper,
                f"mkdir -p {folder} && chmod 755 {folder} && cat > {path} <<'END'\n{text}END\n"
                f"chown {ADMINISTRATOR} {path} && chmod 600 {path}",
            )


def options(fleet: Fleet, *helpers: Node) -> list[str]:
    """Arguments of `temper fleet` that name the helpers and the way to them."""
    status = labs.status(fleet.lab)
    ssh = (
        f"-F /dev/null -i {status['ssh_key']} -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes "
        f"-o UserKnownHostsFile={status['known_hosts']} -o GlobalKnownHostsFile=/dev/null -l {ADMINISTRATOR}"
    )
    return ["--helpers", ",".join(node.address for node in helpers), "--ssh-options", ssh, "--jobs", "1"]


#: `temper fleet` with records in the folder that is its first argument, not among the checkout's own.
COMMAND = """
import pathlib, sys
from temper.cli import fleet, main
fleet.FOLDER = pathlib.Path(sys.argv[1])
fleet.HISTORY = fleet.FOLDER / "runs.sqlite"
sys.exit(main.main(["fleet", *sys.argv[2:]]))
"""


def command(folder: Path, *words: str) -> list[str]:
    """A command of `temper fleet` that knows only the runs in a folder."""
    return [str(BIN / "python"), "-c", COMMAND, str(folder), *words]


def workers(helper: Node) -> str:
    """What runs on a helper for slices; nothing where nothing does."""
    return on_node(helper, "pgrep -af '[f]leet.worker|[a]nsible-playbook' || true").strip()


def lease_owner(node: Node) -> str:
    """Who holds a node; nothing where nobody does."""
    script = (
        "import json, pathlib; path = pathlib.Path('/var/lib/temper/lease.json'); "
        "print(json.loads(path.read_text())['owner'] if path.exists() else '')"
    )
    return on_node(node, f'python3 -c "{script}"').strip()
