"""Fixtures of the scenario's tests.

`host` is testinfra's: a node as root, over SSH. What a user meets is looked at through `login`.
"""

import pytest
import testinfra
from testinfra.host import Host
from testinfra.utils.ansible_runner import AnsibleRunner


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
