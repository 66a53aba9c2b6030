#!/usr/bin/python3
"""A set of packages at exact versions, installed in one transaction and held."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_set
short_description: Install exact package versions in one apt transaction and hold them
description:
  - Compares what dpkg knows with the wanted versions and, only where they differ, runs one C(apt-get
    install) with the complete explicit list, then holds the packages together with everything else that has
    one of O(hold_versions).
  - Every transaction is simulated first; one that would remove a package outside the NVIDIA family, change
    one that somebody holds, or install a kernel that was not asked for, is refused.
  - A transaction that was interrupted earlier is completed first.
options:
  packages:
    description: Names and exact versions; these are held.
    type: dict
    required: true
  present:
    description: Names that must be installed at any version; these are not held.
    type: list
    elements: str
    default: []
  hold_versions:
    description: Every installed package of the NVIDIA family at one of these versions is held as well.
    type: list
    elements: str
    default: []
  refresh:
    description: Read the package lists again even if all versions are known, because a repository changed.
    type: bool
    default: false
author: Temper developers
"""

EXAMPLES = r"""
- name: Install the stack
  package_set:
    packages: {nvidia-driver-cuda: 580.178.04-1, libnccl2: 2.28.9-1+cuda13.0}
    hold_versions: [580.178.04-1]
"""

RETURN = r"""
installed:
  description: Names that were installed, upgraded or downgraded, with their new versions.
  returned: always
  type: dict
held:
  description: Names whose hold was set.
  returned: always
  type: list
  elements: str
recovered:
  description: Names that an interrupted earlier transaction had left half-way.
  returned: always
  type: list
  elements: str
"""

import os
import re
import subprocess

from ansible.module_utils import packages as dpkg
from ansible.module_utils.basic import AnsibleModule

# Another apt (unattended-upgrades, cloud-init) may hold the lock on a new server.
LOCK_TIMEOUT_S = 600
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
    # Services restart when Temper says so, not when a hook of apt does.
    "NEEDRESTART_SUSPEND": "1",
    "APT_LISTCHANGES_FRONTEND": "none",
}
APT = [
    "apt-get",
    "-q",
    "-y",
    "-o",
    f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
]
INSTALL = [
    *APT,
    "install",
    "--no-install-recommends",
    "--allow-downgrades",
    # Else the held siblings of a listed package stay where they are, and it cannot move.
    "--allow-change-held-packages",
    "--ignore-hold",
]
ERROR_LINES = 15
# How apt and dpkg begin, or mark, the lines that say why.
EXPLAINS = re.compile(r"^(E:|Err:|dpkg: error)| : (Pre)?Depends: | : Conflicts: ")


class Apt:
    """Runs apt and dpkg; a command that fails ends the module with its own last words."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def run(self, command: list[str], doing: str) -> str:
        """Standard output; `doing` names the step in the message of a failure."""
        completed = self.attempt(command)
        if completed.returncode:
            self.fail(doing, completed.stdout + completed.stderr)
        return completed.stdout

    def attempt(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        return subprocess.run(
            command,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def fail(self, doing: str, output: str) -> None:
        """End the module with the lines that explain a failure: errors, unmet dependencies, else the end."""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        telling = [line for line in lines if EXPLAINS.search(line)] or lines
        self.module.fail_json(msg=f"{doing} failed: {' '.join(telling[-ERROR_LINES:])}", output=lines)


def differing(wanted: dict[str, str], present: list[str], known: dict[str, dpkg.Package]) -> list[str]:
    """Apt's arguments for what is missing or at another version."""
    missing = [name for name in present if not (name in known and known[name].installed)]
    wrong = [
        f"{name}={version}"
        for name, version in wanted.items()
        if not (name in known and known[name].installed and known[name].version == version)
    ]
    return wrong + missing


def to_hold(wanted: dict[str, str], versions: list[str], known: dict[str, dpkg.Package]) -> list[str]:
    """Installed packages that must be held and are not.

    They are the listed ones, and their siblings at one of the versions.
    """
    return sorted(
        name
        for name, package in known.items()
        if package.installed
        and not package.held
        and (name in wanted or (package.version in versions and dpkg.FAMILY.match(name)))
    )


def dangers(simulation: str, asked: list[str], known: dict[str, dpkg.Package]) -> list[str]:
    """Why a simulated transaction must not run.

    It removes what is none of its business, changes what somebody holds, or brings a kernel that nobody asked
    for.
    """
    names = {argument.split("=")[0] for argument in asked}
    removed = re.findall(r"^Remv (\S+)", simulation, re.MULTILINE)
    installed = [name for name in re.findall(r"^Inst (\S+)", simulation, re.MULTILINE) if name not in names]
    kernels = [name for name in installed if name.startswith("linux-image-")]
    held = [name for name in installed if name in known and known[name].held and not dpkg.FAMILY.match(name)]
    # The other flavour of the kernel modules, and the previous generation's names, give way by design.
    unexpected = [name for name in removed if not dpkg.FAMILY.match(name)]
    problems = []
    if unexpected:
        problems.append(f"it would remove {', '.join(unexpected)}")
    if held:
        problems.append(f"it would change {', '.join(held)}, which somebody holds")
    if kernels:
        problems.append(f"it would install another kernel ({', '.join(kernels)})")
    return problems


def install(apt: Apt, arguments: list[str], known: dict[str, dpkg.Package], doing: str) -> None:
    """Run a transaction of apt if its simulation shows nothing that it must not do."""
    simulation = apt.run([*INSTALL, "--simulate", *arguments], f"{doing} (simulation)")
    problems = dangers(simulation, arguments, known)
    if problems:
        apt.module.fail_json(
            msg=f"The transaction is refused, because {' and '.join(problems)}. Nothing was changed. "
            f"Look at `apt-get install --simulate {' '.join(arguments)}` on the node."
        )
    apt.run([*INSTALL, *arguments], doing)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "present": {"type": "list", "elements": "str", "default": []},
            "hold_versions": {"type": "list", "elements": "str", "default": []},
            "refresh": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, str] = module.params["packages"]
    present: list[str] = module.params["present"]
    versions: list[str] = module.params["hold_versions"]
    apt = Apt(module)

    known = dpkg.query()
    broken = sorted(name for name, package in known.items() if package.broken)
    arguments = differing(wanted, present, known)
    if not arguments and not broken:
        holds = to_hold(wanted, versions, known)
        if holds and not module.check_mode:
            apt.run(["apt-mark", "hold", *holds], "Holding packages")
        module.exit_json(changed=bool(holds), installed={}, held=holds, recovered=[])

    if module.check_mode:
        # Nothing is simulated: on a bare node the repositories are not there yet.
        new = {name: version for name, version in wanted.items() if f"{name}={version}" in arguments}
        diff = {"before": "", "after": "".join(f"{argument}\n" for argument in arguments)}
        module.exit_json(changed=True, installed=new, held=sorted(new), recovered=broken, diff=diff)

    if module.params["refresh"] or not offered(arguments):
        apt.run(
            [*APT, "-o", "APT::Update::Error-Mode=any", "update"],
            "Reading the package lists (apt-get update)",
        )
    if broken:
        # It fails where a dependency had not been unpacked yet; apt brings that one.
        apt.attempt(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
        install(apt, ["--fix-broken"], known, "Completing an interrupted installation")
        arguments = differing(wanted, present, dpkg.query())
    if arguments:
        install(apt, arguments, known, "Installing the packages")
    after = dpkg.query()
    left = differing(wanted, present, after)
    if left:
        module.fail_json(
            msg=f"apt-get succeeded, but these are still not installed as wanted: {', '.join(left)}."
        )
    holds = to_hold(wanted, versions, after)
    if holds:
        apt.run(["apt-mark", "hold", *holds], "Holding packages")
    installed = {
        name: package.version
        for name, package in after.items()
        if package.installed
        and (name not in known or known[name].version != package.version or not known[name].installed)
    }
    module.exit_json(changed=True, installed=installed, held=holds, recovered=broken)


def offered(arguments: list[str]) -> bool:
    """Whether the package lists on the node know all wanted versions already."""
    names = [argument.split("=")[0] for argument in arguments]
    policy = subprocess.run(
        ["apt-cache", "madison", *names], capture_output=True, text=True, check=False
    ).stdout
    rows = {
        tuple(part.strip() for part in line.split("|")[:2]) for line in policy.splitlines() if "|" in line
    }
    available = {f"{name}={version}" for name, version in rows} | {name for name, _ in rows}
    return all(argument in available for argument in arguments)


if __name__ == "__main__":
    main()
