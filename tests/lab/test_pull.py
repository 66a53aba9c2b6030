"""A node that pulls: real git, real keys, real systemd, and a result that comes back over TLS.

The tests run in the order in which they stand, on one lab.
"""

from __future__ import annotations

import http.server
import json
import re
import shutil
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import node as machine
from tests.lab.fleet import BIN, Fleet, Run, on_node
from tests.lab.hardening import wait_until
from tests.lab.settings import CHECKOUT, Lab
from tests.unit.pull.origin import Origin, key

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="pulling"), size=1)
(NODE,) = FLEET.lab.nodes(1)
#: Of the controller's environment, what ansible-core is made of.
ANSIBLE = (
    "ansible",
    "ansible_core",
    "jinja2",
    "markupsafe",
    "yaml",
    "pyyaml",
    "_yaml",
    "packaging",
    "resolvelib",
)
ANSIBLE_TOO = ("cryptography", "cffi", "_cffi_backend", "pycparser")
ENVIRONMENT = "/opt/temper/ansible"
LIMITS = "/etc/security/limits.d/90-temper.conf"
#: A limit that ends no login: the controller comes, too, while the node has it.
DRIFT = f"echo '* - locks 100000' >>{LIMITS}"
STATE = "/var/lib/temper/pull"
#: Another limit than the role's own, and no larger one than kernels allow without being told (fs.nr_open).
NOFILE = 524288


class Receiver(http.server.SimpleHTTPRequestHandler):
    """Serves the operator's repository, and takes results as an nginx with WebDAV does."""

    results: dict[str, dict[str, Any]]
    folder: Path

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(self.folder))

    def do_PUT(self) -> None:
        """Keep the body by its path."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] == "Bearer token-of-gpu01":
            self.results[self.path] = json.loads(body)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class World:
    """The operator's work tree, which the node fetches from, their keys, and the results."""

    source: Origin
    operator: Path
    mallory: Path
    inventory: Path
    receiver: type[Receiver]

    def start(self) -> tuple[bool, dict[str, Any]]:
        """Have the service run once; returns whether it succeeded, and its result."""
        self.source.git("repack", "-a", "-d", "--quiet")
        self.source.git("update-server-info")
        # A start would join a run of the timer's that is under way.
        wait_until(lambda: ended() is not None, "no other run is under way", patience_s=900)
        before = ended()
        # A repair may have systemd execute itself anew, which ends a client that waits.
        on_node(NODE, "systemctl start --no-block temper-pull.service")
        wait_until(lambda: ended() not in (None, before), "the run ends", patience_s=900)
        result: dict[str, Any] = json.loads(on_node(NODE, f"cat {STATE}/result.json"))
        # What pytest shows of a test that fails.
        print(on_node(NODE, "journalctl --unit temper-pull.service --output cat --lines 100"))
        return shown("Result") == "success", result

    @property
    def delivered(self) -> dict[str, Any]:
        """The result that the controller has."""
        return self.receiver.results[f"/pulled/{NODE.name}.json"]


def play(inventory: Path, playbook: str, **variables: object) -> Run:
    """A run of the controller's, with what the operator wants beside the lab's inventory."""
    sources = ["-i", "inventory/lab", "-i", str(inventory)]
    extra = json.dumps(variables)
    return FLEET.run(["ansible-playbook", *sources, playbook, "--extra-vars", extra])


def shown(name: str, unit: str = "temper-pull.service") -> str:
    """A property of a unit."""
    return on_node(NODE, f"systemctl show --property={name} --value {unit}").strip()


def ended() -> str | None:
    """Which run was the last, empty before the first; None while one is under way, or nobody can tell.

    While systemd executes itself anew, it may leave a question without an answer.
    """
    question = "systemctl show --property=InvocationID,ActiveState temper-pull.service || true"
    said = dict(line.split("=", 1) for line in on_node(NODE, question).splitlines())
    return said["InvocationID"] if said.get("ActiveState") in ("inactive", "failed") else None


def root() -> Path:
    """The node's file system, as this machine sees it."""
    return Path(f"/proc/{machine.leader(NODE)}/root")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of the bridge's address that is its own authority, and its key."""
    paths = folder / "ca.pem", folder / "ca.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=results",
            ),
            *("-addext", f"subjectAltName=IP:{FLEET.lab.address}"),
            *("-out", str(paths[0]), "-keyout", str(paths[1])),
        ],
        check=True,
        capture_output=True,
    )
    return paths


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[type[Receiver], int, Path]]:
    """A server on the lab's bridge; needs the lab."""
    FLEET.command("down")
    FLEET.command("up")
    folder = tmp_path_factory.mktemp("receiver")
    chain, secret = certificate(folder)
    kind = type("Kept", (Receiver,), {"results": {}, "folder": folder})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    with http.server.ThreadingHTTPServer((FLEET.lab.address, 0), kind) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kind, server.server_port, chain
        finally:
            server.shutdown()
            thread.join()
            FLEET.command("down")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, receiver: tuple[type[Receiver], int, Path]) -> World:
    """A node as site.yml leaves it, that is to pull, with all that it needs; and the repository."""
    folder = tmp_path_factory.mktemp("operator")
    operator, mallory = key(folder, "ada"), key(folder, "mallory")
    kind, port, chain = receiver
    inventory = folder / "inventory"
    (inventory / "group_vars").mkdir(parents=True)
    (inventory / "hosts.yml").write_text("gpu_nodes: {}\n")
    wish = {
        "pull_enabled": True,
        "pull_url": f"https://{FLEET.lab.address}:{port}/.git",
        "pull_ca_file": "/etc/pull-ca.pem",
        "pull_signers": [{"name": "ada", "key": operator.with_suffix(".pub").read_text().strip()}],
        "pull_python": f"{ENVIRONMENT}/bin/python3",
        "pull_repair": ["os_tuning", "compute_environment"],
        "pull_report_to": f"https://{FLEET.lab.address}:{port}/pulled",
        "pull_report_ca_file": "/etc/pull-ca.pem",
        "pull_report_token_file": "/etc/pull-token",
        "gpu_validation_reports_directory": str(folder / "reports"),
        "compliance_reports_directory": str(folder / "reports/compliance"),
    }
    (inventory / "group_vars/gpu_nodes.yml").write_text(json.dumps(wish))
    run = play(inventory, "site.yml")
    assert run.status == 0, run.output
    kind.folder = folder / "fleet"
    made = World(Origin(kind.folder, folder), operator, mallory, inventory, kind)
    (root() / "etc/pull-ca.pem").write_text(chain.read_text())
    (root() / "etc/pull-token").write_text("token-of-gpu01\n")
    install_ansible()
    fill(made, wish)
    return made


def install_ansible() -> None:
    """Make an environment as docs/operate/pull.md says, of the controller's own packages."""
    on_node(NODE, f"/usr/bin/python3 -m venv --without-pip {ENVIRONMENT}")
    (library,) = (BIN.parent / "lib").glob("python3.11/site-packages")
    target = root() / f"{ENVIRONMENT[1:]}/lib/python3.11/site-packages"
    for pattern in (*ANSIBLE, *ANSIBLE_TOO):
        # With what says which version it is.
        for path in (*library.glob(pattern), *library.glob(f"{pattern}[-.]*")):
            if path.is_dir():
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target)
    shutil.copy2(BIN / "ansible-playbook", root() / f"{ENVIRONMENT[1:]}/bin")


def fill(world: World, wish: dict[str, object]) -> None:
    """The repository: this checkout, and the lab's inventory written down."""
    world.source.folder.mkdir(parents=True)
    names = subprocess.run(
        ["git", "-C", str(CHECKOUT), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        target = world.source.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).exists() or (CHECKOUT / name).is_symlink():
            shutil.copy2(CHECKOUT / name, target, follow_symlinks=False)
    listed = FLEET.run(["ansible-inventory", "-i", "inventory/lab", "-i", str(world.inventory), "--list"])
    assert listed.status == 0, listed.output
    document, _ = json.JSONDecoder().raw_decode(listed.output[listed.output.index("{") :])
    found = document["_meta"]["hostvars"][NODE.name]
    mine = world.source.folder / "inventory/mine"
    mine.mkdir()
    hosts = {"gpu_nodes": {"hosts": {NODE.name: {**found, **wish}}}}
    (mine / "hosts.yml").write_text(json.dumps(hosts, indent=1))
    world.source.git("init", "--quiet", "--initial-branch=main")
    # This checkout ignores inventories: they are not its own.
    world.source.git("add", "--force", "inventory/mine")
    world.source.commit(world.operator, "README-of-the-fleet")


def tuned(world: World) -> str:
    """The file that the drift changes."""
    return on_node(NODE, f"cat {LIMITS}")


def test_a_node_that_site_yml_has_made_is_compliant_by_its_own_look(world: World) -> None:
    former = f"{STATE}/commits {STATE}/home"
    on_node(NODE, f"install -d -m 700 {STATE} && mkdir -p {former} && ln -s commits {STATE}/current")
    succeeded, result = world.start()
    assert result["state"] == "checked", result
    assert result["signer"] == "ada"
    assert result["commit"] == world.source.git("rev-parse", "HEAD")
    assert (result["verdict"], result["left"]) == ("compliant", []), result
    assert succeeded
    assert world.delivered == result
    kept = ["accepted.json", "checkout", "repository.git", "result.json", "scratch"]
    assert on_node(NODE, f"ls {STATE}").split() == kept
    assert "token-of-gpu01" not in on_node(NODE, "journalctl --unit temper-pull.service --output cat")
    assert shown("ActiveState", "temper-pull.timer") == "active"


def test_thirty_timers_spread_over_the_interval_and_keep_their_places(world: World) -> None:
    """Placed by systemd itself, by a hash of machine-id and unit: thirty names here for thirty machines."""
    script = """
        cd /run/systemd/system
        rm -f spread-*
        for one in $(seq -w 30); do
            printf '[Service]\\nType=oneshot\\nExecStart=/bin/true\\n' >spread-$one.service
            sed 's/^OnCalendar=.*/OnCalendar=2099-01-01 00:00:00 UTC/' \\
                /etc/systemd/system/temper-pull.timer >spread-$one.timer
        done
        systemctl daemon-reload
        for round in 1 2; do
            systemctl start spread-{01..30}.timer
            for one in $(seq -w 30); do
                TZ=UTC systemctl show --property=NextElapseUSecRealtime spread-$one.timer
            done
            systemctl stop spread-{01..30}.timer
        done
        rm -f spread-*
        systemctl daemon-reload
    """
    said = on_node(NODE, f"bash -euc '{script.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'")
    found = re.findall(r"=\w+ 2099-01-01 (\d\d):(\d\d):(\d\d) UTC", said)
    starts = [3600 * int(hours) + 60 * int(minutes) + int(seconds) for hours, minutes, seconds in found]
    assert len(starts) == 60, said
    first, second = starts[:30], starts[30:]
    assert first == second
    places = sorted(first)
    assert places[-1] <= 1800
    # Thirty places of an even chance: that a third of the interval has none of them happens once in 60,000.
    thirds = [sum(low <= place < low + 600 for place in places) for low in (0, 600, 1200)]
    assert min(thirds) > 0, places
    assert len(set(places)) > 20


def test_drift_is_repaired_by_the_next_start_and_only_what_may_be(world: World) -> None:
    before = tuned(world)
    on_node(NODE, DRIFT)
    on_node(NODE, "sysctl --quiet --write net.ipv4.conf.all.send_redirects=1")
    assert tuned(world) != before
    succeeded, result = world.start()
    assert succeeded, result
    assert tuned(world) == before
    assert [one for one in result["repaired"] if LIMITS in one], result
    assert result["verdict"] == "not-compliant"
    assert [one["id"] for one in result["left"]] == ["os_hardening/send-redirects"]
    assert on_node(NODE, "sysctl --values net.ipv4.conf.all.send_redirects").strip() == "1"
    assert world.delivered == result
    on_node(NODE, "sysctl --quiet --write net.ipv4.conf.all.send_redirects=0")


def asked(world: World, nofile: int) -> None:
    """A signed commit that asks for another limit of open files."""
    path = world.source.folder / "inventory/mine/hosts.yml"
    hosts = json.loads(path.read_text())
    hosts["gpu_nodes"]["hosts"][NODE.name]["os_tuning_nofile"] = nofile
    world.source.commit(world.operator, "inventory/mine/hosts.yml", json.dumps(hosts, indent=1))


def test_a_signed_commit_that_asks_for_what_the_node_cannot_have_changes_nothing(world: World) -> None:
    """A larger limit than the kernel's would end all logins; nobody has signed that on purpose."""
    before = tuned(world)
    most = int(on_node(NODE, "sysctl --values fs.nr_open"))
    asked(world, most + 1)
    succeeded, result = world.start()
    assert succeeded, result
    assert result["commit"] == world.source.git("rev-parse", "HEAD")
    assert (result["verdict"], result["repaired"]) == ("not-compliant", []), result
    assert "node/plan" in [one["id"] for one in result["left"]], result
    assert f"fs.nr_open of this node is {most}" in result["repair_problem"], result
    assert tuned(world) == before


def test_a_new_signed_commit_is_applied(world: World) -> None:
    asked(world, NOFILE)
    succeeded, result = world.start()
    assert succeeded, result
    assert result["commit"] == world.source.git("rev-parse", "HEAD")
    assert result["verdict"] == "compliant", result
    assert str(NOFILE) in tuned(world)


def test_refused_commits_leave_the_node_unchanged(world: World) -> None:
    good = world.source.git("rev-parse", "HEAD")
    older = world.source.git("rev-parse", "HEAD~1")
    on_node(NODE, DRIFT)
    drifted = tuned(world)
    offers: list[tuple[str, Any]] = [
        ("unsigned", lambda: world.source.commit(None)),
        ("bad-signature", lambda: world.source.commit(world.mallory)),
        ("older", lambda: world.source.git("reset", "--quiet", "--hard", older)),
    ]
    for code, offer in offers:
        world.source.git("reset", "--quiet", "--hard", good)
        offer()
        succeeded, result = world.start()
        assert not succeeded
        assert (result["state"], result["code"], result["commit"]) == ("refused", code, good), result
        assert tuned(world) == drifted
        assert json.loads(on_node(NODE, f"cat {STATE}/accepted.json"))["commit"] == good
        assert world.delivered == result
    world.source.git("reset", "--quiet", "--hard", good)
    assert world.start()[1]["repaired"]


def test_while_a_roll_out_holds_the_node_nothing_is_done(world: World) -> None:
    on_node(NODE, DRIFT)
    drifted = tuned(world)
    arguments = "owner=rollout-7 ttl_s=3600"
    taken = FLEET.run(["ansible", NODE.name, "--become", "--module-name", "node_lease", "--args", arguments])
    assert taken.status == 0, taken.output
    succeeded, result = world.start()
    assert succeeded
    assert result["state"] == "held"
    assert "rollout-7" in result["reason"]
    assert tuned(world) == drifted
    on_node(NODE, "rm /var/lib/temper/lease.json")
    assert world.start()[1]["verdict"] == "compliant"


def test_the_second_run_of_the_controller_changes_nothing(world: World) -> None:
    run = play(world.inventory, "playbooks/tune.yml", os_tuning_nofile=NOFILE)
    assert run.status == 0, run.output
    assert run.changed(NODE) == 0


def test_a_node_that_is_to_pull_no_more_is_left_without_it(world: World) -> None:
    run = play(world.inventory, "playbooks/tune.yml", pull_enabled=False, os_tuning_nofile=NOFILE)
    assert run.status == 0, run.output
    folders = "/etc/temper /etc/systemd/system /usr/local/lib/temper-pull"
    units = "systemctl list-unit-files 'temper-pull*' --no-legend"
    left = on_node(NODE, f"{units} || true; find {folders} ! -type d -path '*pull*' 2>/dev/null || true")
    assert left == ""
