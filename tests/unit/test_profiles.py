"""Profiles: groups of the example inventory, read as Ansible reads them and planned with the real tables."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultSecret
from ansible.vars.manager import VariableManager

from temper.plan.contradictions import PROFILE
from temper.plan.node_plan import NodePlan
from temper.plan.role_variables import role_variables
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_nodes import GPU, H100, L4, assert_says, gpus, node
from tests.unit.planning_roles.plans import contents, wanted, whole_plan
from tests.unit.tables import ROOT, specs

EXAMPLE = ROOT / "inventory/example"
PROFILES = sorted(path.stem for path in (EXAMPLE / "group_vars").glob(f"{PROFILE}*.yml"))
L40S = "26b9"
DEBIAN = {
    "uri": "http://mirror.example/debian/",
    "suite": "bookworm",
    "components": ["main"],
    "signed_by": "",
}
# A node of the example in each profile, and its GPUs.
NODES = {
    "profile_development": ("node02", [H100] * 8),
    "profile_inference": ("node11", [L4]),
    "profile_rendering": ("node21", [L40S]),
    "profile_training": ("node01", [H100] * 8),
}


@cache
def inventory(path: Path = EXAMPLE, vault_password: bytes = b"") -> tuple[InventoryManager, VariableManager]:
    """An inventory as ansible-playbook reads it."""
    loader = DataLoader()
    if vault_password:
        loader.set_vault_secrets([("default", VaultSecret(vault_password))])
    found = InventoryManager(loader=loader, sources=[str(path)])
    return found, VariableManager(loader=loader, inventory=found)


def variables(name: str, path: Path = EXAMPLE, vault_password: bytes = b"") -> dict[str, Any]:
    """What Ansible gives a node: its variables, and the names of its groups."""
    hosts, manager = inventory(path, vault_password)
    found: dict[str, Any] = manager.get_vars(host=hosts.get_host(name))
    return found


def own(name: str, path: Path = EXAMPLE, vault_password: bytes = b"") -> dict[str, Any]:
    """A node's variables of roles."""
    prefixes = tuple(f"{role}_" for role in specs())
    found = variables(name, path, vault_password)
    return {key: value for key, value in found.items() if key.startswith(prefixes)}


def plan(profile: str, **changes: Any) -> NodePlan:
    """The plan of the node that the example has in this profile."""
    name, devices = NODES[profile]
    facts = node(**{"pci": gpus(*devices), "apt_sources": [DEBIAN], **changes})
    assert {device["class_id"] for device in facts["pci"]} == {GPU}
    return whole_plan(facts, **own(name))


def test_a_clouds_machine_gets_what_its_image_says() -> None:
    facts = node(pci=gpus(*[H100] * 8), apt_sources=[DEBIAN])
    (role,) = (one for one in whole_plan(facts, **own("node31")).roles if one.role == "compute_environment")
    lines = (contents(role)["/etc/nccl.conf"] or "").splitlines()
    image = {"NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml", "NCCL_IB_PCI_RELAXED_ORDERING=1"}
    assert image <= set(lines), lines


def test_every_profile_has_a_node_in_the_example_and_a_test_here() -> None:
    hosts, _ = inventory()
    assert sorted(NODES) == PROFILES == sorted(name for name in hosts.groups if name.startswith(PROFILE))
    for profile, (name, _) in NODES.items():
        assert name in {host.name for host in hosts.groups[profile].get_hosts()}


@each(*[host.name for host in inventory()[0].get_hosts()])
def test_the_example_is_an_inventory_that_preflight_accepts(name: str) -> None:
    assert role_variables(variables(name), specs())["problems"] == []


@each(*NODES)
def test_a_node_of_each_profile_gets_a_plan(profile: str) -> None:
    assert plan(profile).problems == ()


def test_a_development_node_has_profilers_threads_for_shells_and_engines() -> None:
    found = plan("profile_development")
    packages = wanted(found.role("profiling_tools"), Kind.PACKAGE)
    assert {"linux-perf", "atop"} <= packages.keys()
    assert "/etc/profile.d/temper-compute.sh" in contents(found.role("compute_environment"))
    # Podman of Debian 12 cannot give GPUs to containers.
    engines = wanted(found.role("container_engines"), Kind.PACKAGE)
    assert "docker.io" in engines
    assert "podman" not in engines
    assert wanted(found.role("gpu_settings"), Kind.GPU)["clocks"] == "default"


def test_a_training_node_has_steady_clocks_and_threads_for_slurm() -> None:
    found = plan("profile_training")
    assert wanted(found.role("gpu_settings"), Kind.GPU)["clocks"] == "max"
    assert "/usr/local/lib/temper/slurm-task-prolog" in contents(found.role("compute_environment"))
    assert not wanted(found.role("profiling_tools"), Kind.PACKAGE)


def test_an_inference_node_has_docker_and_must_start_a_container_with_its_gpus() -> None:
    found = plan("profile_inference")
    engines = found.role("container_engines")
    assert wanted(engines, Kind.PACKAGE).keys() == {"docker.io"}
    assert wanted(engines, Kind.CONTAINER_ENGINE)["shm_size"] == "8G"
    assert found.expectation
    assert "gpu_container" in found.expectation.required_tests
    assert found.role("monitoring").settings


def test_a_rendering_node_has_graphics_libraries_of_the_same_driver() -> None:
    found = plan("profile_rendering")
    assert {"nvidia-driver-libs", "nvidia-vulkan-icd", "libgles-nvidia2"} <= found.packages.keys()
    assert "nvidia-cuda-toolkit" not in found.packages


def test_what_the_group_of_a_nodes_kind_says_wins_over_its_profile() -> None:
    assert "gpu_all_reduce" in variables("node01")["gpu_validation_required_tests"]


@each(*NODES)
def test_what_a_profile_requires_is_required_of_its_node(profile: str) -> None:
    """The group of the node's kind may hide it."""
    own = yaml.safe_load((EXAMPLE / "group_vars" / f"{profile}.yml").read_text(encoding="utf-8"))
    required = "gpu_validation_required_tests"
    assert set(own[required]) <= set(variables(NODES[profile][0])[required])


def test_the_profile_wins_over_what_holds_for_all_nodes() -> None:
    assert "gpu_container" in variables("node11")["gpu_validation_required_tests"]


def test_a_node_in_two_profiles_is_refused_with_both_names(tmp_path: Path) -> None:
    hosts = "gpu_nodes: {hosts: {node01: }}\nprofile_training: {hosts: {node01: }}\n"
    (tmp_path / "hosts.yml").write_text(f"{hosts}profile_inference: {{hosts: {{node01: }}}}\n")
    (problem,) = role_variables(variables("node01", tmp_path), specs())["problems"]
    assert_says(problem, "node01", "profile_inference and profile_training", "take it out")


def test_a_profile_that_is_a_child_of_another_counts_as_two(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("profile_a: {children: {profile_b: {hosts: {node01: }}}}\n")
    (problem,) = role_variables(variables("node01", tmp_path), specs())["problems"]
    assert_says(problem, "profile_a and profile_b")
