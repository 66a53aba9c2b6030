"""Ansible's commands as processes, for tests of what it makes of our files."""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.unit.fork_server import ROOT, ForkServer

__all__ = ["ROOT", "ansible"]

#: What most runs import, which takes as long as a short playbook.
MODULES = (
    "ansible.cli.inventory",
    "ansible.cli.playbook",
    "ansible.executor.task_queue_manager",
    "temper.plan.node_action",
    "temper.plan.preflight",
    "temper.plan.ssh_client",
)
PROGRAM = """
import os, sys
sys.argv = {words!r}
sys.path[0] = os.path.dirname(sys.argv[0])
from ansible.cli.{command} import main
main()
"""


@functools.cache
def server(settings: frozenset[tuple[str, str]]) -> ForkServer:
    """A Python that has imported Ansible, which reads its settings then."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return ForkServer(sys.executable, *MODULES, environment={**others, **dict(settings), "LC_ALL": "C.UTF-8"})


def ansible(
    command: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of them to its end, with the checkout's ansible.cfg unless told otherwise."""
    words = [str(Path(sys.executable).with_name(f"ansible-{command}")), *arguments]
    return run(words, env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})})


def run(words: list[str], *, env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[str]:
    """Do what `subprocess.run` would do with a command of Ansible in the checkout."""
    settings = frozenset((name, value) for name, value in env.items() if name.startswith("ANSIBLE_"))
    command = Path(words[0]).name.removeprefix("ansible-")
    return server(settings).run(PROGRAM.format(command=command, words=words), env)
