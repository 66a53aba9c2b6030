"""The typed variables are those of the argument specs, with the defaults that depend on others resolved."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from temper.plan.role_variables import role_variables
from temper.plan.variables import Administrator, FirewallRule, Ulimits, Variables
from tests.unit.tables import specs

SPECS = specs()
ROLES: dict[str, Any] = get_type_hints(Variables)


def variables(**given: Any) -> Variables:
    """The typed variables of an inventory that sets these."""
    checked = role_variables(given, SPECS)
    assert checked["problems"] == []
    return Variables.from_values(checked["values"])


def test_there_is_a_class_for_every_role() -> None:
    assert sorted(ROLES) == sorted(SPECS)


@pytest.mark.parametrize("role", ROLES)
def test_fields_are_the_variables_of_the_argument_spec(role: str) -> None:
    options = SPECS[role]["argument_specs"]["main"]["options"]
    assert sorted(f"{role}_{field.name}" for field in fields(ROLES[role])) == sorted(options)


@pytest.mark.parametrize("role", ROLES)
def test_every_default_converts_to_its_own_value(role: str) -> None:
    options = SPECS[role]["argument_specs"]["main"]["options"]
    defaults = getattr(variables(), role)
    for name, option in options.items():
        default = option.get("default")
        if isinstance(default, (str, int, float, bool, type(None))) and "{{" not in str(default):
            assert getattr(defaults, name.removeprefix(f"{role}_")) == default
        elif isinstance(default, list):
            assert getattr(defaults, name.removeprefix(f"{role}_")) == tuple(default)


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
    )
    assert found.admin_accounts.users == (Administrator("ada", sudo=False, state="absent"),)
    assert found.firewall.rules == (FirewallRule("metrics", ("192.0.2.7",), ("9100",)),)
    assert found.firewall.services == {"node_exporter": ("192.0.2.7",)}
    assert found.container_engines.ulimits == Ulimits(nofile=1024)


def test_values_have_the_types_of_their_fields() -> None:
    found = variables(
        gpu_settings_power_limit_w=300, os_tuning_memlock=65536, profiling_tools_perf_event_paranoid="2"
    )
    assert (found.gpu_settings.power_limit_w, type(found.gpu_settings.power_limit_w)) == (300.0, float)
    assert found.os_tuning.memlock == "65536"
    assert found.profiling_tools.perf_event_paranoid == 2
    assert type(variables().gpu_validation.hours) is float
