"""A node that applies its fleet's signed configuration by itself: program, keyring, timer."""

from __future__ import annotations

import json

from temper.plan.node_plan import RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, package, render, unit
from temper.plan.variables import Pull, PullSigner

ROLE = "pull"
#: Not those of gpu_settings: what two roles want, neither may take back.
PROGRAMS = "/usr/local/lib/temper-pull"
BESIDE = ("files.py", "lease.py", "process.py", "records.py")
CONFIGURATION = "/etc/temper/pull.json"
KEYRING = "/etc/temper/pull_allowed_signers"
KNOWN_HOSTS = "/etc/temper/pull_known_hosts"
SERVICE = "/etc/systemd/system/temper-pull.service"
TIMER = "/etc/systemd/system/temper-pull.timer"
PACKAGES = {"apt": ("git", "openssh-client"), "dnf": ("git", "openssh-clients")}
MINUTES_OF_AN_HOUR = 60
MINUTES_OF_A_DAY = 1440


def role_plan(context: Context) -> RolePlan:
    """Program, configuration, keyring and timer, where the node is to pull."""
    wish = context.variables.pull
    options = RoleOptions(busy_ok=wish.busy_ok, absent=not wish.enabled)
    if not wish.enabled:
        return RolePlan(ROLE, Stage.TUNE, options=options)
    why = "The node keeps to what the fleet's signed configuration says"
    trusted = "Only who is listed here can change what the node takes for its configuration"
    programs = [name for name in context.programs if name.startswith("pull/") or name in BESIDE]
    timer = render(
        ROLE,
        "temper-pull.timer",
        calendar=calendar(wish.interval_minutes),
        interval_minutes=wish.interval_minutes,
    )
    return RolePlan(
        ROLE,
        Stage.TUNE,
        (
            *(package(name, why) for name in PACKAGES.get(context.plan.package_manager or "", ())),
            *(file(f"{PROGRAMS}/{name}", context.programs[name], why) for name in sorted(programs)),
            # Of an image many machines are made: each is the node of its own host name.
            file(CONFIGURATION, configuration("" if context.plan.image else context.name, wish), why),
            file(KEYRING, "".join(["# Managed by Temper.\n", *map(keyring_line, wish.signers)]), trusted),
            file(KNOWN_HOSTS, "".join(f"{line}\n" for line in wish.known_hosts), trusted),
            file(SERVICE, render(ROLE, "temper-pull.service", python=context.python, programs=PROGRAMS), why),
            file(TIMER, timer, why),
            unit("temper-pull.timer", why, restart_on=[TIMER]),
        ),
        options=options,
    )


def configuration(node: str, wish: Pull) -> str:
    """Return what the program reads (pull/configuration.py)."""
    values = {
        "node": node,
        "url": wish.url,
        "branch": wish.branch,
        "tags": wish.tags,
        "inventory": wish.inventory,
        "repair": sorted(wish.repair),
        "python": wish.python,
        "interval_s": wish.interval_minutes * 60,
        "keyring": KEYRING,
        "known_hosts": KNOWN_HOSTS,
        "ca_file": wish.ca_file,
        "ssh_key": wish.ssh_key,
        "report_to": wish.report_to,
        "report_ca_file": wish.report_ca_file,
        "report_ssh_key": wish.report_ssh_key,
        "report_token_file": wish.report_token_file,
    }
    return json.dumps(values, indent=1) + "\n"


def keyring_line(signer: PullSigner) -> str:
    """Return a signer as pull/keyring.py reads it: in ssh-keygen's form, without the key's comment."""
    options = ['namespaces="git"']
    for name, day in (("valid-after", signer.valid_from), ("valid-before", signer.valid_until)):
        options += [f'{name}="{day.replace("-", "")}Z"'] if day else []
    return f"{signer.name} {','.join(options)} {' '.join(signer.key.split()[:2])}\n"


def calendar(minutes: int) -> str:
    """Return the beginnings of the intervals, for systemd. Those of the argument spec divide a day."""
    if minutes < MINUTES_OF_AN_HOUR:
        return f"*-*-* *:0/{minutes}:00"
    # systemd takes no repetition that reaches beyond the day.
    return "daily" if minutes == MINUTES_OF_A_DAY else f"*-*-* 0/{minutes // MINUTES_OF_AN_HOUR}:00:00"
