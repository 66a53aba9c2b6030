"""What the node's own programs say of what a plan wants, before anything is changed.

visudo, sshd and nft read what would be written. auditctl reads each rule in a user namespace, from which the
kernel takes none. Asking writes temporary files alone, and loads no kernel module: what would do more is not
asked. A program that is not installed yet is not asked, either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from ansible.module_utils.temper.access import sshd
from ansible.module_utils.temper.access.firewall import Firewall, live_table
from ansible.module_utils.temper.access.nftables_rules import TABLE
from ansible.module_utils.temper.access.sshd_settings import SshdSettings, word_on_unknown
from ansible.module_utils.temper.files import candidate
from ansible.module_utils.temper.process import CommandError, complete, printable, run, shown, which
from ansible.module_utils.temper.settings import audit
from ansible.module_utils.temper.settings.audit import AuditError
from ansible.module_utils.temper.settings.base import RefusedError, SettingError
from ansible.module_utils.temper.settings.engine import Role
from ansible.module_utils.temper.settings.sudoers import is_sudoers, known_here

#: To read a table loads the first, unless it is loaded. A kernel without the second loads none.
NF_TABLES, MODULES = Path("/sys/module/nf_tables"), Path("/proc/modules")
#: More rules that auditctl does not know are counted.
MOST_SENTENCES = 20
MOST_REASON = 500


class Unheard:
    """Stand in for the module that carries roles out, where a role is only asked: the run warns by itself."""

    check_mode = True

    def warn(self, warning: str) -> None:
        """Leave it to the run."""


@dataclass
class ProgramAnswers:
    """What programs do not know, and what they refuse.

    `unknown` has controls that are left out, each with the reason; `without` says what the other programs go
    without; `refused` has what keeps a `role` from being carried out here, as `said`, and whether that
    `advises` what to do; `unasked` has the programs that gave no answer, each with the reason.
    """

    unknown: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    unasked: dict[str, str] = field(default_factory=dict)

    def refuse(self, role: str, said: str, *, advises: bool = False) -> None:
        """Note what this node would not take of a role, and whether `said` has a remedy, too."""
        self.refused.append({"role": role, "said": said, "advises": advises})

    @contextmanager
    def of(self, program: str) -> Iterator[None]:
        """Note a program that fails as not asked: the others are asked all the same."""
        try:
            yield
        except (AuditError, CommandError, OSError, RefusedError, SettingError, TimeoutExpired) as error:
            self.unasked[program] = printable(str(error), MOST_REASON)


def ask(plans: Sequence[Mapping[str, Any]]) -> ProgramAnswers:
    """Ask the programs about the roles' parts of a plan. Nobody but root can ask all of them."""
    found = ProgramAnswers()
    if os.geteuid() != 0:
        return found
    for plan in plans:
        if plan["options"]["absent"]:
            continue
        with found.of("visudo"):
            ask_visudo(plan, found)
        with found.of("auditctl"):
            said = audit.known_here(plan["settings"])[1]
            more = [f"auditctl does not know {len(said) - MOST_SENTENCES} more rules"]
            found.without += said[:MOST_SENTENCES] + (more if said[MOST_SENTENCES:] else [])
        if plan["role"] == "ssh_hardening" and which("sshd"):
            with found.of("sshd"):
                ask_sshd(plan, found)
        if plan["role"] == "firewall":
            with found.of("nft"):
                ask_nft(plan, found)
        if plan["role"] == "os_hardening":
            with found.of(plan["role"]):
                for obstacle in Role(Unheard(), plan, {}).obstacles():
                    found.refuse(plan["role"], obstacle, advises=True)
    return found


def values(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is wanted by kind and key, for a setting that is made of all items together."""
    return {f"{item['kind']}:{item['key']}": item["wanted"] for item in plan["settings"]}


def ask_visudo(plan: Mapping[str, Any], found: ProgramAnswers) -> None:
    """Have visudo read the files of rules, without the controls that this sudo does not know."""
    known, unknown = known_here(plan["settings"])
    found.unknown |= unknown
    for item in filter(is_sudoers, known):
        if which("visudo"):
            text = item["wanted"]["content"]
            if said := refusal("visudo", ["visudo", "-cf"], item["key"], text):
                found.refuse(plan["role"], said)


def ask_sshd(plan: Mapping[str, Any], found: ProgramAnswers) -> None:
    """Have sshd read the whole configuration with ours in it.

    Raises RefusedError where this sshd needs a folder that is not there.
    """
    try:
        said = word_on_unknown(SshdSettings.from_items(values(plan), plan["options"]).foreseen())
    except RefusedError as error:
        if sshd.LACKS_FOLDER in str(error):
            raise
        found.refuse(plan["role"], str(error))
    else:
        found.without += [said] if said else []


def ask_nft(plan: Mapping[str, Any], found: ProgramAnswers) -> None:
    """Find what keeps the rules out, then have nft check them in an empty network namespace.

    Raises CommandError, OSError, TimeoutExpired where no answer is nft's.
    """
    items = {item["key"]: item["wanted"] for item in plan["settings"] if item["kind"] == "firewall"}
    loads_none = not MODULES.exists() or NF_TABLES.exists()
    try:
        text = Firewall.from_items(items, plan["options"]).composed(reads_chains=loads_none).text
    except RefusedError as error:
        found.refuse(plan["role"], str(error), advises=True)
        return
    if not which("nft"):
        return
    if not loads_none or not live_table():
        found.unasked["nft"] = f"table {TABLE} is not loaded, and a check of its rules would load modules"
        return
    alone = ["unshare", "--net"]
    run([*alone, "true"])
    if said := refusal("nft", [*alone, "nft", "-c", "-f"], "the firewall's rules", text):
        found.refuse(plan["role"], said)


def refusal(program: str, command: list[str], name: str, text: str) -> str:
    """Return why a program would not take a text, in its own words; empty where it takes it."""
    with candidate(text.encode()) as path:
        done = complete([*command, path])
    said = " ".join((done.stderr or done.stdout).replace(path, "").split())
    return f"{program} of this node refuses {name}: {shown(said)}" if done.returncode else ""
