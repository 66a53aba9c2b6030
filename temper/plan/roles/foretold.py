"""What a run will do to a node and need for it, in lines that an operator reads before it begins.

Nodes whose lines are the same are shown together, so a line has whatever makes two nodes unlike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from temper.plan import role_variables  # noqa: F401 - makes module_utils/ importable
from temper.plan.contradictions import PROFILE
from temper.plan.node_plan import RolePlan
from temper.plan.roles import firewall as firewall_role
from temper.plan.roles import ssh_hardening
from temper.plan.roles.context import Context
from temper.plan.variables import SshHardening
from temper.plan.wanted import Kind
from validation.model.plans import PLANS

# isort: split

from ansible.module_utils.temper.access.sshd_settings import merge
from ansible.module_utils.temper.access.sshd_strictness import ways_in

#: Networks that hold every address.
WORLD = ("0.0.0.0/0", "::/0")


def foretold(context: Context, roles: Sequence[RolePlan]) -> Iterator[str]:
    """Yield the lines in the order of the run's stages; none where no driver could be planned."""
    if not context.plan.driver:
        return
    packages = {
        role.role: [setting.key for setting in role.settings if setting.kind is Kind.PACKAGE]
        for role in roles
    }
    variables = context.variables
    if profile := ", ".join(name.removeprefix(PROFILE) for name in context.profiles):
        yield f"profile: {profile}"
    if not context.plan.image:
        yield from reboot(context)
    if variables.container_engines.install and packages["container_engines"]:
        yield f"container engines: {listed(variables.container_engines.install)}"
    if packages["profiling_tools"]:
        yield f"profilers: {listed(packages['profiling_tools'])}"
    yield from gpus(context)
    if variables.monitoring.enabled:
        wish = variables.monitoring
        yield f"monitoring: {listed(packages['monitoring'])}, every {wish.interval_s} s"
    if variables.pull.enabled:
        yield f"pull: every {variables.pull.interval_minutes} min from branch {variables.pull.branch}"
    yield from accounts(context)
    yield ssh(context)
    yield from firewall(context)
    if not context.plan.image:
        yield validation(context)


def reboot(context: Context) -> Iterator[str]:
    """Say whether the driver takes a reboot, and whether it is allowed."""
    wish = context.variables.nvidia_stack
    if not context.plan.reboot:
        tools = context.variables.profiling_tools
        # As the role says it once more at its end.
        waits = tools.install and context.node.nvidia.counters_restricted == tools.gpu_counters
        changes = "; who may read the GPUs' counters changes at the next" if waits else ""
        yield f"reboot: none is due{changes}"
        return
    allowed = (
        f"allowed, at most {wish.reboot_timeout_s / 60:.0f} min"
        if wish.reboot_ok
        else "not allowed (nvidia_stack_reboot_ok)"
    )
    yield f"reboot: due, because {context.plan.reboot}; {allowed}"


def gpus(context: Context) -> Iterator[str]:
    """Say how the GPUs are set."""
    wish = context.variables.gpu_settings
    said = {
        "clocks": pairs(wish.clocks),
        "power limit": f"{wish.power_limit_w:g} W" if wish.power_limit_w else "",
        "power limit ": f"{wish.power_limit_percent:g} %" if wish.power_limit_percent else "",
        "compute mode": wish.compute_mode or "",
        "ECC": "" if wish.ecc is None else "on" if wish.ecc else "off",
        "MIG": pairs(wish.mig),
    }
    if words := [f"{what.strip()} {value}" for what, value in said.items() if value]:
        yield f"GPU settings: {', '.join(words)}"


def pairs(value: object) -> str:
    """Return a value, or a dictionary in words."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {pairs(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " + ".join(map(str, value))
    return "" if value is None else str(value)


def accounts(context: Context) -> Iterator[str]:
    """Say which administrators get an account, and whose is revoked."""
    wish = context.variables.admin_accounts
    if wish.state == "absent":
        yield "accounts: those that Temper made are revoked"
        return
    present = [
        user.name + ("" if user.sudo else " (without sudo)") for user in wish.users if user.state == "present"
    ]
    revoked = [user.name for user in wish.users if user.state == "absent"]
    said = [*([listed(present)] if present else []), *([f"revoked: {listed(revoked)}"] if revoked else [])]
    if said:
        yield f"accounts: {'; '.join(said)}"


def ssh(context: Context) -> str:
    """Say who may reach sshd once the node is hardened."""
    wish, own = context.variables.firewall, context.variables.ssh_hardening
    if wish.state == "absent":
        sources = "from every address, because firewall_state is absent"
    elif any(
        one.code == "variable-value" and "firewall_management_networks" in one.text
        for one in context.plan.refusals
    ):
        sources = "from addresses that are not known, because firewall_management_networks is wrong"
    elif set(WORLD) & set(wish.management_networks):
        names = "allows it" if "firewall_management_networks" in context.given else "is not set"
        sources = f"from every address, because firewall_management_networks {names}"
    else:
        peers = ("the fleet's nodes",) if wish.peer_addresses is None else wish.peer_addresses
        others = [*wish.management_networks, *peers, *wish.trusted_interfaces]
        sources = f"from {listed(others) or 'no address'}"
    said = [sources]
    if own.state == "present":
        who = [*own.allow_users, *(f"group {name}" for name in own.allow_groups)]
        ports = [f"port {port}" for port in own.ports]
        said = [logins(own), sources, *([f"as {listed(who)}"] if who else []), *ports]
    return f"SSH afterwards: {', '.join(said)}"


def logins(wish: SshHardening) -> str:
    """Say by what an account logs in, and which Match blocks may let in by more."""
    planned = {
        name: value for name, value in ssh_hardening.who(wish).items() if isinstance(value, bool | str)
    }
    keywords = {name.lower(): lines for name, lines in merge(planned, wish.extra_options).items()}
    ways = {" and ".join("key" if one == "publickey" else one for one in way) for way in ways_in(keywords)}
    said = "key only" if ways == {"key"} else " or ".join(sorted(ways)) or "no method that is on"
    if not wish.accepted_matches:
        return f"by {said}"
    matches = " or ".join(f"Match {criteria}" for criteria in wish.accepted_matches)
    return f"by {said} (perhaps by more within {matches}, as ssh_hardening_accepted_matches allows)"


def firewall(context: Context) -> Iterator[str]:
    """Say what else the firewall opens."""
    wish = context.variables.firewall
    if wish.state == "absent":
        return
    services = firewall_role.services(context)
    opened = [f"{name} from {listed(sources)}" for name, sources in services.items() if sources]
    opened += [
        f"{rule.name} ({' '.join((rule.protocol, *rule.ports))}) from {listed(rule.sources)}"
        for rule in wish.rules
    ]
    yield f"firewall: opens {'; '.join(opened) or 'nothing else'}"


def validation(context: Context) -> str:
    """Say which tests are required, how long they take, and what GPUs draw meanwhile, where that is hours."""
    wish = context.variables.gpu_validation
    plan = PLANS[wish.plan]
    takes = f"{wish.hours:g} h" if wish.hours else plan.summary.partition(":")[0]
    models = context.models["models"]
    watts = [
        gpu.count * models.get(gpu.model, {}).get("tdp_w", {}).get("value", 0) for gpu in context.plan.gpus
    ]
    hours = wish.hours or plan.duration_s / 3600
    if hours and watts and all(watts):
        takes += f", at most {hours * sum(watts) / 1000:.3g} kWh by the GPUs"
    return f"validation: plan {plan.name} ({takes}), requires {listed(wish.required_tests) or 'no test'}"


def listed(names: Iterable[str]) -> str:
    """Return names with commas."""
    return ", ".join(map(str, names))
