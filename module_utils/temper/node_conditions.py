"""Conditions of a node that are no setting: a reboot that is due, updates that wait, who may become root."""

from __future__ import annotations

import grp
import os
import pwd
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.process import CommandError, run, which

REBOOT_REQUIRED = Path("/run/reboot-required")
BOOT = Path("/boot")
APT_LISTS = Path("/var/lib/apt/lists")
#: What apt knows of updates is what its lists say: older ones prove nothing.
LISTS_MAX_AGE_DAYS = 7
# "Inst openssl [3.0.15-1] (3.0.17-1 Debian-Security:12/stable-security [amd64])"
SECURITY_UPDATE = re.compile(r"^Inst (\S+) .*\(\S+ [^)]*-security\b", re.IGNORECASE)
ADMINISTRATORS = ("sudo", "wheel", "admin")


def condition(key: str, state: str, reason: str = "", repair: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """In the form of `settings.observe`, with the repairs by their names (temper/compliance/repairs.py)."""
    found = {"key": key, "controls": [], "state": state, "reason": reason}
    return {**found, "changes": [], "repair": list(repair)}


def conditions(
    administrators: Sequence[str] | None, pending: Sequence[str] = (), servers: Callable[[], list[str]] = list
) -> list[dict[str, Any]]:
    """Return all of them. `administrators` may become root; None where nobody says who may.

    `pending` are sentences about what else waits for a reboot; `servers` (sshd.other_servers) returns some
    about the sshds that are not hardened.
    """
    return [
        reboot(pending),
        security_updates(),
        unlisted_administrators(administrators),
        ssh_servers(servers),
    ]


def natural(text: str) -> list[Any]:
    """Return a key that sorts 6.1.0-9 before 6.1.0-37."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]


def flavour(release: str) -> str:
    """Return a kernel's release without numbers, as cloud-amd64 of Debian or x86_64 and +64k of Red Hat."""
    return re.sub(r"\+(?:deb|bpo)[\d.]*|[\d.\-_]", "", release)


def reboot(pending: Sequence[str] = ()) -> dict[str, Any]:
    """Return whether the node runs what is installed: nothing asks for a reboot, no newer kernel waits."""
    if REBOOT_REQUIRED.exists():
        packages = Path(f"{REBOOT_REQUIRED}.pkgs")
        names = (
            sorted(set(packages.read_text(encoding="utf-8", errors="replace").split()))
            if packages.exists()
            else []
        )
        asked = f" for {', '.join(names)}" if names else ""
        return condition("reboot", "fail", f"the distribution asks for a reboot{asked}")
    running = os.uname().release
    kernels = [path.name.partition("-")[2] for path in BOOT.glob("vmlinuz-*")]
    alike = [name for name in kernels if flavour(name) == flavour(running)]
    newer = [name for name in alike if natural(name) > natural(running)]
    if newer:
        newest = max(newer, key=natural)
        return condition("reboot", "fail", f"kernel {running} runs, and {newest} is installed")
    return condition("reboot", "fail", "; ".join(pending)) if pending else condition("reboot", "pass")


def security_updates() -> dict[str, Any]:
    """Return whether updates of security wait, as far as the node's own package lists know."""
    key = "security-updates"
    try:
        if which("apt-get"):
            return apt_updates(key)
        if which("dnf"):
            output = run(["dnf", "--quiet", "--cacheonly", "updateinfo", "list", "--security"])
            found = sorted({line.split()[-1] for line in output.splitlines() if line.strip()})
            return updates(key, found, ["security-updates-dnf"])
    except (CommandError, OSError) as error:
        return condition(key, "not-checked", str(error))
    return condition(key, "not-checked", "neither apt nor dnf is here")


def apt_updates(key: str) -> dict[str, Any]:
    """Return the same by apt, which simulates the upgrade. No lock is taken and no list is fetched."""
    stamps = [path.stat().st_mtime for path in (APT_LISTS, *APT_LISTS.glob("*Release")) if path.exists()]
    if len(stamps) < 2:
        reason = "there are no package lists; `apt-get update` fetches them"
        return condition(key, "not-checked", reason, [["update-apt-lists"]])
    now = time.time()
    # apt gives a list the time that its server says: one that is yet to come would be new for ever.
    past = [stamp for stamp in stamps if stamp <= now]
    age_days = (now - max(past, default=now)) / 86400
    reason = ""
    if not past:
        reason = "all package lists are from the future by this node's clock: set it right, if it is wrong"
    elif age_days > LISTS_MAX_AGE_DAYS:
        reason = f"the package lists are {age_days:.0f} days old (expected at most {LISTS_MAX_AGE_DAYS})"
    if reason:
        return condition(
            key, "not-checked", f"{reason}; `apt-get update` renews them", [["update-apt-lists"]]
        )
    output = run(["apt-get", "--simulate", "--quiet", "--option=Debug::NoLocking=true", "dist-upgrade"])
    lines = [SECURITY_UPDATE.match(line) for line in output.splitlines()]
    names = sorted(match[1] for match in lines if match)
    return updates(key, names, ["security-updates-apt", *names])


def updates(key: str, names: list[str], install: list[str]) -> dict[str, Any]:
    """Pass where no update waits; `install` is the repair that installs them."""
    if not names:
        return condition(key, "pass")
    return condition(key, "fail", f"{len(names)} security updates wait: {', '.join(names)}", [install])


def unlisted_administrators(listed: Sequence[str] | None) -> dict[str, Any]:
    """Accounts that can become root, by number or group, and that nobody has listed."""
    key = "administrators"
    if listed is None:
        return condition(key, "not-applicable", "admin_accounts_users lists nobody")
    accounts = pwd.getpwall()
    roots = {entry.pw_name for entry in accounts if entry.pw_uid == 0}
    groups = {
        group.gr_name: {*group.gr_mem, *(e.pw_name for e in accounts if e.pw_gid == group.gr_gid)}
        for group in grp.getgrall()
        if group.gr_name in ADMINISTRATORS
    }
    unlisted = sorted({*roots, *(name for names in groups.values() for name in names)} - {"root", *listed})
    if not unlisted:
        return condition(key, "pass")
    reason = f"can become root, and admin_accounts_users does not list them: {', '.join(unlisted)}"
    repair = [
        ["leave-group", name, group]
        for group, names in groups.items()
        for name in sorted(names & set(unlisted))
    ]
    return condition(key, "fail", reason, repair)


def ssh_servers(servers: Callable[[], list[str]]) -> dict[str, Any]:
    """Return whether each sshd that others reach reads the settings that are hardened and checked."""
    key = "ssh-servers"
    try:
        found = servers()
    except (CommandError, OSError) as error:
        return condition(key, "not-checked", str(error))
    if not found:
        return condition(key, "pass")
    reason = f"sshd has settings that nobody hardens or checks: {'; '.join(found)}"
    return condition(key, "fail", f"{reason}; end it, or have the node's own sshd listen there")
