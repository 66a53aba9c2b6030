"""What the hardening tests share: the nodes, Ansible's way into them, an administrator's, the side door."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import waiting
from tests.lab import node as machine
from tests.lab.fleet import BIN, Fleet, Run
from tests.lab.settings import CHECKOUT, Lab, Node

# So soon is undone what a test has made fail, and given up what cannot connect. What is to last has the
# roles' and Ansible's own time, for busy machines.
ROLLBACK_S = 6
CONNECT_S = 4
SOON = {f"{role}_rollback_after_s": ROLLBACK_S for role in ("admin_accounts", "firewall", "ssh_hardening")}
PATIENCE_S = 120  # for what happens within a second or two on an idle machine
RUN_PATIENCE_S = 600  # for what a run comes to within some seconds there
NODES = ("gpu01", "gpu02")  # Debian 12 and 13
# Several files share one hardened lab; where pytest runs files side by side, each of its processes has one.
LAB_NAME = f"doors{os.environ.get('PYTEST_XDIST_WORKER', '').removeprefix('gw')}"
VARIABLES = {"preflight_plan_file": "", "firewall_management_networks": ["10.213.0.0/16"]}
WAYS_IN = ("--skip-tags=os_hardening",)
EXPORTER = {"name": "exporter", "ports": [9100], "sources": ["10.213.0.0/16", "fd00::/8"]}
# Give a node with the package sudo-rs the programs of sudo-rs, as Ubuntu's alternatives do.
SUDO_RS = "; ".join(
    f"dpkg-divert --quiet --rename --divert {path}.first --add {path}; ln -s /usr/lib/cargo/bin/{name} {path}"
    for name, path in (("sudo", "/usr/bin/sudo"), ("visudo", "/usr/sbin/visudo"))
)
# A new connection never gets anywhere with it; one that is shared needs no new one.
NO_NEW_CONNECTION = '-o ProxyCommand="sleep 600"'


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition, as long as a busy machine may take."""
    waiting.wait_until(condition, what, patience_s)


@dataclass(frozen=True)
class Hardened(Fleet):
    """The nodes whose ways in are tested, also that of an administrator."""

    lab: Lab = field(default_factory=lambda: Lab(LAB_NAME))
    size: int = len(NODES)

    @property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.lab.nodes(self.size)}

    def inside(self, node: str, *command: str) -> str:
        """Run a command through the side door; return its output."""
        return machine.run_inside(self.nodes[node], command)

    def side_door(self, command: str) -> dict[str, str]:
        return {node: self.inside(node, "sh", "-c", command) for node in NODES}

    @staticmethod
    def command_line(playbook: str, *arguments: str, **variables: Any) -> list[str]:
        given = json.dumps(VARIABLES | variables)
        return ["ansible-playbook", f"playbooks/{playbook}.yml", "--extra-vars", given, *arguments]

    def harden(self, *arguments: str, **variables: Any) -> Run:
        soon = {"ANSIBLE_TIMEOUT": str(CONNECT_S)} if variables.items() >= SOON.items() else {}
        return self.run(self.command_line("harden", *WAYS_IN, *arguments, **variables), **soon)

    def connect(self) -> None:
        """Have Ansible open the connection that its tasks share."""
        ping = self.run(["ansible", "gpu_nodes", "--module-name", "ping"])
        assert ping.status == 0, ping.output

    def harden_and_kill(self, change: str, **variables: Any) -> None:
        """Apply a change and kill Ansible, with SIGKILL, before it can confirm it."""
        self.connect()
        program, *words = self.command_line(
            "harden", *WAYS_IN, ansible_ssh_extra_args=NO_NEW_CONNECTION, **variables
        )
        controller = subprocess.Popen(
            [str(BIN / program), *words],
            cwd=CHECKOUT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

        def applied() -> bool:
            assert controller.poll() is None, "the run ended by itself"
            return self.pending(change) == set(NODES)

        try:
            wait_until(applied, f"the change of {change} is applied", RUN_PATIENCE_S)
            # What a node has noted to do is not struck off yet: the next run would have that to complete.
            wait_until(lambda: not self.unfinished(), f"the nodes are through with {change}")
        finally:
            os.killpg(controller.pid, signal.SIGKILL)
            controller.wait()

    def pending(self, change: str) -> set[str]:
        states = self.side_door(f"test -d /var/lib/temper/rollback/{change} && echo pending; true")
        return {node for node, state in states.items() if state}

    def unfinished(self) -> set[str]:
        """The nodes on which a role has noted changes that are not carried through yet."""
        listed = self.side_door("grep -ls '\"pending\": \\[$' /var/lib/temper/settings/*.json; true")
        return {node for node, files in listed.items() if files}

    def login(
        self, node: str, port: int = 22, user: str = "ops", key: Path | None = None, command: str = "true"
    ) -> subprocess.CompletedProcess[str]:
        """Log in over a new connection."""
        options = {
            "ControlPath": "none",
            "BatchMode": "yes",
            "ConnectTimeout": str(PATIENCE_S),
            "HostKeyAlias": self.nodes[node].address,
            "IdentitiesOnly": "yes",
            "IdentityFile": str(key or self.lab.ssh_key),
            "Port": str(port),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.lab.known_hosts),
        }
        arguments = [f"-o{name}={value}" for name, value in options.items()]
        ssh = ["ssh", "-F/dev/null", *arguments, f"{user}@{self.nodes[node].address}", command]
        return subprocess.run(ssh, check=False, capture_output=True, text=True)

    def assert_everybody_gets_in(self) -> None:
        for node in NODES:
            assert self.login(node).returncode == 0, node

    def assert_undone(self, reason: str, **variables: Any) -> None:
        """Wait for the undo, which the next run tells of."""
        changes = ("accounts", "ssh", "firewall")
        wait_until(lambda: not any(self.pending(change) for change in changes), "the change is undone")
        self.assert_everybody_gets_in()
        self.assert_told(reason, **variables)

    def assert_told(self, reason: str, **variables: Any) -> None:
        """Run again: that tells of an undo and finds nothing else to do."""
        run = self.harden("--diff", **variables)
        assert run.status == 0, run.output
        assert f"was undone because {reason}" in run.output
        assert changed(run) == dict.fromkeys(NODES, 0), run.output


def changed(run: Run) -> dict[str, int]:
    """The number of changed tasks by node."""
    return {name: counters["changed"] for name, counters in run.recap.items()}
