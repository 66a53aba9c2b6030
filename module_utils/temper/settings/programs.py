"""What the node's own programs say of what a plan wants, before anything is changed. Nothing is by asking.

visudo, sshd and nft read what would be written, and auditctl each rule: in a user namespace, from which the
kernel takes none. A program that is not installed yet is not asked.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.firewall import Firewall
from ansible.module_utils.temper.access.sshd_settings import SshdSettings, word_on_unknown
from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.process import CommandError, complete, printable, shown, which
from ansible.module_utils.temper.settings import audit
from ansible.module_utils.temper.settings.base import RefusedError, SettingError
from ansible.module_utils.temper.settings.sudoers import is_sudoers, known_here

#: To ask nft loads the first, unless it is loaded. A kernel without the second loads none.
NF_TABLES, MODULES = Path("/sys/module/nf_tables"), Path("/proc/modules")
#: What auditctl says of a rule that it cannot read (errormsg.h of audit 4.0.2), else it is of the kernel.
UNKNOWN = re.compile(r"unknown|unrecognized|invalid option", re.IGNORECASE)


@dataclass
class ProgramAnswers:
    """What programs do not know, and what they refuse.

    `unknown` has controls that are left out, each with the reason; `without` says what the other programs go
    without; `refused` are the words of those that would not take what is wanted.
    """

    unknown: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def ask(plans: Sequence[Mapping[str, Any]]) -> ProgramAnswers:
    """Ask the programs about the roles' parts of a plan. Nobody but root can ask all of them.

    Raises OutputError, OSError, subprocess.TimeoutExpired.
    """
    found = ProgramAnswers()
    if os.geteuid() != 0:
        return found
    for plan in plans:
        if plan["options"]["absent"]:
            continue
        items = plan["settings"]
        ask_visudo(items, found)
        ask_auditctl(items, found)
        if plan["role"] == "ssh_hardening" and which("sshd"):
            ask_sshd(plan, found)
        if plan["role"] == "firewall" and which("nft") and (NF_TABLES.exists() or not MODULES.exists()):
            ask_nft(plan, found)
    return found


def values(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is wanted by kind and key, for a setting that is made of all items together."""
    return {f"{item['kind']}:{item['key']}": item["wanted"] for item in plan["settings"]}


def ask_visudo(items: Sequence[Mapping[str, Any]], found: ProgramAnswers) -> None:
    """Have visudo read the files of rules, without the controls that this sudo does not know."""
    known, unknown = known_here(items)
    found.unknown |= unknown
    for item in filter(is_sudoers, known):
        if which("visudo"):
            found.refused += refusal("visudo", ["visudo", "-cf"], item["key"], item["wanted"]["content"])


def ask_sshd(plan: Mapping[str, Any], found: ProgramAnswers) -> None:
    """Have sshd read the whole configuration with ours in it."""
    try:
        said = word_on_unknown(SshdSettings.from_items(values(plan), plan["options"]).composed())
    except RefusedError as error:
        found.refused.append(str(error))
    else:
        found.without += [said] if said else []


def ask_nft(plan: Mapping[str, Any], found: ProgramAnswers) -> None:
    """Have nft check the rules in an empty network namespace. What else keeps them out, their role says."""
    items = {item["key"]: item["wanted"] for item in plan["settings"]}
    with suppress(SettingError, CommandError):
        text = Firewall.from_items(items, plan["options"]).look().text
        found.refused += refusal("nft", ["unshare", "--net", "nft", "-c", "-f"], "the firewall's rules", text)


def refusal(program: str, command: list[str], name: str, text: str) -> list[str]:
    """Return why a program would not take a text, in its own words."""
    with tempfile.NamedTemporaryFile("w", prefix="temper-", encoding="utf-8") as candidate:
        candidate.write(text)
        candidate.flush()
        done = complete([*command, candidate.name])
    said = " ".join((done.stderr or done.stdout).replace(candidate.name, "").split())
    return [f"{program} of this node refuses {name}: {shown(said)}"] if done.returncode else []


def ask_auditctl(items: Sequence[Mapping[str, Any]], found: ProgramAnswers) -> None:
    """Have auditctl read each rule of files that are to change: a process each, which a quick run has not.

    What it does not know is a rule with a call or a field that this auditctl lacks.
    """
    texts = [
        item["wanted"]["content"]
        for item in items
        if item["kind"] == "file" and item["key"].startswith(audit.RULES) and item["wanted"]
        if item["wanted"].get("machine") in (None, platform.machine())
        if File(item["key"], item["wanted"]["content"], item["wanted"].get("mode", "0644")).differs()
    ]
    if not texts or not which("auditctl"):
        return
    rules = [text for one in texts for text in audit.parse_file(one).rules.values()]
    script = "".join(
        f"echo {number}; auditctl {line} 2>&1\n" for number, line in enumerate(map(quoted, rules))
    )
    with suppress(OSError, subprocess.TimeoutExpired):
        version = printable(complete(["auditctl", "-v"]).stdout.strip())
        done = complete(["unshare", "--user", "--map-root-user", "sh", "-s"], text=script)
        number = ""
        for line in done.stdout.splitlines():
            if line.isdecimal():
                number = line
            elif number and UNKNOWN.search(line):
                found.without.append(f"{version} does not know {rules[int(number)]}: {printable(line)}")
                number = ""


def quoted(rule: str) -> str:
    """Return the words of a rule for a shell."""
    return " ".join(map(shlex.quote, rule.split()))
