"""Examples: preflight accepts the static inventories, those of plugins choose machines with GPUs."""

import ipaddress
import re
from pathlib import Path
from typing import Any

import yaml

from temper.plan.inventory import NODES
from temper.plan.role_variables import role_variables
from tests.unit.each import each
from tests.unit.planning_nodes import H100, gpus, node
from tests.unit.planning_roles.plans import whole_plan
from tests.unit.tables import ROOT, specs
from tests.unit.test_profiles import DEBIAN, inventory, own, variables

FOLDER = ROOT / "examples/inventories"
VAULT = FOLDER / "vault"
#: The password of the example's vault, which its first lines tell.
WORD = b"example"
STATIC = [FOLDER / name for name in ("one_node.yml", "slurm.yml", "jump_host.yml")] + [VAULT / "hosts.yml"]
RESERVED = [
    ipaddress.ip_network(network) for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]
CONSTRUCTED = {"compose", "groups", "keyed_groups", "plugin", "strict"}
#: How the name of a plugin's file has to end, and its options that examples may use, by its documentation:
#: amazon.aws 11.4.0, google.cloud 1.15.0, azure.azcollection 3.21.0, netbox.netbox 3.23.0.
PLUGINS = {
    "amazon.aws.aws_ec2": (
        "aws_ec2.yml",
        CONSTRUCTED | {"exclude_filters", "filters", "hostnames", "regions"},
    ),
    "google.cloud.gcp_compute": (
        "gcp_compute.yml",
        CONSTRUCTED | {"auth_kind", "filters", "folders", "hostnames", "projects", "zones"},
    ),
    "azure.azcollection.azure_rm": (
        "azure_rm.yml",
        {"auth_source", "conditional_groups", "exclude_host_filters", "hostnames", "hostvar_expressions"}
        | {"include_vm_resource_groups", "include_vmss_resource_groups", "keyed_groups", "plain_host_names"}
        | {"plugin"},
    ),
    "netbox.netbox.nb_inventory": (
        "netbox.yml",
        CONSTRUCTED
        | {"api_endpoint", "config_context", "device_query_filters", "group_by", "query_filters", "token"}
        | {"validate_certs", "vm_query_filters"},
    ),
}
ADDRESS = "192.0.2.7"
TWO_INTERFACES = [{"networkIP": ADDRESS}, {"networkIP": "198.51.100.7"}]
#: A machine as its plugin tells of it, and the groups that it is to be in.
MACHINES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("aws_ec2.yml", {"instance_type": "p5.48xlarge", "private_ip_address": ADDRESS}, {NODES, "h100"}),
    ("aws_ec2.yml", {"instance_type": "p5en.48xlarge", "private_ip_address": ADDRESS}, {NODES}),
    ("aws_ec2.yml", {"instance_type": "g6e.xlarge", "private_ip_address": ADDRESS}, {NODES}),
    ("aws_ec2.yml", {"instance_type": "g4ad.xlarge", "private_ip_address": ADDRESS}, set()),
    ("aws_ec2.yml", {"instance_type": "m7i.large", "private_ip_address": ADDRESS}, set()),
    (
        "gcp_compute.yml",
        {
            "machineType": "a3-highgpu-8g",
            "guestAccelerators": [{"acceleratorCount": 8}],
            "networkInterfaces": TWO_INTERFACES,
        },
        {NODES, "h100"},
    ),
    ("gcp_compute.yml", {"machineType": "n2-standard-8", "networkInterfaces": TWO_INTERFACES}, set()),
    (
        "azure_rm.yml",
        {"virtual_machine_size": "Standard_ND96isr_H100_v5", "private_ipv4_addresses": [ADDRESS]},
        {NODES, "cloud_azure_ndv5"},
    ),
    (
        "azure_rm.yml",
        {"virtual_machine_size": "Standard_NC24ads_A100_v4", "private_ipv4_addresses": [ADDRESS]},
        {NODES},
    ),
    (
        "azure_rm.yml",
        {"virtual_machine_size": "Standard_ND96isr_MI300X_v5", "private_ipv4_addresses": [ADDRESS]},
        set(),
    ),
    ("azure_rm.yml", {"virtual_machine_size": "Standard_D8s_v5", "private_ipv4_addresses": [ADDRESS]}, set()),
    # NetBox's plugin gives the primary address by itself, and its filters have chosen the devices.
    ("netbox.yml", {"ansible_host": ADDRESS}, {NODES}),
]


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_each_example_is_tested_and_listed() -> None:
    found = {*FOLDER.glob("*.yml"), VAULT / "hosts.yml"}
    assert found == {*STATIC, *(FOLDER / end for end, _ in PLUGINS.values())}
    listed = re.findall(r"\]\((inventories/[^)]+)\)", (FOLDER.parent / "README.md").read_text())
    assert {FOLDER.parent / one for one in listed} == {
        VAULT / "hosts.yml" if path.parent == VAULT else path for path in found
    }


@each(*STATIC)
def test_preflight_accepts_the_nodes_of_a_static_example(path: Path) -> None:
    hosts, _ = inventory(path, WORD)
    nodes = [host.name for host in hosts.groups[NODES].get_hosts()]
    assert nodes
    for name in nodes:
        told = variables(name, path, WORD)
        checked = role_variables(told, specs())
        assert (checked["problems"], checked["warnings"]) == ([], []), name
        assert told["ansible_user"]
        if "ansible_host" in told:
            address = ipaddress.ip_address(told["ansible_host"])
            assert any(address in network for network in RESERVED), "an address of somebody"
    facts = node(pci=gpus(*[H100] * 8), apt_sources=[DEBIAN])
    assert whole_plan(facts, **own(nodes[0], path, WORD)).problems == ()


def test_the_secret_is_encrypted_and_opens_with_the_word_that_the_example_tells() -> None:
    assert (VAULT / "group_vars/gpu_nodes/vault.yml").read_text().startswith("$ANSIBLE_VAULT;1.1;AES256\n")
    assert f'is "{WORD.decode()}"' in (VAULT / "hosts.yml").read_text()
    told = variables("node01", VAULT / "hosts.yml", WORD)
    assert told["ansible_become_password"] == "{{ vault_become_password }}"
    assert told["vault_become_password"]


@each(*PLUGINS)
def test_a_plugins_file_has_its_name_and_options(plugin: str) -> None:
    end, options = PLUGINS[plugin]
    found = load(FOLDER / end)
    assert found["plugin"] == plugin
    assert found.keys() - options == set()


@each(*MACHINES)
def test_a_plugins_file_chooses_the_machines_with_gpus(
    name: str, machine: dict[str, Any], groups: set[str], tmp_path: Path
) -> None:
    """Ansible's own constructed plugin evaluates the expressions: the others do it with the same code."""
    found = load(FOLDER / name)
    constructed = {
        "plugin": "constructed",
        "strict": True,
        "compose": found.get("compose", found.get("hostvar_expressions", {})),
        "groups": found.get("groups", found.get("conditional_groups", {})),
    }
    (tmp_path / "a_hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"machine": machine}}}))
    (tmp_path / "b_constructed.yml").write_text(yaml.safe_dump(constructed))
    told = variables("machine", tmp_path)
    assert set(told["group_names"]) - {"ungrouped"} == groups
    assert told["ansible_host"] == ADDRESS
