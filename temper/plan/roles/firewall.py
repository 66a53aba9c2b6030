"""The nftables input filter, in a table of its own."""

from __future__ import annotations

from temper.plan.jump_hosts import NEW_IN_A_MINUTE, OPEN, with_room
from temper.plan.node_plan import RoleOptions, RolePlan, Stage
from temper.plan.roles import monitoring
from temper.plan.roles.context import Context
from temper.plan.roles.settings import package, parameters
from temper.plan.wanted import FirewallParameters, Kind

ROLE = "firewall"


def role_plan(context: Context) -> RolePlan:
    """Return the rules, and the package that loads them."""
    wish = context.variables.firewall
    options = RoleOptions(
        busy_ok=wish.busy_ok, rollback_after_s=wish.rollback_after_s, absent=wish.state == "absent"
    )
    if options.absent:
        return RolePlan(ROLE, Stage.HARDEN, options=options)
    # What the inventory says itself about how nodes reach each other decides, even if it is an empty list.
    by_name = wish.peer_addresses is None
    wanted: FirewallParameters = {
        "disable_other": wish.disable_other,
        "management_networks": wish.management_networks,
        "ssh_ports": wish.ssh_ports,
        "peers": context.fleet.addresses if by_name else wish.peer_addresses,
        "unknown_peers": context.fleet.unknown if by_name else (),
        "trusted_interfaces": wish.trusted_interfaces,
        "unchecked_tunnels": wish.unchecked_tunnels,
        "services": services(context),
        "rules": wish.rules,
        # Whoever comes from one address on the way to many nodes.
        "ssh_new_per_minute": with_room(wish.ssh_new_per_minute, context.jump, NEW_IN_A_MINUTE),
        "ssh_connections": with_room(wish.ssh_connections, context.jump, OPEN),
        "new_per_second": wish.new_per_second,
        "connections": wish.connections,
        "log_per_minute": wish.log_per_minute,
    }
    why = "What was not asked for cannot be reached"
    rules = parameters(Kind.FIREWALL, why, wanted, way_in=True)
    nftables = package("nftables", "It loads the firewall's rules")
    return RolePlan(ROLE, Stage.HARDEN, (nftables, *rules), options=options)


def services(context: Context) -> dict[str, tuple[str, ...]]:
    """Return what the firewall opens by name, for the scrapers of metrics, too, and the sources of each."""
    found = dict(context.variables.firewall.services)
    for service, scrapers in monitoring.scraped(context).items():
        found[service] = (*found.get(service, ()), *scrapers)
    return found
