"""Fixtures of the scenario's tests.

`host` is testinfra's: a node as root, over SSH. What a user meets is looked at through `login`.

All commands of a run share one SSH connection a node, as Ansible's do: testinfra by itself makes one for
each, 74 a node, and the firewall's limits are there to slow that down.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host
from testinfra.utils.ansible_runner import AnsibleRunner

CONNECTIONS = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()


def pytest_configure(config: pytest.Config) -> None:
    """Have ssh share connections, made in this run: limits and groups are those of a login's time."""
    config.stash[CONNECTIONS] = tempfile.TemporaryDirectory(prefix="ssh")
    os.environ["ANSIBLE_SSH_EXTRA_ARGS"] = f"-o ControlPath={config.stash[CONNECTIONS].name}/%C"


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the connections, which would go on for minutes."""
    for connection in Path(config.stash[CONNECTIONS].name).iterdir():
        subprocess.run(["ssh", "-O", "exit", "-S", connection, "node"], check=True, capture_output=True)
    config.stash[CONNECTIONS].cleanup()


@pytest.fixture
def login(host: Host, request: pytest.FixtureRequest) -> Host:
    """The same node as an administrator's own SSH login finds it, without sudo."""
    return testinfra.get_host(
        f"ansible://{host.backend.host}", ansible_inventory=request.config.getoption("ansible_inventory")
    )


@pytest.fixture
def addresses(request: pytest.FixtureRequest) -> dict[str, str]:
    """Every node's address, by its name."""
    inventory = AnsibleRunner.get_runner(request.config.getoption("ansible_inventory"))
    return {name: inventory.get_variables(name)["ansible_host"] for name in inventory.get_hosts("gpu_nodes")}
