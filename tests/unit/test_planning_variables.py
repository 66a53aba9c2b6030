"""An inventory's values as the typed variables that are made from the argument specs."""

from typing import Any

from temper.plan.role_variables import argument_specs, role_variables, typed_variables
from temper.plan.variables import (
    AdminAccountsUser,
    ContainerEnginesToolkit,
    ContainerEnginesUlimits,
    FirewallRule,
    Variables,
)


def variables(**given: Any) -> Variables:
    """The typed variables of an inventory that sets these."""
    checked = role_variables(given, argument_specs())
    assert checked["problems"] == []
    return typed_variables(checked["values"])


def test_ports_of_ssh_are_the_firewalls_where_it_names_none() -> None:
    assert variables(ssh_hardening_ports=[22, 2222]).firewall.ssh_ports == (22, 2222)
    assert variables().firewall.ssh_ports == ()


def test_management_networks_are_exempt_from_penalties_where_no_others_are_named() -> None:
    networks = ["192.0.2.0/24"]
    exempt = variables(firewall_management_networks=networks).ssh_hardening.penalty_exempt_networks
    assert exempt == ("192.0.2.0/24",)
    assert variables().ssh_hardening.penalty_exempt_networks == ("0.0.0.0/0", "::/0")


def test_an_empty_list_is_an_answer() -> None:
    found = variables(
        firewall_ssh_ports=[],
        ssh_hardening_ports=[2222],
        ssh_hardening_penalty_exempt_networks=[],
        firewall_peer_addresses=[],
    )
    assert found.firewall.ssh_ports == ()
    assert found.ssh_hardening.penalty_exempt_networks == ()
    assert found.firewall.peer_addresses == ()
    assert variables().firewall.peer_addresses is None


def test_nested_options_become_objects_with_their_defaults() -> None:
    rule = {"name": "metrics", "ports": ["9100"], "sources": ["192.0.2.7"]}
    found = variables(
        admin_accounts_users=[{"name": "ada", "sudo": "no", "state": "absent"}],
        firewall_rules=[rule],
        firewall_services={"node_exporter": ["192.0.2.7"]},
        container_engines_ulimits={"nofile": 1024},
        container_engines_toolkit={"no_cgroups": True},
    )
    assert found.admin_accounts.users == (AdminAccountsUser("ada", sudo=False, state="absent"),)
    assert found.firewall.rules == (FirewallRule("metrics", ("192.0.2.7",), ports=("9100",)),)
    assert found.firewall.services == {"node_exporter": ["192.0.2.7"]}
    assert found.container_engines.ulimits == ContainerEnginesUlimits(nofile=1024)
    assert found.container_engines.toolkit == ContainerEnginesToolkit(no_cgroups=True)


def test_values_have_the_types_of_their_fields() -> None:
    found = variables(
        gpu_settings_power_limit_w=300, os_tuning_memlock=65536, profiling_tools_perf_event_paranoid="2"
    )
    assert (found.gpu_settings.power_limit_w, type(found.gpu_settings.power_limit_w)) == (300.0, float)
    assert found.os_tuning.memlock == "65536"
    assert found.profiling_tools.perf_event_paranoid == 2
    assert type(variables().gpu_validation.hours) is float
