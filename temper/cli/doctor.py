"""Check this machine and the inventory before a run, and say what to do where something is bad.

Nothing is changed, and no node is asked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from temper.base import ROOT
from temper.base.nodes import counted, number_of, ranges
from temper.base.programs import ask
from temper.cli import json_document
from temper.plan.inventory import Inventory, InventoryError, chosen, expanded, read, utf8
from temper.plan.unread_files import questions
from validation.model.printable import printable

LAB = ROOT / "inventory" / "lab"
REPORTS = ROOT / "reports"
OLDEST_PYTHON = (3, 11)
LEAST_FREE_GIB = 5
SSH_PORT = "22"
SYSTEM_HOST_KEYS = Path("/etc/ssh/ssh_known_hosts")
PATIENCE_S = 30
#: Ansible's names for connections by ssh, the first one where an inventory names none.
BY_SSH = ("ssh", "smart", "ansible.builtin.ssh")
#: What else than ssh's own files and agent an inventory may name.
KEY_OF_INVENTORY = ("ansible_private_key_file", "ansible_ssh_private_key_file")
#: ssh's own names for a user's keys (ssh(1)).
KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ;| \\|$)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do; nothing to do where it is good."""

    subject: str
    found: str
    remedy: str = ""


def checkout() -> Finding:
    """Say which Temper this is."""
    done = _asked(["git", "-C", str(ROOT), "log", "-1", "--format=%h of %cs"])
    return Finding("checkout", f"{ROOT}, commit {done}" if done else f"{ROOT}, not a git repository")


def python() -> Finding:
    """Check the version of Python."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}, {sys.executable}"
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(
        "Python", found, "" if sys.version_info >= OLDEST_PYTHON else f"use Python {oldest} or newer"
    )


def packages() -> Finding:
    """Compare the controller's packages with their pins."""
    pins = PINNED.findall((ROOT / "requirements/controller.txt").read_text(encoding="utf-8"))
    others = []
    for name, wanted in pins:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # for another system; what is needed and missing ended the program before
        if found != wanted:
            others.append(f"{name} {found}, pinned is {wanted}")
    try:
        core = metadata.version("ansible-core")
    except metadata.PackageNotFoundError:
        return Finding("packages", "no ansible-core in this Python", "make setup, then . .venv/bin/activate")
    if others:
        return Finding("packages", f"ansible-core {core}; {'; '.join(others)}", "make setup")
    return Finding("packages", f"ansible-core {core}; {number_of(len(pins), 'pin')} met")


def language() -> Finding:
    """Check that Ansible starts in the operator's locale."""
    found = "UTF-8" if utf8() else "not UTF-8, without which Ansible does not start"
    return Finding("locale", found, "" if utf8() else "export LC_ALL=C.UTF-8")


def settings() -> Finding:
    """Check that Ansible reads the checkout's settings; it ignores those in a folder that all may change."""
    path, named = ROOT / "ansible.cfg", os.environ.get("ANSIBLE_CONFIG")
    if named and expanded(named).resolve() != path.resolve():
        return Finding("settings", f"ANSIBLE_CONFIG is {named}, not this checkout's", "unset ANSIBLE_CONFIG")
    if not named and ROOT.stat().st_mode & stat.S_IWOTH:
        return Finding("settings", f"all may write to {ROOT}: Ansible ignores {path}", f"chmod o-w {ROOT}")
    return Finding("settings", str(path))


def space() -> Finding:
    """Check that reports have room."""
    free_gib = shutil.disk_usage(REPORTS if REPORTS.is_dir() else ROOT).free / 2**30
    found = f"{free_gib:.0f} GiB free for reports"
    return Finding(
        "disk", found, "" if free_gib >= LEAST_FREE_GIB else "make room: reports stay until you remove them"
    )


def reports() -> Finding:
    """Check who may read reports, and that this account may write them."""
    if not REPORTS.is_dir():
        return Finding("reports", "none yet")
    mode = stat.S_IMODE(REPORTS.stat().st_mode)
    remedy = f"chmod 0700 {REPORTS}" if mode & 0o077 else ""
    if not os.access(REPORTS, os.W_OK):
        remedy = "run as the account that owns it, on a file system that can be written to"
    return Finding("reports", f"{REPORTS}, mode {mode:04o}", remedy)


def inventory(given: Sequence[str]) -> Iterator[Finding]:
    """Check what Ansible reads as inventory, and whether ssh knows its nodes."""
    sources = chosen(given) or [str(LAB)]
    name = " and ".join(sources)
    try:
        known = read(sources)
    except InventoryError as error:
        yield Finding("inventory", str(error), "mend it, or name another one with -i")
        return
    note = ", the lab on this machine" if sources == [str(LAB)] else ""
    yield Finding("inventory", f"{name}{note}: {counted(known.nodes)}")
    for question in questions(sources, known.names, known.names):
        found, _, remedy = question.rpartition("; ")
        yield Finding("variables", found, remedy)
    if sources != [str(LAB)] and (nodes := _by_ssh(known)):
        yield _key(nodes)
        yield _host_keys(nodes)


def _by_ssh(known: Inventory) -> dict[str, Mapping[str, Any]]:
    """Return the variables of the nodes that Ansible reaches by ssh."""
    found = {node: known.variables.get(node, {}) for node in known.nodes}
    return {node: own for node, own in found.items() if own.get("ansible_connection", BY_SSH[0]) in BY_SSH}


def _key(nodes: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Check that ssh has a key to offer."""
    if all(any(name in own for name in KEY_OF_INVENTORY) for own in nodes.values()):
        return Finding("SSH keys", "those that the inventory names")
    agent = _asked(["ssh-add", "-l"])
    own = [name for name in KEYS if (Path.home() / ".ssh" / name).is_file()]
    if agent or own:
        return Finding(
            "SSH keys", f"{len(agent.splitlines())} in the agent, {', '.join(own) or 'none'} in ~/.ssh"
        )
    return Finding(
        "SSH keys", "none in an agent or in ~/.ssh", "ssh-add KEY, or set ansible_ssh_private_key_file"
    )


def _host_keys(variables: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Check which nodes' host keys ssh knows. Where the inventory has files of its own, nobody can say."""
    nodes = []
    for node, own in variables.items():
        address, port = str(own.get("ansible_host") or node), str(own.get("ansible_port", SSH_PORT))
        if "{{" not in f"{address}{port}" and not any("KnownHosts" in str(value) for value in own.values()):
            nodes.append((node, address if port == SSH_PORT else f"[{address}]:{port}"))
    if not nodes:
        return Finding("host keys", "not looked at: the inventory names files of its own")
    files = [path for path in (Path.home() / ".ssh/known_hosts", SYSTEM_HOST_KEYS) if path.is_file()]
    unknown = [
        node
        for node, host in nodes
        if not any(_asked(["ssh-keygen", "-F", host, "-f", str(path)]) for path in files)
    ]
    if not unknown:
        return Finding("host keys", f"known of {counted([node for node, _ in nodes])}")
    return Finding(
        "host keys",
        f"unknown of {ranges(unknown)}",
        "compare each with the node's console, then put it into ~/.ssh/known_hosts: ssh-keyscan NODE",
    )


def _asked(command: list[str]) -> str:
    """Return what a command prints, nothing where it fails or is not there."""
    try:
        done = ask(command, PATIENCE_S)
    except OSError:
        return ""
    return "" if done.status else done.output.strip()


#: Characters of the longest subject.
WIDTH = len("host keys")
ALONE: tuple[Callable[[], Finding], ...] = (checkout, python, packages, language, settings, space, reports)


def text(one: Finding) -> str:
    """Return a finding as lines for a terminal."""
    lines = [f"{'  BAD' if one.remedy else '   ok'}  {one.subject:<{WIDTH}}  {one.found}"]
    lines += [f"{'':5}  {'':<{WIDTH}}  -> {one.remedy}"] if one.remedy else []
    return printable("\n".join(lines))


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(prog="temper doctor", description=(__doc__ or "").splitlines()[0])
    made.add_argument("-i", "--inventory", action="append", default=[], help="as ansible-playbook takes it")
    json_document.add_option(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    given = parser().parse_args(arguments)
    findings = []
    # One by one: Ansible takes longer than a second to read an inventory.
    for one in chain((check() for check in ALONE), inventory(given.inventory)):
        findings.append(one)
        if not given.json:
            print(text(one), flush=True)
    if given.json:
        document = {"findings": [asdict(one) | {"good": not one.remedy} for one in findings]}
        print(json_document.dumps(document))
    return int(any(one.remedy for one in findings))
