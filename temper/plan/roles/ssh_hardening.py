"""sshd: who may log in and how, and with which algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from temper.plan.jump_hosts import JumpHost, named, planned_forwarding, with_room
from temper.plan.node_plan import PlannedSetting, RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import parameters
from temper.plan.variables import SshHardening
from temper.plan.wanted import KeywordValue, KeywordWanted, Kind, SshdParameters

Keywords = dict[str, KeywordValue]

ROLE = "ssh_hardening"
# The controls of data/os_controls/ssh.yml, by what fulfils or relaxes them.
CONTROLS = {
    "MaxStartups": "sshd-max-startups",
    "AllowUsers": "sshd-access",
    "AllowGroups": "sshd-access",
    "banner": "sshd-banner",
}
WHO, KEEP, MAY = (
    "It says who may log in, and how",
    "It bounds logins and connections that do not come to an end",
    "A login gets a shell, and no more than was asked for",
)
KNOWN = "Newer releases and some builds have it, for less to attack"


def role_plan(context: Context) -> RolePlan:
    """Return the drop-in of sshd."""
    wish = context.variables.ssh_hardening
    options = RoleOptions(rollback_after_s=wish.rollback_after_s, absent=wish.state == "absent")
    if options.absent:
        return RolePlan(ROLE, Stage.HARDEN, options=options)
    settings = [
        *keywords(context, WHO, who(wish)),
        *keywords(context, KEEP, bounds(wish, context.jump)),
        *keywords(context, MAY, rights(wish)),
        *forwarding(context),
        *keywords(context, KNOWN, where_known(wish), if_known=True),
    ]
    if wish.forwarding_groups:
        block = f"Group {','.join(wish.forwarding_groups)}"
        local = {"AllowTcpForwarding": "local", "AllowStreamLocalForwarding": "local"}
        settings += keywords(context, "The operator lets these groups forward", local, block=block)
    algorithms = {"KexAlgorithms": wish.kex_algorithms, "Ciphers": wish.ciphers, "MACs": wish.macs}
    settings += parameters(Kind.SSHD_ALGORITHM, "Weak algorithms are not offered", algorithms, way_in=True)
    rest: SshdParameters = {
        "host_key_types": wish.host_key_types,
        "minimum_modulus_bits": 3072,
        "user_ca_keys": wish.user_ca_keys,
        "revoked_keys": wish.revoked_keys,
        "overrides": wish.extra_options,
        "accepted_matches": wish.accepted_matches,
        "forwarding_decided": "ssh_hardening_tcp_forwarding" in context.given,
    }
    strong = "Strong host keys and groups alone, and the operator's own settings"
    settings += parameters(Kind.SSHD_PARAMETER, strong, rest, way_in=True)
    banner = CONTROLS["banner"]
    settings.append(
        PlannedSetting(
            Kind.SSHD_PARAMETER,
            "banner",
            "The text shown before a login",
            controls=(banner,),
            waiver=context.waiver(banner),
            way_in=True,
            wanted=wish.banner,
        )
    )
    return RolePlan(ROLE, Stage.HARDEN, tuple(settings), options=options)


def who(wish: SshHardening) -> Keywords:
    """Return who may log in, and how."""
    return {
        "Port": wish.ports,
        "AllowUsers": wish.allow_users,
        "AllowGroups": wish.allow_groups,
        "PermitRootLogin": False,
        "PubkeyAuthentication": True,
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": False,
        "KbdInteractiveAuthentication": False,
        "PermitEmptyPasswords": False,
        "HostbasedAuthentication": False,
        "IgnoreRhosts": True,
        "IgnoreUserKnownHosts": True,
        "UsePAM": True,
        "StrictModes": True,
    }


def bounds(wish: SshHardening, jump: JumpHost | None = None) -> Keywords:
    """Return how many logins and connections, and for how long."""
    return {
        # Enough for an agent with some keys and for Ansible's parallel sessions, too few to guess with.
        "MaxAuthTries": wish.max_auth_tries,
        "MaxSessions": 10,
        # More than the firewall lets one source open at once: to close connections would fail hosts of a
        # large run. CIS asks for less, which is waived.
        "MaxStartups": f"{with_room(30, jump)}:30:{with_room(100, jump)}",
        "LoginGraceTime": 30,
        # Dead connections go after 10 minutes; unlike TCP's own, these probes cannot be forged.
        "ClientAliveInterval": 300,
        "ClientAliveCountMax": 2,
        "TCPKeepAlive": False,
    }


def rights(wish: SshHardening) -> Keywords:
    """Return what a login may do besides a shell, and what is logged of it."""
    return {
        "AllowStreamLocalForwarding": wish.tcp_forwarding,
        "AllowAgentForwarding": False,
        "X11Forwarding": False,
        "PermitTunnel": False,
        "GatewayPorts": False,
        "PermitUserEnvironment": False,
        "Compression": False,
        "UseDNS": False,
        "LogLevel": "VERBOSE",
        "SyslogFacility": "AUTH",
    }


def forwarding(context: Context) -> Iterator[PlannedSetting]:
    """Return whether sshd forwards TCP connections.

    On a jump host it does so for all: others go through it, too.
    """
    wanted = context.variables.ssh_hardening.tcp_forwarding
    planned = planned_forwarding(wanted, context.jump)
    why = f"It is the way to {named(context.jump.behind)}" if context.jump and planned != wanted else MAY
    return keywords(context, why, {"AllowTcpForwarding": planned})


def where_known(wish: SshHardening) -> Keywords:
    """Keywords of newer releases, of Debian's patches and of build options."""
    # To exempt everybody would switch the penalties off.
    exempt = sorted(network for network in wish.penalty_exempt_networks if not network.endswith("/0"))
    return {
        "RequiredRSASize": 2048,
        "DebianBanner": False,
        "GSSAPIAuthentication": False,
        "KerberosAuthentication": False,
        "PerSourcePenalties": True,
        "PerSourcePenaltyExemptList": ",".join(exempt) or "none",
    }


def keywords(
    context: Context,
    why: str,
    values: Mapping[str, KeywordValue],
    *,
    if_known: bool = False,
    block: str | None = None,
) -> Iterator[PlannedSetting]:
    """Yield a setting for each keyword but those with an empty list.

    One within a block has the block before its name.
    """
    for keyword, value in values.items():
        if value == ():
            continue
        control = None if block else CONTROLS.get(keyword)
        yield PlannedSetting(
            Kind.SSHD,
            f"{block}/{keyword}" if block else keyword,
            why,
            controls=(control,) if control else (),
            waiver=context.waiver(control) if control else None,
            way_in=True,
            wanted=KeywordWanted(value, if_known, block),
        )
