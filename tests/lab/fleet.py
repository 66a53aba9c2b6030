"""Playbooks against a lab, for tests: run them, read what they say, look at a node without them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab import node as machine
from tests.lab.process import run
from tests.lab.settings import CHECKOUT, Lab, Node

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Run:
    """What a run of ansible-playbook came to."""

    status: int
    output: str

    @property
    def said(self) -> str:
        """Its output without line breaks and quotes: Ansible breaks long sentences as YAML does."""
        return " ".join(self.output.replace("''", "'").split())

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """Ansible's closing table: node -> counter -> number."""
        rows = self.output[self.output.rindex("PLAY RECAP") :].splitlines()[1:]
        table = [row.split(":", 1) for row in rows if " changed=" in row]
        return {
            name.strip(): {key: int(value) for key, value in (pair.split("=") for pair in counters.split())}
            for name, counters in table
        }

    def changed(self, node: Node) -> int:
        """The number of tasks that changed something on a node."""
        return self.recap[node.name]["changed"]


@dataclass(frozen=True)
class Fleet:
    """The first `size` nodes of a lab. `timeout_s` is for what hangs: a busy machine is ten times slower."""

    lab: Lab
    size: int = 2
    timeout_s: float = 3600

    @property
    def environment(self) -> dict[str, str]:
        """What Ansible and the lab's commands need to know."""
        return {
            **os.environ,
            "LAB_NAME": self.lab.name,
            "LAB_NODES": str(self.size),
            "LAB_TESTING": "1" if self.lab.testing else "",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "default",
            "LC_ALL": "C.UTF-8",
        }

    def command(self, *arguments: str) -> None:
        """Run one of the lab's own commands; the nodes' machines must not be children of this process."""
        subprocess.run(
            [sys.executable, "-m", "tests.lab", *arguments], cwd=CHECKOUT, env=self.environment, check=True
        )

    @contextlib.contextmanager
    def booted(self) -> Iterator[None]:
        """New nodes, of which nothing is left afterwards."""
        self.command("down")
        try:
            self.command("up")
            yield
        finally:
            self.command("down")

    def playbook(self, name: str, node: Node | None = None, **variables: object) -> Run:
        """Run a playbook on one node, or on all, with extra variables."""
        limit = ["--limit", node.name] if node else []
        command = ["ansible-playbook", f"playbooks/{name}.yml", *limit]
        return self.run([*command, "--extra-vars", json.dumps(variables)])

    def settle(self, node: Node, plan: Mapping[str, object]) -> Run:
        """Have one role's part of a plan carried out on a node, by the action that the roles use."""
        command = ["ansible", node.name, "--become", "--module-name", "settle"]
        role = str(plan["role"])
        variables = {"preflight_plan": {"roles": {role: json.dumps(plan)}}}
        return self.run([*command, "--args", f"role={role}", "--extra-vars", json.dumps(variables)])

    def run(self, command: list[str], **environment: str) -> Run:
        """Run one of Ansible's commands."""
        result = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=CHECKOUT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
        )
        return Run(result.returncode, result.stdout + result.stderr)


def new_key(folder: Path, name: str = "key") -> Path:
    """Make a pair of SSH keys without a passphrase; return the private one's path."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    return folder / name


def on_node(node: Node, script: str, timeout_s: float = 600) -> str:
    """Run a shell script on a node through the side door; apt in it asks no questions."""
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "sh", "-euc", script]
    return machine.run_inside(node, command, timeout_s)


def installed(node: Node) -> Mapping[str, str]:
    """The version of each installed package."""
    listing = on_node(node, "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'")
    fields = (line.split() for line in listing.splitlines())
    return {name: version for status, name, version in fields if status == "installed"}


def stack_packages(node: Node) -> dict[str, str]:
    """The versions of the installed packages that belong to the stack."""
    words = ("nvidia", "cuda", "cudnn", "nccl")
    return {name: version for name, version in installed(node).items() if any(word in name for word in words)}


def loaded_driver(node: Node) -> str:
    """The version of the loaded driver; empty where none is."""
    return on_node(node, "cat /sys/module/nvidia/version 2>/dev/null || true").strip()


def assert_refused(run: Run, *sentences: str) -> None:
    """The run ended with an error that says all of this."""
    assert run.status != 0, run.output
    for sentence in sentences:
        assert sentence in run.said, run.output
